//! Relays one request and its response between two connections, in both directions at once.
//!
//! ```text
//!                 HTTP/1 server   HTTP/2 server
//! HTTP/1 client   h1_to_h1        h1_to_h2
//! HTTP/2 client   h2_to_h1        h2_to_h2
//! ```
//! Three of them share the state machine of [`relay`], with a part for the client's end ([`client`]) and one for the
//! server's ([`server`]). `h2_to_h2` has a state machine of its own, because it links the two streams once a response
//! begins: the two connections then pass the frames on directly.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "counts of bytes and of events, and bounded waits after the present time"
)]

mod bounds;
mod client;
mod h1_to_h1;
mod h1_to_h2;
mod h2_to_h1;
mod h2_to_h2;
mod incoming;
mod outcome;
mod outgoing;
mod passage;
mod pump;
mod relay;
mod response_head;
mod server;

pub use h1_to_h1::exchange;
pub use h1_to_h2::h1_to_h2;
pub use h2_to_h1::h2_to_h1;
pub use h2_to_h2::h2_to_h2;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use leno_tap::{BodyCopies, BodyCopy};
use tokio::time::Instant;

use crate::edit::Edits;
use crate::failure::{Cause, Failure, Party};
use crate::head::{HeadError, RequestHead, RequestView, ResponseView};
use crate::limits::Limits;

/// The caller's instructions for an exchange.
#[derive(Debug)]
pub struct Order<'a, J = ()> {
    /// Changes to the request's head.
    pub request: Edits<'a>,
    /// Changes to the final response's head.
    pub response: Edits<'a>,
    /// When the exchange fails with [`Cause::Deadline`].
    pub deadline: Option<Instant>,
    /// When a response must have begun. Otherwise the exchange fails with [`Cause::Late`], and the request can be sent
    /// to another server, provided that it is still held completely.
    pub response_by: Option<Instant>,
    /// Whether to close the client's connection after this response, because the proxy drains. For HTTP/1 only: the
    /// owner of an HTTP/2 connection drains it.
    pub close_client: bool,
    /// Whether the server is another proxy of the mesh. Over HTTP/2 an internal header carries the parts of an HTTP/1
    /// message that HTTP/2 cannot express, and the other proxy restores the message from it; other servers do not get
    /// that header. The other proxy's report about a truncated response, and the way in which it ends its connection,
    /// are trusted.
    pub mesh: bool,
    /// Whether a CONNECT is relayed. Otherwise it is refused with 501.
    pub connect: bool,
    /// How long the exchange may last once another protocol has taken over. It replaces `deadline`.
    pub upgraded_for: Option<Duration>,
    /// Where to copy the beginnings of the bodies, if an operator watches the request (a tap). Nothing is copied
    /// between two HTTP/2 connections, because their streams are linked.
    pub copies: Option<BodyCopies>,
    /// Limits for both sides.
    pub limits: &'a Limits,
    /// Decides about the response before it is forwarded.
    pub judge: J,
}

impl<'a> Order<'a> {
    /// An order without edits and deadlines, whose judge forwards every response.
    pub fn new(limits: &'a Limits) -> Self {
        Self {
            request: Edits::default(),
            response: Edits::default(),
            deadline: None,
            response_by: None,
            close_client: false,
            mesh: false,
            connect: false,
            upgraded_for: None,
            copies: None,
            limits,
            judge: (),
        }
    }
}

impl<'a, J> Order<'a, J> {
    /// Returns the order with another judge.
    pub fn judged_by<K>(self, judge: K) -> Order<'a, K> {
        Order {
            request: self.request,
            response: self.response,
            deadline: self.deadline,
            response_by: self.response_by,
            close_client: self.close_client,
            mesh: self.mesh,
            connect: self.connect,
            upgraded_for: self.upgraded_for,
            copies: self.copies,
            limits: self.limits,
            judge,
        }
    }
}

impl<J: Judge> Order<'_, J> {
    /// Passes a final response to the judge, and fails if the judge refuses it. `replayable` says that the request is
    /// still held completely, and that no part of a response was forwarded.
    fn examine(&mut self, response: ResponseView<'_>, replayable: bool) -> Result<(), Failure> {
        match self.judge.judge(response, replayable) {
            Judgement::Forward => Ok(()),
            Judgement::Refuse => {
                let failure = Failure::new(Party::Server, Cause::Refused);
                Err(Failure { retryable: replayable, ..failure })
            }
        }
    }

    /// Fails as soon as the judge no longer permits the request.
    fn poll_permitted<'v>(
        &mut self,
        head: impl FnOnce() -> Option<RequestView<'v>>,
        cx: &mut Context<'_>,
    ) -> Result<(), Failure> {
        match self.judge.poll_revoked(head, cx) {
            Poll::Ready(()) => Err(Failure::new(Party::Us, Cause::Revoked)),
            Poll::Pending => Ok(()),
        }
    }
}

