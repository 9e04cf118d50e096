//! HTTP/2 requests that would harm an HTTP/1 or HTTP/2 server behind the proxy.
//!
//! The proxy resets the stream of a malformed request with PROTOCOL_ERROR (RFC 9113 8.1.1), and no
//! server receives it. Requests that an HTTP/1 server must receive are in [`served`].

pub(super) mod served;

use super::{RequiredOutcome, Row};
use crate::frames::{Field, StreamOutcome, request};

/// A reset with PROTOCOL_ERROR (RFC 9113 section 7).
const MALFORMED: RequiredOutcome = RequiredOutcome::OnStream(StreamOutcome::Reset(1));

/// The name, the section, and the whole field section.
type Section = (&'static str, &'static str, &'static [Field<'static>]);

macro_rules! head {
    ($($name:expr => $value:expr),* $(,)?) => {
        &[$(($name as &[u8], $value as &[u8])),*]
    };
}
use head;

/// The name, the section, and a field that is added to a valid head.
type Extra = (&'static str, &'static str, &'static [u8], &'static [u8]);

const FIELDS: &[Extra] = &[
    ("h2: CRLF in a value", "RFC 9113 8.2.1", b"x", b"y\r\ncontent-length: 5"),
    (
        "h2: a request in a value",
        "RFC 9113 8.2.1",
        b"x",
        b"y\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n",
    ),
    ("h2: LF in a value", "RFC 9113 8.2.1", b"x", b"y\ntransfer-encoding: chunked"),
    ("h2: CR in a value", "RFC 9113 8.2.1", b"x", b"y\rz"),
    ("h2: NUL in a value", "RFC 9113 8.2.1", b"x", b"y\0z"),
    ("h2: a space before a value", "RFC 9113 8.2.1", b"x", b" y"),
    ("h2: a tab behind a value", "RFC 9113 8.2.1", b"x", b"y\t"),
    ("h2: a capital in a name", "RFC 9113 8.2.1", b"X-Row", b"y"),
    ("h2: CRLF in a name", "RFC 9113 8.2.1", b"x: y\r\nz", b"y"),
    ("h2: a colon in a name", "RFC 9113 8.2.1", b"transfer-encoding: chunked\r\nx", b"y"),
    ("h2: a colon inside a name", "RFC 9113 8.2.1", b"content-length:5", b"y"),
    ("h2: a space in a name", "RFC 9113 8.2.1", b"content-length ", b"5"),
    ("h2: NUL in a name", "RFC 9113 8.2.1", b"x\0", b"y"),
    ("h2: a name beyond ASCII", "RFC 9113 8.2.1", b"\xff", b"y"),
    ("h2: a name of nothing", "RFC 9113 8.2.1", b"", b"y"),
    ("h2: transfer-encoding", "RFC 9113 8.2.2", b"transfer-encoding", b"chunked"),
    ("h2: connection", "RFC 9113 8.2.2", b"connection", b"close"),
    ("h2: keep-alive", "RFC 9113 8.2.2", b"keep-alive", b"timeout=5"),
    ("h2: proxy-connection", "RFC 9113 8.2.2", b"proxy-connection", b"close"),
    ("h2: upgrade", "RFC 9113 8.2.2", b"upgrade", b"h2c"),
    ("h2: te with more than trailers", "RFC 9113 8.2.2", b"te", b"trailers, gzip"),
    ("h2: a pseudo-header last", "RFC 9113 8.3", b":path", b"/smuggled"),
    ("h2: an unknown pseudo-header", "RFC 9113 8.3", b":row", b"y"),
    ("h2: a pseudo-header of responses", "RFC 9113 8.3", b":status", b"200"),
    ("h2: a length and no body", "RFC 9113 8.1.1", b"content-length", b"5"),
    ("h2: a length in words", "RFC 9110 8.6", b"content-length", b"x"),
    ("h2: a length with a plus", "RFC 9110 8.6", b"content-length", b"+0"),
    ("h2: host of another", "RFC 9113 8.3.1", b"host", b"b"),
];

