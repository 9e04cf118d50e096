//! The limits of a connection, each with the reason for its value.

use std::time::Duration;

use crate::code::Code;
use crate::settings::{DEFAULT_FRAME_BYTES, DEFAULT_WINDOW, OwnSettings};

/// The limits of a connection. `Default` suits a sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// How many streams the peer may have open at once. Others are refused with REFUSED_STREAM, after which a retry is
    /// safe. nginx, Envoy and Go allow between 100 and 250.
    pub concurrent_streams: u32,
    /// How many streams we open at once, even if the peer allows more. This limits how many requests fail when one
    /// connection breaks.
    pub opened_streams: u32,
    /// The largest decoded field section in bytes, counted as in RFC 9113 section 6.5.2 (32 extra bytes per field).
    /// It is as high as the limit of HTTP/1 heads, so that usually the application's own limit decides what is too
    /// much.
    pub header_list_bytes: u32,
    /// The largest number of fields in one section.
    pub header_fields: usize,
    /// The largest number of CONTINUATION frames of one field section. The largest section fits into four frames if
    /// frames are as small as a peer may demand.
    pub continuations: u32,
    /// The size of our HPACK decoder's dynamic table (HEADER_TABLE_SIZE).
    pub table_bytes: u32,
    /// The largest dynamic table that our HPACK encoder uses. The peer must keep a table of the same size.
    pub encoder_table_bytes: u32,
    /// How many bytes a new stream may receive before its reader has taken any. Never less than 65,535, which a peer
    /// may use before it has received our settings. The window is small because every stream of a connection can hold
    /// that much while its reader takes nothing.
    pub stream_window: u32,
    /// The window of a stream once its reader has taken the first bytes. With 0.5 ms to a server it is enough for 500
    /// MB/s. At most [`grown_streams`](Self::grown_streams) streams have it at a time.
    pub grown_window: u32,
    /// How many streams of a connection may have the larger window at a time: a few bulk transfers. The others keep
    /// [`stream_window`](Self::stream_window), which with 0.5 ms to a server is enough for 128 MB/s.
    pub grown_streams: u32,
    /// How many bytes a connection may receive before our next WINDOW_UPDATE: the windows of several streams, so that
    /// one bulk stream does not use it up. It is renewed as bytes arrive, so that streams whose readers stall do not
    /// stop the other streams.
    pub connection_window: u32,
    /// If all streams of a connection together hold more received bytes than this, the connection's window is no longer
    /// renewed. It is more than 250 streams can hold with the windows above, so that a proxy of the mesh cannot reach
    /// it; it limits the memory for servers that allow more streams. From half of it on, stalled streams are ended
    /// ([`stall`](Self::stall)), and a pool should prefer another connection.
    pub held_bytes: usize,
    /// How long the reader of a stream may take less than 16 KiB of the bytes that wait for it while other streams need
    /// the memory or the slot. After that the stream is reset, which happens after one to two times this duration.
    /// While nothing else needs the memory, a slow reader harms only itself, and the limit is
    /// [`write_stall`](Self::write_stall).
    pub stall: Duration,
    /// The code of a reset because of [`stall`](Self::stall). If streams carry tunnelled connections, it must not be a
    /// code that means an orderly end.
    pub stall_code: Code,
    /// The largest DATA frame that is accepted and sent. Every implementation accepts 16 KiB.
    pub frame_bytes: u32,
    /// If the connection's write queue has more bytes than this, DATA waits in its stream instead. It is enough to make
    /// a write worth its system call.
    pub write_bytes: usize,
    /// How many bytes of replies (PING, SETTINGS, RST_STREAM) may be queued for a peer that does not read: more than
    /// any legitimate burst needs.
    pub reply_bytes: usize,
    /// How many bytes of DATA the user of a stream may queue beyond the windows.
    pub send_bytes: usize,
    /// How many interim responses (1xx) may be queued for the reader of a stream. Others are dropped.
    pub interim_heads: usize,
    /// How many resets by the peer are tolerated at once, and then per second. Each stream that ends without a reset
    /// allows one more. A client that cancels slow requests stays below this, whereas a rapid-reset attack does not.
    pub resets: u32,
    /// How many frames without content (empty DATA, PRIORITY, PING, ...) are tolerated at once, and then per second.
    /// gRPC's bandwidth estimation sends a PING per round trip.
    pub empty_frames: u32,
    /// How long a connection without streams is kept. It is closed after one to two times this
    /// duration.
    pub idle: Duration,
    /// How long the preface, a frame or a field section may take from its first byte to its last
    /// (slow loris), and how long the peer may take to acknowledge our SETTINGS.
    pub head: Duration,
    /// How long the receiver of a stream may grant no window, or the peer of a connection read no byte, while bytes
    /// wait to be sent. The limit takes effect after one to two times this duration.
    pub write_stall: Duration,
    /// How long the peer may send nothing while streams are open before
    /// [`Io::is_unanswered`](leno_transport::Io::is_unanswered) is checked. The limit takes effect after one to two
    /// times this duration.
    pub silence: Duration,
    /// Whether to send a PING after [`silence`](Self::silence), and to end the connection if nothing arrives within the
    /// same time again. Only between proxies of the mesh: gRPC servers treat a PING every few seconds as abuse, and for
    /// other machines the kernel's own probes are enough.
    pub ping: bool,
    /// How long to wait for the reply to the PING after the first GOAWAY of a drain, and how long to wait for the peer
    /// to close after we have closed.
    pub linger: Duration,
    /// How many bytes are read and discarded while waiting for the peer to close.
    pub linger_bytes: usize,
    /// Whether to accept extended CONNECT (RFC 8441).
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
            stall_code: Code::CANCEL,
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

    /// The larger window of a stream.
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
