//! From a stream of a client's HTTP/2 connection to an HTTP/1 server.

mod response;

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use leno_h2::Reset;
use leno_hpack::Token;
use leno_transport::test_panic;
use tokio::time::Instant;

use super::bounds::{Bounds, Standing};
use super::incoming::Incoming;
use super::outcome::{admit, client_reset, is_waited_for, lost};
use super::outgoing::Outgoing;
use super::{Exchange, Judge, Order};
use crate::Io;
use crate::body::{BodyError, BodyWalker};
use crate::call::{Call, Part};
use crate::conn::Conn;
use crate::failure::{Cause, Failure, Place};
use crate::head::{Framing, HeadError, ResponseHead};
use crate::translate::request::{self, Http1Request};
use crate::translate::websocket;

/// Relays a request to an HTTP/1 server, and the response back. The call is handled as in
/// [`h2_to_h2`](super::h2_to_h2), the server as in [`exchange`](super::exchange()).
pub async fn h2_to_h1<S: Io, J: Judge>(
    call: &mut Call,
    server: &mut Conn<S>,
    order: &mut Order<'_, J>,
) -> Exchange {
    test_panic("request", call.view().target());
    let mut relay = Relay::new(call, server, order);
    let outcome = match relay.open() {
        Ok(()) => poll_fn(|cx| relay.poll(cx)).await,
        Err(failure) => Err(failure),
    };
    relay.conclude(outcome)
}

/// The request's direction: `Sending ──► Done`, and `Sending` again after an upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Up {
    Sending,
    /// Sending failed, and the server may still have said why; or a final response came in place of a
    /// 100, so that the client may or may not send the body.
    Broken,
    Done,
}

/// The response's direction: `Head ──(1xx)──► Head ──(final)──► Body ──► Done`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Down {
    Head,
    Body,
    Done,
}

struct Relay<'r, 'a, S, J> {
    call: &'r mut Call,
    server: &'r mut Conn<S>,
    order: &'r mut Order<'a, J>,
    to_head: bool,
    expects_continue: bool,
    continued: bool,
    /// There is a head to be sent.
    opened: bool,
    /// The request asks for another protocol, or is a CONNECT.
    upgrade: bool,
    websocket_key: Option<[u8; websocket::KEY_BYTES]>,
    out: Outgoing,
    held_at: usize,
    up: Up,
    head: ResponseHead,
    body: Incoming,
    down: Down,
    keep_server: bool,
    /// After an upgrade: the client has ended its direction, and the server was told.
    shut: bool,
    write_error: Option<std::io::Error>,
    deadline: Option<Instant>,
    bounds: Bounds,
    /// Reads so far.
    moves: u64,
    exchange: Exchange,
}

impl<'r, 'a, S: Io, J: Judge> Relay<'r, 'a, S, J> {
    fn new(call: &'r mut Call, server: &'r mut Conn<S>, order: &'r mut Order<'a, J>) -> Self {
        let started = Instant::now();
        let head = call.head();
        let expect = head.find(Token::EXPECT);
        Self {
            to_head: head.find(Token::METHOD) == Some(b"HEAD"),
            expects_continue: expect.is_some_and(|to| to.eq_ignore_ascii_case(b"100-continue")),
            continued: false,
            opened: false,
            upgrade: false,
            websocket_key: None,
            out: Outgoing::new(),
            held_at: 0,
            up: Up::Sending,
            head: ResponseHead::default(),
            body: Incoming::new(BodyWalker::new(Framing::None)),
            down: Down::Head,
            keep_server: false,
            shut: false,
            write_error: None,
            deadline: [order.deadline, call.deadline()].into_iter().flatten().min(),
            bounds: Bounds::new(started, order.limits),
            moves: 0,
            exchange: Exchange::new(started),
            call,
            server,
            order,
        }
    }

