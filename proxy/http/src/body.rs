//! Finds the end of a body in passing.

mod chunked;

use std::ops::Range;

use crate::head::Framing;
use chunked::Chunked;

/// What a body is made of, for the relay and for the translation to another version of HTTP.
/// A message is a head and then these; codecs of other versions yield the same events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Content, without framing.
    Data(Range<usize>),
    /// A piece of the trailer section: lines as sent, possibly cut anywhere.
    Trailers(Range<usize>),
    /// The message is complete.
    End,
}

/// Why a body's framing was refused.
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
    #[error("a trailer that only a head may have")]
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

/// Walks over the bytes of one body as they arrive, cut anywhere, and stops behind its last one.
///
/// ```text
/// Length(n) ──(n bytes)──────────────────► Done
/// Chunked   ──(0 chunk, trailers)────────► Done
/// UntilClose ──(finish at end of stream)─► Done
/// ```
#[derive(Debug, Clone)]
pub struct BodyWalker {
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    Length(u64),
    Chunked(Chunked),
    UntilClose,
    Done,
}

impl BodyWalker {
    /// At the first byte of a body framed so.
    pub fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::None | Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Chunked(Chunked::default()),
            Framing::UntilClose => State::UntilClose,
        };
        Self { state }
    }

    /// Whether the whole body has been seen.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Takes the end of the stream. Whether that is a proper end of the body.
    pub fn finish(&mut self) -> bool {
        if matches!(self.state, State::UntilClose) {
            self.state = State::Done;
        }
        self.is_done()
    }

    /// The next event in `bytes`, and how many of them it and the framing before it take up.
    /// `None`: all of them are framing, and more are needed. Nothing follows `End`.
    pub fn next(&mut self, bytes: &[u8]) -> Result<(usize, Option<Event>), BodyError> {
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

    /// How many of `bytes` belong to the body, framing and all.
    pub fn walk(&mut self, bytes: &[u8]) -> Result<usize, BodyError> {
        let mut at = 0;
        while at < bytes.len() && !self.is_done() {
            at += self.next(&bytes[at..])?.0;
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests;
