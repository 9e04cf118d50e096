//! Each limit against abuse: when a peer exceeds it, the connection or the stream ends, and the
//! event is counted under its name.

use std::time::Duration;

use leno_h2::{Abuse, Code, Limits};
use tokio::task::spawn_local;

use crate::script::*;
use crate::support::{echo, request, response, run};

#[test]
fn rapid_reset() {
    run(async {
        let limits = Limits { resets: 20, ..Limits::default() };
        let (mut peer, accept, ended) = as_client(&limits, &[]).await;
        spawn_local(async move {
            let mut accept = accept;
            while let Some(request) = accept.accept().await {
                spawn_local(async move {
                    let mut request = request;
                    request.stream.closed().await
                });
            }
        });
        for i in 0..30 {
            peer.get(i * 2 + 1).await;
            peer.send(RST_STREAM, 0, i * 2 + 1, &Code::CANCEL.0.to_be_bytes()).await;
        }
        peer.expect_goaway(Code::ENHANCE_YOUR_CALM).await;
        drop(peer);
        ended_by(ended, Abuse::RapidReset).await;
    });
}

#[test]
fn streams_that_we_must_reset() {
    run(async {
        let limits = Limits { resets: 20, ..Limits::default() };
        let (mut peer, accept, ended) = as_client(&limits, &[]).await;
        spawn_local(echo(accept));
        for i in 0..30 {
            peer.get(i * 2 + 1).await;
            peer.send(WINDOW_UPDATE, 0, i * 2 + 1, &[0; 4]).await;
        }
        while peer.next().await.is_some_and(|frame| frame.kind != GOAWAY) {}
        drop(peer);
        ended_by(ended, Abuse::StreamErrors).await;
    });
}

#[test]
fn continuation_flood() {
    run(async {
        let (mut peer, _accept, ended) = as_client(&Limits::default(), &[]).await;
        peer.send(HEADERS, 0, 1, b"\x82").await;
        for _ in 0..20 {
            peer.send(CONTINUATION, 0, 1, b"").await;
        }
        peer.expect_goaway(Code::ENHANCE_YOUR_CALM).await;
        drop(peer);
        ended_by(ended, Abuse::ContinuationFlood).await;
        let limits = Limits { header_list_bytes: 1000, ..Limits::default() };
        let (mut peer, _accept, ended) = as_client(&limits, &[]).await;
        peer.send(HEADERS, 0, 1, b"\x82").await;
        peer.send(CONTINUATION, 0, 1, &[0x82; 2000]).await;
        peer.expect_goaway(Code::ENHANCE_YOUR_CALM).await;
        drop(peer);
        assert_eq!(ended.await.unwrap().unwrap_err().abuse, Some(Abuse::ContinuationFlood));
    });
}

#[test]
fn frames_that_carry_nothing() {
    run(async {
        let limits = Limits { empty_frames: 100, ..Limits::default() };
        for (abuse, kind, id, payload) in [
            (Abuse::SettingsFlood, SETTINGS, 0, &[][..]),
            (Abuse::PingFlood, PING, 0, &[0; 8]),
            (Abuse::EmptyFrames, DATA, 1, &[]),
            (Abuse::EmptyFrames, PRIORITY, 9, &[0; 5]),
            (Abuse::EmptyFrames, WINDOW_UPDATE, 0, &[0, 0, 0, 1]),
            (Abuse::EmptyFrames, WINDOW_UPDATE, 1, &[0, 0, 0, 1]),
            (Abuse::EmptyFrames, 0xee, 0, b"?"),
        ] {
            let (mut peer, mut accept, ended) = as_client(&limits, &[]).await;
            peer.post(1).await;
            let _held = accept.accept().await.unwrap();
            for _ in 0..110 {
                peer.send(kind, 0, id, payload).await;
            }
            loop {
                let frame = peer.next().await.unwrap();
                if frame.kind == GOAWAY {
                    assert_eq!(Code(frame.number(4)), Code::ENHANCE_YOUR_CALM);
                    break;
                }
            }
            drop(peer);
            let error = ended.await.unwrap().unwrap_err();
            assert_eq!(error.abuse, Some(abuse));
            assert!(counted(abuse) > 0);
        }
    });
}

#[test]
fn replies_that_are_not_read() {
    run(async {
        let (mut peer, _accept, ended) = as_client(&Limits::default(), &[]).await;
        // These PINGs and their replies have 17 bytes each, 150 KB in all. The pipe holds 64 KiB of replies, and our
        // limit for queued replies is 64 KiB, too.
        for _ in 0..9000 {
            peer.send(PING, 0, 0, &[0; 8]).await;
        }
        drop(peer);
        ended_by(ended, Abuse::UnreadReplies).await;
    });
}

