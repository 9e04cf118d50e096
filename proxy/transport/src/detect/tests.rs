//! Calls [`judge`] with every prefix of the first bytes of clients, with silence, for both sides as the first to send,
//! and at each time limit.

use super::*;
use crate::hello::tests::whole as hello;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const REQUEST: &[u8] = b"GET /a?b=c HTTP/1.1\r\nHost: web\r\n\r\n";
const ALL: [Protocol; 4] = [Protocol::Detect, Protocol::Http1, Protocol::Http2, Protocol::Opaque];

const WAITS: Waits = Waits {
    first_byte: Duration::from_millis(1),
    protocol: Duration::from_millis(10),
    hello: Duration::from_millis(100),
};

fn opening(bytes: &[u8], elapsed: Duration) -> Opening<'_> {
    Opening { speaker: Speaker::Client, bytes, ended: false, elapsed }
}

fn at_once(expected: Protocol, bytes: &[u8]) -> Verdict {
    judge(expected, &WAITS, opening(bytes, Duration::ZERO))
}

fn late(expected: Protocol, bytes: &[u8]) -> Verdict {
    judge(expected, &WAITS, opening(bytes, Duration::from_secs(1)))
}

fn ended(expected: Protocol, bytes: &[u8]) -> Verdict {
    judge(expected, &WAITS, Opening { ended: true, ..opening(bytes, Duration::ZERO) })
}

fn declared_of(expected: Protocol) -> Verdict {
    declared(expected)
}

#[test]
fn silence_lasts_until_its_limit_and_an_end_without_a_byte_decides() {
    for expected in ALL {
        assert_eq!(at_once(expected, b""), Verdict::Wait(WAITS.first_byte), "{expected:?}");
        assert_eq!(late(expected, b""), Verdict::Silent, "{expected:?}");
        let has_to_speak = matches!(expected, Protocol::Http1 | Protocol::Http2);
        let verdict = if has_to_speak { Verdict::Silent } else { Verdict::Opaque };
        assert_eq!(ended(expected, b""), verdict, "{expected:?}");
    }
}

#[test]
fn every_prefix_of_a_request_of_http1() {
    // The protocol is clear after `GET /a?b=c HTTP/1.`.
    let clear = REQUEST.windows(2).position(|at| at == b"1.").unwrap() + 2;
    for n in 1..=REQUEST.len() {
        let bytes = &REQUEST[..n];
        let now = at_once(Protocol::Detect, bytes);
        if n >= clear {
            for verdict in [now, late(Protocol::Detect, bytes), ended(Protocol::Detect, bytes)] {
                assert_eq!(verdict, Verdict::Http1, "{n}");
            }
        } else {
            assert_eq!(now, Verdict::Wait(WAITS.protocol), "{n}");
            assert_eq!(late(Protocol::Detect, bytes), Verdict::Undecided, "{n}");
            assert_eq!(ended(Protocol::Detect, bytes), Verdict::Opaque, "{n}");
        }
        // If HTTP/1 is declared, all bytes except the preface of HTTP/2 count as HTTP/1.
        assert_eq!(at_once(Protocol::Http1, bytes), Verdict::Http1, "{n}");
        let waits = if n >= clear { Verdict::Http1 } else { Verdict::Wait(WAITS.protocol) };
        assert_eq!(at_once(Protocol::Http2, bytes), waits, "{n}");
        assert_eq!(at_once(Protocol::Opaque, bytes), Verdict::Opaque, "{n}");
    }
}

/// RFC 9112 section 2.2. An empty line alone is not part of a request, because other protocols begin with it, too.
#[test]
fn one_empty_line_may_come_before_a_request_of_http1() {
    let request = [b"\r\n", REQUEST].concat();
    assert_eq!(at_once(Protocol::Detect, &request), Verdict::Http1);
    assert_eq!(at_once(Protocol::Http2, &request), Verdict::Http1);
    for (n, on_time) in [(1, Verdict::Opaque), (2, Verdict::Opaque), (3, Verdict::Undecided)] {
        let bytes = &request[..n];
        assert_eq!(at_once(Protocol::Detect, bytes), Verdict::Wait(WAITS.protocol), "{n}");
        assert_eq!(late(Protocol::Detect, bytes), on_time, "{n}");
        assert_eq!(ended(Protocol::Detect, bytes), Verdict::Opaque, "{n}");
    }
}

