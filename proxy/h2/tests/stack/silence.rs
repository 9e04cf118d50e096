//! Connections whose peer sends nothing while streams are open.

use leno_h2::{Abuse, Limits};
use tokio::time::Instant;

use crate::script::*;
use crate::support::{request, run};

fn limits() -> Limits {
    Limits { ping: true, ..Limits::default() }
}

/// The payload of the next PING that is not a reply. Skips all other frames.
async fn pinged(peer: &mut Peer) -> Vec<u8> {
    loop {
        let frame = peer.any().await.expect("the connection goes on");
        if frame.kind == PING && frame.flags & ACK == 0 {
            return frame.payload;
        }
    }
}

#[test]
fn a_silent_stream_lasts_as_long_as_pings_are_answered() {
    run(async {
        let limits = limits();
        let (mut peer, client, ended) = as_server(&limits, &[]).await;
        let stream = client.open(&request("GET", "/"), true).unwrap();
        for _ in 0..100 {
            let ping = pinged(&mut peer).await;
            peer.send(PING, ACK, 0, &ping).await;
        }
        assert!(stream.reset_reason().is_none());
        let last = Instant::now();
        pinged(&mut peer).await;
        ended_by(ended, Abuse::PingTimeout).await;
        // There are up to two checks until the PING, one check for its reply, and the wait for the peer to close.
        assert!(last.elapsed() <= limits.silence * 3 + limits.linger, "{:?}", last.elapsed());
        assert!(stream.reset_reason().is_some());
    });
}

#[test]
fn whatever_comes_is_a_sign_of_life() {
    run(async {
        let limits = limits();
        let (mut peer, client, _ended) = as_server(&limits, &[]).await;
        let stream = client.open(&request("GET", "/"), true).unwrap();
        peer.expect(HEADERS, 1).await;
        for _ in 0..100 {
            tokio::time::sleep(limits.silence).await;
            peer.send(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]).await;
        }
        assert!(stream.reset_reason().is_none());
    });
}

#[test]
fn a_connection_without_streams_and_one_to_an_application_are_not_pinged() {
    run(async {
        for (limits, open) in [(limits(), false), (Limits::default(), true)] {
            let (mut peer, client, _ended) = as_server(&limits, &[]).await;
            let stream = open.then(|| client.open(&request("GET", "/"), true).unwrap());
            tokio::time::sleep(limits.silence * 10).await;
            peer.send(PING, 0, 0, b"is alive").await;
            loop {
                let frame = peer.any().await.unwrap();
                assert!(frame.kind != PING || frame.flags & ACK != 0, "pinged");
                if frame.kind == PING {
                    break;
                }
            }
            drop(stream);
        }
    });
}
