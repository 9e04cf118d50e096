//! Request lines, targets and hosts that two servers could interpret differently, and heads that
//! are too large.

use super::{Row, refused};

/// The name, the section, the status, and the whole head.
type Head = (&'static str, &'static str, u16, &'static [u8]);

const REQUEST_LINES: &[Head] = &[
    ("HTTP/0.9", "RFC 9112 3", 400, b"GET /row\r\n"),
    ("no target", "RFC 9112 3", 400, b"GET HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("an empty target", "RFC 9112 3", 400, b"GET  HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("two spaces before the target", "RFC 9112 3", 400, b"GET  /row HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("two spaces before the version", "RFC 9112 3", 400, b"GET /row  HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("tabs for spaces", "RFC 9112 3", 400, b"GET\t/row\tHTTP/1.1\r\nHost: a\r\n\r\n"),
    (
        "a space inside the target",
        "RFC 9112 3.2",
        400,
        b"GET /row HTTP/1.1 HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
    ("a space behind the version", "RFC 9112 3", 400, b"GET /row HTTP/1.1 \r\nHost: a\r\n\r\n"),
    ("a space before the method", "RFC 9112 3", 400, b" GET /row HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a method that is no token", "RFC 9110 9.1", 400, b"G(T /row HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("NUL inside the method", "RFC 9110 9.1", 400, b"GE\0T /row HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("bare LF behind the request line", "RFC 9112 2.2", 400, b"GET /row HTTP/1.1\nHost: a\r\n\r\n"),
    ("bare LF everywhere", "RFC 9112 2.2", 400, b"GET /row HTTP/1.1\nHost: a\n\n"),
    ("bare CR behind the request line", "RFC 9112 2.2", 400, b"GET /row HTTP/1.1\rHost: a\r\n\r\n"),
    (
        "white space before the first field",
        "RFC 9112 2.2",
        400,
        b"GET /row HTTP/1.1\r\n Host: a\r\n\r\n",
    ),
    ("the version in small letters", "RFC 9112 2.3", 400, b"GET /row http/1.1\r\nHost: a\r\n\r\n"),
    ("a version of two digits", "RFC 9112 2.3", 400, b"GET /row HTTP/1.10\r\nHost: a\r\n\r\n"),
    ("a version with no minor", "RFC 9112 2.3", 400, b"GET /row HTTP/1\r\nHost: a\r\n\r\n"),
    ("an unknown minor version", "RFC 9110 15.6.6", 505, b"GET /row HTTP/1.2\r\nHost: a\r\n\r\n"),
    ("an unknown major version", "RFC 9110 15.6.6", 505, b"GET /row HTTP/3.0\r\nHost: a\r\n\r\n"),
    ("CONNECT", "RFC 9110 9.3.6", 501, b"CONNECT a:22 HTTP/1.1\r\nHost: a:22\r\n\r\n"),
];

const TARGETS: &[Head] = &[
    (
        "CRLF inside the target",
        "RFC 9112 3.2",
        400,
        b"GET /row\r\nX: y HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
    ("LF inside the target", "RFC 9112 3.2", 400, b"GET /row\nX: y HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("CR inside the target", "RFC 9112 3.2", 400, b"GET /row\rX HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("NUL inside the target", "RFC 9112 3.2", 400, b"GET /row\0 HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("DEL inside the target", "RFC 9112 3.2", 400, b"GET /row\x7f HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a fragment", "RFC 9112 3.2", 400, b"GET /row#/smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a relative path", "RFC 9112 3.2.1", 400, b"GET row HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a query alone", "RFC 9112 3.2.1", 400, b"GET ?row HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("an authority alone", "RFC 9112 3.2.3", 400, b"GET a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n"),
    ("asterisk with GET", "RFC 9112 3.2.4", 400, b"GET * HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("asterisk with more", "RFC 9112 3.2.4", 400, b"OPTIONS *x HTTP/1.1\r\nHost: a\r\n\r\n"),
    (
        "absolute-form of another host",
        "RFC 9112 3.2.2",
        400,
        b"GET http://b/row HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
    (
        "absolute-form of another port",
        "RFC 9112 3.2.2",
        400,
        b"GET http://a:81/row HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
    (
        "absolute-form with a user",
        "RFC 9110 4.2.4",
        400,
        b"GET http://a@b/row HTTP/1.1\r\nHost: b\r\n\r\n",
    ),
    (
        "absolute-form of no host",
        "RFC 9110 4.2.1",
        400,
        b"GET http:///row HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
    (
        "absolute-form of a file",
        "RFC 9112 3.2.2",
        400,
        b"GET file:///etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
    (
        "absolute-form with one slash",
        "RFC 9112 3.2.2",
        400,
        b"GET http:/a/row HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
    (
        "absolute-form with a backslash",
        "RFC 3986 3.2",
        400,
        b"GET http://a\\b/row HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
    ("absolute-form with no Host", "RFC 9112 3.2", 400, b"GET http://a/row HTTP/1.1\r\n\r\n"),
    (
        "absolute-form with a port in words",
        "RFC 3986 3.2.3",
        400,
        b"GET http://a:b/row HTTP/1.1\r\nHost: a:b\r\n\r\n",
    ),
];

const HOSTS: &[Head] = &[
    ("no Host", "RFC 9112 3.2", 400, b"GET /row HTTP/1.1\r\n\r\n"),
    ("Host as a list", "RFC 9112 3.2", 400, b"GET /row HTTP/1.1\r\nHost: a, b\r\n\r\n"),
    ("Host of two words", "RFC 9112 3.2", 400, b"GET /row HTTP/1.1\r\nHost: a b\r\n\r\n"),
    ("Host with a path", "RFC 9112 3.2", 400, b"GET /row HTTP/1.1\r\nHost: a/x\r\n\r\n"),
    ("Host with a query", "RFC 9112 3.2", 400, b"GET /row HTTP/1.1\r\nHost: a?x\r\n\r\n"),
    ("Host with a user", "RFC 9112 3.2", 400, b"GET /row HTTP/1.1\r\nHost: u@a\r\n\r\n"),
    ("Host with two ports", "RFC 9110 7.2", 400, b"GET /row HTTP/1.1\r\nHost: a:80:81\r\n\r\n"),
    ("Host with a port in words", "RFC 9110 7.2", 400, b"GET /row HTTP/1.1\r\nHost: a:b\r\n\r\n"),
    ("Host in half a bracket", "RFC 3986 3.2.2", 400, b"GET /row HTTP/1.1\r\nHost: [::1\r\n\r\n"),
    (
        "Host with text behind the bracket",
        "RFC 3986 3.2.2",
        400,
        b"GET /row HTTP/1.1\r\nHost: [::1]b\r\n\r\n",
    ),
    ("Host beyond ASCII", "RFC 3986 3.2.2", 400, b"GET /row HTTP/1.1\r\nHost: \xc3\xa4\r\n\r\n"),
    ("Host with half an escape", "RFC 3986 2.1", 400, b"GET /row HTTP/1.1\r\nHost: a%2\r\n\r\n"),
    (
        "TE in HTTP/1.0",
        "RFC 9112 6.1",
        400,
        b"POST /row HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    ),
    (
        "TE and CL in HTTP/1.0",
        "RFC 9112 6.1",
        400,
        b"POST /row HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n",
    ),
];

pub(super) fn rows() -> Vec<Row> {
    let row = |(name, section, status, head): Head| refused(name, section, status, head.to_vec());
    let mut rows: Vec<_> = [REQUEST_LINES, TARGETS, HOSTS].concat().into_iter().map(row).collect();
    let text = |size| "x".repeat(size);
    rows.extend([
        large(
            "a target too long",
            414,
            format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", text(40_000)),
        ),
        large(
            "a method too long",
            414,
            format!("{} / HTTP/1.1\r\nHost: a\r\n\r\n", "X".repeat(40_000)),
        ),
        large(
            "a value too long",
            431,
            format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", text(66_000)),
        ),
        large(
            "a name too long",
            431,
            format!("GET / HTTP/1.1\r\nHost: a\r\n{}: y\r\n\r\n", text(66_000)),
        ),
        large(
            "too many fields",
            431,
            format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(300)),
        ),
    ]);
    rows
}

fn large(name: &'static str, status: u16, head: String) -> Row {
    let section = if status == 414 { "RFC 9110 15.5.15" } else { "RFC 6585 5" };
    refused(name, section, status, head.into_bytes())
}