#[test]
fn every_prefix_of_the_preface_of_http2() {
    for n in 1..=PREFACE.len() {
        let bytes = &PREFACE[..n];
        for expected in [Protocol::Detect, Protocol::Http1, Protocol::Http2] {
            if n == PREFACE.len() {
                assert_eq!(at_once(expected, bytes), Verdict::Http2, "{expected:?}");
                continue;
            }
            assert_eq!(at_once(expected, bytes), Verdict::Wait(WAITS.protocol), "{expected:?} {n}");
            let (on_end, on_time) = match expected {
                Protocol::Detect => (Verdict::Opaque, Verdict::Undecided),
                _ => (declared_of(expected), declared_of(expected)),
            };
            assert_eq!(ended(expected, bytes), on_end, "{expected:?} {n}");
            assert_eq!(late(expected, bytes), on_time, "{expected:?} {n}");
        }
        assert_eq!(at_once(Protocol::Opaque, bytes), Verdict::Opaque, "{n}");
    }
}

#[test]
fn every_prefix_of_a_client_hello() {
    let hello = hello();
    for expected in [Protocol::Detect, Protocol::Opaque] {
        for n in 1..=hello.len() {
            let bytes = &hello[..n];
            let now = at_once(expected, bytes);
            if n == hello.len() {
                assert!(matches!(now, Verdict::Tls(Some(_))), "{now:?}");
                continue;
            }
            assert_eq!(now, Verdict::Wait(WAITS.hello), "{n}");
            assert_eq!(late(expected, bytes), Verdict::Tls(None), "{n}");
            let on_end = if n < 6 { Verdict::Opaque } else { Verdict::Tls(None) };
            assert_eq!(ended(expected, bytes), on_end, "{n}");
        }
        let with_data = [&hello[..], b"early data"].concat();
        assert!(matches!(at_once(expected, &with_data), Verdict::Tls(Some(_))));
    }
    for expected in [Protocol::Http1, Protocol::Http2] {
        assert_eq!(at_once(expected, &hello), declared_of(expected));
    }
}

#[test]
fn bytes_of_other_protocols_are_opaque_at_once() {
    for bytes in [&b"\0"[..], b"SSH-2.0", b"EHLO mail.example\r\n", b"\x16\x02", b"*1\r\n$4"] {
        assert_eq!(at_once(Protocol::Detect, bytes), Verdict::Opaque, "{}", bytes.escape_ascii());
        assert_eq!(at_once(Protocol::Opaque, bytes), Verdict::Opaque, "{}", bytes.escape_ascii());
        for expected in [Protocol::Http1, Protocol::Http2] {
            assert_eq!(at_once(expected, bytes), declared_of(expected), "{}", bytes.escape_ascii());
        }
    }
}

#[test]
fn a_server_that_speaks_first_is_opaque_unless_it_sends_http2_settings() {
    for expected in ALL {
        for ended in [false, true] {
            let server = |bytes| {
                let speaker = Speaker::Server;
                judge(expected, &WAITS, Opening { speaker, ended, ..opening(bytes, WAITS.hello) })
            };
            assert_eq!(server(b"220 ready\r\n"), Verdict::Opaque);
            assert_eq!(server(b""), Verdict::Opaque);
            assert_eq!(server(b"\0\0\0\x04\0\0\0\0\0"), Verdict::Http2);
        }
    }
}

#[test]
fn each_wait_ends_at_its_bound_and_not_before() {
    let moment = Duration::from_nanos(1);
    let hello = hello();
    for (bytes, expected, bound) in [
        (&b""[..], Protocol::Detect, WAITS.first_byte),
        (b"GET / H", Protocol::Detect, WAITS.protocol),
        (b"\r\n", Protocol::Detect, WAITS.protocol),
        (b"\r\nGET /", Protocol::Detect, WAITS.protocol),
        (b"PRI * H", Protocol::Http1, WAITS.protocol),
        (b"GET / H", Protocol::Http2, WAITS.protocol),
        (&hello[..3], Protocol::Detect, WAITS.hello),
        (&hello[..40], Protocol::Opaque, WAITS.hello),
    ] {
        let at = |elapsed| judge(expected, &WAITS, opening(bytes, elapsed));
        assert_eq!(at(bound - moment), Verdict::Wait(moment), "{}", bytes.escape_ascii());
        assert!(!matches!(at(bound), Verdict::Wait(_)), "{}", bytes.escape_ascii());
    }
}

#[test]
fn there_is_no_wait_for_a_first_byte_if_the_server_speaks_first() {
    let silent = judge(Protocol::Detect, &Waits::SERVER_FIRST, opening(b"", Duration::ZERO));
    assert_eq!(silent, Verdict::Silent);
}
