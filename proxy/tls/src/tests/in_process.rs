//! Tests connections whose two ends are in one process: their bytes go through memory, and everything else is as over
//! the network.

use std::io;
use std::net::Shutdown;
use std::thread;

use leno_transport::budget;
use leno_transport::{Ended, RELAY_IDLE};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use super::memory::tapped;
use super::*;

pub(super) fn mesh() -> Mesh {
    let mut mesh = Mesh::new();
    mesh.connector.offers_all = true;
    mesh
}

async fn connected(alpn: Alpn) -> (TlsStream, TlsStream) {
    let (client, server) = mesh().connected(alpn).await;
    assert!(client.tls.passage.writes && server.tls.passage.writes);
    (client, server)
}

#[tokio::test]
async fn what_is_sent_after_the_handshake_needs_no_network() {
    // After the first bytes, the test forwards nothing from one socket to the other, and the sockets stay open.
    let (mut client, _tap, _other_tap, mut server) = tapped(&mesh()).await;
    for _ in 0..100 {
        echo(&mut client, &mut server).await;
    }
    assert_eq!(client.identity(), Some(&identity(CART)));
    assert_eq!(server.identity(), Some(&identity(WEB)));
    assert!(client.is_idle() && server.is_idle());
    for alpn in [Alpn::Http2, Alpn::Http1] {
        connected(alpn).await;
    }
}

#[tokio::test]
async fn a_client_of_another_process_and_a_renewal_use_the_network() {
    let (client, server) = Mesh::new().connected(Alpn::Http2).await;
    assert!(client.tls.passage.pipe.is_none() && server.tls.passage.pipe.is_none());
    let (client, server) = mesh().connected(Alpn::Renewal).await;
    assert!(client.tls.passage.pipe.is_none() && server.tls.passage.pipe.is_none());
}

#[tokio::test]
async fn a_server_of_another_process_never_takes_the_pipe_and_is_spoken_to_by_tls() {
    let (near, far) = pair().await;
    let mesh = mesh();
    let cart = identity(CART);
    let connecting = mesh.connector.connect(near, &cart, &[Alpn::Http1]);
    let (client, mut server) = tokio::join!(connecting, async {
        // This does what an acceptor does, but does not look for pipes that are offered in this process.
        let mut tls = crate::tls::Tls::new(far, session_of_server(&mesh));
        std::future::poll_fn(|cx| tls.poll_handshake(cx)).await.unwrap();
        TlsStream::new(tls, Ok(identity(WEB)), Alpn::Http1)
    });
    let mut client = client.unwrap();
    for _ in 0..3 {
        echo(&mut client, &mut server).await;
    }
    assert!(!client.tls.passage.writes);
    client.shutdown().await.unwrap();
    assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
    let binding = client.tls.binding().unwrap();
    assert!(crate::pipe::is_offered(&binding));
    drop(client);
    assert!(!crate::pipe::is_offered(&binding));
}

pub(super) fn session_of_server(mesh: &Mesh) -> crate::session::Session {
    let config = mesh.cart.current().unwrap().server();
    let server = rustls::server::UnbufferedServerConnection::new(config).unwrap();
    crate::session::Session::Server(server)
}

/// Runs one end on a thread of its own, as if two workloads shared a process.
pub(super) fn elsewhere<T: Send + 'static, F: Future<Output = T>>(
    run: impl FnOnce() -> F + Send + 'static,
) -> oneshot::Receiver<T> {
    let (done, result) = oneshot::channel();
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let _ended = done.send(runtime.block_on(run()));
    });
    result
}

/// Runs a server on a thread of its own, which serves one connection.
async fn with_server<T: Send + 'static, F: Future<Output = T>>(
    mesh: &Mesh,
    alpn: Alpn,
    serve: impl FnOnce(TlsStream) -> F + Send + 'static,
) -> (TlsStream, oneshot::Receiver<T>) {
    let (listening, address) = oneshot::channel();
    let cart = mesh.cart.clone();
    let served = elsewhere(move || async move {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        listening.send(listener.address()).unwrap();
        let (far, _) = listener.accept().await.unwrap();
        let stream = cart.acceptor().accept(far, ClientIdentity::Required).await.unwrap();
        serve(stream).await
    });
    let near = leno_transport::connect(address.await.unwrap(), CONNECT_TIMEOUT).await.unwrap();
    let stream = mesh.connector.connect(near, &identity(CART), &[alpn]).await.unwrap();
    (stream, served)
}

