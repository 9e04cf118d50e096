//! Requests with fields that two servers could interpret differently.

use super::{Row, refused};

/// The name, the section, the status, and the lines of a POST's head besides `Host: a`.
type Fields = (&'static str, &'static str, u16, &'static [u8]);

const LENGTHS: &[Fields] = &[
    ("CL.TE", "RFC 9112 6.3", 400, b"Content-Length: 6\r\nTransfer-Encoding: chunked"),
    ("TE.CL", "RFC 9112 6.3", 400, b"Transfer-Encoding: chunked\r\nContent-Length: 6"),
    (
        "TE.CL with capitals",
        "RFC 9112 6.3",
        400,
        b"tRANSFER-eNCODING: CHUNKED\r\ncontent-length: 6",
    ),
    (
        "CL.TE with an unknown coding",
        "RFC 9112 6.3",
        400,
        b"Transfer-Encoding: x\r\nContent-Length: 6",
    ),
    ("CL.CL with other values", "RFC 9112 6.3", 400, b"Content-Length: 6\r\nContent-Length: 5"),
    ("CL.CL with 0 first", "RFC 9112 6.3", 400, b"Content-Length: 0\r\nContent-Length: 44"),
    ("CL.0 by a list", "RFC 9110 8.6", 400, b"Content-Length: 0, 44"),
    ("CL as a list of equals", "RFC 9110 8.6", 400, b"Content-Length: 5, 5"),
    ("CL of two words", "RFC 9110 8.6", 400, b"Content-Length: 5 6"),
    ("CL with a plus", "RFC 9110 8.6", 400, b"Content-Length: +5"),
    ("CL with a minus", "RFC 9110 8.6", 400, b"Content-Length: -5"),
    ("CL in hexadecimal", "RFC 9110 8.6", 400, b"Content-Length: 0x5"),
    ("CL with a fraction", "RFC 9110 8.6", 400, b"Content-Length: 5.0"),
    ("CL in quotes", "RFC 9110 8.6", 400, b"Content-Length: \"5\""),
    ("CL with an underscore", "RFC 9110 8.6", 400, b"Content-Length: 1_0"),
    ("CL that is empty", "RFC 9110 8.6", 400, b"Content-Length: "),
    ("CL beyond 64 bits", "RFC 9110 8.6", 400, b"Content-Length: 18446744073709551621"),
    ("CL behind a vertical tab", "RFC 9110 5.5", 400, b"Content-Length: \x0b5"),
    ("CL in other digits", "RFC 9110 8.6", 400, "Content-Length: ٥".as_bytes()),
    (
        "CL named by Connection",
        "RFC 9110 7.6.1",
        400,
        b"Connection: content-length\r\nContent-Length: 5",
    ),
];

const CODINGS: &[Fields] = &[
    (
        "TE.TE, identity second",
        "RFC 9112 6.1",
        400,
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    ),
    (
        "TE.TE, identity first",
        "RFC 9112 7.1",
        501,
        b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
    ),
    (
        "TE.TE, unknown second",
        "RFC 9112 6.1",
        400,
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: cow",
    ),
    (
        "TE.TE, chunked twice",
        "RFC 9112 6.1",
        400,
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    ),
    ("TE, chunked twice in a list", "RFC 9112 6.1", 400, b"Transfer-Encoding: chunked, chunked"),
    ("TE, chunked not last", "RFC 9112 6.3", 400, b"Transfer-Encoding: chunked, gzip"),
    ("TE, a coding not spoken", "RFC 9112 6.1", 501, b"Transfer-Encoding: gzip, chunked"),
    ("TE, a list with an empty member", "RFC 9110 5.6.1", 501, b"Transfer-Encoding: ,chunked"),
    ("TE, a longer name", "RFC 9112 7", 400, b"Transfer-Encoding: xchunked"),
    ("TE, a name with a tail", "RFC 9112 7", 400, b"Transfer-Encoding: chunkedx"),
    ("TE in quotes", "RFC 9112 7", 400, b"Transfer-Encoding: \"chunked\""),
    ("TE with a parameter", "RFC 9112 7.1", 400, b"Transfer-Encoding: chunked;q=1"),
    ("TE that is empty", "RFC 9112 6.1", 400, b"Transfer-Encoding: "),
    ("TE identity alone", "RFC 9112 7", 400, b"Transfer-Encoding: identity"),
    ("TE behind a vertical tab", "RFC 9110 5.5", 400, b"Transfer-Encoding: \x0bchunked"),
    ("TE with a NUL behind", "RFC 9110 5.5", 400, b"Transfer-Encoding: chunked\0"),
    ("TE with a DEL behind", "RFC 9110 5.5", 400, b"Transfer-Encoding: chunked\x7f"),
    ("TE behind a no-break space", "RFC 9112 7", 400, b"Transfer-Encoding: \xc2\xa0chunked"),
];

const LINES: &[Fields] = &[
    ("space before the colon of CL", "RFC 9112 5.1", 400, b"Content-Length : 5"),
    ("space before the colon of TE", "RFC 9112 5.1", 400, b"Transfer-Encoding : chunked"),
    ("tab before the colon of TE", "RFC 9112 5.1", 400, b"Transfer-Encoding\t: chunked"),
    ("vertical tab before the colon", "RFC 9110 5.1", 400, b"Transfer-Encoding\x0b: chunked"),
    ("obs-fold of a value", "RFC 9112 5.2", 400, b"X: y\r\n z"),
    ("obs-fold before a length", "RFC 9112 5.2", 400, b"X: y\r\n Content-Length: 5"),
    (
        "obs-fold with a tab before a coding",
        "RFC 9112 5.2",
        400,
        b"X: y\r\n\tTransfer-Encoding: chunked",
    ),
    ("obs-fold inside a coding", "RFC 9112 5.2", 400, b"Transfer-Encoding:\r\n chunked"),
    ("bare LF behind a field", "RFC 9112 2.2", 400, b"X: y\nContent-Length: 5"),
    (
        "bare LF hides a coding",
        "RFC 9112 2.2",
        400,
        b"X: y\nTransfer-Encoding: chunked\r\nContent-Length: 6",
    ),
    ("bare LF ends the head", "RFC 9112 2.2", 400, b"Content-Length: 5\n\nGET /smuggled HTTP/1.1"),
    ("bare CR inside a value", "RFC 9112 2.2", 400, b"X: y\rContent-Length: 5"),
    ("two CRs before the LF", "RFC 9112 2.2", 400, b"X: y\r\r\nContent-Length: 5"),
    ("NUL inside a value", "RFC 9110 5.5", 400, b"X: y\0Content-Length: 5"),
    ("NUL inside a name", "RFC 9110 5.1", 400, b"X\0Y: z"),
    ("a name of nothing", "RFC 9112 5", 400, b": y"),
    ("a name with a space inside", "RFC 9112 5.1", 400, b"X Y: z"),
    ("a name in brackets", "RFC 9110 5.6.2", 400, b"(X): y"),
    ("a name beyond ASCII", "RFC 9110 5.6.2", 400, b"\xef\xbb\xbfContent-Length: 5"),
    ("a line with no colon", "RFC 9112 5", 400, b"Content-Length"),
    ("a pseudo-header of HTTP/2", "RFC 9113 8.3", 400, b":path: /smuggled"),
    ("escape inside a value", "RFC 9110 5.5", 400, b"X: \x1b[2J"),
];

const HOSTS: &[Fields] = &[
    ("Host twice, another", "RFC 9112 3.2", 400, b"Host: b"),
    ("Host twice, the same", "RFC 9112 3.2", 400, b"Host: a"),
    ("Host twice by capitals", "RFC 9112 3.2", 400, b"HOST: b"),
    ("Host twice behind a fold", "RFC 9112 5.2", 400, b"X: y\r\n Host: b"),
    ("Host twice with a space", "RFC 9112 5.1", 400, b"Host : b"),
    ("Host named by Connection", "RFC 9110 7.6.1", 400, b"Connection: host"),
];

pub(super) fn rows() -> Vec<Row> {
    let all = [LENGTHS, CODINGS, LINES, HOSTS].concat();
    let row = |(name, section, status, lines): Fields| {
        let request = [b"POST /row HTTP/1.1\r\nHost: a\r\n", lines, b"\r\n\r\n"].concat();
        refused(name, section, status, request)
    };
    all.into_iter().map(row).collect()
}
