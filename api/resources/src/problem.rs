//! Problems in a text, with their positions.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// The largest length, in characters, up to which a path or reason is shown whole. A longer one is shortened, because
/// it may quote a value of millions of characters.
const MAX_SHOWN: usize = 1_000;
/// How many characters of a longer path or reason are shown, from its beginning and from its end.
const SHOWN: (usize, usize) = (300, 200);

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
    /// The position at which the value's document starts.
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
    /// A problem of a whole file, for example that it is unreadable or too large.
    #[must_use]
    pub fn of_file(file: &str, reason: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            place: Position::default(),
            path: String::new(),
            reason: reason.into(),
        }
    }

    /// Leaves out the middle of a long path or reason.
    pub(crate) fn shortened(self) -> Self {
        Self { path: shortened(self.path), reason: shortened(self.reason), ..self }
    }
}

fn shortened(text: String) -> String {
    let count = text.chars().count();
    if count <= MAX_SHOWN {
        return text;
    }
    let (first, last) = SHOWN;
    let begin: String = text.chars().take(first).collect();
    let end: String = text.chars().skip(count - last).collect();
    format!("{begin}... ({} characters left out) ...{end}", count - first - last)
}

/// The name of a file on one line: control characters as escapes, such as `\x0a`.
#[must_use]
pub fn one_line(file: &str) -> Cow<'_, str> {
    if !file.contains(char::is_control) {
        return Cow::Borrowed(file);
    }
    let shown = |one: char| match one.is_control() {
        true => format!("\\x{:02x}", u32::from(one)),
        false => one.to_string(),
    };
    Cow::Owned(file.chars().map(shown).collect())
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&one_line(&self.file))?;
        if self.place.line > 0 {
            write!(f, ":{}", self.place)?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", one_line(&self.path))?;
        }
        write!(f, ": {}", self.reason)
    }
}
