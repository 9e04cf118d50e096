//! Requests that differ only in their `traceparent`, which is decoded separately from the repeated fields before it.

use leno_h2::{Code, Limits};
use leno_hpack::Token;

use crate::script::*;
use crate::support::{request, run};

/// The fields `GET`, `http`, `/`, and the table entry that [`first`] creates for `:authority: a`.
const REPEATED: [u8; 4] = [0x82, 0x86, 0x84, 0xbf];
/// The value of `traceparent` without its last two digits.
const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-";

fn value(number: u32) -> String {
    format!("{TRACE}{number:02}")
}

/// A request whose `:authority` and `traceparent` enter the table.
fn first() -> Vec<u8> {
    let name = b"traceparent";
    let value = value(0);
    [&[0x82, 0x86, 0x84, 0x41, 1, b'a', 0x40, 11], &name[..], &[55], value.as_bytes()].concat()
}

/// A request whose last field is a literal that does not enter the table. `name` is the index of the field's name.
fn with(name: u8, value: &str) -> Vec<u8> {
    assert_eq!(value.len(), 55);
    [&REPEATED[..], &[0x0f, name - 15, 55], value.as_bytes()].concat()
}

const TRACEPARENT: u8 = 62;

#[test]
fn each_request_has_its_own_trace() {
    run(async {
        let (mut peer, mut accept, _ended) = as_client(&Limits::default(), &[]).await;
        peer.send(HEADERS, END_HEADERS | END_STREAM, 1, &first()).await;
        assert_eq!(accept.accept().await.unwrap().head.len(), 5);
        for number in 1..8 {
            let section = match number {
                5 => REPEATED.to_vec(),
                _ => with(TRACEPARENT, &value(number)),
            };
            peer.send(HEADERS, END_HEADERS | END_STREAM, 1 + 2 * number, &section).await;
            let head = accept.accept().await.unwrap().head;
            let trace = head.find(Token::TRACEPARENT).map(<[u8]>::to_vec);
            assert_eq!(trace, (number != 5).then(|| value(number).into_bytes()));
            assert_eq!(head.find(Token::AUTHORITY), Some(&b"a"[..]));
            assert_eq!(head.len(), if number == 5 { 4 } else { 5 });
        }
    });
}

#[test]
fn what_only_resembles_a_trace_is_checked_as_before() {
    run(async {
        let (mut peer, mut accept, ended) = as_client(&Limits::default(), &[]).await;
        peer.send(HEADERS, END_HEADERS | END_STREAM, 1, &first()).await;
        let mut id = 1;
        for number in 1..4 {
            id += 2;
            let section = with(TRACEPARENT, &value(number));
            peer.send(HEADERS, END_HEADERS | END_STREAM, id, &section).await;
        }
        for _ in 0..4 {
            drop(accept.accept().await.unwrap());
        }
        for id in [1, 3, 5, 7] {
            peer.expect_reset(id, Code::CANCEL).await;
        }
        let wrong = "x".repeat(55);
        for section in [
            // The names are `host` (here it differs from `:authority`), `content-length` and `transfer-encoding`.
            with(38, &wrong),
            with(28, &wrong),
            with(57, &wrong),
            with(TRACEPARENT, &format!(" {}", &wrong[1..])),
            with(TRACEPARENT, &format!("{}\n{}", &wrong[..9], &wrong[10..])),
        ] {
            id += 2;
            peer.send(HEADERS, END_HEADERS | END_STREAM, id, &section).await;
            peer.expect_reset(id, Code::PROTOCOL_ERROR).await;
        }
        // A valid field with another name: `accept`.
        id += 2;
        peer.send(HEADERS, END_HEADERS | END_STREAM, id, &with(19, &wrong)).await;
        let head = accept.accept().await.unwrap().head;
        assert_eq!(head.find(Token::ACCEPT), Some(wrong.as_bytes()));
        peer.expect_reset(id, Code::CANCEL).await;
        // An index beyond the end of the table.
        peer.send(HEADERS, END_HEADERS | END_STREAM, id + 2, &with(99, &wrong)).await;
        peer.expect_goaway(Code::COMPRESSION_ERROR).await;
        assert!(ended.await.unwrap().is_err());
    });
}

#[test]
fn a_trace_beyond_the_limits_of_a_head_is_refused() {
    run(async {
        let limits = Limits { header_fields: 4, ..Limits::default() };
        let (mut peer, mut accept, _ended) = as_client(&limits, &[]).await;
        peer.send(HEADERS, END_HEADERS | END_STREAM, 1, &first()).await;
        let answer = peer.expect(HEADERS, 1).await;
        assert_eq!(peer.fields(&answer)[0].1, "431");
        for id in [3, 5, 7] {
            peer.send(HEADERS, END_HEADERS | END_STREAM, id, &REPEATED).await;
            drop(accept.accept().await.unwrap());
            peer.expect_reset(id, Code::CANCEL).await;
        }
        peer.send(HEADERS, END_HEADERS | END_STREAM, 9, &with(TRACEPARENT, &value(1))).await;
        let answer = peer.expect(HEADERS, 9).await;
        assert_eq!(peer.fields(&answer)[0].1, "431");
    });
}

#[test]
fn our_client_repeats_what_is_before_a_trace() {
    run(async {
        let (mut peer, client, _ended) = as_server(&Limits::default(), &[]).await;
        let (mut streams, mut lengths) = (Vec::new(), Vec::new());
        for number in 0..6 {
            let mut head = request("GET", "/");
            head.push(b"leno-h1", b"1.1 T");
            head.push(b"traceparent", value(number).as_bytes());
            streams.push(client.open(&head, true).unwrap());
            let frame = peer.expect(HEADERS, 1 + 2 * number).await;
            let fields = peer.fields(&frame);
            let wanted: Vec<_> = head.iter().map(|field| (field.name(), field.value())).collect();
            let got: Vec<_> =
                fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
            assert_eq!(got, wanted);
            lengths.push(frame.payload.len());
        }
        // Five fields as an index of one byte each, `traceparent` as an index of two bytes, one byte for the length
        // of the value, and the value.
        assert_eq!(lengths[1..], [5 + 2 + 1 + 55; 5]);
    });
}
