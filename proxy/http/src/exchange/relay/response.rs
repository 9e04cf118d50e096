//! The response's direction of an exchange.

use std::task::{Context, Poll};

use tokio::time::Instant;

use super::{End, Relay};
use crate::Io;
use crate::body::BodyWalker;
use crate::edit::{Plan, ToClient};
use crate::exchange::Judge;
use crate::exchange::client::{Down, Up};
use crate::exchange::pump::Pump;
use crate::exchange::server::{refused_head, server_lost};
use crate::failure::{Cause, Failure, Place};
use crate::head::{Framing, ResponseHead, Version, grants};

impl<'a, C: Io, S: Io, J: Judge> Relay<'_, 'a, C, S, J> {
    pub(super) fn poll_down(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        loop {
            if self.down_state == Down::Done {
                return Ok(());
            }
            if self.down_state != Down::Head {
                let received = &self.server.received;
                match self.down.poll_write(received, &mut self.client.io, cx) {
                    Poll::Pending => {
                        // Some of it may have been written.
                        self.exchange.response_started = true;
                        return Ok(());
                    }
                    Poll::Ready(Ok(())) if self.down_state == Down::Body => {
                        self.exchange.response_started |= self.down.moved > 0;
                    }
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(error)) => {
                        self.exchange.response_started = true;
                        return Err(Failure::new(Place::Client, Cause::Broken(error)));
                    }
                }
                self.down.release(&mut self.server.received);
            }
            match self.down_state {
                Down::Interim => {
                    self.down_state = Down::Head;
                    self.head = ResponseHead::default();
                }
                Down::Body if self.down.walker.is_done() => {
                    self.down_state = Down::Done;
                    return Ok(());
                }
                _ => {}
            }
            if self.down_state == Down::Head && self.parse_head()? {
                continue;
            }
            match self.server.received.poll_fill(&mut self.server.io, cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) => self.server_ended(Cause::Closed)?,
                Poll::Ready(Err(error)) => self.server_ended(Cause::Broken(error))?,
                Poll::Ready(Ok(_)) => {
                    self.moves += 1;
                    self.exchange.first_byte.get_or_insert_with(Instant::now);
                    if self.down_state == Down::Body {
                        self.approve_down()?;
                    }
                }
            }
        }
    }

    fn approve_down(&mut self) -> Result<(), Failure> {
        let refused = |error| Failure::new(Place::Server, Cause::Body(error));
        self.down.approve(&mut self.server.received).map_err(refused)
    }

    fn server_ended(&mut self, cause: Cause) -> Result<(), Failure> {
        self.server.read_closed = true;
        if self.down_state == Down::Body
            && matches!(cause, Cause::Closed)
            && self.down.walker.finish()
        {
            if self.exchange.upgraded {
                self.end_to_client = End::Wanted;
            }
            return Ok(());
        }
        let retryable = self.exchange.first_byte.is_none() && !self.up.used;
        Err(server_lost(cause, self.write_error.take(), retryable))
    }

    /// Whether a head was there, and the direction's state has moved on.
    fn parse_head(&mut self) -> Result<bool, Failure> {
        let retryable = !self.up.used && !self.exchange.response_started;
        let refused = |error| refused_head(error, retryable);
        let bytes = self.server.received.bytes();
        if bytes.is_empty() || !self.head.parse(bytes, self.order.limits).map_err(refused)? {
            return Ok(false);
        }
        if self.head.status() == 101 {
            self.begin_upgrade()?;
        } else if self.head.is_interim() {
            self.begin_interim();
        } else if self.request.is_connect && (200..300).contains(&self.head.status()) {
            self.begin_tunnel()?;
        } else {
            self.begin_response()?;
        }
        Ok(true)
    }

    fn begin_interim(&mut self) {
        self.continued |= self.head.status() == 100;
        let plan = Plan::interim(&self.head, self.server.received.bytes());
        self.replace_down(plan, BodyWalker::new(Framing::None));
        if self.request.version() == Version::Http10 {
            // HTTP/1.0 knows no interim responses (RFC 9110 section 15.2).
            self.down.discard();
        }
        self.down_state = Down::Interim;
    }

    fn begin_response(&mut self) -> Result<(), Failure> {
        let replayable = !self.up.used && !self.exchange.response_started;
        self.server.check_stale(&self.head, replayable && self.up.walker.is_done())?;
        let bytes = self.server.received.bytes();
        let view = self.head.view(bytes);
        self.order.examine(view, replayable)?;
        let framing = self.head.framing(self.to_head);
        self.keep_server = self.exchange.begin_response(&self.head, framing);
        // Without a 100 the client may or may not send the body.
        let withheld = self.request.expect_continue() && !self.continued && !self.body_begun();
        self.keep_client = self.request.keep_alive()
            && !self.order.close_client
            && framing != Framing::UntilClose
            && !self.head.has_faulty_framing()
            && !withheld;
        if withheld {
            self.up_state = Up::Broken;
        }
        let to = ToClient {
            keep: self.keep_client,
            version: self.request.version(),
            wants_upgrade: self.request.upgrade(),
            tunnel: false,
        };
        let plan = Plan::response(&self.head, bytes, &self.order.response, to);
        let walker = BodyWalker::of_response(&self.head, bytes, framing);
        self.replace_down(plan, walker);
        self.down_state = Down::Body;
        if self.up_state == Up::Done {
            self.up.release(&mut self.client.received);
        }
        self.approve_down()
    }

    fn replace_down(&mut self, plan: Plan<'a>, walker: BodyWalker) {
        self.moves += self.down.moved;
        self.down = Pump::new(self.head.len(), plan, walker);
    }

    /// Whether a 101 names a protocol that the request asks for.
    fn is_granted(&self) -> bool {
        let response = self.head.view(self.server.received.bytes());
        let request = self.request.view(self.client.received.bytes());
        grants(response.values("upgrade"), request.values("upgrade"))
    }

    fn body_begun(&self) -> bool {
        self.up.total > self.request.len() as u64
    }

    fn begin_upgrade(&mut self) -> Result<(), Failure> {
        if !self.request.upgrade() || self.up_state != Up::Done || !self.is_granted() {
            return Err(Failure::new(Place::Server, Cause::UnaskedUpgrade));
        }
        let to =
            ToClient { keep: true, version: Version::Http11, wants_upgrade: true, tunnel: false };
        self.take_over(to)
    }

    /// A CONNECT has succeeded.
    fn begin_tunnel(&mut self) -> Result<(), Failure> {
        if self.up_state != Up::Done {
            return Err(Failure::new(Place::Server, Cause::UnaskedUpgrade));
        }
        let replayable = !self.up.used && !self.exchange.response_started;
        let bytes = self.server.received.bytes();
        self.order.examine(self.head.view(bytes), replayable)?;
        let to = ToClient {
            keep: true,
            version: self.request.version(),
            wants_upgrade: false,
            tunnel: true,
        };
        self.take_over(to)
    }

    /// What follows the head is not HTTP any more, in both directions.
    fn take_over(&mut self, to: ToClient) -> Result<(), Failure> {
        self.exchange.status = Some(self.head.status());
        self.exchange.upgraded = true;
        self.order.upgraded();
        self.up.release(&mut self.client.received);
        self.up.walker = BodyWalker::new(Framing::UntilClose);
        self.up_state = Up::Sending;
        self.approve_up()?;
        if self.client.read_closed {
            self.up.walker.finish();
            self.end_to_server = End::Wanted;
        }
        let bytes = self.server.received.bytes();
        let plan = Plan::response(&self.head, bytes, &self.order.response, to);
        self.replace_down(plan, BodyWalker::new(Framing::UntilClose));
        self.down_state = Down::Body;
        self.approve_down()
    }
}
