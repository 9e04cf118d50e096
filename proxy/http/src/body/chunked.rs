//! Chunked framing (RFC 9112 section 7.1), parsed strictly: bytes that two parsers could interpret differently are
//! refused.

use leno_h2::{is_reserved, may_be_trailer};

use super::{BodyError, Event};
use crate::head::{ConnectionOptions, in_token, is_text, split_before, text_end};

/// The largest number of digits in a chunk's size. A number with 15 digits cannot overflow, and no chunk is that long.
const SIZE_DIGITS: u8 = 15;

/// How many bytes of chunk framing may be sent beyond what the data justifies, so that a sender cannot make the proxy
/// carry extensions in place of content. Go's net/http has the same limit.
const EXCESS_BYTES: u64 = 16 * 1024;

/// How many framing bytes are not counted for each chunk: they are enough for its size and line ends.
const FREE_PER_CHUNK: u64 = 32;

/// The largest trailer section in bytes. Servers commonly accept 8 KiB of headers.
const TRAILER_BYTES: usize = 16 * 1024;

/// Trailers that make a message malformed, because a parser that merges them into the head gets another length or
/// another host. Other trailers that RFC 9110 section 6.5.1 forbids are removed.
const REFUSED: [&str; 3] = ["content-length", "host", "transfer-encoding"];

/// The position within the framing.
///
/// ```text
///       ┌──────────────(CRLF)──────────────┐
///       ▼                                  │
/// Size ──► [Extension] ──► SizeLf ──► Data ──► DataCr ──► DataLf
///                             │
///                             └─(size 0)─► Trailers ──(empty line)──► (End)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Size,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    Trailers,
}

#[derive(Debug, Clone)]
pub(super) struct Chunked {
    state: State,
    /// How many digits of the size were read so far.
    digits: u8,
    /// How many bytes of the current chunk are still to come.
    left: u64,
    /// How many bytes of framing have exceeded what the data justifies; at most [`EXCESS_BYTES`].
    excess: u64,
    /// How many bytes of trailer lines were read so far.
    trailer_bytes: usize,
    /// The fields that the head's `Connection` names. They are for this hop only, even as trailers (RFC 9110 section
    /// 7.6.1).
    options: Option<ConnectionOptions>,
}

/// A complete line of the trailer section.
struct TrailerLine {
    length: usize,
    is_forwarded: bool,
}

impl Chunked {
    pub(super) fn new(options: Option<ConnectionOptions>) -> Self {
        Self { state: State::Size, digits: 0, left: 0, excess: 0, trailer_bytes: 0, options }
    }

    /// Finds the next event, like [`BodyWalker::next`](super::BodyWalker::next).
    pub(super) fn next(&mut self, bytes: &[u8]) -> Result<(usize, Option<Event>), BodyError> {
        if self.state == State::Trailers {
            return self.next_trailers(bytes);
        }
        for (at, byte) in bytes.iter().enumerate() {
            if self.state == State::Data {
                let available = bytes.len() - at;
                let count = available.min(usize::try_from(self.left).unwrap_or(usize::MAX));
                self.left -= count as u64;
                if self.left == 0 {
                    self.state = State::DataCr;
                }
                return Ok((at + count, Some(Event::Data(at..at + count))));
            }
            self.framing_byte(*byte)?;
            if self.state == State::Trailers {
                let start = at + 1;
                let (count, event) = self.next_trailers(bytes.get(start..).unwrap_or_default())?;
                let event = event.map(|event| event.shifted(start));
                return Ok((start + count, event));
            }
        }
        Ok((bytes.len(), None))
    }

    fn framing_byte(&mut self, byte: u8) -> Result<(), BodyError> {
        self.excess += 1;
        if self.excess > EXCESS_BYTES {
            return Err(BodyError::ChunkExtensions);
        }
        self.state = match (self.state, byte) {
            (State::Size, _) if byte.is_ascii_hexdigit() => {
                if self.digits == SIZE_DIGITS {
                    return Err(BodyError::ChunkSize);
                }
                self.digits += 1;
                let digit = (byte as char).to_digit(16).expect("it is a hexadecimal digit");
                self.left = self.left * 16 + u64::from(digit);
                State::Size
            }
            (State::Size, _) if self.digits == 0 => return Err(BodyError::ChunkSize),
            (State::Size, b';') => State::Extension,
            (State::Size | State::Extension, b'\r') => State::SizeLf,
            (State::Size, _) => return Err(BodyError::ChunkSize),
            (State::Extension, _) if is_text(byte) => State::Extension,
            (State::SizeLf, b'\n') => self.chunk_begins(),
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::Size,
            (State::DataCr | State::DataLf, _) => return Err(BodyError::ChunkEnd),
            _ => return Err(BodyError::ChunkLine),
        };
        Ok(())
    }

    fn chunk_begins(&mut self) -> State {
        self.digits = 0;
        if self.left == 0 {
            return State::Trailers;
        }
        self.excess = self.excess.saturating_sub(FREE_PER_CHUNK.saturating_add(self.left));
        State::Data
    }

    /// Accepts only complete lines, because whether a line is forwarded depends on its whole name. The caller passes
    /// the rest of an incomplete line again, with the bytes that follow.
    fn next_trailers(&mut self, bytes: &[u8]) -> Result<(usize, Option<Event>), BodyError> {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !matches!(rest, [] | [b'\r'])) {
            if rest.starts_with(b"\r\n") {
                return Ok(if at > 0 { self.trailers(at) } else { (2, Some(Event::End)) });
            }
            let room = TRAILER_BYTES.saturating_sub(self.trailer_bytes).saturating_sub(at);
            let window = rest.get(..room).unwrap_or(rest);
            let Some(line) = self.trailer_line(window)? else {
                if window.len() == room {
                    return Err(BodyError::TrailersTooLarge);
                }
                break;
            };
            if !line.is_forwarded && at == 0 {
                self.trailer_bytes += line.length;
                return Ok((line.length, Some(Event::RemovedTrailer(0..line.length))));
            }
            if !line.is_forwarded {
                break;
            }
            at += line.length;
        }
        Ok(if at > 0 { self.trailers(at) } else { (0, None) })
    }

    /// An event for the first `length` bytes, which are lines to forward.
    fn trailers(&mut self, length: usize) -> (usize, Option<Event>) {
        self.trailer_bytes += length;
        (length, Some(Event::Trailers(0..length)))
    }

    /// The line at the start of `bytes`. `None` if it is incomplete.
    fn trailer_line(&self, bytes: &[u8]) -> Result<Option<TrailerLine>, BodyError> {
        let Some((name, rest)) = split_before(bytes, |byte| !in_token(byte)) else {
            return Ok(None);
        };
        if name.is_empty() || rest.first() != Some(&b':') {
            return Err(BodyError::Trailer);
        }
        let refused = REFUSED.iter().any(|refused| name.eq_ignore_ascii_case(refused.as_bytes()));
        if refused || is_reserved(name) {
            return Err(BodyError::TrailerForbidden);
        }
        let end = text_end(bytes, name.len() + 1);
        match bytes.get(end..).unwrap_or_default() {
            [] | [b'\r'] => Ok(None),
            [b'\r', b'\n', ..] => {
                let is_named = self.options.as_ref().is_some_and(|options| options.contain(name));
                let is_forwarded = may_be_trailer(name) && !is_named;
                Ok(Some(TrailerLine { length: end + 2, is_forwarded }))
            }
            _ => Err(BodyError::Trailer),
        }
    }
}
