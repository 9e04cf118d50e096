//! The protocol of a connection, by the bytes that its client has sent.

/// How many bytes are examined. A request line that is longer counts as HTTP/1, whose parser then rejects it.
pub(super) const MAX_DETECT: usize = 8 * 1024;

/// The longest method name that is recognised. The longest registered name (`UPDATEREDIRECTREF`) has 17 letters.
const MAX_METHOD: usize = 24;

/// Some clients send a superfluous empty line after a request's body, so it comes before the next request line (RFC
/// 9112 section 2.2).
const EMPTY_LINE: &[u8] = b"\r\n";
/// The connection preface of HTTP/2 (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The lengths of a frame's header (RFC 9113 section 4.1) and of one setting (section 6.5.1).
const FRAME_HEADER: usize = 9;
const SETTING: u32 = 6;

/// How many settings a server's first frame may have. Nine settings are registered, and some servers send unknown ones.
const MAX_SETTINGS: u32 = 32;

/// The text that follows the target in a request line.
const VERSION: &[u8] = b"HTTP/1.";

/// The protocol that the first bytes belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detected {
    /// An HTTP/1.0 or HTTP/1.1 request.
    Http1,
    /// The preface of HTTP/2 with prior knowledge.
    Http2Preface,
    /// A TLS ClientHello, of the mesh or of the application.
    TlsClientHello,
    /// None of these.
    Opaque,
    /// More bytes are needed to decide.
    NeedMore,
}

/// Recognises the protocol by the first bytes that a client has sent.
///
/// A decision never changes when more bytes follow. HTTP/1 is decided only when the version in the request line has
/// arrived, because other text protocols also begin with upper-case words (`GET key` is a Redis inline command). Most
/// clients send the line in one piece, so this costs no wait.
pub(super) fn detect(bytes: &[u8]) -> Detected {
    let bytes = bytes.get(..MAX_DETECT).unwrap_or(bytes);
    let undecided = if bytes.len() < MAX_DETECT { Detected::NeedMore } else { Detected::Http1 };
    match bytes.first() {
        None => Detected::NeedMore,
        Some(0x16) => client_hello(bytes),
        Some(b'A'..=b'Z') => match starts(bytes, PREFACE) {
            Some(true) => Detected::Http2Preface,
            // An HTTP/1 method may begin with "PRI", too, so both protocols must be excluded.
            None => Detected::NeedMore,
            Some(false) => request_line(bytes, undecided),
        },
        Some(_) => match bytes.strip_prefix(EMPTY_LINE) {
            Some(rest @ [b'A'..=b'Z', ..]) => request_line(rest, undecided),
            Some([]) => Detected::NeedMore,
            None if is_empty_line(bytes) => Detected::NeedMore,
            _ => Detected::Opaque,
        },
    }
}

/// Whether the client has sent no more than a part of an empty line. Other protocols also begin like this: a finger
/// client asks for all users with an empty line (RFC 1288 section 2.3), and a person at a terminal presses Enter.
pub(super) fn is_empty_line(bytes: &[u8]) -> bool {
    EMPTY_LINE.starts_with(bytes)
}

/// Whether a client speaks HTTP/2 with prior knowledge, which its preface shows (RFC 9113 section 3.4). `None` while
/// the bytes are only a part of the preface. No HTTP/1 request begins with the preface.
pub(super) fn is_preface(bytes: &[u8]) -> Option<bool> {
    starts(bytes, PREFACE)
}

/// Whether the first bytes of a server are an HTTP/2 SETTINGS frame, which some servers send before their client's
/// preface has arrived (RFC 9113 section 3.4).
pub(super) fn is_server_preface(bytes: &[u8]) -> bool {
    const SETTINGS: u8 = 4;
    let Some(header) = bytes.first_chunk::<FRAME_HEADER>() else { return false };
    let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
    let [kind, flags, stream @ ..] =
        [header[3], header[4], header[5], header[6], header[7], header[8]];
    length.is_multiple_of(SETTING)
        && length <= MAX_SETTINGS * SETTING
        && (kind, flags, stream) == (SETTINGS, 0, [0; 4])
}

