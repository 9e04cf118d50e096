//! Files whose errors name them.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// The text of a file.
pub fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes a file, and makes the folder that it is in.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, text))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// As [`write`], so that no reader sees half of it.
pub fn replace(path: &Path, text: &str) -> Result<()> {
    let draft = path.with_extension("draft");
    write(&draft, text)?;
    fs::rename(&draft, path).with_context(|| format!("cannot write {}", path.display()))
}
