use proptest::prelude::*;

use super::*;

fn parse(text: &[u8]) -> Result<RequestHead, HeadError> {
    let mut head = RequestHead::default();
    match head.parse(text, &Limits::default())? {
        true => Ok(head),
        false => panic!("unfinished: {}", text.escape_ascii()),
    }
}

fn parse_response(text: &[u8]) -> Result<ResponseHead, HeadError> {
    let mut head = ResponseHead::default();
    match head.parse(text, &Limits::default())? {
        true => Ok(head),
        false => panic!("unfinished: {}", text.escape_ascii()),
    }
}

#[test]
fn the_parts_of_a_request_are_found() {
    let text = b"POST /a/b?c=d HTTP/1.1\r\nHOST:  web.shop:80\t\r\nContent-Length: 3\r\n\
        Expect: 100-continue\r\nx-empty:\r\n\r\nabc";
    let head = parse(text).unwrap();
    let view = head.view(text);
    assert_eq!(head.len(), text.len() - 3);
    assert_eq!((view.method(), view.target()), ("POST", &b"/a/b?c=d"[..]));
    assert_eq!((view.path(), view.query()), (&b"/a/b"[..], Some(&b"c=d"[..])));
    assert_eq!(view.authority(), "web.shop:80");
    assert_eq!(view.header("host"), Some(&b"web.shop:80"[..]));
    assert_eq!(view.header("X-Empty"), Some(&b""[..]));
    assert_eq!(view.header("absent"), None);
    assert_eq!(view.headers().count(), 4);
    assert_eq!(head.framing(), Framing::Length(3));
    assert!(head.keep_alive() && head.expect_continue() && !head.upgrade());
}

#[test]
fn headers_that_connection_names_are_not_forwarded() {
    let text = b"GET / HTTP/1.1\r\nHost: a\r\nX-Role: admin\r\nx-role: guest\r\nX-Team: b\r\n\
        Connection: keep-alive\r\nConnection: close, x-team\r\n\r\n";
    let head = parse(text).unwrap();
    let lines = |name: &'static str| {
        let view = head.view(text);
        view.forwarded(|given| given.eq_ignore_ascii_case(name)).collect::<Vec<_>>()
    };
    assert_eq!(lines("x-role"), [("X-Role", &b"admin"[..]), ("x-role", &b"guest"[..])]);
    assert!(lines("X-TEAM").is_empty() && lines("absent").is_empty());
}

#[test]
fn targets() {
    let cases = [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "a", "/"),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "a", "*"),
        ("GET http://a:80?x HTTP/1.1\r\nHost: a\r\n\r\n", "a:80", "/"),
        ("GET HTTP://A/p HTTP/1.1\r\nHost: a:80\r\n\r\n", "A", "/p"),
        ("GET https://a:443/p HTTP/1.0\r\n\r\n", "a:443", "/p"),
        ("GET /\u{e4} HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "[::1]:80", "/\u{e4}"),
        ("GET //b/c HTTP/1.1\r\nHost:\r\n\r\n", "", "//b/c"),
        ("GET / HTTP/1.1\r\nHost: a_b.%c3%a4:\r\n\r\n", "a_b.%c3%a4:", "/"),
    ];
    for (text, authority, path) in cases {
        let head = parse(text.as_bytes()).unwrap();
        assert_eq!(head.view(text.as_bytes()).authority(), authority);
        assert_eq!(head.view(text.as_bytes()).path(), path.as_bytes());
    }
}

#[test]
fn keep_alive_depends_on_version_and_option() {
    for (version, connection, keeps) in [
        ("1.1", "", true),
        ("1.1", "Connection: x, Close\r\n", false),
        ("1.0", "", false),
        ("1.0", "Connection: Keep-Alive\r\n", true),
        ("1.0", "Connection: keep-alive\r\nConnection: close\r\n", false),
    ] {
        let text = format!("GET / HTTP/{version}\r\nHost: a\r\n{connection}\r\n");
        assert_eq!(parse(text.as_bytes()).unwrap().keep_alive(), keeps, "{text}");
    }
}

