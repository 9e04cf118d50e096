//! Tests the rules of RFC 9113 about states, framing, settings, flow control and endings, frame by frame.

use std::time::Duration;

use leno_h2::{Code, Limits, OpenError, Piece, ResetBy};

use crate::script::*;
use crate::support::{echo, request, response, run};
use tokio::task::spawn_local;

/// Sends `bytes` as the first bytes of a connection, and expects the connection to end with `code`.
async fn ends_with(code: Code, bytes: &[u8]) {
    let (mut peer, accept, ended) = as_client(&Limits::default(), &[]).await;
    spawn_local(echo(accept));
    peer.raw(bytes).await;
    peer.expect_goaway(code).await;
    peer.expect_end().await;
    drop(peer);
    assert_eq!(ended.await.unwrap().unwrap_err().code, code);
}

#[test]
fn broken_frames_end_the_connection() {
    run(async {
        use Code as C;
        for (code, bytes) in [
            (C::FRAME_SIZE_ERROR, frame(DATA, 0, 1, &[0; 16_385])),
            (C::PROTOCOL_ERROR, frame(DATA, 0, 0, b"x")),
            (C::PROTOCOL_ERROR, frame(DATA, 0, 1, b"x")),
            (C::PROTOCOL_ERROR, frame(HEADERS, END_HEADERS, 0, b"")),
            (C::PROTOCOL_ERROR, frame(HEADERS, END_HEADERS, 2, b"\x82")),
            (C::PROTOCOL_ERROR, frame(HEADERS, END_HEADERS | PADDED, 1, b"\x05\x82")),
            (C::COMPRESSION_ERROR, frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff")),
            (C::PROTOCOL_ERROR, frame(PRIORITY, 0, 0, &[0; 5])),
            (C::FRAME_SIZE_ERROR, frame(PRIORITY, 0, 1, &[0; 4])),
            (C::PROTOCOL_ERROR, frame(RST_STREAM, 0, 0, &[0; 4])),
            (C::PROTOCOL_ERROR, frame(RST_STREAM, 0, 1, &[0; 4])),
            (C::FRAME_SIZE_ERROR, frame(RST_STREAM, 0, 1, &[0; 3])),
            (C::PROTOCOL_ERROR, frame(SETTINGS, 0, 1, &[])),
            (C::FRAME_SIZE_ERROR, frame(SETTINGS, 0, 0, &[0; 5])),
            (C::FRAME_SIZE_ERROR, frame(SETTINGS, ACK, 0, &[0; 6])),
            (C::FLOW_CONTROL_ERROR, frame(SETTINGS, 0, 0, &setting(4, 1 << 31))),
            (C::PROTOCOL_ERROR, frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2])),
            (C::PROTOCOL_ERROR, frame(PING, 0, 1, &[0; 8])),
            (C::FRAME_SIZE_ERROR, frame(PING, 0, 0, &[0; 7])),
            (C::PROTOCOL_ERROR, frame(GOAWAY, 0, 1, &[0; 8])),
            (C::FRAME_SIZE_ERROR, frame(GOAWAY, 0, 0, &[0; 7])),
            (C::FRAME_SIZE_ERROR, frame(WINDOW_UPDATE, 0, 0, &[0; 3])),
            (C::PROTOCOL_ERROR, frame(WINDOW_UPDATE, 0, 0, &[0; 4])),
            (C::PROTOCOL_ERROR, frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])),
            (C::FLOW_CONTROL_ERROR, frame(WINDOW_UPDATE, 0, 0, &[0x7f, 255, 255, 255])),
            (C::PROTOCOL_ERROR, frame(CONTINUATION, END_HEADERS, 1, &[])),
        ] {
            ends_with(code, &bytes).await;
        }
    });
}

