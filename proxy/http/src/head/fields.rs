//! Header lines, and the common meaning of those that concern the connection and the body.

use leno_h2::{is_identity_field, is_mesh_field};

use super::text::{split_before, text_end};
use super::{Framing, HeadError, Header, Known, Span, Version, decimal, in_token, tokens};

/// The kind of a line.
pub(super) enum Line {
    /// The line's end has not been received.
    Unfinished,
    /// The empty line that ends a head.
    Empty,
    Header(Header),
}

#[inline]
pub(super) fn parse_line(bytes: &[u8], at: usize) -> Result<Line, HeadError> {
    let rest = bytes.get(at..).unwrap_or_default();
    match rest {
        [] | [b'\r'] => return Ok(Line::Unfinished),
        [b'\r', b'\n', ..] => return Ok(Line::Empty),
        [b'\r', ..] => return Err(HeadError::BareCr),
        [b'\n', ..] => return Err(HeadError::BareLf),
        [b' ' | b'\t', ..] => return Err(HeadError::Folded),
        _ => {}
    }
    let Some((name, rest)) = split_before(rest, |byte| !in_token(byte)) else {
        return Ok(Line::Unfinished);
    };
    match rest {
        [b':', ..] if !name.is_empty() => {}
        [b' ' | b'\t', ..] => return Err(HeadError::SpaceBeforeColon),
        _ => return Err(HeadError::Name),
    }
    let mut start = at + name.len() + 1;
    while matches!(bytes.get(start), Some(b' ' | b'\t')) {
        start += 1;
    }
    let stop = text_end(bytes, start);
    match bytes.get(stop..).unwrap_or_default() {
        [] | [b'\r'] => return Ok(Line::Unfinished),
        [b'\r', b'\n', ..] => {}
        [b'\r', ..] => return Err(HeadError::BareCr),
        [b'\n', ..] => return Err(HeadError::BareLf),
        _ => return Err(HeadError::Control),
    }
    let value = bytes.get(start..stop).unwrap_or_default();
    let spaces = value.iter().rev().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    Ok(Line::Header(Header {
        name: Span::new(at, at + name.len()),
        value: Span::new(start, stop - spaces),
        end: (stop + 2) as u16,
        known: known(name),
    }))
}

#[inline]
fn known(name: &[u8]) -> Known {
    let candidates: &[(&str, Known)] = match name.len() {
        2 => &[("te", Known::Te)],
        4 => &[("host", Known::Host)],
        6 => &[("expect", Known::Expect)],
        7 => &[("upgrade", Known::Upgrade)],
        10 => &[("connection", Known::Connection), ("keep-alive", Known::KeepAlive)],
        14 => &[("content-length", Known::ContentLength), ("http2-settings", Known::Http2Settings)],
        16 => &[("proxy-connection", Known::ProxyConnection)],
        17 => &[("transfer-encoding", Known::TransferEncoding)],
        _ => &[],
    };
    candidates
        .iter()
        .find(|(candidate, _)| name.eq_ignore_ascii_case(candidate.as_bytes()))
        .map_or_else(|| reserved(name), |(_, known)| *known)
}

/// Recognises names that only the mesh may set. Most other names differ from them already in their first letter.
#[inline]
fn reserved(name: &[u8]) -> Known {
    match name.first() {
        Some(b'l' | b'L') if is_mesh_field(name) => Known::Mesh,
        Some(b'l' | b'L' | b'x' | b'X') if is_identity_field(name) => Known::Identity,
        _ => Known::Other,
    }
}

/// The options of all `Connection` headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Connection {
    /// The number of `Connection` lines; more than 255 count as 255.
    pub(crate) lines: u8,
    pub(crate) close: bool,
    pub(crate) keep_alive: bool,
    pub(crate) upgrade: bool,
    pub(crate) te: bool,
    /// Whether other headers are named, which are then for this hop only (RFC 9110 section 7.6.1).
    pub(crate) others: bool,
}

/// All `Transfer-Encoding` headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Transfer {
    #[default]
    Absent,
    /// A single line, and only `chunked` in it.
    Chunked,
    /// `chunked` after other codings.
    CodedChunked,
    /// `chunked` is missing, repeated or not last.
    Malformed,
}

/// The meaning of the headers for the connection and the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Meaning {
    pub(crate) connection: Connection,
    pub(crate) transfer: Transfer,
    pub(crate) length: Option<u64>,
    /// Whether there are several `Content-Length` headers with the same value.
    pub(crate) length_repeated: bool,
    pub(crate) host: Option<Span>,
    pub(crate) expect_continue: bool,
    pub(crate) upgrade: Upgrade,
    /// Whether there is one of the mesh's own headers (`leno-*`).
    pub(crate) mesh: bool,
    /// Whether there is a header that tells an application who its client is.
    pub(crate) identity: bool,
    /// Whether there is a header that is always for this hop only.
    pub(crate) hop_by_hop: bool,
    /// The `timeout` parameter of `Keep-Alive`, in seconds.
    pub(crate) keep_alive_timeout: Option<u32>,
}