#[test]
fn refused_request_lines() {
    use HeadError::*;
    let line = |line: &str| format!("{line}\r\nHost: a\r\n\r\n");
    let cases = [
        (line("GET /"), RequestLine),
        (line("GET  / HTTP/1.1"), RequestLine),
        (line("GET / HTTP/1.1 "), RequestLine),
        (line("GET / HTTP/1.1x"), RequestLine),
        (line("GET / http/1.1"), RequestLine),
        (line("GET\t/ HTTP/1.1"), RequestLine),
        (line("G@T / HTTP/1.1"), RequestLine),
        (line(" GET / HTTP/1.1"), RequestLine),
        (line("GET /a b HTTP/1.1"), RequestLine),
        (line("GET /#x HTTP/1.1"), RequestLine),
        (line("GET /\0 HTTP/1.1"), RequestLine),
        (line("GET / HTTP/2.0"), Version),
        (line("GET / HTTP/1.2"), Version),
        (line("GET / HTTP/0.9"), Version),
        (line("GET * HTTP/1.1"), Target),
        (line("GET a HTTP/1.1"), Target),
        (line("GET http:///x HTTP/1.1"), Target),
        (line("GET http://u@a/x HTTP/1.1"), Target),
        (line("GET http://b/ HTTP/1.1"), HostConflict),
        (line("CONNECT a HTTP/1.1"), Target),
        (line("CONNECT :80 HTTP/1.1"), Target),
        (line("CONNECT a: HTTP/1.1"), Target),
        (line("CONNECT / HTTP/1.1"), Target),
        (line("CONNECT http://a:80 HTTP/1.1"), Target),
        (line("CONNECT a:80 HTTP/1.1"), HostConflict),
        ("GET / HTTP/1.1\n\n".into(), RequestLine),
        ("GET / HTTP/1.1\r\n\r\n".into(), HostMissing),
        (line("GET / HTTP/1.1\r\nHost: b"), HostRepeated),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n".into(), HostMalformed),
        ("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n".into(), HostMalformed),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n".into(), HostMalformed),
        ("GET / HTTP/1.1\r\nHost: x@a\r\n\r\n".into(), HostMalformed),
        ("GET / HTTP/1.1\r\nHost: a:80:81\r\n\r\n".into(), HostMalformed),
        ("GET / HTTP/1.1\r\nHost: a:b\r\n\r\n".into(), HostMalformed),
        ("GET / HTTP/1.1\r\nHost: a:123456\r\n\r\n".into(), HostMalformed),
        ("GET / HTTP/1.1\r\nHost: :80\r\n\r\n".into(), HostMalformed),
        ("GET / HTTP/1.1\r\nHost: [::1\r\n\r\n".into(), HostMalformed),
        ("GET / HTTP/1.1\r\nHost: []\r\n\r\n".into(), HostMalformed),
        ("GET / HTTP/1.1\r\nHost: [::1]a\r\n\r\n".into(), HostMalformed),
        ("GET / HTTP/1.1\r\nHost: a[::1]\r\n\r\n".into(), HostMalformed),
        ("GET / HTTP/1.1\r\nHost: a%2\r\n\r\n".into(), HostMalformed),
        ("GET http://a:b/ HTTP/1.1\r\nHost: a\r\n\r\n".into(), Target),
    ];
    for (text, expected) in cases {
        assert_eq!(parse(text.as_bytes()), Err(expected), "{text:?}");
    }
}

