//! Tests with servers that have sent nothing yet, over pipes in memory.

use leno_tls::{
    Alpn, ClientIdentity, Credentials, HandshakeError, Keyring, TlsStream, refused_by_server,
};
use leno_transport::MAX_PEEKED;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const WEB: &str = "spiffe://cluster.local/ns/shop/sa/web";
const CART: &str = "spiffe://cluster.local/ns/shop/sa/cart";

/// A server's connection that fails with the error `with`, once it has accepted `after` bytes.
struct Breaking {
    after: usize,
    taken: usize,
    with: Option<io::Error>,
}

impl AsyncRead for Breaking {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.taken < self.after {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Err(self.with.take().unwrap()))
    }
}

impl AsyncWrite for Breaking {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.taken += bytes.len();
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A client that has already sent `first`, and the client's other end.
fn client(first: &[u8]) -> (Peeked<DuplexStream>, DuplexStream) {
    let (client, far) = duplex(4 * MAX_HELD);
    (Peeked::with_bytes(client, first.to_vec()), far)
}

/// A server's connection, and its other end.
fn server(room: usize) -> (Peeked<DuplexStream>, DuplexStream) {
    let (server, beyond) = duplex(room);
    (server.into(), beyond)
}

/// The result for a server whose connection breaks after `after` bytes, and the client's bytes that are kept.
async fn broken(after: usize) -> (Greeting, Vec<u8>) {
    let with = Some(io::ErrorKind::ConnectionReset.into());
    let mut server = Peeked::from(Breaking { after, taken: 0, with });
    let (mut client, mut far) = client(b"hello");
    far.write_all(b" world").await.unwrap();
    (greet(&mut server, &mut client).await, client.bytes().to_vec())
}

#[tokio::test]
async fn what_the_server_says_ends_it_and_what_the_client_said_has_gone_on() {
    let (mut server, mut beyond) = server(64);
    let (mut client, mut far) = client(b"hello");
    far.write_all(b" world").await.unwrap();
    let answers = async {
        let mut heard = [0; 11];
        beyond.read_exact(&mut heard).await.unwrap();
        beyond.write_all(b"yes?").await.unwrap();
        heard
    };
    let (greeting, heard) = tokio::join!(greet(&mut server, &mut client), answers);
    assert_eq!(&heard, b"hello world");
    assert!(matches!(greeting, Greeting::Going { sent: 11 }), "{greeting:?}");
    assert_eq!(server.bytes(), b"yes?");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stays_silent_is_waited_for_within_a_bound() {
    let (mut server, _beyond) = server(3);
    let (mut client, _far) = client(b"hello");
    let greeting = greet(&mut server, &mut client).await;
    // As many bytes as the server accepts are sent; the relay sends the rest.
    assert!(matches!(greeting, Greeting::Going { sent: 3 }), "{greeting:?}");
}

#[tokio::test]
async fn a_break_loses_nothing_of_what_the_client_said() {
    for after in [0, 5, 11] {
        let (greeting, kept) = broken(after).await;
        let Greeting::Broken { sent, .. } = greeting else { panic!("{greeting:?}") };
        assert_eq!(sent, after);
        assert!(b"hello world".starts_with(&kept) && kept.len() >= 5.max(after), "{kept:?}");
    }
}

/// A root with its key, and its certificate as PEM.
fn authority() -> (Issuer<'static, KeyPair>, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = params.self_signed(&key).unwrap().pem();
    (Issuer::new(params, key), root)
}

/// Credentials of an identity, which trust `roots`.
fn keyring(issuer: &Issuer<'static, KeyPair>, uri: &str, roots: &str) -> Keyring {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
    let chain = params.signed_by(&key, issuer).unwrap().pem();
    let pem = (chain.as_bytes(), key.serialize_pem());
    let credentials = Credentials::from_pem(pem.0, pem.1.as_bytes(), roots.as_bytes()).unwrap();
    let keyring = Keyring::new();
    keyring.rotate(credentials).unwrap();
    keyring
}

#[tokio::test]
async fn a_server_that_refuses_the_certificate_says_so_whatever_was_sent() {
    let ((mesh, root), (_, other)) = (authority(), authority());
    let (web, cart) = (keyring(&mesh, WEB, &root), keyring(&mesh, CART, &other));
    let (connector, acceptor) = (web.connector(), cart.acceptor());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for length in [0, 1, 4096, MAX_HELD - 1].repeat(8) {
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (far, _) = listener.accept().await.unwrap();
        let refusing = async {
            let refused = acceptor.accept(far, ClientIdentity::Required).await.unwrap_err();
            assert!(matches!(refused, HandshakeError::Refused(_)), "{refused}");
        };
        let greeted = async {
            let cart = CART.parse().unwrap();
            let server: TlsStream = connector.connect(near, &cart, &[Alpn::Opaque]).await.unwrap();
            let (mut client, _far) = client(&vec![7; length]);
            let greeting = greet(&mut server.into(), &mut client).await;
            (greeting, client.bytes().len())
        };
        let ((greeting, kept), ()) = tokio::join!(greeted, refusing);
        let Greeting::Broken { error, .. } = greeting else { panic!("{greeting:?}") };
        assert!(refused_by_server(&error).is_some(), "{length} bytes: {error}");
        assert_eq!(kept, length);
    }
}

#[tokio::test]
async fn what_is_held_is_bounded() {
    let (mut server, mut beyond) = server(4 * MAX_HELD);
    let (mut client, mut far) = client(b"");
    far.write_all(&vec![7; 3 * MAX_HELD]).await.unwrap();
    let greeting = greet(&mut server, &mut client).await;
    let Greeting::Going { sent } = greeting else { panic!("{greeting:?}") };
    assert!(sent == client.bytes().len() && (MAX_HELD..=MAX_PEEKED).contains(&sent), "{sent}");
    beyond.read_exact(&mut vec![0; sent]).await.unwrap();
}

#[tokio::test]
async fn the_clients_end_is_left_to_the_relay() {
    let (mut server, _beyond) = server(64);
    let (mut client, far) = client(b"hello");
    drop(far);
    let greeting = greet(&mut server, &mut client).await;
    assert!(matches!(greeting, Greeting::Going { sent: 5 }), "{greeting:?}");
}
