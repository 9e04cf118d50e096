//! Problems in a text, and their positions.

use std::fmt;
use std::sync::Arc;

/// A position in a file: lines and columns count from 1; line 0 means the file as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: u64,
    /// The column, in characters.
    pub column: u64,
}

/// A value and the position where it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// The file, as given by the user.
    pub file: Arc<str>,
    /// The start of its document.
    pub place: Position,
}

/// One reason to reject a text.
///
/// Displays as `file:line:column: path: reason`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    /// The file, as given by the user.
    pub file: Arc<str>,
    /// The position in the file.
    pub place: Position,
    /// The field, for example `spec.ports[0].port`; empty for a document as a whole.
    pub path: String,
    /// What is wrong, and how to correct it.
    pub reason: String,
}

impl Problem {
    /// A problem of a whole file, such as unreadable or too large.
    #[must_use]
    pub fn of_file(file: &str, reason: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            place: Position::default(),
            path: String::new(),
            reason: reason.into(),
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.place.line > 0 {
            write!(f, ":{}", self.place)?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", self.path)?;
        }
        write!(f, ": {}", self.reason)
    }
}