#[test]
fn refused_headers() {
    use HeadError::*;
    let header = |lines: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n");
    let cases = [
        (header("Host: a"), HostRepeated),
        (header("A : b"), SpaceBeforeColon),
        (header("A\t: b"), SpaceBeforeColon),
        (header(": b"), Name),
        (header("A"), Name),
        (header("A\0: b"), Name),
        (header("\u{e4}: b"), Name),
        (header("A: b\0"), Control),
        (header("A: \x7f"), Control),
        (header("A: b\x0bc"), Control),
        (header("A: b\rC: d"), BareCr),
        (header("A: b\nC: d"), BareLf),
        (header("A: b\r\n c"), Folded),
        (header("A: b\r\n\tc"), Folded),
        ("GET / HTTP/1.1\r\n Host: a\r\n\r\n".into(), Folded),
        ("GET / HTTP/1.1\r\nHost: a\r\n\n".into(), BareLf),
        ("GET / HTTP/1.1\r\nHost: a\r\n\rx".into(), BareCr),
        (header("Content-Length: 1\r\nContent-Length: 2"), LengthConflict),
        (header("Content-Length: 1, 1"), LengthMalformed),
        (header("Content-Length: +1"), LengthMalformed),
        (header("Content-Length: -1"), LengthMalformed),
        (header("Content-Length: 0x1"), LengthMalformed),
        (header("Content-Length: 1 1"), LengthMalformed),
        (header("Content-Length:"), LengthMalformed),
        (header("Content-Length: 9999999999999999999"), LengthMalformed),
        (header("Content-Length: 1\r\nTransfer-Encoding: chunked"), LengthAndTransferEncoding),
        (header("Transfer-Encoding: x\r\nContent-Length: 1"), LengthAndTransferEncoding),
        (header("Transfer-Encoding: identity"), TransferEncoding),
        (header("Transfer-Encoding:"), TransferEncoding),
        (header("Transfer-Encoding: chunked, identity"), TransferEncoding),
        (header("Transfer-Encoding: chunked, chunked"), TransferEncoding),
        (header("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), TransferEncoding),
        (header("Transfer-Encoding: chunked\r\nTransfer-Encoding: x"), TransferEncoding),
        (header("Transfer-Encoding: xchunked"), TransferEncoding),
        (header("Transfer-Encoding: chunked;a=b"), TransferEncoding),
        (header("Transfer-Encoding: \"chunked\""), TransferEncoding),
        (header("Transfer-Encoding: gzip, chunked"), TransferCoding),
        (header("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked"), TransferCoding),
        ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".into(), TransferEncodingIn10),
        (header("Connection: close, Content-Length"), ConnectionOption),
        (header("Connection: HOST"), ConnectionOption),
    ];
    for (text, expected) in cases {
        assert_eq!(parse(text.as_bytes()), Err(expected), "{text:?}");
    }
}

#[test]
fn sizes() {
    let limits = Limits::default();
    let head = |length: usize| {
        let start = "GET / HTTP/1.1\r\nHost: a\r\nA: ";
        format!("{start}{}\r\n\r\n", "x".repeat(length - start.len() - 4))
    };
    assert_eq!(parse(head(limits.head_bytes).as_bytes()).unwrap().len(), limits.head_bytes);
    assert_eq!(parse(head(limits.head_bytes + 1).as_bytes()), Err(HeadError::TooLarge));
    assert_eq!(parse(&head(100_000).as_bytes()[..70_000]), Err(HeadError::TooLarge));
    let line =
        |length: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(length - 16));
    assert!(parse(line(limits.request_line_bytes).as_bytes()).is_ok());
    let long = line(limits.request_line_bytes + 1);
    assert_eq!(parse(long.as_bytes()), Err(HeadError::RequestLineTooLong));
    let many = |count| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "a: b\r\n".repeat(count));
    assert!(parse(many(255).as_bytes()).is_ok());
    assert_eq!(parse(many(256).as_bytes()), Err(HeadError::TooManyHeaders));
}

#[test]
fn each_line_is_parsed_once_if_a_head_arrives_byte_by_byte() {
    let text = format!("GET / HTTP/1.1\r\nHost: a\r\nA: {}\r\n\r\n", "x".repeat(60_000));
    let mut head = RequestHead::default();
    let started = (1..text.len()).filter(|end| {
        let mut before = head.progress;
        let look = before.worth_a_look(&text.as_bytes()[..*end], MAX);
        assert!(!head.parse(&text.as_bytes()[..*end], &Limits::default()).unwrap());
        look
    });
    assert_eq!(started.count(), 4);
    assert!(head.parse(text.as_bytes(), &Limits::default()).unwrap());
}

const MAX: usize = crate::MAX_HEAD_BYTES;

#[test]
fn responses() {
    let parse = |text: &str| parse_response(text.as_bytes());
    let framing = |text: &str| parse(text).unwrap().framing(false);
    assert_eq!(framing("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"), Framing::Length(5));
    assert_eq!(framing("HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n"), Framing::Chunked);
    assert_eq!(framing("HTTP/1.1 200 \r\n\r\n"), Framing::UntilClose);
    assert_eq!(framing("HTTP/1.1 204 x\r\nContent-Length: 5\r\n\r\n"), Framing::None);
    assert_eq!(framing("HTTP/1.0 304 \u{e4}\r\nContent-Length: 5\r\n\r\n"), Framing::None);
    assert_eq!(framing("HTTP/1.1 100 Continue\r\n\r\n"), Framing::None);
    let head = parse("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nKeep-Alive: a, timeout=7\r\n\r\n");
    let head = head.unwrap();
    assert_eq!(head.framing(true), Framing::None);
    assert_eq!(head.meaning.keep_alive_timeout, Some(7));
    assert!(head.keep_alive() && !head.is_interim());
    for (text, error) in [
        ("HTTP/1.1 099 x\r\n\r\n", HeadError::StatusLine),
        ("HTTP/1.1 20 x\r\n\r\n", HeadError::StatusLine),
        ("HTTP/1.1 2000 x\r\n\r\n", HeadError::StatusLine),
        ("HTTP/2.0 200 OK\r\n\r\n", HeadError::StatusLine),
        ("ICY 200 OK\r\n\r\n", HeadError::StatusLine),
        ("HTTP/1.1 200 O\0K\r\n\r\n", HeadError::StatusLine),
        ("HTTP/1.1 200 OK\n\n", HeadError::BareLf),
        ("SSH-2.0-x\r\n", HeadError::StatusLine),
        ("x\n", HeadError::StatusLine),
        ("HTTP/1.1 200 OK\r\nA : b\r\n\r\n", HeadError::SpaceBeforeColon),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            HeadError::LengthConflict,
        ),
    ] {
        assert_eq!(parse(text), Err(error), "{text:?}");
    }
}