/// The `Upgrade` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Upgrade {
    #[default]
    Absent,
    /// An upgrade to HTTP/2 in clear text. It is never forwarded, because no policy would apply to the requests in this
    /// second protocol.
    Http2,
    /// Any other protocol, or several.
    Other,
}

impl Meaning {
    pub(super) fn note(&mut self, header: Header, head: &[u8]) -> Result<(), HeadError> {
        let value = header.value.of(head);
        match header.known {
            Known::Other => {}
            Known::Mesh => self.mesh = true,
            Known::Identity => self.identity = true,
            Known::Connection => self.note_connection(value)?,
            Known::ContentLength => self.note_length(value)?,
            Known::TransferEncoding => self.transfer = self.transfer.then(value),
            Known::Host if self.host.is_some() => return Err(HeadError::HostRepeated),
            Known::Host => self.host = Some(header.value),
            Known::Expect => self.expect_continue |= value.eq_ignore_ascii_case(b"100-continue"),
            Known::Upgrade => {
                let http2 = |token: &[u8]| token.eq_ignore_ascii_case(b"h2c");
                if tokens(value).any(http2) || self.upgrade == Upgrade::Http2 {
                    self.upgrade = Upgrade::Http2;
                } else {
                    self.upgrade = Upgrade::Other;
                }
            }
            Known::KeepAlive => {
                self.hop_by_hop = true;
                self.keep_alive_timeout = tokens(value).find_map(timeout_parameter);
            }
            Known::Te => self.hop_by_hop |= !value.eq_ignore_ascii_case(b"trailers"),
            Known::Http2Settings | Known::ProxyConnection => self.hop_by_hop = true,
        }
        Ok(())
    }

    fn note_connection(&mut self, value: &[u8]) -> Result<(), HeadError> {
        let options = &mut self.connection;
        options.lines = options.lines.saturating_add(1);
        for option in tokens(value) {
            let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
            if is("close") {
                options.close = true;
            } else if is("keep-alive") {
                options.keep_alive = true;
            } else if is("upgrade") {
                options.upgrade = true;
            } else if is("te") {
                options.te = true;
            } else if is("host") || is("content-length") {
                return Err(HeadError::ConnectionOption);
            } else {
                options.others = true;
            }
        }
        Ok(())
    }

    fn note_length(&mut self, value: &[u8]) -> Result<(), HeadError> {
        let length = decimal(value).ok_or(HeadError::LengthMalformed)?;
        match self.length.replace(length) {
            Some(earlier) if earlier != length => Err(HeadError::LengthConflict),
            Some(_) => {
                self.length_repeated = true;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Whether the sender of this message intends to keep the connection open after it.
    pub(super) fn keeps_alive(&self, version: Version) -> bool {
        match version {
            Version::Http11 | Version::Http2 => !self.connection.close,
            Version::Http10 => self.connection.keep_alive && !self.connection.close,
        }
    }

    /// The framing of a request (RFC 9112 section 6.3). Refuses everything that two parsers could interpret
    /// differently.
    pub(super) fn request_framing(&self, version: Version) -> Result<Framing, HeadError> {
        match (self.transfer, self.length) {
            (Transfer::Absent, None | Some(0)) => Ok(Framing::None),
            (Transfer::Absent, Some(length)) => Ok(Framing::Length(length)),
            (_, Some(_)) => Err(HeadError::LengthAndTransferEncoding),
            (Transfer::Malformed, None) => Err(HeadError::TransferEncoding),
            (_, None) if version == Version::Http10 => Err(HeadError::TransferEncodingIn10),
            (Transfer::CodedChunked, None) => Err(HeadError::TransferCoding),
            (Transfer::Chunked, None) => Ok(Framing::Chunked),
        }
    }
}

impl Transfer {
    /// Adds one more line. Only a single line `chunked` counts as chunked, because servers interpret equivalent lists
    /// differently.
    fn then(self, value: &[u8]) -> Self {
        let chunked = |token: &[u8]| token.eq_ignore_ascii_case(b"chunked");
        let count = tokens(value).filter(|token| chunked(token)).count();
        let last = tokens(value).last().is_some_and(chunked);
        match self {
            Self::Absent if chunked(value) => Self::Chunked,
            Self::Absent | Self::Malformed if count == 1 && last => Self::CodedChunked,
            _ => Self::Malformed,
        }
    }
}

fn timeout_parameter(parameter: &[u8]) -> Option<u32> {
    let (name, value) = parameter.split_at_checked(8)?;
    if !name.eq_ignore_ascii_case(b"timeout=") {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}
