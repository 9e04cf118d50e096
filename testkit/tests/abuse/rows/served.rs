//! Valid requests that look harmful. Each must reach the server as exactly one request, without its hop-by-hop fields
//! (RFC 9110 section 7.6.1).

use super::{RequiredOutcome, Row};

/// The name, the section, the request, and the forwarded request if it differs.
type Served = (&'static str, &'static str, &'static [u8], Option<&'static [u8]>);

const BODIES: &[Served] = &[
    (
        "a request for a body",
        "RFC 9112 6.3",
        b"POST /row HTTP/1.1\r\nHost: a\r\nContent-Length: 38\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: smug\r\n\r\n",
        None,
    ),
    (
        "a request for the body of a GET",
        "RFC 9110 9.3.1",
        b"GET /row HTTP/1.1\r\nHost: a\r\nContent-Length: 38\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: smug\r\n\r\n",
        None,
    ),
    (
        "a request in a chunk",
        "RFC 9112 7.1",
        b"POST /row HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n26\r\nGET /smuggled HTTP/1.1\r\nHost: smug\r\n\r\n\r\n0\r\n\r\n",
        None,
    ),
    (
        "a last chunk in a body of known length",
        "RFC 9112 6.3",
        b"POST /row HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        None,
    ),
    (
        "one length twice",
        "RFC 9112 6.3",
        b"POST /row HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        Some(b"POST /row HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok"),
    ),
    (
        "a length with a 0 in front is decimal",
        "RFC 9110 8.6",
        b"POST /row HTTP/1.1\r\nHost: a\r\nContent-Length: 010\r\n\r\n0123456789",
        None,
    ),
    (
        "a length of 0 with a request behind",
        "RFC 9112 6.3",
        b"POST /row HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        None,
    ),
    (
        "a POST without a length",
        "RFC 9112 6.3",
        b"POST /row HTTP/1.1\r\nHost: a\r\n\r\n",
        None,
    ),
    (
        "a coding behind a tab",
        "RFC 9110 5.5",
        b"POST /row HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\tchunked\t\r\n\r\n0\r\n\r\n",
        None,
    ),
    (
        "a coding that Connection names",
        "RFC 9110 7.6.1",
        b"POST /row HTTP/1.1\r\nHost: a\r\nConnection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        Some(b"POST /row HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
    ),
    (
        "fields with underscores are others",
        "RFC 9110 5.1",
        b"POST /row HTTP/1.1\r\nHost: a\r\nTransfer_Encoding: chunked\r\nContent_Length: 9\r\nContent-Length: 2\r\n\r\nok",
        None,
    ),
    (
        "extensions, quoted and not",
        "RFC 9112 7.1.1",
        b"POST /row HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b;c=\"0\"\r\nok\r\n0;d\r\n\r\n",
        None,
    ),
    (
        "sizes in capitals and with 0 in front",
        "RFC 9112 7.1",
        b"POST /row HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n00A\r\n0123456789\r\n000\r\n\r\n",
        None,
    ),
    (
        "trailers",
        "RFC 9110 6.5",
        b"POST /row HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Sum: 1\r\nY:\r\n\r\n",
        None,
    ),
    ("HEAD", "RFC 9110 9.3.2", b"HEAD /row HTTP/1.1\r\nHost: a\r\n\r\n", None),
];

const TARGETS: &[Served] = &[
    (
        "an escaped CRLF",
        "RFC 9110 4.2.3",
        b"GET /row%0d%0aX:%20y HTTP/1.1\r\nHost: a\r\n\r\n",
        None,
    ),
    ("an escaped NUL", "RFC 9110 4.2.3", b"GET /row%00 HTTP/1.1\r\nHost: a\r\n\r\n", None),
    (
        "dots and escaped slashes",
        "RFC 9110 4.2.3",
        b"GET /a/..%2f../row HTTP/1.1\r\nHost: a\r\n\r\n",
        None,
    ),
    ("a path of two slashes", "RFC 9112 3.2.1", b"GET //b/row HTTP/1.1\r\nHost: a\r\n\r\n", None),
    (
        "a whole URI in the query",
        "RFC 9112 3.2.1",
        b"GET /?http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
        None,
    ),
    ("absolute-form", "RFC 9112 3.2.2", b"GET http://a/row HTTP/1.1\r\nHost: a\r\n\r\n", None),
    (
        "absolute-form with the scheme's port",
        "RFC 9112 3.2.2",
        b"GET http://a:80/row HTTP/1.1\r\nHost: A\r\n\r\n",
        None,
    ),
    ("asterisk", "RFC 9112 3.2.4", b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", None),
    ("Host of nothing", "RFC 9112 3.2", b"GET /row HTTP/1.1\r\nHost:\r\n\r\n", None),
    (
        "Host as an address of IPv6",
        "RFC 3986 3.2.2",
        b"GET /row HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
        None,
    ),
    (
        "Host with an underscore",
        "RFC 3986 3.2.2",
        b"GET /row HTTP/1.1\r\nHost: my_app.local:8080\r\n\r\n",
        None,
    ),
    ("a method of one's own", "RFC 9110 9.1", b"FROB /row HTTP/1.1\r\nHost: a\r\n\r\n", None),
];

const HOPS: &[Served] = &[
    (
        "Connection names a field",
        "RFC 9110 7.6.1",
        b"GET /row HTTP/1.1\r\nHost: a\r\nX-Secret: 1\r\nConnection: keep-alive, x-secret\r\n\r\n",
        Some(b"GET /row HTTP/1.1\r\nHost: a\r\n\r\n"),
    ),
    (
        "fields of one hop",
        "RFC 9110 7.6.1",
        b"GET /row HTTP/1.1\r\nHost: a\r\nKeep-Alive: timeout=5\r\nProxy-Connection: close\r\nTE: gzip\r\nX: y\r\n\r\n",
        Some(b"GET /row HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n"),
    ),
    (
        "an upgrade to HTTP/2",
        "RFC 9113 3.1",
        b"GET /row HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAA\r\n\r\n",
        Some(b"GET /row HTTP/1.1\r\nHost: a\r\n\r\n"),
    ),
    (
        "an upgrade that Connection does not name",
        "RFC 9110 7.8",
        b"GET /row HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n",
        Some(b"GET /row HTTP/1.1\r\nHost: a\r\n\r\n"),
    ),
    (
        "bytes beyond ASCII in a value",
        "RFC 9110 5.5",
        b"GET /row HTTP/1.1\r\nHost: a\r\nX: \xff\xfe \xe5\x98\x8a\xe5\x98\x8d\r\n\r\n",
        None,
    ),
    (
        "an unknown expectation",
        "RFC 9110 10.1.1",
        b"GET /row HTTP/1.1\r\nHost: a\r\nExpect: miracles\r\n\r\n",
        None,
    ),
];

pub(super) fn rows() -> Vec<Row> {
    let row = |(name, section, request, forwarded): Served| {
        let forwarded = forwarded.unwrap_or(request).to_vec();
        Row {
            name,
            section,
            request: request.to_vec(),
            fate: RequiredOutcome::Served { forwarded },
        }
    };
    [BODIES, TARGETS, HOPS].concat().into_iter().map(row).collect()
}