#[test]
fn only_continuation_may_follow_an_open_field_section() {
    run(async {
        let open = frame(HEADERS, END_STREAM, 1, b"\x82");
        for next in [
            frame(PING, 0, 0, &[0; 8]),
            frame(CONTINUATION, END_HEADERS, 3, b""),
            frame(HEADERS, END_HEADERS, 1, b""),
            frame(0xee, 0, 1, b""),
        ] {
            ends_with(Code::PROTOCOL_ERROR, &[&open[..], &next].concat()).await;
        }
    });
}

#[test]
fn the_preface_is_needed_and_settings_come_first() {
    run(async {
        let (io, _accept, ended) = crate::support::server(&crate::support::limits());
        let mut io = io;
        tokio::io::AsyncWriteExt::write_all(&mut io, b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        drop(io);
        assert_eq!(ended.await.unwrap().unwrap_err().code, Code::PROTOCOL_ERROR);
        let (mut io, _accept, ended) = crate::support::server(&crate::support::limits());
        let bytes = [PREFACE, &frame(PING, 0, 0, &[0; 8])].concat();
        tokio::io::AsyncWriteExt::write_all(&mut io, &bytes).await.unwrap();
        drop(io);
        assert_eq!(ended.await.unwrap().unwrap_err().code, Code::PROTOCOL_ERROR);
    });
}

#[test]
fn identifiers_only_grow() {
    run(async {
        let (mut peer, accept, _ended) = as_client(&Limits::default(), &[]).await;
        spawn_local(echo(accept));
        peer.get(5).await;
        peer.expect(HEADERS, 5).await;
        peer.expect(DATA, 5).await;
        peer.get(3).await;
        peer.expect_goaway(Code::PROTOCOL_ERROR).await;
    });
}

#[test]
fn identifiers_are_used_once() {
    run(async {
        let (mut peer, accept, _ended) = as_client(&Limits::default(), &[]).await;
        spawn_local(echo(accept));
        peer.get(1).await;
        peer.expect(HEADERS, 1).await;
        peer.expect(DATA, 1).await;
        peer.get(1).await;
        peer.expect_goaway(Code::STREAM_CLOSED).await;
    });
}

#[test]
fn frames_for_a_stream_that_is_half_closed_or_closed() {
    run(async {
        let (mut peer, mut accept, _ended) = as_client(&Limits::default(), &[]).await;
        peer.get(1).await;
        let held = accept.accept().await.unwrap();
        peer.send(DATA, 0, 1, b"x").await;
        peer.expect_reset(1, Code::STREAM_CLOSED).await;
        drop(held);
        // The peer may not have seen our reset, so this is ignored.
        peer.send(DATA, 0, 1, b"x").await;
        peer.send(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]).await;
        peer.get(3).await;
        let held = accept.accept().await.unwrap();
        peer.send(RST_STREAM, 0, 3, &Code::CANCEL.0.to_be_bytes()).await;
        peer.send(DATA, 0, 3, b"x").await;
        peer.expect_reset(3, Code::STREAM_CLOSED).await;
        peer.expect_alive().await;
        let reset = held.stream.reset_reason().unwrap();
        assert_eq!((reset.by, reset.code, reset.unprocessed), (ResetBy::Peer, Code::CANCEL, false));
        drop(held);
        // This is ignored, like every frame after our own reset.
        peer.send(DATA, 0, 3, b"x").await;
        peer.expect_alive().await;
    });
}

#[test]
fn a_body_that_is_dropped_with_its_stream_does_not_look_complete() {
    run(async {
        let (mut peer, mut accept, _ended) = as_client(&Limits::default(), &[]).await;
        let section = peer.section(&[&[(":method", "POST")], &GET[1..]].concat());
        for (id, end) in
            [(1, frame(RST_STREAM, 0, 1, &Code::CANCEL.0.to_be_bytes())), (3, b"?".repeat(9))]
        {
            peer.send(HEADERS, END_HEADERS, id, &section).await;
            let mut request = accept.accept().await.unwrap();
            // Both frames are received before the test reads the body.
            let body = frame(DATA, END_STREAM, id, b"hello");
            peer.raw(&[body, end].concat()).await;
            while request.stream.reset_reason().is_none() {
                tokio::task::yield_now().await;
            }
            assert!(request.stream.data().await.is_err(), "stream {id}");
        }
    });
}

