use super::*;
use crate::limits::Limits;

fn request(text: &str, edits: &Edits<'_>) -> String {
    let mut head = RequestHead::default();
    assert!(head.parse(text.as_bytes(), &Limits::default()).unwrap(), "{text}");
    render(&Plan::request(&head, text.as_bytes(), edits), text)
}

fn response(text: &str, keep: bool, to_version: Version) -> String {
    let mut head = ResponseHead::default();
    assert!(head.parse(text.as_bytes(), &Limits::default()).unwrap(), "{text}");
    let wants_upgrade = text.contains("Upgrade: x");
    let to = ToClient { keep, version: to_version, wants_upgrade, tunnel: false };
    render(&Plan::response(&head, text.as_bytes(), &Edits::default(), to), text)
}

fn render(plan: &Plan<'_>, text: &str) -> String {
    let mut out = String::new();
    for piece in &plan.pieces {
        match piece {
            Piece::Received(start, end) => out += &text[*start as usize..*end as usize],
            Piece::Given(given) => out += std::str::from_utf8(given).unwrap(),
        }
    }
    out + &text[plan.resume..]
}

fn with(lines: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\nbody")
}

#[test]
fn an_unchanged_head_is_one_piece() {
    for lines in ["", "Connection: keep-alive\r\n", "TE: trailers\r\nConnection: TE\r\n"] {
        let text = with(lines);
        let mut head = RequestHead::default();
        head.parse(text.as_bytes(), &Limits::default()).unwrap();
        let plan = Plan::request(&head, text.as_bytes(), &Edits::default());
        assert_eq!(plan, Plan::default());
    }
}

#[test]
fn headers_for_this_hop_are_removed_from_a_request() {
    let cases = [
        ("Connection: close\r\n", ""),
        ("connection: close\r\nX: 1\r\n", "X: 1\r\n"),
        ("X: 1\r\nConnection: keep-alive, X\r\n", ""),
        ("X: 1\r\nconnection: y , x\r\nY:2\r\nZ: 3\r\n", "Z: 3\r\n"),
        ("Keep-Alive: timeout=5\r\nA: b\r\nProxy-Connection: keep-alive\r\n", "A: b\r\n"),
        ("TE: trailers\r\n", "TE: trailers\r\n"),
        ("TE: gzip\r\nConnection: TE\r\n", ""),
        ("TE: trailers\r\nConnection: TE, close\r\n", "TE: trailers\r\nConnection: TE\r\n"),
        (
            "Upgrade: websocket\r\nConnection: Upgrade\r\n",
            "Upgrade: websocket\r\nConnection: Upgrade\r\n",
        ),
        (
            "Upgrade: websocket\r\nConnection: close, Upgrade, X\r\n",
            "Upgrade: websocket\r\nConnection: upgrade\r\n",
        ),
        ("Upgrade: websocket\r\n", ""),
        ("Upgrade: h2c\r\nHTTP2-Settings: AA\r\nConnection: Upgrade, HTTP2-Settings\r\n", ""),
        ("Content-Length: 4\r\nContent-Length: 4\r\n", "Content-Length: 4\r\n"),
        (
            "Transfer-Encoding: chunked\r\nConnection: transfer-encoding\r\n",
            "Transfer-Encoding: chunked\r\n",
        ),
    ];
    for (given, expected) in cases {
        assert_eq!(request(&with(given), &Edits::default()), with(expected), "{given}");
    }
}

