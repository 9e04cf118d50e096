//! Reads documents from files, directories and standard input.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::parse::{Documents, duplicates, parse};
use crate::problem::{Position, Problem};

/// The size of the largest file that is read, in MiB. A file with 10,000 endpoints has about 4 MiB.
const MAX_FILE_MIB: u64 = 32;
/// [`MAX_FILE_MIB`] in bytes.
const MAX_FILE_BYTES: u64 = MAX_FILE_MIB << 20;
/// The error for a path that is not a file.
const ENDLESS: &str =
    "is a pipe, a socket or a device: put a file there, or name `-` for standard input";
/// The path that means standard input.
pub const STDIN: &str = "-";

/// Reads every path: a file; a directory (its `*.yaml`, `*.yml` and `*.json` files, ordered by
/// name, without hidden files and subdirectories); or `-` for standard input.
///
/// # Errors
/// All problems of all files; no object may be used then.
pub fn load<P: AsRef<Path>>(paths: &[P]) -> Result<Documents, Vec<Problem>> {
    load_with(paths, parse)
}

/// Like [`load`], with a parser that also accepts other content than documents.
///
/// # Errors
/// All problems of all files; no object may be used then.
pub fn load_with<P: AsRef<Path>>(
    paths: &[P],
    mut parse: impl FnMut(&str, &str) -> Result<Documents, Vec<Problem>>,
) -> Result<Documents, Vec<Problem>> {
    let mut documents = Documents::default();
    let mut problems = Vec::new();
    for path in paths {
        for file in files(path.as_ref(), &mut problems) {
            let text = read(&file).map_err(|problem| vec![problem]);
            match text.and_then(|text| parse(&file.to_string_lossy(), &text)) {
                Ok(found) => {
                    documents.objects.extend(found.objects);
                    documents.ignored.extend(found.ignored);
                    documents.outlines.extend(found.outlines);
                }
                Err(found) => problems.extend(found),
            }
        }
    }
    if problems.is_empty() {
        duplicates(&documents.objects, &mut problems);
    }
    if problems.is_empty() { Ok(documents) } else { Err(problems) }
}

/// Whether a file in a directory is read as documents, judged by its name.
#[must_use]
pub fn is_document(file: &Path) -> bool {
    let extension = file.extension().and_then(|e| e.to_str()).unwrap_or_default();
    let hidden = file.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
    matches!(extension, "yaml" | "yml" | "json") && !hidden
}

fn unreadable(path: &Path, error: &io::Error) -> Problem {
    Problem::of_file(&path.to_string_lossy(), format!("cannot be read: {error}"))
}

/// Whether the path is a directory that contains no file to read.
#[must_use]
pub fn holds_no_file(path: &Path) -> bool {
    path.is_dir() && files(path, &mut Vec::new()).is_empty()
}

/// The files that a path selects.
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
    files.retain(|file| {
        let endless = is_endless(file);
        if endless {
            problems.push(Problem::of_file(&file.to_string_lossy(), ENDLESS));
        }
        !endless
    });
    files
}

fn read(path: &Path) -> Result<String, Problem> {
    let mut bytes = Vec::new();
    let read = if path == Path::new(STDIN) {
        io::stdin().lock().take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)
    } else {
        check_kind(path)?;
        File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
    };
    read.map_err(|error| unreadable(path, &error))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let reason = format!("is larger than {MAX_FILE_MIB} MiB: split it into several files");
        return Err(Problem::of_file(&path.to_string_lossy(), reason));
    }
    String::from_utf8(bytes).map_err(|error| {
        let end = error.utf8_error().valid_up_to();
        not_utf8(path, &error.as_bytes()[..end], error.as_bytes()[end])
    })
}

/// Refuses a pipe, a socket or a terminal in place of a file, because reading it may wait forever. The pipes of the
/// shell, as for `<(...)`, are read.
fn check_kind(path: &Path) -> Result<(), Problem> {
    let of_shell = path.starts_with("/dev") || path.starts_with("/proc");
    if !of_shell && is_endless(path) {
        return Err(Problem::of_file(&path.to_string_lossy(), ENDLESS));
    }
    Ok(())
}

/// Whether the path is a pipe, a socket or a device. Opening or reading it may wait forever.
fn is_endless(path: &Path) -> bool {
    path.metadata().is_ok_and(|of| !of.is_file())
}

/// The problem of a file in another encoding. `before` is its UTF-8 part, `byte` the byte after
/// that.
fn not_utf8(path: &Path, before: &[u8], byte: u8) -> Problem {
    let before = String::from_utf8_lossy(before);
    let last = before.rsplit('\n').next().unwrap_or_default();
    let place = Position {
        line: before.matches('\n').count() as u64 + 1,
        column: last.chars().count() as u64 + 1,
    };
    let reason = format!(
        "byte {} of the file, 0x{byte:02x}, is not UTF-8: save the file in that encoding",
        before.len() + 1
    );
    Problem { file: path.to_string_lossy().into(), place, path: String::new(), reason }
}
