//! The two ends of a connection, as this crate offers them to its users.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "identifiers of streams stay below 2^31, where the connection ends"
)]

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use leno_hpack::{Block, Token};
use leno_transport::Io;

use crate::driver::Driver;
use crate::error::OpenError;
use crate::head::Head;
use crate::inner::{Guarded, Inner, Phase, SharedConn};
use crate::limits::Limits;
use crate::stream::Stream;

/// Serves a connection that a client has opened. `received` are its first bytes, if protocol detection has already read
/// them. Nothing happens until the [`Driver`] is awaited.
pub fn server<S: Io>(io: S, received: &[u8], limits: &Rc<Limits>) -> (Accept, Driver<S>) {
    let conn = shared(false, limits);
    (Accept { conn: Rc::clone(&conn) }, Driver::new(conn, io, received))
}

/// Uses a connection that we have opened to a server. Nothing happens until the [`Driver`] is awaited.
pub fn client<S: Io>(io: S, limits: &Rc<Limits>) -> (Client, Driver<S>) {
    let conn = shared(true, limits);
    let users = Rc::new(User { conn: Rc::clone(&conn) });
    (Client { users }, Driver::new(conn, io, &[]))
}

fn shared(client: bool, limits: &Rc<Limits>) -> SharedConn {
    let mut inner = Inner::new(client, Rc::clone(limits));
    inner.greet();
    Rc::new(Guarded::new(inner))
}

/// A request, and the stream on which it is answered.
#[derive(Debug)]
pub struct Request {
    /// The head, which satisfies RFC 9113 section 8.3.1.
    pub head: Head,
    /// Whether the request has no body.
    pub ended: bool,
    /// The stream on which it arrived.
    pub stream: Stream,
}

/// The requests on a connection from a client. Dropping this value drains the connection, without waiting until the
/// client has seen that.
pub struct Accept {
    conn: SharedConn,
}

impl Accept {
    /// Waits for the next request. `None` means that the client sends no more requests.
    pub async fn accept(&mut self) -> Option<Request> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// [`accept`](Accept::accept) as a poll function.
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Option<Request>> {
        let mut inner = self.conn.borrow_mut();
        while let Some(key) = inner.accepted.pop_front() {
            let slot = inner.streams.get_mut(key);
            let head = slot.filter(|slot| slot.reset.is_none()).and_then(|slot| {
                let ended = slot.recv == crate::slot::Progress::Ended && slot.data.is_empty();
                slot.heads.pop_front().map(|head| (head, ended))
            });
            let Some((head, ended)) = head else {
                inner.drop_handle(key);
                continue;
            };
            drop(inner);
            let stream = Stream { conn: Rc::clone(&self.conn), key };
            return Poll::Ready(Some(Request { head, ended, stream }));
        }
        if inner.phase >= Phase::Draining {
            return Poll::Ready(None);
        }
        inner.accept_waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Starts a graceful end: asks the client to open no more streams, finishes the streams that the client opened
    /// before it saw this, then closes the connection.
    pub fn drain(&self) {
        self.conn.borrow_mut().drain();
    }
}

impl Drop for Accept {
    fn drop(&mut self) {
        let mut inner = self.conn.borrow_mut();
        inner.unused = true;
        inner.drain();
        inner.drain_for_good();
        while let Some(key) = inner.accepted.pop_front() {
            inner.drop_handle(key);
        }
    }
}

/// Opens streams on a connection to a server. Once the last clone is dropped, the connection ends
/// with its last stream.
#[derive(Clone)]
pub struct Client {
    users: Rc<User>,
}

struct User {
    conn: SharedConn,
}

impl Drop for User {
    fn drop(&mut self) {
        let mut inner = self.conn.borrow_mut();
        inner.unused = true;
        inner.wake_driver();
    }
}

impl Client {
    /// Opens a stream with a request; `end` says that the request has no body. The head must satisfy RFC 9113 section
    /// 8.3.1; this is not checked again.
    pub fn open(&self, head: &Block, end: bool) -> Result<Stream, OpenError> {
        let conn = &self.users.conn;
        let mut inner = conn.borrow_mut();
        inner.can_open()?;
        if head.size() > inner.peer.list_bytes as usize {
            return Err(OpenError::TooLarge);
        }
        let id = inner.next_id;
        inner.next_id += 2;
        let head_at = inner.out.position();
        let key = inner.add_stream(id);
        if let Some(slot) = inner.streams.get_mut(key) {
            slot.head_at = head_at;
            let method = head.find(Token::METHOD);
            slot.is_head = method == Some(b"HEAD");
            slot.is_connect = method == Some(b"CONNECT");
        }
        inner.head_sent(key);
        inner.send_section(key, head, end);
        drop(inner);
        Ok(Stream { conn: Rc::clone(conn), key })
    }

