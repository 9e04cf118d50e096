//! Pooled field sections, and the checks of RFC 9113 section 8.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "tables have an entry for each byte, and are made when the program is compiled"
)]

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use leno_hpack::{Block, Field, Token};

/// How many free blocks each thread keeps: enough for a hundred streams, each with a request, a response and trailers
/// in progress.
const KEPT_BLOCKS: usize = 256;
/// A block with more bytes than this is freed and not kept.
const KEPT_BYTES: usize = 8 * 1024;

thread_local! {
    static FREE: RefCell<Vec<Block>> = const { RefCell::new(Vec::new()) };
}

/// Frees all pooled blocks of the calling thread.
pub(crate) fn trim() {
    FREE.with(|free| drop(free.take()));
}

/// The fields of a head or of trailers: a [`Block`] that returns to its thread's pool when it is dropped.
#[derive(Debug, PartialEq, Eq)]
pub struct Head(Block);

impl Head {
    /// An empty section.
    #[must_use]
    pub fn new() -> Self {
        Self(FREE.try_with(|free| free.borrow_mut().pop()).ok().flatten().unwrap_or_default())
    }

    /// The number in `:status`, if this is a response.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        self.find(Token::STATUS).and_then(status)
    }

    /// Whether this is an interim head (1xx), which is followed by another head.
    #[must_use]
    pub fn is_interim(&self) -> bool {
        self.find(Token::STATUS).is_some_and(|status| status.first() == Some(&b'1'))
    }
}

impl Default for Head {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for Head {
    fn clone(&self) -> Self {
        let mut head = Self::new();
        head.0.clone_from(&self.0);
        head
    }
}

impl Deref for Head {
    type Target = Block;
    fn deref(&self) -> &Block {
        &self.0
    }
}

impl DerefMut for Head {
    fn deref_mut(&mut self) -> &mut Block {
        &mut self.0
    }
}

impl Drop for Head {
    fn drop(&mut self) {
        let capacity = self.0.capacity();
        if capacity == 0 || capacity > KEPT_BYTES {
            return;
        }
        let mut block = std::mem::take(&mut self.0);
        block.clear();
        // An error means that the thread is ending. The block is then freed.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < KEPT_BLOCKS {
                free.push(block);
            }
        });
    }
}

impl<N: AsRef<[u8]>, V: AsRef<[u8]>> FromIterator<(N, V)> for Head {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(fields: I) -> Self {
        let mut head = Self::new();
        for (name, value) in fields {
            head.push(name.as_ref(), value.as_ref());
        }
        head
    }
}

/// Facts about a valid head that determine how its message is framed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) content_length: Option<u64>,
    /// Whether `content-length` occurs more than once, with the same value.
    pub(crate) length_repeated: bool,
    /// Whether `:method` is HEAD. Then the response has no body, whatever its content-length is.
    pub(crate) is_head: bool,
    /// The status of a response; 0 for a request.
    pub(crate) status: u16,
}

/// One bit for each pseudo-header, which says that it occurred.
mod seen {
    pub(super) const METHOD: u8 = 1;
    pub(super) const SCHEME: u8 = 2;
    pub(super) const PATH: u8 = 4;
    pub(super) const AUTHORITY: u8 = 8;
    pub(super) const PROTOCOL: u8 = 16;
    pub(super) const STATUS: u8 = 32;
}

