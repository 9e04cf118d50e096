//! The causes, and what triggers each of them.

use leno_testkit::peer::FaultyAct;

use super::{Row, RowEndpoints};
use crate::http2::ServerBehaviour;
use crate::proxied_servers::Script;

/// A valid request that may be retried.
pub(super) const GET: &[u8] = b"GET /it HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
/// A valid request that must not be retried.
const POST: &[u8] =
    b"POST /it HTTP/1.1\r\nHost: web\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
/// An HTTP/2 preface and one request (RFC 9113; the fields as in RFC 7541, C.4, without Huffman coding): POST,
/// http, /, web. Then GOAWAY, so that the proxy closes the connection after the response.
const STREAM: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\
    \x00\x00\x00\x04\x00\x00\x00\x00\x00\
    \x00\x00\x08\x01\x05\x00\x00\x00\x01\x83\x86\x84\x41\x03web\
    \x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";

const GOOD: RowEndpoints = RowEndpoints::Servers(&[|_| FaultyAct::Good]);
const STALLS: RowEndpoints = RowEndpoints::Servers(&[|_| FaultyAct::Stall]);

/// A request to a working server that the mesh answers with an error.
pub(super) const ROW: Row = Row {
    cause: "",
    policy: "  timeouts: {request: 1m}\n",
    more: "",
    protocol: "http",
    behind: GOOD,
    held: 0,
    said: GET,
    times: 1,
    status: Some(503),
};

/// A client whose request is invalid or cut off.
const fn bad(cause: &'static str, status: u16, said: &'static [u8]) -> Row {
    Row { cause, said, status: Some(status), ..ROW }
}

/// A server whose response is invalid. The status is 502 if no part of the response has been forwarded yet.
const fn babbles(cause: &'static str, behind: &'static [Script], status: Option<u16>) -> Row {
    Row { cause, behind: RowEndpoints::Servers(behind), said: POST, status, ..ROW }
}

/// A request that a policy rejects.
const fn by_policy(
    cause: &'static str,
    policy: &'static str,
    behind: RowEndpoints,
    status: u16,
) -> Row {
    Row { cause, policy, behind, status: Some(status), ..ROW }
}

const ROUTES: &str = "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: r, namespace: t}
spec:
  parentRefs: [{group: '', kind: Service, name: web, port: 80}]
  rules:
  - matches: [{path: {value: /none}}]
  - matches: [{path: {value: /invalid}}]
    backendRefs: [{name: nobody, port: 80}]
";

