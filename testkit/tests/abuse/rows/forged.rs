//! Requests with fields that only the mesh may set, sent by a client. None of these fields may reach the server.
//!
//! CGI turns both `-` and `_` of a name into `_` (RFC 3875 section 4.1.18), so both spellings are
//! tested.

use super::{RequiredOutcome, Row};

const SECTION: &str = "docs/guide/protocols.md";

/// Fields that proxies exchange with each other.
pub(super) fn of_the_mesh() -> Vec<Row> {
    vec![
        without("leno-error", b"leno-error: application-unreachable\r\n"),
        without("leno-h1 in plaintext", b"leno-h1: 1.0 T m=PUT\r\n"),
        without("leno-error with underscores, in capitals", b"LENO_ERROR: x\r\nLeno-H1: y\r\n"),
    ]
}

/// Fields that identify the client.
pub(super) fn of_identities() -> Vec<Row> {
    vec![
        without("an identity for Envoy's", b"X-Forwarded-Client-Cert: URI=spiffe://a/b\r\n"),
        without("an identity for Linkerd's", b"l5d-client-id: web.ns\r\n"),
        without("both with underscores", b"x_forwarded_client_cert: x\r\nl5d_client-id: x\r\n"),
    ]
}

/// A request with these lines, which must be forwarded without them.
fn without(name: &'static str, lines: &[u8]) -> Row {
    let request =
        |lines: &[u8]| [b"GET /row HTTP/1.1\r\nHost: a\r\n", lines, b"X: y\r\n\r\n"].concat();
    let fate = RequiredOutcome::Served { forwarded: request(b"") };
    Row { name, section: SECTION, request: request(lines), fate }
}
