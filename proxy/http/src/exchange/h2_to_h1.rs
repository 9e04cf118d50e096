//! From a stream of a client's HTTP/2 connection to an HTTP/1 server.

use std::task::{Context, Poll};

use leno_h2::Head;
use leno_hpack::Token;
use leno_transport::test_panic;

use super::client::FromCall;
use super::incoming::Incoming;
use super::outcome::{admit, check_not_reset, client_reset};
use super::outgoing::Outgoing;
use super::relay::{Down, Heads, Relay};
use super::response_head::Http1Heads;
use super::server::ToConn;
use super::{Exchange, Judge, Order};
use crate::Io;
use crate::body::BodyWalker;
use crate::call::Call;
use crate::conn::Conn;
use crate::edit::Edits;
use crate::failure::{Cause, Failure, Party};
use crate::head::{Framing, HeadError, grants};
use crate::translate::request::{self, Http1Request};
use crate::translate::{response, websocket};
use crate::writer::Rendered;

/// Relays a request to an HTTP/1 server, and the response back. The call is treated as in
/// [`h2_to_h2`](super::h2_to_h2), and the server as in [`exchange`](super::exchange()).
pub async fn h2_to_h1<S: Io, J: Judge>(
    call: &mut Call,
    server: &mut Conn<S>,
    order: &mut Order<'_, J>,
) -> Exchange {
    test_panic("request", call.view().target());
    let down = Incoming::new(0, 0, BodyWalker::new(Framing::None));
    let up = Outgoing::new(order.request_copy());
    let ends = (FromCall::new(call), ToConn::new(server));
    let mut relay = Relay::new(ends, (up, down), order);
    let outcome = relay.run().await;
    relay.conclude(outcome)
}

type Http2ToHttp1<'o, 'a, 'r, S, J> =
    Relay<'o, 'a, FromCall<'r>, ToConn<'r, S>, Outgoing, Incoming, J>;

impl<S: Io, J: Judge> Heads for Http2ToHttp1<'_, '_, '_, S, J> {
    fn open(&mut self, _cx: &mut Context<'_>) -> Result<(), Failure> {
        let refused = |error: HeadError| Failure::new(Party::Client, Cause::Head(error));
        let call = &*self.client.call;
        call.check(self.order.connect).map_err(refused)?;
        check_not_reset(call)?;
        admit()?;
        let empty = call.is_empty();
        let rendered = if self.order.request.is_empty() {
            request::to_h1(call.head(), call.carried(), empty)
        } else {
            let head = call.edited_head(&self.order.request);
            request::to_h1(&head, call.carried(), empty)
        };
        let Http1Request { head, framing, upgrade, websocket_key } = rendered.map_err(refused)?;
        self.client.upgrade = upgrade;
        self.client.websocket_key = websocket_key;
        let expect = self.client.call.head().find(Token::EXPECT);
        self.awaits_continue = framing != Framing::None
            && expect.is_some_and(|to| to.eq_ignore_ascii_case(b"100-continue"));
        self.request.begin(head, framing);
        Ok(())
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.poll_http1_head(cx)
    }
}

impl<S: Io, J: Judge> Http1Heads for Http2ToHttp1<'_, '_, '_, S, J> {
    fn is_granted(&self) -> bool {
        let response = self.server.head.view(self.server.conn.received.bytes());
        let protocol = self.client.call.head().find(Token::PROTOCOL);
        self.client.upgrade && grants(response.values("upgrade"), protocol.into_iter())
    }

    fn check_answer(&self) -> Result<(), Failure> {
        let status = self.server.head.status();
        let is_ignored = if status == 101 {
            let view = self.server.head.view(self.server.conn.received.bytes());
            let given = view.header("sec-websocket-accept");
            self.client.websocket_key.is_some_and(|key| {
                let expected = websocket::accept(&key);
                expected.as_ref().map(|accept| &accept[..]) != given
            })
        } else {
            // An HTTP/2 client takes a 2xx for consent (RFC 8441 section 5). A proxy of the mesh (`carried`) can tell
            // the difference.
            let is_taken = self.client.upgrade && self.client.call.carried().is_none();
            is_taken && (200..300).contains(&status)
        };
        if is_ignored {
            return Err(Failure::new(Party::Server, Cause::UpgradeIgnored));
        }
        Ok(())
    }

    fn forward_interim(&mut self) -> Result<(), Failure> {
        let head = self.translate(&Edits::default())?;
        self.send_head(&head, false)
    }

    fn forward_final(&mut self, framing: Framing, _withheld: bool) -> Result<(), Failure> {
        let bytes = self.server.conn.received.bytes();
        let walker = BodyWalker::of_response(&self.server.head, bytes, framing);
        let walker = walker.copying_to(self.order.response_copy());
        let end = walker.is_done();
        self.begin(walker);
        let edits = self.order.response;
        let head = self.translate(&edits)?;
        self.send_head(&head, end)?;
        self.down = if end { Down::Done } else { Down::Body };
        Ok(())
    }

    fn forward_switch(&mut self) -> Result<(), Failure> {
        self.begin(BodyWalker::new(Framing::UntilClose));
        let edits = self.order.response;
        let mut head = self.translate(&edits)?;
        if self.server.head.status() != 101 {
            // The bytes that follow a successful CONNECT have no framing (RFC 9110 section 9.3.6).
            head.remove_all(b"content-length");
        } else if self.client.call.carried().is_none() {
            head.remove_all(b"sec-websocket-accept");
        }
        self.send_head(&head, false)?;
        self.request.begin(Rendered::default(), Framing::UntilClose);
        Ok(())
    }
}

impl<S: Io, J> Http2ToHttp1<'_, '_, '_, S, J> {
    /// Begins the body that follows the head at the start of the bytes received from the server.
    fn begin(&mut self, walker: BodyWalker) {
        self.response = Incoming::new(self.server.head.len(), 0, walker);
    }

    /// Converts the head to fields, and consumes its bytes.
    fn translate(&mut self, edits: &Edits<'_>) -> Result<Head, Failure> {
        let carry = self.client.call.carried().is_some();
        let bytes = self.server.conn.received.bytes();
        let refused = |error| Failure::new(Party::Server, Cause::Head(error));
        let head = response::to_h2(&self.server.head, bytes, edits, carry).map_err(refused)?;
        self.server.conn.received.consume(self.server.head.len());
        Ok(head)
    }

    fn send_head(&mut self, head: &Head, end: bool) -> Result<(), Failure> {
        let Some(client) = self.client.call.stream() else { return Ok(()) };
        if client.send_head(head, end) {
            self.exchange.response_started |= !head.is_interim();
        } else if let Some(reset) = client.reset_reason() {
            return Err(client_reset(reset));
        }
        Ok(())
    }
}
