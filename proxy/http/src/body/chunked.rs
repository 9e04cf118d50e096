//! Chunked framing (RFC 9112 section 7.1), taken strictly: whatever two parsers could read
//! differently is refused.

use leno_h2::{LONGEST_IDENTITY, is_reserved};

use super::{BodyError, Event};
use crate::head::{TOKEN, is_text};

/// Digits of a chunk's size. 15 cannot overflow, and no chunk is longer.
const SIZE_DIGITS: u8 = 15;

/// How many bytes of chunk framing may come in excess of what the data justifies, so that
/// nobody makes us carry extensions instead of content. Go's net/http counts alike.
const EXCESS_BYTES: u64 = 16 * 1024;

/// Framing bytes that each chunk may have for free: its size and line ends.
const FREE_PER_CHUNK: u64 = 32;

/// Bytes of a trailer section; servers commonly take 8 KiB of headers.
const TRAILER_BYTES: u16 = 16 * 1024;

/// Trailers that would change the framing or the meaning of the message if they were merged
/// into its head (RFC 9110 section 6.5.1).
const FORBIDDEN: [&str; 3] = ["content-length", "host", "transfer-encoding"];

/// Bytes of a name that are kept: one more than the longest name that is recognised has.
const NAME_KEPT: usize = LONGEST_IDENTITY + 1;

/// ```text
///       ┌──────────────(CRLF)──────────────┐
///       ▼                                  │
/// Size ──► [Extension] ──► SizeLf ──► Data ──► DataCr ──► DataLf
///                             │
///                             └─(size 0)─► TrailerStart ──► TrailerName ──► TrailerValue
///                                             │   ▲                             │
///                                             │   └───── TrailerLf ◄────────────┘
///                                             └─► EndLf ──► (End)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum State {
    Size,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    EndLf,
}

#[derive(Debug, Clone)]
pub(super) struct Chunked {
    state: State,
    /// Digits of the size seen.
    digits: u8,
    /// Bytes of the current chunk that are still to come.
    left: u64,
    excess: u64,
    trailer_bytes: u16,
    name: [u8; NAME_KEPT],
    name_length: u8,
}

impl Default for Chunked {
    fn default() -> Self {
        Self {
            state: State::Size,
            digits: 0,
            left: 0,
            excess: 0,
            trailer_bytes: 0,
            name: [0; NAME_KEPT],
            name_length: 0,
        }
    }
}

impl Chunked {
    /// As [`BodyWalker::next`](super::BodyWalker::next).
    pub(super) fn next(&mut self, bytes: &[u8]) -> Result<(usize, Option<Event>), BodyError> {
        if self.in_trailers() {
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
            if self.in_trailers() {
                let (count, event) = self.next_trailers(&bytes[at + 1..])?;
                let shifted = match event {
                    Some(Event::Trailers(range)) => {
                        Some(Event::Trailers(range.start + at + 1..range.end + at + 1))
                    }
                    other => other,
                };
                return Ok((at + 1 + count, shifted));
            }
        }
        Ok((bytes.len(), None))
    }

    fn in_trailers(&self) -> bool {
        self.state >= State::TrailerStart
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
            return State::TrailerStart;
        }
        self.excess = self.excess.saturating_sub(FREE_PER_CHUNK.saturating_add(self.left));
        State::Data
    }

    fn next_trailers(&mut self, bytes: &[u8]) -> Result<(usize, Option<Event>), BodyError> {
        for (at, byte) in bytes.iter().enumerate() {
            if self.state == State::EndLf {
                if *byte != b'\n' {
                    return Err(BodyError::Trailer);
                }
                return Ok((at + 1, Some(Event::End)));
            }
            // The CRLF that ends the section is no trailer; what came before it is told first.
            if self.state == State::TrailerStart && *byte == b'\r' {
                if at > 0 {
                    return Ok((at, Some(Event::Trailers(0..at))));
                }
                self.state = State::EndLf;
                continue;
            }
            self.trailer_byte(*byte)?;
        }
        let event = (!bytes.is_empty() && self.state != State::EndLf)
            .then_some(Event::Trailers(0..bytes.len()));
        Ok((bytes.len(), event))
    }

    fn trailer_byte(&mut self, byte: u8) -> Result<(), BodyError> {
        self.trailer_bytes += 1;
        if self.trailer_bytes > TRAILER_BYTES {
            return Err(BodyError::TrailersTooLarge);
        }
        self.state = match (self.state, byte) {
            (State::TrailerStart, _) if TOKEN[byte as usize] => {
                self.name_length = 0;
                self.keep_name(byte)
            }
            (State::TrailerName, _) if TOKEN[byte as usize] => self.keep_name(byte),
            (State::TrailerName, b':') => {
                let name = &self.name[..NAME_KEPT.min(self.name_length.into())];
                let forbidden =
                    FORBIDDEN.iter().any(|bad| name.eq_ignore_ascii_case(bad.as_bytes()));
                if forbidden || is_reserved(name) {
                    return Err(BodyError::TrailerForbidden);
                }
                State::TrailerValue
            }
            (State::TrailerValue, b'\r') => State::TrailerLf,
            (State::TrailerValue, _) if is_text(byte) => State::TrailerValue,
            (State::TrailerLf, b'\n') => State::TrailerStart,
            _ => return Err(BodyError::Trailer),
        };
        Ok(())
    }

    fn keep_name(&mut self, byte: u8) -> State {
        if let Some(slot) = self.name.get_mut(self.name_length as usize) {
            *slot = byte;
        }
        self.name_length = self.name_length.saturating_add(1);
        State::TrailerName
    }
}
