//! The canonical form of a path, for paths that all servers read alike.
#![expect(clippy::arithmetic_side_effects, reason = "a length within the path")]

use std::fmt;

use smallvec::SmallVec;

/// Where a path without escapes is written.
pub(super) type Decoded = SmallVec<[u8; 256]>;

/// Why servers do not read a path alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmbiguousPath {
    /// It begins without a slash.
    NoSlash,
    /// `%` without two hexadecimal digits.
    Escape,
    /// `%2F`: a slash to some.
    EncodedSlash,
    /// `%25` before two digits: an escape to those that decode twice.
    DoubleEncoding,
    /// `\` or `%5C`: a slash to some.
    Backslash,
    /// A segment `.` or `..`.
    DotSegment,
    /// `//`: one slash to some.
    EmptySegment,
    /// `;`: the end of the segment to some.
    Parameter,
    /// `#` or `%23`: the end of the path to some.
    Fragment,
    /// `%3F`: the end of the path to servers that decode it, and pass it on as it is then.
    EncodedQuery,
    /// White space, such as `%20`: the end of the path to some; others remove it.
    Space,
    /// A control character.
    Control,
    /// Bytes that are not UTF-8, such as overlong forms of a slash.
    Encoding,
}

impl fmt::Display for AmbiguousPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSlash => "begins without a slash",
            Self::Escape => "has % without two hexadecimal digits",
            Self::EncodedSlash => "has %2F",
            Self::DoubleEncoding => "is encoded twice",
            Self::Backslash => "has a backslash",
            Self::DotSegment => "has a segment . or ..",
            Self::EmptySegment => "has //",
            Self::Parameter => "has ;",
            Self::Fragment => "has #",
            Self::EncodedQuery => "has %3F",
            Self::Space => "has white space",
            Self::Control => "has a control character",
            Self::Encoding => "is not UTF-8",
        })
    }
}

/// The path without escapes. `*`, which stands for no path, stays.
///
/// # Errors
/// Why servers do not read it alike.
pub(super) fn canonical<'p>(
    path: &'p [u8],
    decoded: &'p mut Decoded,
) -> Result<&'p [u8], AmbiguousPath> {
    if path == b"*" {
        return Ok(path);
    }
    let path = if path.contains(&b'%') {
        decode(path, decoded)?;
        &decoded[..]
    } else {
        path
    };
    check(path)?;
    Ok(path)
}

/// The path as policies name it, without escapes.
///
/// # Errors
/// Why servers do not read it alike.
pub fn canonical_path(path: &[u8]) -> Result<String, AmbiguousPath> {
    let mut buffer = Decoded::new();
    let path = canonical(path, &mut buffer)?;
    String::from_utf8(path.to_vec()).map_err(|_| AmbiguousPath::Encoding)
}

/// Why servers do not read a path alike; `None` if they do.
#[must_use]
pub fn ambiguity(path: &[u8]) -> Option<AmbiguousPath> {
    canonical(path, &mut Decoded::new()).err()
}

fn decode(path: &[u8], decoded: &mut Decoded) -> Result<(), AmbiguousPath> {
    let mut rest = path;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let mut byte = *first;
        if byte == b'%' {
            let Some(([high, low], after)) = rest.split_first_chunk() else {
                return Err(AmbiguousPath::Escape);
            };
            let (Some(high), Some(low)) = (digit(*high), digit(*low)) else {
                return Err(AmbiguousPath::Escape);
            };
            byte = high << 4 | low;
            rest = after;
            if byte == b'/' {
                return Err(AmbiguousPath::EncodedSlash);
            }
        }
        decoded.push(byte);
    }
    // `%u002f` is a slash to servers with that old form of escapes.
    let is_escape = |three: &[u8]| match three {
        [b'%', b'u' | b'U', _] => true,
        [b'%', high, low] => digit(*high).is_some() && digit(*low).is_some(),
        _ => false,
    };
    if decoded.windows(3).any(is_escape) {
        return Err(AmbiguousPath::DoubleEncoding);
    }
    Ok(())
}

/// Checks a path without escapes.
fn check(path: &[u8]) -> Result<(), AmbiguousPath> {
    if path.first() != Some(&b'/') {
        return Err(AmbiguousPath::NoSlash);
    }
    if !path.is_ascii() {
        check_characters(path)?;
    }
    // The length of the current segment, and whether it has only dots.
    let (mut length, mut dots) = (0_usize, true);
    for (at, byte) in path.iter().enumerate() {
        match byte {
            b'/' => {
                if at > 0 {
                    ends(length, dots)?;
                    if length == 0 {
                        return Err(AmbiguousPath::EmptySegment);
                    }
                }
                (length, dots) = (0, true);
                continue;
            }
            b'\\' => return Err(AmbiguousPath::Backslash),
            b';' => return Err(AmbiguousPath::Parameter),
            b'#' => return Err(AmbiguousPath::Fragment),
            b'?' => return Err(AmbiguousPath::EncodedQuery),
            b' ' => return Err(AmbiguousPath::Space),
            0..=0x1f | 0x7f => return Err(AmbiguousPath::Control),
            _ => {}
        }
        dots &= *byte == b'.';
        length += 1;
    }
    ends(length, dots)
}

