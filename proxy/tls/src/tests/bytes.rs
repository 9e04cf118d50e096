//! Tests bytes that pass through mTLS: they arrive completely, with the end of each direction, or with an error if the
//! connection is cut.

use std::os::fd::AsFd;

use leno_transport::{Ended, RELAY_IDLE};

use super::*;

/// Connects two applications by two relays, as two proxies would, with mTLS between them. Returns the applications'
/// ends, and how the first relay ends.
async fn relayed() -> (TcpStream, TcpStream, tokio::task::JoinHandle<Ended>) {
    let (client, server) = Mesh::new().connected(Alpn::Opaque).await;
    let (near, a) = pair().await;
    let (b, far) = pair().await;
    let first = tokio::spawn(leno_transport::relay(a.into(), client.into(), RELAY_IDLE, ()));
    tokio::spawn(leno_transport::relay(server.into(), b.into(), RELAY_IDLE, ()));
    let ended = tokio::spawn(async move { first.await.unwrap().ended });
    (near, far, ended)
}

#[tokio::test]
async fn large_streams_arrive_whole_both_ways_and_end_one_by_one() {
    let (mut near, mut far, ended) = relayed().await;
    let sent = pattern(5 * 1024 * 1024 + 13);
    let up = sent.clone();
    let answer = sent.clone();
    let server = tokio::spawn(async move {
        let mut received = Vec::new();
        far.read_to_end(&mut received).await.unwrap();
        assert!(received == up);
        far.write_all(&answer).await.unwrap();
    });
    near.write_all(&sent).await.unwrap();
    near.shutdown().await.unwrap();
    let mut received = Vec::new();
    near.read_to_end(&mut received).await.unwrap();
    assert!(received == sent);
    server.await.unwrap();
    drop(near);
    assert_eq!(ended.await.unwrap().reason(), "closed");
}

#[tokio::test]
async fn two_sides_that_both_write_do_not_wait_for_each_other() {
    let (client, server) = Mesh::new().connected(Alpn::Opaque).await;
    // This is far more than the kernel and the buffers can hold, so each side must read while its own write is blocked.
    let sent = pattern(24 * 1024 * 1024);
    let both = [client, server].map(|stream| {
        let sent = sent.clone();
        let (mut from, mut to) = tokio::io::split(stream);
        let expected = sent.clone();
        let writes = async move {
            to.write_all(&sent).await.unwrap();
            to.shutdown().await.unwrap();
            to
        };
        let reads = async move {
            let mut received = Vec::new();
            from.read_to_end(&mut received).await.unwrap();
            assert!(received == expected);
        };
        tokio::spawn(async move { tokio::join!(writes, reads) })
    });
    for side in both {
        side.await.unwrap();
    }
}

#[tokio::test]
async fn an_idle_connection_holds_no_buffer() {
    let (mut client, mut server) = Mesh::new().connected(Alpn::Http1).await;
    for _ in 0..3 {
        echo(&mut client, &mut server).await;
        assert!(client.is_idle() && server.is_idle());
    }
    // A read that waits holds no buffer either.
    tokio::select! {
        biased;
        read = server.read_u8() => panic!("{read:?}"),
        () = std::future::ready(()) => {}
    }
    assert!(server.is_idle());
}

#[tokio::test]
async fn writes_and_reads_of_any_size_fit_together() {
    let sizes = [1, 2, 100, 1_000, 16_384, 16_385, 64_512, 65_536, 200_000];
    for (at, write) in sizes.into_iter().enumerate() {
        let read = sizes[sizes.len() - 1 - at];
        let (client, server) = Mesh::new().connected(Alpn::Opaque).await;
        arrive_whole((client, write), (server, read)).await;
    }
}

#[tokio::test]
async fn a_reader_may_have_bytes_already() {
    let (mut client, mut server) = Mesh::new().connected(Alpn::Opaque).await;
    client.write_all(&pattern(10_000)).await.unwrap();
    let mut received = b"before".to_vec();
    received.reserve(3);
    while received.len() < 10_006 {
        server.read_buf(&mut received).await.unwrap();
    }
    assert_eq!((&received[..6], &received[6..]), (&b"before"[..], &pattern(10_000)[..]));
}

#[tokio::test]
async fn a_reset_crosses_two_proxies() {
    let (mut near, mut far, ended) = relayed().await;
    near.write_all(b"x").await.unwrap();
    assert_eq!(far.read_u8().await.unwrap(), b'x');
    near.reset_on_drop();
    drop(near);
    let error = far.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(ended.await.unwrap().reason(), "reset");
}

#[tokio::test]
async fn the_host_behind_a_lasting_relay_is_asked_whether_it_is_there() {
    tokio::task::LocalSet::new().run_until(a_lasting_relay()).await;
}

async fn a_lasting_relay() {
    let mesh = Mesh::new();
    for in_channel in [false, true] {
        let (client, _server) = mesh.connected(Alpn::Opaque).await;
        let (_application, near) = pair().await;
        let tcp = client.socket().unwrap().as_fd().try_clone_to_owned().unwrap();
        let socket = socket2::Socket::from(tcp);
        assert!(!socket.keepalive().unwrap());
        tokio::time::pause();
        let relay = match in_channel {
            true => {
                let relay = leno_transport::relay(
                    near.into(),
                    Channel::from(client).into(),
                    RELAY_IDLE,
                    (),
                );
                tokio::task::spawn_local(async move { drop(relay.await) })
            }
            false => {
                let relay = leno_transport::relay(near.into(), client.into(), RELAY_IDLE, ());
                tokio::task::spawn_local(async move { drop(relay.await) })
            }
        };
        tokio::time::sleep(Duration::from_secs(11)).await;
        assert!(socket.keepalive().unwrap());
        tokio::time::resume();
        relay.abort();
    }
}

#[tokio::test]
async fn a_cut_stream_is_not_taken_for_its_end() {
    let (client, mut server) = Mesh::new().connected(Alpn::Opaque).await;
    // A FIN without close_notify, which an attacker in the network could send.
    socket2::SockRef::from(client.socket().unwrap()).shutdown(std::net::Shutdown::Write).unwrap();
    let error = server.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn a_server_reports_why_it_cuts_a_stream() {
    let (mut client, mut server) = Mesh::new().connected(Alpn::Http1).await;
    server.write_all(b"half").await.unwrap();
    server.cut(Some(0x81));
    drop(server);
    let mut received = Vec::new();
    let error = client.read_to_end(&mut received).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    assert_eq!((&received[..], client.cut_report()), (&b"half"[..], Some(0x81)));
}

#[tokio::test]
async fn readiness_is_never_late() {
    let (mut client, mut server) = Mesh::new().connected(Alpn::Http1).await;
    client.write_all(&pattern(1000)).await.unwrap();
    client.flush().await.unwrap();
    let mut left = 1000;
    let mut few = [0; 7];
    while left > 0 {
        // The stream must also be ready if only rustls has bytes and the socket has none.
        std::future::poll_fn(|cx| Io::poll_read_ready(&mut server, cx)).await.unwrap();
        left -= server.read(&mut few).await.unwrap();
    }
}