/// Bytes that resemble a head: a first line, mostly a valid one, and pieces that matter to a parser, in any order.
fn near_head() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        8 => Just(b"X-Name: value\r\n".to_vec()),
        2 => Just(b"Content-Length: 12\r\n".to_vec()),
        2 => Just(b"Transfer-Encoding: chunked\r\n".to_vec()),
        1 => Just(b"Connection: close, x\r\n".to_vec()),
        4 => Just(b"\r\n".to_vec()),
        1 => prop::sample::select(&b"\r\n :\t\0aZ{\x7f\xff,;"[..]).prop_map(|byte| vec![byte]),
        1 => prop::collection::vec(any::<u8>(), 0..20),
    ];
    let first = prop_oneof![
        6 => Just(&b"GET /path?query HTTP/1.1\r\nHost: a.b:80\r\n"[..]),
        1 => Just(&b"POST http://a/ HTTP/1.0\r\n"[..]),
        1 => Just(&b"HTTP/1.1 200 OK\r\n"[..]),
        1 => Just(&b"GE"[..]),
    ];
    (first, prop::collection::vec(piece, 0..12))
        .prop_map(|(first, pieces)| [first, &pieces.concat()[..], &b"\r\n"[..]].concat())
}

type Outcome<H> = Result<Option<H>, HeadError>;

fn in_steps<H: Default + Clone>(
    bytes: &[u8],
    cuts: &[usize],
    parse: impl Fn(&mut H, &[u8], &Limits) -> Result<bool, HeadError>,
) -> Outcome<H> {
    let limits =
        Limits { head_bytes: 150, request_line_bytes: 60, headers: 8, ..Limits::default() };
    let mut head = H::default();
    let ends = cuts.iter().copied().filter(|cut| *cut < bytes.len()).chain([bytes.len()]);
    for end in ends {
        if parse(&mut head, &bytes[..end], &limits)? {
            return Ok(Some(head));
        }
    }
    Ok(None)
}

proptest! {
    /// The result must not depend on the split, except the number of bytes that were already searched for line ends.
    #[test]
    fn the_way_the_bytes_are_split_makes_no_difference(bytes in near_head(), mut cuts in prop::collection::vec(1usize..200, 0..9)) {
        cuts.sort_unstable();
        let same = |head: Outcome<RequestHead>| head.map(|head| head.map(|mut head| {
            head.progress.seen = 0;
            head
        }));
        let whole = same(in_steps(&bytes, &[], RequestHead::parse));
        let every: Vec<usize> = (1..bytes.len()).collect();
        prop_assert_eq!(&same(in_steps(&bytes, &cuts, RequestHead::parse)), &whole);
        prop_assert_eq!(&same(in_steps(&bytes, &every, RequestHead::parse)), &whole);

        let same = |head: Outcome<ResponseHead>| head.map(|head| head.map(|mut head| {
            head.progress.seen = 0;
            head
        }));
        let whole = same(in_steps(&bytes, &[], ResponseHead::parse));
        prop_assert_eq!(&same(in_steps(&bytes, &cuts, ResponseHead::parse)), &whole);
        prop_assert_eq!(&same(in_steps(&bytes, &every, ResponseHead::parse)), &whole);
    }

    /// Every head that is accepted here means the same to `httparse`, a parser that many servers use.
    #[test]
    fn httparse_agrees_on_what_is_accepted(bytes in near_head()) {
        let mut head = RequestHead::default();
        if let Ok(true) = head.parse(&bytes, &Limits::default()) {
            let mut headers = [httparse::EMPTY_HEADER; 300];
            let mut other = httparse::Request::new(&mut headers);
            let length = other.parse(&bytes).unwrap().unwrap();
            let view = head.view(&bytes);
            prop_assert_eq!(length, head.len());
            prop_assert_eq!(other.method.unwrap(), view.method());
            prop_assert_eq!(other.path.unwrap().as_bytes(), view.target());
            prop_assert_eq!(other.version.unwrap(), view.version() as u8);
            let ours: Vec<_> = view.headers().collect();
            let theirs: Vec<_> =
                other.headers.iter().map(|header| (header.name, header.value)).collect();
            prop_assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = RequestHead::default().parse(&bytes, &Limits::default());
        let _ = ResponseHead::default().parse(&bytes, &Limits::default());
    }
}