#[test]
fn padding_and_priority_are_taken_off() {
    run(async {
        let (mut peer, mut accept, _ended) = as_client(&Limits::default(), &[]).await;
        let post = [&[(":method", "POST")], &GET[1..]].concat();
        let section = peer.section(&post);
        let payload = [&[3, 0, 0, 0, 9, 200][..], &section, &[0; 3]].concat();
        peer.send(HEADERS, END_HEADERS | PADDED | 0x20, 1, &payload).await;
        peer.send(DATA, PADDED | END_STREAM, 1, b"\x04body\0\0\0\0").await;
        let mut request = accept.accept().await.unwrap();
        assert_eq!(request.head.get(b":method"), Some(&b"POST"[..]));
        assert_eq!(*request.stream.data().await.unwrap().unwrap(), *b"body");
        assert!(request.stream.data().await.unwrap().is_none());
        // The stream depends on itself.
        let payload = [&3u32.to_be_bytes()[..], &[0], &section].concat();
        peer.send(HEADERS, END_HEADERS | 0x20, 3, &payload).await;
        peer.expect_reset(3, Code::PROTOCOL_ERROR).await;
    });
}

#[test]
fn a_field_section_in_many_frames() {
    run(async {
        let (mut peer, mut accept, _ended) = as_client(&Limits::default(), &[]).await;
        let value = "y".repeat(500);
        let section = peer.section(&[&GET[..], &[("x-long", &value)]].concat());
        let (first, rest) = section.split_at(3);
        let (second, third) = rest.split_at(100);
        peer.send(HEADERS, END_STREAM, 1, first).await;
        peer.send(CONTINUATION, 0, 1, second).await;
        peer.send(CONTINUATION, END_HEADERS, 1, third).await;
        let request = accept.accept().await.unwrap();
        assert!(request.ended);
        assert_eq!(request.head.get(b"x-long").unwrap().len(), 500);
    });
}

#[test]
fn a_large_head_of_ours_is_split() {
    run(async {
        let (mut peer, client, _ended) = as_server(&Limits::default(), &[]).await;
        let mut head = request("GET", "/");
        let mut value = vec![];
        for i in 0u32..6000 {
            value.extend(i.wrapping_mul(2_654_435_761).to_string().bytes());
        }
        head.push(b"x-long", &value[..56_000]);
        let _stream = client.open(&head, true).unwrap();
        let mut all = peer.expect(HEADERS, 1).await;
        assert_eq!(all.flags, END_STREAM);
        let second = peer.expect(CONTINUATION, 1).await;
        assert_eq!(second.flags & END_HEADERS, 0);
        all.payload.extend(second.payload);
        let third = peer.expect(CONTINUATION, 1).await;
        assert_eq!(third.flags, END_HEADERS);
        all.payload.extend(third.payload);
        let fields = peer.fields(&all);
        assert_eq!(fields.last().unwrap().1.as_bytes(), &value[..56_000]);
    });
}

#[test]
fn malformed_messages_reset_their_stream_alone() {
    run(async {
        let (mut peer, accept, _ended) = as_client(&Limits::default(), &[]).await;
        spawn_local(echo(accept));
        let mut id = 1;
        for fields in [
            &[("Upper", "x")][..],
            &[("connection", "close")],
            &[("te", "gzip")],
            &[("a", "b\r\nc: d")],
            &[("content-length", "5")],
        ] {
            peer.headers(id, true, &[&GET[..], fields].concat()).await;
            peer.expect_reset(id, Code::PROTOCOL_ERROR).await;
            id += 2;
        }
        peer.headers(id, true, &GET[1..]).await;
        peer.expect_reset(id, Code::PROTOCOL_ERROR).await;
        // A body that is longer or shorter than content-length, and trailers that do not end the stream.
        let post = [&[(":method", "POST")], &GET[1..], &[("content-length", "4")]].concat();
        for (kind, flags, payload) in
            [(DATA, 0, &b"12345"[..]), (DATA, END_STREAM, b"123"), (HEADERS, END_HEADERS, b"")]
        {
            id += 2;
            peer.headers(id, false, &post).await;
            peer.expect(HEADERS, id).await;
            peer.send(kind, flags, id, payload).await;
            peer.expect_reset(id, Code::PROTOCOL_ERROR).await;
        }
        peer.expect_alive().await;
    });
}