const SECTIONS: &[Section] = &[
    (
        "h2: no method",
        "RFC 9113 8.3.1",
        head![b":scheme" => b"http", b":path" => b"/row", b":authority" => b"a"],
    ),
    (
        "h2: no scheme",
        "RFC 9113 8.3.1",
        head![b":method" => b"GET", b":path" => b"/row", b":authority" => b"a"],
    ),
    (
        "h2: no path",
        "RFC 9113 8.3.1",
        head![b":method" => b"GET", b":scheme" => b"http", b":authority" => b"a"],
    ),
    (
        "h2: a path of nothing",
        "RFC 9113 8.3.1",
        head![b":method" => b"GET", b":scheme" => b"http", b":path" => b"", b":authority" => b"a"],
    ),
    (
        "h2: two methods",
        "RFC 9113 8.3.1",
        head![b":method" => b"GET", b":method" => b"POST", b":scheme" => b"http", b":path" => b"/row", b":authority" => b"a"],
    ),
    (
        "h2: two paths",
        "RFC 9113 8.3.1",
        head![b":method" => b"GET", b":scheme" => b"http", b":path" => b"/row", b":path" => b"/smuggled", b":authority" => b"a"],
    ),
    (
        "h2: two authorities",
        "RFC 9113 8.3.1",
        head![b":method" => b"GET", b":scheme" => b"http", b":path" => b"/row", b":authority" => b"a", b":authority" => b"b"],
    ),
    (
        "h2: a field before the pseudo-headers",
        "RFC 9113 8.3",
        head![b"x" => b"y", b":method" => b"GET", b":scheme" => b"http", b":path" => b"/row", b":authority" => b"a"],
    ),
    (
        "h2: a request in the method",
        "RFC 9113 8.3.1",
        head![b":method" => b"GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\nGET", b":scheme" => b"http", b":path" => b"/row", b":authority" => b"a"],
    ),
    (
        "h2: a space in the method",
        "RFC 9113 8.3.1",
        head![b":method" => b"GET /smuggled", b":scheme" => b"http", b":path" => b"/row", b":authority" => b"a"],
    ),
    (
        "h2: CRLF in the path",
        "RFC 9113 8.3.1",
        head![b":method" => b"GET", b":scheme" => b"http", b":path" => b"/row HTTP/1.1\r\nhost: a\r\n\r\nGET /smuggled", b":authority" => b"a"],
    ),
    (
        "h2: a space in the path",
        "RFC 9113 8.3.1",
        head![b":method" => b"GET", b":scheme" => b"http", b":path" => b"/row HTTP/1.1", b":authority" => b"a"],
    ),
    (
        "h2: a fragment in the path",
        "RFC 9113 8.3.1",
        head![b":method" => b"GET", b":scheme" => b"http", b":path" => b"/row#x", b":authority" => b"a"],
    ),
    (
        "h2: a relative path",
        "RFC 9113 8.3.1",
        head![b":method" => b"GET", b":scheme" => b"http", b":path" => b"row", b":authority" => b"a"],
    ),
    (
        "h2: a whole URI for a path",
        "RFC 9113 8.3.1",
        head![b":method" => b"GET", b":scheme" => b"http", b":path" => b"http://b/row", b":authority" => b"a"],
    ),
    (
        "h2: asterisk with GET",
        "RFC 9113 8.3.1",
        head![b":method" => b"GET", b":scheme" => b"http", b":path" => b"*", b":authority" => b"a"],
    ),
    (
        "h2: CRLF in the authority",
        "RFC 9113 8.3.1",
        head![b":method" => b"GET", b":scheme" => b"http", b":path" => b"/row", b":authority" => b"a\r\nx: y"],
    ),
    (
        "h2: a user in the authority",
        "RFC 9113 8.3.1",
        head![b":method" => b"GET", b":scheme" => b"http", b":path" => b"/row", b":authority" => b"u@a"],
    ),
    (
        "h2: a path in the authority",
        "RFC 9113 8.3.1",
        head![b":method" => b"GET", b":scheme" => b"http", b":path" => b"/row", b":authority" => b"a/b"],
    ),
    (
        "h2: a URI for a scheme",
        "RFC 9113 8.3.1",
        head![b":method" => b"GET", b":scheme" => b"http://b/?", b":path" => b"/row", b":authority" => b"a"],
    ),
    (
        "h2: host twice and no authority",
        "RFC 9110 7.2",
        head![b":method" => b"GET", b":scheme" => b"http", b":path" => b"/row", b"host" => b"a", b"host" => b"b"],
    ),
    (
        "h2: CONNECT with a path",
        "RFC 9113 8.5",
        head![b":method" => b"CONNECT", b":scheme" => b"http", b":path" => b"/row", b":authority" => b"a"],
    ),
];

