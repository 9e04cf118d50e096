//! The HTTP servers in the bench's own pods. They listen on loopback, where a port-forward arrives.
//! What clients can occupy is bounded, and no client can end a server.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// The largest number of concurrent connections; a run has one or two. Further connections wait
/// until another ends.
const MAX_CONNECTIONS: usize = 32;
/// How long a client may take to send the head of a request.
const HEAD: Duration = Duration::from_secs(5);
/// How long a connection may last; clients wait no longer than 10 s.
const LIFE: Duration = Duration::from_secs(20);
/// Pause after a failed accept, so that a full table of descriptors does not cause a busy loop.
const PAUSE: Duration = Duration::from_millis(100);

/// A status, and the answer or the reason of the failure.
pub(crate) type Answer = (StatusCode, String);

/// Serves until the process ends.
///
/// # Errors
/// If the address is not a loopback address, or the server cannot listen on it.
pub(crate) fn serve<A, F>(listen: SocketAddr, answer: A) -> Result<Infallible>
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    ensure!(
        listen.ip().is_loopback(),
        "{listen} can be reached from elsewhere, and this is for a port-forward alone: listen on 127.0.0.1"
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(listen).await;
        let listener = listener.with_context(|| format!("cannot listen on {listen}"))?;
        Ok(accept(listener, answer).await)
    })
}

/// As [`serve`], on a listener that exists already.
pub(crate) async fn accept<A, F>(listener: TcpListener, answer: A) -> Infallible
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let place = places.clone().acquire_owned().await.expect("it is never closed");
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                eprintln!("connection not accepted: {error}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let answer = answer.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let answer = answer(request);
                async move { Ok::<_, Infallible>(response(answer.await)) }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEAD);
            let served = builder.serve_connection(TokioIo::new(stream), service);
            // The client reports how a connection ended.
            drop(tokio::time::timeout(LIFE, served).await);
            drop(place);
        });
    }
}

/// Reads the body of a request.
///
/// # Errors
/// If the body is longer than `most` bytes or ends early; the error is the answer to send.
pub(crate) async fn body(request: Request<Incoming>, most: usize) -> Result<Bytes, Answer> {
    match Limited::new(request.into_body(), most).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => Err((StatusCode::BAD_REQUEST, error.to_string())),
    }
}

/// An answer as JSON.
pub(crate) fn json(what: &impl Serialize) -> String {
    serde_json::to_string(what).expect("only text and numbers are keys")
}

/// Locks state that requests share, even after one of them panicked.
pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn response((status, body): Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use leno_observe::admin::send;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    #[test]
    fn addresses_outside_of_loopback_are_refused() {
        let empty = |_: Request<Incoming>| async { (StatusCode::OK, String::new()) };
        let refused = serve("0.0.0.0:0".parse().unwrap(), empty).unwrap_err().to_string();
        assert!(refused.contains("listen on 127.0.0.1"), "{refused}");
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_send_half_a_request_do_not_block_others() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(accept(listener, |request: Request<Incoming>| async {
            drop(request.into_body().collect().await);
            (StatusCode::OK, "there".to_owned())
        }));
        let mut silent = Vec::new();
        for nth in 0..MAX_CONNECTIONS {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let half = match nth % 2 {
                0 => "POST / HTTP/1.1\r\n",
                _ => "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc",
            };
            stream.write_all(half.as_bytes()).await.unwrap();
            silent.push(stream);
        }
        let stream = TcpStream::connect(address).await.unwrap();
        let reply = send(stream, ("GET", "/"), "").await.unwrap();
        assert_eq!((reply.status, &*reply.body), (200, "there"));
        let mut said = Vec::new();
        for stream in &mut silent {
            stream.read_to_end(&mut said).await.unwrap();
        }
    }
}
