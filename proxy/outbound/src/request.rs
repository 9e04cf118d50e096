//! A client's request in either version of HTTP, as the forwarding code uses it.

use std::task::{Context, Poll};

use leno_h2::Client;
use leno_http::{
    Call, CallCopies, Conn, ConnCopies, CopyClient, Exchange, Failure, Io, Judge, Order,
    RequestHead, RequestView, Ticket, exchange, h1_to_h2, h2_to_h1, h2_to_h2,
};
use leno_tls::Channel;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// A request that can be sent over HTTP/1 or HTTP/2.
pub(crate) trait Request {
    /// The head of the request.
    fn view(&self) -> RequestView<'_>;

    /// Whether the request came over HTTP/2.
    fn is_http2(&self) -> bool;

    /// Whether the request may be sent to another proxy as HTTP/1. A request that takes over its connection may not.
    fn fits_http1(&self) -> bool {
        false
    }

    /// Whether errors are reported as gRPC statuses.
    fn is_grpc(&self) -> bool;

    /// The deadline that the client has set.
    fn deadline(&self) -> Option<Instant>;

    /// Ready if the client leaves while the request waits for a server.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Failure>;

    /// The request as HTTP/1, once it has arrived completely; `None` if it is longer than `limit` bytes.
    async fn copy(&mut self, limit: usize) -> Option<Vec<u8>>;

    /// Relays the request to a server over HTTP/1.
    async fn to_http1<J: Judge>(
        &mut self,
        server: &mut Conn<Channel>,
        order: &mut Order<'_, J>,
    ) -> Exchange;

    /// Relays the request to a server over HTTP/2.
    async fn to_http2<J: Judge>(&mut self, server: &Client, order: &mut Order<'_, J>) -> Exchange;
}

/// A request of an HTTP/1 client.
pub(crate) struct OfHttp1<'a, S = TcpStream> {
    pub(crate) client: &'a mut Conn<S>,
    pub(crate) head: &'a RequestHead,
    /// Whether this is a copy of an HTTP/2 request. Then it is sent over HTTP/2 again.
    pub(crate) of_http2: bool,
}

impl<S: Io> Request for OfHttp1<'_, S> {
    fn view(&self) -> RequestView<'_> {
        self.head.view(self.client.received())
    }

    fn is_http2(&self) -> bool {
        self.of_http2
    }

    fn fits_http1(&self) -> bool {
        !self.of_http2 && !self.head.upgrade() && !self.view().is_connect()
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        self.client.poll_gone(cx)
    }

    async fn copy(&mut self, limit: usize) -> Option<Vec<u8>> {
        self.client.hold(self.head, limit).await.map(<[u8]>::to_vec)
    }

    fn is_grpc(&self) -> bool {
        false
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    async fn to_http1<J: Judge>(
        &mut self,
        server: &mut Conn<Channel>,
        order: &mut Order<'_, J>,
    ) -> Exchange {
        exchange(self.client, self.head, server, order).await
    }

    async fn to_http2<J: Judge>(&mut self, server: &Client, order: &mut Order<'_, J>) -> Exchange {
        h1_to_h2(self.client, self.head, server, order).await
    }
}

impl Request for Call {
    fn view(&self) -> RequestView<'_> {
        Call::view(self)
    }

    fn is_http2(&self) -> bool {
        true
    }

    fn is_grpc(&self) -> bool {
        Call::is_grpc(self)
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        Call::poll_gone(self, cx)
    }

    async fn copy(&mut self, limit: usize) -> Option<Vec<u8>> {
        self.hold(limit).await
    }

    fn deadline(&self) -> Option<Instant> {
        Call::deadline(self)
    }

    async fn to_http1<J: Judge>(
        &mut self,
        server: &mut Conn<Channel>,
        order: &mut Order<'_, J>,
    ) -> Exchange {
        h2_to_h1(self, server, order).await
    }

    async fn to_http2<J: Judge>(&mut self, server: &Client, order: &mut Order<'_, J>) -> Exchange {
        h2_to_h2(self, server, order).await
    }
}

/// A request that can be sent to several servers at once.
pub(crate) trait Hedgeable: Request {
    /// The type that makes the copies.
    type Copies<'c>: Copies
    where
        Self: 'c;

