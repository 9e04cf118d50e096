//! Error codes of RST_STREAM and GOAWAY.

use std::fmt;

/// The first of the codes that proxies of a mesh use among each other: the letters `Len`, and a number. Endpoints may
/// treat codes that they do not know like `INTERNAL_ERROR` (RFC 9113 section 7).
const OF_MESH: u32 = 0x4c65_6e00;

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
    /// A frame arrived for a stream on which the peer had already ended its direction.
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

    /// Divides the numbers of [`Self::of_mesh`]: smaller ones stand for malformed messages of applications, this one
    /// and larger ones for all other errors. [`Self::without_mesh`] depends on it.
    pub const OTHER_OF_MESH: u8 = 0x80;

    /// One of the codes that the proxies of a mesh use among each other. The user of this crate defines what they mean.
    #[must_use]
    pub const fn of_mesh(number: u8) -> Self {
        Self(OF_MESH | number as u32)
    }

    /// The number from which [`Self::of_mesh`] made the code; `None` for other codes. A peer that is no proxy of the
    /// mesh may send such codes, too.
    #[must_use]
    pub fn mesh_number(self) -> Option<u8> {
        let [rest @ .., number] = self.0.to_be_bytes();
        let [first @ .., _] = OF_MESH.to_be_bytes();
        (rest == first).then_some(number)
    }

    /// Converts the code to a code of RFC 9113, for peers that are not proxies of the mesh. The code for a malformed
    /// response becomes the code that section 8.1.1 demands. Codes that [`Self::of_mesh`] did not make stay the same.
    #[must_use]
    pub fn without_mesh(self) -> Self {
        match self.mesh_number() {
            None => self,
            Some(number) if number < Self::OTHER_OF_MESH => Self::PROTOCOL_ERROR,
            Some(_) => Self::INTERNAL_ERROR,
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_the_mesh_stay_in_the_mesh() {
        assert_eq!(Code::of_mesh(3), Code(0x4c65_6e03));
        assert_eq!(Code::of_mesh(3).mesh_number(), Some(3));
        assert_eq!(Code::of_mesh(0x7f).without_mesh(), Code::PROTOCOL_ERROR);
        assert_eq!(Code::of_mesh(0x80).without_mesh(), Code::INTERNAL_ERROR);
        for code in [Code::NO_ERROR, Code::CANCEL, Code(0x4c65_6f00), Code(u32::MAX)] {
            assert_eq!((code.mesh_number(), code.without_mesh()), (None, code));
        }
    }
}
