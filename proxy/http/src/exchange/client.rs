//! The client's end of an exchange: an HTTP/1 connection, or a request on an HTTP/2 stream.

use std::pin::Pin;
use std::task::{Context, Poll};

use leno_h2::{Reset, Stream};
use leno_hpack::Block;
use tokio::time::Instant;

use super::Exchange;
use super::outcome::check_client;
use super::passage::{OnConn, OnStream};
use super::relay::{Down, Up};
use crate::Io;
use crate::alarm::Alarm;
use crate::call::{BodyPart, Call};
use crate::conn::Conn;
use crate::failure::{Cause, Failure, Party};
use crate::head::{RequestHead, RequestView};
use crate::translate::websocket;

/// The client's end, as the relay uses it.
pub(super) trait ClientEnd {
    /// Whether the request opens a tunnel.
    fn is_connect(&self) -> bool;

    /// Whether the method is HEAD, so that the response has no body, whatever its head says.
    fn is_head(&self) -> bool;

    /// Whether some of the request's body has arrived. `total` is the [`Moved::total`](super::passage::Moved::total) of
    /// the request.
    fn has_begun(&self, total: u64) -> bool;

    /// The deadline that the client itself has set (`grpc-timeout`).
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// The request's head. `None` for an HTTP/1 client, whose head is dropped when its body is passed on.
    fn view(&self) -> Option<RequestView<'_>> {
        None
    }

    /// Whether this end still holds the whole request. Always true for HTTP/1: there, the passage of the request says
    /// whether bytes were dropped ([`Moved::used`](super::passage::Moved::used)).
    fn is_replayable(&self) -> bool {
        true
    }

    /// Called when the judge has accepted a response for this client. If the request is one of several copies, this
    /// copy takes the client's stream.
    fn claim(&mut self) {}

    /// Called when the response is being forwarded, so that there will be no retry.
    fn stop_holding(&mut self) {}

    /// Fails if the client is known to have left. From an HTTP/1 client whose request is complete (`up`), this reads
    /// what the client sends next, as far as there is room. The stream of an HTTP/2 client is checked until the
    /// response is complete (`down`).
    fn watch(&mut self, up: Up, down: Down, cx: &mut Context<'_>) -> Result<(), Failure>;

    /// Fails if the kernel reports that the client has left, which reads may not show. `sending` says that the request
    /// is incomplete.
    fn check_left(&mut self, _sending: bool) -> Result<(), Failure> {
        Ok(())
    }

    /// Whether [`Self::check_left`] can find out that the client has left.
    fn can_tell_departure(&self) -> bool {
        false
    }

    /// Whether the client's machine seems to be lost. For a stream, its connection checks this.
    fn is_unanswered(&self) -> bool {
        false
    }

    /// The timer of the connection, unless other streams share the connection.
    fn alarm(&mut self) -> Option<&mut Alarm> {
        None
    }

    /// Ends an upgraded connection in the response's direction. For a stream, the end has been sent already.
    fn poll_end(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// The size of the request ([`Exchange::request_bytes`]). `total` is the
    /// [`Moved::total`](super::passage::Moved::total) of the request.
    fn request_bytes(&mut self, total: u64) -> u64 {
        total
    }

    /// Called when the exchange has failed. `used` says that bytes of the request were dropped, so that it cannot be
    /// sent again.
    fn fail(&mut self, _used: bool) {}

    /// Called when the exchange is over. `request_over` says that all of the request was read, and `keep` that the
    /// client was told that its connection stays open.
    fn conclude(&mut self, request_over: bool, keep: bool, exchange: &mut Exchange);
}

/// A client that speaks HTTP/1.
pub(super) struct FromConn<'r, C> {
    pub(super) conn: &'r mut Conn<C>,
    pub(super) request: &'r RequestHead,
    /// The upgrade that the request asks for, if it may be granted.
    pub(super) upgrade: Option<Box<AskedUpgrade>>,
}

/// The upgrade that a request asks for. It is copied before the body is forwarded, because the head leaves the
/// connection's buffer together with the body, and the server may respond later.
pub(super) struct AskedUpgrade {
    /// The values of `Upgrade`.
    pub(super) protocols: Vec<Box<[u8]>>,
    /// The `Sec-WebSocket-Accept` for the request's key.
    pub(super) accept: Option<[u8; websocket::ACCEPT_BYTES]>,
}

impl AskedUpgrade {
    fn of(view: RequestView<'_>) -> Box<Self> {
        let protocols = view.values("upgrade").map(Box::from).collect();
        let accept = view.header("sec-websocket-key").and_then(websocket::accept);
        Box::new(Self { protocols, accept })
    }
}

impl<C: Io> OnConn for FromConn<'_, C> {
    type Io = C;

    fn conn(&mut self) -> &mut Conn<C> {
        self.conn
    }
}

