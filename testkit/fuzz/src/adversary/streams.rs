//! HTTP/2 (RFC 9113): fields that HTTP/1 would parse differently, false lengths, and misplaced frames. The proxy
//! refuses by resetting the stream, by GOAWAY, or with a status.

use super::lines::is_token;
use super::{Case, ParsedRequest};
use crate::proxy::frames::{
    END_HEADERS, END_STREAM, PREFACE, fields_block, frame, headers, kind, settings,
};

type Field<'a> = (&'a str, &'a [u8]);

const GET: [Field<'static>; 4] =
    [(":method", b"GET"), (":scheme", b"http"), (":authority", b"cart"), (":path", b"/")];
const POST: [Field<'static>; 4] =
    [(":method", b"POST"), (":scheme", b"http"), (":authority", b"cart"), (":path", b"/")];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = names();
    cases.extend(values());
    cases.extend(paths());
    cases.extend(methods());
    cases.extend(pseudo());
    cases.extend(of_http1());
    cases.extend(lengths());
    cases.extend(trailers());
    cases.extend(misplaced());
    cases.extend(sizes());
    cases.extend(settings_values());
    cases.extend(padding());
    cases
}

fn opened(frames: &[Vec<u8>]) -> Vec<u8> {
    [PREFACE, &settings(&[]), &frames.concat()].concat()
}

fn asked() -> ParsedRequest {
    ParsedRequest::new("GET", "/", b"")
}

fn with(extra: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut all: Vec<(&[u8], &[u8])> = GET.iter().map(|(n, v)| (n.as_bytes(), *v)).collect();
    all.extend(extra);
    opened(&[frame(kind::HEADERS, END_HEADERS | END_STREAM, 1, &fields_block(&all))])
}

fn names() -> Vec<Case> {
    let case = |byte: u8| {
        let sent = with(&[(&[b"x-a", &[byte][..], b"b"].concat(), b"c")]);
        let what = format!("HTTP/2 field name with byte {byte:#04x}");
        if is_token(byte) && !byte.is_ascii_uppercase() {
            let name = format!("x-a{}b", byte as char);
            Case::forwarded(what, sent, vec![asked().with(&name, b"c")])
        } else {
            Case::refused(what, sent)
        }
    };
    (0..=255).map(case).collect()
}

fn values() -> Vec<Case> {
    let case = |byte: u8| {
        let value = [b"a", &[byte][..], b"b"].concat();
        let sent = with(&[(b"x-a", &value)]);
        let what = format!("HTTP/2 field value with byte {byte:#04x}");
        let asked = vec![asked().with("x-a", &value)];
        match byte {
            b'\t' | b' '..=b'~' | 0x80.. => Case::forwarded(what, sent, asked),
            0 | b'\r' | b'\n' => Case::refused(what, sent),
            _ => Case::either(what, sent, asked),
        }
    };
    let mut cases: Vec<_> = (0..=255).map(case).collect();
    for value in [
        "a\r\nx-b: c",
        "a\nx-b: c",
        "a\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
        "\0",
        "a\r",
        "\na",
    ] {
        cases.push(Case::refused(
            format!("HTTP/2 field value {value:?}"),
            with(&[(b"x-a", value.as_bytes())]),
        ));
    }
    cases
}

fn paths() -> Vec<Case> {
    let case = |byte: u8| {
        let path = [b"/a", &[byte][..], b"b"].concat();
        let fields = [GET[0], GET[1], GET[2], (":path", &path[..])];
        let sent = opened(&[headers(1, &fields, true)]);
        let what = format!("HTTP/2 path with byte {byte:#04x}");
        match byte {
            0x21.. if byte != 0x7f => {
                let target = String::from_utf8_lossy(&path).into_owned();
                Case::either(what, sent, vec![ParsedRequest::new("GET", &target, b"")])
            }
            _ => Case::refused(what, sent),
        }
    };
    let mut cases: Vec<_> = (0..=255).map(case).collect();
    for path in [
        "",
        "a",
        "*",
        "/ HTTP/1.1\r\nHost: evil\r\n\r\nGET /smuggled",
        "/ HTTP/1.1",
        "http://other/",
        "/\r\n",
        "/ ",
        " /",
        "/\tx",
    ] {
        let fields = [GET[0], GET[1], GET[2], (":path", path.as_bytes())];
        cases.push(Case::refused(
            format!("HTTP/2 path {path:?}"),
            opened(&[headers(1, &fields, true)]),
        ));
    }
    cases
}

fn methods() -> Vec<Case> {
    let mut cases = Vec::new();
    for method in [
        "",
        " ",
        "GET ",
        "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\nGET",
        "G\0T",
        "G\r\nT",
        "(GET)",
        "G T",
        "GET\t",
        "\u{e9}",
        "CONNECT",
    ] {
        let fields = [(":method", method.as_bytes()), GET[1], GET[2], GET[3]];
        cases.push(Case::refused(
            format!("HTTP/2 method {method:?}"),
            opened(&[headers(1, &fields, true)]),
        ));
    }
    cases
}

/// Pseudo-fields (RFC 9113 section 8.3).
fn pseudo() -> Vec<Case> {
    let extra: Field<'_> = ("x-a", b"b");
    let [method, scheme, authority, path] = GET;
    let mut cases = Vec::new();
    for (what, fields) in [
        ("no method", vec![scheme, authority, path]),
        ("no scheme", vec![method, authority, path]),
        ("no path", vec![method, scheme, authority]),
        ("none at all", vec![extra]),
        ("two methods", vec![method, method, scheme, authority, path]),
        ("two schemes", vec![method, scheme, scheme, authority, path]),
        ("two authorities", vec![method, scheme, authority, (":authority", b"evil"), path]),
        ("two paths", vec![method, scheme, authority, path, (":path", b"/smuggled")]),
        ("a path behind fields", vec![method, scheme, authority, extra, path]),
        ("a method behind fields", vec![scheme, authority, path, extra, method]),
        ("a status", vec![method, scheme, authority, path, (":status", b"200")]),
        ("an unknown one", vec![method, scheme, authority, path, (":x", b"a")]),
        ("an empty name", vec![method, scheme, authority, path, ("", b"a")]),
        ("a colon alone", vec![method, scheme, authority, path, (":", b"a")]),
        ("a protocol of GET", vec![method, scheme, authority, path, (":protocol", b"websocket")]),
        ("a Host that differs", vec![method, scheme, authority, path, ("host", b"evil")]),
        ("two Hosts", vec![method, scheme, path, ("host", b"cart"), ("host", b"evil")]),
        ("an authority with a line end", vec![method, scheme, (":authority", b"a\r\nx: y"), path]),
        ("an authority with a space", vec![method, scheme, (":authority", b"a b"), path]),
        ("an authority with a user", vec![method, scheme, (":authority", b"user@cart"), path]),
        ("a scheme with a line end", vec![method, (":scheme", b"http\r\n"), authority, path]),
        ("an empty scheme", vec![method, (":scheme", b""), authority, path]),
    ] {
        let sent = opened(&[headers(1, &fields, true)]);
        let name = format!("HTTP/2 pseudo-fields: {what}");
        // The authority takes precedence over `Host` (RFC 9113 section 8.3.1).
        let allowed = match what {
            "a Host that differs" => vec![asked().with("host", b"cart")],
            "an authority with a user" => vec![asked()],
            _ => Vec::new(),
        };
        cases.push(Case::either(name, sent, allowed));
    }
    cases
}

/// Connection-specific fields, which HTTP/2 forbids (RFC 9113 section 8.2.2).
fn of_http1() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, value) in [
        ("connection", "close"),
        ("connection", "x-a"),
        ("connection", ""),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("transfer-encoding", "chunked"),
        ("transfer-encoding", "identity"),
        ("transfer-encoding", ""),
        ("upgrade", "websocket"),
        ("upgrade", "h2c"),
        ("te", "gzip"),
        ("te", "trailers, deflate"),
        ("te", ""),
        ("te", "chunked"),
    ] {
        let sent = with(&[(name.as_bytes(), value.as_bytes())]);
        cases.push(Case::refused(format!("HTTP/2 with {name}: {value}"), sent));
    }
    let sent = with(&[(b"te", b"trailers")]);
    cases.push(Case::forwarded("HTTP/2 with te: trailers".into(), sent, vec![asked()]));
    cases
}

