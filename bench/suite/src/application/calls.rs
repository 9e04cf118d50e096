//! The calls that an application makes to others before it answers, over connections that it keeps
//! open.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

/// The largest number of idle connections to one callee; further ones are closed after their
/// answer.
const MAX_IDLE: usize = 256;
/// An empty gRPC message: not compressed, length 0.
const EMPTY_MESSAGE: &[u8] = &[0; 5];

/// A service to call, and the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callee {
    /// `host:port`.
    pub address: String,
    /// Whether to call over gRPC instead of HTTP/1.1.
    pub grpc: bool,
    /// Suffixes of the paths (without query) that need this call; empty means all paths.
    pub on: Vec<String>,
}

impl Callee {
    /// Parses `host:port` or `host:port=PATH,PATH`.
    #[must_use]
    pub fn parse(text: &str, grpc: bool) -> Self {
        let (address, on) = text.split_once('=').unwrap_or((text, ""));
        let on = on.split(',').filter(|path| !path.is_empty()).map(str::to_owned).collect();
        Self { address: address.to_owned(), grpc, on }
    }

    fn is_asked(&self, path: &str) -> bool {
        self.on.is_empty() || self.on.iter().any(|end| path.ends_with(end))
    }
}

/// All callees with their connections; clones share the connections.
#[derive(Clone, Debug)]
pub(super) struct Calls(Arc<Vec<Pool>>);

#[derive(Debug)]
struct Pool {
    callee: Callee,
    idle: Mutex<Vec<http1::SendRequest<Full<Bytes>>>>,
    multiplexed: tokio::sync::Mutex<Option<http2::SendRequest<Full<Bytes>>>>,
}

impl Calls {
    pub(super) fn new(callees: &[Callee]) -> Self {
        let pool = |callee: &Callee| Pool {
            callee: callee.clone(),
            idle: Mutex::default(),
            multiplexed: tokio::sync::Mutex::default(),
        };
        Self(Arc::new(callees.iter().map(pool).collect()))
    }

    /// Calls all callees that this page needs, concurrently. Over HTTP it requests the same page
    /// from them.
    pub(super) async fn all(&self, page: &Uri) -> Result<()> {
        let asked = self.0.iter().filter(|pool| pool.callee.is_asked(page.path()));
        let calls = asked.map(|pool| async move {
            if pool.callee.grpc { pool.grpc().await } else { pool.http(page).await }
        });
        futures_util::future::try_join_all(calls).await.map(drop)
    }
}

impl Pool {
    async fn dial(&self) -> Result<TokioIo<TcpStream>> {
        // Over IPv4, as the load: so all meshes carry the same traffic.
        let mut found = tokio::net::lookup_host(&self.callee.address).await?;
        let address = found.find(std::net::SocketAddr::is_ipv4).context("no IPv4 address")?;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(TokioIo::new(stream))
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<http1::SendRequest<Full<Bytes>>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn http(&self, page: &Uri) -> Result<()> {
        let kept = self.idle().pop().filter(http1::SendRequest::is_ready);
        let mut sender = match kept {
            Some(sender) => sender,
            None => {
                let (sender, connection) = http1::handshake(self.dial().await?).await?;
                // The task ends with the connection; the request reports its error.
                tokio::spawn(async move { drop(connection.await) });
                sender
            }
        };
        let path = page.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let request = Request::get(path).header("host", &self.callee.address);
        let response = sender.send_request(request.body(Full::default())?).await?;
        ensure!(response.status().is_success(), "{}", response.status());
        response.into_body().collect().await?;
        if sender.ready().await.is_ok() {
            let mut idle = self.idle();
            if idle.len() < MAX_IDLE {
                idle.push(sender);
            }
        }
        Ok(())
    }

    async fn grpc(&self) -> Result<()> {
        let mut sender = {
            // The lock is held while the connection is opened, so that only one is opened.
            let mut kept = self.multiplexed.lock().await;
            match kept.as_ref().filter(|sender| !sender.is_closed()) {
                Some(sender) => sender.clone(),
                None => {
                    let io = self.dial().await?;
                    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
                    // The task ends with the connection; the requests report its error.
                    tokio::spawn(async move { drop(connection.await) });
                    kept.insert(sender).clone()
                }
            }
        };
        let uri: Uri = format!("http://{}/bench.Echo/Echo", self.callee.address).parse()?;
        let request = Request::post(uri)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(Bytes::from_static(EMPTY_MESSAGE)))?;
        let response = sender.send_request(request).await?;
        ensure!(response.status().is_success(), "{}", response.status());
        let body = response.into_body().collect().await?;
        let status = body.trailers().and_then(|trailers| trailers.get("grpc-status"));
        ensure!(status.is_some_and(|status| status == "0"), "gRPC says {status:?}");
        Ok(())
    }
}
