//! From an HTTP/1 client to a stream of a server's HTTP/2 connection.

use std::task::{Context, Poll, ready};

use leno_h2::{Client, Head, Piece, is_mesh_field, remove_reserved};
use leno_hpack::Token;
use leno_transport::test_panic;
use smallvec::SmallVec;

use super::client::FromConn;
use super::incoming::Incoming;
use super::outcome::not_opened;
use super::outgoing::Outgoing;
use super::relay::{Down, Heads, Relay, Up};
use super::server::ToStream;
use super::{Exchange, Judge, Order};
use crate::Io;
use crate::body::BodyWalker;
use crate::call::take_internal;
use crate::conn::Conn;
use crate::edit::edit_block;
use crate::failure::{Cause, Failure, Party};
use crate::grpc;
use crate::head::{Framing, HeadError, RequestHead, ResponseView, Version};
use crate::now;
use crate::translate::response::{self, ToH1};
use crate::translate::{Carried, request};
use crate::writer::Rendered;

/// Relays `request`, which [`Conn::read_request`] has just returned for `client`, to a new stream of `server`, and the
/// response back. After a retryable failure the same request can be relayed to another server. This does not wait for a
/// free stream on `server`: see [`leno_h2::Client::ready`].
pub async fn h1_to_h2<C: Io, J: Judge>(
    client: &mut Conn<C>,
    request: &RequestHead,
    server: &Client,
    order: &mut Order<'_, J>,
) -> Exchange {
    let bytes = client.received.bytes();
    test_panic("request", request.target.of(bytes));
    if let Err(refused) = order.check_connect(request) {
        return Exchange::ended(refused);
    }
    let walker = BodyWalker::of_request(request, bytes).copying_to(order.request_copy());
    let down = Outgoing::new(order.response_copy());
    let up = Incoming::new(request.len(), request.len(), walker);
    let ends = (FromConn::new(client, request), ToStream::new(server));
    let mut relay = Relay::new(ends, (up, down), order);
    let outcome = relay.run().await;
    relay.conclude(outcome)
}

type Http1ToHttp2<'o, 'a, 'r, C, J> =
    Relay<'o, 'a, FromConn<'r, C>, ToStream<'r>, Incoming, Outgoing, J>;

impl<C: Io, J: Judge> Heads for Http1ToHttp2<'_, '_, '_, C, J> {
    fn open(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        let request = self.client.request;
        let is_whole = request.framing() == Framing::None;
        self.awaits_continue = request.expect_continue();
        self.client.check_open()?;
        if is_whole {
            // If the client has left between two attempts, its request is not relayed again.
            self.client.read_ahead(cx)?;
        }
        let mesh = self.order.mesh;
        let to =
            request::ToH2 { mesh, connect: mesh || self.server.client.takes_connect_protocol() };
        let bytes = self.client.conn.received.bytes();
        let (head, upgrade) = request::to_h2(request, bytes, &self.order.request, to)
            .map_err(|error| Failure::new(Party::Client, Cause::Head(error)))?;
        if upgrade {
            self.server.protocol = head.find(Token::PROTOCOL).map(SmallVec::from_slice);
        }
        let opened = self.server.client.open(&head, is_whole && !upgrade);
        self.server.stream = Some(opened.map_err(|error| not_opened(error, true))?);
        if is_whole {
            // If another protocol takes over, `Relay::upgrade` sets this direction to `Sending` again.
            self.up = Up::Done;
        }
        Ok(())
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let Some(server) = &mut self.server.stream else { return Poll::Pending };
        let head = match ready!(server.poll_head(cx)) {
            Ok(head) => head,
            Err(reset) => return Poll::Ready(Err(self.server_failure(Cause::Reset(reset)))),
        };
        self.exchange.first_byte.get_or_insert_with(now);
        self.moves += 1;
        let interim = head.is_interim();
        Poll::Ready(if interim { self.begin_interim(head) } else { self.begin_final(head) })
    }
}

