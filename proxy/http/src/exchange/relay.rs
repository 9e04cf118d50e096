//! The two directions of an exchange, polled together.

mod response;

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::Instant;

use super::bounds::{Bounds, Standing};
use super::client::{After, Down, Up, check_left};
use super::outcome::lost;
use super::pump::Pump;
use super::{Exchange, Judge, Order};
use crate::Io;
use crate::body::BodyWalker;
use crate::conn::Conn;
use crate::edit::Plan;
use crate::failure::{Cause, Failure, Place};
use crate::head::{Framing, RequestHead, ResponseHead};

/// Whether one side's half-close was passed on to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Wanted,
    Sent,
}

pub(super) struct Relay<'r, 'a, C, S, J> {
    client: &'r mut Conn<C>,
    server: &'r mut Conn<S>,
    request: &'r RequestHead,
    order: &'r mut Order<'a, J>,
    to_head: bool,
    up: Pump<'a>,
    up_state: Up,
    down: Pump<'a>,
    down_state: Down,
    head: ResponseHead,
    /// A 100 has been forwarded.
    continued: bool,
    /// The client was told that its connection stays open.
    keep_client: bool,
    /// The server means to keep its connection open.
    keep_server: bool,
    end_to_server: End,
    end_to_client: End,
    write_error: Option<std::io::Error>,
    /// Reads so far, and writes of pumps that are gone.
    moves: u64,
    bounds: Bounds,
    exchange: Exchange,
}

impl<'r, 'a, C: Io, S: Io, J: Judge> Relay<'r, 'a, C, S, J> {
    pub(super) fn new(
        client: &'r mut Conn<C>,
        request: &'r RequestHead,
        server: &'r mut Conn<S>,
        order: &'r mut Order<'a, J>,
    ) -> Self {
        let started = Instant::now();
        let plan = if client.lost {
            Plan::default()
        } else {
            Plan::request(request, client.received.bytes(), &order.request)
        };
        let walker = BodyWalker::of_request(request, client.received.bytes());
        Self {
            to_head: request.is_head,
            up: Pump::new(request.len(), plan, walker),
            up_state: Up::Sending,
            down: Pump::new(0, Plan::default(), BodyWalker::new(Framing::None)),
            down_state: Down::Head,
            head: ResponseHead::default(),
            continued: false,
            keep_client: false,
            keep_server: false,
            end_to_server: End::Open,
            end_to_client: End::Open,
            write_error: None,
            moves: 0,
            bounds: Bounds::new(started, order.limits),
            exchange: Exchange::new(started),
            client,
            server,
            request,
            order,
        }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        if self.client.lost {
            return Poll::Ready(Err(Failure::new(Place::Client, Cause::Closed)));
        }
        if self.moves() == 0 && self.up_state == Up::Sending {
            self.approve_up()?;
            if self.up.walker.is_done() {
                // A client that has left between two tries is not served.
                self.client.read_ahead(cx)?;
            }
        }
        loop {
            self.poll_up(cx)?;
            let upgraded = self.exchange.upgraded;
            self.poll_down(cx)?;
            if upgraded != self.exchange.upgraded {
                continue;
            }
            if self.down_state != Down::Done {
                break;
            }
            match self.after_response() {
                After::Over => return Poll::Ready(Ok(())),
                After::Again => {}
                After::Wait => break,
            }
        }
        self.order.poll_permitted(|| None, cx)?;
        self.watch_client(cx)?;
        self.poll_ends(cx);
        self.poll_bounds(cx)
    }

    /// Reports how the exchange went and what both connections are good for.
    pub(super) fn conclude(mut self, outcome: Result<(), Failure>) -> Exchange {
        let request_over = self.up_state == Up::Done && self.up.walker.is_done();
        let mut exchange = self.exchange;
        exchange.request_bytes = self.up.total;
        exchange.response_bytes = self.down.total;
        exchange.failure = outcome.err();
        if let Some(failure) = &exchange.failure {
            self.client.lost |= self.up.used;
            // Nothing was sent for a client that had left before.
            exchange.server_reusable =
                failure.place == Place::Client && self.up.moved == 0 && self.server.is_quiet();
            self.server.lost |= !exchange.server_reusable;
            if exchange.upgraded {
                // An orderly end would look like the other protocol's own.
                self.server.io.reset_on_drop();
            }
            return exchange;
        }
        self.up.discard();
        self.up.release(&mut self.client.received);
        self.down.release(&mut self.server.received);
        self.client.received.settle();
        self.server.received.settle();
        self.client.exchanges += 1;
        self.server.exchanges += 1;
        exchange.client_reusable = self.keep_client && request_over && !exchange.upgraded;
        self.client.last = request_over && !self.request.keep_alive() && !exchange.upgraded;
        exchange.server_reusable = self.keep_server
            && request_over
            && self.write_error.is_none()
            && self.end_to_server == End::Open
            && self.server.received.is_empty()
            && !exchange.upgraded;
        self.client.lost |= !exchange.client_reusable;
        self.server.lost |= !exchange.server_reusable;
        exchange
    }

