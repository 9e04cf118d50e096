//! The admin server: `/metrics`, `/ready`, `/live`.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::keeper::Keeper;

/// Most admin connections served at once; scrapes and probes need a handful.
const MAX_CONNECTIONS: usize = 32;
/// Longest wait for a request's head, so that a stalled client frees its place.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest life of a connection, so that clients which do not read free their places too.
const CONNECTION_LIFE: Duration = Duration::from_secs(60);
/// Pause after a failed accept, so that a full descriptor table is not a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

type Answer = Response<Full<Bytes>>;

/// What is shown.
pub(crate) struct Admin {
    pub(crate) keeper: Arc<Keeper>,
    /// Whether the plugin is to be installed.
    pub(crate) installs: bool,
}

impl Admin {
    /// Why the agent cannot do its work, if it cannot.
    fn not_ready(&self) -> Option<&'static str> {
        let metrics = &self.keeper.metrics;
        if self.installs && !metrics.installed.load(Ordering::Relaxed) {
            Some("the CNI plugin is not installed: see the log")
        } else if !metrics.followed.load(Ordering::Relaxed) {
            Some("the node's pods are not known from the API server: see the log")
        } else {
            None
        }
    }
}

/// Listens there; on all addresses of IPv4 where all of both are meant and the node has no IPv6.
pub(crate) async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let either = address.ip() == Ipv6Addr::UNSPECIFIED;
    match TcpListener::bind(address).await {
        Err(error) if either && error.kind() != io::ErrorKind::AddrInUse => {
            let all = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
            tracing::info!(%error, "no IPv6 here; listening on {all}");
            TcpListener::bind(all).await
        }
        done => done,
    }
}

/// Serves until the runtime ends.
pub(crate) async fn serve(listener: TcpListener, admin: Arc<Admin>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let admin = Arc::clone(&admin);
                tokio::spawn(async move {
                    connection(stream, admin).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "admin connection not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, admin: Arc<Admin>) {
    let service = service_fn(move |request| {
        let answer = answer(&request, &admin);
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    // How a client's connection ends is its own affair.
    let _ended = tokio::time::timeout(CONNECTION_LIFE, served).await;
}

fn answer(request: &Request<Incoming>, admin: &Admin) -> Answer {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return respond(StatusCode::METHOD_NOT_ALLOWED, "use GET\n");
    }
    match request.uri().path() {
        "/live" => respond(StatusCode::OK, "live\n"),
        "/ready" => match admin.not_ready() {
            None => respond(StatusCode::OK, "ready\n"),
            Some(why) => respond(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        "/metrics" => {
            let text = admin.keeper.metrics.render(&admin.keeper.captured());
            respond(StatusCode::OK, text)
        }
        _ => respond(StatusCode::NOT_FOUND, "use /metrics, /ready or /live\n"),
    }
}

fn respond(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response
}
