//! Tests how much memory a waiting connection holds, according to its worker's budget.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use leno_transport::budget::{self, Budget, Charge, MIN_BUDGET};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::*;

/// More than a few bytes take, and far less than a buffer.
const FEW: usize = 64;
/// Room for one record that was read and for the plaintext of another.
const MOST: usize = 40 * 1024;

/// Runs a test on a thread of its own, because charges to a budget count for a thread.
fn in_thread<F: Future<Output = ()>>(act: impl FnOnce() -> F + Send + 'static) {
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(act());
    };
    std::thread::spawn(run).join().unwrap();
}

/// A connection through two sockets between its ends. Their bytes are forwarded until both ends have sent something;
/// after that only if the test forwards them. Returns the client, the two sockets, and the server.
pub(super) async fn tapped(mesh: &Mesh) -> (TlsStream, TcpStream, TcpStream, TlsStream) {
    let (near, mut tap) = pair().await;
    let (mut other_tap, far) = pair().await;
    let cart = identity(CART);
    let handshake = async {
        let (client, server) = tokio::join!(
            mesh.connector.connect(near, &cart, &[Alpn::Opaque]),
            mesh.acceptor.accept(far, ClientIdentity::Required)
        );
        let (mut client, mut server) = (client.unwrap(), server.unwrap());
        echo(&mut client, &mut server).await;
        (client, server)
    };
    let (client, server) = tokio::select! {
        both = handshake => both,
        ended = tokio::io::copy_bidirectional(&mut tap, &mut other_tap) => panic!("{ended:?}"),
    };
    (client, tap, other_tap, server)
}

/// Reads the bytes that are available. `None` if the read would have to wait.
async fn read_now(stream: &mut TlsStream) -> Option<Vec<u8>> {
    let mut bytes = [0; 100];
    let mut space = ReadBuf::new(&mut bytes);
    let read = poll_fn(|cx| Poll::Ready(Pin::new(&mut *stream).poll_read(cx, &mut space))).await;
    match read {
        Poll::Ready(read) => read.map(|()| Some(space.filled().to_vec())).unwrap(),
        Poll::Pending => None,
    }
}

#[test]
fn a_record_that_has_begun_holds_what_has_come_of_it() {
    in_thread(|| async {
        let mesh = Mesh::new();
        let (mut client, mut tap, mut to, mut server) = tapped(&mesh).await;
        assert_eq!(budget::charged(), 0);
        client.write_all(b"hello").await.unwrap();
        let mut record = [0; 100];
        let n = tap.read(&mut record).await.unwrap();
        to.write_all(&record[..1]).await.unwrap();
        server.socket().unwrap().readable().await.unwrap();
        assert_eq!(read_now(&mut server).await, None);
        assert_eq!(budget::charged(), 1);
        to.write_all(&record[1..n]).await.unwrap();
        let mut bytes = [0; 5];
        server.read_exact(&mut bytes).await.unwrap();
        assert_eq!((&bytes, budget::charged()), (b"hello", 0));
    });
}

#[test]
fn a_connection_that_waits_between_requests_holds_the_rest_of_its_read() {
    in_thread(|| async {
        let mesh = Mesh::new();
        let (mut client, mut tap, mut to, mut server) = tapped(&mesh).await;
        let mut records = Vec::new();
        for _ in 0..2 {
            client.write_all(b"hello").await.unwrap();
            let _some = tap.read_buf(&mut records).await.unwrap();
        }
        let n = records.len() / 2 + 3;
        to.write_all(&records[..n]).await.unwrap();
        server.socket().unwrap().readable().await.unwrap();
        assert_eq!(read_now(&mut server).await.unwrap(), b"hello");
        let ready = poll_fn(|cx| Poll::Ready(Io::poll_read_ready(&mut server, cx))).await;
        assert!(ready.is_pending());
        assert_eq!(budget::charged(), 3);
        to.write_all(&records[n..]).await.unwrap();
        poll_fn(|cx| Io::poll_read_ready(&mut server, cx)).await.unwrap();
        assert_eq!(read_now(&mut server).await.unwrap(), b"hello");
        assert_eq!(budget::charged(), 0);
    });
}

#[test]
fn while_memory_is_short_a_write_that_waits_holds_its_bytes_only() {
    in_thread(|| async {
        let (mut client, mut server) = Mesh::new().connected(Alpn::Opaque).await;
        Budget::new(MIN_BUDGET).enter();
        let _others = Charge::new(MIN_BUDGET);
        let before = budget::charged();
        let mut sent = 0;
        let part = [7; 1000];
        loop {
            let write = poll_fn(|cx| Poll::Ready(Pin::new(&mut client).poll_write(cx, &part)));
            let Poll::Ready(n) = write.await else { break };
            sent += n.unwrap();
        }
        let held = budget::charged() - before;
        assert!((1..=part.len() + FEW).contains(&held), "{held}");
        let writer = tokio::spawn(async move { client.shutdown().await.unwrap() });
        let mut received = Vec::new();
        server.read_to_end(&mut received).await.unwrap();
        writer.await.unwrap();
        assert!(received == vec![7; sent]);
        assert_eq!(budget::charged(), before);
    });
}

#[test]
fn while_memory_is_short_a_slow_reader_leaves_little_behind() {
    in_thread(|| async {
        let (mut client, mut server) = Mesh::new().connected(Alpn::Opaque).await;
        Budget::new(MIN_BUDGET).enter();
        let _others = Charge::new(MIN_BUDGET);
        let before = budget::charged();
        let sent: Vec<u8> = (0..40_000_u32).map(|n| (n >> 5) as u8).collect();
        // The kernel accepts this many bytes although the other end does not read them.
        client.write_all(&sent).await.unwrap();
        let mut received = Vec::new();
        let mut few = [0; 1000];
        while received.len() < sent.len() {
            let n = server.read(&mut few).await.unwrap();
            received.extend_from_slice(&few[..n]);
            let held = budget::charged() - before;
            assert!(held <= MOST, "{held}");
        }
        assert!(received == sent);
        assert_eq!(budget::charged(), before);
    });
}
