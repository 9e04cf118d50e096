//! From an HTTP/1 client to a stream of a server's HTTP/2 connection.

mod response;

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use leno_h2::{Client, Code, Piece, Stream};
use leno_hpack::Token;
use leno_transport::test_panic;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::bounds::{Bounds, Standing};
use super::client::{After, Down, Up, check_left};
use super::incoming::Incoming;
use super::outcome::{lost, not_opened};
use super::outgoing::Outgoing;
use super::{Exchange, Judge, Order};
use crate::Io;
use crate::body::BodyWalker;
use crate::conn::Conn;
use crate::failure::{Cause, Failure, Place};
use crate::head::{Framing, RequestHead};
use crate::translate::request;

/// Relays `request`, which [`Conn::read_request`] has just found on `client`, to a new stream of
/// `server` and the response back. After a retryable failure the same request can be relayed to
/// another server. Does not wait for a free stream on `server`: see [`leno_h2::Client::ready`].
pub async fn h1_to_h2<C: Io, J: Judge>(
    client: &mut Conn<C>,
    request: &RequestHead,
    server: &Client,
    order: &mut Order<'_, J>,
) -> Exchange {
    test_panic("request", request.target.of(client.received.bytes()));
    if let Err(refused) = order.check_connect(request) {
        return Exchange::ended(refused);
    }
    let mut relay = Relay::new(client, request, server, order);
    let outcome = match poll_fn(|cx| Poll::Ready(relay.open(cx))).await {
        Ok(()) => poll_fn(|cx| relay.poll(cx)).await,
        Err(failure) => Err(failure),
    };
    relay.conclude(outcome)
}

struct Relay<'r, 'a, C, J> {
    client: &'r mut Conn<C>,
    request: &'r RequestHead,
    server: &'r Client,
    order: &'r mut Order<'a, J>,
    to_server: Option<Stream>,
    to_head: bool,
    /// The protocol that an extended CONNECT asks for.
    protocol: Option<SmallVec<[u8; 16]>>,
    body: Incoming,
    /// Received bytes that belong to the request and were passed on.
    at: usize,
    /// Some of them were used up, so that the request cannot be sent again.
    used: bool,
    total: u64,
    up: Up,
    out: Outgoing,
    down: Down,
    continued: bool,
    keep_client: bool,
    /// After an upgrade: the server has ended its direction, and the client was told.
    shut: bool,
    bounds: Bounds,
    /// Reads so far.
    moves: u64,
    exchange: Exchange,
}

impl<'r, 'a, C: Io, J: Judge> Relay<'r, 'a, C, J> {
    fn new(
        client: &'r mut Conn<C>,
        request: &'r RequestHead,
        server: &'r Client,
        order: &'r mut Order<'a, J>,
    ) -> Self {
        let started = Instant::now();
        Self {
            to_server: None,
            to_head: request.is_head,
            protocol: None,
            body: Incoming::new(BodyWalker::of_request(request, client.received.bytes())),
            at: request.len(),
            used: false,
            total: request.len() as u64,
            up: Up::Sending,
            out: Outgoing::new(),
            down: Down::Head,
            continued: false,
            keep_client: false,
            shut: false,
            bounds: Bounds::new(started, order.limits),
            moves: 0,
            exchange: Exchange::new(started),
            client,
            request,
            server,
            order,
        }
    }

    /// Sends the request's head.
    fn open(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        if self.client.lost {
            return Err(Failure::new(Place::Client, Cause::Closed));
        }
        if self.request.framing() == Framing::None {
            // A client that has left between two tries is not served.
            self.client.read_ahead(cx)?;
        }
        let mesh = self.order.mesh;
        let to = request::ToH2 { mesh, connect: mesh || self.server.takes_connect_protocol() };
        let bytes = self.client.received.bytes();
        let (head, upgrade) = request::to_h2(self.request, bytes, &self.order.request, to)
            .map_err(|error| Failure::new(Place::Client, Cause::Head(error)))?;
        if upgrade {
            self.protocol = head.find(Token::PROTOCOL).map(SmallVec::from_slice);
        }
        let end = self.request.framing() == Framing::None && !upgrade;
        let stream = self.server.open(&head, end).map_err(|error| not_opened(error, true))?;
        self.to_server = Some(stream);
        if self.request.framing() == Framing::None {
            // After an upgrade it goes on.
            self.up = Up::Done;
        }
        Ok(())
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        loop {
            self.poll_up(cx)?;
            let upgraded = self.exchange.upgraded;
            self.poll_down(cx)?;
            if upgraded != self.exchange.upgraded {
                continue;
            }
            if self.down != Down::Done {
                break;
            }
            match self.after_response(cx) {
                After::Over => return Poll::Ready(Ok(())),
                After::Again => {}
                After::Wait => break,
            }
        }
        self.watch_client(cx)?;
        self.poll_bounds(cx)
    }