#[tokio::test]
async fn large_streams_cross_threads_whole_both_ways_at_once() {
    async fn exchange(stream: TlsStream, sent: Vec<u8>) -> bool {
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
            received == expected
        };
        tokio::join!(writes, reads).1
    }
    let sent = pattern(24 * 1024 * 1024 + 13);
    let theirs = sent.clone();
    let serve = move |stream| exchange(stream, theirs);
    let (client, served) = with_server(&mesh(), Alpn::Opaque, serve).await;
    assert!(exchange(client, sent).await && served.await.unwrap());
    assert_eq!(budget::charged(), 0);
}

#[tokio::test]
async fn many_small_messages_cross_threads_and_none_waits_for_ever() {
    let serve = |mut stream: TlsStream| async move {
        let mut n = 0_u32;
        while let Ok(byte) = stream.read_u8().await {
            stream.write_u8(byte.wrapping_add(1)).await.unwrap();
            n += 1;
        }
        n
    };
    let (mut client, served) = with_server(&mesh(), Alpn::Http1, serve).await;
    for at in 0..20_000_u32 {
        client.write_u8(at as u8).await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), (at as u8).wrapping_add(1));
    }
    assert!(client.tls.passage.writes);
    drop(client);
    assert_eq!(served.await.unwrap(), 20_000);
}

#[tokio::test]
async fn writes_and_reads_of_any_size_fit_together() {
    let sizes = [1, 2, 100, 1_000, 16_384, 64_512, 65_536, 65_537, 200_000];
    for (at, write) in sizes.into_iter().enumerate() {
        let read = sizes[sizes.len() - 1 - at];
        let (client, server) = mesh().handshake(Alpn::Opaque).await;
        arrive_whole((client.unwrap(), write), (server.unwrap(), read)).await;
    }
}

/// The server takes the pipe when its handshake ends, which is after the client's handshake. So bytes that the client
/// sends at once go through TLS.
#[tokio::test]
async fn a_client_that_sends_and_closes_before_the_server_has_the_pipe_is_heard_and_answered() {
    let serve = |mut stream: TlsStream| async move {
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.unwrap();
        stream.write_all(&received).await.unwrap();
        stream.shutdown().await.unwrap();
    };
    for _ in 0..50 {
        let (mut client, _served) = with_server(&mesh(), Alpn::Opaque, serve).await;
        client.write_all(b"hello").await.unwrap();
        client.shutdown().await.unwrap();
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"hello");
    }
}

#[tokio::test]
async fn an_end_in_order_comes_after_all_bytes_and_a_drop_is_no_end() {
    let (mut client, mut server) = connected(Alpn::Opaque).await;
    client.write_all(b"whole").await.unwrap();
    client.shutdown().await.unwrap();
    drop(client);
    let mut received = Vec::new();
    server.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"whole");
    let error = server.write_all(b"x").await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    let (mut client, mut server) = connected(Alpn::Opaque).await;
    client.write_all(b"half").await.unwrap();
    drop(client);
    let mut received = Vec::new();
    let error = server.read_to_end(&mut received).await.unwrap_err();
    assert_eq!((error.kind(), &received[..]), (io::ErrorKind::UnexpectedEof, &b"half"[..]));
}

#[tokio::test]
async fn a_reset_and_a_report_arrive_as_over_the_network() {
    let (mut client, mut server) = connected(Alpn::Opaque).await;
    client.write_all(b"lost").await.unwrap();
    client.reset_on_drop();
    drop(client);
    let error = server.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let (mut client, mut server) = connected(Alpn::Http1).await;
    server.write_all(b"half").await.unwrap();
    server.cut(Some(0x81));
    drop(server);
    let mut received = Vec::new();
    let error = client.read_to_end(&mut received).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!((&received[..], client.cut_report()), (&b"half"[..], Some(0x81)));
}

