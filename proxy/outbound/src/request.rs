//! A client's request in either version of HTTP, as forwarding sees it.

use leno_h2::Client;
use leno_http::{
    Call, Conn, Exchange, Io, Judge, Order, RequestHead, RequestView, exchange, h1_to_h2, h2_to_h1,
    h2_to_h2,
};
use leno_tls::Channel;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// A request that can be sent to a server of either version.
pub(crate) trait Request {
    /// Its head.
    fn view(&self) -> RequestView<'_>;

    /// Whether it came by HTTP/2.
    fn is_http2(&self) -> bool;

    /// Whether errors are to be gRPC statuses.
    fn is_grpc(&self) -> bool;

    /// When it must be over, by what the client says.
    fn deadline(&self) -> Option<Instant>;

    /// What it is in HTTP/1, once all of it has come; none where it is longer than `limit` bytes.
    async fn copy(&mut self, limit: usize) -> Option<Vec<u8>>;

    /// Relays it to a server that speaks HTTP/1.
    async fn to_http1<J: Judge>(
        &mut self,
        server: &mut Conn<Channel>,
        order: &mut Order<'_, J>,
    ) -> Exchange;

    /// Relays it to a server that speaks HTTP/2.
    async fn to_http2<J: Judge>(&mut self, server: &Client, order: &mut Order<'_, J>) -> Exchange;
}

/// A request of an HTTP/1 client.
pub(crate) struct OfHttp1<'a, S = TcpStream> {
    pub(crate) client: &'a mut Conn<S>,
    pub(crate) head: &'a RequestHead,
    /// It is the copy of a request of HTTP/2, and is to be that again.
    pub(crate) of_http2: bool,
}

impl<S: Io> Request for OfHttp1<'_, S> {
    fn view(&self) -> RequestView<'_> {
        self.head.view(self.client.received())
    }

    fn is_http2(&self) -> bool {
        self.of_http2
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
