//! The messages of proxies about flows, and the format of a datagram.
//!
//! ```text
//!  stream      client ─► its port (2 bytes), the port of the server (2 bytes)
//!              server ─► ACCEPTED, or a reset with a Refusal
//!  datagram    varint: number of the stream, payload
//! ```
//! The addresses are those of the connection, so a client can neither claim another source nor reach another address
//! than the one to which it has connected. A varint is a number in QUIC's encoding (RFC 9000 section 16). The number of
//! a stream is its identifier without the two bits of its type, as in RFC 9297 section 2.1.

use std::num::NonZeroU16;

use bytes::{BufMut, Bytes, BytesMut};

/// The server's answer if it accepts a flow.
pub(crate) const ACCEPTED: u8 = 1;
/// The length of a client's request for a flow.
pub(crate) const OPENING_BYTES: usize = 4;
/// The largest number of bytes that the number of a flow takes.
const MAX_VARINT: usize = 8;

/// The request of a client's proxy for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    /// The port of the application's socket.
    pub(crate) client: NonZeroU16,
    /// The port of the workload.
    pub(crate) server: NonZeroU16,
}

/// Why a server's proxy refuses or ends a flow: the error code of the stream's reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A policy denies it.
    Denied,
    /// No document declares the port to carry datagrams.
    Undeclared,
    /// There are too many flows.
    Limit,
    /// There is no socket towards the application.
    Unreachable,
    /// The client's proxy has sent an invalid request.
    Malformed,
    /// There was no datagram for too long.
    Idle,
}

impl Refusal {
    const ALL: [Self; 6] = [
        Self::Denied,
        Self::Undeclared,
        Self::Limit,
        Self::Unreachable,
        Self::Malformed,
        Self::Idle,
    ];

    /// The code of the reset.
    #[must_use]
    pub(crate) const fn code(self) -> u32 {
        match self {
            Self::Denied => 1,
            Self::Undeclared => 2,
            Self::Limit => 3,
            Self::Unreachable => 4,
            Self::Malformed => 5,
            Self::Idle => 6,
        }
    }

    /// The refusal with this code.
    #[must_use]
    pub(crate) fn of(code: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|refusal| u64::from(refusal.code()) == code)
    }

    /// The reason in words, for logs.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Undeclared => "port-not-declared",
            Self::Limit => "limit",
            Self::Unreachable => "unreachable",
            Self::Malformed => "malformed",
            Self::Idle => "idle",
        }
    }
}

impl Opening {
    pub(crate) fn encode(self) -> [u8; OPENING_BYTES] {
        let ([a, b], [c, d]) = (self.client.get().to_be_bytes(), self.server.get().to_be_bytes());
        [a, b, c, d]
    }

    /// Decodes a request; `None` if a port is zero.
    pub(crate) fn decode([a, b, c, d]: [u8; OPENING_BYTES]) -> Option<Self> {
        let port = |bytes| NonZeroU16::new(u16::from_be_bytes(bytes));
        Some(Self { client: port([a, b])?, server: port([c, d])? })
    }
}

/// The bytes that the number of a flow takes; `None` if it is too large for a varint.
pub(crate) fn flow_bytes(flow: u64) -> Option<usize> {
    match flow {
        0..=0x3f => Some(1),
        0x40..=0x3fff => Some(2),
        0x4000..=0x3fff_ffff => Some(4),
        0x4000_0000..=0x3fff_ffff_ffff_ffff => Some(MAX_VARINT),
        _ => None,
    }
}

/// Encodes a datagram of a flow.
pub(crate) fn datagram(flow: u64, payload: &[u8]) -> Option<Bytes> {
    let of_flow = flow_bytes(flow)?;
    let mut bytes = BytesMut::with_capacity(of_flow.saturating_add(payload.len()));
    let number = flow.to_be_bytes();
    let mut number = number.get(MAX_VARINT.checked_sub(of_flow)?..)?.iter();
    let first = number.next()?;
    // The first two bits encode the length: 1, 2, 4 or 8 bytes.
    bytes.put_u8(first | u8::try_from(of_flow.ilog2()).ok()? << 6);
    number.for_each(|byte| bytes.put_u8(*byte));
    bytes.put_slice(payload);
    Some(bytes.freeze())
}

/// The flow of a datagram, and its payload; `None` if the number is incomplete.
pub(crate) fn read_datagram(mut bytes: Bytes) -> Option<(u64, Bytes)> {
    let first = *bytes.first()?;
    let length = 1_usize << (first >> 6);
    if bytes.len() < length {
        return None;
    }
    let number = bytes.split_to(length);
    let flow = number
        .iter()
        .skip(1)
        .fold(u64::from(first & 0x3f), |sum, byte| sum << 8 | u64::from(*byte));
    Some((flow, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_rfc_9000() {
        // The examples of appendix A.1.
        let samples: [(&[u8], u64); 5] = [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x40, 0x25], 37),
            (&[0x25], 37),
        ];
        for (bytes, number) in samples {
            let read = read_datagram([bytes, b"payload"].concat().into()).unwrap();
            assert_eq!(read, (number, Bytes::from_static(b"payload")));
            if bytes.len() == flow_bytes(number).unwrap() {
                assert_eq!(datagram(number, b"x").unwrap(), [bytes, b"x"].concat());
            }
        }
    }

    #[test]
    fn every_length_of_a_number_comes_back() {
        for flow in [0, 63, 64, 16_383, 16_384, (1 << 30) - 1, 1 << 30, (1 << 62) - 1] {
            let bytes = datagram(flow, b"").unwrap();
            assert_eq!(bytes.len(), flow_bytes(flow).unwrap());
            assert_eq!(read_datagram(bytes), Some((flow, Bytes::new())));
        }
        assert_eq!(datagram(1 << 62, b""), None);
    }

    #[test]
    fn a_datagram_that_ends_within_its_number_is_none() {
        for bytes in [&[][..], &[0x40], &[0x80, 0, 0], &[0xc0, 0, 0, 0, 0, 0, 0]] {
            assert_eq!(read_datagram(Bytes::copy_from_slice(bytes)), None);
        }
    }

    #[test]
    fn ports_come_back_and_none_is_zero() {
        let port = |number| NonZeroU16::new(number).unwrap();
        let opening = Opening { client: port(40_000), server: port(5353) };
        assert_eq!(opening.encode(), [0x9c, 0x40, 0x14, 0xe9]);
        assert_eq!(Opening::decode(opening.encode()), Some(opening));
        assert_eq!(Opening::decode([0, 0, 0, 1]), None);
        assert_eq!(Opening::decode([0, 1, 0, 0]), None);
    }

    #[test]
    fn every_refusal_has_a_code_of_its_own() {
        for refusal in Refusal::ALL {
            assert_eq!(Refusal::of(refusal.code().into()), Some(refusal));
        }
        assert_eq!(Refusal::of(0), None);
    }
}