#[tokio::test]
async fn two_relays_over_memory_end_one_by_one() {
    let (client, server) = connected(Alpn::Opaque).await;
    let (mut near, a) = pair().await;
    let (b, mut far) = pair().await;
    let first = tokio::spawn(leno_transport::relay(a.into(), client.into(), RELAY_IDLE, ()));
    tokio::spawn(leno_transport::relay(server.into(), b.into(), RELAY_IDLE, ()));
    let sent = pattern(5 * 1024 * 1024 + 13);
    let answer = sent.clone();
    let server = tokio::spawn(async move {
        let mut received = Vec::new();
        far.read_to_end(&mut received).await.unwrap();
        far.write_all(&answer).await.unwrap();
        received
    });
    let writes = async {
        near.write_all(&sent).await.unwrap();
        near.shutdown().await.unwrap();
        let mut received = Vec::new();
        near.read_to_end(&mut received).await.unwrap();
        received
    };
    assert!(writes.await == sent && server.await.unwrap() == sent);
    drop(near);
    assert!(matches!(first.await.unwrap().ended, Ended::Closed));
}

/// The network resets the connection because of a policy, or the kernel's probes find that the other machine is lost.
#[tokio::test]
async fn the_end_of_the_connection_over_the_network_cuts_both_directions_under_load() {
    let serve = |mut stream: TlsStream| async move {
        let mut space = vec![0; 1000];
        loop {
            match stream.read(&mut space).await {
                Ok(0) => panic!("an end in order"),
                Ok(_) => {}
                Err(error) => return error.kind(),
            }
        }
    };
    let (mut client, served) = with_server(&mesh(), Alpn::Opaque, serve).await;
    let load = pattern(100_000);
    while !client.tls.passage.writes {
        client.write_all(&load).await.unwrap();
        tokio::task::yield_now().await;
    }
    socket2::SockRef::from(client.socket().unwrap()).shutdown(Shutdown::Both).unwrap();
    let error = async {
        loop {
            if let Err(error) = client.write_all(&load).await {
                return error;
            }
        }
    };
    let error = tokio::time::timeout(Duration::from_secs(60), error).await.unwrap();
    assert!(
        matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof),
        "{error}"
    );
    assert_eq!(served.await.unwrap(), io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn a_writer_that_waits_for_its_reader_learns_that_the_network_has_cut_them_off() {
    let (mut client, server) = connected(Alpn::Opaque).await;
    let full = async { client.write_all(&pattern(1024 * 1024)).await };
    let cut = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        socket2::SockRef::from(server.socket().unwrap()).shutdown(Shutdown::Both).unwrap();
    };
    let (written, ()) = tokio::join!(full, cut);
    written.unwrap_err();
}

#[tokio::test]
async fn a_revocation_ends_a_connection_in_memory_at_once_and_what_was_not_read_is_lost() {
    let mesh = mesh();
    let (mut client, mut server) = mesh.connected(Alpn::Http2).await;
    client.write_all(b"before").await.unwrap();
    let revoked = leno_types::Revocations::new([(identity(WEB), BEGIN_S)]);
    assert_eq!(end_revoked(&revoked), 1);
    let error = server.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    client.write_all(b"after").await.unwrap_err();
    let error = client.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn what_a_direction_holds_is_charged_and_bounded() {
    let (mut client, mut server) = connected(Alpn::Opaque).await;
    // Some room is kept for the next small message.
    let kept = budget::charged();
    assert!(kept <= 1024, "{kept}");
    let sent = pattern(1 << 20);
    let written = tokio::time::timeout(Duration::from_millis(50), client.write_all(&sent));
    written.await.unwrap_err();
    let charged = budget::charged();
    assert!((64 * 1024..=64 * 1024 + kept).contains(&charged), "{charged}");
    let mut space = vec![0; 64 * 1024];
    server.read_exact(&mut space).await.unwrap();
    // The writer's task reduces its charge when it is polled.
    let read = tokio::time::timeout(Duration::from_millis(50), client.read_u8());
    read.await.unwrap_err();
    assert!(budget::charged() <= kept);
    assert!(client.is_idle());
}
