//! The canonical form of a path: for paths that all servers read in the same way, or as the application is declared to
//! read them.
#![expect(clippy::arithmetic_side_effects, reason = "a length within the path")]

use std::fmt;

use leno_types::authorization::PathReading;
use smallvec::SmallVec;

/// A path without escapes. Up to 256 bytes need no allocation.
pub(super) type Decoded = SmallVec<[u8; 256]>;

/// Why servers do not all read a path in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmbiguousPath {
    /// The path does not begin with a slash.
    NoSlash,
    /// There is a `%` without two hexadecimal digits.
    Escape,
    /// The path contains `%2F`, which some servers decode to a slash.
    EncodedSlash,
    /// After one decoding, the path still has an escape, `%` before two hexadecimal digits or before `u`. Servers that
    /// decode twice decode this, too.
    DoubleEncoding,
    /// The path contains `\` or `%5C`, which some servers read as a slash.
    Backslash,
    /// A segment is `.` or `..`.
    DotSegment,
    /// The path contains `//`, which some servers read as a single slash.
    EmptySegment,
    /// The path contains `;`, at which the segment ends for some servers.
    Parameter,
    /// The path contains `#` or `%23`, at which the path ends for some servers.
    Fragment,
    /// The path contains `%3F`. A server that decodes it and forwards the result makes the path end there for the next
    /// server.
    EncodedQuery,
    /// The path contains white space, such as `%20`, at which the path ends for some servers; others remove it.
    Space,
    /// There is a control character.
    Control,
    /// There are bytes that are not UTF-8, such as an overlong form of a slash.
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

/// The path in the form in which it is compared with conditions: without escapes and, if `reading` says that the
/// application does this, without repeated slashes and segments `.` and `..`. With `verbatim`, the path stays as sent.
/// So does `*`, which stands for no path.
///
/// # Errors
/// Why servers with this reading do not all read the path in the same way.
pub(super) fn canonical<'p>(
    path: &'p [u8],
    decoded: &'p mut Decoded,
    reading: PathReading,
) -> Result<&'p [u8], AmbiguousPath> {
    if path == b"*" {
        return Ok(path);
    }
    if reading.verbatim {
        return if path.first() == Some(&b'/') { Ok(path) } else { Err(AmbiguousPath::NoSlash) };
    }
    let has_escapes = path.contains(&b'%');
    let is_slashed = path.first() == Some(&b'/');
    let reading = if has_escapes { decode(path, decoded, reading)? } else { reading };
    let plain = if has_escapes { &decoded[..] } else { path };
    if !is_slashed {
        return Err(AmbiguousPath::NoSlash);
    }
    check(plain, reading)?;
    if reading.is_strict() {
        return Ok(if has_escapes { &decoded[..] } else { path });
    }
    let read = normalised(plain)?;
    *decoded = read;
    Ok(&decoded[..])
}

/// Removes repeated slashes, and segments `.` and `..`, from a checked path.
///
/// # Errors
/// If `..` leads above the root, which only some servers refuse. If `..` follows an empty segment: a server that
/// resolves `..` before it merges slashes removes that segment. If the last segment is `.` or `..` below another
/// segment: only some servers leave a slash at the end.
fn normalised(path: &[u8]) -> Result<Decoded, AmbiguousPath> {
    let mut kept: SmallVec<[&[u8]; 16]> = SmallVec::new();
    let mut segments = path.split(|byte| *byte == b'/').skip(1).peekable();
    let mut has_end = false;
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            b"." => {}
            b".." => {
                let parent = kept.pop().ok_or(AmbiguousPath::DotSegment)?;
                if parent.is_empty() {
                    return Err(AmbiguousPath::EmptySegment);
                }
            }
            b"" if is_last => has_end = true,
            name => kept.push(name),
        }
        if is_last && matches!(segment, b"." | b"..") && kept.iter().any(|one| !one.is_empty()) {
            return Err(AmbiguousPath::DotSegment);
        }
    }
    let mut read = Decoded::new();
    for name in kept.iter().filter(|name| !name.is_empty()) {
        read.push(b'/');
        read.extend_from_slice(name);
    }
    if has_end || read.is_empty() {
        read.push(b'/');
    }
    Ok(read)
}

/// The path in the form that policies use, without escapes.
///
/// # Errors
/// Why servers with this reading do not all read the path in the same way.
pub fn canonical_path(path: &[u8], reading: PathReading) -> Result<String, AmbiguousPath> {
    let mut buffer = Decoded::new();
    let path = canonical(path, &mut buffer, reading)?;
    String::from_utf8(path.to_vec()).map_err(|_| AmbiguousPath::Encoding)
}

/// Why servers do not all read a path in the same way; `None` if they do.
#[must_use]
pub fn ambiguity(path: &[u8]) -> Option<AmbiguousPath> {
    canonical(path, &mut Decoded::new(), PathReading::default()).err()
}