#[test]
fn malformed_responses_reset_their_stream_alone() {
    run(async {
        let (mut peer, client, _ended) = as_server(&Limits::default(), &[]).await;
        for fields in [&[("a", "b")][..], &[(":status", "101")], &[(":status", "2")]] {
            let mut stream = client.open(&request("GET", "/"), true).unwrap();
            let id = stream.id();
            peer.expect(HEADERS, id).await;
            peer.headers(id, false, fields).await;
            peer.expect_reset(id, Code::PROTOCOL_ERROR).await;
            let reset = stream.head().await.unwrap_err();
            assert!(!reset.unprocessed);
        }
        // A response to HEAD has no body, but may have a content-length.
        let mut stream = client.open(&request("HEAD", "/"), true).unwrap();
        let id = stream.id();
        peer.expect(HEADERS, id).await;
        peer.headers(id, true, &[(":status", "200"), ("content-length", "9")]).await;
        assert_eq!(stream.head().await.unwrap().status(), Some(200));
        assert!(stream.data().await.unwrap().is_none());
    });
}

/// A client ignores a length in a response that grants a tunnel (RFC 9110 section 9.3.6).
#[test]
fn a_length_does_not_frame_a_tunnel() {
    run(async {
        let (mut peer, client, _ended) = as_server(&Limits::default(), &[]).await;
        let connect = [(":method", "CONNECT"), (":authority", "a:1")].into_iter().collect();
        let mut stream = client.open(&connect, false).unwrap();
        peer.expect(HEADERS, 1).await;
        peer.headers(1, false, &[(":status", "200"), ("content-length", "3"), ("x", "y")]).await;
        peer.send(DATA, 0, 1, b"more than three").await;
        let head = stream.head().await.unwrap();
        assert_eq!((head.position(b"content-length"), head.position(b"x")), (None, Some(1)));
        assert_eq!(&stream.data().await.unwrap().unwrap()[..], b"more than three");
        // A response that refuses the tunnel has content like any other.
        let mut stream = client.open(&connect, false).unwrap();
        peer.expect(HEADERS, 3).await;
        peer.headers(3, false, &[(":status", "403"), ("content-length", "3")]).await;
        peer.send(DATA, END_STREAM, 3, b"more than three").await;
        assert_eq!(stream.head().await.unwrap().status(), Some(403));
        assert!(stream.data().await.is_err());
    });
}

#[test]
fn interim_heads_come_before_the_final_one() {
    run(async {
        let (mut peer, client, _ended) = as_server(&Limits::default(), &[]).await;
        let mut stream = client.open(&request("GET", "/"), true).unwrap();
        peer.expect(HEADERS, 1).await;
        peer.headers(1, false, &[(":status", "103"), ("link", "x")]).await;
        peer.headers(1, true, &[(":status", "204")]).await;
        assert_eq!(stream.head().await.unwrap().status(), Some(103));
        assert_eq!(stream.head().await.unwrap().status(), Some(204));
        assert!(stream.data().await.unwrap().is_none());
        // We send interim heads as well.
        let (mut peer, mut accept, _ended) = as_client(&Limits::default(), &[]).await;
        peer.get(1).await;
        let mut request = accept.accept().await.unwrap();
        assert!(request.stream.send_head(&response("103"), false));
        assert!(request.stream.send_head(&response("200"), true));
        assert!(!request.stream.send_head(&response("200"), true));
        assert_eq!(peer.expect(HEADERS, 1).await.flags, END_HEADERS);
        assert_eq!(peer.expect(HEADERS, 1).await.flags, END_HEADERS | END_STREAM);
    });
}

