//! The server side of every service: parses requests and sends replies, in one thread.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::net::TcpListener;

use crate::{note, setting, show};

/// Largest request body; the shop's own are under 1 KiB.
const MAX_BODY: usize = 64 * 1024;
/// How long a client may take to send a request head.
const HEAD_LIMIT: Duration = Duration::from_secs(30);
/// Pause after a failed accept, such as without free descriptors, to avoid a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A request to a service.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) accept: String,
    pub(crate) body: Bytes,
}

impl Ask {
    /// The segments of the path.
    pub(crate) fn parts(&self) -> Vec<&str> {
        self.path.split('/').filter(|part| !part.is_empty()).collect()
    }

    /// The value of `name` in the query, if it is a plain word: letters, digits, `-` and `_`.
    pub(crate) fn word(&self, name: &str) -> Option<&str> {
        let value = self.query.split('&').find_map(|p| p.strip_prefix(name)?.strip_prefix('='))?;
        is_word(value).then_some(value)
    }
}

/// Whether `text` is safe in a path or a key.
pub(crate) fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 64
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// The response of a service.
#[derive(Debug)]
pub(crate) enum Reply {
    Json(Vec<u8>),
    Html(String),
    NoSuchThing,
    WrongMethod(&'static str),
    Bad(&'static str),
}

impl Reply {
    pub(crate) fn json(value: &impl Serialize) -> Result<Self> {
        Ok(Reply::Json(serde_json::to_vec(value)?))
    }
}

/// One service of the shop. An error becomes a 502, because a dependency of the service has failed.
pub(crate) trait Service: 'static {
    /// Its name in the log.
    const NAME: &'static str;

    /// Answers one request.
    fn answer(&self, ask: Ask) -> impl Future<Output = Result<Reply>>;
}

/// Serves until the process is killed.
pub(crate) async fn run<S: Service>(service: S) -> Result<()> {
    let address: SocketAddr = setting("SHOP_LISTEN", "[::]:8080").parse().context("SHOP_LISTEN")?;
    let listener =
        TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    show(&format!("{} listens on {}", S::NAME, listener.local_addr()?));
    let service = Rc::new(service);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Fails only if the connection is already closed.
        let _ = stream.set_nodelay(true);
        let service = Rc::clone(&service);
        tokio::task::spawn_local(async move {
            let handler = service_fn(|request| handle(Rc::clone(&service), request));
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_LIMIT)
                .serve_connection(TokioIo::new(stream), handler);
            // An error on one connection does not affect other clients.
            let _ = connection.await;
        });
    }
}

async fn handle<S: Service>(
    service: Rc<S>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, hyper::http::Error> {
    if request.uri().path() == "/healthz" {
        return respond(StatusCode::OK, "text/plain", "ok\n");
    }
    let reply = match ask(request).await {
        Ok(ask) => service.answer(ask).await,
        Err(_) => Ok(Reply::Bad("the request body is too long or broken")),
    };
    match reply {
        Ok(Reply::Json(body)) => respond(StatusCode::OK, "application/json", body),
        Ok(Reply::Html(body)) => respond(StatusCode::OK, "text/html; charset=utf-8", body),
        Ok(Reply::NoSuchThing) => respond(StatusCode::NOT_FOUND, "text/plain", "no such thing\n"),
        Ok(Reply::Bad(why)) => respond(StatusCode::BAD_REQUEST, "text/plain", why),
        Ok(Reply::WrongMethod(allowed)) => {
            let mut response =
                respond(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "wrong method\n")?;
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
            Ok(response)
        }
        Err(error) => {
            note(&format!("{}: {error:#}", S::NAME));
            respond(StatusCode::BAD_GATEWAY, "text/plain", format!("{}: {error:#}\n", S::NAME))
        }
    }
}

async fn ask(request: Request<Incoming>) -> Result<Ask> {
    let (head, body) = request.into_parts();
    let accept = head.headers.get("accept").and_then(|v| v.to_str().ok()).unwrap_or_default();
    let accept = accept.to_string();
    let body = Limited::new(body, MAX_BODY).collect().await.map_err(anyhow::Error::from_boxed)?;
    Ok(Ask {
        method: head.method,
        path: head.uri.path().to_string(),
        query: head.uri.query().unwrap_or_default().to_string(),
        accept,
        body: body.to_bytes(),
    })
}

fn respond(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Result<Response<Full<Bytes>>, hyper::http::Error> {
    Response::builder()
        .status(status)
        .header(CONTENT_TYPE, content_type)
        .body(Full::new(body.into()))
}
