//! An HTTP/2 message on its way to an HTTP/1 connection.
#![expect(
    clippy::indexing_slicing,
    reason = "a batch has PIECES pieces at most, and a line of SIZE_LINE holds each number"
)]

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use leno_h2::Piece;
use leno_hpack::Block;
use leno_tap::BodyCopy;
use smallvec::SmallVec;

use super::passage::{Cut, Mode, Moved, OnConn, OnStream, Passage};
use crate::Io;
use crate::body::BodyError;
use crate::call::BodyPart;
use crate::conn::poll_write_some;
use crate::failure::Cause;
use crate::head::Framing;
use crate::translate::trailers;
use crate::writer::Rendered;

/// The number of pieces of content in one write: as many as one read of a connection usually yields.
const PIECES: usize = 8;
/// The number of slices of one write: the head, the size of the chunk, the pieces and the tail.
const SLICES: usize = PIECES + 3;
/// The length of a line with a chunk's size: its digits and the line end.
const SIZE_LINE: usize = 18;

/// A batch of bytes that is written at once: `head size-line pieces tail`, each of which may be empty.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// How the message is framed. A length is what is still to come.
    framing: Framing,
    head: Rendered,
    /// The line with the size of the chunk, of which the first `size_length` bytes are used.
    size_line: [u8; SIZE_LINE],
    size_length: usize,
    pieces: SmallVec<[Piece; PIECES]>,
    /// What follows the content: the end of the chunk, and the last chunk with the trailers.
    tail: SmallVec<[u8; 16]>,
    /// The number of bytes of content in `pieces`.
    content: usize,
    /// Whether the end of the message is in this batch or was in an earlier one.
    ended: bool,
    /// Whether writing has begun, so that no more content can join the batch.
    sealed: bool,
    /// How many bytes of the batch were written.
    done: usize,
    /// Whether written bytes may still be in a buffer of the connection.
    unflushed: bool,
    /// The copy of the content for an operator who watches the request (a tap), if there is one.
    copy: Option<Arc<BodyCopy>>,
    /// The sums over all batches.
    pub(super) moved: Moved,
}

impl Outgoing {
    /// An empty batch. Content is also copied to `copy`.
    pub(super) fn new(copy: Option<Arc<BodyCopy>>) -> Self {
        copy.iter().for_each(|copy| copy.begin());
        Self {
            framing: Framing::None,
            head: Rendered::default(),
            size_line: [0; SIZE_LINE],
            size_length: 0,
            pieces: SmallVec::new(),
            tail: SmallVec::new(),
            content: 0,
            ended: true,
            sealed: false,
            done: 0,
            unflushed: false,
            copy,
            moved: Moved::default(),
        }
    }

    /// Begins a message, after the previous one was written. A message without a body ends with its head.
    pub(super) fn begin(&mut self, head: Rendered, framing: Framing) {
        self.head = head;
        self.framing = framing;
        self.ended = framing == Framing::None;
    }

    /// Whether more content can join the batch.
    fn has_room(&self) -> bool {
        !self.sealed && !self.ended && self.pieces.len() < PIECES
    }

    fn push(&mut self, piece: Piece) -> Result<(), BodyError> {
        if let Framing::Length(left) = &mut self.framing {
            *left = left.checked_sub(piece.len() as u64).ok_or(BodyError::Length)?;
        }
        self.moved.total += piece.len() as u64;
        if !piece.is_empty() {
            if let Some(copy) = &self.copy {
                copy.add(&piece);
            }
            self.content += piece.len();
            self.pieces.push(piece);
        }
        Ok(())
    }