/// Content lengths that do not match the content (RFC 9113 section 8.1.1).
fn lengths() -> Vec<Case> {
    let mut cases = Vec::new();
    for declared in [
        "0",
        "4",
        "6",
        "-5",
        "+5",
        "x",
        "",
        "5,6",
        "99999999999999999999",
        "5 6",
        "0x5",
        "5\0",
        " 5 6",
    ] {
        let fields = [POST[0], POST[1], POST[2], POST[3], ("content-length", declared.as_bytes())];
        for ends in [true, false] {
            let last = if ends { END_STREAM } else { 0 };
            let mut frames = vec![headers(1, &fields, false), frame(kind::DATA, last, 1, b"12345")];
            if !ends {
                frames.push(headers(1, &[("x-a", b"b")], true));
            }
            let sent = opened(&frames);
            let name =
                format!("HTTP/2 content-length {declared:?} of 5 bytes, trailers: {}", !ends);
            cases.push(Case {
                // A request that was forwarded in part may be cut off, but must never be complete with another
                // length.
                expected: super::Expected { requests: Vec::new(), refused: &super::REFUSALS },
                name,
                sent,
            });
        }
    }
    for fields in [
        [("content-length", "5"), ("content-length", "6")],
        [("content-length", "5"), ("content-length", "5")],
    ] {
        let mut all = POST.to_vec();
        all.extend(fields.iter().map(|(name, value)| (*name, value.as_bytes())));
        let sent = opened(&[headers(1, &all, false), frame(kind::DATA, END_STREAM, 1, b"12345")]);
        let asked = match fields[0].1 == fields[1].1 {
            true => vec![ParsedRequest::new("POST", "/", b"12345")],
            false => Vec::new(),
        };
        cases.push(Case::either(format!("HTTP/2 {fields:?}"), sent, asked));
    }
    cases
}

