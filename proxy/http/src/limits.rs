//! The limits for a client or a server, each with the reason for its number.

use std::time::Duration;

/// The largest head that can be parsed, because positions inside a head have 16 bits.
pub const MAX_HEAD_BYTES: usize = u16::MAX as usize;

/// How much memory and time a connection may use. `Default` suits a sidecar (a proxy beside one application).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The largest head of a request or response in bytes, at most [`MAX_HEAD_BYTES`]. A request with a longer head is
    /// answered with 431. The default is this maximum, four times what servers commonly accept, so that the application
    /// and not the mesh decides what is too long.
    pub head_bytes: usize,
    /// The longest request line in bytes, including its end. A request with a longer line is answered with 414. The
    /// limit is half of a head, so that a long target leaves room for headers.
    pub request_line_bytes: usize,
    /// The largest number of header lines in one head. A request with more lines is answered with 431. Browsers send
    /// only about twenty. Every search for a header examines all lines.
    pub headers: usize,
    /// How long a connection may wait for its next request. This is long because an idle connection holds no buffer,
    /// and because closing it may coincide with a request that is on its way.
    pub idle: Duration,
    /// How long a head may take from its first byte to its last (a defence against "slow loris" clients).
    pub head: Duration,
    /// How long an exchange may last without a byte in either direction. It ends after one to two times this duration.
    /// The default is as long as that of `idle`, for the sake of long polls.
    pub stall: Duration,
    /// How long an exchange may last without a byte in either direction while the response has not begun. It only
    /// matters if it is less than `stall`. A server that hangs never begins to respond, whereas a download that pauses
    /// has begun. The exchange ends after one to two times this duration.
    pub response_wait: Duration,
    /// Whether `stall` also applies to streams between two HTTP/2 connections once their response has begun. By default
    /// it does not: a watch may be quiet for hours, and costs almost nothing.
    pub stall_streams: bool,
    /// How long a side may read none of the bytes that are ready for it, because the bytes occupy one of the proxy's
    /// buffers.
    pub write_stall: Duration,
    /// How long to wait for the rest of a request whose response is complete, counted from the last byte that the
    /// server accepted. Also, how long to wait until the client closes its side after the proxy has closed its own: a
    /// reset in that time could destroy the response.
    pub linger: Duration,
    /// How many bytes are read and discarded during this wait before a close.
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
    /// How long an exchange may last without a byte. `silent` says that its response has not begun.
    #[must_use]
    pub fn stall_while(&self, silent: bool) -> Duration {
        if silent { self.stall.min(self.response_wait) } else { self.stall }
    }
}
