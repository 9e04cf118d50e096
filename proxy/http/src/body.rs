//! Finds the end of a body while its bytes pass through.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "positions within received bytes, and counters with a bound"
)]

mod chunked;

use std::ops::Range;
use std::sync::Arc;

use leno_tap::BodyCopy;

use crate::head::{ConnectionOptions, Framing, RequestHead, ResponseHead};
use chunked::Chunked;

/// One part of a body, for the relay and for the translation to the other version of HTTP. A message is a head followed
/// by these events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Content, without framing.
    Data(Range<usize>),
    /// Whole lines of the trailer section, as sent.
    Trailers(Range<usize>),
    /// A line of the trailer section that must not be forwarded: a field that is not permitted in trailers (RFC 9110
    /// section 6.5.1), or a field that the head's `Connection` names.
    RemovedTrailer(Range<usize>),
    /// The message is complete.
    End,
}

impl Event {
    /// The same event, with positions in bytes that begin `by` bytes earlier.
    fn shifted(self, by: usize) -> Self {
        let shift = |range: Range<usize>| range.start + by..range.end + by;
        match self {
            Self::Data(range) => Self::Data(shift(range)),
            Self::Trailers(range) => Self::Trailers(shift(range)),
            Self::RemovedTrailer(range) => Self::RemovedTrailer(shift(range)),
            Self::End => Self::End,
        }
    }
}

/// Why the framing of a body was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its variant means")]
pub enum BodyError {
    #[error("the size of a chunk is not a hexadecimal number")]
    ChunkSize,
    #[error("a chunk is not followed by CRLF")]
    ChunkEnd,
    #[error("a line of chunked framing holds a control character or ends without CRLF")]
    ChunkLine,
    #[error("chunk extensions are too large for what they come with")]
    ChunkExtensions,
    #[error("the trailer section is too large")]
    TrailersTooLarge,
    #[error("a malformed trailer")]
    Trailer,
    #[error("a trailer that frames or routes the message, or that only the mesh may send")]
    TrailerForbidden,
    #[error("the body is not as long as its head says")]
    Length,
}

impl BodyError {
    /// A name for metrics and the `leno-error` header.
    pub fn label(self) -> &'static str {
        match self {
            Self::ChunkSize => "chunk-size",
            Self::ChunkEnd => "chunk-end",
            Self::ChunkLine => "chunk-line",
            Self::ChunkExtensions => "chunk-extensions",
            Self::TrailersTooLarge => "trailers-too-large",
            Self::Trailer => "trailer",
            Self::TrailerForbidden => "trailer-forbidden",
            Self::Length => "body-length",
        }
    }
}

/// Examines the bytes of one body as they arrive, in pieces of any size, and stops after the last byte of the body.
///
/// ```text
/// Length(n) ──(n bytes)──────────────────► Done
/// Chunked   ──(0 chunk, trailers)────────► Done
/// UntilClose ──(finish at end of stream)─► Done
/// ```
#[derive(Debug, Clone)]
pub struct BodyWalker {
    state: State,
    /// The copy of the content for an operator who watches the request (a tap), if there is one.
    copy: Option<Arc<BodyCopy>>,
}

#[derive(Debug, Clone)]
enum State {
    Length(u64),
    Chunked(Chunked),
    UntilClose,
    Done,
}

impl BodyWalker {
    /// Starts at the first byte of a body with this framing.
    pub fn new(framing: Framing) -> Self {
        Self::with_options(framing, None)
    }

    /// Starts at the first byte of a request's body. `bytes` are those from which the head was parsed.
    pub(crate) fn of_request(head: &RequestHead, bytes: &[u8]) -> Self {
        let fields = (&head.headers, &head.meaning);
        let framing = head.framing();
        Self::with_options(framing, ConnectionOptions::of_head(fields, framing, bytes))
    }

    /// Starts at the first byte of a response's body with this framing. `bytes` are those from which the head was
    /// parsed.
    pub(crate) fn of_response(head: &ResponseHead, bytes: &[u8], framing: Framing) -> Self {
        let fields = (&head.headers, &head.meaning);
        Self::with_options(framing, ConnectionOptions::of_head(fields, framing, bytes))
    }

    fn with_options(framing: Framing, options: Option<ConnectionOptions>) -> Self {
        let state = match framing {
            Framing::None | Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Chunked(Chunked::new(options)),
            Framing::UntilClose => State::UntilClose,
        };
        Self { state, copy: None }
    }

    /// Also copies the content to `copy`.
    pub(crate) fn copying_to(self, copy: Option<Arc<BodyCopy>>) -> Self {
        copy.iter().for_each(|copy| copy.begin());
        Self { copy, ..self }
    }

    /// Whether the whole body has been seen.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Handles the end of the stream. Returns whether the body may end there.
    pub fn finish(&mut self) -> bool {
        if matches!(self.state, State::UntilClose) {
            self.state = State::Done;
        }
        self.is_done()
    }

    /// The next event in `bytes`, and how many bytes it and the framing before it occupy. `None` means that more bytes
    /// are needed: the counted bytes are framing, and the others begin a trailer line and must be passed again. Once
    /// the body is complete, every call returns `End`.
    pub fn next(&mut self, bytes: &[u8]) -> Result<(usize, Option<Event>), BodyError> {
        let (count, event) = self.step(bytes)?;
        if let (Some(copy), Some(Event::Data(content))) = (&self.copy, &event) {
            copy.add(bytes.get(content.clone()).unwrap_or_default());
        }
        Ok((count, event))
    }

    fn step(&mut self, bytes: &[u8]) -> Result<(usize, Option<Event>), BodyError> {
        match &mut self.state {
            State::Done => Ok((0, Some(Event::End))),
            _ if bytes.is_empty() => Ok((0, None)),
            State::Length(left) => {
                let count = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= count as u64;
                if *left == 0 {
                    self.state = State::Done;
                }
                Ok((count, Some(Event::Data(0..count))))
            }
            State::UntilClose => Ok((bytes.len(), Some(Event::Data(0..bytes.len())))),
            State::Chunked(chunked) => {
                let (count, event) = chunked.next(bytes)?;
                if event == Some(Event::End) {
                    self.state = State::Done;
                }
                Ok((count, event))
            }
        }
    }

    /// How many of `bytes` belong to the body, including framing. While the body is not [done](Self::is_done), the
    /// remaining bytes begin a trailer line and must be passed again.
    pub fn walk(&mut self, bytes: &[u8]) -> Result<usize, BodyError> {
        let mut at = 0;
        while !self.is_done() {
            let (count, event) = self.next(bytes.get(at..).unwrap_or_default())?;
            at += count;
            if event.is_none() {
                break;
            }
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests;
