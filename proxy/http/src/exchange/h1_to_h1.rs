//! From an HTTP/1 client to an HTTP/1 server: the received bytes are written directly from the buffer, with edits.

use std::task::{Context, Poll};

use leno_transport::test_panic;

use super::client::FromConn;
use super::pump::Pump;
use super::relay::{Down, HalfClose, Heads, Relay, Up};
use super::response_head::Http1Heads;
use super::server::ToConn;
use super::{Exchange, Judge, Order};
use crate::Io;
use crate::body::BodyWalker;
use crate::conn::Conn;
use crate::edit::{Plan, ToClient};
use crate::failure::{Cause, Failure, Party};
use crate::head::{Framing, RequestHead, Version, grants};

/// Relays `request`, which [`Conn::read_request`] has just returned for `client`, to `server`, and the response back.
/// After a retryable failure the same request can be relayed to another server.
pub async fn exchange<C: Io, S: Io, J: Judge>(
    client: &mut Conn<C>,
    request: &RequestHead,
    server: &mut Conn<S>,
    order: &mut Order<'_, J>,
) -> Exchange {
    let bytes = client.received.bytes();
    test_panic("request", request.target.of(bytes));
    if let Err(refused) = order.check_connect(request) {
        return Exchange::ended(refused);
    }
    let plan =
        if client.lost { Plan::default() } else { Plan::request(request, bytes, &order.request) };
    let walker = BodyWalker::of_request(request, bytes).copying_to(order.request_copy());
    let up = Pump::new(request.len(), plan, walker);
    let down = Pump::new(0, Plan::default(), BodyWalker::new(Framing::None));
    let ends = (FromConn::new(client, request), ToConn::new(server));
    let mut relay = Relay::new(ends, (up, down), order);
    let outcome = relay.run().await;
    relay.conclude(outcome)
}

type Http1ToHttp1<'o, 'a, 'r, C, S, J> =
    Relay<'o, 'a, FromConn<'r, C>, ToConn<'r, S>, Pump<'a>, Pump<'a>, J>;

impl<C: Io, S: Io, J: Judge> Heads for Http1ToHttp1<'_, '_, '_, C, S, J> {
    fn open(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        self.awaits_continue = self.client.request.expect_continue();
        self.client.check_open()?;
        self.approve_request()?;
        // If the client has left between two attempts, its request is not relayed again.
        if self.request.walker.is_done() { self.client.read_ahead(cx) } else { Ok(()) }
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.poll_http1_head(cx)
    }

    /// If the client has ended its sending direction after this request, the proxy also ends the server's direction, so
    /// that the server sees what it would see without a proxy. A connection between two proxies stays open after the
    /// request.
    fn pass_half_close(&mut self) {
        if self.order.mesh {
            return;
        }
        let client = &*self.client.conn;
        if client.read_closed && self.request.is_last(&client.received) {
            self.end_to_server = HalfClose::Wanted;
        }
    }
}

impl<C: Io, S: Io, J: Judge> Http1Heads for Http1ToHttp1<'_, '_, '_, C, S, J> {
    fn is_granted(&self) -> bool {
        let response = self.server.head.view(self.server.conn.received.bytes());
        let asked = self.client.upgrade.as_deref();
        asked.is_some_and(|asked| {
            let protocols = asked.protocols.iter().map(|protocol| &**protocol);
            grants(response.values("upgrade"), protocols)
        })
    }

    fn forward_interim(&mut self) -> Result<(), Failure> {
        let plan = Plan::interim(&self.server.head, self.server.conn.received.bytes());
        self.begin(plan, BodyWalker::new(Framing::None));
        if self.client.request.version() == Version::Http10 {
            // HTTP/1.0 has no interim responses (RFC 9110 section 15.2).
            self.response.discard();
        }
        self.down = Down::Interim;
        Ok(())
    }

    fn forward_final(&mut self, framing: Framing, withheld: bool) -> Result<(), Failure> {
        let (request, head) = (self.client.request, &self.server.head);
        self.keep_client = request.keep_alive()
            && !self.order.close_client
            && framing != Framing::UntilClose
            && !head.has_faulty_framing()
            && !withheld;
        let to = ToClient {
            keep: self.keep_client,
            version: request.version(),
            wants_upgrade: request.upgrade(),
            tunnel: false,
        };
        let bytes = self.server.conn.received.bytes();
        let plan = Plan::response(head, bytes, &self.order.response, to);
        let walker = BodyWalker::of_response(head, bytes, framing);
        let walker = walker.copying_to(self.order.response_copy());
        self.begin(plan, walker);
        self.down = Down::Body;
        if self.up == Up::Done {
            self.request.release(&mut self.client.conn.received);
        }
        self.approve_response()
    }

    fn forward_switch(&mut self) -> Result<(), Failure> {
        let request = self.client.request;
        let tunnel = self.server.head.status() != 101;
        let version = if tunnel { request.version() } else { Version::Http11 };
        let to = ToClient { keep: true, version, wants_upgrade: !tunnel, tunnel };
        self.request.release(&mut self.client.conn.received);
        self.request.walker = BodyWalker::new(Framing::UntilClose);
        self.approve_request()?;
        let bytes = self.server.conn.received.bytes();
        let plan = Plan::response(&self.server.head, bytes, &self.order.response, to);
        self.begin(plan, BodyWalker::new(Framing::UntilClose));
        self.approve_response()
    }
}

impl<'a, C: Io, S: Io, J> Http1ToHttp1<'_, 'a, '_, C, S, J> {
    /// Begins to forward the head at the start of the bytes received from the server.
    fn begin(&mut self, plan: Plan<'a>, walker: BodyWalker) {
        self.moves += self.response.moved.moves();
        self.response = Pump::new(self.server.head.len(), plan, walker);
    }

    fn approve_request(&mut self) -> Result<(), Failure> {
        let refused = |error| Failure::new(Party::Client, Cause::Body(error));
        self.request.approve(&mut self.client.conn.received).map_err(refused)
    }

    fn approve_response(&mut self) -> Result<(), Failure> {
        let refused = |error| Failure::new(Party::Server, Cause::Body(error));
        self.response.approve(&mut self.server.conn.received).map_err(refused)
    }
}
