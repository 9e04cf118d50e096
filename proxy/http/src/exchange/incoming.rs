//! The body of an HTTP/1 message on its way to an HTTP/2 stream.

use std::task::{Context, Poll, ready};

use leno_h2::{Piece, Stream};

use super::passage::{Cut, Mode, Moved, OnConn, OnStream, Passage, poll_read};
use crate::body::{BodyError, BodyWalker, Event};
use crate::failure::Cause;
use crate::received::Received;
use crate::translate::trailers;

/// How far a body was passed on, and the trailers that have arrived so far.
#[derive(Debug)]
pub(super) struct Incoming {
    walker: BodyWalker,
    trailers: Vec<u8>,
    /// How many bytes at the start of the received bytes are done with, because they were passed on or belong to the
    /// head.
    at: usize,
    /// Whether the stream accepts no more bytes for now.
    is_stuck: bool,
    moved: Moved,
}

impl Incoming {
    /// For a message whose head has `head` bytes. `held` is how many of them are still at the start of the received
    /// bytes: all, or 0 if they were consumed.
    pub(super) fn new(head: usize, held: usize, walker: BodyWalker) -> Self {
        Self { walker, trailers: Vec::new(), at: held, is_stuck: false, moved: Moved::new(head) }
    }

    /// Called when the bytes that follow are no longer HTTP. They end with the connection.
    pub(super) fn take_over(&mut self, walker: BodyWalker) {
        self.walker = walker;
    }

    /// Drops the bytes that were passed on.
    pub(super) fn release(&mut self, received: &mut Received) {
        if self.at > 0 {
            received.consume(self.at);
            self.at = 0;
            self.moved.used = true;
        }
    }

    /// Sends what was received, unless the stream's queue is full.
    fn poll_send(
        &mut self,
        received: &Received,
        to: &mut Stream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Cut>> {
        let mut goes_on = true;
        while goes_on && !self.walker.is_done() {
            if let Err(reset) = ready!(to.poll_capacity(cx)) {
                return Poll::Ready(Err(Cut::Sink(Cause::Reset(reset))));
            }
            let bytes = received.bytes().get(self.at..).unwrap_or_default();
            let (count, event) = self.walker.next(bytes)?;
            self.at += count;
            self.moved.total += count as u64;
            goes_on = event.is_some();
            let ended = self.walker.is_done();
            match event {
                // With a known length, the last content also ends the stream. Chunks may be followed by trailers, so
                // there the end of the stream comes with `Event::End`.
                Some(Event::Data(at)) => {
                    to.send_data(Piece::copied(bytes.get(at).unwrap_or_default()), ended)
                }
                Some(Event::Trailers(at)) => {
                    self.trailers.extend_from_slice(bytes.get(at).unwrap_or_default())
                }
                Some(Event::RemovedTrailer(_)) | None => {}
                Some(Event::End) if self.trailers.is_empty() => {
                    to.send_data(Piece::default(), true);
                }
                Some(Event::End) => to.send_trailers(trailers::to_h2(&self.trailers)),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn discard(&mut self, received: &Received) -> Result<(), BodyError> {
        let bytes = received.bytes().get(self.at..).unwrap_or_default();
        let count = self.walker.walk(bytes)?;
        self.at += count;
        self.moved.total += count as u64;
        Ok(())
    }
}

impl<F: OnConn, T: OnStream> Passage<F, T> for Incoming {
    fn poll_pass(
        &mut self,
        from: &mut F,
        to: &mut T,
        mode: Mode,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Cut>> {
        let from = from.conn();
        let Some(to) = to.stream() else { return Poll::Pending };
        loop {
            if mode == Mode::Discard {
                self.discard(&from.received)?;
            } else {
                let sent = self.poll_send(&from.received, to, cx);
                self.is_stuck = sent.is_pending();
                ready!(sent)?;
            }
            let done = self.walker.is_done();
            if mode.releases(done, &from.received) {
                self.release(&mut from.received);
            }
            if done {
                return Poll::Ready(Ok(()));
            }
            ready!(poll_read(from, &mut self.walker, &mut self.moved, cx))?;
            if self.walker.is_done() {
                to.send_data(Piece::default(), true);
            }
        }
    }

    /// The bytes wait in the queue of the stream, and the HTTP/2 connection limits how long a peer may leave them
    /// there.
    fn is_blocked(&self) -> bool {
        false
    }

    fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    fn is_read(&self) -> bool {
        self.walker.is_done()
    }

    fn moved(&self) -> &Moved {
        &self.moved
    }

    fn settle(&mut self, from: &mut F) {
        self.release(&mut from.conn().received);
    }
}
