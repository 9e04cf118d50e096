//! Tables of heads that are translated from one version to the other.

use leno_hpack::Block;
use smallvec::SmallVec;

use super::carried::Carried;
use super::request::{self, ToH2};
use super::response::{self, ToH1};
use super::trailers;
use crate::edit::{Edits, HeaderLine};
use crate::head::HeadError::*;
use crate::head::{Framing, HeadError, RequestHead, ResponseHead, Version};
use crate::limits::Limits;

fn lines(block: &Block) -> String {
    block
        .iter()
        .map(|field| format!("{}: {}\n", field.name().escape_ascii(), field.value().escape_ascii()))
        .collect()
}

fn block(fields: &[(&str, &str)]) -> Block {
    fields.iter().copied().collect()
}

fn up(text: &str, edits: &Edits<'_>, to: ToH2) -> String {
    let mut head = RequestHead::default();
    assert!(head.parse(text.as_bytes(), &Limits::default()).unwrap(), "{text}");
    lines(&request::to_h2(&head, text.as_bytes(), edits, to).unwrap().0)
}

#[test]
fn requests_to_http2() {
    let cases = [
        (
            "GET http://B:80/x?y HTTP/1.1\r\nHost: b\r\nA: 1\r\n\r\n",
            ":method: GET\n:scheme: http\n:authority: B:80\n:path: /x?y\na: 1\n",
        ),
        (
            "GET HTTPS://b HTTP/1.1\r\nHost: b\r\n\r\n",
            ":method: GET\n:scheme: https\n:authority: b\n:path: /\n",
        ),
        (
            "OPTIONS http://b HTTP/1.1\r\nHost: b\r\n\r\n",
            ":method: OPTIONS\n:scheme: http\n:authority: b\n:path: *\n",
        ),
        (
            "GET http://b?q HTTP/1.1\r\nHost: b\r\n\r\n",
            ":method: GET\n:scheme: http\n:authority: b\n:path: /?q\n",
        ),
        ("GET / HTTP/1.0\r\n\r\n", ":method: GET\n:scheme: http\n:path: /\n"),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n", ":method: GET\n:scheme: http\n:path: /\n"),
        (
            "POST / HTTP/1.1\r\nHost: b\r\nConnection: X-A, keep-alive\r\nX-A: 1\r\nX-B: 2\r\n\
             Keep-Alive: 3\r\nProxy-Connection: 4\r\nTransfer-Encoding: chunked\r\nTE: gzip\r\n\
             Upgrade: h2c\r\nHTTP2-Settings: 5\r\nLeno-H1: 1.0 T\r\n\r\n",
            ":method: POST\n:scheme: http\n:authority: b\n:path: /\nx-b: 2\n",
        ),
        (
            "POST / HTTP/1.1\r\nHost: b\r\nContent-Length: 5\r\nContent-Length: 5\r\n\
             TE: gzip, trailers\r\n\r\n",
            ":method: POST\n:scheme: http\n:authority: b\n:path: /\ncontent-length: 5\n\
             te: trailers\n",
        ),
        (
            "GET / HTTP/1.1\r\nHost: b\r\nConnection: upgrade\r\nUpgrade: websocket, x\r\n\
             Sec-WebSocket-Key: k\r\n\r\n",
            ":method: CONNECT\n:scheme: http\n:authority: b\n:path: /\n:protocol: websocket\n",
        ),
        (
            "POST / HTTP/1.1\r\nHost: b\r\nConnection: upgrade\r\nUpgrade: x\r\n\
             Content-Length: 1\r\n\r\n",
            ":method: POST\n:scheme: http\n:authority: b\n:path: /\ncontent-length: 1\n",
        ),
        (
            "GET / HTTP/1.1\r\nHost: b\r\nUpgrade: websocket\r\n\r\n",
            ":method: GET\n:scheme: http\n:authority: b\n:path: /\n",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(up(text, &Edits::default(), ToH2 { mesh: false, connect: true }), expected);
    }
}

#[test]
fn edits_are_applied_to_a_head_in_http2() {
    let set = [HeaderLine::new("X-A", b"9").unwrap(), HeaderLine::new("Host", b"c").unwrap()];
    let edits =
        Edits { set: &set, remove: &["x-b", "host"], target: Some(b"/z"), ..Edits::default() };
    let text = "GET / HTTP/1.1\r\nHost: b\r\nX-A: 1\r\nX-B: 2\r\n\r\n";
    assert_eq!(
        up(text, &edits, ToH2::default()),
        ":method: GET\n:scheme: http\n:authority: c\n:path: /z\nx-a: 9\n"
    );
    let edits = Edits { target: Some(b"http://d/w"), ..Edits::default() };
    assert_eq!(
        up(text, &edits, ToH2::default()),
        ":method: GET\n:scheme: http\n:authority: d\n:path: /w\nx-a: 1\nx-b: 2\n"
    );
}

/// Names and values of fields.
type Fields = &'static [(&'static str, &'static str)];

const GOOD: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/")];

/// The good head, with other values of some fields and with additional fields.
fn changed(fields: &[(&str, &str)]) -> Block {
    let mut block = block(&GOOD);
    for (name, value) in fields {
        match block.position(name.as_bytes()) {
            Some(index) if name.starts_with(':') => block.set_value(index, value.as_bytes()),
            _ => block.push(name.as_bytes(), value.as_bytes()),
        }
    }
    block
}

#[test]
fn no_field_can_add_a_line() {
    let cases: &[(&[(&str, &str)], HeadError)] = &[
        (&[(":method", "GET / HTTP/1.1\r\nX: y\r\n\r\nGET")], RequestLine),
        (&[(":method", "GET /admin")], RequestLine),
        (&[(":method", "")], RequestLine),
        (&[(":method", "G\0T")], RequestLine),
        (&[(":method", "CONNECT")], Connect),
        (&[(":path", "/ HTTP/1.1\r\nX: y\r\n\r\nGET /")], Target),
        (&[(":path", "/a b")], Target),
        (&[(":path", "/a\tb")], Target),
        (&[(":path", "/a\0b")], Target),
        (&[(":path", "/a\nb")], Target),
        (&[(":path", "/a#b")], Target),
        (&[(":path", "")], Target),
        (&[(":path", "a")], Target),
        (&[(":path", "*")], Target),
        (&[(":path", "http://evil/")], Target),
        (&[(":authority", "a\r\nX: y")], HostMalformed),
        (&[(":authority", "a b")], HostMalformed),
        (&[(":authority", "a,b")], HostMalformed),
        (&[(":authority", "u@a")], HostMalformed),
        (&[(":authority", "a/b")], HostMalformed),
        (&[(":authority", "a:80:81")], HostMalformed),
        (&[("x", "y\r\nz: 1")], Control),
        (&[("x", "y\nz: 1")], Control),
        (&[("x", "y\rz")], Control),
        (&[("x", "y\0z")], Control),
        (&[("x", "y\x7fz")], Control),
        (&[("x\r\ny", "z")], Name),
        (&[("x: y", "z")], Name),
        (&[("x y", "z")], Name),
        (&[("x\0", "z")], Name),
        (&[("", "z")], Name),
        (&[("x\u{e4}", "z")], Name),
        (&[("cookie", "a"), ("cookie", "b\r\nX: y")], Control),
        (&[("transfer-encoding", "chunked")], TransferEncoding),
        (&[("transfer-encoding", "identity")], TransferEncoding),
        (&[("content-length", "1"), ("content-length", "2")], LengthConflict),
        (&[("content-length", "+1")], LengthMalformed),
        (&[("content-length", "1, 1")], LengthMalformed),
        (&[("content-length", "0x1")], LengthMalformed),
        (&[("content-length", "")], LengthMalformed),
        (&[("content-length", "1234567890123456789")], LengthMalformed),
    ];
    for (fields, expected) in cases {
        let error = request::to_h1(&changed(fields), None, false).err();
        assert_eq!(error, Some(*expected), "{fields:?}");
    }
    let error = request::to_h1(&changed(&[("content-length", "1")]), None, true).err();
    assert_eq!(error, Some(LengthConflict));
    for fields in [[("x", "y\r\nz")], [("x\n", "y")], [("transfer-encoding", "chunked")]] {
        let mut block = block(&[(":status", "200")]);
        fields.iter().for_each(|(name, value)| block.push(name.as_bytes(), value.as_bytes()));
        assert!(response::to_h1(&block, to(200, Version::Http11)).is_err(), "{fields:?}");
    }
    let mut out = SmallVec::new();
    let bad = block(&[("a\r\n", "b"), ("a", "b\r\nc"), ("content-length", "1"), ("host", "x")]);
    trailers::to_h1(&bad, &mut out);
    assert_eq!(&out[..], b"");
}

#[test]
fn details_from_another_proxy_are_bounded_and_checked() {
    let line = |carried: &str, fields: &[(&str, &str)]| {
        let made = request::to_h1(&changed(fields), Some(carried.as_bytes()), true).unwrap();
        String::from_utf8(made.head.bytes().to_vec()).unwrap()
    };
    let cases: &[(&str, Fields, &str)] = &[
        ("1.1 T h=a:80", &[], "GET / HTTP/1.1\r\nHost: a:80\r\n\r\n"),
        // The host must be the authority to which policies were applied.
        ("1.1 T h=evil", &[], "GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("1.1 Tn", &[], "GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("1.0 Tn", &[], "GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n"),
        ("1.0 Tna", &[], "GET http://a/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
        ("1.0 Tn", &[(":authority", "")], "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
        ("1.1 T h=", &[], "GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("1.1 Ta h=", &[], "GET http://a/ HTTP/1.1\r\nHost: \r\n\r\n"),
        // The path must be the one to which policies were applied.
        ("1.1 Tae", &[], "GET http://a HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("1.1 Tae", &[(":path", "/?q")], "GET http://a?q HTTP/1.1\r\nHost: a\r\n\r\n"),
        (
            "1.1 Tae",
            &[(":path", "/:80/admin")],
            "GET http://a/:80/admin HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
        ("1.1 Tae", &[(":path", "/.b/admin")], "GET http://a/.b/admin HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("1.1 T m=DELETE", &[], "GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("1.1 T X-aB", &[("x-ab", "1")], "GET / HTTP/1.1\r\nHost: a\r\nX-aB: 1\r\n\r\n"),
        ("1.1 Ta", &[], "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("1.1 Ta", &[(":authority", "")], "GET / HTTP/1.1\r\nHost: \r\n\r\n"),
        ("2.0 T", &[], "GET / HTTP/1.1\r\nhost: a\r\n\r\n"),
        ("1.1 T\r\nX: y", &[], "GET / HTTP/1.1\r\nhost: a\r\n\r\n"),
        ("1.1 T a:b", &[], "GET / HTTP/1.1\r\nhost: a\r\n\r\n"),
        ("", &[], "GET / HTTP/1.1\r\nhost: a\r\n\r\n"),
    ];
    for (carried, fields, expected) in cases {
        assert_eq!(line(carried, fields), *expected, "{carried}");
    }
    assert_eq!(Carried::parse(b"1.1 T r=a\rb"), None);
    assert_eq!(Carried::parse(b"1.1 T x r=a b=c").unwrap().reason, Some(&b"a b=c"[..]));
    assert_eq!(Carried::parse(b"1.1 T r=").unwrap().reason, Some(&b""[..]));
}

fn to(status: u16, version: Version) -> ToH1<'static> {
    ToH1 { status, version, keep: true, to_head: false, empty: false, carried: None }
}

#[test]
fn responses_to_http1() {
    let made = |fields: &[(&str, &str)], to: ToH1<'_>| {
        let made = response::to_h1(&block(fields), to).unwrap();
        let text = String::from_utf8(made.head.bytes().to_vec()).unwrap();
        (text, made.framing, made.keep)
    };
    let ok = &[(":status", "200"), ("a", "b")];
    assert_eq!(
        made(ok, to(200, Version::Http11)),
        (
            "HTTP/1.1 200 OK\r\na: b\r\ntransfer-encoding: chunked\r\n\r\n".into(),
            Framing::Chunked,
            true
        )
    );
    assert_eq!(
        made(ok, to(200, Version::Http10)),
        ("HTTP/1.1 200 OK\r\na: b\r\nconnection: close\r\n\r\n".into(), Framing::UntilClose, false)
    );
    let closing = ToH1 { keep: false, empty: true, ..to(200, Version::Http11) };
    assert_eq!(
        made(ok, closing),
        (
            "HTTP/1.1 200 OK\r\na: b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".into(),
            Framing::None,
            false
        )
    );
    let length = &[(":status", "200"), ("content-length", "7"), ("connection", "x"), ("te", "y")];
    assert_eq!(
        made(length, to(200, Version::Http11)).0,
        "HTTP/1.1 200 OK\r\nte: y\r\ncontent-length: 7\r\n\r\n"
    );
    let short = ToH1 { empty: true, ..to(200, Version::Http11) };
    assert_eq!(response::to_h1(&block(length), short).err(), Some(LengthConflict));
}

#[test]
fn responses_to_http2() {
    let cases = [
        ("HTTP/1.1 200 OK\r\nA: b\r\nConnection: C\r\nC: d\r\n\r\n", Ok(":status: 200\na: b\n")),
        ("HTTP/1.1 204 X\r\nContent-Length: 1\r\n\r\n", Ok(":status: 204\n")),
        ("HTTP/1.1 101 X\r\nUpgrade: y\r\nA: b\r\n\r\n", Ok(":status: 200\na: b\n")),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", Err(TransferCoding)),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: x\r\n\r\n", Err(TransferEncoding)),
    ];
    for (text, expected) in cases {
        let mut head = ResponseHead::default();
        assert!(head.parse(text.as_bytes(), &Limits::default()).unwrap());
        let made = response::to_h2(&head, text.as_bytes(), &Edits::default(), false);
        assert_eq!(made.map(|block| lines(&block)), expected.map(str::to_owned));
    }
}

#[test]
fn trailers_to_http2() {
    let made = trailers::to_h2(b"A:  b \r\nTE: x\r\nConnection: y\r\nC-D:\r\n");
    assert_eq!(lines(&made), "a: b\nc-d: \n");
}
