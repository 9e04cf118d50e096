//! What the relay needs of a connection.

use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A connection, plain or encrypted.
pub trait Stream: AsyncRead + AsyncWrite + Unpin {
    /// The socket whose bytes are exactly the stream's, from here on; none when they are encrypted
    /// or some have been read into memory. With one on both sides the kernel can move the bytes.
    fn plain(&self) -> Option<&TcpStream>;

    /// The socket below, whatever is on it, for its options and its errors.
    fn socket(&self) -> Option<&TcpStream> {
        self.plain()
    }

    /// Makes the end of the connection a reset: whatever is unsent is dropped, and the other side
    /// reads an error, not an end. It takes effect when the stream is dropped.
    fn abort(&mut self);
}

impl Stream for TcpStream {
    fn plain(&self) -> Option<&TcpStream> {
        Some(self)
    }

    fn abort(&mut self) {
        // It fails only for a connection that is gone already.
        let _gone = SockRef::from(&*self).set_linger(Some(Duration::ZERO));
    }
}

impl Stream for tokio::io::DuplexStream {
    fn plain(&self) -> Option<&TcpStream> {
        None
    }

    fn abort(&mut self) {}
}