#[test]
fn both_windows_hold_data_back() {
    run(async {
        let window = setting(4, 10);
        let (mut peer, mut accept, _ended) = as_client(&Limits::default(), &window).await;
        peer.get(1).await;
        let mut request = accept.accept().await.unwrap();
        request.stream.send_head(&response("200"), false);
        request.stream.send_data(&b"0123456789abcdef"[..], true);
        peer.expect(HEADERS, 1).await;
        let part = peer.expect(DATA, 1).await;
        assert_eq!((&part.payload[..], part.flags), (&b"0123456789"[..], 0));
        peer.expect_alive().await;
        peer.send(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 4]).await;
        assert_eq!(peer.expect(DATA, 1).await.payload, b"abcd");
        // A larger initial window applies to open streams too (RFC 9113 section 6.9.2).
        peer.send(SETTINGS, 0, 0, &setting(4, 11)).await;
        assert_eq!(peer.expect(DATA, 1).await.payload, b"e");
        // A smaller initial window may make the windows of open streams negative.
        peer.send(SETTINGS, 0, 0, &setting(4, 0)).await;
        peer.send(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 11]).await;
        peer.expect_alive().await;
        peer.send(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]).await;
        let last = peer.expect(DATA, 1).await;
        assert_eq!((&last.payload[..], last.flags), (&b"f"[..], END_STREAM));
    });
}

#[test]
fn the_connections_window_is_shared() {
    run(async {
        let window = setting(4, 1 << 20);
        let (mut peer, mut accept, _ended) = as_client(&Limits::default(), &window).await;
        let mut streams = vec![];
        for id in [1, 3] {
            peer.get(id).await;
            let mut request = accept.accept().await.unwrap();
            request.stream.send_head(&response("200"), false);
            request.stream.send_data(vec![0; 50_000], true);
            streams.push(request.stream);
        }
        let mut got = [0; 2];
        while got[0] + got[1] < 65_535 {
            let frame = peer.next().await.unwrap();
            if frame.kind == DATA {
                got[(frame.id / 2) as usize] += frame.payload.len();
            }
        }
        assert_eq!(got, [50_000, 15_535]);
        peer.expect_alive().await;
        peer.send(WINDOW_UPDATE, 0, 0, &100_000u32.to_be_bytes()).await;
        while got[1] < 50_000 {
            got[1] += peer.expect(DATA, 3).await.payload.len();
        }
        peer.expect_alive().await;
    });
}

#[test]
fn credit_is_given_late_and_in_bulk() {
    run(async {
        let limits = Limits::default();
        let (mut peer, mut accept, _ended) = as_client(&limits, &[]).await;
        peer.post(1).await;
        let mut request = accept.accept().await.unwrap();
        let half = limits.stream_window as usize / 2;
        let read = async |peer: &mut Peer, stream: &mut leno_h2::Stream, len: usize| {
            let mut left = len;
            while left > 0 {
                let part = left.min(16_384);
                peer.send(DATA, 0, 1, &vec![0; part]).await;
                let mut got = 0;
                while got < part {
                    got += stream.data().await.unwrap().unwrap().len();
                }
                left -= part;
            }
        };
        read(&mut peer, &mut request.stream, half).await;
        peer.expect_alive().await;
        request.stream.release(half - 1);
        peer.expect_alive().await;
        request.stream.release(1);
        let update = peer.expect(WINDOW_UPDATE, 1).await;
        let growth = (limits.grown_window - limits.stream_window) as usize;
        assert_eq!(update.number(0) as usize, half + growth);
    });
}

