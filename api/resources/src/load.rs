//! Documents from files, directories and standard input.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::parse::{Documents, duplicates, parse};
use crate::problem::Problem;

/// Largest file read, in bytes: 10,000 endpoints take about 4 MiB.
pub const MAX_FILE_BYTES: u64 = 32 << 20;
/// The path that means standard input.
pub const STDIN: &str = "-";

/// Reads every path: a file, a directory (its `*.yaml`, `*.yml` and `*.json`, by name, hidden files
/// and subdirectories left out), or `-` for standard input.
///
/// # Errors
/// Every problem of every file; then nothing may be used.
pub fn load<P: AsRef<Path>>(paths: &[P]) -> Result<Documents, Vec<Problem>> {
    let mut documents = Documents::default();
    let mut problems = Vec::new();
    for path in paths {
        for file in files(path.as_ref(), &mut problems) {
            match read(&file).map(|text| parse(&file.to_string_lossy(), &text)) {
                Ok(Ok(found)) => {
                    documents.objects.extend(found.objects);
                    documents.ignored.extend(found.ignored);
                    documents.outlines.extend(found.outlines);
                }
                Ok(Err(found)) => problems.extend(found),
                Err(error) => problems.push(unreadable(&file, &error)),
            }
        }
    }
    if problems.is_empty() {
        duplicates(&documents.objects, &mut problems);
    }
    if problems.is_empty() { Ok(documents) } else { Err(problems) }
}

/// Whether a file of a directory is read as documents, by its name.
#[must_use]
pub fn is_document(file: &Path) -> bool {
    let extension = file.extension().and_then(|e| e.to_str()).unwrap_or_default();
    let hidden = file.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
    matches!(extension, "yaml" | "yml" | "json") && !hidden
}

fn unreadable(path: &Path, error: &io::Error) -> Problem {
    Problem::of_file(&path.to_string_lossy(), format!("cannot be read: {error}"))
}

/// The files that a path stands for.
fn files(path: &Path, problems: &mut Vec<Problem>) -> Vec<PathBuf> {
    if path == Path::new(STDIN) || !path.is_dir() {
        return vec![path.to_owned()];
    }
    let entries = match path.read_dir().and_then(Iterator::collect::<io::Result<Vec<_>>>) {
        Ok(entries) => entries,
        Err(error) => {
            problems.push(unreadable(path, &error));
            return Vec::new();
        }
    };
    let documents = |file: &PathBuf| is_document(file) && !file.is_dir();
    let mut files: Vec<_> = entries.iter().map(std::fs::DirEntry::path).filter(documents).collect();
    files.sort();
    files
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let length = if path == Path::new(STDIN) {
        io::stdin().lock().take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?
    } else {
        File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?
    };
    if length as u64 > MAX_FILE_BYTES {
        let reason = format!("larger than {MAX_FILE_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(text)
}
