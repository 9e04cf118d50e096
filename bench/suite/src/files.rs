//! Reads and writes files; errors name the file.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Reads a file as text.
pub fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes a file, and creates its folder if necessary.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, text))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Like [`write`], but replaces the file in one step, so that no reader ever sees an incomplete text.
pub fn replace(path: &Path, text: &str) -> Result<()> {
    let draft = path.with_extension("draft");
    write(&draft, text)?;
    fs::rename(&draft, path).with_context(|| format!("cannot write {}", path.display()))
}
