//! From a stream of a client's HTTP/2 connection to a stream of a server's HTTP/2 connection.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use leno_h2::{
    Client, Code, Head, Link, Piece, Reset, ResetBy, Stream, is_mesh_field, link, remove_reserved,
};
use leno_transport::test_panic;
use tokio::time::Instant;

use super::outcome::{
    admit, check_client, check_not_reset, client_reset, linked, not_opened, outlasted,
    server_reset, stall_blame, timed_out,
};
use super::{Exchange, Judge, Order};
use crate::alarm::PooledAlarm;
use crate::call::{BodyPart, Call, take_internal};
use crate::edit::{INTERNAL, edit_block};
use crate::failure::{Cause, Failure, Party};
use crate::grpc;
use crate::head::{HeadError, ResponseView};
use crate::now;
use crate::translate::SWITCHED;

/// Relays a request to a new stream of `server`, and the response back. After a retryable failure the same call can be
/// relayed to another server. Otherwise the caller must answer the call with [`Call::conclude`]. This does not wait for
/// a free stream on `server`: see [`leno_h2::Client::ready`].
pub async fn h2_to_h2<J: Judge>(
    call: &mut Call,
    server: &Client,
    order: &mut Order<'_, J>,
) -> Exchange {
    test_panic("request", call.view().target());
    let deadline = [order.deadline, call.deadline()].into_iter().flatten().min();
    if call.is_extended_connect() && !order.mesh {
        // RFC 8441 section 3: an extended CONNECT may be sent only once the server has announced that it accepts it.
        if let Err(failure) = settle(call, server, deadline).await {
            return Exchange { failure: Some(failure), ..Exchange::new(now()) };
        }
    }
    let started = now();
    let mut relay = Relay {
        exchange: Exchange::new(started),
        deadline,
        stall_until: started.checked_add(order.limits.stall_while(true)),
        stall_moves: 0,
        alarm: PooledAlarm::take(),
        call,
        server,
        order,
        to_server: None,
        up: Up::Sending,
        blocked: false,
        held_at: 0,
        down: Down::Head,
    };
    let outcome = match relay.open() {
        Ok(()) => poll_fn(|cx| relay.poll(cx)).await,
        Err(failure) => Err(failure),
    };
    relay.conclude(outcome)
}

/// Waits for the server's SETTINGS, until the deadline, and only while the client is connected.
async fn settle(
    call: &mut Call,
    server: &Client,
    deadline: Option<Instant>,
) -> Result<(), Failure> {
    let mut alarm = PooledAlarm::take();
    let mut settled = pin!(server.settled());
    poll_fn(|cx| {
        if settled.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        check_client(call, cx)?;
        match deadline {
            Some(at) => alarm.poll_at(at, cx).map(|()| Err(timed_out(false, true, false))),
            None => Poll::Pending,
        }
    })
    .await
}

/// The request's direction: `Sending ──(END_STREAM)──► Done`. Once the streams are linked ([`Down::Linked`]), the
/// connections relay the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Up {
    Sending,
    Done,
}

/// The response's direction. An interim head is forwarded in the state `Head`.
///
/// ```text
/// Head ──(final)─────────────────────────► Linked ──► over
///  ├──(final, and the rest has arrived)──► Body ──► Flushing ──► over
///  └──(final, without anything after it)──────────► Flushing
/// ```
#[derive(Debug)]
enum Down {
    Head,
    /// This task passes on the rest, because it has arrived completely, or because the server has reset the stream.
    Body,
    /// The whole response is in the queue of the client's stream.
    Flushing,
    /// Each of the two connections passes the frames of its stream directly to the other, without this task.
    Linked(Link),
}