/// The name, the section, the fields that are added to a valid POST, the body, and the trailers.
type Body = (
    &'static str,
    &'static str,
    &'static [Field<'static>],
    &'static [u8],
    &'static [Field<'static>],
);

const BODIES: &[Body] = &[
    (
        "h2: a body longer than it says",
        "RFC 9113 8.1.1",
        head![b"content-length" => b"5"],
        b"hello!",
        &[],
    ),
    (
        "h2: a body shorter than it says",
        "RFC 9113 8.1.1",
        head![b"content-length" => b"50"],
        b"hello",
        &[],
    ),
    (
        "h2: a length of 0 and a body",
        "RFC 9113 8.1.1",
        head![b"content-length" => b"0"],
        b"GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n",
        &[],
    ),
    (
        "h2: two lengths",
        "RFC 9110 8.6",
        head![b"content-length" => b"5", b"content-length" => b"6"],
        b"hello",
        &[],
    ),
    (
        "h2: a pseudo-header in trailers",
        "RFC 9113 8.1",
        &[],
        b"hello",
        head![b":path" => b"/smuggled"],
    ),
    (
        "h2: CRLF in a trailer",
        "RFC 9113 8.2.1",
        &[],
        b"hello",
        head![b"x" => b"y\r\n\r\nGET /smuggled HTTP/1.1"],
    ),
    (
        "h2: a coding in trailers",
        "RFC 9113 8.2.2",
        &[],
        b"hello",
        head![b"transfer-encoding" => b"chunked"],
    ),
    ("h2: a capital in a trailer", "RFC 9113 8.2.1", &[], b"hello", head![b"X" => b"y"]),
];

const GET: &[Field<'static>] =
    head![b":method" => b"GET", b":scheme" => b"http", b":path" => b"/row", b":authority" => b"a"];
const POST: &[Field<'static>] =
    head![b":method" => b"POST", b":scheme" => b"http", b":path" => b"/row", b":authority" => b"a"];

/// All rows; `carried` is added to the fields of every request.
pub(super) fn rows(carried: &[Field<'_>]) -> Vec<Row> {
    let malformed = |name, section, request| Row { name, section, request, fate: MALFORMED };
    let fields = FIELDS.iter().map(|(name, section, field, value)| {
        let head = [GET, carried, &[(*field, *value)]].concat();
        malformed(*name, *section, request(&head, None, &[]))
    });
    let sections = SECTIONS.iter().map(|(name, section, fields)| {
        malformed(*name, *section, request(&[fields, carried].concat(), None, &[]))
    });
    let bodies = BODIES.iter().map(|(name, section, fields, body, trailers)| {
        let head = [POST, carried, fields].concat();
        malformed(*name, *section, request(&head, Some(body), trailers))
    });
    fields.chain(sections).chain(bodies).collect()
}