fn trailers() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, value) in [
        (":path", "/smuggled"),
        (":status", "200"),
        (":method", "GET"),
        ("connection", "close"),
        ("transfer-encoding", "chunked"),
        ("X-A", "b"),
        ("x-a", "b\r\nc: d"),
        ("x-a", "\0"),
        ("x a", "b"),
        ("", "b"),
        ("te", "gzip"),
        ("upgrade", "h2c"),
    ] {
        let sent = opened(&[
            headers(1, &POST, false),
            frame(kind::DATA, 0, 1, b"abc"),
            headers(1, &[(name, value.as_bytes())], true),
        ]);
        cases.push(Case::refused(format!("HTTP/2 trailer {name}: {value:?}"), sent));
    }
    for (name, value) in [
        ("x-a", "b"),
        ("content-length", "5"),
        ("host", "evil"),
        ("cookie", "a=b"),
        ("authorization", "x"),
    ] {
        let sent = opened(&[
            headers(1, &POST, false),
            frame(kind::DATA, 0, 1, b"abc"),
            headers(1, &[(name, value.as_bytes())], true),
        ]);
        let asked = vec![ParsedRequest::new("POST", "/", b"abc")];
        cases.push(Case::either(format!("HTTP/2 trailer {name}: {value:?}"), sent, asked));
    }
    let twice =
        [headers(1, &POST, false), headers(1, &[("x-a", b"b")], false), headers(1, &GET, true)];
    cases.push(Case::refused("HTTP/2 trailers that do not end the stream".into(), opened(&twice)));
    cases
}

/// Frames on streams where they are not permitted, followed by an unrelated request.
fn misplaced() -> Vec<Case> {
    let mut cases = Vec::new();
    for number in 0..=12_u8 {
        for stream in [0, 1, 2, 3, 4, 101, u32::MAX >> 1] {
            for length in [0, 1, 4, 5, 6, 8, 9] {
                let odd = frame(number, 0, stream, &vec![0; length]);
                let sent = opened(&[odd, headers(5, &GET, true)]);
                let name = format!("HTTP/2 frame {number} of {length} bytes on stream {stream}");
                cases.push(Case::either(name, sent, vec![asked()]));
            }
        }
    }
    cases
}