#[test]
fn windows_past_their_bound() {
    run(async {
        let (mut peer, mut accept, ended) = as_client(&Limits::default(), &[]).await;
        peer.post(1).await;
        let _held = accept.accept().await.unwrap();
        peer.send(WINDOW_UPDATE, 0, 1, &[0x7f, 255, 255, 255]).await;
        peer.expect_reset(1, Code::FLOW_CONTROL_ERROR).await;
        assert_eq!(counted(Abuse::WindowOverflow), 1);
        peer.send(WINDOW_UPDATE, 0, 0, &[0x7f, 255, 255, 255]).await;
        peer.expect_goaway(Code::FLOW_CONTROL_ERROR).await;
        drop(peer);
        assert_eq!(ended.await.unwrap().unwrap_err().abuse, Some(Abuse::WindowOverflow));
    });
}

#[test]
fn more_data_than_the_windows_allow() {
    run(async {
        let limits = Limits { stream_window: 65_535, ..Limits::default() };
        let (mut peer, mut accept, _ended) = as_client(&limits, &[]).await;
        peer.post(1).await;
        let _held = accept.accept().await.unwrap();
        for _ in 0..5 {
            peer.send(DATA, 0, 1, &[0; 16_384]).await;
        }
        peer.expect_reset(1, Code::FLOW_CONTROL_ERROR).await;
        let limits = Limits { connection_window: 65_535, held_bytes: 0, ..Limits::default() };
        let (mut peer, mut accept, ended) = as_client(&limits, &[]).await;
        peer.post(1).await;
        let _held = accept.accept().await.unwrap();
        for _ in 0..5 {
            peer.send(DATA, 0, 1, &[0; 16_384]).await;
        }
        peer.expect_goaway(Code::FLOW_CONTROL_ERROR).await;
        drop(peer);
        assert_eq!(ended.await.unwrap().unwrap_err().abuse, Some(Abuse::WindowOverflow));
    });
}

#[test]
fn hpack_bomb_and_large_heads() {
    run(async {
        let limits = Limits { header_list_bytes: 2000, ..Limits::default() };
        let (mut peer, accept, ended) = as_client(&limits, &[]).await;
        spawn_local(echo(accept));
        let value = "y".repeat(3000);
        let large = [&GET[..], &[("x", &value)]].concat();
        peer.headers(1, true, &large).await;
        let answer = peer.expect(HEADERS, 1).await;
        assert_eq!(peer.fields(&answer), [(":status".into(), "431".into())]);
        assert_eq!(counted(Abuse::HeaderList), 1);
        // The connection continues, and both ends still have the same HPACK table.
        peer.get(3).await;
        let answer = peer.expect(HEADERS, 3).await;
        assert_eq!(peer.fields(&answer), [(":status".into(), "200".into())]);
        peer.expect(DATA, 3).await;
        peer.send(HEADERS, END_HEADERS | END_STREAM, 5, &[0xff; 40]).await;
        peer.expect_goaway(Code::COMPRESSION_ERROR).await;
        drop(peer);
        ended_by(ended, Abuse::Hpack).await;
    });
}

#[test]
fn too_many_streams_at_once() {
    run(async {
        let limits = Limits { concurrent_streams: 2, ..Limits::default() };
        let (mut peer, mut accept, _ended) = as_client(&limits, &[]).await;
        let mut held = vec![];
        for id in [1, 3] {
            peer.get(id).await;
            held.push(accept.accept().await.unwrap());
        }
        peer.get(5).await;
        peer.expect_reset(5, Code::REFUSED_STREAM).await;
        assert_eq!(counted(Abuse::ConcurrentStreams), 1);
        held.pop().unwrap().stream.send_head(&response("200"), true);
        peer.expect(HEADERS, 3).await;
        peer.get(7).await;
        assert_eq!(accept.accept().await.unwrap().stream.id(), 7);
    });
}

#[test]
fn slow_preface_frame_and_section() {
    run(async {
        let slow = async |bytes: &[u8], hello: bool| {
            let (mut peer, _accept, ended) = if hello {
                as_client(&Limits::default(), &[]).await
            } else {
                let (io, accept, ended) = crate::support::server(&crate::support::limits());
                (Peer::over(io), accept, ended)
            };
            peer.raw(bytes).await;
            let start = tokio::time::Instant::now();
            while peer.next().await.is_some_and(|frame| frame.kind != GOAWAY) {}
            assert!(start.elapsed() >= Limits::default().head);
            drop(peer);
            assert_eq!(ended.await.unwrap().unwrap_err().abuse, Some(Abuse::SlowHead));
        };
        slow(b"PRI", false).await;
        slow(&frame(HEADERS, END_HEADERS, 1, b"abc")[..10], true).await;
        slow(&frame(HEADERS, 0, 1, b"\x82"), true).await;
        slow(&frame(PING, 0, 0, &[0; 8])[..5], true).await;
    });
}

