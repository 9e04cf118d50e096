//! One direction of an exchange between two HTTP/1 connections. It knows which bytes of a message may be forwarded, and
//! which were forwarded.
#![expect(
    clippy::indexing_slicing,
    reason = "written <= approved <= bytes received; the pieces of the plan are within the head"
)]

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::passage::{Cut, Mode, Moved, OnConn, Passage, poll_read};
use crate::Io;
use crate::body::{BodyError, BodyWalker, Event};
use crate::conn::poll_write_some;
use crate::edit::{Piece, Plan};
use crate::failure::Cause;
use crate::received::Received;

/// The number of slices of one vectored write. A head with more edits needs a second write.
const SLICES: usize = 16;

/// A message on its way. Positions are counted from the first byte that the source still holds.
///
/// ```text
/// source:  | written | approved, to be written | not looked at, or of the next message |
///          0       written                  approved
/// ```
#[derive(Debug)]
pub(super) struct Pump<'a> {
    pub(super) walker: BodyWalker,
    plan: Plan<'a>,
    /// How many pieces of the plan (the edited head) were written, and how many bytes of the next piece.
    pieces_written: usize,
    piece_at: usize,
    written: usize,
    approved: usize,
    /// Whether written bytes may still be in a buffer of the connection.
    unflushed: bool,
    pub(super) moved: Moved,
}

impl<'a> Pump<'a> {
    /// A pump for a message whose head has `head` bytes, followed by a body whose end `walker` finds.
    pub(super) fn new(head: usize, plan: Plan<'a>, walker: BodyWalker) -> Self {
        Self {
            walker,
            written: plan.resume,
            plan,
            pieces_written: 0,
            piece_at: 0,
            approved: head,
            unflushed: false,
            moved: Moved::new(head),
        }
    }

    /// Examines bytes that were received, and removes trailers that must not be forwarded. Bytes after the message's
    /// end are not changed.
    pub(super) fn approve(&mut self, received: &mut Received) -> Result<(), BodyError> {
        while !self.walker.is_done() {
            let bytes = received.bytes().get(self.approved..).unwrap_or_default();
            let (count, event) = self.walker.next(bytes)?;
            self.moved.total += count as u64;
            self.approved += count;
            match event {
                Some(Event::RemovedTrailer(range)) => {
                    let start = self.approved - range.len();
                    received.remove(start..self.approved);
                    self.approved = start;
                }
                Some(_) => {}
                None => break,
            }
        }
        Ok(())
    }

    /// Whether the source holds no other bytes than those of this message.
    pub(super) fn is_last(&self, received: &Received) -> bool {
        self.approved == received.bytes().len()
    }

    /// Treats all approved bytes as written, without writing them.
    pub(super) fn discard(&mut self) {
        self.pieces_written = self.plan.pieces.len();
        self.written = self.approved;
        self.unflushed = false;
    }

    /// Drops written bytes from the source.
    pub(super) fn release(&mut self, received: &mut Received) {
        if self.written > 0 && self.pieces_written == self.plan.pieces.len() {
            received.consume(self.written);
            self.approved -= self.written;
            self.written = 0;
            self.moved.used = true;
        }
    }

    /// Writes all approved bytes. Ready when they are written and flushed.
    fn poll_write<S: Io>(
        &mut self,
        received: &Received,
        io: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let bytes = received.bytes();
        loop {
            let count = if self.pieces_written < self.plan.pieces.len() {
                ready!(self.poll_write_pieces(bytes, io, cx))?
            } else if self.written < self.approved {
                let rest = IoSlice::new(&bytes[self.written..self.approved]);
                ready!(poll_write_some(io, &[rest], cx))?
            } else {
                break;
            };
            self.account(count, bytes);
            self.unflushed = true;
        }
        if self.unflushed {
            ready!(Pin::new(io).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_pieces<S: Io>(
        &self,
        bytes: &[u8],
        io: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let left = &self.plan.pieces[self.pieces_written..];
        for (slice, piece) in slices.iter_mut().zip(left) {
            *slice = IoSlice::new(piece.of(bytes));
        }
        slices[0].advance(self.piece_at);
        let mut count = left.len().min(SLICES);
        if count < SLICES && self.written < self.approved {
            slices[count] = IoSlice::new(&bytes[self.written..self.approved]);
            count += 1;
        }
        poll_write_some(io, &slices[..count], cx)
    }

    fn account(&mut self, mut count: usize, bytes: &[u8]) {
        self.moved.written += count as u64;
        while let Some(piece) = self.plan.pieces.get(self.pieces_written) {
            let left = piece.of(bytes).len() - self.piece_at;
            if count < left {
                self.piece_at += count;
                return;
            }
            count -= left;
            self.pieces_written += 1;
            self.piece_at = 0;
        }
        self.written += count;
    }
}

impl<F: OnConn, T: OnConn> Passage<F, T> for Pump<'_> {
    fn poll_pass(
        &mut self,
        from: &mut F,
        to: &mut T,
        mode: Mode,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Cut>> {
        let (from, to) = (from.conn(), to.conn());
        loop {
            if mode == Mode::Discard {
                self.discard();
            } else {
                let written = ready!(self.poll_write(&from.received, &mut to.io, cx));
                written.map_err(|error| Cut::Sink(Cause::Broken(error)))?;
            }
            let done = self.walker.is_done();
            if mode.releases(done, &from.received) {
                self.release(&mut from.received);
            }
            if done {
                return Poll::Ready(Ok(()));
            }
            ready!(poll_read(from, &mut self.walker, &mut self.moved, cx))?;
            self.approve(&mut from.received)?;
        }
    }

    fn is_blocked(&self) -> bool {
        self.written < self.approved || self.pieces_written < self.plan.pieces.len()
    }

    fn is_read(&self) -> bool {
        self.walker.is_done()
    }

    fn moved(&self) -> &Moved {
        &self.moved
    }

    fn settle(&mut self, from: &mut F) {
        self.discard();
        self.release(&mut from.conn().received);
    }
}

impl Piece<'_> {
    fn of<'b>(&'b self, bytes: &'b [u8]) -> &'b [u8] {
        match self {
            Piece::Received(start, end) => &bytes[*start as usize..*end as usize],
            Piece::Given(given) => given,
        }
    }
}