struct Relay<'r, 'a, J> {
    call: &'r mut Call,
    server: &'r Client,
    order: &'r mut Order<'a, J>,
    /// The stream to the server. `None` before it is open, and once it is linked with the client's.
    to_server: Option<Stream>,
    up: Up,
    /// Whether the server accepts no more bytes of the request for now.
    blocked: bool,
    /// How many of the held pieces of the body were sent.
    held_at: usize,
    down: Down,
    /// The earlier of the order's and the client's deadline; after an upgrade, when the other protocol must end.
    deadline: Option<Instant>,
    /// When the exchange is aborted if no byte of a body moves; `None` if there is no such limit.
    stall_until: Option<Instant>,
    /// How many bytes of both bodies had moved at the last check.
    stall_moves: u64,
    alarm: PooledAlarm,
    exchange: Exchange,
}

impl<J: Judge> Relay<'_, '_, J> {
    /// Sends the request's head.
    fn open(&mut self) -> Result<(), Failure> {
        // A closed connection does not say what it accepts. An attempt to open a stream on it fails, and the request is
        // retried. Servers outside of the mesh do not accept a CONNECT with the path `*`.
        let takes = self.order.mesh
            || !self.call.is_asterisk()
                && (self.server.takes_connect_protocol() || !self.server.is_open());
        let checked = match self.call.check(self.order.connect) {
            Ok(()) if self.call.is_extended_connect() && !takes => Err(HeadError::Connect),
            checked => checked,
        };
        checked.map_err(|error| Failure::new(Party::Client, Cause::Head(error)))?;
        check_not_reset(self.call)?;
        admit()?;
        let end = self.call.is_empty();
        let carried = self.call.carried().filter(|_| self.order.mesh);
        let opened = if self.order.request.is_empty() && carried.is_none() {
            self.server.open(self.call.head(), end)
        } else {
            let mut head = self.call.edited_head(&self.order.request);
            if let Some(carried) = carried {
                head.push(INTERNAL, carried);
            }
            self.server.open(&head, end)
        };
        let replayable = self.call.is_replayable();
        self.to_server = Some(opened.map_err(|error| not_opened(error, replayable))?);
        if end {
            self.up = Up::Done;
        }
        Ok(())
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        loop {
            let step = match &mut self.down {
                Down::Head => {
                    self.poll_up(cx)?;
                    self.poll_head(cx)?
                }
                Down::Body => self.poll_body(cx)?,
                Down::Flushing => {
                    let Some(stream) = self.call.stream() else { return Poll::Ready(Ok(())) };
                    match stream.poll_closed(cx) {
                        Poll::Ready(None) => return Poll::Ready(Ok(())),
                        Poll::Ready(Some(reset)) => return Poll::Ready(Err(client_reset(reset))),
                        // The response is complete, so the rest of the request can be cancelled.
                        Poll::Pending if self.up != Up::Done => return Poll::Ready(Ok(())),
                        Poll::Pending => Poll::Pending,
                    }
                }
                Down::Linked(both) => match Pin::new(&mut *both).poll(cx) {
                    Poll::Ready(done) => {
                        let status = both.server_trailers().as_deref().and_then(grpc::status_in);
                        self.exchange.grpc_status = self.exchange.grpc_status.or(status);
                        self.exchange.request_bytes = done.received;
                        self.exchange.response_bytes += done.sent;
                        self.down = Down::Flushing;
                        return Poll::Ready(linked(&done, self.order.mesh));
                    }
                    Poll::Pending => Poll::Pending,
                },
            };
            if step.is_pending() {
                let (order, call) = (&mut *self.order, &*self.call);
                order.poll_permitted(|| Some(call.view()), cx)?;
                return self.poll_bounds(cx);
            }
        }
    }

