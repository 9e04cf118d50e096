//! The internal header in which two proxies of the mesh carry the details of an HTTP/1 head that HTTP/2 cannot express.
//!
//! ```text
//! leno-h1: 1.1 Ta h=host:80 m=POST X-API-Key r=Reason
//!          │   ││ │         │      │         └ reason phrase, to the end
//!          │   ││ │         │      └ names that are not in the style
//!          │   ││ │         └ method of a request to upgrade
//!          │   ││ └ Host where it differs from the authority
//!          │   │└ a: absolute form, e: without a path, n: no Host, u: switched protocols,
//!          │   │   z: a request to upgrade with Content-Length: 0
//!          │   └ style of names: T Title-Case, l lower-case
//!          └ version
//! ```
//!
//! The value is the same in every request of most clients, so HPACK encodes it in one byte.

use leno_hpack::{Field, Token};
use smallvec::SmallVec;

use crate::head::{Header, Version, is_text, is_token, split_once};
use crate::writer::Writer;

/// The value in an HTTP/2 response that grants another protocol to an HTTP/1 client.
pub(crate) const SWITCHED: &[u8] = b"1.1 Tu";
/// The largest number of names that are listed because they are not in the style.
const NAMES: usize = 16;
/// The largest number of bytes in these names.
const NAME_BYTES: usize = 512;

/// The header's value while it is being written.
pub(crate) type Value = SmallVec<[u8; 64]>;

/// The parsed header. The documentation of the module explains its flags and words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Carried<'a> {
    pub(crate) version: Version,
    pub(crate) title_case: bool,
    pub(crate) absolute: bool,
    pub(crate) no_path: bool,
    pub(crate) no_host: bool,
    pub(crate) switched: bool,
    /// Whether there was `Content-Length: 0`, which is not permitted in an extended CONNECT.
    pub(crate) zero_length: bool,
    pub(crate) host: Option<&'a [u8]>,
    pub(crate) method: Option<&'a [u8]>,
    pub(crate) reason: Option<&'a [u8]>,
    /// The words between the flags and the reason phrase.
    words: &'a [u8],
}

impl<'a> Carried<'a> {
    /// `None` if it is not a value that a proxy writes.
    pub(crate) fn parse(value: &'a [u8]) -> Option<Self> {
        let (head, rest) = value.split_at_checked(4)?;
        let version = match head {
            b"1.0 " => Version::Http10,
            b"1.1 " => Version::Http11,
            _ => return None,
        };
        let mut carried = Self { version, ..Self::default() };
        let (flags, mut words) = split_once(rest, b' ').unwrap_or((rest, b""));
        for flag in flags {
            match flag {
                b'T' => carried.title_case = true,
                b'l' => carried.title_case = false,
                b'a' => carried.absolute = true,
                b'e' => carried.no_path = true,
                b'n' => carried.no_host = true,
                b'u' => carried.switched = true,
                b'z' => carried.zero_length = true,
                _ => return None,
            }
        }
        if let Some((before, reason)) = split_reason(words) {
            if !reason.iter().all(|byte| is_text(*byte)) {
                return None;
            }
            carried.reason = Some(reason);
            words = before;
        }
        carried.words = words;
        for word in carried.words() {
            match word {
                [b'h', b'=', host @ ..] => carried.host = Some(host),
                [b'm', b'=', method @ ..] if is_token(method) => carried.method = Some(method),
                name if is_token(name) => {}
                _ => return None,
            }
        }
        Some(carried)
    }

    fn words(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.words.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
    }

    /// Writes the name of a field in its original case.
    pub(crate) fn put_name_of(&self, field: &Field<'_>, out: &mut Writer) {
        match field.token() {
            token if token != Token::NONE && self.title_case && self.words.is_empty() => {
                out.put(token.title());
            }
            _ => self.put_name(field.name(), out),
        }
    }

    /// Writes `name`, which is given in lower case, in its original case.
    pub(crate) fn put_name(&self, name: &[u8], out: &mut Writer) {
        let kept = if self.words.is_empty() {
            None
        } else {
            self.words().find(|word| word.eq_ignore_ascii_case(name))
        };
        match kept {
            Some(kept) => out.put(kept),
            None => style(out.put_part(name), self.title_case),
        }
    }
}

/// Splits off the reason phrase.
fn split_reason(words: &[u8]) -> Option<(&[u8], &[u8])> {
    if let Some(reason) = words.strip_prefix(b"r=") {
        return Some((b"", reason));
    }
    let at = words.windows(3).position(|three| three == b" r=")?;
    let (before, rest) = words.split_at_checked(at)?;
    Some((before, rest.strip_prefix(b" r=")?))
}

/// Converts a name to a style.
fn style(name: &mut [u8], title_case: bool) {
    name.make_ascii_lowercase();
    let mut first = title_case;
    for byte in name {
        if std::mem::replace(&mut first, title_case && *byte == b'-') {
            byte.make_ascii_uppercase();
        }
    }
}

/// Whether a name is in a style.
fn is_styled(name: &[u8], title_case: bool) -> bool {
    let mut first = title_case;
    name.iter().all(|byte| {
        let upper = std::mem::replace(&mut first, title_case && *byte == b'-');
        if upper { !byte.is_ascii_lowercase() } else { !byte.is_ascii_uppercase() }
    })
}

/// Writes the beginning of the header: version, style and flags. [`push_names`] then appends the names that are not in
/// the style.
pub(super) fn begin(version: Version, headers: &[Header], bytes: &[u8]) -> (Value, bool) {
    let mut value = Value::new();
    value.extend_from_slice(if version == Version::Http10 { b"1.0 " } else { b"1.1 " });
    let first = headers.first().and_then(|header| header.name.of(bytes).first());
    let title_case = first.is_none_or(u8::is_ascii_uppercase);
    value.push(if title_case { b'T' } else { b'l' });
    (value, title_case)
}

/// Appends the names that are not in the style, as far as there is room.
#[expect(clippy::arithmetic_side_effects, reason = "lengths within a head; a value only grows")]
pub(super) fn push_names(value: &mut Value, title_case: bool, headers: &[Header], bytes: &[u8]) {
    let start = value.len();
    let names = headers.iter().map(|header| header.name.of(bytes));
    let odd = names.filter(|name| !is_styled(name, title_case));
    for name in odd.take(NAMES) {
        if value.len() - start + name.len() < NAME_BYTES {
            push_word(value, b"", name);
        }
    }
}

pub(super) fn push_word(value: &mut Value, key: &[u8], word: &[u8]) {
    value.push(b' ');
    value.extend_from_slice(key);
    value.extend_from_slice(word);
}
