//! Finds out whether a client uses TLS with the application, for policies that depend on the server name.
//!
//! Detection recognises what usual clients send. Servers accept more: other versions in the record header, an empty or
//! another record before the ClientHello, the format of SSL 2.0. Such a beginning counts as TLS whose name cannot be
//! read, so that clients cannot use it to bypass rules about names.

use leno_transport::{OwnTls, Verdict};

/// Types of TLS records that are sent in plaintext (RFC 8446 section 5.1, RFC 6520).
const RECORDS: std::ops::RangeInclusive<u8> = 20..=24;
const HANDSHAKE: u8 = 22;

/// Classifies the first bytes of a client, given the verdict of detection. A client that was silent for a long time
/// may still begin TLS.
pub(crate) fn own_tls(verdict: &Verdict, bytes: &[u8]) -> OwnTls {
    match verdict {
        Verdict::Tls(hello) => OwnTls::begun(hello.as_ref()),
        Verdict::Opaque if !may_be_tls(bytes) => OwnTls::default(),
        _ => OwnTls::begun(None),
    }
}

/// Whether some server accepts the bytes as the beginning of TLS.
fn may_be_tls(bytes: &[u8]) -> bool {
    match bytes {
        [HANDSHAKE, ..] => true,
        [kind, rest @ ..] if RECORDS.contains(kind) => rest.first().is_none_or(|major| *major == 3),
        // SSL 2.0 begins with a length of two bytes with the highest bit set, and the type of the message.
        [0x80..=0xff, rest @ ..] => rest.get(1).is_none_or(|kind| *kind == 1),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_take_for_tls_has_no_readable_name() {
        for bytes in [
            &b"\x16\x03\x05\x00\x2a\x01"[..],
            b"\x16\x03\xff\x00\x2a\x01",
            b"\x16\x03\x01\x00\x00\x16\x03\x01\x00\x2a\x01",
            b"\x16",
            b"\x16\x00",
            b"\x15\x03\x01\x00\x02\x01\x00\x16\x03\x01",
            b"\x80\x2e\x01\x03\x03\x00\x15",
            b"\x80",
        ] {
            assert_eq!(own_tls(&Verdict::Opaque, bytes), OwnTls::begun(None), "{bytes:?}");
        }
        for verdict in [Verdict::Tls(None), Verdict::Silent] {
            assert_eq!(own_tls(&verdict, b""), OwnTls::begun(None));
        }
    }

    #[test]
    fn other_bytes_are_no_tls() {
        for bytes in [
            &b""[..],
            b"hello",
            b"\x15\x00\x00",
            b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
            b"\x80\x01\x00\x01",
            b"\xff\xfd\x18",
        ] {
            assert_eq!(own_tls(&Verdict::Opaque, bytes), OwnTls::default(), "{bytes:?}");
        }
    }
}