/// Whether `bytes` begin with `whole`; `None` while they are only the beginning of `whole`.
fn starts(bytes: &[u8], whole: &[u8]) -> Option<bool> {
    if bytes.len() < whole.len() && whole.starts_with(bytes) {
        return None;
    }
    Some(bytes.starts_with(whole))
}

/// Whether the bytes are a TLS record (RFC 8446 section 5.1) of type handshake that contains a ClientHello, by its
/// first six bytes.
pub(super) fn client_hello(bytes: &[u8]) -> Detected {
    let good = |(at, byte): (usize, &u8)| match at {
        0 => *byte == 0x16,
        1 => *byte == 3,
        2 => *byte <= 4,
        3 => *byte <= 0x40,
        4 => *byte != 0 || bytes.get(3) != Some(&0),
        _ => *byte == 1,
    };
    if !bytes.iter().enumerate().take(6).all(good) {
        Detected::Opaque
    } else if bytes.len() < 6 {
        Detected::NeedMore
    } else {
        Detected::TlsClientHello
    }
}

/// Recognises `METHOD SP target SP HTTP/1.` (RFC 9112 section 3), where the method consists of ASCII capitals, as all
/// registered methods do. `undecided` is the result if the line continues after these bytes.
fn request_line(bytes: &[u8], undecided: Detected) -> Detected {
    let in_method = |byte: &u8| byte.is_ascii_uppercase() || matches!(byte, b'-' | b'_');
    let Some((method, after)) = split_where(bytes, |byte| !in_method(byte)) else {
        return if bytes.len() > MAX_METHOD { Detected::Opaque } else { Detected::NeedMore };
    };
    let [b' ', after @ ..] = after else { return Detected::Opaque };
    if method.len() > MAX_METHOD {
        return Detected::Opaque;
    }
    let Some((target, after)) = split_where(after, |byte| *byte <= b' ' || *byte == 0x7f) else {
        return undecided;
    };
    let [b' ', version @ ..] = after else { return Detected::Opaque };
    if target.is_empty() {
        return Detected::Opaque;
    }
    match starts(version, VERSION) {
        Some(true) => Detected::Http1,
        Some(false) => Detected::Opaque,
        None => undecided,
    }
}