#[test]
fn a_stalled_reader_does_not_take_the_connections_window() {
    run(async {
        let limits =
            Limits { stream_window: 65_535, connection_window: 65_535, ..Limits::default() };
        let (mut peer, mut accept, _ended) = as_client(&limits, &[]).await;
        peer.post(1).await;
        let _stalled = accept.accept().await.unwrap();
        for _ in 0..4 {
            peer.send(DATA, 0, 1, &[0; 16_000]).await;
        }
        let update = loop {
            let frame = peer.any().await.unwrap();
            if frame.kind == WINDOW_UPDATE {
                break frame;
            }
        };
        assert_eq!(update.id, 0);
        peer.expect_alive().await;
    });
}

#[test]
fn streams_are_opened_within_the_servers_bound() {
    run(async {
        let (mut peer, client, _ended) = as_server(&Limits::default(), &setting(3, 1)).await;
        let first = client.open(&request("GET", "/"), true).unwrap();
        assert_eq!(client.open(&request("GET", "/"), true).unwrap_err(), OpenError::Full);
        let waiting = spawn_local({
            let client = client.clone();
            async move {
                client.ready().await.unwrap();
                client.open(&request("GET", "/2"), true).unwrap()
            }
        });
        peer.expect(HEADERS, 1).await;
        peer.headers(1, true, &[(":status", "204")]).await;
        let second = waiting.await.unwrap();
        assert_eq!(second.id(), 3);
        peer.expect(HEADERS, 3).await;
        drop(first);
        drop(second);
        peer.expect_reset(3, Code::CANCEL).await;
        assert_eq!(client.streams(), 0);
    });
}

#[test]
fn a_goaway_tells_which_streams_can_be_retried() {
    run(async {
        let (mut peer, client, ended) = as_server(&Limits::default(), &[]).await;
        let mut first = client.open(&request("GET", "/"), true).unwrap();
        let mut second = client.open(&request("GET", "/"), true).unwrap();
        peer.expect(HEADERS, 1).await;
        peer.expect(HEADERS, 3).await;
        peer.send(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]).await;
        let reset = second.head().await.unwrap_err();
        assert!(reset.unprocessed && reset.by == ResetBy::Connection);
        assert!(!client.is_open());
        assert_eq!(client.open(&request("GET", "/"), true).unwrap_err(), OpenError::Closed);
        peer.headers(1, true, &[(":status", "200")]).await;
        assert_eq!(first.head().await.unwrap().status(), Some(200));
        peer.expect_goaway(Code::NO_ERROR).await;
        drop(peer);
        ended.await.unwrap().unwrap();
    });
}

#[test]
fn a_head_that_never_left_can_be_retried() {
    run(async {
        let (peer, client, _ended) = as_server(&Limits::default(), &[]).await;
        let mut sent = client.open(&request("GET", "/"), true).unwrap();
        let mut peer = peer;
        peer.expect(HEADERS, 1).await;
        let mut unsent = client.open(&request("GET", "/"), true).unwrap();
        drop(peer);
        assert!(!sent.head().await.unwrap_err().unprocessed);
        assert!(unsent.head().await.unwrap_err().unprocessed);
    });
}

#[test]
fn a_drain_says_goaway_twice_and_loses_nothing() {
    run(async {
        let (mut peer, mut accept, ended) = as_client(&Limits::default(), &[]).await;
        peer.get(1).await;
        let mut first = accept.accept().await.unwrap();
        accept.drain();
        assert_eq!(peer.expect_goaway(Code::NO_ERROR).await, 0x7fff_ffff);
        let ping = peer.any().await.unwrap();
        assert_eq!((ping.kind, ping.flags), (PING, 0));
        // A request that the client sent before it saw the GOAWAY.
        peer.get(3).await;
        let mut second = accept.accept().await.unwrap();
        peer.send(PING, ACK, 0, &ping.payload).await;
        assert_eq!(peer.expect_goaway(Code::NO_ERROR).await, 3);
        peer.get(5).await;
        peer.expect_reset(5, Code::REFUSED_STREAM).await;
        first.stream.send_head(&response("200"), true);
        second.stream.send_head(&response("200"), true);
        peer.expect(HEADERS, 1).await;
        peer.expect(HEADERS, 3).await;
        drop((first, second));
        assert!(accept.accept().await.is_none());
        peer.expect_goaway(Code::NO_ERROR).await;
        drop(peer);
        ended.await.unwrap().unwrap();
    });
}

