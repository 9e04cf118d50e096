//! Handles heads of responses from an HTTP/1 server, for clients of both versions.

use std::task::{Context, Poll, ready};

use super::Judge;
use super::client::ClientEnd;
use super::passage::Passage;
use super::relay::{Relay, Up};
use super::server::ToConn;
use crate::Io;
use crate::failure::{Cause, Failure, Party};
use crate::head::{Framing, ResponseHead};
use crate::now;

/// Forwards the heads of an HTTP/1 server's responses; implemented for each version of the client. When a method is
/// called, `self.server.head` is parsed, and its bytes are still at the start of the bytes received from the server.
pub(super) trait Http1Heads {
    /// Whether a 101 names a protocol that the request asks for.
    fn is_granted(&self) -> bool;

    /// Fails if the server has ignored the requested upgrade in a way that the client would mistake for consent: a 101
    /// with a wrong `sec-websocket-accept`, or a 2xx to an HTTP/2 client. By default there is nothing to check. Not
    /// called for the success of a CONNECT.
    fn check_answer(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Forwards an interim response other than 101.
    fn forward_interim(&mut self) -> Result<(), Failure>;

    /// Forwards a final response whose body has this framing. `withheld` says that the client waited for a 100
    /// (Continue) that did not come. It is unknown whether it still sends its body, so the connection of an HTTP/1
    /// client cannot be used again.
    fn forward_final(&mut self, framing: Framing, withheld: bool) -> Result<(), Failure>;

    /// Forwards a 101 or the success of a CONNECT, and begins to relay the bytes after it.
    fn forward_switch(&mut self) -> Result<(), Failure>;
}

impl<'r, C: ClientEnd, S: Io, U, D, J: Judge> Relay<'_, '_, C, ToConn<'r, S>, U, D, J>
where
    U: Passage<C, ToConn<'r, S>>,
    Self: Http1Heads,
{
    /// [`Heads::poll_head`](super::relay::Heads::poll_head) for a server that speaks HTTP/1.
    pub(super) fn poll_http1_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        loop {
            if self.parse_head()? {
                return Poll::Ready(self.take_head());
            }
            let server = &mut *self.server.conn;
            let cause = match ready!(server.received.poll_fill(&mut server.io, cx)) {
                Ok(0) => Cause::Closed,
                Err(error) => Cause::Broken(error),
                Ok(_) => {
                    self.moves += 1;
                    self.exchange.first_byte.get_or_insert_with(now);
                    continue;
                }
            };
            server.read_closed = true;
            return Poll::Ready(Err(self.server_failure(cause)));
        }
    }

    fn parse_head(&mut self) -> Result<bool, Failure> {
        let retryable = self.may_try_again();
        let bytes = self.server.conn.received.bytes();
        if bytes.is_empty() {
            return Ok(false);
        }
        let refused =
            |error| Failure { retryable, ..Failure::new(Party::Server, Cause::Head(error)) };
        self.server.head.parse(bytes, self.order.limits).map_err(refused)
    }

    /// Handles a parsed head: forwards an interim response, begins a final one, or lets another protocol or a tunnel
    /// take over.
    fn take_head(&mut self) -> Result<(), Failure> {
        let status = self.server.head.status();
        if status != 101 && self.server.head.is_interim() {
            self.awaits_continue &= status != 100;
            self.forward_interim()?;
            self.server.head = ResponseHead::default();
            return Ok(());
        }
        let is_tunnel = self.client.is_connect() && (200..300).contains(&status);
        let switches = status == 101 || is_tunnel;
        if switches && (self.up != Up::Done || status == 101 && !self.is_granted()) {
            return Err(Failure::new(Party::Server, Cause::UnaskedUpgrade));
        }
        if status != 101 {
            self.judge_final(is_tunnel)?;
        }
        if !is_tunnel {
            self.check_answer()?;
        }
        if switches {
            self.upgrade(status);
            return self.forward_switch();
        }
        let framing = self.server.head.framing(self.client.is_head());
        self.server.begin_response(framing, &mut self.exchange);
        let withheld = self.is_withheld();
        self.client.stop_holding();
        self.forward_final(framing, withheld)
    }

    /// Fails if the response is a 408 that the server sent to an idle connection before it saw the request, or if the
    /// order's [`Judge`] refuses the response. The request may then be sent to another server if it is still held
    /// completely.
    fn judge_final(&mut self, is_tunnel: bool) -> Result<(), Failure> {
        let replayable = self.may_try_again();
        if !is_tunnel {
            self.server.check_stale(replayable && self.request.is_read())?;
        }
        let view = self.server.head.view(self.server.conn.received.bytes());
        self.order.examine(view, replayable)?;
        self.client.claim();
        Ok(())
    }
}
