//! Copies of one request, which are sent to several servers at once. One of them answers the client.
//!
//! ```text
//! client ── request, held completely ──► copy ──► server
//!    ▲                               └─► copy ──► server
//!    └── responds: the copy whose response the judge forwards
//! ```
#![expect(clippy::arithmetic_side_effects, reason = "counts of requests")]

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use leno_h2::Stream;
use leno_transport::Presence;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::Io;
use crate::call::{Call, poll_gone};
use crate::conn::Conn;
use crate::exchange::Exchange;
use crate::failure::{Cause, Failure};
use crate::head::RequestHead;

/// Whether this copy's response goes to the client. The caller sets the ticket before its [`Judge`](crate::Judge)
/// forwards the response.
pub type Ticket = Rc<Cell<bool>>;

/// The client's end, which the copies of its request share. `None` once a copy has taken it to answer.
type SharedClient<T> = Rc<RefCell<Option<T>>>;

/// Creates copies of an HTTP/1 request that has been received completely.
#[derive(Debug)]
pub struct ConnCopies<'c, S> {
    client: SharedClient<Client<'c, S>>,
}

/// A client's connection, as a copy uses it. Bytes that the copy writes reach the client once the copy has the ticket.
#[derive(Debug)]
pub struct CopyClient<'c, S> {
    /// The client, as long as no copy has taken it.
    client: SharedClient<Client<'c, S>>,
    /// The client, once this copy has taken it.
    mine: Option<Client<'c, S>>,
    ticket: Ticket,
}

/// A client's connection. It holds the request and the bytes after it.
#[derive(Debug)]
struct Client<'c, S> {
    conn: &'c mut Conn<S>,
    /// The length of the request.
    length: usize,
}

impl<S: Io> Conn<S> {
    /// Prepares copies of `request`, which was [held](Conn::hold). The client belongs to the copies until
    /// [`ConnCopies::finish`].
    pub fn copies(&mut self, request: &RequestHead) -> ConnCopies<'_, S> {
        let length = self.whole_request(request).unwrap_or(request.len());
        ConnCopies { client: Rc::new(RefCell::new(Some(Client { conn: self, length }))) }
    }
}

impl<'c, S: Io> ConnCopies<'c, S> {
    /// Creates one more copy.
    ///
    /// # Panics
    /// If a copy has already begun to answer the client.
    #[must_use]
    pub fn copy(&self, ticket: &Ticket) -> Conn<CopyClient<'c, S>> {
        let client = Rc::clone(&self.client);
        let late = CopyClient { client, mine: None, ticket: Rc::clone(ticket) };
        let client = self.client.borrow();
        let client = client.as_ref().expect("no copy is made once one answers the client");
        Conn::with_received(late, client.request())
    }

    /// Ready when the client has closed or broken its connection. A client that has only ended its sending direction
    /// still waits for its response.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        match &mut *self.client.borrow_mut() {
            Some(client) => client.conn.poll_gone(cx),
            None => Poll::Pending,
        }
    }

    /// Must be called when all copies have ended. `winner` is the copy that has a response for the client. If there is
    /// none, this need not be called, because the request is still held unchanged.
    pub fn finish(self, winner: Conn<CopyClient<'c, S>>, done: &Exchange) {
        let client = winner.io.mine.or_else(|| self.client.take());
        // Otherwise the client has not been answered yet, and its request is still needed.
        if let Some(client) = client.filter(|_| done.response_started || done.failure.is_none()) {
            let conn = client.conn;
            conn.received.consume(client.length);
            conn.received.settle();
            conn.exchanges += winner.exchanges;
            conn.last = winner.last;
            conn.lost |= winner.lost;
        }
    }
}

impl<S: Io> Client<'_, S> {
    fn request(&self) -> &[u8] {
        self.conn.received.bytes().get(..self.length).unwrap_or_default()
    }

    /// Whether the client has ended its stream and sent nothing after the request.
    fn has_ended(&self) -> bool {
        self.conn.read_closed && self.conn.received.bytes().len() == self.length
    }
}

impl<'c, S> CopyClient<'c, S> {
    /// The client, if this copy answers the client.
    fn client(&mut self) -> Option<&mut Client<'c, S>> {
        if self.mine.is_none() && self.ticket.get() {
            self.mine = self.client.take();
        }
        self.mine.as_mut()
    }

    /// The client's stream, for writes.
    fn writer(&mut self) -> Option<Pin<&mut S>>
    where
        S: Unpin,
    {
        self.client().map(|client| Pin::new(&mut client.conn.io))
    }
}

/// The request has been received completely. Bytes after it belong to another request, and this copy must not read
/// them. But a copy does notice that the client has left or ended its stream.
impl<S: Io> AsyncRead for CopyClient<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        _out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Returning without having put bytes into `out` means the end of the stream.
        self.poll_read_ready(cx)
    }
}

/// Before the copy has the ticket, it writes only interim responses, which are dropped.
impl<S: Io> AsyncWrite for CopyClient<'_, S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.writer() {
            Some(client) => client.poll_write(cx, bytes),
            None => Poll::Ready(Ok(bytes.len())),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.writer() {
            Some(client) => client.poll_write_vectored(cx, slices),
            None => Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum())),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.writer() {
            Some(client) => client.poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.writer() {
            Some(client) => client.poll_shutdown(cx),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl<S: Io> Io for CopyClient<'_, S> {
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(client) = self.client() else { return Poll::Pending };
        // If the client has closed its connection, the relay notices that itself.
        if let Poll::Ready(Failure { cause: Cause::Broken(error), .. }) = client.conn.poll_gone(cx)
        {
            return Poll::Ready(Err(error));
        }
        if client.has_ended() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Before the copy has the ticket, other code watches the client.
    fn presence(&self) -> Presence {
        self.mine.as_ref().map_or(Presence::Here, |client| client.conn.io.presence())
    }
}

/// Creates copies of an HTTP/2 request that has been received completely.
#[derive(Debug)]
pub struct CallCopies<'c> {
    call: &'c mut Call,
    stream: SharedClient<Stream>,
}

impl Call {
    /// Prepares copies of the request, which was [held](Call::hold_whole). The client's stream belongs to the copies
    /// until [`CallCopies::finish`].
    pub fn copies(&mut self) -> CallCopies<'_> {
        let stream = Rc::new(RefCell::new(self.take_stream()));
        CallCopies { call: self, stream }
    }
}

impl CallCopies<'_> {
    /// Creates one more copy.
    #[must_use]
    pub fn copy(&self) -> Call {
        self.call.copied(&self.stream)
    }

    /// Ready when the client has reset its stream, or its connection has ended.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        let Some(mut stream) = self.stream.take() else { return Poll::Pending };
        let gone = poll_gone(&mut stream, cx);
        self.stream.replace(Some(stream));
        gone
    }

    /// Must be called when all copies have ended. `winner` is the copy that has a response for the client, if there is
    /// one.
    pub fn finish(self, winner: Option<Call>) {
        let stream = winner.and_then(|mut winner| winner.take_stream());
        self.call.give_stream(stream.or_else(|| self.stream.take()));
    }
}

impl Exchange {
    /// The result of an exchange that failed before a server was involved.
    #[must_use]
    pub fn ended(failure: Failure) -> Self {
        Self { failure: Some(failure), ..Self::new(tokio::time::Instant::now()) }
    }
}