pub(super) const REQUESTS: &[Row] = &[
    // Causes that result from the available endpoints.
    Row { cause: "no-endpoints", behind: RowEndpoints::Servers(&[]), ..ROW },
    Row { cause: "endpoints-tried", behind: RowEndpoints::Refusing(1), ..ROW },
    Row { cause: "connect-refused", behind: RowEndpoints::Refusing(3), ..ROW },
    Row { cause: "failfast", behind: RowEndpoints::Refusing(3), times: 2, ..ROW },
    Row {
        cause: "connect-timeout",
        behind: RowEndpoints::Silent,
        policy: "  retries: {attempts: 1, on: [5xx]}\n",
        ..ROW
    },
    // Causes that result from policies and routes.
    Row { held: 1, ..by_policy("endpoints-full", "  limits: {requestsPerEndpoint: 1}\n", STALLS, 503) },
    Row { held: 1, ..by_policy("connections-in-use", "  limits: {connections: 1}\n", STALLS, 503) },
    Row { held: 1, ..by_policy("overloaded", "  limits: {requests: 1, pending: 0}\n", STALLS, 503) },
    by_policy("response-timeout", "  timeouts: {response: 100ms}\n", STALLS, 504),
    by_policy("deadline", "  timeouts: {request: 100ms}\n", STALLS, 504),
    by_policy("stalled", "  timeouts: {idle: 100ms}\n", STALLS, 504),
    by_policy("fault-abort", "  faults: {abort: {status: 418, percent: 100}}\n", GOOD, 418),
    Row { more: ROUTES, ..bad("no-route-matches", 404, GET) },
    Row { more: ROUTES, ..bad("no-backend", 500, b"GET /none HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n") },
    Row { more: ROUTES, ..bad("backend-invalid", 500, b"GET /invalid HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n") },
    // Causes that result from the behaviour of servers.
    babbles("closed", &[|_| FaultyAct::Close], Some(502)),
    babbles("broken", &[|_| FaultyAct::Reset], Some(502)),
    babbles("closed", &[|_| FaultyAct::CutBody], None),
    babbles("broken", &[|_| FaultyAct::ResetBody], None),
    babbles("unasked-upgrade", &[|_| FaultyAct::Says("HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")], Some(502)),
    babbles("status-line", &[|_| FaultyAct::Garbage], Some(502)),
    Row {
        cause: "refused-stream",
        protocol: "http2",
        behind: RowEndpoints::Streams(|_, _| ServerBehaviour::Refuse),
        said: STREAM,
        status: None,
        ..ROW
    },
    Row {
        cause: "cut-off",
        protocol: "http2",
        behind: RowEndpoints::Streams(|_, _| ServerBehaviour::CutOff),
        said: STREAM,
        status: None,
        ..ROW
    },
    // Causes that result from the bytes of clients.
    bad("request-line", 400, b"GET  /it HTTP/1.1\r\nHost: web\r\n\r\n"),
    bad("version", 505, b"GET /it HTTP/1.2\r\nHost: web\r\n\r\n"),
    bad("bare-lf", 400, b"GET /it HTTP/1.1\r\nHost: web\nX: y\r\n\r\n"),
    bad("bare-cr", 400, b"GET /it HTTP/1.1\r\nHost: web\r\nX: a\rb\r\n\r\n"),
    bad("folded-header", 400, b"GET /it HTTP/1.1\r\nHost: web\r\nX: a\r\n b\r\n\r\n"),
    bad("header-name", 400, b"GET /it HTTP/1.1\r\nHost: web\r\nX(: a\r\n\r\n"),
    bad("space-before-colon", 400, b"GET /it HTTP/1.1\r\nHost: web\r\nX : a\r\n\r\n"),
    bad("header-value", 400, b"GET /it HTTP/1.1\r\nHost: web\r\nX: \x01\r\n\r\n"),
    bad("target", 400, b"GET it HTTP/1.1\r\nHost: web\r\n\r\n"),
    bad("host-missing", 400, b"GET /it HTTP/1.1\r\n\r\n"),
    bad("host-repeated", 400, b"GET /it HTTP/1.1\r\nHost: web\r\nHost: other\r\n\r\n"),
    bad("host-malformed", 400, b"GET /it HTTP/1.1\r\nHost: a b\r\n\r\n"),
    bad("host-conflict", 400, b"GET http://other/it HTTP/1.1\r\nHost: web\r\n\r\n"),
    bad("content-length", 400, b"POST /it HTTP/1.1\r\nHost: web\r\nContent-Length: x\r\n\r\n"),
    bad(
        "content-length-conflict",
        400,
        b"POST /it HTTP/1.1\r\nHost: web\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ),
    bad(
        "content-length-and-transfer-encoding",
        400,
        b"POST /it HTTP/1.1\r\nHost: web\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ),
    bad(
        "transfer-encoding",
        400,
        b"POST /it HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked, chunked\r\n\r\n",
    ),
    bad("transfer-coding", 501, b"POST /it HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"),
    bad(
        "transfer-encoding-in-http-1.0",
        400,
        b"POST /it HTTP/1.0\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n",
    ),
    bad("connection-option", 400, b"GET /it HTTP/1.1\r\nHost: web\r\nConnection: host\r\n\r\n"),
    bad("connect", 501, b"CONNECT web:80 HTTP/1.1\r\nHost: web:80\r\n\r\n"),
    chunked("chunk-size", b"POST /it HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"),
    chunked(
        "chunk-end",
        b"POST /it HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc",
    ),
    chunked(
        "chunk-line",
        b"POST /it HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n1;a\nab\r\n",
    ),
    chunked(
        "trailer",
        b"POST /it HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX Y: z\r\n\r\n",
    ),
    chunked(
        "trailer-forbidden",
        b"POST /it HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 1\r\n\r\n",
    ),
];

/// An invalid chunked body. The server waits for the whole body.
const fn chunked(cause: &'static str, said: &'static [u8]) -> Row {
    Row { behind: STALLS, ..bad(cause, 400, said) }
}

const TLS_ROUTE: &str = "---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: r, namespace: t}
spec:
  parentRefs: [{group: '', kind: Service, name: web}]
  hostnames: [web.example]
  rules: [{backendRefs: [{name: web, port: 80}]}]
";

/// TCP connections, on which the proxy cannot send a response to the client.
const CONNECTION: Row = Row { protocol: "tcp", said: b"anything", status: None, ..ROW };

pub(super) const BYTES: &[Row] = &[
    Row { cause: "no-endpoints", behind: RowEndpoints::Servers(&[]), ..CONNECTION },
    Row { cause: "endpoints-tried", behind: RowEndpoints::Refusing(1), ..CONNECTION },
    Row {
        cause: "stream-timeout",
        policy: "  timeouts: {stream: 100ms}\n",
        behind: STALLS,
        ..CONNECTION
    },
    Row {
        cause: "stream-idle",
        policy: "  timeouts: {idle: 100ms}\n",
        behind: STALLS,
        ..CONNECTION
    },
    Row { cause: "client-silent", more: TLS_ROUTE, said: b"", ..CONNECTION },
];

/// Causes that are not triggered here, each with the reason or with the test that triggers it.
pub(super) const ABSENT: &[(&str, &str)] = &[
    ("answer-too-large", "no request within the bounds of a head makes an answer of 256 KiB"),
    ("memory-budget", "needs a proxy with next to no memory: proxy/app/tests/memory.rs"),
    ("connect-unreachable", "needs a machine without a route: the lab's case of external services"),
    ("connect-failed", "any other error of the kernel's, none of which can be asked for"),
    ("refused-by-server", "needs two proxies and a certificate that is none: the lab's encryption"),
    ("server-silent", "needs two proxies: proxy/outbound/tests/outbound/opaque.rs"),
    ("tls-handshake-failed", "needs mTLS: the lab's encryption"),
    ("streams-in-use", "needs sixteen connections in full use: proxy/http/src/clients/tests.rs"),
    ("draining", "between two looks at one connection: proxy/http/tests/stack/h2/h2_to_h2.rs"),
    (
        "destination-gone",
        "needs a service that is taken away: proxy/outbound/tests/outbound/gone.rs",
    ),
    ("backend-gone", "needs a service that is taken away: proxy/outbound/tests/outbound/gone.rs"),
    ("loop", "needs a route that leads back to its requests: testkit/tests/resilience/loops.rs"),
    ("authorizer-failed", "needs an authorizer: the lab's external authorization"),
    ("egress-denied", "needs the original destination: the lab's egress"),
    ("external-unresolved", "needs name servers: the lab's external services"),
    ("external-unknown-authority", "needs name servers: the lab's external services"),
    ("external-wrong-name", "needs name servers: the lab's external services"),
    ("external-expired", "needs name servers: the lab's external services"),
    ("external-authorities-missing", "needs name servers: the lab's external services"),
    ("external-tls-failed", "needs name servers: the lab's external services"),
    ("upgrade-ignored", "between two versions of HTTP: proxy/http/tests/stack/h2/h2_to_h1.rs"),
    ("stale", "the request is sent again, thrice: proxy/http/tests/stack/exchange.rs"),
    ("head-timeout", "takes a minute: testkit/tests/abuse/slow.rs"),
    ("refused", "told as application-unreachable, or by the next try"),
    (
        "head-too-large",
        "its request is too long to be written down: testkit/tests/abuse/rows/head.rs",
    ),
    (
        "too-many-headers",
        "its request is too long to be written down: testkit/tests/abuse/rows/head.rs",
    ),
    (
        "request-line-too-long",
        "its request is too long to be written down: testkit/tests/abuse/rows/head.rs",
    ),
    (
        "chunk-extensions",
        "its request is too long to be written down: testkit/tests/abuse/rows/body.rs",
    ),
    (
        "trailers-too-large",
        "its request is too long to be written down: testkit/tests/abuse/rows/body.rs",
    ),
    ("body-length", "of HTTP/2 alone: testkit/tests/abuse/rows/h2.rs"),
];