#[test]
fn an_http_1_0_request_asks_to_keep_the_connection_open() {
    let text = "GET / HTTP/1.0\r\nA: b\r\n\r\n";
    let expected = "GET / HTTP/1.0\r\nA: b\r\nConnection: keep-alive\r\n\r\n";
    assert_eq!(request(text, &Edits::default()), expected);
    assert_eq!(request(expected, &Edits::default()), expected);
    assert_eq!(
        request("GET / HTTP/1.0\r\n\r\n", &Edits::default()),
        "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    );
}

#[test]
fn edits_keep_the_order_and_case_of_other_headers() {
    let set = [HeaderLine::new("X-Set", b" new ").unwrap()];
    let add = [HeaderLine::new("x-add", b"1").unwrap()];
    let target = Some(&b"/other?q"[..]);
    let edits = Edits { remove: &["x-gone"], set: &set, add: &add, target, ..Edits::default() };
    let given = "X-GONE: 1\r\nb: 2\r\nx-set: old\r\nX-Add: 0\r\nContent-Length: 4\r\n";
    assert_eq!(
        request(&with(given), &edits),
        "GET /other?q HTTP/1.1\r\nHost: a\r\nb: 2\r\nX-Add: 0\r\nContent-Length: 4\r\n\
         X-Set: new\r\nx-add: 1\r\n\r\nbody"
    );
    let framing = Edits { remove: &["content-length", "transfer-encoding"], ..Edits::default() };
    let text = with("Content-Length: 4\r\n");
    assert_eq!(request(&text, &framing), text);
}

#[test]
fn a_new_trace_replaces_the_received_one() {
    let value = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    let line = TraceLine::new(value);
    let edits = Edits { trace: Some(&line), ..Edits::default() };
    let told = format!("traceparent: {}\r\n", String::from_utf8_lossy(value));
    assert_eq!(request(&with("A: b\r\n"), &edits), with(&format!("A: b\r\n{told}")));
    assert_eq!(
        request(&with("TraceParent: x\r\nA: b\r\n"), &edits),
        with(&format!("A: b\r\n{told}"))
    );
    let mut block = leno_hpack::Block::new();
    block.push(b":path", b"/");
    block.push(b"traceparent", b"x");
    edit_block(&mut block, &edits);
    let fields: Vec<_> = block.iter().map(|field| (field.name(), field.value())).collect();
    assert_eq!(fields, [(&b":path"[..], &b"/"[..]), (b"traceparent", value)]);
}

#[test]
fn a_response_tells_the_client_whether_its_connection_stays_open() {
    use Version::{Http10, Http11};
    let cases = [
        ("HTTP/1.1", "", true, Http11, ""),
        ("HTTP/1.1", "Connection: keep-alive\r\n", true, Http11, "Connection: keep-alive\r\n"),
        ("HTTP/1.1", "Connection: close\r\n", true, Http11, ""),
        ("HTTP/1.1", "", false, Http11, "Connection: close\r\n"),
        ("HTTP/1.1", "Connection: close\r\n", false, Http11, "Connection: close\r\n"),
        ("HTTP/1.1", "Connection: keep-alive\r\n", false, Http11, "Connection: close\r\n"),
        ("HTTP/1.1", "", true, Http10, "Connection: keep-alive\r\n"),
        ("HTTP/1.0", "", true, Http11, "Connection: keep-alive\r\n"),
        ("HTTP/1.1", "Keep-Alive: timeout=5\r\n", true, Http11, ""),
        (
            "HTTP/1.1",
            "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
            true,
            Http11,
            "Transfer-Encoding: chunked\r\n",
        ),
        (
            "HTTP/1.1",
            "Upgrade: x\r\nConnection: Upgrade\r\n",
            true,
            Http11,
            "Upgrade: x\r\nConnection: Upgrade\r\n",
        ),
        ("HTTP/1.1", "Upgrade: h2\r\nConnection: Upgrade\r\n", true, Http11, ""),
    ];
    for (version, given, keep, to_version, expected) in cases {
        let text = format!("{version} 200 OK\r\n{given}\r\nbody");
        let expected = format!("{version} 200 OK\r\n{expected}\r\nbody");
        assert_eq!(response(&text, keep, to_version), expected);
    }
}

#[test]
fn lines_that_could_split_a_head_are_refused() {
    for (name, value) in [
        ("", "x"),
        ("a b", "x"),
        ("a:", "x"),
        ("a", "x\r\nb: c"),
        ("a", "x\ny"),
        ("a", "x\0"),
        ("content-length", "5"),
        ("Connection", "close"),
    ] {
        assert!(HeaderLine::new(name, value.as_bytes()).is_err(), "{name}: {value}");
    }
}
