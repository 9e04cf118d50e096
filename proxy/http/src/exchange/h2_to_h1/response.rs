//! The response's direction, from HTTP/1 to a stream.

use std::task::{Context, Poll};

use leno_h2::{Head, Piece};
use leno_hpack::Token;
use tokio::time::Instant;

use super::{Down, Relay, Up};
use crate::Io;
use crate::body::BodyWalker;
use crate::edit::Edits;
use crate::exchange::Judge;
use crate::exchange::incoming::Incoming;
use crate::exchange::outcome::client_reset;
use crate::exchange::server::{refused_head, server_lost};
use crate::failure::{Cause, Failure, Place};
use crate::head::{Framing, ResponseHead, grants};
use crate::translate::{response, websocket};
use crate::writer::Rendered;

impl<S: Io, J: Judge> Relay<'_, '_, S, J> {
    pub(super) fn poll_down(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        while self.down != Down::Done {
            if self.down == Down::Head && self.parse_head()? {
                if self.exchange.upgraded && self.up == Up::Sending {
                    return Ok(());
                }
                continue;
            }
            if self.down == Down::Body && !self.pass_body(cx)? {
                return Ok(());
            }
            if self.down == Down::Done {
                return Ok(());
            }
            match self.server.received.poll_fill(&mut self.server.io, cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) => self.server_ended(Cause::Closed)?,
                Poll::Ready(Err(error)) => self.server_ended(Cause::Broken(error))?,
                Poll::Ready(Ok(_)) => {
                    self.moves += 1;
                    self.exchange.first_byte.get_or_insert_with(Instant::now);
                }
            }
        }
        Ok(())
    }

    /// Passes on what was received. Whether more is to be read: not while the client has enough.
    fn pass_body(&mut self, cx: &mut Context<'_>) -> Result<bool, Failure> {
        let Some(client) = self.call.stream() else { return Ok(false) };
        loop {
            match client.poll_capacity(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(reset)) => return Err(client_reset(reset)),
                Poll::Pending => return Ok(false),
            }
            let bytes = self.server.received.bytes();
            let refused = |error| Failure::new(Place::Server, Cause::Body(error));
            let (count, goes_on) = self.body.send(bytes, client).map_err(refused)?;
            self.exchange.response_bytes += count as u64;
            self.server.received.consume(count);
            if self.body.walker.is_done() {
                self.down = Down::Done;
            }
            if !goes_on {
                return Ok(true);
            }
        }
    }

    fn server_ended(&mut self, cause: Cause) -> Result<(), Failure> {
        self.server.read_closed = true;
        if self.down == Down::Body && matches!(cause, Cause::Closed) && self.body.walker.finish() {
            if let Some(client) = self.call.stream() {
                client.send_data(Piece::default(), true);
            }
            self.down = Down::Done;
            return Ok(());
        }
        let retryable = self.exchange.first_byte.is_none() && self.call.is_replayable();
        Err(server_lost(cause, self.write_error.take(), retryable))
    }

    /// Whether a head was there, and the direction's state has moved on.
    fn parse_head(&mut self) -> Result<bool, Failure> {
        let retryable = self.call.is_replayable() && !self.exchange.response_started;
        let refused = |error| refused_head(error, retryable);
        let bytes = self.server.received.bytes();
        if bytes.is_empty() || !self.head.parse(bytes, self.order.limits).map_err(refused)? {
            return Ok(false);
        }
        if self.head.status() == 101 {
            self.begin_upgrade()?;
        } else if self.head.is_interim() {
            self.continued |= self.head.status() == 100;
            let head = self.translate(false)?;
            self.send_head(&head, false)?;
            self.head = ResponseHead::default();
        } else if self.call.is_connect() && (200..300).contains(&self.head.status()) {
            self.begin_tunnel()?;
        } else {
            self.begin_response()?;
        }
        Ok(true)
    }

    /// The head as fields; uses up its bytes.
    fn translate(&mut self, edited: bool) -> Result<Head, Failure> {
        let none = Edits::default();
        let edits = if edited { &self.order.response } else { &none };
        let carry = self.call.carried().is_some();
        let bytes = self.server.received.bytes();
        let refused = |error| refused_head(error, false);
        let head = response::to_h2(&self.head, bytes, edits, carry).map_err(refused)?;
        self.server.received.consume(self.head.len());
        Ok(head)
    }

    fn send_head(&mut self, head: &Head, end: bool) -> Result<(), Failure> {
        let Some(client) = self.call.stream() else { return Ok(()) };
        if client.send_head(head, end) {
            self.exchange.response_started = true;
        } else if let Some(reset) = client.reset_reason() {
            return Err(client_reset(reset));
        }
        Ok(())
    }

    fn begin_response(&mut self) -> Result<(), Failure> {
        let replayable = self.call.is_replayable() && !self.exchange.response_started;
        self.server.check_stale(&self.head, replayable && self.up == Up::Done)?;
        let view = self.head.view(self.server.received.bytes());
        self.order.examine(view, replayable)?;
        self.call.claim();
        let status = self.head.status();
        if self.upgrade && self.call.carried().is_none() && (200..300).contains(&status) {
            // The client would take it for another protocol.
            return Err(Failure::new(Place::Server, Cause::UpgradeIgnored));
        }
        let framing = self.head.framing(self.to_head);
        self.keep_server = self.exchange.begin_response(&self.head, framing);
        if self.expects_continue && !self.continued && !self.call.has_begun() {
            // Without a 100 the client may or may not send the body.
            self.up = Up::Broken;
        }
        self.call.stop_holding();
        self.exchange.response_bytes = self.head.len() as u64;
        let bytes = self.server.received.bytes();
        self.body = Incoming::new(BodyWalker::of_response(&self.head, bytes, framing));
        let head = self.translate(true)?;
        let end = self.body.walker.is_done();
        self.send_head(&head, end)?;
        self.down = if end { Down::Done } else { Down::Body };
        Ok(())
    }

    /// Whether a 101 names the protocol that the request asks for.
    fn is_granted(&self) -> bool {
        let response = self.head.view(self.server.received.bytes());
        let protocol = self.call.head().find(Token::PROTOCOL);
        grants(response.values("upgrade"), protocol.into_iter())
    }

    fn begin_upgrade(&mut self) -> Result<(), Failure> {
        if !self.upgrade || self.up != Up::Done || !self.is_granted() {
            return Err(Failure::new(Place::Server, Cause::UnaskedUpgrade));
        }
        if let Some(key) = self.websocket_key {
            let view = self.head.view(self.server.received.bytes());
            let expected = websocket::accept(&key);
            let given = view.header("sec-websocket-accept");
            if expected.as_ref().map(|accept| &accept[..]) != given {
                return Err(Failure::new(Place::Server, Cause::UpgradeIgnored));
            }
        }
        let mut head = self.take_over()?;
        if self.call.carried().is_none() {
            head.remove_all(b"sec-websocket-accept");
        }
        self.pass_through(&head)
    }

    /// A CONNECT has succeeded. No field frames what follows (RFC 9110 section 9.3.6).
    fn begin_tunnel(&mut self) -> Result<(), Failure> {
        if self.up != Up::Done {
            return Err(Failure::new(Place::Server, Cause::UnaskedUpgrade));
        }
        let replayable = self.call.is_replayable() && !self.exchange.response_started;
        let view = self.head.view(self.server.received.bytes());
        self.order.examine(view, replayable)?;
        self.call.claim();
        let mut head = self.take_over()?;
        head.remove_all(b"content-length");
        self.pass_through(&head)
    }

    /// What follows the head is not HTTP/1 any more, in both directions.
    fn take_over(&mut self) -> Result<Head, Failure> {
        self.exchange.status = Some(self.head.status());
        self.exchange.upgraded = true;
        self.deadline = self.order.upgraded();
        self.call.stop_holding();
        self.exchange.response_bytes = self.head.len() as u64;
        self.translate(true)
    }

    fn pass_through(&mut self, head: &Head) -> Result<(), Failure> {
        self.send_head(head, false)?;
        self.out.begin(Rendered::default(), Framing::UntilClose);
        self.up = Up::Sending;
        self.body = Incoming::new(BodyWalker::new(Framing::UntilClose));
        self.down = Down::Body;
        Ok(())
    }
}