/// Decodes the escapes of a path. Returns `reading` with those of its steps (to merge slashes, to resolve `.` and `..`)
/// that may still be applied to the result. An application that takes only some of its three steps may take them before
/// it decodes the path, and then an escaped dot or slash is not a dot or slash for it. So if the path has such an
/// escape, the steps that the escape would affect are left out, unless the application takes all three.
fn decode(
    path: &[u8],
    decoded: &mut Decoded,
    reading: PathReading,
) -> Result<PathReading, AmbiguousPath> {
    let (mut has_slash, mut has_dot) = (false, false);
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
            if byte == b'/' && !reading.decodes_slashes {
                return Err(AmbiguousPath::EncodedSlash);
            }
            has_slash |= byte == b'/';
            has_dot |= byte == b'.';
        }
        decoded.push(byte);
    }
    // `%u002f` is a slash for servers that support this old form of escapes.
    let is_escape = |three: &[u8]| match three {
        [b'%', b'u' | b'U', _] => true,
        [b'%', high, low] => digit(*high).is_some() && digit(*low).is_some(),
        _ => false,
    };
    if decoded.windows(3).any(is_escape) {
        return Err(AmbiguousPath::DoubleEncoding);
    }
    let PathReading { merges_slashes, resolves_dots, decodes_slashes, .. } = reading;
    let is_all = merges_slashes && resolves_dots && decodes_slashes;
    Ok(PathReading {
        merges_slashes: merges_slashes && (is_all || !has_slash),
        resolves_dots: resolves_dots && (is_all || !has_slash && !has_dot),
        ..reading
    })
}

/// Checks a path without escapes.
fn check(path: &[u8], reading: PathReading) -> Result<(), AmbiguousPath> {
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
                    ends(length, dots, reading)?;
                    if length == 0 && !reading.merges_slashes {
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
    ends(length, dots, reading)
}

/// Checks the non-ASCII characters of a path. Some languages strip Unicode white space from the ends of texts, and
/// bytes that are not valid UTF-8 may be replaced by a character.
fn check_characters(path: &[u8]) -> Result<(), AmbiguousPath> {
    /// Only JavaScript treats this as white space.
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

/// Checks a segment of this length at its end. `dots` says that it consists of dots.
fn ends(length: usize, dots: bool, reading: PathReading) -> Result<(), AmbiguousPath> {
    let is_dots = dots && (1..=2).contains(&length);
    if is_dots && !reading.resolves_dots { Err(AmbiguousPath::DotSegment) } else { Ok(()) }
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str) -> Result<String, AmbiguousPath> {
        canonical_path(path.as_bytes(), PathReading::default())
    }

    #[test]
    fn a_path_is_read_as_the_application_is_declared_to_read_it() {
        use AmbiguousPath::{DotSegment, EmptySegment, EncodedSlash, NoSlash, Parameter};
        let (merge, dots) = ("merge-slashes", "merge-slashes,resolve-dots");
        let all = "merge-slashes,resolve-dots,decode-slashes";
        for (reading, path, expected) in [
            (merge, "//admin", Ok("/admin")),
            (merge, "/a///b//", Ok("/a/b/")),
            (merge, "//", Ok("/")),
            (merge, "/%61//b", Ok("/a/b")),
            (merge, "/a/../b", Err(DotSegment)),
            (merge, "/a%2Fb", Err(EncodedSlash)),
            (merge, "*", Ok("*")),
            ("resolve-dots", "/a/../b", Ok("/b")),
            ("resolve-dots", "/a/./b/", Ok("/a/b/")),
            ("resolve-dots", "/a/.", Err(DotSegment)),
            ("resolve-dots", "/a/b/..", Err(DotSegment)),
            ("resolve-dots", "/.", Ok("/")),
            ("resolve-dots", "/a/..", Ok("/")),
            ("resolve-dots", "/a/%2e%2E/b", Err(DotSegment)),
            (dots, "/admin/%2e./public", Err(DotSegment)),
            ("resolve-dots,decode-slashes", "/public%2F..%2Fadmin", Err(DotSegment)),
            ("resolve-dots,decode-slashes", "/a%2Fb/../c", Err(DotSegment)),
            ("merge-slashes,decode-slashes", "/a%2F/b", Err(EmptySegment)),
            ("resolve-dots", "/../b", Err(DotSegment)),
            ("resolve-dots", "/a/../../b", Err(DotSegment)),
            ("resolve-dots", "/a//../b", Err(EmptySegment)),
            (dots, "/admin//../b", Err(EmptySegment)),
            (dots, "/admin//./../b", Err(EmptySegment)),
            (dots, "/a//b/../../c", Err(EmptySegment)),
            (dots, "//..", Err(EmptySegment)),
            (dots, "/a//b/../c//", Ok("/a/c/")),
            (dots, "/a/..//b", Ok("/b")),
            (dots, "/...", Ok("/...")),
            ("decode-slashes", "/a%2Fb%2f", Ok("/a/b/")),
            ("decode-slashes", "/a%2F/b", Err(EmptySegment)),
            (all, "/public%2F%2e%2e%2fadmin", Ok("/admin")),
            (all, "/a%2F/b", Ok("/a/b")),
            (all, "/a/%2e%2E/b", Ok("/b")),
            (all, "/a%2F/../b", Err(EmptySegment)),
            (all, "%2Fa", Err(NoSlash)),
            (all, "/a;x/b", Err(Parameter)),
            ("none", "/a//../%2F;x%", Ok("/a//../%2F;x%")),
            ("none", "a", Err(NoSlash)),
            ("none", "*", Ok("*")),
        ] {
            let reading: PathReading = reading.parse().unwrap();
            let read = canonical_path(path.as_bytes(), reading);
            assert_eq!(read.as_deref().map_err(|why| *why), expected, "{reading}: {path}");
        }
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
