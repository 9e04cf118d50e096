//! Tests a relay between two connections over loopback.

use std::cell::Cell;
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::Instant;

mod exact;

use super::*;
use crate::{CONNECT_TIMEOUT, Listener, Peeked, connect};

/// A client, a server, and the relay between them.
struct Chain {
    client: TcpStream,
    server: TcpStream,
    relay: JoinHandle<Relayed>,
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let near = connect(listener.address(), CONNECT_TIMEOUT).await.unwrap();
    let (far, _) = listener.accept().await.unwrap();
    (near, far)
}

async fn chain() -> Chain {
    let (client, a) = pair().await;
    let (b, server) = pair().await;
    let relay = tokio::spawn(relay(a.into(), b.into(), RELAY_IDLE, ()));
    Chain { client, server, relay }
}

fn pattern(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i.wrapping_mul(31) >> 3) as u8).collect()
}

#[tokio::test]
async fn each_direction_ends_by_itself() {
    let Chain { mut client, mut server, relay } = chain().await;
    client.write_all(b"question").await.unwrap();
    client.shutdown().await.unwrap();
    let mut question = String::new();
    server.read_to_string(&mut question).await.unwrap();
    assert_eq!(question, "question");
    // The client's direction has ended, but the server's is still open.
    server.write_all(b"answer").await.unwrap();
    let mut answer = [0; 6];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"answer");
    assert!(!relay.is_finished());
    drop(server);
    assert_eq!(client.read(&mut answer).await.unwrap(), 0);
    let done = relay.await.unwrap();
    assert_eq!((done.a_to_b, done.b_to_a), (8, 6));
    assert_eq!(done.ended.reason(), "closed");
}

#[tokio::test]
async fn a_server_that_speaks_first_is_heard() {
    let Chain { mut client, mut server, relay } = chain().await;
    server.write_all(b"220 ready").await.unwrap();
    server.shutdown().await.unwrap();
    let mut greeting = String::new();
    client.read_to_string(&mut greeting).await.unwrap();
    assert_eq!(greeting, "220 ready");
    client.write_all(b"QUIT").await.unwrap();
    drop(client);
    let mut quit = String::new();
    server.read_to_string(&mut quit).await.unwrap();
    assert_eq!(quit, "QUIT");
    assert_eq!(relay.await.unwrap().ended.reason(), "closed");
}

#[tokio::test]
async fn a_reset_stays_a_reset_in_both_directions() {
    for from_client in [true, false] {
        let Chain { client, server, relay } = chain().await;
        let (mut aborting, mut other) =
            if from_client { (client, server) } else { (server, client) };
        aborting.write_all(b"x").await.unwrap();
        let mut byte = [0];
        other.read_exact(&mut byte).await.unwrap();
        aborting.reset_on_drop();
        drop(aborting);
        let error = other.read(&mut byte).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        let done = relay.await.unwrap();
        assert_eq!(done.ended.reason(), "reset");
        let expected = if from_client { Side::A } else { Side::B };
        assert!(matches!(done.ended, Ended::Failed { side, .. } if side == expected));
    }
}

#[tokio::test]
async fn a_client_that_still_sends_is_reset_if_its_server_has_gone() {
    let Chain { mut client, server, relay } = chain().await;
    drop(server);
    let mut byte = [0];
    assert_eq!(client.read(&mut byte).await.unwrap(), 0);
    let chunk = pattern(64 * 1024);
    let error = loop {
        if let Err(error) = client.write_all(&chunk).await {
            break error;
        }
    };
    assert!(matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe));
    assert_eq!(relay.await.unwrap().ended.reason(), "reset");
}

#[tokio::test]
async fn large_streams_arrive_whole_both_ways_at_once() {
    let Chain { client, server, relay } = chain().await;
    let sent = pattern(9 * 1024 * 1024 + 17);
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (up, down) = (sent.clone(), sent.clone());
    tokio::spawn(async move { to_client.write_all(&up).await });
    tokio::spawn(async move { to_server.write_all(&down).await });
    let (mut at_server, mut at_client) = (Vec::new(), Vec::new());
    tokio::try_join!(
        from_server.read_to_end(&mut at_server),
        from_client.read_to_end(&mut at_client)
    )
    .unwrap();
    assert!(at_server == sent && at_client == sent);
    let done = relay.await.unwrap();
    assert_eq!((done.a_to_b, done.b_to_a), (9_437_201, 9_437_201));
    assert_eq!(done.ended.reason(), "closed");
}

#[tokio::test]
async fn a_reader_that_stops_holds_the_writer_back() {
    let Chain { client, mut server, relay } = chain().await;
    // This is more than the kernel's buffers of two connections hold (net.ipv4.tcp_rmem, tcp_wmem).
    let sent = pattern(64 * 1024 * 1024);
    let bytes = sent.clone();
    let writer = tokio::spawn(async move {
        let mut client = client;
        client.write_all(&bytes).await
    });
    for _ in 0..5_000 {
        tokio::task::yield_now().await;
    }
    assert!(!writer.is_finished(), "no back-pressure");
    let mut received = Vec::new();
    server.read_to_end(&mut received).await.unwrap();
    assert!(received == sent);
    writer.await.unwrap().unwrap();
    drop(server);
    assert_eq!(relay.await.unwrap().a_to_b, sent.len() as u64);
}

#[tokio::test(start_paused = true)]
async fn an_idle_relay_ends_and_a_busy_one_does_not() {
    let (mut client, a) = tokio::io::duplex(64);
    let (b, mut server) = tokio::io::duplex(64);
    let idle = Duration::from_secs(60);
    let relay = tokio::spawn(relay(a.into(), b.into(), idle, ()));
    let mut byte = [0];
    for _ in 0..10 {
        tokio::time::advance(Duration::from_secs(50)).await;
        client.write_all(b"x").await.unwrap();
        server.read_exact(&mut byte).await.unwrap();
    }
    let from = Instant::now();
    let done = relay.await.unwrap();
    assert_eq!(done.ended.reason(), "stream-idle");
    assert!(from.elapsed() <= 2 * idle);
}

#[tokio::test]
async fn a_prefix_and_the_observer_see_every_byte() {
    let (mut client, a) = pair().await;
    let (b, mut server) = pair().await;
    let seen = Rc::new(Cell::new((0, 0)));
    let counter = Rc::clone(&seen);
    let observer = move |side, n| {
        let (up, down) = counter.get();
        counter.set(match side {
            Side::A => (up + n, down),
            Side::B => (up, down + n),
        });
    };
    let a = Peeked::with_bytes(a, b"first ".to_vec());
    let relayed = relay(a, b.into(), RELAY_IDLE, observer);
    let talk = async {
        client.write_all(b"second").await.unwrap();
        client.shutdown().await.unwrap();
        let mut all = String::new();
        server.read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "first second");
        server.write_all(b"ok").await.unwrap();
        drop(server);
    };
    let (done, ()) = tokio::join!(relayed, talk);
    assert_eq!((done.a_to_b, done.b_to_a), (12, 2));
    assert_eq!(seen.get(), (12, 2));
}
