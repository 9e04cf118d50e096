//! The SHA-256 digest of a file.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use aws_lc_rs::digest::{Context, SHA256};

/// Bytes of one read: jars have many megabytes.
const PIECE: usize = 64 * 1024;

/// `sha256:` and 64 hexadecimal digits.
pub(super) fn of(path: &Path) -> Result<String> {
    let what = || format!("cannot read {}", path.display());
    let mut file = File::open(path).with_context(what)?;
    let (mut context, mut piece) = (Context::new(&SHA256), vec![0; PIECE]);
    loop {
        match file.read(&mut piece).with_context(what)? {
            0 => break,
            count => context.update(&piece[..count]),
        }
    }
    let mut text = "sha256:".to_owned();
    for byte in context.finish().as_ref() {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_one_of_fips_180() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("abc");
        std::fs::write(&file, "abc").unwrap();
        assert_eq!(
            of(&file).unwrap(),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        let missing = of(&folder.path().join("none")).unwrap_err().to_string();
        assert!(missing.starts_with("cannot read"), "{missing}");
    }
}
