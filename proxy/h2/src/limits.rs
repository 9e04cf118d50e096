//! The bounds a connection is held to, each with the reason for its number.

use std::time::Duration;

use crate::settings::{DEFAULT_FRAME_BYTES, DEFAULT_WINDOW, OwnSettings};

/// What a connection may cost. `Default` suits a sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Streams the other side may have open at once; more are refused with REFUSED_STREAM, which
    /// is safe to retry. What nginx, Envoy and Go allow is between 100 and 250.
    pub concurrent_streams: u32,
    /// Streams that we open at once, whatever more the other side allows: it bounds what the end
    /// of one connection can break.
    pub opened_streams: u32,
    /// Bytes of a decoded field section as RFC 9113 section 6.5.2 counts them (32 a field on
    /// top). As much as HTTP/1 heads have, so that the application decides what is too much.
    pub header_list_bytes: u32,
    /// Fields in one section.
    pub header_fields: usize,
    /// Frames of one field section after its first. The largest section takes four of the
    /// smallest maximum frame size.
    pub continuations: u32,
    /// Bytes of the peer's dynamic table that we keep (HEADER_TABLE_SIZE).
    pub table_bytes: u32,
    /// Bytes of the dynamic table that we make the peer keep, at most.
    pub encoder_table_bytes: u32,
    /// Bytes that a stream may receive ahead of its reader at first. Never less than 65,535, which
    /// a peer may use before it has received our settings. Small, because every stream of a
    /// connection can hold as much while its reader takes nothing.
    pub stream_window: u32,
    /// The same once the reader has taken the first bytes: at 0.5 ms to a server enough for
    /// 500 MB/s. No more than [`grown_streams`](Self::grown_streams) have it at a time.
    pub grown_window: u32,
    /// Streams of a connection that may have the larger window at a time: a few bulk transfers.
    /// Those beyond keep [`stream_window`](Self::stream_window), 128 MB/s at 0.5 ms.
    pub grown_streams: u32,
    /// Bytes that a connection may receive ahead of our next WINDOW_UPDATE. Several streams'
    /// windows, so that one bulk stream does not use it up. It is renewed as bytes arrive, so that
    /// streams whose readers stall do not stop the other streams.
    pub connection_window: u32,
    /// Bytes received and not passed on, over all streams of a connection, from which its window
    /// is no longer renewed. More than 250 streams can hold with the windows above, so that a peer
    /// of the mesh cannot reach it; a bound on memory for servers that allow more streams. From
    /// half of it on, stalled streams are ended ([`stall`](Self::stall)) and a pool should prefer
    /// another connection.
    pub held_bytes: usize,
    /// How long a stream's reader may take less than 16 KiB of the bytes that wait for it, while
    /// other streams need what it holds: memory or a place among the streams. Then it is reset.
    /// Ends between one and two times this. A minute of a slow reader harms only itself, so that
    /// without such need [`write_stall`](Self::write_stall) is the bound.
    pub stall: Duration,
    /// Largest DATA frame accepted and sent. 16 KiB is what everyone takes.
    pub frame_bytes: u32,
    /// Bytes that wait to be written before DATA waits in its stream instead: enough for one
    /// write to be worth its system call.
    pub write_bytes: usize,
    /// Bytes of replies (PING, SETTINGS, RST_STREAM) that may wait for a peer which does not
    /// read: more than any honest burst.
    pub reply_bytes: usize,
    /// Bytes of DATA that a stream's own user may queue beyond what the windows take.
    pub send_bytes: usize,
    /// Interim responses (1xx) that may wait for the reader of a stream.
    pub interim_heads: usize,
    /// Resets by the peer that are forgiven at once, and then per second. A client that gives up
    /// at most a few thousand requests a second is slow at work, not at war.
    pub resets: u32,
    /// Frames that carry nothing (empty DATA, PRIORITY, PING, ...) forgiven at once and then per
    /// second. gRPC's bandwidth probes send a PING per round trip.
    pub empty_frames: u32,
    /// How long a connection without streams is kept. It ends between one and two times this.
    pub idle: Duration,
    /// How long the preface, a frame or a field section may take from first to last byte, and
    /// our SETTINGS to be acknowledged (slow loris).
    pub head: Duration,
    /// How long a stream's receiver may grant no window, and a connection's other side take no
    /// byte, while something waits for it. Ends between one and two times this.
    pub write_stall: Duration,
    /// How long nothing may come while streams are open before the connection is examined: see
    /// [`Io::is_unanswered`](crate::Io::is_unanswered). Ends between one and two times this.
    pub silence: Duration,
    /// The other side is sent a PING then, and must send something within the same time. For proxies
    /// of the mesh alone: servers of gRPC take a PING every few seconds for abuse, and what is on
    /// another machine the kernel probes.
    pub ping: bool,
    /// How long the first GOAWAY of a drain is given to reach the other side if the PING behind
    /// it is not answered, and how long to wait for the other side to close after us.
    pub linger: Duration,
    /// Bytes read and thrown away while lingering in a close.
    pub linger_bytes: usize,
    /// Accept extended CONNECT (RFC 8441).
    pub connect_protocol: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            concurrent_streams: 250,
            opened_streams: 1000,
            header_list_bytes: 64 * 1024,
            header_fields: 256,
            continuations: 8,
            table_bytes: 4096,
            encoder_table_bytes: 4096,
            stream_window: DEFAULT_WINDOW,
            grown_window: 256 * 1024,
            grown_streams: 16,
            connection_window: 1024 * 1024,
            held_bytes: 20 * 1024 * 1024,
            stall: Duration::from_secs(10),
            frame_bytes: DEFAULT_FRAME_BYTES,
            write_bytes: 128 * 1024,
            reply_bytes: 64 * 1024,
            send_bytes: 64 * 1024,
            interim_heads: 8,
            resets: 1000,
            empty_frames: 10_000,
            idle: Duration::from_secs(3600),
            head: Duration::from_secs(60),
            write_stall: Duration::from_secs(300),
            silence: leno_transport::SILENCE,
            ping: false,
            linger: Duration::from_secs(2),
            linger_bytes: 1024 * 1024,
            connect_protocol: true,
        }
    }
}

impl Limits {
    pub(crate) fn stream_window(&self) -> u32 {
        self.stream_window.clamp(DEFAULT_WINDOW, crate::frame::MAX_31)
    }

    /// The window of a stream that has grown.
    pub(crate) fn grown_window(&self) -> u32 {
        self.grown_window.clamp(self.stream_window(), crate::frame::MAX_31)
    }

    pub(crate) fn connection_window(&self) -> u32 {
        self.connection_window.clamp(DEFAULT_WINDOW, crate::frame::MAX_31)
    }

    pub(crate) fn settings(&self, client: bool) -> OwnSettings {
        OwnSettings {
            client,
            concurrent: self.concurrent_streams,
            window: self.stream_window(),
            frame_bytes: self.frame_bytes,
            list_bytes: self.header_list_bytes,
            table_bytes: self.table_bytes,
            connect_protocol: self.connect_protocol,
        }
    }
}
