//! How a connection or a stream ends early, and which behaviour of a peer counts as abuse.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "there is a counter for each kind"
)]

use std::cell::Cell;
use std::io;

use crate::code::Code;

/// Behaviour of a peer that is limited, whether it is a mistake or an attack. Each kind is counted per thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Abuse {
    /// The peer opens and resets streams over and over (CVE-2023-44487).
    RapidReset,
    /// The peer makes us reset streams over and over (CVE-2025-8671).
    StreamErrors,
    /// A field section in too many CONTINUATION frames, or of too many bytes.
    ContinuationFlood,
    /// Too many SETTINGS frames.
    SettingsFlood,
    /// Too many PING frames.
    PingFlood,
    /// Frames without content: empty DATA, PRIORITY, WINDOW_UPDATE, unknown kinds.
    EmptyFrames,
    /// Replies that the peer does not read.
    UnreadReplies,
    /// A window beyond 2^31-1, or more bytes than a window allowed.
    WindowOverflow,
    /// A field section that HPACK cannot decode within its limits.
    Hpack,
    /// A field section larger than allowed. Only the stream is refused.
    HeaderList,
    /// More concurrent streams than allowed. Only the stream is refused.
    ConcurrentStreams,
    /// A preface, frame or field section that was begun and not completed in time.
    SlowHead,
    /// The receiver of a stream granted no window for too long. Only the stream is reset.
    ZeroWindow,
    /// The peer read no byte for too long.
    WriteStall,
    /// The peer did not acknowledge our SETTINGS.
    SettingsTimeout,
    /// A message that breaks RFC 9113 section 8. Only the stream is reset.
    Malformed,
    /// The peer opened a stream while the worker's memory budget was nearly used up. Only the stream is refused. This
    /// need not be the peer's fault.
    MemoryBudget,
    /// The reader of a stream read too little for too long while other streams needed the memory or the slot that the
    /// stream held. Only the stream is reset.
    StalledStream,
    /// The streams of a connection together hold so many unread bytes that its window is not
    /// renewed.
    HeldBytes,
    /// Nothing arrived after a PING although streams were open: the other proxy is lost.
    PingTimeout,
    /// Sent bytes were retransmitted again and again and never acknowledged while streams were
    /// open: the remote machine is lost.
    Unanswered,
    /// More interim responses (1xx) at once than may wait for the reader of a stream. The surplus is dropped, and the
    /// stream continues.
    InterimHeads,
}

impl Abuse {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 22] = [
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
        Self::InterimHeads,
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
            Self::InterimHeads => "interim-heads",
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

/// How often each kind of abuse occurred on the calling thread since the thread started.
#[must_use]
pub fn abuse_counts() -> [(Abuse, u64); Abuse::ALL.len()] {
    COUNTS.with(|counts| Abuse::ALL.map(|abuse| (abuse, counts[abuse as usize].get())))
}

/// Why a connection ended early.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{what} ({code})")]
pub struct ConnError {
    /// The code of the GOAWAY, if either side has sent one; INTERNAL_ERROR if the byte stream below failed.
    pub code: Code,
    /// What happened.
    pub what: &'static str,
    /// The limit that was exceeded, if that is the reason.
    pub abuse: Option<Abuse>,
    /// Whether the peer sent the code.
    pub by_peer: bool,
    /// The error of the byte stream below, if it failed.
    pub io: Option<io::ErrorKind>,
}

impl ConnError {
    /// The peer broke the protocol.
    pub(crate) fn broke(code: Code, what: &'static str) -> Self {
        Self { code, what, abuse: None, by_peer: false, io: None }
    }

    /// The peer exceeded a limit.
    pub(crate) fn abused(abuse: Abuse, what: &'static str) -> Self {
        let abuse_code = match abuse {
            Abuse::WindowOverflow => Code::FLOW_CONTROL_ERROR,
            Abuse::Hpack => Code::COMPRESSION_ERROR,
            Abuse::SettingsTimeout => Code::SETTINGS_TIMEOUT,
            _ => Code::ENHANCE_YOUR_CALM,
        };
        Self { abuse: Some(abuse), ..Self::broke(abuse_code, what) }
    }

    /// The byte stream below failed or ended.
    pub(crate) fn io(kind: io::ErrorKind, what: &'static str) -> Self {
        Self { io: Some(kind), ..Self::broke(Code::INTERNAL_ERROR, what) }
    }

    /// A name for metrics: the name of the exceeded limit if there is one, otherwise that of the code.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match (self.abuse, self.io) {
            (Some(abuse), _) => abuse.label(),
            (None, Some(_)) => "broken",
            (None, None) => self.code.label(),
        }
    }
}

/// How a stream ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stream was reset ({code})")]
pub struct Reset {
    /// The code of RST_STREAM or GOAWAY.
    pub code: Code,
    /// Which side ended it.
    pub by: ResetBy,
    /// The peer has certainly not processed the stream. The request can be sent again elsewhere
    /// (RFC 9113 section 8.7) if its body is still available.
    pub unprocessed: bool,
}

impl Reset {
    /// The reset of a stream whose reader reads too little while other streams need the memory or the slot.
    pub(crate) const STALL: Self =
        Self { code: Code::ENHANCE_YOUR_CALM, by: ResetBy::Us, unprocessed: false };

    /// Whether this side reset the stream because its reader read too little.
    #[must_use]
    pub fn is_stall(self) -> bool {
        self == Self::STALL
    }
}

/// Who ended a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetBy {
    /// The peer did, with RST_STREAM.
    Peer,
    /// This side did: the user of the stream, or this crate because the peer broke the protocol on it.
    Us,
    /// The connection ended, or its GOAWAY excluded the stream.
    Connection,
}

/// Why a stream was not opened. Nothing was sent, so the request can use another connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// As many streams are open as the peer allows, or as our own limit allows.
    #[error("all streams are in use")]
    Full,
    /// The connection accepts no more streams: it is closed, draining or out of identifiers.
    #[error("the connection takes no more streams")]
    Closed,
    /// The head is larger than the peer accepts.
    #[error("the head is larger than the server accepts")]
    TooLarge,
}