    /// The response is over; the request may not be.
    fn after_response(&mut self, cx: &mut Context<'_>) -> After {
        if self.exchange.upgraded {
            // If the shutdown fails, reading from the client reports it.
            if !self.shut {
                self.shut = Pin::new(&mut self.client.io).poll_shutdown(cx).is_ready();
            }
            let over = self.shut && self.up != Up::Sending;
            return if over { After::Over } else { After::Wait };
        }
        if self.up == Up::Done {
            return After::Over;
        }
        let moves = self.moves();
        self.bounds.begin_linger(moves, self.order.limits);
        self.up.after_response(self.keep_client)
    }

    fn poll_up(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        loop {
            match self.up {
                Up::Done | Up::Broken => return Ok(()),
                Up::Discarding => self.discard()?,
                Up::Sending => {
                    if !self.send(cx)? {
                        return Ok(());
                    }
                }
            }
            if matches!(self.up, Up::Done | Up::Broken) {
                return Ok(());
            }
            // Bytes that were sent are held for a retry as long as that takes no larger buffer.
            if self.down != Down::Head || !self.client.received.has_room() {
                self.release();
            }
            match self.client.received.poll_fill(&mut self.client.io, cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) => {
                    self.client.read_closed = true;
                    if !self.body.walker.finish() {
                        return Err(Failure::new(Place::Client, Cause::Closed));
                    }
                    self.end_sending();
                }
                Poll::Ready(Ok(_)) => self.moves += 1,
                Poll::Ready(Err(error)) => {
                    return Err(Failure::new(Place::Client, Cause::Broken(error)));
                }
            }
        }
    }

    /// Sends the part of the body that was received. Whether to read more: not while the server grants
    /// no more room.
    fn send(&mut self, cx: &mut Context<'_>) -> Result<bool, Failure> {
        let Some(server) = &mut self.to_server else { return Ok(false) };
        loop {
            match server.poll_capacity(cx) {
                Poll::Ready(Ok(())) => {}
                // Waiting for the response yields the reason.
                Poll::Ready(Err(_)) => {
                    self.up = Up::Broken;
                    return Ok(true);
                }
                Poll::Pending => return Ok(false),
            }
            let bytes = &self.client.received.bytes()[self.at..];
            let refused = |error| Failure::new(Place::Client, Cause::Body(error));
            let (count, goes_on) = self.body.send(bytes, server).map_err(refused)?;
            self.at += count;
            self.total += count as u64;
            if self.body.walker.is_done() {
                self.up = Up::Done;
            }
            if !goes_on {
                return Ok(true);
            }
        }
    }

    fn discard(&mut self) -> Result<(), Failure> {
        let refused = |error| Failure::new(Place::Client, Cause::Body(error));
        let bytes = &self.client.received.bytes()[self.at..];
        let count = self.body.walker.walk(bytes).map_err(refused)?;
        self.at += count;
        self.total += count as u64;
        if self.body.walker.is_done() {
            self.up = Up::Done;
        }
        Ok(())
    }

    /// The client has ended an upgraded connection in its direction.
    fn end_sending(&mut self) {
        if let Some(server) = &mut self.to_server {
            server.send_data(Piece::default(), true);
        }
        self.up = Up::Done;
    }

    /// Drops the bytes that were passed on.
    fn release(&mut self) {
        if self.at > 0 {
            self.client.received.consume(self.at);
            self.at = 0;
            self.used = true;
        }
    }

    /// While a response is awaited or under way: reads early requests as far as there is room, and
    /// notices that the client has left. A client that only sends no more is still served.
    fn watch_client(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        if self.up != Up::Done || self.exchange.upgraded {
            return Ok(());
        }
        self.client.read_ahead(cx)
    }

    fn poll_bounds(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let blocked = self.down != Down::Done && !self.out.is_empty();
        let now = Standing {
            moves: self.moves(),
            blocked: blocked.then_some(Place::Client),
            sending: self.up == Up::Sending,
            silent: self.exchange.first_byte.is_none(),
            replayable: !self.used,
            upgraded: self.exchange.upgraded,
            deadline: self.order.deadline,
        };
        let may_have_left = (self.client.read_closed || now.sending) && !now.upgraded;
        let client = &self.client.io;
        let examine = || {
            if may_have_left {
                check_left(client)?;
            }
            lost(client.is_unanswered(), false, false)
        };
        self.bounds.poll((&mut self.client.alarm, cx), self.order, now, examine)
    }

    /// Grows with everything that moves.
    fn moves(&self) -> u64 {
        self.moves + self.out.moved
    }

    fn conclude(mut self, outcome: Result<(), Failure>) -> Exchange {
        if let (Err(_), Some(server)) = (&outcome, self.to_server.take()) {
            server.reset(Code::CANCEL);
        }
        self.exchange.request_bytes = self.total;
        self.exchange.server_reusable = self.server.is_open();
        if let Err(failure) = outcome {
            self.exchange.failure = Some(failure);
            self.client.lost |= self.used;
            return self.exchange;
        }
        self.release();
        self.client.received.settle();
        self.client.exchanges += 1;
        let request_over = self.up == Up::Done && self.body.walker.is_done();
        self.exchange.client_reusable = self.keep_client && request_over && !self.exchange.upgraded;
        self.client.lost |= !self.exchange.client_reusable;
        self.exchange
    }
}
