//! Field lines (RFC 9110 section 5, RFC 9112 section 5), connection-specific fields, and upgrades.

use super::lines::is_token;
use super::{Case, ParsedRequest};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = names();
    cases.extend(values());
    cases.extend(lines());
    cases.extend(of_the_connection());
    cases.extend(upgrades());
    cases.extend(expectations());
    cases
}

fn get(fields: &[u8]) -> Vec<u8> {
    [b"GET / HTTP/1.1\r\nHost: cart\r\n", fields, b"\r\n"].concat()
}

fn asked() -> ParsedRequest {
    ParsedRequest::new("GET", "/", b"")
}

/// A field name with each possible byte in its middle.
fn names() -> Vec<Case> {
    let with = |byte: u8| {
        let case = format!("field name with byte {byte:#04x}");
        let sent = get(&[b"x-a", &[byte][..], b"b: c\r\n"].concat());
        match byte {
            // In this case the field's name is `x-a`.
            b':' => Case::forwarded(case, sent, vec![asked().with("x-a", b"b: c")]),
            _ if is_token(byte) => {
                let name = format!("x-a{}b", byte as char);
                Case::forwarded(case, sent, vec![asked().with(&name, b"c")])
            }
            _ => Case::refused(case, sent),
        }
    };
    (0..=255).map(with).collect()
}

/// A field value with each possible byte in its middle.
fn values() -> Vec<Case> {
    let with = |byte: u8| {
        let name = format!("field value with byte {byte:#04x}");
        let value = [b"a", &[byte][..], b"b"].concat();
        let sent = get(&[b"x-a: ", &value[..], b"\r\n"].concat());
        match byte {
            b'\t' | b' '..=b'~' | 0x80.. => {
                Case::forwarded(name, sent, vec![asked().with("x-a", &value)])
            }
            // These bytes must be refused. Other invalid bytes may be kept (RFC 9110 section 5.5).
            0 | b'\r' | b'\n' => Case::refused(name, sent),
            _ => Case::either(name, sent, vec![asked().with("x-a", &value)]),
        }
    };
    (0..=255).map(with).collect()
}

fn lines() -> Vec<Case> {
    let mut cases = Vec::new();
    for (sent, value) in [
        ("x-a:b\r\n", "b"),
        ("x-a: b \r\n", "b"),
        ("x-a:\tb\t\r\n", "b"),
        ("x-a:   b   c   \r\n", "b   c"),
        ("x-a:\r\n", ""),
        ("x-a: \r\n", ""),
        ("x-a: :\r\n", ":"),
        ("X-A: b\r\n", "b"),
        ("x-a: \"b\\\"c\"\r\n", "\"b\\\"c\""),
        ("x-a: (b\r\n", "(b"),
    ] {
        let asked = vec![asked().with("x-a", value.as_bytes())];
        cases.push(Case::forwarded(format!("line {sent:?}"), get(sent.as_bytes()), asked));
    }
    for line in [
        "x-a\r\n",
        ": b\r\n",
        "x-a : b\r\n",
        "x-a\t: b\r\n",
        " x-a: b\r\n",
        "\tx-a: b\r\n",
        "x-a: b\r\n c\r\n",
        "x-a: b\r\n\tc\r\n",
        "x-a: b\r\n \r\n",
        "x-a\r\n : b\r\n",
        "x-a: b\nx-c: d\r\n",
        "x-a: b\n\n",
        "\0\r\n",
        "x-a: b\r\r\n",
        "x-a: b\r\n\r",
        "x a: b\r\n",
        "x-a;: b\r\n",
        "x-a\u{b}: b\r\n",
        "\u{feff}x-a: b\r\n",
        "(x-a): b\r\n",
        "x-a: b\0\r\n",
        "x-a: b\r\nx-c\r\n",
        "=: b\r\n c\r\n",
        ":\r\n",
        "::\r\n",
    ] {
        cases.push(Case::refused(format!("line {line:?}"), get(line.as_bytes())));
    }
    for (what, bytes) in [
        ("bare line feeds", &b"GET / HTTP/1.1\nHost: cart\n\n"[..]),
        ("one", b"GET / HTTP/1.1\nHost: cart\r\n\r\n"),
    ] {
        cases.push(Case::either(format!("lines ended by {what}"), bytes, vec![asked()]));
    }
    for count in [10, 200, 255, 300, 2000] {
        let fields = "x-a: b\r\n".repeat(count);
        let sent = get(fields.as_bytes());
        cases.push(Case::either(format!("{count} fields"), sent, vec![asked()]));
    }
    for length in [100, 8000, 20_000, 60_000, 70_000] {
        let value = "b".repeat(length);
        let by_value = get(format!("x-a: {value}\r\n").as_bytes());
        let asked_value = vec![asked().with("x-a", value.as_bytes())];
        cases.push(Case::either(format!("a value of {length} bytes"), by_value, asked_value));
        let by_name = get(format!("x-{value}: c\r\n").as_bytes());
        cases.push(Case::either(format!("a name of {length} bytes"), by_name, vec![asked()]));
    }
    cases
}

