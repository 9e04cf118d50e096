//! The two ends of a connection as its user sees them.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use leno_hpack::{Block, Token};

use crate::driver::Driver;
use crate::error::OpenError;
use crate::head::Head;
use crate::inner::{Guarded, Inner, Phase, Shared};
use crate::io::Io;
use crate::limits::Limits;
use crate::stream::Stream;

/// A connection that a client has made. `received` are bytes of it that were read already, to
/// detect its protocol. Nothing happens unless the [`Driver`] is awaited.
pub fn server<S: Io>(io: S, received: &[u8], limits: &Rc<Limits>) -> (Accept, Driver<S>) {
    let conn = shared(false, limits);
    (Accept { conn: Rc::clone(&conn) }, Driver::new(conn, io, received))
}

/// A connection that we have made to a server. Nothing happens unless the [`Driver`] is awaited.
pub fn client<S: Io>(io: S, limits: &Rc<Limits>) -> (Client, Driver<S>) {
    let conn = shared(true, limits);
    let users = Rc::new(User { conn: Rc::clone(&conn) });
    (Client { users }, Driver::new(conn, io, &[]))
}

fn shared(client: bool, limits: &Rc<Limits>) -> Shared {
    let mut inner = Inner::new(client, Rc::clone(limits));
    inner.greet();
    Rc::new(Guarded::new(inner))
}

/// A request and the stream to answer it on.
#[derive(Debug)]
pub struct Request {
    /// Its head, which fulfils RFC 9113 section 8.3.1.
    pub head: Head,
    /// It has no body.
    pub ended: bool,
    /// Where it came from.
    pub stream: Stream,
}

/// The requests of a client's connection. Dropping it drains the connection.
pub struct Accept {
    conn: Shared,
}

impl Accept {
    /// Waits for the next request. `None`: there are no more.
    pub async fn accept(&mut self) -> Option<Request> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// As [`accept`](Accept::accept).
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

    /// Starts a graceful end: tells the client to open no more streams, finishes those that it
    /// opens before it has seen that, then closes.
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

/// Opens streams on a connection to a server. When the last clone is dropped the connection ends
/// with its last stream.
#[derive(Clone)]
pub struct Client {
    users: Rc<User>,
}

struct User {
    conn: Shared,
}

impl Drop for User {
    fn drop(&mut self) {
        let mut inner = self.conn.borrow_mut();
        inner.unused = true;
        inner.wake_driver();
    }
}

impl Client {
    /// Opens a stream with a request; `end` if it has no body. The head must fulfil RFC 9113
    /// section 8.3.1, which is not checked again.
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
            slot.is_head = head.find(Token::METHOD) == Some(b"HEAD");
        }
        inner.head_sent(key);
        inner.send_section(key, head, end);
        drop(inner);
        Ok(Stream { conn: Rc::clone(conn), key })
    }

    /// Waits until a stream can be opened. By the time it is opened another may have taken its
    /// place: then wait again.
    pub fn ready(&self) -> Opening<'_> {
        Opening { conn: &self.users.conn, ticket: None }
    }

    /// Whether streams can still be opened, now or once others have ended.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.users.conn.borrow().can_open() != Err(OpenError::Closed)
    }

    /// Whether a stream can be opened now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.users.conn.borrow().can_open().is_ok()
    }

    /// Whether its streams have come to share too little: they hold much that their readers do not
    /// take, or the server has not renewed the connection's window for a while although DATA waits
    /// for it. A new request is better sent over another connection.
    #[must_use]
    pub fn is_strained(&self) -> bool {
        self.users.conn.borrow().is_strained()
    }

    /// Streams that are not over.
    #[must_use]
    pub fn streams(&self) -> u32 {
        self.users.conn.borrow().open
    }

    /// Waits until the server's SETTINGS are here, or the connection has ended; at most as long as
    /// a head may take ([`crate::Limits::head`]).
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

    /// Whether the server takes extended CONNECT (RFC 8441), as far as its settings are here:
    /// [`Client::settled`] says when.
    #[must_use]
    pub fn takes_connect_protocol(&self) -> bool {
        self.users.conn.borrow().peer.connect_protocol
    }

    /// Frames that have come from the server so far: the same number again means that it has said nothing
    /// meanwhile.
    #[must_use]
    pub fn heard(&self) -> u64 {
        self.users.conn.borrow().reading.frames
    }

    /// Opens no more streams and closes when the last one ends.
    pub fn drain(&self) {
        self.users.conn.borrow_mut().drain();
    }
}

/// Waits for room to open a stream. Those who wait are served in order; their number is bounded
/// by the requests that the worker has taken.
pub struct Opening<'a> {
    conn: &'a Shared,
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
            // Its clock ends stalled streams for those who wait.
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
            // It was woken: if it does not use the room, the next one can.
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