impl<'r, C: Io> FromConn<'r, C> {
    pub(super) fn new(conn: &'r mut Conn<C>, request: &'r RequestHead) -> Self {
        // If an earlier attempt failed late, the head no longer exists. The exchange then ends before it needs the
        // upgrade.
        let upgrade = (request.upgrade() && !conn.lost)
            .then(|| AskedUpgrade::of(request.view(conn.received.bytes())));
        Self { conn, request, upgrade }
    }

    /// Fails if an earlier attempt dropped bytes of the request.
    pub(super) fn check_open(&self) -> Result<(), Failure> {
        if self.conn.lost {
            return Err(Failure::new(Party::Client, Cause::Closed));
        }
        Ok(())
    }

    /// Reads the bytes that the client sends after its request, as far as there is room, and fails if the client has
    /// closed its connection.
    pub(super) fn read_ahead(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        match self.conn.poll_gone(cx) {
            Poll::Ready(failure) => Err(failure),
            Poll::Pending => Ok(()),
        }
    }
}

impl<C: Io> ClientEnd for FromConn<'_, C> {
    fn is_connect(&self) -> bool {
        self.request.is_connect
    }

    fn is_head(&self) -> bool {
        self.request.is_head
    }

    fn has_begun(&self, total: u64) -> bool {
        total > self.request.len() as u64
    }

    fn watch(&mut self, up: Up, _down: Down, cx: &mut Context<'_>) -> Result<(), Failure> {
        if up == Up::Done { self.read_ahead(cx) } else { Ok(()) }
    }

    /// A client that has closed its connection gets no response. A client that has only ended its sending direction
    /// still gets one.
    fn check_left(&mut self, sending: bool) -> Result<(), Failure> {
        if (self.conn.read_closed || sending) && self.conn.has_left() {
            return Err(Failure::new(Party::Client, Cause::Closed));
        }
        Ok(())
    }

    fn can_tell_departure(&self) -> bool {
        self.conn.can_tell_departure()
    }

    fn is_unanswered(&self) -> bool {
        self.conn.io.is_unanswered()
    }

    fn alarm(&mut self) -> Option<&mut Alarm> {
        Some(&mut self.conn.alarm)
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // If the shutdown fails, the next read from the client returns the error.
        Pin::new(&mut self.conn.io).poll_shutdown(cx).map(|_| ())
    }

    fn fail(&mut self, used: bool) {
        self.conn.lost |= used;
    }

    fn conclude(&mut self, request_over: bool, keep: bool, exchange: &mut Exchange) {
        let goes_on = request_over && !exchange.upgraded;
        exchange.client_reusable = keep && goes_on;
        self.conn.received.settle();
        self.conn.exchanges += 1;
        self.conn.last = goes_on && !self.request.keep_alive();
        self.conn.lost |= !exchange.client_reusable;
    }
}

/// A client that speaks HTTP/2.
pub(super) struct FromCall<'r> {
    pub(super) call: &'r mut Call,
    /// How many of the pieces of the body that the call holds for a retry were read by this attempt.
    held_at: usize,
    /// Whether the request asks for another protocol, or is a CONNECT.
    pub(super) upgrade: bool,
    /// The key that was generated for the HTTP/1 server, because the client of an extended CONNECT need not send one.
    pub(super) websocket_key: Option<[u8; websocket::KEY_BYTES]>,
}

impl<'r> FromCall<'r> {
    pub(super) fn new(call: &'r mut Call) -> Self {
        Self { call, held_at: 0, upgrade: false, websocket_key: None }
    }
}

impl OnStream for FromCall<'_> {
    fn stream(&mut self) -> Option<&mut Stream> {
        self.call.stream()
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyPart, Reset>> {
        self.call.poll_part(&mut self.held_at, cx)
    }

    fn trailers(&self) -> Option<&Block> {
        self.call.trailers().map(|head| &**head)
    }
}

impl ClientEnd for FromCall<'_> {
    fn is_connect(&self) -> bool {
        self.call.is_connect()
    }

    fn is_head(&self) -> bool {
        self.call.is_head()
    }

    fn has_begun(&self, _total: u64) -> bool {
        self.call.has_begun()
    }

    fn deadline(&self) -> Option<Instant> {
        self.call.deadline()
    }

    fn view(&self) -> Option<RequestView<'_>> {
        Some(self.call.view())
    }

    fn is_replayable(&self) -> bool {
        self.call.is_replayable()
    }

    fn claim(&mut self) {
        self.call.claim();
    }

    fn stop_holding(&mut self) {
        self.call.stop_holding(&mut self.held_at);
    }

    fn watch(&mut self, _up: Up, down: Down, cx: &mut Context<'_>) -> Result<(), Failure> {
        if down == Down::Done { Ok(()) } else { check_client(self.call, cx) }
    }

    fn request_bytes(&mut self, _total: u64) -> u64 {
        let content = self.call.stream().map_or(0, |client| client.bytes().0);
        self.call.head().size() as u64 + content
    }

    fn conclude(&mut self, _request_over: bool, _keep: bool, exchange: &mut Exchange) {
        exchange.client_reusable = !exchange.upgraded;
    }
}
