//! Copies of one request under way to several servers, of which one answers the client.
//!
//! ```text
//! client ── request, held whole ──► copy ──► server
//!    ▲         put aside        └─► copy ──► server
//!    └──────────────────────────────┘ the one whose response is forwarded takes the client
//! ```

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use leno_h2::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::Io;
use crate::call::Call;
use crate::conn::Conn;
use crate::exchange::Exchange;
use crate::failure::{Cause, Failure, Place};
use crate::head::RequestHead;
use crate::received::Received;

/// Whether a copy is the one whose response goes to the client. To be set before the
/// [`Judge`](crate::Judge) lets the response pass.
pub type Ticket = Rc<Cell<bool>>;

/// The client's connection, of copies of its request.
type Shared<T> = Rc<RefCell<Option<T>>>;

/// Makes copies of a request of HTTP/1 that is here whole.
#[derive(Debug)]
pub struct ConnCopies<'c, S> {
    io: Shared<&'c mut S>,
    received: &'c mut Received,
    read_closed: &'c mut bool,
    lost: &'c mut bool,
    last: &'c mut bool,
    exchanges: &'c mut u64,
    /// Bytes of the request.
    length: usize,
}

/// A client's connection as a copy sees it: what the copy says is heard once it has the ticket.
#[derive(Debug)]
pub struct Late<'c, S> {
    io: Shared<&'c mut S>,
    mine: Option<&'c mut S>,
    ticket: Ticket,
}

impl<S: Io> Conn<S> {
    /// Puts the client aside for copies of `request`, which was [held](Conn::hold).
    pub fn copies(&mut self, request: &RequestHead) -> ConnCopies<'_, S> {
        let length = self.whole_request(request).unwrap_or(request.len());
        ConnCopies {
            io: Rc::new(RefCell::new(Some(&mut self.io))),
            received: &mut self.received,
            read_closed: &mut self.read_closed,
            lost: &mut self.lost,
            last: &mut self.last,
            exchanges: &mut self.exchanges,
            length,
        }
    }
}

impl<'c, S: Io> ConnCopies<'c, S> {
    /// One more copy.
    #[must_use]
    pub fn copy(&self, ticket: &Ticket) -> Conn<Late<'c, S>> {
        let io = Late { io: Rc::clone(&self.io), mine: None, ticket: Rc::clone(ticket) };
        Conn::with_received(io, &self.received.bytes()[..self.length])
    }

    /// Ready when the client has broken off. That it only sends no more is no reason to stop.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        let Some(io) = self.io.take() else { return Poll::Pending };
        let mut gone = Poll::Pending;
        while !*self.read_closed && self.received.has_room() {
            match self.received.poll_fill(io, cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(count)) => *self.read_closed = count == 0,
                Poll::Ready(Err(error)) => {
                    gone = Poll::Ready(Failure::new(Place::Client, Cause::Broken(error)));
                    break;
                }
            }
        }
        self.io.replace(Some(io));
        gone
    }

    /// All copies have ended, `winner` with a response for the client. Where none has, nothing is to be
    /// done: the request is here as it was.
    pub fn finish(self, winner: Conn<Late<'c, S>>, done: &Exchange) {
        // Else the client is still to be answered, for which its request is wanted.
        if done.response_started || done.failure.is_none() {
            self.received.consume(self.length);
            self.received.settle();
            *self.exchanges += winner.exchanges;
            *self.last = winner.last;
            *self.lost |= winner.lost;
        }
    }
}

impl<S> Late<'_, S> {
    /// The client, where this copy answers it.
    fn client(&mut self) -> Option<&mut S> {
        if self.mine.is_none() && self.ticket.get() {
            self.mine = self.io.take();
        }
        self.mine.as_deref_mut()
    }
}

/// The request is here whole, so that nothing is to be read. What follows it is another request.
impl<S: Io> AsyncRead for Late<'_, S> {
    fn poll_read(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        _out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

/// What is written before the copy has its ticket are interim responses, which nobody hears.
impl<S: Io> AsyncWrite for Late<'_, S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.client() {
            Some(client) => Pin::new(client).poll_write(cx, bytes),
            None => Poll::Ready(Ok(bytes.len())),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.client() {
            Some(client) => Pin::new(client).poll_write_vectored(cx, slices),
            None => Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum())),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.client() {
            Some(client) => Pin::new(client).poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.client() {
            Some(client) => Pin::new(client).poll_shutdown(cx),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl<S: Io> Io for Late<'_, S> {
    fn poll_read_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

/// Makes copies of a request of HTTP/2 that is here whole.
#[derive(Debug)]
pub struct CallCopies<'c> {
    call: &'c mut Call,
    stream: Shared<Stream>,
}

impl Call {
    /// Puts the client aside for copies of its request, which was [held](Call::hold_whole).
    pub fn copies(&mut self) -> CallCopies<'_> {
        let stream = Rc::new(RefCell::new(self.take_stream()));
        CallCopies { call: self, stream }
    }
}

impl CallCopies<'_> {
    /// One more copy.
    #[must_use]
    pub fn copy(&self) -> Call {
        self.call.copied(&self.stream)
    }

    /// Ready when the client has given up.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        let Some(mut stream) = self.stream.take() else { return Poll::Pending };
        let gone = match stream.poll_closed(cx) {
            Poll::Ready(Some(reset)) => {
                Poll::Ready(Failure::new(Place::Client, Cause::Reset(reset)))
            }
            _ => Poll::Pending,
        };
        self.stream.replace(Some(stream));
        gone
    }

    /// All copies have ended, `winner` with a response for the client.
    pub fn finish(self, winner: Option<Call>) {
        let stream = winner.and_then(|mut winner| winner.take_stream());
        self.call.give_stream(stream.or_else(|| self.stream.take()));
    }
}

impl Exchange {
    /// One that ended before a server was involved.
    #[must_use]
    pub fn ended(failure: Failure) -> Self {
        Self { failure: Some(failure), ..Self::new(tokio::time::Instant::now()) }
    }
}
