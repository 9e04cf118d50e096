//! Error codes of RST_STREAM and GOAWAY.

use std::fmt;

/// An error code (RFC 9113 section 7). Unknown codes keep their number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(pub u32);

impl Code {
    /// No error: a graceful end.
    pub const NO_ERROR: Self = Self(0x0);
    /// The peer broke the protocol.
    pub const PROTOCOL_ERROR: Self = Self(0x1);
    /// Something failed that is not the peer's fault.
    pub const INTERNAL_ERROR: Self = Self(0x2);
    /// More bytes were sent than a flow-control window allowed.
    pub const FLOW_CONTROL_ERROR: Self = Self(0x3);
    /// Settings were not acknowledged in time.
    pub const SETTINGS_TIMEOUT: Self = Self(0x4);
    /// A frame arrived for a stream that was half-closed.
    pub const STREAM_CLOSED: Self = Self(0x5);
    /// A frame had a size that its type does not allow.
    pub const FRAME_SIZE_ERROR: Self = Self(0x6);
    /// The stream was refused before it was processed: safe to retry.
    pub const REFUSED_STREAM: Self = Self(0x7);
    /// The stream is no longer wanted.
    pub const CANCEL: Self = Self(0x8);
    /// A field section could not be decoded.
    pub const COMPRESSION_ERROR: Self = Self(0x9);
    /// The connection of a CONNECT was reset.
    pub const CONNECT_ERROR: Self = Self(0xa);
    /// The peer causes too much load.
    pub const ENHANCE_YOUR_CALM: Self = Self(0xb);
    /// The transport is not secure enough.
    pub const INADEQUATE_SECURITY: Self = Self(0xc);
    /// The request needs HTTP/1.1.
    pub const HTTP_1_1_REQUIRED: Self = Self(0xd);

    /// A name for logs and metrics; `unknown` for codes that RFC 9113 does not define.
    #[must_use]
    pub fn label(self) -> &'static str {
        const LABELS: [&str; 14] = [
            "no-error",
            "protocol-error",
            "internal-error",
            "flow-control-error",
            "settings-timeout",
            "stream-closed",
            "frame-size-error",
            "refused-stream",
            "cancel",
            "compression-error",
            "connect-error",
            "enhance-your-calm",
            "inadequate-security",
            "http-1.1-required",
        ];
        LABELS.get(self.0 as usize).copied().unwrap_or("unknown")
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Code({:#x} {})", self.0, self.label())
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}