/// Checks the characters beyond ASCII of a path. Languages remove white space of Unicode from the ends
/// of texts, and a byte that is no character may become one that is.
fn check_characters(path: &[u8]) -> Result<(), AmbiguousPath> {
    /// White space to JavaScript alone.
    const BYTE_ORDER_MARK: char = '\u{feff}';
    let text = std::str::from_utf8(path).map_err(|_| AmbiguousPath::Encoding)?;
    for character in text.chars().filter(|character| !character.is_ascii()) {
        if character.is_control() {
            return Err(AmbiguousPath::Control);
        }
        if character.is_whitespace() || character == BYTE_ORDER_MARK {
            return Err(AmbiguousPath::Space);
        }
    }
    Ok(())
}

/// Checks a segment of this length; `dots`: it has only dots.
fn ends(length: usize, dots: bool) -> Result<(), AmbiguousPath> {
    if dots && (1..=2).contains(&length) { Err(AmbiguousPath::DotSegment) } else { Ok(()) }
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str) -> Result<String, AmbiguousPath> {
        let mut decoded = Decoded::new();
        canonical(path.as_bytes(), &mut decoded)
            .map(|path| String::from_utf8(path.to_vec()).unwrap())
    }

    #[test]
    fn escapes_of_plain_characters_mean_those_characters() {
        for (path, expected) in [
            ("/", "/"),
            ("/admin", "/admin"),
            ("/%61dmin", "/admin"),
            ("/%61%64%6D%69%6e", "/admin"),
            ("/a%2Bb+c/%40%3A%2C/", "/a+b+c/@:,/"),
            ("/gr%C3%BCn", "/grün"),
            ("/100%25", "/100%"),
            ("/...", "/..."),
            ("/.well-known/x", "/.well-known/x"),
            ("*", "*"),
        ] {
            assert_eq!(read(path).as_deref(), Ok(expected), "{path}");
        }
    }

    #[test]
    fn what_servers_read_differently_is_ambiguous() {
        use AmbiguousPath::{
            Backslash, Control, DotSegment, DoubleEncoding, EmptySegment, EncodedQuery,
            EncodedSlash, Encoding, Escape, Fragment, NoSlash, Parameter, Space,
        };
        for (path, expected) in [
            ("admin", NoSlash),
            ("/a%", Escape),
            ("/a%2", Escape),
            ("/a%zz", Escape),
            ("/public%2Fadmin", EncodedSlash),
            ("/public%2fadmin", EncodedSlash),
            ("/public%252fadmin", DoubleEncoding),
            ("/public%25%32fadmin", DoubleEncoding),
            ("/public\\admin", Backslash),
            ("/public%5Cadmin", Backslash),
            ("/public/../admin", DotSegment),
            ("/public/%2e%2E/admin", DotSegment),
            ("/public/..", DotSegment),
            ("/./admin", DotSegment),
            ("//admin", EmptySegment),
            ("/a//admin", EmptySegment),
            ("/admin//", EmptySegment),
            ("/admin;x=1", Parameter),
            ("/admin%3Bx", Parameter),
            ("/public#/admin", Fragment),
            ("/public%25u002fadmin", DoubleEncoding),
            ("/admin%23x", Fragment),
            ("/admin%3Fx", EncodedQuery),
            ("/admin%3f", EncodedQuery),
            ("/admin%20", Space),
            ("/admin%20HTTP/1.1", Space),
            ("/..%20/admin", Space),
            ("/admin%C2%A0", Space),
            ("/admin\u{a0}", Space),
            ("/admin\u{2028}", Space),
            ("/admin%EF%BB%BF", Space),
            ("/admin%C2%85", Control),
            ("/admin%00", Control),
            ("/admin%7F", Control),
            ("/admin%0d%0a", Control),
            ("/%c0%afadmin", Encoding),
            ("/%ff", Encoding),
        ] {
            assert_eq!(read(path), Err(expected), "{path}");
        }
    }
    #[test]
    fn bytes_that_are_no_characters_are_ambiguous_without_escapes_too() {
        for path in [&b"/admin\x85"[..], b"/admin\xa0", b"/public\xc0\xafadmin"] {
            assert_eq!(ambiguity(path), Some(AmbiguousPath::Encoding), "{path:?}");
        }
    }
}