/// Connection-specific fields, which must not be forwarded (RFC 9110 section 7.6.1).
fn of_the_connection() -> Vec<Case> {
    let mut cases = Vec::new();
    for options in [
        "close",
        "Close",
        "keep-alive",
        "close, keep-alive",
        "x-a",
        "x-a, x-b",
        "X-A",
        ",",
        ",,x-a",
        "x-a,",
        "",
        "upgrade",
        "te",
        "close, x-a",
        "host",
        "content-length",
        "transfer-encoding",
        "x-tag, host",
        "connection",
        "leno-error",
        "proxy-connection",
        "trailer",
        "keep-alive, keep-alive",
        "\"x-a\"",
    ] {
        let fields = format!("Connection: {options}\r\nx-a: 1\r\nx-b: 2\r\n");
        let sent = get(fields.as_bytes());
        cases.push(Case::either(format!("Connection: {options}"), sent, vec![asked()]));
    }
    for name in ["Keep-Alive", "Proxy-Connection", "TE", "Trailer", "Proxy-Authorization"] {
        for value in ["", "timeout=5", "trailers", "chunked", "x"] {
            let sent = get(format!("{name}: {value}\r\n").as_bytes());
            cases.push(Case::either(format!("{name}: {value}"), sent, vec![asked()]));
        }
    }
    // A Content-Length that the field Connection names still frames the content.
    for option in ["content-length", "Content-Length, close", "host, content-length"] {
        let sent = format!(
            "POST / HTTP/1.1\r\nHost: cart\r\nConnection: {option}\r\nContent-Length: 31\r\n\r\n\
             GET /smuggled HTTP/1.1\r\nHost: a"
        );
        let body = &sent.as_bytes()[sent.len() - 31..];
        let asked = ParsedRequest::new("POST", "/", body);
        let sent = sent.clone();
        cases.push(Case::either(format!("Connection: {option} of a POST"), sent, vec![asked]));
    }
    cases
}

/// Requests for an upgrade that the server does not accept. The bytes that follow are content or another request.
fn upgrades() -> Vec<Case> {
    let mut cases = Vec::new();
    for (protocol, extra) in [
        (
            "websocket",
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
        ),
        ("websocket", ""),
        ("websocket", "Sec-WebSocket-Version: 99\r\n"),
        ("h2c", "HTTP2-Settings: AAMAAABkAAQAAP__\r\n"),
        ("h2c", ""),
        ("HTTP/2.0", ""),
        ("TLS/1.0", ""),
        ("foo, websocket", ""),
        ("", ""),
        ("connect-udp", ""),
    ] {
        for connection in ["Upgrade", "upgrade, close", "keep-alive, Upgrade", "x-a", ""] {
            let fields = format!("Upgrade: {protocol}\r\nConnection: {connection}\r\n{extra}");
            let sent = get(fields.as_bytes());
            let name = format!("Upgrade: {protocol}, Connection: {connection}");
            cases.push(Case::either(name, sent, vec![asked()]));
        }
    }
    for length in ["0", "5"] {
        let sent = format!(
            "POST / HTTP/1.1\r\nHost: cart\r\nUpgrade: foo\r\nConnection: Upgrade\r\n\
             Content-Length: {length}\r\n\r\n{}",
            &"12345"[..length.parse().unwrap_or(0)]
        );
        let body = &"12345"[..length.parse().unwrap_or(0)];
        let asked = ParsedRequest::new("POST", "/", body.as_bytes());
        cases.push(Case::either(format!("an upgrade with content of {length}"), sent, vec![asked]));
    }
    cases
}

fn expectations() -> Vec<Case> {
    let mut cases = Vec::new();
    for expectation in [
        "100-continue",
        "100-Continue",
        "200-ok",
        "",
        "100-continue, 100-continue",
        "\"100-continue\"",
    ] {
        let sent = format!(
            "POST / HTTP/1.1\r\nHost: cart\r\nExpect: {expectation}\r\nContent-Length: 3\r\n\r\nabc"
        );
        let asked = ParsedRequest::new("POST", "/", b"abc");
        cases.push(Case::either(format!("Expect: {expectation}"), sent, vec![asked]));
    }
    cases
}
