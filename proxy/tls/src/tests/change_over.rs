//! Tests the change from TLS to a pipe in memory if the server takes the pipe only after the client has begun to send.
//! The bytes that the client has sent until then go through TLS.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;

use leno_transport::budget;
use tokio::io::AsyncWrite;
use tokio::sync::oneshot;

use super::in_process::{elsewhere, mesh, session_of_server};
use super::*;
use crate::tls::Tls;

/// How long to wait for something that must happen. The whole time only passes if the test fails.
const FOR_EVER: Duration = Duration::from_secs(120);

/// Two sockets whose buffers are smaller than one write, so that encrypted bytes must wait at their sender.
async fn tight_pair() -> (TcpStream, TcpStream) {
    let (near, far) = pair().await;
    for socket in [&near, &far] {
        let socket = socket2::SockRef::from(socket);
        socket.set_send_buffer_size(16 * 1024).unwrap();
        socket.set_recv_buffer_size(16 * 1024).unwrap();
    }
    (near, far)
}

/// A client that can already send, and a server that has read nothing since it sent its part of the handshake.
async fn client_is_ahead(
    mesh: &Mesh,
    (near, far): (TcpStream, TcpStream),
) -> (TlsStream, Box<Tls>) {
    let cart = identity(CART);
    let mut connecting = pin!(mesh.connector.connect(near, &cart, &[Alpn::Opaque]));
    let mut server = Tls::new(far, session_of_server(mesh));
    loop {
        let connected = poll_fn(|cx| Poll::Ready(connecting.as_mut().poll(cx))).await;
        if let Poll::Ready(client) = connected {
            return (client.unwrap(), server);
        }
        let shaken = poll_fn(|cx| Poll::Ready(server.poll_handshake(cx))).await;
        assert!(shaken.is_pending());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn finish(server: &mut Tls) {
    poll_fn(|cx| server.poll_handshake(cx)).await.unwrap();
}

/// Takes the pipe, as an acceptor does after the handshake.
fn take(mut server: Box<Tls>) -> TlsStream {
    server.take_pipe();
    assert!(server.passage.writes);
    TlsStream::new(server, Ok(identity(WEB)), Alpn::Opaque)
}

/// Writes as many bytes as the connection accepts without a wait.
async fn write_now(client: &mut TlsStream, bytes: &[u8]) -> usize {
    let mut n = 0;
    while n < bytes.len() {
        let left = &bytes[n..];
        let wrote = poll_fn(|cx| Poll::Ready(Pin::new(&mut *client).poll_write(cx, left))).await;
        let Poll::Ready(wrote) = wrote else { break };
        n += wrote.unwrap();
    }
    n
}

/// Waits until the bytes that were sent have arrived.
async fn arrive() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

async fn write_and_read(stream: TlsStream, sent: &[u8]) -> Vec<u8> {
    let (mut from, mut to) = tokio::io::split(stream);
    let writes = async {
        to.write_all(sent).await.unwrap();
        to.shutdown().await.unwrap();
    };
    let mut received = Vec::new();
    let ((), read) = tokio::join!(writes, from.read_to_end(&mut received));
    read.unwrap();
    received
}

async fn write_then_read(mut stream: TlsStream, sent: &[u8]) -> (TlsStream, Vec<u8>) {
    stream.write_all(sent).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).await.unwrap();
    (stream, received)
}

#[tokio::test]
async fn a_server_that_fills_the_pipe_leaves_the_bytes_of_tls_to_its_reader() {
    let sent = pattern(200_000);
    for is_late in [false, true] {
        let sockets = pair().await;
        socket2::SockRef::from(&sockets.0).set_send_buffer_size(400_000).unwrap();
        let (mut client, mut server) = client_is_ahead(&mesh(), sockets).await;
        if !is_late {
            finish(&mut server).await;
        }
        assert_eq!(write_now(&mut client, &sent).await, sent.len());
        assert_eq!(client.tls.passage.written, 200_000);
        arrive().await;
        if is_late {
            // The first bytes arrive together with the end of the handshake, and wait in the session's buffer.
            finish(&mut server).await;
            assert!(server.held.is_some());
        }
        let served = write_then_read(take(server), &sent);
        let asked = write_and_read(client, b"");
        let ((_server, request), answer) = tokio::join!(served, asked);
        assert!(request == sent && answer == sent, "late: {is_late}");
    }
}

/// What both ends send: the client a part of its request before the server takes the pipe, all else after that.
#[derive(Clone, Copy, Debug)]
struct Change {
    /// The length of the request's part before that; less if the sockets do not accept so much, and the rest is sent
    /// later.
    before: usize,
    /// The length of the request's part after that. `None`: the client has ended its direction before, if the first
    /// part was accepted completely.
    after: Option<usize>,
    answer: usize,
    /// Whether the server writes all of its answer before it reads.
    answers_first: bool,
    /// Whether the server finishes its handshake only after the client has sent, so that it reads the first bytes with
    /// it.
    is_late: bool,
    /// Whether the sockets' buffers are small ([`tight_pair`]).
    is_tight: bool,
}

impl Change {
    async fn run(self, mesh: &Mesh) {
        let request = pattern(self.before + self.after.unwrap_or_default());
        let answer = pattern(self.answer);
        let sockets = if self.is_tight { tight_pair().await } else { pair().await };
        let (mut client, mut server) = client_is_ahead(mesh, sockets).await;
        if !self.is_late {
            finish(&mut server).await;
        }
        let n = write_now(&mut client, &request[..self.before]).await;
        if self.after.is_none() && n == self.before {
            let shut = poll_fn(|cx| Poll::Ready(Pin::new(&mut client).poll_shutdown(cx))).await;
            assert!(!matches!(shut, Poll::Ready(Err(_))));
        }
        if self.is_late {
            finish(&mut server).await;
        }
        let server = take(server);
        // If a client ends before it has received the server's tickets, its kernel resets the connection.
        arrive().await;
        let asked = write_and_read(client, &request[n..]);
        let served = async {
            if self.answers_first {
                return write_then_read(server, &answer).await.1;
            }
            write_and_read(server, &answer).await
        };
        let (received, answered) = tokio::join!(served, asked);
        assert!(received == request && answered == answer, "{self:?}");
    }
}

#[tokio::test]
async fn bytes_before_and_after_the_change_are_whole_and_in_order() {
    let mesh = mesh();
    let (befores, afters) = ([0, 1, 16_385, 200_000], [None, Some(0), Some(1), Some(100_000)]);
    let answers = [0, 1, 65_536, 200_000];
    let sizes = befores.into_iter().flat_map(|before| {
        let of = move |after| answers.map(|answer| (before, after, answer));
        afters.into_iter().flat_map(of)
    });
    for (before, after, answer) in sizes {
        for how in 0..8_u8 {
            let [answers_first, is_late, is_tight] = [1, 2, 4].map(|bit| how & bit != 0);
            if is_tight && before < 64 * 1024 {
                continue;
            }
            let change = Change { before, after, answer, answers_first, is_late, is_tight };
            let ended = tokio::time::timeout(FOR_EVER, change.run(&mesh)).await;
            assert!(ended.is_ok(), "{change:?} has no end");
        }
    }
    assert_eq!(budget::charged(), 0);
}

#[tokio::test]
async fn a_reader_sends_what_was_encrypted_before_the_change() {
    let sent = pattern(60_000);
    let (mut client, mut server) = client_is_ahead(&mesh(), tight_pair().await).await;
    finish(&mut server).await;
    assert_eq!(write_now(&mut client, &sent).await, sent.len());
    let mut server = take(server);
    let mut received = vec![0; sent.len()];
    let exchange = async {
        // The client neither writes nor flushes any more.
        let served = async {
            server.read_exact(&mut received).await.unwrap();
            server.write_u8(7).await.unwrap();
        };
        tokio::join!(client.read_u8(), served).0.unwrap()
    };
    assert_eq!(tokio::time::timeout(FOR_EVER, exchange).await.unwrap(), 7);
    assert!(received == sent);
}

/// The server's thread takes the pipe while the client's thread writes and closes.
#[tokio::test]
async fn a_change_while_both_threads_write_loses_nothing() {
    let mesh = mesh();
    for at in 0..60_usize {
        let sent = pattern(at * at * 200);
        let (listening, address) = oneshot::channel();
        let (cart, answer) = (mesh.cart.clone(), sent.clone());
        let served = elsewhere(move || async move {
            let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            listening.send(listener.address()).unwrap();
            let (far, _) = listener.accept().await.unwrap();
            let config = cart.current().unwrap().server();
            let session = rustls::server::UnbufferedServerConnection::new(config).unwrap();
            let mut server = Tls::new(far, crate::session::Session::Server(session));
            finish(&mut server).await;
            tokio::time::sleep(Duration::from_micros(at as u64 * 20)).await;
            let server = take(server);
            if at % 2 == 0 {
                return write_then_read(server, &answer).await.1;
            }
            write_and_read(server, &answer).await
        });
        let near = leno_transport::connect(address.await.unwrap(), CONNECT_TIMEOUT).await.unwrap();
        let client = mesh.connector.connect(near, &identity(CART), &[Alpn::Opaque]).await.unwrap();
        let asked = tokio::time::timeout(FOR_EVER, write_and_read(client, &sent));
        assert!(asked.await.unwrap() == sent, "the answer, round {at}");
        assert!(served.await.unwrap() == sent, "the request, round {at}");
    }
}

/// A server that writes to the pipe does not read the socket while bytes or an end of the client wait there: only its
/// reader may. A client that has ended its direction in order may still read.
#[tokio::test]
async fn a_writer_whose_client_left_bytes_or_an_end_in_tls_learns_that_the_network_failed() {
    for is_closed in [false, true] {
        let ((near, mut tap), (mut other_tap, far)) = (pair().await, pair().await);
        let mesh = mesh();
        let prepare = async {
            let (mut client, mut server) = client_is_ahead(&mesh, (near, far)).await;
            finish(&mut server).await;
            client.write_all(&pattern(20_000)).await.unwrap();
            client.flush().await.unwrap();
            if is_closed {
                client.shutdown().await.unwrap();
            }
            let mut server = take(server);
            if is_closed {
                server.read_to_end(&mut Vec::new()).await.unwrap();
            }
            arrive().await;
            (client, server)
        };
        let (mut client, mut server) = tokio::select! {
            both = prepare => both,
            ended = tokio::io::copy_bidirectional(&mut tap, &mut other_tap) => panic!("{ended:?}"),
        };
        other_tap.reset_on_drop();
        drop(other_tap);
        tokio::time::pause();
        let sent = pattern(1 << 20);
        let written = tokio::time::timeout(FOR_EVER, server.write_all(&sent)).await.unwrap();
        let error = written.unwrap_err();
        let is_reset =
            matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe);
        assert!(is_reset, "{error}");
        tokio::time::resume();
        client.read_to_end(&mut Vec::new()).await.unwrap_err();
    }
}

#[tokio::test]
async fn small_writes_to_a_late_reader_grow_a_direction_a_few_times() {
    let (mut client, _server) = mesh().connected(Alpn::Opaque).await;
    let mut sizes = std::collections::BTreeSet::new();
    for _ in 0..6_500 {
        client.write_all(&[7; 10]).await.unwrap();
        sizes.insert(budget::charged());
    }
    assert!(sizes.len() <= 16, "{sizes:?}");
    assert!(sizes.last().is_some_and(|most| (64 * 1024..=65 * 1024).contains(most)), "{sizes:?}");
}
