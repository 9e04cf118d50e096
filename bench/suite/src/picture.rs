//! Charts as files: SVG as it is, PNG by the program that Debian has for it.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use crate::error::{Attempt, Error, Result};

/// Draws SVG; a library for it would be a third of this program.
const CONVERTER: &str = "rsvg-convert";
/// Pixels of the picture for each of the chart: sharp in print.
const ZOOM: &str = "2";

/// Writes a chart as the file's name says, `.svg` or `.png`.
///
/// # Errors
/// When the name ends otherwise, the file cannot be written, or there is no program for PNG.
pub fn write(svg: &str, file: &Path) -> Result<()> {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => fs::write(file, svg).attempt(|| format!("write {}", file.display())),
        Some("png") => png(svg, file),
        _ => Err(Error::Refused(format!("{}: a chart ends in .svg or .png", file.display()))),
    }
}

/// Whether PNG files can be made here.
#[must_use]
pub fn draws_png() -> bool {
    Command::new(CONVERTER).arg("--version").output().is_ok_and(|output| output.status.success())
}

fn png(svg: &str, file: &Path) -> Result<()> {
    let source = file.with_extension("svg");
    let kept = source.exists();
    if !kept {
        fs::write(&source, svg).attempt(|| format!("write {}", source.display()))?;
    }
    let done = Command::new(CONVERTER).args(["-z", ZOOM, "-o"]).arg(file).arg(&source).output();
    if !kept {
        // Only a step on the way to the picture.
        let _ = fs::remove_file(&source);
    }
    match done {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(Error::Refused(format!("{CONVERTER} failed: {}", said.trim())))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::Refused(format!(
            "{CONVERTER}, which draws PNG, is missing: apt-get install -y librsvg2-bin"
        ))),
        Err(source) => Err(Error::Io { what: format!("run {CONVERTER}"), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_says_the_form() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.svg");
        write("<svg/>", &file).unwrap();
        assert_eq!(fs::read_to_string(file).unwrap(), "<svg/>");
        assert!(write("<svg/>", &folder.path().join("a.gif")).is_err());
    }
}