    fn poll_up(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        loop {
            match self.up_state {
                Up::Done | Up::Broken => return Ok(()),
                Up::Discarding => self.up.discard(),
                Up::Sending => {
                    let received = &self.client.received;
                    match self.up.poll_write(received, &mut self.server.io, cx) {
                        Poll::Pending => return Ok(()),
                        Poll::Ready(Ok(())) => {}
                        Poll::Ready(Err(error)) => {
                            self.write_error = Some(error);
                            self.up_state = Up::Broken;
                            return Ok(());
                        }
                    }
                }
            }
            if self.up.walker.is_done() {
                self.up_state = Up::Done;
                return Ok(());
            }
            // Written bytes are held for a retry as long as that takes no larger buffer.
            if self.down_state != Down::Head || !self.client.received.has_room() {
                self.up.release(&mut self.client.received);
            }
            match self.client.received.poll_fill(&mut self.client.io, cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) => {
                    self.client.read_closed = true;
                    if !self.up.walker.finish() {
                        return Err(Failure::new(Place::Client, Cause::Closed));
                    }
                    self.end_to_server = End::Wanted;
                }
                Poll::Ready(Ok(_)) => {
                    self.moves += 1;
                    self.approve_up()?;
                }
                Poll::Ready(Err(error)) => {
                    return Err(Failure::new(Place::Client, Cause::Broken(error)));
                }
            }
        }
    }

    fn approve_up(&mut self) -> Result<(), Failure> {
        let refused = |error| Failure::new(Place::Client, Cause::Body(error));
        self.up.approve(&mut self.client.received).map_err(refused)
    }

    /// The response is over; the request may not be.
    fn after_response(&mut self) -> After {
        if self.up_state == Up::Done || self.exchange.upgraded && self.up_state == Up::Broken {
            return if self.end_to_client == End::Wanted { After::Wait } else { After::Over };
        }
        if self.exchange.upgraded {
            return After::Wait;
        }
        let moves = self.moves();
        self.bounds.begin_linger(moves, self.order.limits);
        self.up_state.after_response(self.keep_client)
    }

    /// While a response is awaited or under way: reads early requests as far as there is room, and
    /// passes the client's half-close on, so that the server sees what it would see without a proxy.
    fn watch_client(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        if self.up_state != Up::Done || self.exchange.upgraded {
            return Ok(());
        }
        self.client.read_ahead(cx)?;
        let more_requests = !self.up.is_last(&self.client.received);
        if self.client.read_closed && !more_requests && self.end_to_server == End::Open {
            self.end_to_server = End::Wanted;
        }
        Ok(())
    }

    fn poll_ends(&mut self, cx: &mut Context<'_>) {
        // If the shutdown fails, reading the other direction reports it.
        if self.end_to_server == End::Wanted
            && self.up_state == Up::Done
            && Pin::new(&mut self.server.io).poll_shutdown(cx).is_ready()
        {
            self.end_to_server = End::Sent;
        }
        if self.end_to_client == End::Wanted
            && self.down_state == Down::Done
            && Pin::new(&mut self.client.io).poll_shutdown(cx).is_ready()
        {
            self.end_to_client = End::Sent;
        }
    }

    fn poll_bounds(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        if self.end_to_client == End::Sent && self.up_state != Up::Sending {
            return Poll::Ready(Ok(()));
        }
        let moves = self.moves();
        let blocked = if self.down_state != Down::Done && self.down.is_blocked() {
            Some(Place::Client)
        } else if self.up_state == Up::Sending && self.up.is_blocked() {
            Some(Place::Server)
        } else {
            None
        };
        let now = Standing {
            moves,
            blocked,
            sending: self.up_state == Up::Sending,
            silent: self.exchange.first_byte.is_none(),
            replayable: !self.up.used,
            upgraded: self.exchange.upgraded,
            deadline: self.order.deadline,
        };
        let may_have_left = (self.client.read_closed || now.sending) && !now.upgraded;
        let (client, server) = (&self.client.io, &self.server.io);
        let examine = || {
            if may_have_left {
                check_left(client)?;
            }
            lost(client.is_unanswered(), server.is_unanswered(), now.silent && now.replayable)
        };
        self.bounds.poll((&mut self.client.alarm, cx), self.order, now, examine)
    }

    /// Grows with every byte that moves.
    fn moves(&self) -> u64 {
        self.moves + self.up.moved + self.down.moved
    }
}