/// Splits before the first byte for which `end` returns true. `None` if there is no such byte.
fn split_where(bytes: &[u8], end: impl Fn(&u8) -> bool) -> Option<(&[u8], &[u8])> {
    bytes.iter().position(end).and_then(|at| bytes.split_at_checked(at))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_bytes_of_many_protocols_are_recognised() {
        use Detected::{Http1, Http2Preface, NeedMore, Opaque, TlsClientHello};
        let cases: &[(&[u8], Detected)] = &[
            (b"", NeedMore),
            (b"GET / HTTP/1.1\r\nHost: web\r\n\r\n", Http1),
            (b"GET /a?b=c HTTP/1.", Http1),
            (b"GET / HTTP/1", NeedMore),
            (b"M-SEARCH * HTTP/1.1\r\n", Http1),
            (b"CONNECT web:443 HTTP/1.1\r\n", Http1),
            (b"GET http://web/ HTTP/1.0\r\n", Http1),
            (b"G", NeedMore),
            (b"GET / HTTP/2.0\r\n", Opaque),
            (b"GET /\r\n", Opaque),
            (b"GET key\r\n", Opaque),
            (b"GET  / HTTP/1.1\r\n", Opaque),
            (b"PING\r\n", Opaque),
            (b"EHLO mail.example\r\n", Opaque),
            (b"SSH-2.0-OpenSSH_9.2\r\n", Opaque),
            (b"get / HTTP/1.1\r\n", Opaque),
            (b"\r", NeedMore),
            (b"\r\n", NeedMore),
            (b"\r\nG", NeedMore),
            (b"\r\nGET / HTTP/1.1\r\n", Http1),
            (b"\r\n\r\nGET / HTTP/1.1\r\n", Opaque),
            (b"\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Opaque),
            (b"\rGET / HTTP/1.1\r\n", Opaque),
            (b"\nGET / HTTP/1.1\r\n", Opaque),
            (b"\r\nroot\r\n", Opaque),
            (b"*1\r\n$4\r\nPING\r\n", Opaque),
            (b"\0\0\0\x08\x04\xd2\x16\x2f", Opaque),
            (b"PRI", NeedMore),
            (PREFACE, Http2Preface),
            (b"PRI * HTTP/2.0\r\n\r\nXX", Opaque),
            (b"PRINT / HTTP/1.1\r\n", Http1),
            (b"\x16\x03\x01\x02\x00\x01\x00", TlsClientHello),
            (b"\x16\x03\x01", NeedMore),
            (b"\x16\x03\x01\x02\x00\x02", Opaque),
            (b"\x16\x03\x01\x00\x00\x01", Opaque),
            // This ClientHello is cut into records of one byte (RFC 8446 section 5.1).
            (b"\x16\x03\x01\x00\x01\x01\x16\x03\x01", TlsClientHello),
            (b"\x16\x02", Opaque),
        ];
        for (bytes, expected) in cases {
            let shown = String::from_utf8_lossy(bytes);
            assert_eq!(detect(bytes), *expected, "{shown:?}");
        }
    }

    #[test]
    fn an_endless_request_line_counts_as_http() {
        let mut line = b"GET /".to_vec();
        line.resize(MAX_DETECT - 1, b'a');
        assert_eq!(detect(&line), Detected::NeedMore);
        line.push(b'a');
        assert_eq!(detect(&line), Detected::Http1);
    }

    #[test]
    fn a_server_whose_first_bytes_are_settings_speaks_http2() {
        // The SETTINGS of grpc-go, the empty SETTINGS of Node, and then greetings of other protocols.
        let grpc = b"\0\0\x06\x04\0\0\0\0\0\0\x05\0\0\x40\0";
        assert!(is_server_preface(grpc));
        assert!(is_server_preface(b"\0\0\0\x04\0\0\0\0\0"));
        for other in [
            &b""[..],
            b"\0\0\0\x04\0\0\0\0",
            b"\0\0\x05\x04\0\0\0\0\0\0\x05\0\0\x40",
            b"\0\0\0\x04\x01\0\0\0\0",
            b"\0\0\0\x04\0\0\0\0\x01",
            b"\x4a\0\0\0\x0a5.5.5-10.11",
            b"220 ready\r\n",
            b"HTTP/1.1 408 Request Timeout\r\n",
        ] {
            assert!(!is_server_preface(other), "{}", other.escape_ascii());
        }
    }

    fn beginnings() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..64),
            "(\r\n){0,2}[A-Z_-]{1,26}[ ]{0,2}[!-~]{0,20}[ \r]?(HTTP/1\\.1|HTTP/2\\.0|HTTP)?[ -~\r\n]{0,9}"
                .prop_map(String::into_bytes),
            (0..=PREFACE.len(), proptest::collection::vec(any::<u8>(), 0..9))
                .prop_map(|(n, rest)| [&PREFACE[..n], &rest].concat()),
            (0..6usize, proptest::collection::vec(any::<u8>(), 0..9)).prop_map(|(n, rest)| [
                &b"\x16\x03\x01\x02\x00\x01"[..n],
                &rest
            ]
            .concat()),
        ]
    }

    proptest! {
        #[test]
        fn a_decision_is_final(bytes in beginnings()) {
            let mut decided = None;
            for n in 0..=bytes.len() {
                let now = detect(&bytes[..n]);
                if let Some(before) = decided {
                    prop_assert_eq!(now, before, "after {} bytes", n);
                } else if now != Detected::NeedMore {
                    decided = Some(now);
                }
            }
        }

        #[test]
        fn no_bytes_are_undecided_at_the_bound(bytes in beginnings(), filler in any::<u8>()) {
            let mut long = bytes;
            long.resize(MAX_DETECT, filler);
            prop_assert_ne!(detect(&long), Detected::NeedMore);
        }

        #[test]
        fn every_request_line_is_http(
            method in "[A-Z][A-Z-]{0,16}",
            target in "[!-~]{1,200}",
            version in "HTTP/1\\.[01]",
        ) {
            let line = format!("{method} {target} {version}\r\n");
            prop_assert_eq!(detect(line.as_bytes()), Detected::Http1);
        }
    }
}
