//! The client side of every service: plain HTTP/1.1 to a service's name, with idle connections kept for reuse.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HOST;
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;

use crate::setting;

/// Idle connections kept per service. Further simultaneous calls open more, which are closed
/// afterwards.
const MAX_IDLE: usize = 64;
/// Largest response read; the whole catalog is under 4 KiB.
const MAX_BODY: usize = 1024 * 1024;
/// How long one call may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Another service of the shop.
#[derive(Debug)]
pub(crate) struct Remote {
    authority: String,
    idle: RefCell<Vec<SendRequest<Full<Bytes>>>>,
}

impl Remote {
    /// The service `name`, at the URL in the environment variable `<NAME>_URL`, or else by its
    /// name.
    pub(crate) fn from_env(name: &str) -> Result<Self> {
        let variable = format!("{}_URL", name.to_uppercase());
        let url = setting(&variable, &format!("http://{name}:8080"));
        let uri: Uri = url.parse().with_context(|| format!("{variable}={url}"))?;
        let authority = uri.authority().with_context(|| format!("{variable} has no host"))?;
        let authority = match authority.port() {
            Some(_) => authority.to_string(),
            None => format!("{authority}:80"),
        };
        Ok(Remote { authority, idle: RefCell::default() })
    }

    /// GETs `path` and parses the JSON response.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.call(Method::GET, path, Bytes::new()).await
    }

    /// Sends `body` with `method` to `path` and parses the JSON response.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
    ) -> Result<T> {
        let what = format!("{method} http://{}{path}", self.authority);
        let exchange = self.exchange(method, path, body.into());
        let body = tokio::time::timeout(LIMIT, exchange)
            .await
            .with_context(|| format!("{what}: no answer in {LIMIT:?}"))?
            .with_context(|| what.clone())?;
        serde_json::from_slice(&body).with_context(|| format!("{what}: unexpected answer"))
    }

    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes> {
        let mut connection = self.connection().await?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.authority)
            .body(Full::new(body))?;
        let response = connection.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_BODY)
            .collect()
            .await
            .map_err(anyhow::Error::from_boxed)?
            .to_bytes();
        let mut idle = self.idle.borrow_mut();
        if idle.len() < MAX_IDLE && !connection.is_closed() {
            idle.push(connection);
        }
        drop(idle);
        if !status.is_success() {
            bail!("{status}: {}", String::from_utf8_lossy(&body).trim());
        }
        Ok(body)
    }

    /// An idle connection that is still open, or a new one.
    async fn connection(&self) -> Result<SendRequest<Full<Bytes>>> {
        loop {
            let candidate = self.idle.borrow_mut().pop();
            let Some(mut connection) = candidate else { break };
            if connection.ready().await.is_ok() {
                return Ok(connection);
            }
        }
        let stream = TcpStream::connect(&self.authority).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // The task ends with the connection; a failure is reported by the request in progress.
        tokio::task::spawn_local(async move {
            let _ = connection.await;
        });
        Ok(sender)
    }
}