    /// Waits until the request has arrived completely. `false` if it is longer than `limit`, or cannot be copied.
    async fn hold_whole(&mut self, limit: usize) -> bool;

    /// Sets the client's connection aside, to make copies of the held request.
    fn copies(&mut self) -> Self::Copies<'_>;
}

/// Makes copies of one request, one of which may answer the client.
pub(crate) trait Copies {
    /// One copy, which is sent like a request of its own.
    type Copy: Request;

    /// Makes another copy. The caller must set `ticket` before it forwards a response of this copy to the client.
    fn copy(&self, ticket: &Ticket) -> Self::Copy;

    /// Ready when the client has left.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Failure>;

    /// Called when all copies have ended. `winner` is the copy with a response for the client.
    fn finish(self, winner: Option<(Self::Copy, &Exchange)>);
}

/// A copy of a request of an HTTP/1 client.
pub(crate) struct CopyOfHttp1<'c, S> {
    client: Conn<CopyClient<'c, S>>,
    head: &'c RequestHead,
}

impl<'c, S: Io> CopyOfHttp1<'c, S> {
    fn request(&mut self) -> OfHttp1<'_, CopyClient<'c, S>> {
        OfHttp1 { client: &mut self.client, head: self.head, of_http2: false }
    }
}

impl<S: Io> Request for CopyOfHttp1<'_, S> {
    fn view(&self) -> RequestView<'_> {
        self.head.view(self.client.received())
    }

    fn is_http2(&self) -> bool {
        false
    }

    fn fits_http1(&self) -> bool {
        !self.head.upgrade() && !self.view().is_connect()
    }

    fn is_grpc(&self) -> bool {
        false
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Always pending, because [`Copies::poll_gone`] watches the client for all copies.
    fn poll_gone(&mut self, _cx: &mut Context<'_>) -> Poll<Failure> {
        Poll::Pending
    }

    async fn copy(&mut self, limit: usize) -> Option<Vec<u8>> {
        self.request().copy(limit).await
    }

    async fn to_http1<J: Judge>(
        &mut self,
        server: &mut Conn<Channel>,
        order: &mut Order<'_, J>,
    ) -> Exchange {
        self.request().to_http1(server, order).await
    }

    async fn to_http2<J: Judge>(&mut self, server: &Client, order: &mut Order<'_, J>) -> Exchange {
        self.request().to_http2(server, order).await
    }
}

/// Makes copies of a request of an HTTP/1 client.
pub(crate) struct CopiesOfHttp1<'c, S> {
    copies: ConnCopies<'c, S>,
    head: &'c RequestHead,
}

impl<S: Io> Hedgeable for OfHttp1<'_, S> {
    type Copies<'c>
        = CopiesOfHttp1<'c, S>
    where
        Self: 'c;

    async fn hold_whole(&mut self, limit: usize) -> bool {
        let plain = !self.head.upgrade() && !self.of_http2;
        plain && self.client.hold(self.head, limit).await.is_some()
    }

    fn copies(&mut self) -> CopiesOfHttp1<'_, S> {
        CopiesOfHttp1 { copies: self.client.copies(self.head), head: self.head }
    }
}

impl<'c, S: Io> Copies for CopiesOfHttp1<'c, S> {
    type Copy = CopyOfHttp1<'c, S>;

    fn copy(&self, ticket: &Ticket) -> CopyOfHttp1<'c, S> {
        CopyOfHttp1 { client: self.copies.copy(ticket), head: self.head }
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        self.copies.poll_gone(cx)
    }

    fn finish(self, winner: Option<(Self::Copy, &Exchange)>) {
        if let Some((winner, done)) = winner {
            self.copies.finish(winner.client, done);
        }
    }
}

impl Hedgeable for Call {
    type Copies<'c> = CallCopies<'c>;

    async fn hold_whole(&mut self, limit: usize) -> bool {
        Call::hold_whole(self, limit).await
    }

    fn copies(&mut self) -> CallCopies<'_> {
        Call::copies(self)
    }
}

impl Copies for CallCopies<'_> {
    type Copy = Call;

    fn copy(&self, _ticket: &Ticket) -> Call {
        CallCopies::copy(self)
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        CallCopies::poll_gone(self, cx)
    }

    fn finish(self, winner: Option<(Call, &Exchange)>) {
        CallCopies::finish(self, winner.map(|(winner, _)| winner));
    }
}