    /// Makes the request's head.
    fn open(&mut self) -> Result<(), Failure> {
        let refused = |error: HeadError| Failure::new(Place::Client, Cause::Head(error));
        let call = &*self.call;
        call.check(self.order.connect).map_err(refused)?;
        is_waited_for(call)?;
        admit()?;
        let empty = call.is_empty();
        let rendered = if self.order.request.is_empty() {
            request::to_h1(call.head(), call.carried(), empty)
        } else {
            let head = call.edited_head(&self.order.request);
            request::to_h1(&head, call.carried(), empty)
        };
        let Http1Request { head, framing, upgrade, websocket_key } = rendered.map_err(refused)?;
        self.upgrade = upgrade;
        self.websocket_key = websocket_key;
        self.expects_continue &= framing != Framing::None;
        self.out.begin(head, framing);
        self.opened = true;
        Ok(())
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        loop {
            self.poll_up(cx)?;
            let upgraded = self.exchange.upgraded;
            self.poll_down(cx)?;
            if upgraded == self.exchange.upgraded {
                break;
            }
        }
        if self.down == Down::Done {
            if self.up == Up::Done || self.up == Up::Broken {
                return Poll::Ready(Ok(()));
            }
            if !self.exchange.upgraded {
                // The server may still use what the client sends.
                let moves = self.moves();
                self.bounds.begin_linger(moves, self.order.limits);
            }
        } else if let Some(client) = self.call.stream()
            && let Poll::Ready(Some(reset)) = client.poll_closed(cx)
        {
            return Poll::Ready(Err(client_reset(reset)));
        }
        let (order, call) = (&mut *self.order, &*self.call);
        order.poll_permitted(|| Some(call.view()), cx)?;
        // If the shutdown fails, reading from the server reports it.
        if self.exchange.upgraded
            && self.up == Up::Done
            && !self.shut
            && Pin::new(&mut self.server.io).poll_shutdown(cx).is_ready()
        {
            self.shut = true;
        }
        self.poll_bounds(cx)
    }

    fn poll_up(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        while self.up == Up::Sending {
            while self.out.has_room() {
                match self.call.poll_part(&mut self.held_at, cx) {
                    Poll::Pending => break,
                    Poll::Ready(Ok(part)) => {
                        self.moves += 1;
                        self.take(part).map_err(refused_body)?;
                    }
                    Poll::Ready(Err(reset)) => return self.client_gone(reset),
                }
            }
            if self.out.is_empty() && !self.out.is_finished() {
                return Ok(());
            }
            match self.out.poll_write(&mut self.server.io, cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(_)) if self.out.is_finished() => self.up = Up::Done,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => {
                    self.write_error = Some(error);
                    self.up = Up::Broken;
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, part: Part) -> Result<(), BodyError> {
        match part {
            Part::Data(piece) => self.out.push(piece),
            Part::End => self.out.end(self.call.trailers().map(|head| &**head)),
        }
    }

    /// The client has reset its stream. That matters until its response is complete.
    fn client_gone(&mut self, reset: Reset) -> Result<(), Failure> {
        if self.down == Down::Done && !self.exchange.upgraded {
            self.up = Up::Broken;
            return Ok(());
        }
        Err(client_reset(reset))
    }

    fn poll_bounds(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let blocked = self.up == Up::Sending && !self.out.is_empty();
        let now = Standing {
            moves: self.moves(),
            blocked: blocked.then_some(Place::Server),
            sending: self.up == Up::Sending,
            silent: self.exchange.first_byte.is_none(),
            replayable: self.call.is_replayable(),
            upgraded: self.exchange.upgraded,
            deadline: self.deadline,
        };
        let server = &self.server.io;
        let examine = || lost(false, server.is_unanswered(), now.silent && now.replayable);
        self.bounds.poll((&mut self.server.alarm, cx), self.order, now, examine)
    }

    /// Grows with everything that moves.
    fn moves(&self) -> u64 {
        self.moves + self.out.moved
    }

    fn conclude(mut self, outcome: Result<(), Failure>) -> Exchange {
        self.exchange.request_bytes = self.call.head().size() as u64;
        if let Some(client) = self.call.stream() {
            self.exchange.request_bytes += client.bytes().0;
        }
        let mut exchange = self.exchange;
        exchange.failure = outcome.err();
        if exchange.failure.is_some() {
            // Nothing was sent of a request that could not be translated or admitted.
            exchange.server_reusable = !self.opened && self.server.is_quiet();
            self.server.lost |= self.opened;
            if exchange.upgraded {
                // An orderly end would look like the other protocol's own.
                self.server.io.reset_on_drop();
            }
            return exchange;
        }
        self.server.received.settle();
        self.server.exchanges += 1;
        exchange.client_reusable = !exchange.upgraded;
        exchange.server_reusable = self.keep_server
            && self.up == Up::Done
            && self.write_error.is_none()
            && self.server.received.is_empty()
            && !exchange.upgraded;
        self.server.lost |= !exchange.server_reusable;
        exchange
    }
}

fn refused_body(error: BodyError) -> Failure {
    Failure::new(Place::Client, Cause::Body(error))
}
