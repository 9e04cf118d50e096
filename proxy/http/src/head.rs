//! Heads of messages: the positions of their parts in the received bytes, and what their headers mean for the
//! connection.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "positions within a head, which is 64 KiB at most"
)]

mod fields;
mod options;
mod request;
mod response;
mod text;
mod upgrade;
mod view;

use smallvec::SmallVec;

pub use request::RequestHead;
pub use response::ResponseHead;
pub use view::{RequestView, ResponseView};

pub(crate) use fields::{Connection, Meaning, Transfer, Upgrade};
pub(crate) use options::ConnectionOptions;
pub(crate) use request::{absolute, in_target, is_authority, is_host_and_port, without_port};
pub(crate) use text::{
    decimal, in_token, is_text, is_token, split_before, split_once, text_end, tokens, trim,
};
pub(crate) use upgrade::grants;

use crate::limits::Limits;

/// The protocol version of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Version {
    /// HTTP/1.0: the connection closes after each response unless both sides send `keep-alive`.
    Http10,
    /// HTTP/1.1: the connection stays open unless one side sends `close`.
    #[default]
    Http11,
    /// HTTP/2: a stream of a connection that other streams share.
    Http2,
}

impl Version {
    /// A name for logs, for example `HTTP/1.1`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
        }
    }
}

/// How the end of a body is found (RFC 9112 section 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    /// There is no body.
    #[default]
    None,
    /// This many bytes follow.
    Length(u64),
    /// Chunks follow, then trailers.
    Chunked,
    /// The body ends with the connection. Only for responses, and for both directions after an upgrade.
    UntilClose,
}

/// Whether a request with this method may be sent again although a server may have received it (RFC 9110 section
/// 9.2.2).
#[must_use]
pub fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
}

/// A range in a head. It is counted from the head's first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Span {
    pub(crate) start: u16,
    pub(crate) end: u16,
}

impl Span {
    pub(crate) fn new(start: usize, end: usize) -> Self {
        debug_assert!(start <= end && end <= crate::MAX_HEAD_BYTES);
        Self { start: start as u16, end: end as u16 }
    }

    pub(crate) fn of(self, head: &[u8]) -> &[u8] {
        head.get(usize::from(self.start)..usize::from(self.end)).unwrap_or_default()
    }
}

/// One header line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) name: Span,
    /// The value without white space around it.
    pub(crate) value: Span,
    /// The position after the line's CRLF.
    pub(crate) end: u16,
    pub(crate) known: Known,
}

/// Headers that the engine itself handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    Other,
    Connection,
    ContentLength,
    Expect,
    Host,
    /// Tells an application who its client is.
    Identity,
    Http2Settings,
    KeepAlive,
    /// One of the mesh's own headers (`leno-*`).
    Mesh,
    ProxyConnection,
    Te,
    TransferEncoding,
    Upgrade,
}

/// The header lines of a head. Most heads fit without an allocation.
pub(crate) type Headers = SmallVec<[Header; 24]>;

/// Why a head was refused. The result does not depend on how the bytes were split into reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its variant means")]
pub enum HeadError {
    #[error("the request line is not `METHOD target HTTP/1.x`")]
    RequestLine,
    #[error("the request line is too long")]
    RequestLineTooLong,
    #[error("the status line is not `HTTP/1.x status reason`")]
    StatusLine,
    #[error("neither HTTP/1.0 nor HTTP/1.1")]
    Version,
    #[error("the head is too large")]
    TooLarge,
    #[error("too many headers")]
    TooManyHeaders,
    #[error("a line ends with LF alone")]
    BareLf,
    #[error("a CR is not followed by LF")]
    BareCr,
    #[error("a header continues on a second line")]
    Folded,
    #[error("a header's name is empty or holds a byte that names cannot hold")]
    Name,
    #[error("white space between a header's name and the colon")]
    SpaceBeforeColon,
    #[error("a control character in a header's value")]
    Control,
    #[error("the target is not one the method may have")]
    Target,
    #[error("HTTP/1.1 without a Host header")]
    HostMissing,
    #[error("more than one Host header")]
    HostRepeated,
    #[error("the Host header names no host")]
    HostMalformed,
    #[error("the Host header contradicts the target")]
    HostConflict,
    #[error("Content-Length is not one decimal number")]
    LengthMalformed,
    #[error("Content-Length is given twice with different values")]
    LengthConflict,
    #[error("both Content-Length and Transfer-Encoding")]
    LengthAndTransferEncoding,
    #[error("Transfer-Encoding does not end in one `chunked`")]
    TransferEncoding,
    #[error("a transfer coding other than `chunked`")]
    TransferCoding,
    #[error("Transfer-Encoding in HTTP/1.0")]
    TransferEncodingIn10,
    #[error("Connection names a header that it may not remove")]
    ConnectionOption,
    #[error("no route permits CONNECT here, or it has a body")]
    Connect,
}

