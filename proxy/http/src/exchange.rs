//! One request and its response, relayed between two connections in both directions at once.
//!
//! ```text
//!             HTTP/1 server   HTTP/2 server
//! HTTP/1      h1_to_h1        h1_to_h2        one machine: relay, with an end for each side (client, server)
//! HTTP/2      h2_to_h1        h2_to_h2        the last links two streams, and has a machine of its own
//! ```
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

/// How the caller wants an exchange to go.
#[derive(Debug)]
pub struct Order<'a, J = ()> {
    /// Changes to the request's head.
    pub request: Edits<'a>,
    /// Changes to the final response's head.
    pub response: Edits<'a>,
    /// When the exchange must be over.
    pub deadline: Option<Instant>,
    /// When a response must have begun. After that the request can be tried elsewhere, if it is still
    /// here whole.
    pub response_by: Option<Instant>,
    /// Close the client's connection after this response, because the proxy drains. For HTTP/1 only: the
    /// owner of an HTTP/2 connection drains it.
    pub close_client: bool,
    /// The server is another proxy of the mesh. Over HTTP/2 a header of the mesh's own carries what that version cannot
    /// express of an HTTP/1 message, and the other proxy restores the message from it; other servers do
    /// not get that header. What it reports of a response that it cuts, and how it ends its connection, is believed.
    pub mesh: bool,
    /// A CONNECT is relayed. Without this it is refused.
    pub connect: bool,
    /// How long the exchange may go on once another protocol has taken over, in place of `deadline`.
    pub upgraded_for: Option<Duration>,
    /// Where the beginnings of the bodies are copied to, except between two ends of HTTP/2, whose streams are linked.
    pub copies: Option<BodyCopies>,
    /// Bounds for both sides.
    pub limits: &'a Limits,
    /// Sees the response before it is forwarded.
    pub judge: J,
}

impl<'a> Order<'a> {
    /// Forward everything.
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
    /// The same with another judge.
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
    /// Has the judge see a final response. `replayable`: the request is still held whole, and nothing
    /// of a response was forwarded.
    fn examine(&mut self, response: ResponseView<'_>, replayable: bool) -> Result<(), Failure> {
        match self.judge.judge(response, replayable) {
            Judgement::Forward => Ok(()),
            Judgement::Refuse => {
                let failure = Failure::new(Party::Server, Cause::Refused);
                Err(Failure { retryable: replayable, ..failure })
            }
        }
    }

    /// Fails once the judge no longer permits the request.
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
    /// Refuses a CONNECT that is not to be relayed.
    fn check_connect(&self, request: &RequestHead) -> Result<(), Failure> {
        if request.is_connect && !self.connect {
            return Err(Failure::new(Party::Client, Cause::Head(HeadError::Connect)));
        }
        Ok(())
    }

    /// Where the request's body is copied to, if it is.
    fn request_copy(&self) -> Option<Arc<BodyCopy>> {
        self.copies.as_ref().map(|copies| Arc::clone(&copies.request))
    }

    /// The same of the response.
    fn response_copy(&self) -> Option<Arc<BodyCopy>> {
        self.copies.as_ref().map(|copies| Arc::clone(&copies.response))
    }

    /// When an exchange must be over, or a response must have begun. `silent`: none has.
    fn ends_at(&self, deadline: Option<Instant>, silent: bool) -> Option<Instant> {
        let response_by = self.response_by.filter(|_| silent);
        [deadline, response_by].into_iter().flatten().min()
    }

    /// Another protocol has taken over: the request's deadlines hold no longer. Returns when the exchange
    /// must be over.
    fn upgraded(&mut self) -> Option<Instant> {
        self.response_by = None;
        self.deadline = self.upgraded_for.and_then(|within| Instant::now().checked_add(within));
        self.deadline
    }

    /// Whether the wait until `until` was for a response to begin.
    fn is_late(&self, until: Instant, deadline: Option<Instant>, silent: bool) -> bool {
        silent && self.response_by == Some(until) && deadline != Some(until)
    }
}

/// Decides on a final response when its head is here and nothing was forwarded of it.
pub trait Judge {
    /// `replayable`: the request is still held whole, so that after a refusal it can be sent to
    /// another server.
    fn judge(&mut self, response: ResponseView<'_>, replayable: bool) -> Judgement;

    /// Ready once the request is no longer permitted, so that the exchange fails with
    /// [`Cause::Revoked`](crate::Cause::Revoked). Polled whenever the exchange has to wait. `head` returns
    /// the request's head if the exchange still holds it; that of HTTP/1 gives way to the body.
    fn poll_revoked<'v>(
        &mut self,
        _head: impl FnOnce() -> Option<RequestView<'v>>,
        _cx: &mut Context<'_>,
    ) -> Poll<()> {
        Poll::Pending
    }
}

/// What a [`Judge`] decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// The response goes to the client.
    Forward,
    /// The response is dropped, and the exchange fails with [`Cause::Refused`](crate::Cause::Refused).
    Refuse,
}

/// Forwards everything.
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

/// How an exchange went.
#[derive(Debug)]
pub struct Exchange {
    /// The status of the final response, or 101, once its head was here.
    pub status: Option<u16>,
    /// When the exchange began.
    pub started: Instant,
    /// When the first byte of a response came.
    pub first_byte: Option<Instant>,
    /// Bytes of the request as received, head and framing included, and those that follow an upgrade.
    /// For HTTP/2: the decoded size of the head (RFC 7541 section 4.1) and the content.
    pub request_bytes: u64,
    /// The same of the final response.
    pub response_bytes: u64,
    /// The client has a part of a response, and that is not a whole interim one: the proxy can send no answer of its
    /// own any more.
    pub response_started: bool,
    /// The client's connection stands at the start of the next request, or its stream ended in order.
    pub client_reusable: bool,
    /// The server's connection can take another request.
    pub server_reusable: bool,
    /// How long the server announces to keep an idle connection (`Keep-Alive: timeout=`).
    pub server_idle: Option<Duration>,
    /// Another protocol took over.
    pub upgraded: bool,
    /// The `grpc-status` of a gRPC call, once it was received; 2 (unknown) if it is no number.
    pub grpc_status: Option<u8>,
    /// Why it ended early.
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