/// Checks a request (RFC 9113 section 8.3.1). The error names the rule that was broken.
pub(crate) fn check_request(block: &Block, connect_protocol: bool) -> Result<Facts, &'static str> {
    let mut facts = Facts::default();
    let mut values = Pseudo::default();
    let seen = walk(block, &mut facts, &mut values)?;
    if seen & seen::STATUS != 0 {
        return Err("a request with :status");
    }
    if seen & seen::METHOD == 0 {
        return Err("no :method");
    }
    facts.is_head = values.method == b"HEAD";
    if !is_token(values.method) {
        return Err("a :method that is no token");
    }
    let connect = values.method == b"CONNECT";
    if seen & seen::PROTOCOL != 0 && !(connect && connect_protocol) {
        return Err(":protocol without extended CONNECT");
    }
    if connect && seen & seen::PROTOCOL == 0 {
        if seen & (seen::SCHEME | seen::PATH) != 0 || seen & seen::AUTHORITY == 0 {
            return Err("a CONNECT with :scheme or :path, or without :authority");
        }
    } else if seen & seen::SCHEME == 0 || seen & seen::PATH == 0 {
        return Err("no :scheme or no :path");
    } else if !is_path(&values) || !is_scheme(values.scheme) {
        return Err("a malformed :path or :scheme");
    }
    if seen & seen::AUTHORITY != 0 && !is_authority(values.authority) {
        return Err("a malformed :authority");
    }
    // A request without an authority must leave `:authority` out. An empty one is malformed for http and https
    // (section 8.3.1), and applications would reset the stream for it.
    if seen & seen::AUTHORITY != 0 && values.authority.is_empty() {
        return Err("an empty :authority");
    }
    if let (Some(host), true) = (values.host, seen & seen::AUTHORITY != 0)
        && !host.eq_ignore_ascii_case(values.authority)
    {
        return Err("host differs from :authority");
    }
    Ok(facts)
}

/// Checks a response (RFC 9113 section 8.3.2).
pub(crate) fn check_response(block: &Block) -> Result<Facts, &'static str> {
    let mut facts = Facts::default();
    let mut values = Pseudo::default();
    if walk(block, &mut facts, &mut values)? != seen::STATUS {
        return Err("a response with other pseudo-headers than :status");
    }
    facts.status = status(values.status).ok_or("a malformed :status")?;
    if facts.status == 101 {
        return Err("101 in HTTP/2");
    }
    Ok(facts)
}

/// Whether the last field is a `traceparent` with a valid value. Whether the rest of a request is valid does not
/// depend on that field, so the rest can be cached without it.
pub(crate) fn ends_with_trace(block: &Block) -> bool {
    let last = block.iter().next_back();
    last.is_some_and(|field| field.token() == Token::TRACEPARENT && is_value(field.value()))
}

/// Removes fields that may be in a valid section but must not be forwarded: a `content-length` that repeats another
/// (RFC 9110 section 8.6), and one in a response without content (1xx, 204).
pub(crate) fn remove_lengths(block: &mut Block, facts: &Facts) {
    let mut keep = !matches!(facts.status, 100..200 | 204);
    if facts.content_length.is_some() && (facts.length_repeated || !keep) {
        block.retain(|field| {
            field.token() != Token::CONTENT_LENGTH || std::mem::replace(&mut keep, false)
        });
    }
}

/// Checks trailers (RFC 9113 section 8.1).
pub(crate) fn check_trailers(block: &Block) -> Result<Facts, &'static str> {
    let mut facts = Facts::default();
    match walk(block, &mut facts, &mut Pseudo::default())? {
        0 => Ok(facts),
        _ => Err("a pseudo-header in trailers"),
    }
}

#[derive(Default)]
struct Pseudo<'a> {
    method: &'a [u8],
    scheme: &'a [u8],
    path: &'a [u8],
    authority: &'a [u8],
    status: &'a [u8],
    protocol: &'a [u8],
    host: Option<&'a [u8]>,
}

/// Checks each field, and the order of pseudo-headers and other fields. Collects facts and the values of
/// pseudo-headers. Returns which pseudo-headers there are, as bits of [`seen`].
fn walk<'a>(
    block: &'a Block,
    facts: &mut Facts,
    values: &mut Pseudo<'a>,
) -> Result<u8, &'static str> {
    let mut seen = 0;
    let mut regular = false;
    for field in block {
        if !is_value(field.value()) {
            return Err("a forbidden character in a field value");
        }
        if !field.is_pseudo() {
            regular = true;
            check_field(&field, facts, values)?;
            continue;
        }
        let (bit, place) = match field.token() {
            Token::METHOD => (seen::METHOD, &mut values.method),
            Token::SCHEME => (seen::SCHEME, &mut values.scheme),
            Token::PATH => (seen::PATH, &mut values.path),
            Token::AUTHORITY => (seen::AUTHORITY, &mut values.authority),
            Token::STATUS => (seen::STATUS, &mut values.status),
            Token::PROTOCOL => (seen::PROTOCOL, &mut values.protocol),
            _ => return Err("an unknown pseudo-header"),
        };
        if regular {
            return Err("a pseudo-header behind a field");
        }
        if seen & bit != 0 {
            return Err("a pseudo-header twice");
        }
        seen |= bit;
        *place = field.value();
    }
    Ok(seen)
}