    /// Waits until a stream can be opened. If another caller then opens a stream first, the caller must wait again.
    pub fn ready(&self) -> Opening<'_> {
        Opening { conn: &self.users.conn, ticket: None }
    }

    /// Whether streams can be opened, now or after others have ended.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.users.conn.borrow().can_open() != Err(OpenError::Closed)
    }

    /// Whether a stream can be opened now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.users.conn.borrow().can_open().is_ok()
    }

    /// Whether the connection's shared resources are nearly used up. Either its streams hold many bytes that their
    /// readers do not take, or the server has not renewed the connection's window for a while although DATA waits for
    /// it. A new request should use another connection.
    #[must_use]
    pub fn is_strained(&self) -> bool {
        self.users.conn.borrow().is_strained()
    }

    /// The number of streams that have not ended.
    #[must_use]
    pub fn streams(&self) -> u32 {
        self.users.conn.borrow().open
    }

    /// Waits until the server's SETTINGS have arrived or the connection has ended, at most for
    /// [`crate::Limits::head`].
    pub async fn settled(&self) {
        poll_fn(|cx| {
            let mut inner = self.users.conn.borrow_mut();
            if inner.is_settled() {
                return Poll::Ready(());
            }
            if !inner.settling.iter().any(|waker| waker.will_wake(cx.waker())) {
                inner.settling.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Whether the server supports extended CONNECT (RFC 8441). `false` until its SETTINGS have
    /// arrived: await [`Client::settled`] first.
    #[must_use]
    pub fn takes_connect_protocol(&self) -> bool {
        self.users.conn.borrow().peer.connect_protocol
    }

    /// The number of frames that have arrived from the server. DATA counts once its frame header has arrived, and a
    /// field section counts as one frame. If the number has not changed, no frame has begun to arrive in between.
    #[must_use]
    pub fn heard(&self) -> u64 {
        self.users.conn.borrow().reading.frames
    }

    /// Opens no more streams, and closes the connection when the last stream ends.
    pub fn drain(&self) {
        self.users.conn.borrow_mut().drain();
    }
}

/// Waits for room to open a stream. Waiting tasks are served in order; their number is bounded by
/// the requests that the worker has accepted.
pub struct Opening<'a> {
    conn: &'a SharedConn,
    ticket: Option<u64>,
}

impl Future for Opening<'_> {
    type Output = Result<(), OpenError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut inner = self.conn.borrow_mut();
        if inner.can_open() != Err(OpenError::Full) {
            return Poll::Ready(inner.can_open());
        }
        let held = self
            .ticket
            .and_then(|ticket| inner.openers.iter_mut().find(|(other, _)| *other == ticket));
        if let Some((_, waker)) = held {
            waker.clone_from(cx.waker());
            return Poll::Pending;
        }
        let ticket = inner.next_ticket;
        inner.next_ticket += 1;
        inner.openers.push_back((ticket, cx.waker().clone()));
        if inner.stalled > 0 {
            // A task that waits for room is a reason to reset stalled streams, which the driver does.
            inner.wake_driver();
        }
        drop(inner);
        self.ticket = Some(ticket);
        Poll::Pending
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut inner = self.conn.borrow_mut();
        let before = inner.openers.len();
        inner.openers.retain(|(other, _)| *other != ticket);
        if inner.openers.len() == before {
            // This waiter had been woken. It no longer needs the room, so the next waiter gets it.
            inner.wake_opener();
        }
    }
}

impl std::fmt::Debug for Accept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Accept")
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl std::fmt::Debug for Opening<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Opening")
    }
}