impl<C: Io, J: Judge> Http1ToHttp2<'_, '_, '_, C, J> {
    fn to_h1<'v>(&self, head: &Head, carried: Option<&'v [u8]>) -> ToH1<'v> {
        ToH1 {
            status: head.status().unwrap_or_default(),
            version: self.client.request.version(),
            keep: self.client.request.keep_alive() && !self.order.close_client,
            to_head: self.client.request.is_head,
            empty: false,
            carried: carried.filter(|_| self.order.mesh),
        }
    }

    fn begin_interim(&mut self, mut head: Head) -> Result<(), Failure> {
        let carried = take_internal(&mut head);
        remove_reserved(&mut head, is_mesh_field);
        let to = self.to_h1(&head, carried.as_deref());
        self.awaits_continue &= to.status != 100;
        // HTTP/1.0 has no interim responses (RFC 9110 section 15.2).
        if to.version != Version::Http10 {
            let rendered = response::to_h1(&head, to).map_err(refused_head)?;
            self.response.begin(rendered.head, Framing::None);
            self.down = Down::Interim;
        }
        Ok(())
    }

    fn begin_final(&mut self, mut head: Head) -> Result<(), Failure> {
        let carried = take_internal(&mut head);
        let mut to = self.to_h1(&head, carried.as_deref());
        let view = ResponseView::of_http2(&head, to.status);
        let replayable = self.may_try_again();
        self.order.examine(view, replayable)?;
        self.exchange.status = Some(to.status);
        self.exchange.grpc_status = grpc::status_in(&head);
        self.response.moved.total = head.size() as u64;
        edit_block(&mut head, &self.order.response);
        if self.client.request.is_connect && (200..300).contains(&to.status) {
            return self.begin_tunnel(head, to);
        }
        if self.is_switch(to) {
            return self.begin_upgrade(&head, to.carried);
        }
        let Some(server) = &mut self.server.stream else { return Ok(()) };
        if self.server.protocol.take().is_some() || self.client.request.is_connect {
            // The server has not granted the other protocol or the tunnel, so nothing more is sent in the request's
            // direction.
            server.send_data(Piece::default(), true);
        }
        to.empty = server.is_ended_without_rest();
        to.keep &= !self.is_withheld();
        let rendered = response::to_h1(&head, to).map_err(refused_head)?;
        self.keep_client = rendered.keep;
        self.response.begin(rendered.head, rendered.framing);
        self.down = Down::Body;
        if self.up == Up::Done {
            self.request.release(&mut self.client.conn.received);
        }
        Ok(())
    }

    /// Whether the response lets another protocol take over. A proxy of the mesh states this in its internal header
    /// ([`Carried`]), and has not granted the protocol without that header. From other servers, every success grants it
    /// (RFC 8441 section 5).
    fn is_switch(&self, to: ToH1<'_>) -> bool {
        let said = to.carried.and_then(Carried::parse).map(|carried| carried.switched);
        let success = (200..300).contains(&to.status);
        self.server.protocol.is_some() && success && said.unwrap_or(!self.order.mesh)
    }

    fn begin_upgrade(&mut self, head: &Head, carried: Option<&[u8]>) -> Result<(), Failure> {
        let protocol: SmallVec<[u8; 16]> = self.server.protocol.take().unwrap_or_default();
        let accept = self.client.upgrade.as_deref().and_then(|asked| asked.accept.as_ref());
        let accept = accept.map(|accept| &accept[..]);
        let accept = accept.filter(|_| protocol.eq_ignore_ascii_case(b"websocket"));
        let rendered =
            response::to_switch(head, &protocol, accept, carried).map_err(refused_head)?;
        self.take_over(101, rendered);
        Ok(())
    }

    /// Called when a CONNECT has succeeded. The bytes that follow have no framing (RFC 9110 section 9.3.6).
    fn begin_tunnel(&mut self, mut head: Head, to: ToH1<'_>) -> Result<(), Failure> {
        head.remove_all(b"content-length");
        let to = ToH1 { to_head: true, keep: true, ..to };
        let rendered = response::to_h1(&head, to).map_err(refused_head)?;
        self.take_over(to.status, rendered.head);
        Ok(())
    }

    fn take_over(&mut self, status: u16, head: Rendered) {
        self.upgrade(status);
        self.response.begin(head, Framing::UntilClose);
        self.request.release(&mut self.client.conn.received);
        self.request.take_over(BodyWalker::new(Framing::UntilClose));
    }
}

fn refused_head(error: HeadError) -> Failure {
    Failure::new(Party::Server, Cause::Head(error))
}