/// Checks one field (RFC 9113 sections 8.2.1 and 8.2.2).
fn check_field<'a>(
    field: &Field<'a>,
    facts: &mut Facts,
    values: &mut Pseudo<'a>,
) -> Result<(), &'static str> {
    match field.token() {
        Token::NONE if !is_name(field.name()) => Err("a malformed field name"),
        Token::CONNECTION
        | Token::KEEP_ALIVE
        | Token::PROXY_CONNECTION
        | Token::TRANSFER_ENCODING
        | Token::UPGRADE => Err("a field of the connection"),
        Token::TE if !field.value().eq_ignore_ascii_case(b"trailers") => {
            Err("te with more than trailers")
        }
        Token::HOST if values.host.is_some() => Err("host twice"),
        Token::HOST if !is_authority(field.value()) => Err("a malformed host"),
        Token::HOST => {
            values.host = Some(field.value());
            Ok(())
        }
        Token::CONTENT_LENGTH => {
            let length = number(field.value()).ok_or("a malformed content-length")?;
            match facts.content_length.replace(length) {
                Some(before) if before != length => return Err("two different content-lengths"),
                before => facts.length_repeated |= before.is_some(),
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |sum, digit| {
        digit.is_ascii_digit().then_some(())?;
        sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })
}

fn status(digits: &[u8]) -> Option<u16> {
    match digits {
        [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] => {
            Some(u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0'))
        }
        _ => None,
    }
}

/// Characters of a token (RFC 9110 section 5.6.2), including upper case.
const TOKEN: u8 = 1;
/// Characters of a field name: a token without upper case.
const NAME: u8 = 2;
/// Characters of a request target: visible ones, except for `#`, which starts a fragment.
const TARGET: u8 = 4;
/// Characters of an authority: no delimiters, and no `@`, since user information is not allowed.
const AUTHORITY: u8 = 8;

static CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let byte = i as u8;
        let alnum = byte.is_ascii_alphanumeric();
        let mark = matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        );
        let visible = byte > b' ' && byte != 0x7f;
        if alnum || mark {
            table[i] |= TOKEN;
        }
        if (alnum || mark) && !byte.is_ascii_uppercase() {
            table[i] |= NAME;
        }
        if visible && byte != b'#' {
            table[i] |= TARGET;
        }
        if visible && byte < 0x80 && !matches!(byte, b'/' | b'?' | b'#' | b'@' | b'\\' | b',') {
            table[i] |= AUTHORITY;
        }
        i += 1;
    }
    table
}

fn all(bytes: &[u8], class: u8) -> bool {
    bytes.iter().all(|byte| CLASSES[*byte as usize] & class != 0)
}

fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && all(bytes, TOKEN)
}

fn is_name(bytes: &[u8]) -> bool {
    !bytes.is_empty() && all(bytes, NAME)
}

fn is_authority(bytes: &[u8]) -> bool {
    all(bytes, AUTHORITY)
}

fn is_scheme(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
}

/// `*` is the target of OPTIONS. It is also the target of an extended CONNECT that stands for an OPTIONS with
/// `Upgrade`, which only a proxy of the mesh may send; the user of this crate checks that.
fn is_path(values: &Pseudo<'_>) -> bool {
    match values.path {
        [b'/', ..] => all(values.path, TARGET),
        b"*" => values.method == b"OPTIONS" || values.method == b"CONNECT",
        _ => false,
    }
}

/// RFC 9113 section 8.2.1: no NUL, CR or LF, and no leading or trailing space. The other control
/// characters are refused too, as in HTTP/1 (RFC 9110 section 5.5).
fn is_value(bytes: &[u8]) -> bool {
    let around = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    if around(bytes.first()) || around(bytes.last()) {
        return false;
    }
    // One pass without a branch per byte. The compiler does not vectorise it in a release build
    // (`docs/decisions/198-what-an-unobserved-request-costs.md`).
    let bad = |byte: u8| ((byte < b' ') & (byte != b'\t')) | (byte == 0x7f);
    !bytes.iter().fold(false, |any, byte| any | bad(*byte))
}

#[cfg(test)]
mod tests;
