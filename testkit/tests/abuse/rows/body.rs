//! Requests with invalid chunked framing.

use super::{RequiredOutcome, Row};

/// The name, the section, the valid beginning of the body, and the fault.
type Body = (&'static str, &'static str, &'static [u8], &'static [u8]);

const HEAD: &[u8] = b"POST /row HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

const SIZES: &[Body] = &[
    ("a chunk of no size", "RFC 9112 7.1", b"", b"\r\nhello\r\n"),
    ("a chunk size in words", "RFC 9112 7.1", b"", b"x\r\n"),
    ("a chunk size behind a space", "RFC 9112 7.1", b"", b" 5\r\nhello\r\n"),
    ("a chunk size before a space", "RFC 9112 7.1", b"5", b" \r\nhello\r\n"),
    ("a chunk size with a prefix", "RFC 9112 7.1", b"0", b"x5\r\nhello\r\n"),
    ("a chunk size with a plus", "RFC 9112 7.1", b"", b"+5\r\nhello\r\n"),
    ("a chunk size with a minus", "RFC 9112 7.1", b"", b"-5\r\nhello\r\n"),
    ("a chunk size with an underscore", "RFC 9112 7.1", b"5", b"_0\r\nhello\r\n"),
    ("a chunk size beyond 64 bits", "RFC 9112 7.1", b"100000000000000", b"05\r\nhello\r\n"),
    ("a chunk size of 64 bits", "RFC 9112 7.1", b"fffffffffffffff", b"f\r\nhello\r\n"),
    ("a chunk size before a bare LF", "RFC 9112 7.1", b"5", b"\nhello\r\n"),
    ("a chunk size before a bare CR", "RFC 9112 7.1", b"5\r", b"hello\r\n"),
    ("a chunk size before a NUL", "RFC 9112 7.1", b"5", b"\0\r\nhello\r\n"),
];

const CHUNKS: &[Body] = &[
    ("a chunk without an end", "RFC 9112 7.1", b"5\r\nhello", b"0\r\n\r\n"),
    ("a chunk longer than it says", "RFC 9112 7.1", b"5\r\nhello", b"!\r\n0\r\n\r\n"),
    ("a chunk shorter than it says", "RFC 9112 7.1", b"8\r\nhello\r\n0\r\n", b"\r\n"),
    ("a chunk that ends with a bare LF", "RFC 9112 7.1", b"5\r\nhello", b"\n0\r\n\r\n"),
    ("a chunk that ends with a bare CR", "RFC 9112 7.1", b"5\r\nhello\r", b"0\r\n\r\n"),
    ("an extension that ends with a bare LF", "RFC 9112 7.1.1", b"5;", b"\nhello\r\n0\r\n\r\n"),
    ("an extension with a bare CR inside", "RFC 9112 7.1.1", b"5;a\r", b"b\r\nhello\r\n0\r\n\r\n"),
    ("an extension with a NUL", "RFC 9112 7.1.1", b"5;a=", b"\0\r\nhello\r\n0\r\n\r\n"),
    ("the last chunk ends with a bare LF", "RFC 9112 7.1", b"0\r\n", b"\n"),
    ("the last chunk's size before a bare LF", "RFC 9112 7.1", b"0", b"\n\r\n"),
    ("text for the last chunk's end", "RFC 9112 7.1", b"0\r\n\r", b"x\n"),
];

const TRAILERS: &[Body] = &[
    ("a trailer of length", "RFC 9110 6.5.1", b"0\r\nContent-Length", b": 5\r\n\r\n"),
    ("a trailer of coding", "RFC 9110 6.5.1", b"0\r\nTransfer-Encoding", b": chunked\r\n\r\n"),
    ("a trailer of host", "RFC 9110 6.5.1", b"0\r\nhOST", b": b\r\n\r\n"),
    ("a trailer of the mesh", "RFC 9110 6.5.1", b"0\r\nLeno-Error", b": b\r\n\r\n"),
    ("a trailer of an identity", "RFC 9110 6.5.1", b"0\r\nx_forwarded-client-cert", b": b\r\n\r\n"),
    ("a trailer with a space before its colon", "RFC 9112 5.1", b"0\r\nX", b" : y\r\n\r\n"),
    ("a trailer without a colon", "RFC 9112 5", b"0\r\nX", b"\r\n\r\n"),
    ("a folded trailer", "RFC 9112 5.2", b"0\r\nX: y\r\n", b" z\r\n\r\n"),
    ("a trailer with a NUL", "RFC 9110 5.5", b"0\r\nX: y", b"\0\r\n\r\n"),
    ("a trailer that ends with a bare LF", "RFC 9112 2.2", b"0\r\nX: y", b"\n\r\n"),
    ("a trailer with a bare CR", "RFC 9112 2.2", b"0\r\nX: y\r", b"z\r\n\r\n"),
    (
        "a request for a trailer",
        "RFC 9112 5",
        b"0\r\nGET",
        b" /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
];

pub(super) fn rows() -> Vec<Row> {
    let row = |(name, section, sound, fault): Body| broken(name, section, sound, fault);
    let mut rows: Vec<_> = [SIZES, CHUNKS, TRAILERS].concat().into_iter().map(row).collect();
    // The bytes before the one that exceeds the limit are valid.
    let extension = [b"5;", "x".repeat(20_000).as_bytes()].concat();
    rows.push(broken("an extension too long", "RFC 9112 7.1.1", &extension, b"\r\nhello\r\n"));
    let many =
        "1;xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\na\r\n".repeat(1000);
    rows.push(broken("extensions too many", "RFC 9112 7.1.1", many.as_bytes(), b"0\r\n\r\n"));
    let trailers = ["0\r\n", &"X: y\r\n".repeat(4_000)].concat();
    rows.push(broken("trailers too many", "RFC 9110 6.5", trailers.as_bytes(), b"\r\n"));
    rows
}

fn broken(name: &'static str, section: &'static str, sound: &[u8], fault: &[u8]) -> Row {
    let request = [HEAD, sound, fault].concat();
    Row {
        name,
        section,
        request,
        fate: RequiredOutcome::Broken { status: 400, sound: HEAD.len() + sound.len() },
    }
}
