//! The bounds a client or server is held to, each with the reason for its number.

use std::time::Duration;

/// Largest head that can be parsed: positions inside a head are 16 bits wide.
pub const MAX_HEAD_BYTES: usize = u16::MAX as usize;

/// What a connection may cost. `Default` suits a sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request or response head, at most [`MAX_HEAD_BYTES`]. One more is answered
    /// with 431. The default is the bound itself, four times what servers commonly take, so that
    /// the application and not the mesh decides what is too much.
    pub head_bytes: usize,
    /// Bytes of a request line including its line end; one more is answered with 414. Half of a
    /// head, so that a long target still leaves room for headers.
    pub request_line_bytes: usize,
    /// Header lines in one head; one more is answered with 431. Browsers send about 20; every
    /// look-up is a walk over them.
    pub headers: usize,
    /// How long a connection may wait for its next request. Long, because an idle connection
    /// holds no buffer and because closing one races with a request already under way.
    pub idle: Duration,
    /// How long a head may take from its first byte to its last (slow loris).
    pub head: Duration,
    /// How long an exchange may go on with no byte moved in either direction. It ends between
    /// one and two times this. As long as the idle wait, for long polls.
    pub stall: Duration,
    /// How long an exchange may go on with no byte moved while its response has not begun, where that
    /// is less than `stall`: a server that hangs answers no client, while a download that pauses has
    /// begun. It ends between one and two times this.
    pub response_wait: Duration,
    /// Holds streams that are relayed between two connections of HTTP/2 to `stall`, too, once their
    /// response has begun. Not by itself: a watch may be quiet for hours, and costs next to nothing.
    pub stall_streams: bool,
    /// How long a side may take none of the bytes that are ready for it. They hold one of the proxy's
    /// buffers.
    pub write_stall: Duration,
    /// How long to wait for the rest of a request whose response is already complete, counted
    /// from the last byte of it that the server took, and for the client to close after us. A
    /// reset in that time could destroy the response.
    pub linger: Duration,
    /// Bytes read and thrown away while lingering in a close.
    pub linger_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_bytes: MAX_HEAD_BYTES,
            request_line_bytes: 32 * 1024,
            headers: 256,
            idle: Duration::from_secs(3600),
            head: Duration::from_secs(60),
            stall: Duration::from_secs(3600),
            response_wait: Duration::from_secs(3600),
            stall_streams: false,
            write_stall: Duration::from_secs(300),
            linger: Duration::from_secs(2),
            linger_bytes: 1024 * 1024,
        }
    }
}

impl Limits {
    /// How long nothing may move, `silent` while no response has begun.
    #[must_use]
    pub fn stall_while(&self, silent: bool) -> Duration {
        if silent { self.stall.min(self.response_wait) } else { self.stall }
    }
}
