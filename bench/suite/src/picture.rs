//! Writes charts to files: SVG directly, PNG through a program from a Debian package.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail, ensure};

use crate::files;
use crate::interrupt::Interrupt;
use crate::process;

/// The program that converts SVG to PNG. A library for this would make `leno-bench` larger by a third.
const CONVERTER: &str = "rsvg-convert";
/// How many pixels of the PNG correspond to a pixel of the chart. More than one keeps the chart sharp in print.
const ZOOM: &str = "2";

/// Writes a chart in the format that the file's extension names, `.svg` or `.png`.
///
/// # Errors
/// If the extension is another one, the file cannot be written, or the program for PNG is missing.
pub fn write(svg: &str, file: &Path) -> Result<()> {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => files::write(file, svg),
        Some("png") => png(svg, file),
        _ => bail!("{}: the name of a chart must end in .svg or .png", file.display()),
    }
}

/// Whether the program for PNG files is installed.
pub fn draws_png() -> bool {
    Command::new(CONVERTER).arg("--version").output().is_ok_and(|output| output.status.success())
}

fn png(svg: &str, file: &Path) -> Result<()> {
    ensure!(
        draws_png(),
        "PNG needs the program {CONVERTER}, which is not installed: apt-get install -y librsvg2-bin"
    );
    let mut command = Command::new(CONVERTER);
    command.args(["-z", ZOOM, "-o"]).arg(file);
    process::run(&mut command, svg, &Interrupt::default()).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_extension_chooses_the_format() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.svg");
        write("<svg/>", &file).unwrap();
        assert_eq!(fs::read_to_string(file).unwrap(), "<svg/>");
        assert!(write("<svg/>", &folder.path().join("a.gif")).is_err());
    }

    #[test]
    fn a_png_is_made_without_touching_the_svg_beside_it() {
        if !draws_png() {
            assert!(!leno_testkit::tools::required("tools"), "LENO_REQUIRE has tools");
            println!("skipped: {CONVERTER} is missing");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let chart = |width: u32| {
            format!("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"10\"/>")
        };
        write(&chart(99), &folder.path().join("a.svg")).unwrap();
        let file = folder.path().join("a.png");
        write(&chart(20), &file).unwrap();
        let picture = fs::read(&file).unwrap();
        // In a PNG (ISO/IEC 15948, 11.2.2), the width is in bytes 16 to 19.
        assert_eq!((&picture[1..4], &picture[16..20]), (&b"PNG"[..], &[0, 0, 0, 40][..]));
        let kept = fs::read_to_string(folder.path().join("a.svg")).unwrap();
        assert_eq!(kept, chart(99), "the chart of another program");
        let wrong = write("no chart", &file).unwrap_err().to_string();
        assert!(wrong.contains("rsvg-convert") && wrong.contains("ended with"), "{wrong}");
    }
}