impl HeadError {
    /// The status of the answer to a request whose head was refused for this reason.
    pub fn status(self) -> u16 {
        match self {
            Self::RequestLineTooLong => 414,
            Self::TooLarge | Self::TooManyHeaders => 431,
            Self::Version => 505,
            Self::TransferCoding | Self::Connect => 501,
            _ => 400,
        }
    }

    /// A name for metrics and the `leno-error` header.
    pub fn label(self) -> &'static str {
        match self {
            Self::RequestLine => "request-line",
            Self::RequestLineTooLong => "request-line-too-long",
            Self::StatusLine => "status-line",
            Self::Version => "version",
            Self::TooLarge => "head-too-large",
            Self::TooManyHeaders => "too-many-headers",
            Self::BareLf => "bare-lf",
            Self::BareCr => "bare-cr",
            Self::Folded => "folded-header",
            Self::Name => "header-name",
            Self::SpaceBeforeColon => "space-before-colon",
            Self::Control => "header-value",
            Self::Target => "target",
            Self::HostMissing => "host-missing",
            Self::HostRepeated => "host-repeated",
            Self::HostMalformed => "host-malformed",
            Self::HostConflict => "host-conflict",
            Self::LengthMalformed => "content-length",
            Self::LengthConflict => "content-length-conflict",
            Self::LengthAndTransferEncoding => "content-length-and-transfer-encoding",
            Self::TransferEncoding => "transfer-encoding",
            Self::TransferCoding => "transfer-coding",
            Self::TransferEncodingIn10 => "transfer-encoding-in-http-1.0",
            Self::ConnectionOption => "connection-option",
            Self::Connect => "connect",
        }
    }
}

/// How much of a head is parsed. Each line is parsed once, however its bytes arrive, so a head that arrives byte by
/// byte costs no more than its length.
///
/// ```text
/// first line ──► headers ──(empty line)──► done
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Progress {
    /// The position of the first line that is not yet parsed.
    pub(crate) at: usize,
    /// Up to where the bytes were already searched for the end of the line.
    seen: usize,
    pub(crate) first_line_done: bool,
}

impl Progress {
    /// Whether the new bytes may complete a line.
    fn worth_a_look(&mut self, bytes: &[u8], limit: usize) -> bool {
        let fresh = bytes.get(self.seen..).unwrap_or_default();
        let look = self.seen == 0 || bytes.len() >= limit || fresh.contains(&b'\n');
        self.seen = bytes.len();
        look
    }
}

/// Parses the header lines, which requests and responses have in common.
fn parse_headers(
    progress: &mut Progress,
    headers: &mut Headers,
    meaning: &mut Meaning,
    bytes: &[u8],
    limits: &Limits,
) -> Result<bool, HeadError> {
    let limit = head_limit(limits);
    let window = bytes.get(..limit).unwrap_or(bytes);
    loop {
        match fields::parse_line(window, progress.at)? {
            fields::Line::Unfinished if window.len() == limit => return Err(HeadError::TooLarge),
            fields::Line::Unfinished => return Ok(false),
            fields::Line::Empty => {
                progress.at += 2;
                return Ok(true);
            }
            fields::Line::Header(header) => {
                if headers.len() == limits.headers {
                    return Err(HeadError::TooManyHeaders);
                }
                progress.at = header.end as usize;
                meaning.note(header, window)?;
                headers.push(header);
            }
        }
    }
}

fn head_limit(limits: &Limits) -> usize {
    limits.head_bytes.min(crate::MAX_HEAD_BYTES)
}

#[cfg(test)]
mod tests;
