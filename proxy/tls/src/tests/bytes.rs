//! Bytes through mTLS: whole, with their ends, and cut.

use leno_http::Io;
use leno_transport::{Ended, RELAY_IDLE, Stream};

use super::*;

fn pattern(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i.wrapping_mul(31) >> 3) as u8).collect()
}

/// An application, its proxy, the other proxy, and the other application.
async fn relayed() -> (TcpStream, TcpStream, tokio::task::JoinHandle<Ended>) {
    let (client, server) = Mesh::new().connected(Alpn::Opaque).await;
    let (near, a) = pair().await;
    let (b, far) = pair().await;
    let first = tokio::spawn(leno_transport::relay(a, client, RELAY_IDLE, ()));
    tokio::spawn(leno_transport::relay(server, b, RELAY_IDLE, ()));
    let ended = tokio::spawn(async move { first.await.unwrap().ended });
    (near, far.into_parts().1, ended)
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
async fn a_reset_crosses_two_proxies() {
    let (mut near, mut far, ended) = relayed().await;
    near.write_all(b"x").await.unwrap();
    assert_eq!(far.read_u8().await.unwrap(), b'x');
    near.abort();
    drop(near);
    let error = far.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(ended.await.unwrap().reason(), "reset");
}

#[tokio::test]
async fn a_cut_stream_is_not_taken_for_its_end() {
    let (client, mut server) = Mesh::new().connected(Alpn::Opaque).await;
    // FIN without close_notify, as somebody in between could send it.
    socket2::SockRef::from(client.tcp()).shutdown(std::net::Shutdown::Write).unwrap();
    let error = server.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn readiness_is_never_late() {
    let (mut client, mut server) = Mesh::new().connected(Alpn::Http1).await;
    client.write_all(&pattern(1000)).await.unwrap();
    client.flush().await.unwrap();
    let mut left = 1000;
    let mut few = [0; 7];
    while left > 0 {
        // Also while only rustls has bytes, and the socket has none.
        std::future::poll_fn(|cx| Io::poll_read_ready(&mut server, cx)).await.unwrap();
        left -= server.read(&mut few).await.unwrap();
    }
}