    /// Called when the content is complete; fails if it is shorter than its length. Only chunks can be followed by
    /// trailers.
    fn end(&mut self, trailers: Option<&Block>) -> Result<(), BodyError> {
        self.ended = true;
        match self.framing {
            Framing::Length(1..) => return Err(BodyError::Length),
            Framing::Chunked => {
                let chunk_end: &[u8] = if self.content > 0 { b"\r\n0\r\n" } else { b"0\r\n" };
                self.tail.extend_from_slice(chunk_end);
                if let Some(trailers) = trailers {
                    trailers::to_h1(trailers, &mut self.tail);
                }
                self.tail.extend_from_slice(b"\r\n");
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether there is nothing to write.
    fn is_empty(&self) -> bool {
        self.head.bytes().is_empty() && self.content == 0 && self.tail.is_empty() && !self.unflushed
    }

    /// Whether the whole message was written.
    fn is_finished(&self) -> bool {
        self.ended && self.is_empty()
    }

    /// Writes the batch. Ready when it is written and flushed; returns the bytes of content in it.
    fn poll_write<S: Io>(&mut self, io: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if !self.sealed {
            self.seal();
        }
        let size = self.head.bytes().len() + self.size_length + self.content + self.tail.len();
        while self.done < size {
            let mut slices = [IoSlice::new(&[]); SLICES];
            slices[0] = IoSlice::new(self.head.bytes());
            slices[1] = IoSlice::new(&self.size_line[..self.size_length]);
            for (slice, piece) in slices[2..].iter_mut().zip(&self.pieces) {
                *slice = IoSlice::new(piece);
            }
            slices[2 + self.pieces.len()] = IoSlice::new(&self.tail);
            let mut left = &mut slices[..3 + self.pieces.len()];
            IoSlice::advance_slices(&mut left, self.done);
            let count = ready!(poll_write_some(io, left, cx))?;
            self.done += count;
            self.moved.written += count as u64;
            self.unflushed = true;
        }
        if self.unflushed {
            ready!(Pin::new(io).poll_flush(cx))?;
        }
        let content = self.content;
        self.clear();
        Poll::Ready(Ok(content))
    }

    /// Frames the content of the batch as one chunk, if the message is chunked.
    fn seal(&mut self) {
        self.sealed = true;
        if self.framing != Framing::Chunked || self.content == 0 {
            return;
        }
        if !self.ended {
            self.tail.extend_from_slice(b"\r\n");
        }
        let mut digits = [0; 16];
        let mut at = digits.len();
        let mut left = self.content;
        while left > 0 {
            at -= 1;
            digits[at] = b"0123456789abcdef"[left & 15];
            left >>= 4;
        }
        let length = digits.len() - at;
        self.size_line[..length].copy_from_slice(&digits[at..]);
        self.size_line[length..length + 2].copy_from_slice(b"\r\n");
        self.size_length = length + 2;
    }

    fn clear(&mut self) {
        self.head = Rendered::default();
        self.size_length = 0;
        self.pieces.clear();
        self.tail.clear();
        self.content = 0;
        self.sealed = false;
        self.done = 0;
        self.unflushed = false;
    }
}

impl<F: OnStream, T: OnConn> Passage<F, T> for Outgoing {
    /// This passage holds nothing for a retry: the source of the pieces holds them itself.
    fn poll_pass(
        &mut self,
        from: &mut F,
        to: &mut T,
        _mode: Mode,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Cut>> {
        let cut = |reset| Err(Cut::Source(Cause::Reset(reset)));
        loop {
            while self.has_room() {
                let Poll::Ready(part) = from.poll_part(cx) else { break };
                self.moved.reads += 1;
                match part {
                    Ok(BodyPart::Data(piece)) => self.push(piece)?,
                    Ok(BodyPart::End) => self.end(from.trailers())?,
                    Err(reset) => return Poll::Ready(cut(reset)),
                }
            }
            if self.is_finished() {
                return Poll::Ready(Ok(()));
            }
            if self.is_empty() {
                return Poll::Pending;
            }
            match self.poll_write(&mut to.conn().io, cx) {
                Poll::Pending => return from.poll_stalled(cx).map(cut),
                Poll::Ready(Ok(content)) => from.release(content),
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(Cut::Sink(Cause::Broken(error))));
                }
            }
        }
    }

    fn is_blocked(&self) -> bool {
        self.sealed
    }

    fn is_read(&self) -> bool {
        self.ended
    }

    fn moved(&self) -> &Moved {
        &self.moved
    }
}
