//! A stream of which some bytes have been read already.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::Stream;

/// Yields the bytes that detection has read, then the stream itself. The bytes are freed once they
/// are read.
#[derive(Debug)]
pub struct Prefixed<S> {
    prefix: Vec<u8>,
    read: usize,
    inner: S,
}

impl<S> Prefixed<S> {
    /// Puts `prefix` before what `inner` yields.
    pub fn new(prefix: Vec<u8>, inner: S) -> Self {
        Self { prefix, read: 0, inner }
    }

    /// What of the prefix has not been read yet.
    pub fn prefix(&self) -> &[u8] {
        &self.prefix[self.read..]
    }

    /// The stream behind the prefix.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// The rest of the prefix and the stream.
    pub fn into_parts(mut self) -> (Vec<u8>, S) {
        self.prefix.drain(..self.read);
        (self.prefix, self.inner)
    }

    fn take(&mut self, out: &mut ReadBuf<'_>) {
        let rest = &self.prefix[self.read..];
        let n = rest.len().min(out.remaining());
        out.put_slice(&rest[..n]);
        self.read += n;
        if self.read == self.prefix.len() {
            self.prefix = Vec::new();
            self.read = 0;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefixed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.prefix.is_empty() {
            return Pin::new(&mut self.inner).poll_read(cx, out);
        }
        self.take(out);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prefixed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl<S: Stream> Stream for Prefixed<S> {
    fn plain(&self) -> Option<&TcpStream> {
        if self.prefix.is_empty() { self.inner.plain() } else { None }
    }

    fn socket(&self) -> Option<&TcpStream> {
        self.inner.socket()
    }

    fn abort(&mut self) {
        self.inner.abort();
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn the_prefix_comes_first_and_is_freed() {
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = Prefixed::new(b"GET /".to_vec(), server);
        client.write_all(b" HTTP/1.1").await.unwrap();
        drop(client);
        let mut first = [0; 2];
        server.read_exact(&mut first).await.unwrap();
        assert_eq!((&first, server.prefix()), (b"GE", &b"T /"[..]));
        let mut rest = String::new();
        server.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "T / HTTP/1.1");
        assert_eq!(server.prefix.capacity(), 0);
    }
}