/// Frames and field blocks that are too long or have no end.
fn sizes() -> Vec<Case> {
    let mut cases = Vec::new();
    let long = vec![0; 16_385];
    for number in [kind::DATA, kind::HEADERS, kind::SETTINGS, kind::PING, 0xab] {
        for stream in [0, 1] {
            let sent = opened(&[frame(number, 0, stream, &long), headers(5, &GET, true)]);
            cases.push(Case::refused(
                format!("HTTP/2 frame {number} of 16,385 bytes on {stream}"),
                sent,
            ));
        }
    }
    for count in [1_usize, 9, 100] {
        let mut frames = vec![frame(kind::HEADERS, END_STREAM, 1, &[])];
        frames.extend((0..count).map(|_| frame(kind::CONTINUATION, 0, 1, &[])));
        cases.push(Case::refused(
            format!("HTTP/2 block of {count} empty parts, without end"),
            opened(&frames),
        ));
        let mut fields: Vec<(&str, &[u8])> = GET.to_vec();
        let value = vec![b'b'; 4000];
        fields.extend((0..count).map(|_| ("x-a", &value[..])));
        let sent = opened(&[headers(1, &fields, true)]);
        cases.push(Case::either(format!("HTTP/2 with {count} long fields"), sent, vec![asked()]));
    }
    let block = fields_block(&GET.map(|(name, value)| (name.as_bytes(), value)));
    for between in [
        frame(kind::PING, 0, 0, &[0; 8]),
        frame(kind::DATA, 0, 1, b"a"),
        frame(kind::SETTINGS, 0, 0, &[]),
        frame(kind::CONTINUATION, END_HEADERS, 3, &[]),
        headers(3, &GET, true),
    ] {
        let sent = opened(&[frame(kind::HEADERS, END_STREAM, 1, &block), between]);
        cases.push(Case::refused("HTTP/2 frame inside a block of fields".into(), sent));
    }
    cases
}

fn settings_values() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, value, is_wrong) in [
        (2, 2, true),
        (4, 0x8000_0000, true),
        (4, u32::MAX, true),
        (5, 0, true),
        (5, 16_383, true),
        (5, 0x0100_0000, true),
        (8, 2, true),
        (1, 0, false),
        (1, u32::MAX, false),
        (3, 0, false),
        (4, 0, false),
        (6, 0, false),
        (99, 1, false),
        (0, 0, false),
    ] {
        let frames = [settings(&[(name, value)]), headers(1, &GET, true)].concat();
        let sent = opened(&[frames]);
        let what = format!("HTTP/2 setting {name} of {value}");
        cases.push(if is_wrong {
            Case::refused(what, sent)
        } else {
            Case::either(what, sent, vec![asked()])
        });
    }
    cases
}

fn padding() -> Vec<Case> {
    let mut cases = Vec::new();
    let block = fields_block(&GET.map(|(name, value)| (name.as_bytes(), value)));
    for padding in [0_u8, 1, 10, 255] {
        for there in [0_usize, 1, 10, 255] {
            let is_right = usize::from(padding) == there;
            let payload = [&[padding][..], &block, &vec![0; there]].concat();
            let sent = opened(&[frame(kind::HEADERS, END_HEADERS | END_STREAM | 8, 1, &payload)]);
            let name = format!("HTTP/2 fields with padding {padding} of {there}");
            cases.push(if is_right {
                Case::forwarded(name, sent, vec![asked()])
            } else if usize::from(padding) > there + block.len() {
                Case::refused(name, sent)
            } else {
                // The padding length cuts bytes off the field block, so that the block is incomplete or continues.
                // The proxy may refuse the request, or forward it if the remaining fields form one.
                Case::either(name, sent, vec![asked()])
            });
        }
    }
    cases
}
