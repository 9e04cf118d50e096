//! The frame header (RFC 9113 section 4.1) and the frames with a fixed layout.

use crate::code::Code;

/// The size of a frame header in bytes.
pub(crate) const HEAD_BYTES: usize = 9;
/// The first bytes that a client sends (RFC 9113 section 3.4).
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The largest window and stream identifier: 31 bits.
pub(crate) const MAX_31: u32 = 0x7fff_ffff;

/// Frame types (RFC 9113 section 6).
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0x0;
    pub(crate) const HEADERS: u8 = 0x1;
    pub(crate) const PRIORITY: u8 = 0x2;
    pub(crate) const RST_STREAM: u8 = 0x3;
    pub(crate) const SETTINGS: u8 = 0x4;
    pub(crate) const PUSH_PROMISE: u8 = 0x5;
    pub(crate) const PING: u8 = 0x6;
    pub(crate) const GOAWAY: u8 = 0x7;
    pub(crate) const WINDOW_UPDATE: u8 = 0x8;
    pub(crate) const CONTINUATION: u8 = 0x9;
}

/// Flags of frames.
pub(crate) mod flag {
    pub(crate) const END_STREAM: u8 = 0x1;
    pub(crate) const ACK: u8 = 0x1;
    pub(crate) const END_HEADERS: u8 = 0x4;
    pub(crate) const PADDED: u8 = 0x8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHead {
    /// The size of the payload in bytes, a number of 24 bits.
    pub(crate) len: u32,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    /// Stream identifier, 31 bits. 0 means the connection.
    pub(crate) id: u32,
}

impl FrameHead {
    pub(crate) fn new(len: usize, kind: u8, flags: u8, id: u32) -> Self {
        debug_assert!(len < 1 << 24);
        Self { len: len as u32, kind, flags, id }
    }

    /// The frame header at the start of `bytes`. `None` if `bytes` is shorter than that.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, kind, flags, id @ ..] = bytes.first_chunk::<HEAD_BYTES>()?;
        Some(Self {
            len: u32::from_be_bytes([0, *a, *b, *c]),
            kind: *kind,
            flags: *flags,
            // The reserved bit is ignored.
            id: u32::from_be_bytes(*id) & MAX_31,
        })
    }

    pub(crate) fn bytes(self) -> [u8; HEAD_BYTES] {
        let [_, a, b, c] = self.len.to_be_bytes();
        let [d, e, f, g] = self.id.to_be_bytes();
        [a, b, c, self.kind, self.flags, d, e, f, g]
    }

    pub(crate) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// The 32-bit number at `at`, without its reserved first bit.
pub(crate) fn number31(payload: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*payload.get(at..)?.first_chunk()?) & MAX_31)
}

pub(crate) fn rst_stream(id: u32, code: Code) -> [u8; HEAD_BYTES + 4] {
    joined(FrameHead::new(4, kind::RST_STREAM, 0, id), code.0.to_be_bytes())
}

pub(crate) fn window_update(id: u32, credit: u32) -> [u8; HEAD_BYTES + 4] {
    joined(FrameHead::new(4, kind::WINDOW_UPDATE, 0, id), credit.to_be_bytes())
}

pub(crate) fn ping(ack: bool, opaque: [u8; 8]) -> [u8; HEAD_BYTES + 8] {
    joined(FrameHead::new(8, kind::PING, if ack { flag::ACK } else { 0 }, 0), opaque)
}

pub(crate) fn goaway(last: u32, code: Code) -> [u8; HEAD_BYTES + 8] {
    let [a, b, c, d] = last.to_be_bytes();
    let [e, f, g, h] = code.0.to_be_bytes();
    joined(FrameHead::new(8, kind::GOAWAY, 0, 0), [a, b, c, d, e, f, g, h])
}

fn joined<const N: usize, const M: usize>(head: FrameHead, payload: [u8; N]) -> [u8; M] {
    let mut out = [0; M];
    out[..HEAD_BYTES].copy_from_slice(&head.bytes());
    out[HEAD_BYTES..].copy_from_slice(&payload);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_survives_the_wire() {
        let head = FrameHead::new(0x12_3456, kind::HEADERS, 0x25, 0x7fff_fffd);
        assert_eq!(FrameHead::parse(&head.bytes()), Some(head));
        assert_eq!(FrameHead::parse(&head.bytes()[..8]), None);
    }

    #[test]
    fn the_reserved_bit_is_ignored() {
        let head = FrameHead::parse(&[0, 0, 4, 3, 0, 0x80, 0, 0, 1]).unwrap();
        assert_eq!(head.id, 1);
        assert_eq!(number31(&[0xff; 4], 0), Some(MAX_31));
    }

    #[test]
    fn numbers_stand_where_the_rfc_has_them() {
        assert_eq!(rst_stream(3, Code::CANCEL), [0, 0, 4, 3, 0, 0, 0, 0, 3, 0, 0, 0, 8]);
        assert_eq!(window_update(0, 258), [0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(goaway(5, Code::NO_ERROR)[9..], [0, 0, 0, 5, 0, 0, 0, 0]);
        assert_eq!(ping(true, [7; 8])[..9], [0, 0, 8, 6, 1, 0, 0, 0, 0]);
    }
}
