//! The calls that an application makes to others before it answers, over connections that it keeps
//! open.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures_util::future::try_join_all;
use http::uri::PathAndQuery;
use http::{Request, Uri};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// The largest number of idle connections to one called service; others are closed after their answer.
const MAX_IDLE: usize = 256;
/// An empty gRPC message: not compressed, length 0.
const EMPTY_MESSAGE: &[u8] = &[0; 5];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Callee {
    /// `host:port`.
    address: String,
    /// The endings of the paths (without query) for which the service is called; none means all paths.
    on: Vec<String>,
}

impl FromStr for Callee {
    type Err = Infallible;

    /// Parses `host:port` or `host:port=PATH,PATH`.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        let (address, on) = text.split_once('=').unwrap_or((text, ""));
        let on = on.split(',').filter(|path| !path.is_empty()).map(str::to_owned).collect();
        Ok(Self { address: address.to_owned(), on })
    }
}

impl Callee {
    fn is_asked(&self, path: &str) -> bool {
        self.on.is_empty() || self.on.iter().any(|end| path.ends_with(end))
    }
}

/// All services that are called, with their connections, which clones share.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    http: Arc<[Callee]>,
    grpc: Arc<[Callee]>,
    http1: HttpClient,
    http2: HttpClient,
}

type HttpClient = Client<HttpConnector, Full<Bytes>>;

impl Calls {
    pub(super) fn new(http: &[Callee], grpc: &[Callee]) -> Self {
        let mut connector = HttpConnector::new();
        // Over IPv4, like the load, so that all traffic of a mesh is alike.
        connector.set_local_address(Some(Ipv4Addr::UNSPECIFIED.into()));
        connector.set_nodelay(true);
        let client = |http2| {
            let mut client = Client::builder(TokioExecutor::new());
            // A call that fails must count as a failure, so hyper must not repeat it.
            client.retry_canceled_requests(false);
            client.http2_only(http2).pool_max_idle_per_host(MAX_IDLE).build(connector.clone())
        };
        Self { http: http.into(), grpc: grpc.into(), http1: client(false), http2: client(true) }
    }

    /// Calls all services that this page needs, at the same time. Calls over HTTP request the same page from them.
    pub(super) async fn all(&self, page: &Uri) -> Result<()> {
        let asked = |callee: &&Callee| callee.is_asked(page.path());
        let over_http = self.http.iter().filter(asked).map(|callee| self.http(callee, page));
        let over_grpc = self.grpc.iter().filter(asked).map(|callee| self.grpc(callee));
        futures_util::future::try_join(try_join_all(over_http), try_join_all(over_grpc)).await?;
        Ok(())
    }

    async fn http(&self, callee: &Callee, page: &Uri) -> Result<()> {
        let path = page.path_and_query().map_or("/", PathAndQuery::as_str);
        let uri: Uri = format!("http://{}{path}", callee.address).parse()?;
        let response = self.http1.get(uri).await?;
        ensure!(response.status().is_success(), "{}", response.status());
        response.into_body().collect().await?;
        Ok(())
    }

    async fn grpc(&self, callee: &Callee) -> Result<()> {
        let uri: Uri = format!("http://{}/bench.Echo/Echo", callee.address).parse()?;
        let request = Request::post(uri)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(Bytes::from_static(EMPTY_MESSAGE)))?;
        let response = self.http2.request(request).await?;
        ensure!(response.status().is_success(), "{}", response.status());
        let body = response.into_body().collect().await?;
        let status = body.trailers().and_then(|trailers| trailers.get("grpc-status"));
        ensure!(
            status.is_some_and(|status| status == "0"),
            "the call ended with gRPC status {status:?}"
        );
        Ok(())
    }
}
