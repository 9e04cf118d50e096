//! Reads the unencrypted parts of a TLS ClientHello: the server's name and the offered protocols.
//!
//! ```text
//! record (type 22, version, length) ─┬─ handshake message (type 1, 24-bit length) ─► extensions
//! record (type 22, version, length) ─┘  the records may split the message anywhere, and each may arrive in parts
//! ```
//!
//! Nothing is decrypted, stored or answered: the bytes are passed on unchanged. RFC 8446 sections 4.1.2 and 5.1, RFC
//! 6066 section 3, RFC 7301 section 3.1.

use std::borrow::Cow;

use crate::peeked::MAX_PEEKED;

/// The longest server name. A DNS name has at most 255 bytes (RFC 1035 section 2.3.4), which are 253 characters when it
/// is written with dots.
const MAX_NAME: usize = 253;

/// The length of a record's header, which consists of type, version and length.
const RECORD_HEADER: usize = 5;

/// The largest number of bytes in an unencrypted record (RFC 8446 section 5.1).
const MAX_RECORD: usize = 1 << 14;

/// The length of a handshake message's header, which consists of type and length.
const MESSAGE_HEADER: usize = 4;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
const ALPN: u16 = 16;

/// A complete ClientHello.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHello {
    server_name: Option<Box<str>>,
    /// In the encoding of the extension: a length byte precedes each name.
    protocols: Vec<u8>,
}

/// What is known of TLS that a client itself has begun, as opposed to TLS between proxies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnTls {
    /// Whether the client has begun TLS.
    pub is_tls: bool,
    /// The server's name, if the ClientHello has one.
    pub server_name: Option<Box<str>>,
}

impl OwnTls {
    /// For a client that has begun TLS; `hello` is `None` if its ClientHello cannot be read.
    #[must_use]
    pub fn begun(hello: Option<&ClientHello>) -> Self {
        let name = hello.and_then(ClientHello::server_name);
        Self { is_tls: true, server_name: name.map(Into::into) }
    }
}

/// The first bytes of a connection, read as a ClientHello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hello {
    /// More bytes are needed to decide.
    NeedMore,
    /// The bytes are not a ClientHello, or are malformed, or the ClientHello is longer than [`MAX_PEEKED`].
    Unreadable,
    /// A complete ClientHello.
    Read(ClientHello),
}

impl ClientHello {
    /// The host that the client names, in lower case: letters, digits, `-`, `_` and dots. `None` if it names none, or
    /// one with other characters or with more than 253.
    #[must_use]
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// The protocols that the client offers by ALPN, in the client's order.
    pub fn protocols(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = Reader(&self.protocols);
        std::iter::from_fn(move || rest.vector8())
    }
}

impl Hello {
    /// Reads the first bytes of a connection. The result never changes when more bytes follow, and it is never
    /// `NeedMore` once there are [`MAX_PEEKED`] bytes.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Self {
        match message(bytes.get(..MAX_PEEKED).unwrap_or(bytes)) {
            Ok(Some(message)) => parse(&message).map_or(Self::Unreadable, Self::Read),
            Ok(None) if bytes.len() < MAX_PEEKED => Self::NeedMore,
            Ok(None) | Err(Malformed) => Self::Unreadable,
        }
    }
}

/// The bytes are not a ClientHello, or one that is too long.
struct Malformed;

/// Joins the records' contents to the handshake message, and removes its header. `None` until all of it has arrived.
fn message(mut bytes: &[u8]) -> Result<Option<Cow<'_, [u8]>>, Malformed> {
    let mut joined: Cow<'_, [u8]> = Cow::Borrowed(&[]);
    loop {
        check_record_header(bytes)?;
        let Some((header, rest)) = bytes.split_first_chunk::<RECORD_HEADER>() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if length == 0 || length > MAX_RECORD {
            return Err(Malformed);
        }
        let (part, rest) = rest.split_at(length.min(rest.len()));
        if joined.is_empty() {
            joined = Cow::Borrowed(part);
        } else {
            joined.to_mut().extend_from_slice(part);
        }
        if joined.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Err(Malformed);
        }
        if let Some(header) = joined.first_chunk::<MESSAGE_HEADER>() {
            let length = u32::from_be_bytes([0, header[1], header[2], header[3]]) as usize;
            if length > MAX_PEEKED {
                return Err(Malformed);
            }
            let end = MESSAGE_HEADER.saturating_add(length);
            if joined.len() >= end {
                return Ok(Some(cut(joined, MESSAGE_HEADER..end)));
            }
        }
        if part.len() < length {
            return Ok(None);
        }
        bytes = rest;
    }
}

