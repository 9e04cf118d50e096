//! Parses the heads of responses.

use super::view::ResponseView;
use super::{
    Framing, HeadError, Headers, Meaning, Progress, Span, Transfer, Version, decimal, head_limit,
    parse_headers, text_end,
};
use crate::limits::Limits;

/// A response's head: the positions of its parts in the bytes of its connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResponseHead {
    pub(super) progress: Progress,
    pub(crate) status: u16,
    pub(crate) reason: Span,
    pub(crate) version: Version,
    pub(crate) headers: Headers,
    pub(crate) meaning: Meaning,
}

impl ResponseHead {
    /// Parses the head of a response, like [`RequestHead::parse`](crate::RequestHead::parse).
    pub fn parse(&mut self, bytes: &[u8], limits: &Limits) -> Result<bool, HeadError> {
        if !self.progress.worth_a_look(bytes, head_limit(limits)) {
            return Ok(false);
        }
        if !self.progress.first_line_done && !self.parse_status_line(bytes, limits)? {
            return Ok(false);
        }
        let complete =
            parse_headers(&mut self.progress, &mut self.headers, &mut self.meaning, bytes, limits)?;
        Ok(complete)
    }

    /// The length of the head, including the empty line at its end.
    pub fn len(&self) -> usize {
        self.progress.at
    }

    /// Always false: a head has at least a status line.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The status code, 100 to 999.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Whether a further response to the same request follows.
    pub fn is_interim(&self) -> bool {
        self.status < 200
    }

    /// Whether the server intends to accept more requests on its connection, and the end of this response can be
    /// determined reliably.
    pub fn keep_alive(&self) -> bool {
        self.meaning.keeps_alive(self.version) && !self.has_faulty_framing()
    }

    /// Whether the response is HTTP/1.0 with Transfer-Encoding, after which the connection must end (RFC 9112 section
    /// 6.1): HTTP/1.0 recipients may have read the chunks as content.
    pub(crate) fn has_faulty_framing(&self) -> bool {
        self.version == Version::Http10 && self.meaning.transfer != Transfer::Absent
    }

    /// Whether the response has no content and must not have fields that frame content (RFC 9112 section 6.1, RFC 9110
    /// section 8.6). Other responses without content, such as 304, may have these fields, for the content that they
    /// omit.
    pub(crate) fn is_unframed(&self) -> bool {
        self.is_interim() || self.status == 204
    }

    /// How the end of the body is found (RFC 9112 section 6.3). `to_head` says that the request's method was HEAD.
    /// Transfer-Encoding takes precedence over Content-Length.
    pub fn framing(&self, to_head: bool) -> Framing {
        if to_head || self.is_interim() || matches!(self.status, 204 | 304) {
            return Framing::None;
        }
        match (self.meaning.transfer, self.meaning.length) {
            (Transfer::Chunked | Transfer::CodedChunked, _) => Framing::Chunked,
            (Transfer::Malformed, _) | (Transfer::Absent, None) => Framing::UntilClose,
            (Transfer::Absent, Some(0)) => Framing::None,
            (Transfer::Absent, Some(length)) => Framing::Length(length),
        }
    }

    /// The parts of the head. `bytes` are those from which it was parsed.
    pub fn view<'a>(&'a self, bytes: &'a [u8]) -> ResponseView<'a> {
        ResponseView::of_http1(self, bytes.get(..self.len()).unwrap_or_default())
    }

    fn parse_status_line(&mut self, bytes: &[u8], limits: &Limits) -> Result<bool, HeadError> {
        let limit = head_limit(limits);
        let window = bytes.get(..limit).unwrap_or(bytes);
        let unfinished = if window.len() == limit { Err(HeadError::TooLarge) } else { Ok(false) };
        let Some(start) = window.first_chunk::<12>() else {
            return if window.contains(&b'\n') { Err(HeadError::StatusLine) } else { unfinished };
        };
        let [version @ .., hundreds, tens, ones] = start;
        self.version = match version {
            b"HTTP/1.1 " => Version::Http11,
            b"HTTP/1.0 " => Version::Http10,
            _ => return Err(HeadError::StatusLine),
        };
        self.status = match decimal(&[*hundreds, *tens, *ones]) {
            Some(status @ 100..) => status as u16,
            _ => return Err(HeadError::StatusLine),
        };
        // Many servers omit the space before an empty reason phrase.
        let reason = match window.get(12) {
            None => return unfinished,
            Some(b' ') => 13,
            Some(_) => 12,
        };
        let end = text_end(window, reason);
        match window.get(end..).unwrap_or_default() {
            [] | [b'\r'] => return unfinished,
            [b'\r', b'\n', ..] if reason == 13 || end == reason => {}
            [b'\n', ..] => return Err(HeadError::BareLf),
            _ => return Err(HeadError::StatusLine),
        }
        self.reason = Span::new(reason, end);
        self.progress.at = end + 2;
        self.progress.first_line_done = true;
        Ok(true)
    }
}
