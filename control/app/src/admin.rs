//! The admin server: `/metrics`, `/ready`, `/live`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use leno_serve::State;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::reload::Reloads;

/// Most admin connections served at once; scrapes and probes need a handful.
const MAX_CONNECTIONS: usize = 32;
/// Longest wait for a request's head, so that a stalled client frees its place.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed accept, so that a full descriptor table is not a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const TEXT: &str = "text/plain; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

type Answer = Response<Full<Bytes>>;

/// What is shown.
pub(crate) struct Admin {
    pub(crate) state: Arc<State>,
    pub(crate) reloads: Arc<Reloads>,
    pub(crate) more: Vec<Render>,
}

/// Appends metrics of one part.
pub(crate) type Render = Box<dyn Fn(&mut String) + Send + Sync>;

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
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "admin connection ended");
    }
}

fn answer(request: &Request<Incoming>, admin: &Admin) -> Answer {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, "use GET\n");
    }
    match request.uri().path() {
        "/live" => respond(StatusCode::OK, TEXT, "live\n"),
        "/ready" if admin.reloads.loaded() => respond(StatusCode::OK, TEXT, "ready\n"),
        "/ready" => {
            respond(StatusCode::SERVICE_UNAVAILABLE, TEXT, "the documents have not been read yet\n")
        }
        "/metrics" => {
            let mut text = String::new();
            admin.state.render_metrics(&mut text);
            admin.reloads.render(&mut text);
            admin.more.iter().for_each(|render| render(&mut text));
            respond(StatusCode::OK, PROMETHEUS, text)
        }
        _ => respond(StatusCode::NOT_FOUND, TEXT, "use /metrics, /ready or /live\n"),
    }
}

fn respond(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