/// Checks the part of the header that has arrived.
fn check_record_header(bytes: &[u8]) -> Result<(), Malformed> {
    let good = bytes.first().is_none_or(|kind| *kind == HANDSHAKE)
        && bytes.get(1).is_none_or(|major| *major == 3)
        && bytes.get(2).is_none_or(|minor| *minor <= 4);
    if good { Ok(()) } else { Err(Malformed) }
}

fn cut(bytes: Cow<'_, [u8]>, range: std::ops::Range<usize>) -> Cow<'_, [u8]> {
    match bytes {
        Cow::Borrowed(bytes) => Cow::Borrowed(bytes.get(range).unwrap_or_default()),
        Cow::Owned(mut bytes) => {
            bytes.truncate(range.end);
            bytes.drain(..range.start);
            Cow::Owned(bytes)
        }
    }
}

fn parse(message: &[u8]) -> Option<ClientHello> {
    let mut rest = Reader(message);
    let (_version, _random) = (rest.take(2)?, rest.take(32)?);
    let (_session, _suites, _compression) = (rest.vector8()?, rest.vector16()?, rest.vector8()?);
    let mut hello = ClientHello::default();
    if rest.0.is_empty() {
        // Old clients send no extensions.
        return Some(hello);
    }
    let mut extensions = Reader(rest.vector16()?);
    if !rest.0.is_empty() {
        return None;
    }
    let (mut named, mut offered) = (false, false);
    while !extensions.0.is_empty() {
        let (kind, body) = (extensions.number16()?, extensions.vector16()?);
        // There is at most one extension of each type (RFC 8446 section 4.2). If there were two names, the server might
        // choose another one than the proxy.
        match kind {
            SERVER_NAME if std::mem::replace(&mut named, true) => return None,
            SERVER_NAME => hello.server_name = server_name(body)?,
            ALPN if std::mem::replace(&mut offered, true) => return None,
            ALPN => hello.protocols = protocols(body)?,
            _ => {}
        }
    }
    Some(hello)
}

/// The host of the extension `server_name`. `Some(None)`: it is not a host name. `None`: the extension is malformed or
/// has not exactly one name, and the ClientHello is unreadable.
fn server_name(body: &[u8]) -> Option<Option<Box<str>>> {
    let mut rest = Reader(body);
    let mut names = Reader(rest.vector16()?);
    let ([kind], name) = (names.array()?, names.vector16()?);
    if !rest.0.is_empty() || !names.0.is_empty() {
        return None;
    }
    let allowed = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let is_host = !name.is_empty() && name.len() <= MAX_NAME && name.iter().all(allowed);
    if kind != HOST_NAME || !is_host {
        return Some(None);
    }
    let name = std::str::from_utf8(name).ok()?;
    Some(Some(name.to_ascii_lowercase().into()))
}

fn protocols(body: &[u8]) -> Option<Vec<u8>> {
    let mut rest = Reader(body);
    let list = rest.vector16()?;
    let mut names = Reader(list);
    while !names.0.is_empty() {
        if names.vector8()?.is_empty() {
            return None;
        }
    }
    (rest.0.is_empty() && !list.is_empty()).then(|| list.to_vec())
}

/// Removes values from the front of the bytes. Each method returns `None` if there are too few.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn number16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// A byte with the length, and that many bytes; returns the latter.
    fn vector8(&mut self) -> Option<&'a [u8]> {
        let [length] = self.array()?;
        self.take(length.into())
    }

    /// Two bytes with the length, and that many bytes; returns the latter.
    fn vector16(&mut self) -> Option<&'a [u8]> {
        let length = self.number16()?;
        self.take(length.into())
    }
}

#[cfg(test)]
pub(crate) mod tests;
