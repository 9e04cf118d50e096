//! How a connection or a stream ends early, and what is counted as abuse.

use std::cell::Cell;
use std::io;

use crate::code::Code;

/// What a peer did, by fault or by malice, that a bound exists for. Each is counted per thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Abuse {
    /// Streams opened and reset over and over (CVE-2023-44487).
    RapidReset,
    /// Streams that we had to reset over and over (CVE-2025-8671).
    StreamErrors,
    /// A field section in too many CONTINUATION frames, or of too many bytes.
    ContinuationFlood,
    /// SETTINGS without end.
    SettingsFlood,
    /// PING without end.
    PingFlood,
    /// Frames that carry nothing: empty DATA, PRIORITY, WINDOW_UPDATE, unknown kinds.
    EmptyFrames,
    /// Replies of ours that the peer does not read.
    UnreadReplies,
    /// A window past 2^31-1, or more bytes than a window allowed.
    WindowOverflow,
    /// A field section that HPACK cannot decode within its bounds.
    Hpack,
    /// A field section larger than allowed; only the stream is refused.
    HeaderList,
    /// More streams than allowed at once; only the stream is refused.
    ConcurrentStreams,
    /// A preface, frame or field section that began and did not go on.
    SlowHead,
    /// A stream whose receiver granted no window for too long; only the stream is reset.
    ZeroWindow,
    /// A connection whose other side took no byte for too long.
    WriteStall,
    /// SETTINGS that were not acknowledged.
    SettingsTimeout,
    /// A message that breaks RFC 9113 section 8; only the stream is reset.
    Malformed,
    /// A new stream while the worker's memory budget is short; only the stream is refused. It may
    /// be no fault of this peer.
    MemoryBudget,
    /// A stream whose reader took too little for too long, while other streams needed the memory
    /// or the place that it held; only the stream is reset.
    StalledStream,
    /// All streams of a connection together hold so many bytes for their readers that its window is
    /// not renewed.
    HeldBytes,
    /// A PING that nothing followed while streams were open: the other proxy is lost.
    PingTimeout,
    /// Bytes that were sent again and again and never acknowledged while streams were open: the other
    /// machine is lost.
    Unanswered,
}

impl Abuse {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 21] = [
        Self::RapidReset,
        Self::StreamErrors,
        Self::ContinuationFlood,
        Self::SettingsFlood,
        Self::PingFlood,
        Self::EmptyFrames,
        Self::UnreadReplies,
        Self::WindowOverflow,
        Self::Hpack,
        Self::HeaderList,
        Self::ConcurrentStreams,
        Self::SlowHead,
        Self::ZeroWindow,
        Self::WriteStall,
        Self::SettingsTimeout,
        Self::Malformed,
        Self::MemoryBudget,
        Self::StalledStream,
        Self::HeldBytes,
        Self::PingTimeout,
        Self::Unanswered,
    ];

    /// A name for metrics and logs.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::RapidReset => "rapid-reset",
            Self::StreamErrors => "stream-errors",
            Self::ContinuationFlood => "continuation-flood",
            Self::SettingsFlood => "settings-flood",
            Self::PingFlood => "ping-flood",
            Self::EmptyFrames => "empty-frames",
            Self::UnreadReplies => "unread-replies",
            Self::WindowOverflow => "window-overflow",
            Self::Hpack => "hpack",
            Self::HeaderList => "header-list",
            Self::ConcurrentStreams => "concurrent-streams",
            Self::SlowHead => "slow-head",
            Self::ZeroWindow => "zero-window",
            Self::WriteStall => "write-stall",
            Self::SettingsTimeout => "settings-timeout",
            Self::Malformed => "malformed",
            Self::MemoryBudget => "memory-budget",
            Self::StalledStream => "stalled-stream",
            Self::HeldBytes => "held-bytes",
            Self::PingTimeout => "ping-timeout",
            Self::Unanswered => "unanswered",
        }
    }
}

thread_local! {
    static COUNTS: [Cell<u64>; Abuse::ALL.len()] = const { [const { Cell::new(0) }; Abuse::ALL.len()] };
}

/// Counts one occurrence on this thread.
pub(crate) fn count(abuse: Abuse) {
    COUNTS.with(|counts| {
        let cell = &counts[abuse as usize];
        cell.set(cell.get() + 1);
    });
}

/// How often each abuse was met on the calling thread since it started.
#[must_use]
pub fn abuse_counts() -> [(Abuse, u64); Abuse::ALL.len()] {
    COUNTS.with(|counts| Abuse::ALL.map(|abuse| (abuse, counts[abuse as usize].get())))
}

/// Why a connection ended with an error.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{what} ({code})")]
pub struct ConnError {
    /// What GOAWAY said, ours or theirs.
    pub code: Code,
    /// What happened.
    pub what: &'static str,
    /// The bound that was reached, if it was one.
    pub abuse: Option<Abuse>,
    /// The other side sent the code.
    pub by_peer: bool,
    /// The error of the stream below, if that failed.
    pub io: Option<io::ErrorKind>,
}

impl ConnError {
    /// The other side broke the protocol.
    pub(crate) fn broke(code: Code, what: &'static str) -> Self {
        Self { code, what, abuse: None, by_peer: false, io: None }
    }

    /// The other side reached a bound.
    pub(crate) fn abused(abuse: Abuse, what: &'static str) -> Self {
        let abuse_code = match abuse {
            Abuse::WindowOverflow => Code::FLOW_CONTROL_ERROR,
            Abuse::Hpack => Code::COMPRESSION_ERROR,
            Abuse::SettingsTimeout => Code::SETTINGS_TIMEOUT,
            _ => Code::ENHANCE_YOUR_CALM,
        };
        Self { abuse: Some(abuse), ..Self::broke(abuse_code, what) }
    }

    /// The stream below failed or ended.
    pub(crate) fn io(kind: io::ErrorKind, what: &'static str) -> Self {
        Self { io: Some(kind), ..Self::broke(Code::INTERNAL_ERROR, what) }
    }

    /// A name for metrics: the bound's, or the code's.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match (self.abuse, self.io) {
            (Some(abuse), _) => abuse.label(),
            (None, Some(_)) => "broken",
            (None, None) => self.code.label(),
        }
    }
}

/// How a stream ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stream was reset ({code})")]
pub struct Reset {
    /// The code of RST_STREAM or GOAWAY.
    pub code: Code,
    /// Who ended it.
    pub by: ResetBy,
    /// The other side has certainly not acted on it: the request can be sent again elsewhere
    /// (RFC 9113 section 8.7), provided that its body is still there.
    pub unprocessed: bool,
}

impl Reset {
    /// How a stream ends whose reader takes too little of what it holds, while others need it.
    pub(crate) const STALL: Self =
        Self { code: Code::ENHANCE_YOUR_CALM, by: ResetBy::Us, unprocessed: false };

    /// Whether this side reset the stream because what it received was not taken by its reader.
    #[must_use]
    pub fn is_stall(self) -> bool {
        self == Self::STALL
    }
}

/// Who ended a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetBy {
    /// The other side, with RST_STREAM.
    Peer,
    /// This side: its user, or because the other side broke the protocol on this stream.
    Us,
    /// The connection ended, or its GOAWAY excluded the stream.
    Connection,
}

/// Why no stream could be opened. None was, so the request can go elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// As many streams are open as the other side, or our limit, allows.
    #[error("all streams are in use")]
    Full,
    /// The connection takes no more: it is closed, draining or out of identifiers.
    #[error("the connection takes no more streams")]
    Closed,
    /// The head is larger than the other side accepts.
    #[error("the head is larger than the server accepts")]
    TooLarge,
}
