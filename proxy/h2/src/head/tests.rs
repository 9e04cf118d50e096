//! Tests of the checks of field sections.

use super::*;

const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a")];

fn raw(fields: &[(&str, &str)]) -> Block {
    // The fields pass through the decoder, which keeps them in the order in which they were sent.
    let mut section = vec![];
    for (name, value) in fields {
        section.push(0);
        section.push(name.len() as u8);
        section.extend_from_slice(name.as_bytes());
        section.push(value.len() as u8);
        section.extend_from_slice(value.as_bytes());
    }
    let mut block = Block::new();
    let limits = leno_hpack::Limits { list_bytes: 65536, fields: 100 };
    let outcome = leno_hpack::Decoder::new(4096).decode(&section, &mut block, limits);
    assert_eq!(outcome, Ok(leno_hpack::Outcome::Complete));
    block
}

fn request(fields: &[(&str, &str)]) -> Result<Facts, &'static str> {
    check_request(&raw(fields), true)
}

fn get_with(fields: &[(&str, &str)]) -> Result<Facts, &'static str> {
    request(&[&GET[..], fields].concat())
}

#[test]
fn usual_requests_pass() {
    assert!(get_with(&[("te", "trailers"), ("host", "A"), ("x-y_z", "\u{e9}\t!")]).is_ok());
    assert!(request(&[(":method", "CONNECT"), (":authority", "a:1")]).is_ok());
    let websocket = [(":method", "CONNECT"), (":protocol", "websocket")];
    assert!(request(&[&websocket[..], &GET[1..]].concat()).is_ok());
    let options = [(":method", "OPTIONS"), (":scheme", "https"), (":path", "*")];
    assert!(request(&options).is_ok());
    let head = request(&[(":method", "HEAD"), (":scheme", "http"), (":path", "/?a")]).unwrap();
    assert!(head.is_head);
    assert_eq!(get_with(&[("content-length", "12")]).unwrap().content_length, Some(12));
}

#[test]
fn malformed_requests_are_refused() {
    let missing = |i: usize| {
        let mut fields = GET.to_vec();
        fields.remove(i);
        request(&fields).is_err()
    };
    assert!(missing(0) && missing(1) && missing(2));
    for fields in [
        &[("connection", "close")][..],
        &[("transfer-encoding", "chunked")],
        &[("upgrade", "h2c")],
        &[("keep-alive", "5")],
        &[("proxy-connection", "x")],
        &[("te", "gzip")],
        &[("X", "upper")],
        &[("", "empty")],
        &[("a b", "space")],
        &[("a", "cr\r\nlf: x")],
        &[("a", "nul\0")],
        &[("a", " space")],
        &[("a", "space ")],
        &[("host", "b")],
        &[("host", "a"), ("host", "a")],
        &[("content-length", "1"), ("content-length", "2")],
        &[("content-length", "+1")],
        &[("content-length", "")],
        &[("content-length", "99999999999999999999")],
        &[("x", "y"), (":path", "/")],
        &[(":path", "/")],
        &[(":status", "200")],
        &[(":unknown", "200")],
        &[(":protocol", "websocket")],
    ] {
        assert!(get_with(fields).is_err(), "{fields:?}");
    }
    for (at, value) in [
        (0, "G T"),
        (0, ""),
        (1, ""),
        (1, "ht tp"),
        (2, ""),
        (2, "x"),
        (2, "*"),
        (2, "/a b"),
        (2, "/a#b"),
        (3, "a@b"),
        (3, "a/b"),
        (3, ""),
    ] {
        let mut fields = GET.to_vec();
        fields[at].1 = value;
        assert!(request(&fields).is_err(), "{fields:?}");
    }
    assert!(request(&[(":method", "CONNECT"), (":path", "/"), (":authority", "a")]).is_err());
    assert!(check_request(&raw(&[(":method", "CONNECT"), (":protocol", "x")]), false).is_err());
}

#[test]
fn responses_and_trailers() {
    assert_eq!(check_response(&raw(&[(":status", "204")])).unwrap().status, 204);
    for bad in ["", "20", "2000", "2x0", "099", "101"] {
        assert!(check_response(&raw(&[(":status", bad)])).is_err(), "{bad}");
    }
    assert!(check_response(&raw(&[("a", "b")])).is_err());
    assert!(check_response(&raw(&[(":status", "200"), (":path", "/")])).is_err());
    assert!(check_trailers(&raw(&[("grpc-status", "0")])).is_ok());
    assert!(check_trailers(&raw(&[(":status", "200")])).is_err());
    assert!(check_trailers(&raw(&[("connection", "x")])).is_err());
}

#[test]
fn a_head_returns_to_the_pool() {
    let free = || FREE.with(|free| free.borrow().len());
    let before = free();
    let head: Head = GET.into_iter().collect();
    drop(head);
    assert_eq!(free(), before.max(1));
    assert!(Head::new().is_empty());
}
