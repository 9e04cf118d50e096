//! The time until a server says something, in which another one may still take its place.
//!
//! ```text
//!   client ──► held ──► server      what the client says goes on at once, and is kept
//!                  ◄─── server      its first bytes: it has accepted, the relay goes on
//!                  ◄─✕─ server      it has refused this proxy: what is kept goes to the next one
//! ```

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use leno_transport::Side;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;

/// How long a refusal is waited for, which comes one round trip after the handshake. A connection
/// that is silent after that time holds nothing.
const GREETING: Duration = Duration::from_secs(1);

/// The most bytes of the client's kept. One that has more to say before it hears anything is
/// uploading; should it be refused then, it is reset.
const MAX_HELD: usize = 16 * 1024;

/// What is read at a time.
const CHUNK: usize = 2048;

/// What has become of the connection to the server.
#[derive(Debug)]
pub(crate) enum Greeting {
    /// It goes on: this many of the held bytes were sent, these came back.
    Going { sent: usize, from_server: Vec<u8> },
    /// It broke after this many of the held bytes were sent.
    Broken { sent: usize, error: io::Error },
    /// The client's connection broke.
    ClientBroke(io::Error),
}

/// Passes on what the client says, `held` first, and appends it to `held`, until the server says
/// something or the time is over.
pub(crate) async fn greet<S, C>(server: &mut S, client: &mut C, held: &mut Vec<u8>) -> Greeting
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: AsyncRead + Unpin,
{
    let mut exchange = Exchange { server, client, held, sent: 0 };
    let heard = timeout(GREETING, poll_fn(|cx| exchange.poll(cx))).await;
    let sent = exchange.sent;
    match heard {
        Ok(Ok(from_server)) => Greeting::Going { sent, from_server },
        Err(_quiet) => Greeting::Going { sent, from_server: Vec::new() },
        Ok(Err((Side::A, error))) => Greeting::ClientBroke(error),
        Ok(Err((Side::B, error))) => Greeting::Broken { sent, error },
    }
}

/// The client's is side A, as in the relay that follows.
struct Exchange<'a, S, C> {
    server: &'a mut S,
    client: &'a mut C,
    held: &'a mut Vec<u8>,
    /// Of `held`.
    sent: usize,
}

impl<S, C> Exchange<'_, S, C>
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: AsyncRead + Unpin,
{
    /// Ready with the server's first bytes; with none where the relay is to go on without them: at
    /// either side's end, which it will see again, or when `held` is full.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, (Side, io::Error)>> {
        let server_broke = |error| (Side::B, error);
        loop {
            if let Poll::Ready(heard) = read(self.server, cx) {
                return Poll::Ready(heard.map_err(server_broke));
            }
            if self.sent < self.held.len() {
                let written = Pin::new(&mut *self.server).poll_write(cx, &self.held[self.sent..]);
                match ready!(written) {
                    Ok(n) => self.sent += n,
                    // Why it does not take any more may have come meanwhile.
                    Err(error) => {
                        let reason = match read(self.server, cx) {
                            Poll::Ready(Err(reason)) => reason,
                            _ => error,
                        };
                        return Poll::Ready(Err(server_broke(reason)));
                    }
                }
                continue;
            }
            ready!(Pin::new(&mut *self.server).poll_flush(cx)).map_err(server_broke)?;
            if self.held.len() >= MAX_HELD {
                return Poll::Ready(Ok(Vec::new()));
            }
            let said = ready!(read(self.client, cx)).map_err(|error| (Side::A, error))?;
            if said.is_empty() {
                return Poll::Ready(Ok(said));
            }
            self.held.extend_from_slice(&said);
        }
    }
}

fn read(from: &mut (impl AsyncRead + Unpin), cx: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
    let mut chunk = [0; CHUNK];
    let mut space = ReadBuf::new(&mut chunk);
    ready!(Pin::new(from).poll_read(cx, &mut space))?;
    Poll::Ready(Ok(space.filled().to_vec()))
}

#[cfg(test)]
mod tests;