#[test]
fn a_drain_does_not_wait_for_a_ping_that_is_not_answered() {
    run(async {
        let (mut peer, accept, ended) = as_client(&Limits::default(), &[]).await;
        peer.expect_alive().await;
        accept.drain();
        peer.expect_goaway(Code::NO_ERROR).await;
        peer.expect_goaway(Code::NO_ERROR).await;
        while peer.any().await.is_some() {}
        drop(peer);
        ended.await.unwrap().unwrap();
    });
}

#[test]
fn what_is_dropped_is_reset() {
    run(async {
        let (mut peer, mut accept, _ended) = as_client(&Limits::default(), &[]).await;
        peer.post(1).await;
        drop(accept.accept().await.unwrap());
        peer.expect_reset(1, Code::CANCEL).await;
        // The response is complete before the end of the request.
        peer.post(3).await;
        let mut request = accept.accept().await.unwrap();
        request.stream.send_head(&response("413"), true);
        drop(request);
        peer.expect(HEADERS, 3).await;
        peer.expect_reset(3, Code::NO_ERROR).await;
        // All queued bytes are still sent.
        peer.post(5).await;
        let mut request = accept.accept().await.unwrap();
        request.stream.send_head(&response("413"), false);
        request.stream.send_data(Piece::from(vec![0; 70_000]), true);
        drop(request);
        peer.expect(HEADERS, 5).await;
        let mut got = 0;
        while got < 65_535 {
            got += peer.expect(DATA, 5).await.payload.len();
        }
        for id in [0u32, 5] {
            peer.send(WINDOW_UPDATE, 0, id, &[0, 0, 255, 255]).await;
        }
        assert_eq!(peer.expect(DATA, 5).await.flags, END_STREAM);
        peer.expect_reset(5, Code::NO_ERROR).await;
    });
}

#[test]
fn an_idle_connection_is_closed() {
    run(async {
        let limits = Limits { idle: Duration::from_secs(600), ..Limits::default() };
        let (mut peer, mut accept, ended) = as_client(&limits, &[]).await;
        peer.expect_alive().await;
        let start = tokio::time::Instant::now();
        assert!(accept.accept().await.is_none());
        assert!(
            start.elapsed() >= limits.idle
                && start.elapsed() < limits.idle * 2 + Duration::from_secs(1)
        );
        drop(peer);
        ended.await.unwrap().unwrap();
    });
}

#[test]
fn a_late_answer_to_what_we_reset_long_ago_harms_no_other_stream() {
    run(async {
        let (mut peer, client, _ended) = as_server(&Limits::default(), &[]).await;
        const MANY: u32 = 300;
        for nth in 0..MANY {
            let stream = client.open(&request("GET", "/"), true).unwrap();
            peer.expect(HEADERS, 2 * nth + 1).await;
            drop(stream);
            peer.expect_reset(2 * nth + 1, Code::CANCEL).await;
        }
        let mut other = client.open(&request("GET", "/"), true).unwrap();
        peer.expect(HEADERS, 2 * MANY + 1).await;
        for nth in 0..MANY {
            peer.headers(2 * nth + 1, false, &[(":status", "200")]).await;
            peer.send(DATA, END_STREAM, 2 * nth + 1, b"late").await;
        }
        peer.headers(2 * MANY + 1, true, &[(":status", "204")]).await;
        assert_eq!(other.head().await.unwrap().status(), Some(204));
    });
}