#[test]
fn pieces_of_a_section_give_it_no_more_time() {
    run(async {
        let (mut peer, _accept, ended) = as_client(&Limits::default(), &[]).await;
        peer.raw(&frame(HEADERS, 0, 1, b"\x82")).await;
        // A third of the time limit between two frames, and fewer frames than allowed.
        for _ in 0..4 {
            tokio::time::sleep(Limits::default().head / 3).await;
            peer.raw(&frame(CONTINUATION, 0, 1, b"\x86")).await;
        }
        drop(peer);
        assert_eq!(ended.await.unwrap().unwrap_err().abuse, Some(Abuse::SlowHead));
    });
}

#[test]
fn settings_that_are_not_acknowledged() {
    run(async {
        let (io, _accept, ended) = crate::support::server(&crate::support::limits());
        let mut peer = Peer::over(io);
        peer.raw(PREFACE).await;
        peer.send(SETTINGS, 0, 0, &[]).await;
        peer.expect_goaway(Code::SETTINGS_TIMEOUT).await;
        drop(peer);
        ended_by(ended, Abuse::SettingsTimeout).await;
    });
}

#[test]
fn a_window_that_stays_closed() {
    run(async {
        let (mut peer, mut accept, _ended) = as_client(&Limits::default(), &setting(4, 0)).await;
        peer.get(1).await;
        let mut request = accept.accept().await.unwrap();
        request.stream.send_head(&response("200"), false);
        request.stream.send_data(&b"x"[..], true);
        peer.expect(HEADERS, 1).await;
        let start = tokio::time::Instant::now();
        peer.expect_reset(1, Code::CANCEL).await;
        let stall = Limits::default().write_stall;
        assert!(start.elapsed() >= stall && start.elapsed() < 2 * stall + Duration::from_secs(1));
        assert_eq!(counted(Abuse::ZeroWindow), 1);
        peer.expect_alive().await;
    });
}

#[test]
fn a_peer_that_reads_nothing() {
    run(async {
        let window = setting(4, 1 << 20);
        let (mut peer, mut accept, ended) = as_client(&Limits::default(), &window).await;
        peer.send(WINDOW_UPDATE, 0, 0, &[0, 16, 0, 0]).await;
        peer.get(1).await;
        let mut request = accept.accept().await.unwrap();
        request.stream.send_head(&response("200"), false);
        request.stream.send_data(vec![0; 1 << 19], true);
        tokio::time::sleep(Limits::default().write_stall * 3).await;
        ended_by(ended, Abuse::WriteStall).await;
        assert!(request.stream.reset_reason().is_some());
    });
}

#[test]
fn of_a_burst_of_interim_heads_some_are_dropped_and_the_final_one_arrives() {
    run(async {
        let (mut peer, client, _ended) = as_server(&Limits::default(), &[]).await;
        let mut stream = client.open(&request("GET", "/"), true).unwrap();
        peer.expect(HEADERS, 1).await;
        // All of them arrive before the reader of the stream runs: as many as can be queued, and two more.
        for _ in 0..10 {
            peer.headers(1, false, &[(":status", "103")]).await;
        }
        peer.headers(1, true, &[(":status", "200")]).await;
        peer.send(PING, 0, 0, &[7; 8]).await;
        while peer.any().await.expect("the connection goes on").kind != PING {}
        for _ in 0..8 {
            assert_eq!(stream.head().await.unwrap().status(), Some(103));
        }
        assert_eq!(stream.head().await.unwrap().status(), Some(200));
        assert_eq!(counted(Abuse::InterimHeads), 2);
    });
}

#[test]
fn an_honest_burst_of_credit_and_pings_is_forgiven() {
    run(async {
        let limits = Limits { empty_frames: 50, ..Limits::default() };
        let (mut peer, mut accept, _ended) = as_client(&limits, &[]).await;
        peer.post(1).await;
        let mut request = accept.accept().await.unwrap();
        for _ in 0..200 {
            peer.send(DATA, 0, 1, b"x").await;
            peer.send(PING, 0, 0, &[0; 8]).await;
            peer.expect(PING, 0).await;
            let piece = request.stream.data().await.unwrap().unwrap();
            request.stream.release(piece.len());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        peer.expect_alive().await;
    });
}
