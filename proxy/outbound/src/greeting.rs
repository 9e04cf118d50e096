//! Relays the client's bytes until the server sends something. Until then, its proxy may still refuse this proxy's
//! certificate, and another server can be used instead.
//!
//! ```text
//!   client ──► kept ──► server      what the client sends goes on at once, and is kept
//!                  ◄─── server      its first bytes: it has accepted, the relay goes on
//!                  ◄─✕─ server      it has refused this proxy: what is kept goes to the next one
//! ```

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use leno_transport::{Peeked, Speaker};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

/// How long to wait for a refusal, which arrives one round trip after the handshake. After this time, a silent
/// connection needs no buffer.
const GREETING: Duration = Duration::from_secs(1);

/// How many bytes of the client are kept. A client that sends more before it receives anything is uploading. If the
/// server's proxy then refuses, the client is reset.
const MAX_HELD: usize = 16 * 1024;

/// The state of the connection to the server after the wait.
#[derive(Debug)]
pub(crate) enum Greeting {
    /// The connection works: this many of the client's bytes were sent.
    Going { sent: usize },
    /// The connection broke after this many of the client's bytes were sent.
    Broken { sent: usize, error: io::Error },
    /// The client's connection broke.
    ClientBroke(io::Error),
}

/// Forwards the client's bytes and keeps a copy of them, until the server sends something or the time is over.
pub(crate) async fn greet<S, C>(server: &mut Peeked<S>, client: &mut Peeked<C>) -> Greeting
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: AsyncRead + Unpin,
{
    let mut sent = 0;
    let greeted = timeout(GREETING, poll_fn(|cx| poll_greet(server, client, &mut sent, cx))).await;
    match greeted {
        Ok(Ok(())) | Err(_) => Greeting::Going { sent },
        Ok(Err((Speaker::Client, error))) => Greeting::ClientBroke(error),
        Ok(Err((Speaker::Server, error))) => Greeting::Broken { sent, error },
    }
}

/// Ready when the server has sent something. Also ready if the relay must go on without that: either side has closed,
/// which the relay will notice itself, or the kept bytes have reached their limit. An error names the side that
/// broke.
fn poll_greet<S, C>(
    server: &mut Peeked<S>,
    client: &mut Peeked<C>,
    sent: &mut usize,
    cx: &mut Context<'_>,
) -> Poll<Result<(), (Speaker, io::Error)>>
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: AsyncRead + Unpin,
{
    let server_broke = |error| (Speaker::Server, error);
    loop {
        if let Poll::Ready(read) = server.poll_peek(cx) {
            return Poll::Ready(read.map(drop).map_err(server_broke));
        }
        let kept = client.bytes();
        if let Some(unsent) = kept.get(*sent..).filter(|unsent| !unsent.is_empty()) {
            let written = Pin::new(server.stream_mut()).poll_write(cx, unsent);
            match ready!(written) {
                Ok(n) => *sent = sent.saturating_add(n),
                // Perhaps the reason for the failed write can be read now.
                Err(error) => {
                    let reason = match server.poll_peek(cx) {
                        Poll::Ready(Err(reason)) => reason,
                        _ => error,
                    };
                    return Poll::Ready(Err(server_broke(reason)));
                }
            }
            continue;
        }
        ready!(Pin::new(server.stream_mut()).poll_flush(cx)).map_err(server_broke)?;
        if kept.len() >= MAX_HELD {
            return Poll::Ready(Ok(()));
        }
        if ready!(client.poll_peek(cx)).map_err(|error| (Speaker::Client, error))? == 0 {
            return Poll::Ready(Ok(()));
        }
    }
}

#[cfg(test)]
mod tests;