impl<J> Order<'_, J> {
    /// Refuses a CONNECT unless it may be relayed.
    fn check_connect(&self, request: &RequestHead) -> Result<(), Failure> {
        if request.is_connect && !self.connect {
            return Err(Failure::new(Party::Client, Cause::Head(HeadError::Connect)));
        }
        Ok(())
    }

    /// The copy of the request's body, if there should be one.
    fn request_copy(&self) -> Option<Arc<BodyCopy>> {
        self.copies.as_ref().map(|copies| Arc::clone(&copies.request))
    }

    /// The copy of the response's body, if there should be one.
    fn response_copy(&self) -> Option<Arc<BodyCopy>> {
        self.copies.as_ref().map(|copies| Arc::clone(&copies.response))
    }

    /// The earlier of `deadline` and [`Self::response_by`], which applies only while no response has begun (`silent`).
    fn ends_at(&self, deadline: Option<Instant>, silent: bool) -> Option<Instant> {
        let response_by = self.response_by.filter(|_| silent);
        [deadline, response_by].into_iter().flatten().min()
    }

    /// Called when another protocol has taken over, so that the request's deadlines no longer apply. Returns when the
    /// exchange must end.
    fn upgraded(&mut self) -> Option<Instant> {
        self.response_by = None;
        self.deadline = self.upgraded_for.and_then(|within| Instant::now().checked_add(within));
        self.deadline
    }

    /// Whether `until`, the time limit that has passed, is the one for the beginning of a response. If it equals
    /// `deadline`, it counts as the deadline.
    fn is_late(&self, until: Instant, deadline: Option<Instant>, silent: bool) -> bool {
        silent && self.response_by == Some(until) && deadline != Some(until)
    }
}

/// Decides about a final response when its head has arrived and before any part of it is forwarded.
pub trait Judge {
    /// Decides about a response. `replayable` says that the request is still held completely, so that it can be sent to
    /// another server if the response is refused.
    fn judge(&mut self, response: ResponseView<'_>, replayable: bool) -> Judgement;

    /// Ready once the request is no longer permitted. The exchange then fails with
    /// [`Cause::Revoked`](crate::Cause::Revoked). It is polled whenever the exchange has to wait. `head` returns the
    /// request's head if the client speaks HTTP/2. For an HTTP/1 client it returns `None`, because the bytes of the
    /// head are dropped when the body is passed on.
    fn poll_revoked<'v>(
        &mut self,
        _head: impl FnOnce() -> Option<RequestView<'v>>,
        _cx: &mut Context<'_>,
    ) -> Poll<()> {
        Poll::Pending
    }
}

/// The decision of a [`Judge`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// The response goes to the client.
    Forward,
    /// The response is dropped, and the exchange fails with [`Cause::Refused`](crate::Cause::Refused).
    Refuse,
}

/// The judge that forwards everything.
impl Judge for () {
    fn judge(&mut self, _response: ResponseView<'_>, _replayable: bool) -> Judgement {
        Judgement::Forward
    }
}

impl<F: FnMut(ResponseView<'_>, bool) -> Judgement> Judge for F {
    fn judge(&mut self, response: ResponseView<'_>, replayable: bool) -> Judgement {
        self(response, replayable)
    }
}

/// The result of an exchange.
#[derive(Debug)]
pub struct Exchange {
    /// The status of the final response once the judge has accepted it, or 101.
    pub status: Option<u16>,
    /// When the exchange began.
    pub started: Instant,
    /// When the first byte of a response arrived.
    pub first_byte: Option<Instant>,
    /// The size of the request as received, in bytes. It includes the head, framing, and the bytes that follow an
    /// upgrade. For HTTP/2 it is the decoded size of the head (RFC 7541 section 4.1) and the content.
    pub request_bytes: u64,
    /// The size of the final response as received, in bytes, counted like that of the request.
    pub response_bytes: u64,
    /// Whether the client has received a part of a response other than complete interim responses, so that the proxy
    /// can no longer send an answer of its own.
    pub response_started: bool,
    /// Whether the client's connection is ready for its next request, or the client's stream has ended properly.
    pub client_reusable: bool,
    /// Whether the server's connection can be used for another request.
    pub server_reusable: bool,
    /// How long the server keeps an idle connection, according to its `Keep-Alive: timeout=`.
    pub server_idle: Option<Duration>,
    /// Whether another protocol has taken over.
    pub upgraded: bool,
    /// The `grpc-status` of a gRPC call, once it was received; 2 (unknown) if it is not a number.
    pub grpc_status: Option<u8>,
    /// Why the exchange ended early.
    pub failure: Option<Failure>,
}

impl Exchange {
    pub(crate) fn new(started: Instant) -> Self {
        Self {
            status: None,
            started,
            first_byte: None,
            request_bytes: 0,
            response_bytes: 0,
            response_started: false,
            client_reusable: false,
            server_reusable: false,
            server_idle: None,
            upgraded: false,
            grpc_status: None,
            failure: None,
        }
    }
}
