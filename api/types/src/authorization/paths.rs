//! How an application reads the paths of requests.

use std::fmt;
use std::str::FromStr;

/// How an application reads paths. Policies read them in the same way. If servers read a path in different ways, and no
/// setting here says how the application reads it, the path is ambiguous.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PathReading {
    /// Whether paths are used as sent. Escapes are then not decoded, and no path is ambiguous. The other settings must
    /// not be set then.
    pub verbatim: bool,
    /// Whether several slashes in a row are read as one.
    pub merges_slashes: bool,
    /// Whether segments `.` are removed, and `..` removes the segment before it (RFC 3986 section 5.2.4).
    pub resolves_dots: bool,
    /// Whether `%2F` is read as a slash.
    pub decodes_slashes: bool,
}

/// The text is not a [`PathReading`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a setting for paths: use strict, none, or a list of merge-slashes, resolve-dots \
     and decode-slashes, separated by commas"
)]
pub struct UnknownReading(String);

/// The name of the reading that only accepts paths that all servers read in the same way.
const STRICT: &str = "strict";
/// The name of the reading that uses paths as sent.
const NONE: &str = "none";
const MERGE: &str = "merge-slashes";
const RESOLVE: &str = "resolve-dots";
const DECODE: &str = "decode-slashes";

impl PathReading {
    /// Whether only paths that all servers read in the same way are accepted.
    #[must_use]
    pub fn is_strict(self) -> bool {
        self == Self::default()
    }
}

impl FromStr for PathReading {
    type Err = UnknownReading;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim() {
            STRICT => return Ok(Self::default()),
            NONE => return Ok(Self { verbatim: true, ..Self::default() }),
            _ => {}
        }
        let mut reading = Self::default();
        for word in text.split(',').map(str::trim) {
            let part = match word {
                MERGE => &mut reading.merges_slashes,
                RESOLVE => &mut reading.resolves_dots,
                DECODE => &mut reading.decodes_slashes,
                _ => return Err(UnknownReading(text.to_owned())),
            };
            *part = true;
        }
        Ok(reading)
    }
}

impl fmt::Display for PathReading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.verbatim {
            return f.write_str(NONE);
        }
        let parts = [
            (self.merges_slashes, MERGE),
            (self.resolves_dots, RESOLVE),
            (self.decodes_slashes, DECODE),
        ];
        let said: Vec<&str> = parts.iter().filter(|(is, _)| *is).map(|(_, word)| *word).collect();
        f.write_str(if said.is_empty() { STRICT } else { "" })?;
        f.write_str(&said.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_is_read_as_it_is_written() {
        for text in [
            "strict",
            "none",
            "merge-slashes",
            "resolve-dots",
            "merge-slashes,resolve-dots,decode-slashes",
        ] {
            let reading: PathReading = text.parse().unwrap();
            assert_eq!(reading.to_string(), text);
            assert_eq!(reading.is_strict(), text == "strict");
        }
        let spaced: PathReading = "decode-slashes, merge-slashes".parse().unwrap();
        assert_eq!(spaced.to_string(), "merge-slashes,decode-slashes");
    }

    #[test]
    fn what_is_no_reading_is_refused() {
        for text in ["", "merge", "none,merge-slashes", "strict,none", "merge-slashes,"] {
            assert!(text.parse::<PathReading>().is_err(), "{text}");
        }
    }
}
