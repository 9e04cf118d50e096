//! Request lines and `Host` (RFC 9112 section 3, RFC 9110 section 7.2).

use super::{Case, ParsedRequest};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = methods();
    cases.extend(targets());
    cases.extend(versions());
    cases.extend(lines());
    cases.extend(absolute());
    cases.extend(hosts());
    cases
}

/// Whether a byte is a `tchar` of RFC 9110 section 5.6.2.
pub(super) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn get(target: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nHost: cart\r\n\r\n").into_bytes()
}

/// A method with each possible byte in its middle.
fn methods() -> Vec<Case> {
    let with = |byte: u8| {
        let name = format!("method with byte {byte:#04x}");
        let sent = [b"GE", &[byte][..], b"T / HTTP/1.1\r\nHost: cart\r\n\r\n"].concat();
        if is_token(byte) {
            let method = format!("GE{}T", byte as char);
            Case::either(name, sent, vec![ParsedRequest::new(&method, "/", b"")])
        } else {
            Case::refused(name, sent)
        }
    };
    (0..=255).map(with).collect()
}

/// A target with each possible byte in its middle. Bytes above 0x7f violate RFC 3986; servers that accept such
/// bytes use them unchanged.
fn targets() -> Vec<Case> {
    let with = |byte: u8| {
        let name = format!("target with byte {byte:#04x}");
        let sent = [b"GET /a", &[byte][..], b"b HTTP/1.1\r\nHost: cart\r\n\r\n"].concat();
        match byte {
            b'#' | 0x80.. => {
                let target =
                    String::from_utf8_lossy(&[b"/a", &[byte][..], b"b"].concat()).into_owned();
                Case::either(name, sent, vec![ParsedRequest::new("GET", &target, b"")])
            }
            0x21..=0x7e => {
                let target = format!("/a{}b", byte as char);
                Case::either(name, sent, vec![ParsedRequest::new("GET", &target, b"")])
            }
            _ => Case::refused(name, sent),
        }
    };
    let mut cases: Vec<_> = (0..=255).map(with).collect();
    for target in [
        "/",
        "//",
        "/..",
        "/../../etc",
        "/%00",
        "/%2e%2e/",
        "/%",
        "/%zz",
        "/a;b=c",
        "/?a=b&c",
        "/??",
        "/a/./b",
        "/a//b",
        "/*",
        "/:80",
        "/@",
        "/http://other/",
        "/\\..\\",
    ] {
        let name = format!("target {target} as it is");
        cases.push(Case::either(name, get(target), vec![ParsedRequest::new("GET", target, b"")]));
    }
    for target in ["", "a", "*", "other", "other:80", "?a", "#", "..", "http:/a", "://", "http://"]
    {
        cases.push(Case::refused(format!("target {target:?} of GET"), get(target)));
    }
    cases
}

fn versions() -> Vec<Case> {
    let mut cases = Vec::new();
    for version in [
        "HTTP/1.2",
        "HTTP/1.9",
        "HTTP/0.9",
        "HTTP/2.0",
        "HTTP/3.0",
        "HTTP/9.9",
        "http/1.1",
        "Http/1.1",
        "HTTP/1.10",
        "HTTP/01.1",
        "HTTP/1.01",
        "HTTP/11",
        "HTTP/1",
        "HTTP/1.",
        "HTTP/.1",
        "HTTP/",
        "HTTP",
        "HTTPS/1.1",
        "HTTP /1.1",
        "HTTP/ 1.1",
        "HTTP/1 .1",
        "HTTP/1.1x",
        "xHTTP/1.1",
        "",
        "HTTP/+1.1",
        "HTTP/1,1",
        "HTTP/1.1/",
        "HTTP\\1.1",
        "HTTP/1.\u{661}",
        "ICY/1.1",
        "RTSP/1.0",
    ] {
        let sent = format!("GET / {version}\r\nHost: cart\r\n\r\n");
        // A request with a higher minor version is served like 1.1 (RFC 9110 section 2.5).
        let asked = vec![ParsedRequest::new("GET", "/", b"")];
        let name = format!("version {version:?}");
        cases.push(match version {
            "HTTP/1.2" | "HTTP/1.9" => Case::either(name, sent, asked),
            _ => Case::refused(name, sent),
        });
    }
    cases
}