    /// Passes on the request's body until the response begins, and holds as much as fits for a retry.
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        while self.up == Up::Sending {
            let Some(server) = &mut self.to_server else { break };
            // If the server resets the stream, this is noticed when the response is awaited.
            self.blocked = !matches!(server.poll_capacity(cx), Poll::Ready(Ok(())));
            if self.blocked {
                break;
            }
            match self.call.poll_part(&mut self.held_at, cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(BodyPart::Data(piece))) => server.send_data(piece, false),
                Poll::Ready(Ok(BodyPart::End)) => self.send_end(),
                Poll::Ready(Err(reset)) => return Err(client_reset(reset)),
            }
        }
        Ok(())
    }

    /// Ready when a head has arrived.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, Failure> {
        let Some(server) = &mut self.to_server else { return Ok(Poll::Pending) };
        let head = match server.poll_head(cx) {
            Poll::Ready(Ok(head)) => head,
            // A gRPC server also enforces the client's deadline, and cancels the call when the deadline has passed.
            Poll::Ready(Err(Reset { code: Code::CANCEL, by: ResetBy::Peer, .. }))
                if self.call.is_given_up() =>
            {
                return Err(timed_out(false, true, false));
            }
            Poll::Ready(Err(reset)) => {
                let replayable = self.exchange.first_byte.is_none() && self.call.is_replayable();
                return Err(server_reset(reset, replayable, self.order.mesh));
            }
            Poll::Pending => return check_client(self.call, cx).map(|()| Poll::Pending),
        };
        self.exchange.first_byte.get_or_insert_with(now);
        self.on_head(head).map(Poll::Ready)
    }

    fn on_head(&mut self, mut head: Head) -> Result<(), Failure> {
        let said = take_internal(&mut head);
        let status = head.status().unwrap_or_default();
        let interim = head.is_interim();
        if !interim {
            let replayable = self.call.is_replayable() && !self.exchange.response_started;
            let view = ResponseView::of_http2(&head, status);
            self.order.examine(view, replayable)?;
            self.call.claim();
            self.exchange.status = Some(status);
            self.exchange.response_bytes = head.size() as u64;
            self.exchange.grpc_status = grpc::status_in(&head);
            edit_block(&mut head, &self.order.response);
            self.send_held();
        } else {
            remove_reserved(&mut head, is_mesh_field);
        }
        let succeeds = (200..300).contains(&status);
        let switched = self.call.is_extended_connect() && succeeds;
        if switched || self.call.is_connect() && succeeds {
            self.exchange.upgraded = true;
            self.deadline = self.order.upgraded();
        }
        if self.call.carried().is_some() {
            // The client is a proxy whose own client speaks HTTP/1, so it needs the details of the server's response.
            match said.filter(|_| self.order.mesh) {
                Some(said) => head.push(INTERNAL, &said),
                None if switched && !self.order.mesh => head.push(INTERNAL, SWITCHED),
                None => {}
            }
        }
        let (Some(client), Some(server)) = (self.call.stream(), &mut self.to_server) else {
            return Ok(());
        };
        let end = !interim && server.is_ended_without_rest();
        if client.send_head(&head, end) {
            self.exchange.response_started |= !interim;
        } else if let Some(reset) = client.reset_reason() {
            return Err(client_reset(reset));
        }
        if interim {
            // A server may say for a long time that it is working (102).
            self.stall_until = now().checked_add(self.order.limits.stall_while(true));
            return Ok(());
        }
        if end {
            self.down = Down::Flushing;
        } else if server.reset_reason().is_some() || self.up == Up::Done && server.is_ended() {
            // The rest of the response has arrived, too, or the server has reset the stream.
            self.down = Down::Body;
        } else {
            if grpc::has_grpc(&head) {
                server.keep_trailers();
            }
            self.link();
        }
        Ok(())
    }

    /// Queues those held pieces of the request that were not sent. The connections relay everything after them. The
    /// queue stays short, because no more is held than the limit for held bytes.
    fn send_held(&mut self) {
        self.call.stop_holding(&mut self.held_at);
        let (Up::Sending, Some(server)) = (self.up, &mut self.to_server) else { return };
        for piece in self.call.held_pieces() {
            server.send_data(piece.clone(), false);
        }
        self.held_at = self.call.held_pieces().len();
        self.call.stop_holding(&mut self.held_at);
        if self.call.has_ended() {
            self.send_end();
        }
    }

    /// Ends the request's direction.
    fn send_end(&mut self) {
        if let Some(server) = &mut self.to_server {
            match self.call.trailers() {
                Some(trailers) => server.send_trailers(trailers.clone()),
                None => server.send_data(Piece::default(), true),
            }
        }
        self.up = Up::Done;
    }

    /// Lets the connections relay the rest.
    fn link(&mut self) {
        if let (Some(client), Some(server)) = (self.call.take_stream(), self.to_server.take()) {
            self.down = Down::Linked(link(client, server));
        }
    }

    /// Ready when bytes were passed on.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, Failure> {
        let (Some(client), Some(server)) = (self.call.stream(), &mut self.to_server) else {
            return Ok(Poll::Pending);
        };
        match client.poll_capacity(cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(reset)) => return Err(client_reset(reset)),
            Poll::Pending => return Ok(Poll::Pending),
        }
        match server.poll_data(cx) {
            Poll::Ready(Ok(Some(piece))) => {
                server.release(piece.len());
                client.send_data(piece, false);
            }
            Poll::Ready(Ok(None)) => {
                match server.trailers() {
                    Some(trailers) => {
                        let status = grpc::status_in(&trailers);
                        self.exchange.grpc_status = self.exchange.grpc_status.or(status);
                        client.send_trailers(trailers);
                    }
                    None => client.send_data(Piece::default(), true),
                }
                self.down = Down::Flushing;
            }
            Poll::Ready(Err(reset)) => return Err(server_reset(reset, false, self.order.mesh)),
            Poll::Pending => return check_client(self.call, cx).map(|()| Poll::Pending),
        }
        Ok(Poll::Ready(()))
    }

    /// Applies the deadline, and limits the wait for a response to begin. Once it has begun, the connections themselves
    /// limit stalls; this task does so only if [`Limits::stall_streams`](crate::Limits::stall_streams) is set.
    fn poll_bounds(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let silent = self.exchange.status.is_none();
        let blocked = (silent && self.blocked).then_some(Party::Server);
        let place = stall_blame(blocked, silent && self.up == Up::Done);
        let deadline = self.order.ends_at(self.deadline, silent);
        loop {
            let stall = self.stall_until.filter(|_| silent || self.order.limits.stall_streams);
            let Some(until) = [deadline, stall].into_iter().flatten().min() else {
                return Poll::Pending;
            };
            if self.alarm.poll_at(until, cx).is_pending() {
                return Poll::Pending;
            }
            if deadline == Some(until) {
                if self.exchange.upgraded {
                    return Poll::Ready(Err(outlasted()));
                }
                let replayable = self.call.is_replayable();
                let late = self.order.is_late(until, self.deadline, silent);
                return Poll::Ready(Err(timed_out(late, silent, replayable)));
            }
            let moves = self.moves();
            if std::mem::replace(&mut self.stall_moves, moves) == moves {
                return Poll::Ready(Err(Failure::new(place, Cause::Stalled)));
            }
            self.stall_until = now().checked_add(self.order.limits.stall_while(silent));
        }
    }

    /// A number that grows with the bytes of both bodies.
    fn moves(&mut self) -> u64 {
        let (received, sent) = match &self.down {
            Down::Linked(both) => both.bytes(),
            _ => self.call.stream().map(|stream| stream.bytes()).unwrap_or_default(),
        };
        received + sent
    }

    fn conclude(mut self, outcome: Result<(), Failure>) -> Exchange {
        let head_bytes = self.call.head().size() as u64;
        if let (Down::Linked(both), Err(_)) = (&self.down, &outcome) {
            // The exchange ended early, so the link did not report its bytes.
            let (received, sent) = both.bytes();
            self.exchange.request_bytes = received;
            self.exchange.response_bytes += sent;
        }
        if let Some(stream) = self.call.stream() {
            let (received, sent) = stream.bytes();
            self.exchange.request_bytes = received;
            self.exchange.response_bytes += sent;
        }
        self.exchange.request_bytes += head_bytes;
        if let (Err(_), Some(server)) = (&outcome, self.to_server.take()) {
            // The response is no longer needed. If the stream is complete, this has no effect.
            server.reset(Code::CANCEL);
        }
        self.exchange.client_reusable = outcome.is_ok();
        self.exchange.server_reusable = self.server.is_open();
        self.exchange.failure = outcome.err();
        self.exchange
    }
}
