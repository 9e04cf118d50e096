//! Tests effects of the network: loss, reordering, sizes, and a proxy that ends.

use std::collections::HashSet;

use super::*;

#[test]
fn what_is_too_large_is_dropped_and_counted() {
    run(async {
        let pair = Pair::start().await;
        let socket = socket().await;
        pair.reaches(&socket, b"open").await;
        pair.reaches(&socket, &[1; 1100]).await;
        socket.send_to(&[1; 3000], pair.placeholder()).await.unwrap();
        pair.client.counted(Count::OutboundTooLarge, 1).await;
        pair.reaches(&socket, b"still open").await;
        // The path on loopback permits the largest size that QUIC probes for.
        let found = async {
            while pair.client.count(Count::OutboundTooLarge) < 1_000 {
                socket.send_to(&[1; 1400], pair.placeholder()).await.unwrap();
                let mut buffer = [0; 2048];
                if let Ok(Ok(1400)) = timeout(NEVER, socket.recv(&mut buffer)).await {
                    return true;
                }
            }
            false
        };
        assert!(timeout(SOON, found).await.unwrap(), "the size of the path is found out");
    });
}

/// Forwards packets between a client and `to`, but drops every fifth, and swaps every fourth with the next one.
async fn bad_path(at: SocketAddr, to: SocketAddr) {
    let (near, far) =
        (UdpSocket::bind(at).await.unwrap(), UdpSocket::bind("127.0.0.1:0").await.unwrap());
    tokio::task::spawn_local(async move {
        let (mut client, mut count, mut held) = (None, 0_u32, None::<Vec<u8>>);
        let (mut one, mut other) = (vec![0; 65536], vec![0; 65536]);
        loop {
            tokio::select! {
                received = near.recv_from(&mut one) => {
                    let (length, from) = received.unwrap();
                    client = Some(from);
                    count += 1;
                    if count.is_multiple_of(5) {
                        continue;
                    }
                    if count.is_multiple_of(4) && held.is_none() {
                        held = Some(one[..length].to_vec());
                        continue;
                    }
                    far.send_to(&one[..length], to).await.unwrap();
                    if let Some(late) = held.take() {
                        far.send_to(&late, to).await.unwrap();
                    }
                }
                received = far.recv_from(&mut other) => {
                    let (length, _) = received.unwrap();
                    if let Some(client) = client {
                        near.send_to(&other[..length], client).await.unwrap();
                    }
                }
            }
        }
    });
}

#[test]
fn over_a_bad_path_datagrams_come_whole_and_once_or_not_at_all() {
    run(async {
        let pair = Pair::start().await;
        let between = SocketAddr::new(ip("127.0.0.5"), pair.server.quic_at.port());
        bad_path(between, pair.server.quic_at).await;
        let server = SocketAddr::new(between.ip(), pair.application.port());
        let route = Route::Mesh { server, identity: identity(CART) };
        pair.client.leads(PLACEHOLDER, pair.application, route);
        let socket = socket().await;
        pair.reaches(&socket, b"open").await;
        let mut heard = HashSet::new();
        for number in 0..200_u32 {
            let payload = [&number.to_be_bytes()[..], &[9; 500]].concat();
            socket.send_to(&payload, pair.placeholder()).await.unwrap();
            let mut buffer = [0; 2048];
            if let Ok(Ok(length)) =
                timeout(Duration::from_millis(20), socket.recv(&mut buffer)).await
                && length == 504
            {
                assert_eq!(buffer[4..length], [9; 500]);
                assert!(heard.insert(buffer[..4].to_vec()), "a datagram came twice");
            }
        }
        assert!(heard.len() > 50 && heard.len() < 200, "{} came", heard.len());
    });
}

#[test]
fn flows_go_on_with_the_next_proxy_of_the_server() {
    run(async {
        let Pair { ca, client, server, application } = Pair::start().await;
        let port = server.quic_at.port();
        let pair = Pair { ca, client, server, application };
        let socket = socket().await;
        pair.reaches(&socket, b"first").await;
        let Pair { ca, client, server, application } = pair;
        server.datagrams.close();
        // Wait until the close has been sent.
        client.counted(Count::OutboundOpened, 1).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(server);
        let bound = async {
            while std::net::UdpSocket::bind((ip(SERVER), port)).is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(SOON, bound).await.expect("the socket of a proxy that has ended is closed");
        let server = Proxy::start(SERVER, (port, 0), keyring(&ca, CART));
        server.gate.application.replace(vec![application]);
        let pair = Pair { ca, client, server, application };
        let begun = tokio::time::Instant::now();
        pair.reaches(&socket, b"second").await;
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        assert_eq!(pair.server.count(Count::InboundOpened), 1);
    });
}

#[test]
fn packets_that_are_no_quic_change_nothing() {
    run(async {
        let pair = Pair::start().await;
        let (stranger, socket) = (socket().await, socket().await);
        pair.reaches(&socket, b"before").await;
        for length in (0..1400).step_by(7) {
            for first in [0x00, 0x40, 0xc0, 0xff] {
                let mut packet = vec![0x5a; length];
                packet.insert(0, first);
                stranger.send_to(&packet, pair.server.quic_at).await.unwrap();
            }
            tokio::task::yield_now().await;
        }
        pair.reaches(&socket, b"after").await;
        assert_eq!(pair.server.datagrams.open().connections[1], 1);
    });
}

/// Regression: the kernel delivered packets to the process that did not know their connection, and the flow stalled
/// until its idle timeout.
#[test]
fn a_flow_goes_on_while_the_next_process_has_the_port_and_begins_again_there() {
    run(async {
        // Without steering, the kernel's hash of the addresses would choose the right process for half of them by
        // chance.
        for _ in 0..8 {
            let pair = Pair::start().await;
            let socket = socket().await;
            pair.reaches(&socket, b"before").await;
            let port = pair.server.quic_at.port();
            let next = Proxy::start(SERVER, (port, 0), keyring(&pair.ca, CART));
            next.gate.application.replace(vec![pair.application]);
            for number in 0..16_u8 {
                socket.send_to(&[number], pair.placeholder()).await.unwrap();
                assert_eq!(hears(&socket).await.0, [number]);
            }
            assert_eq!(next.count(Count::InboundConnected), 0);
            pair.server.datagrams.close();
            pair.server.datagrams.closed().await;
            pair.reaches(&socket, b"after").await;
            assert_eq!(next.count(Count::InboundConnected), 1);
            assert_eq!(pair.client.count(Count::OutboundSilent), 0);
        }
    });
}