/// Invalid request lines.
fn lines() -> Vec<Case> {
    let mut cases = Vec::new();
    for line in [
        "GET  / HTTP/1.1",
        "GET /  HTTP/1.1",
        "GET\t/ HTTP/1.1",
        "GET /\tHTTP/1.1",
        " GET / HTTP/1.1",
        "GET / HTTP/1.1 ",
        "GET / HTTP/1.1\t",
        "GET",
        "GET /",
        "GET / ",
        "/ HTTP/1.1",
        "GET HTTP/1.1",
        "GET / / HTTP/1.1",
        "GET / HTTP/1.1 HTTP/1.1",
        "GET /a b HTTP/1.1",
        "GET\u{b}/ HTTP/1.1",
        "GET\u{c}/ HTTP/1.1",
        "GET /\u{c}HTTP/1.1",
        "GET\r/ HTTP/1.1",
        "GET /\rHTTP/1.1",
        "GET\u{a0}/ HTTP/1.1",
        ":GET / HTTP/1.1",
        "GET: / HTTP/1.1",
        "GET,POST / HTTP/1.1",
        "GET / HTTP/1.1\r",
        "\u{feff}GET / HTTP/1.1",
        "\"GET\" / HTTP/1.1",
        "GET /\0 HTTP/1.1",
    ] {
        let sent = format!("{line}\r\nHost: cart\r\n\r\n");
        cases.push(Case::refused(format!("request line {line:?}"), sent));
    }
    // Empty lines before a request are ignored (RFC 9112 section 2.2).
    for before in ["\r\n", "\r\n\r\n"] {
        let sent = format!("{before}GET / HTTP/1.1\r\nHost: cart\r\n\r\n");
        let asked = vec![ParsedRequest::new("GET", "/", b"")];
        cases.push(Case::either(format!("{before:?} before a request"), sent, asked));
    }
    cases
}

/// Requests in absolute form, whose authority replaces `Host` (RFC 9112 section 3.2.2).
fn absolute() -> Vec<Case> {
    let mut cases = Vec::new();
    for (target, authority, path) in [
        ("http://cart/", "cart", "/"),
        ("http://cart", "cart", "/"),
        ("http://cart?a", "cart", "/?a"),
        ("http://other/a", "other", "/a"),
        ("HTTP://other/a", "other", "/a"),
        ("http://other:8080/a", "other:8080", "/a"),
        ("http://[::1]/a", "[::1]", "/a"),
        ("https://other/a", "other", "/a"),
    ] {
        for host in ["cart", "evil"] {
            let sent = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            let asked = ParsedRequest::new("GET", path, b"").with("host", authority.as_bytes());
            // A proxy may keep the absolute form, because it has the same meaning for the application (RFC 9112
            // section 3.2.2).
            let name = format!("absolute {target} with Host {host}");
            cases.push(Case::either(name, sent, vec![asked]));
        }
    }
    for target in [
        "http://user@other/",
        "http://user:password@other/",
        "http:///",
        "http://:80/",
        "http://a b/",
        "http://other:/x y",
        "http://[::1/",
        "http://other:99999/",
        "http://other:-1/",
        "http://other:a/",
        "ftp://other/",
        "file:///etc/passwd",
        "gopher://other/",
        "javascript:0",
        "http//other/",
        "http://\u{e9}/",
        "http://a,b/",
        "http://a/\0",
    ] {
        let path = target.splitn(4, '/').nth(3).unwrap_or_default();
        let sent = format!("GET {target} HTTP/1.1\r\nHost: cart\r\n\r\n");
        let asked = vec![ParsedRequest::new("GET", &format!("/{path}"), b"")];
        cases.push(Case::either(format!("absolute {target:?}"), sent, asked));
    }
    cases
}

fn hosts() -> Vec<Case> {
    let mut cases = Vec::new();
    let asked = || ParsedRequest::new("GET", "/", b"");
    for host in ["cart", "cart:80", "CART", "[::1]", "[::1]:80", "127.0.0.1", "a-b.c", "cart."] {
        let sent = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let asked = asked().with("host", host.as_bytes());
        cases.push(Case::forwarded(format!("Host {host}"), sent, vec![asked]));
    }
    for host in [
        "a b",
        "a,b",
        "a/b",
        "a\\b",
        "a@b",
        "user@cart",
        "cart:80:80",
        "cart:x",
        "cart:-1",
        "[::1",
        "::1]",
        "a\u{b}b",
        "a?b",
        "a#b",
        "http://cart",
        "cart\r\n b",
        "\u{e9}",
        "a\"b",
        "<cart>",
        "{cart}",
        "a|b",
    ] {
        let sent = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let asked = asked().with("host", host.as_bytes());
        cases.push(Case::either(format!("Host {host:?}"), sent, vec![asked]));
    }
    for (what, fields) in [
        ("two", "Host: cart\r\nHost: evil\r\n"),
        ("two of one name", "Host: cart\r\nHost: cart\r\n"),
        ("two in other case", "Host: cart\r\nhOST: evil\r\n"),
        ("one far behind", "Host: cart\r\nA: b\r\nC: d\r\nHost: evil\r\n"),
        ("one behind a folded line", "Host: cart\r\nA: b\r\n Host: evil\r\nHost: evil\r\n"),
        ("none", ""),
        ("one with a space before its colon", "Host : cart\r\n"),
        ("one with a tab before its colon", "Host\t: cart\r\n"),
        ("one with a space before its name", " Host: cart\r\n"),
        ("one that is folded", "Host:\r\n cart\r\n"),
        ("one of one more after a bare line feed", "Host: cart\nHost: evil\r\n"),
        ("a NUL", "Host: cart\0evil\r\n"),
        ("a bare carriage return", "Host: cart\revil\r\n"),
    ] {
        let sent = format!("GET / HTTP/1.1\r\n{fields}\r\n");
        cases.push(Case::refused(format!("Host: {what}"), sent));
    }
    cases
}
