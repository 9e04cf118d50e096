//! Valid HTTP/2 requests that look harmful to an HTTP/1 server. Each must reach the server as exactly one request.
//! They come from another proxy, whose client has sent HTTP/1.

use super::{Field, GET, POST, RequiredOutcome, Row, head};
use crate::frames::request;

/// The name, the section, the field section, the body, the trailers, and the forwarded HTTP/1 request.
type Served = (
    &'static str,
    &'static str,
    &'static [&'static [Field<'static>]],
    Option<&'static [u8]>,
    &'static [Field<'static>],
    &'static [u8],
);

const HEADS: &[Served] = &[
    ("h2: GET", "RFC 9113 8.3.1", &[GET], None, &[], b"GET /row HTTP/1.1\r\nhost: a\r\n\r\n"),
    (
        "h2: an escaped CRLF in the path",
        "RFC 9110 4.2.3",
        &[
            head![b":method" => b"GET", b":scheme" => b"http", b":path" => b"/row%0d%0ax:%20y", b":authority" => b"a"],
        ],
        None,
        &[],
        b"GET /row%0d%0ax:%20y HTTP/1.1\r\nhost: a\r\n\r\n",
    ),
    (
        "h2: OPTIONS of the server",
        "RFC 9113 8.3.1",
        &[
            head![b":method" => b"OPTIONS", b":scheme" => b"http", b":path" => b"*", b":authority" => b"a"],
        ],
        None,
        &[],
        b"OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n",
    ),
    (
        "h2: a host and no authority",
        "RFC 9113 8.3.1",
        &[head![b":method" => b"GET", b":scheme" => b"http", b":path" => b"/row", b"host" => b"a"]],
        None,
        &[],
        b"GET /row HTTP/1.1\r\nhost: a\r\n\r\n",
    ),
    (
        "h2: the authority said twice",
        "RFC 9113 8.3.1",
        &[GET, head![b"host" => b"a"]],
        None,
        &[],
        b"GET /row HTTP/1.1\r\nhost: a\r\n\r\n",
    ),
    (
        "h2: a cookie in crumbs",
        "RFC 9113 8.2.3",
        &[GET, head![b"cookie" => b"a=1", b"x" => b"y", b"cookie" => b"b=2"]],
        None,
        &[],
        b"GET /row HTTP/1.1\r\nhost: a\r\ncookie: a=1; b=2\r\nx: y\r\n\r\n",
    ),
    (
        "h2: bytes beyond ASCII in a value",
        "RFC 9110 5.5",
        &[GET, head![b"x" => b"\xff\xfe \xe5\x98\x8a\xe5\x98\x8d"]],
        None,
        &[],
        b"GET /row HTTP/1.1\r\nhost: a\r\nx: \xff\xfe \xe5\x98\x8a\xe5\x98\x8d\r\n\r\n",
    ),
    (
        "h2: fields with underscores are others",
        "RFC 9110 5.1",
        &[GET, head![b"transfer_encoding" => b"chunked", b"content_length" => b"9"]],
        None,
        &[],
        b"GET /row HTTP/1.1\r\nhost: a\r\ntransfer_encoding: chunked\r\ncontent_length: 9\r\n\r\n",
    ),
    (
        "h2: a POST of nothing",
        "RFC 9110 8.6",
        &[POST],
        None,
        &[],
        b"POST /row HTTP/1.1\r\nhost: a\r\n\r\n",
    ),
];

const BODIES: &[Served] = &[
    (
        "h2: a request for a body",
        "RFC 9113 8.1",
        &[POST, head![b"content-length" => b"38"]],
        Some(b"GET /smuggled HTTP/1.1\r\nHost: smug\r\n\r\n"),
        &[],
        b"POST /row HTTP/1.1\r\nhost: a\r\ncontent-length: 38\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: smug\r\n\r\n",
    ),
    (
        "h2: a request for a body of unknown length",
        "RFC 9113 8.1",
        &[POST],
        Some(b"GET /smuggled HTTP/1.1\r\nHost: smug\r\n\r\n"),
        &[],
        b"POST /row HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n26\r\nGET /smuggled HTTP/1.1\r\nHost: smug\r\n\r\n\r\n0\r\n\r\n",
    ),
    (
        "h2: the body of a GET",
        "RFC 9110 9.3.1",
        &[GET],
        Some(b"0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n"),
        &[],
        b"GET /row HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1f\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n\r\n0\r\n\r\n",
    ),
    (
        "h2: one length twice",
        "RFC 9110 8.6",
        &[POST, head![b"content-length" => b"2", b"content-length" => b"2"]],
        Some(b"ok"),
        &[],
        b"POST /row HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nok",
    ),
    (
        "h2: trailers",
        "RFC 9113 8.1",
        &[POST],
        Some(b"ok"),
        head![b"x-sum" => b"1"],
        b"POST /row HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-sum: 1\r\n\r\n",
    ),
];

/// All rows; `carried` is added to the fields of every request.
pub(in super::super) fn rows(carried: &[Field<'_>]) -> Vec<Row> {
    let row = |(name, section, head, body, trailers, forwarded): &Served| {
        let fate = RequiredOutcome::Served { forwarded: forwarded.to_vec() };
        let head = [head.concat().as_slice(), carried].concat();
        Row { name, section, request: request(&head, *body, trailers), fate }
    };
    let mut rows: Vec<Row> = HEADS.iter().chain(BODIES).map(row).collect();
    // The client's proxy has a route for this request, so the application decides.
    let connect: &[Field<'_>] = head![b":method" => b"CONNECT", b":authority" => b"a:22"];
    rows.push(Row {
        name: "h2: CONNECT",
        section: "RFC 9110 9.3.6",
        request: request(&[connect, carried].concat(), None, &[]),
        fate: RequiredOutcome::Served {
            forwarded: b"CONNECT a:22 HTTP/1.1\r\nhost: a:22\r\n\r\n".to_vec(),
        },
    });
    rows
}
