//! Tests handshakes over loopback: which peers are accepted, which are refused and why, and rotation.

mod bytes;
mod ca;
mod certificates;
mod change_over;
mod clients;
mod federated;
mod first;
mod in_process;
mod liar;
mod memory;
mod optional;
mod outside;
mod renewal;

use std::io::IoSlice;
use std::time::Duration;

use leno_transport::{CONNECT_TIMEOUT, Io, Listener};
use leno_types::Revocations;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::*;
use ca::{CART, Ca, Clock, WEB, identity};

/// Both ends of a new connection: the client's, then the server's.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let near = leno_transport::connect(listener.address(), CONNECT_TIMEOUT).await.unwrap();
    let (far, _) = listener.accept().await.unwrap();
    (near, far)
}

/// Two workloads of one mesh: web, the client, and cart, the server.
struct Mesh {
    ca: Ca,
    clock: Clock,
    web: Keyring,
    cart: Keyring,
    connector: Connector,
    acceptor: Acceptor,
}

impl Mesh {
    fn new() -> Self {
        let (ca, clock) = (Ca::new("mesh"), Clock::new());
        let (web, cart) = (Keyring::new(), Keyring::new());
        web.set(ca.configs(WEB, &clock));
        cart.set(ca.configs(CART, &clock));
        let (connector, acceptor) = (web.connector(), cart.acceptor());
        Self { ca, clock, web, cart, connector, acceptor }
    }

    async fn handshake(
        &self,
        alpn: Alpn,
    ) -> (Result<TlsStream, HandshakeError>, Result<TlsStream, HandshakeError>) {
        self.handshake_with(alpn, ClientIdentity::Required).await
    }

    async fn handshake_with(
        &self,
        alpn: Alpn,
        client: ClientIdentity,
    ) -> (Result<TlsStream, HandshakeError>, Result<TlsStream, HandshakeError>) {
        let (near, far) = pair().await;
        let cart = identity(CART);
        let offered = [alpn];
        let connecting = self.connector.connect(near, &cart, &offered);
        tokio::join!(connecting, self.acceptor.accept(far, client))
    }

    /// Makes a handshake that succeeds and sends some bytes both ways, so that the client has the ticket to resume the
    /// session.
    async fn connected(&self, alpn: Alpn) -> (TlsStream, TlsStream) {
        self.connected_with(alpn, ClientIdentity::Required).await
    }

    async fn connected_with(&self, alpn: Alpn, client: ClientIdentity) -> (TlsStream, TlsStream) {
        let (client, server) = self.handshake_with(alpn, client).await;
        let (mut client, mut server) = (client.unwrap(), server.unwrap());
        echo(&mut client, &mut server).await;
        (client, server)
    }
}

/// Bytes by which a lost, doubled or misplaced piece is noticed, unless its length is a multiple of 2048.
fn pattern(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i.wrapping_mul(31) >> 3) as u8).collect()
}

/// Sends data in more than three writes of the same size, and reads it in pieces of another size. Every second write is
/// vectored.
async fn arrive_whole(
    (mut client, write): (TlsStream, usize),
    (mut server, read): (TlsStream, usize),
) {
    let sent = pattern(write * 3 + 40_000);
    let writer = async {
        for (at, chunk) in sent.chunks(write).enumerate() {
            if at % 2 == 0 {
                client.write_all(chunk).await.unwrap();
            } else {
                let mut slices = Vec::new();
                slices.extend(chunk.chunks(chunk.len().div_ceil(3)).map(IoSlice::new));
                let mut slices = &mut slices[..];
                while !slices.is_empty() {
                    let n = client.write_vectored(slices).await.unwrap();
                    IoSlice::advance_slices(&mut slices, n);
                }
            }
        }
        client.shutdown().await.unwrap();
    };
    let reader = async {
        let mut received = Vec::new();
        let mut space = vec![0; read];
        loop {
            match server.read(&mut space).await.unwrap() {
                0 => break received,
                n => received.extend_from_slice(&space[..n]),
            }
        }
    };
    let ((), received) = tokio::join!(writer, reader);
    assert!(received == sent, "writes of {write}, reads of {read}");
}

async fn echo(client: &mut TlsStream, server: &mut TlsStream) {
    let mut bytes = [0; 4];
    client.write_all(b"ping").await.unwrap();
    client.flush().await.unwrap();
    server.read_exact(&mut bytes).await.unwrap();
    server.write_all(b"pong").await.unwrap();
    server.flush().await.unwrap();
    client.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"pong");
}

#[tokio::test]
async fn both_sides_know_each_other_and_what_is_inside() {
    let mesh = Mesh::new();
    for alpn in Alpn::ALL {
        let (client, server) = mesh.connected(alpn).await;
        assert_eq!(client.identity(), Some(&identity(CART)));
        assert_eq!(server.identity(), Some(&identity(WEB)));
        assert_eq!((client.alpn(), server.alpn()), (alpn, alpn));
    }
}

#[tokio::test]
async fn the_key_exchange_is_hybrid_and_the_version_1_3() {
    let (client, server) = Mesh::new().connected(Alpn::Http1).await;
    for session in [client.session(), server.session()] {
        assert_eq!(session.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
        let group = session.negotiated_key_exchange_group().unwrap();
        assert_eq!(group.name(), rustls::NamedGroup::X25519MLKEM768);
    }
}

#[tokio::test]
async fn without_credentials_there_is_no_handshake() {
    let empty = Keyring::new();
    let (near, far) = pair().await;
    let client = empty.connector().connect(near, &identity(CART), &[Alpn::Http1]).await;
    assert_eq!(client.unwrap_err().reason(), "no-credentials");
    let server = empty.acceptor().accept(far, ClientIdentity::Required).await;
    assert_eq!(server.unwrap_err().reason(), "no-credentials");
}

#[tokio::test]
async fn a_second_connection_resumes_the_session() {
    let mesh = Mesh::new();
    let (client, server) = mesh.connected(Alpn::Http1).await;
    assert!(!client.resumed() && !server.resumed());
    let (client, server) = mesh.connected(Alpn::Opaque).await;
    assert!(client.resumed() && server.resumed());
    assert_eq!(server.identity(), Some(&identity(WEB)));
    assert_eq!((client.alpn(), server.alpn()), (Alpn::Opaque, Alpn::Opaque));
}

#[tokio::test]
async fn a_session_does_not_outlive_the_certificate() {
    let mesh = Mesh::new();
    mesh.connected(Alpn::Http1).await;
    // Tickets are valid for half a day; the client's certificate expires at the end of the year.
    mesh.clock.advance(Duration::from_secs(201 * 86_400));
    let (client, server) = mesh.handshake(Alpn::Http1).await;
    assert_eq!(client.unwrap_err().reason(), "expired");
    assert!(server.is_err());
}

#[tokio::test]
async fn a_resumed_session_is_checked_against_the_clock() {
    // The ticket is still valid, so only the mesh's own check of the certificate can refuse the session.
    let mesh = Mesh::new();
    let end_of_year = Duration::from_secs(199 * 86_400 + 86_400 - 3_600);
    mesh.clock.advance(end_of_year);
    mesh.connected(Alpn::Http1).await;
    mesh.clock.advance(Duration::from_secs(2 * 3_600));
    let (client, server) = mesh.handshake(Alpn::Http1).await;
    assert_eq!(client.unwrap_err().reason(), "expired");
    assert_eq!(server.unwrap_err().reason(), "expired");
}

#[tokio::test]
async fn rotation_cuts_nothing_and_is_used_at_once() {
    let mesh = Mesh::new();
    let (mut client, mut server) = mesh.connected(Alpn::Http1).await;
    mesh.web.set(mesh.ca.configs(WEB, &mesh.clock));
    mesh.cart.set(mesh.ca.configs(CART, &mesh.clock));
    echo(&mut client, &mut server).await;
    let (fresh, _server) = mesh.connected(Alpn::Http1).await;
    assert!(!fresh.resumed());
    echo(&mut client, &mut server).await;
}

#[tokio::test]
async fn a_session_with_rotated_credentials_is_not_resumed_by_either_side() {
    for rotate_client in [true, false] {
        let mesh = Mesh::new();
        mesh.connected(Alpn::Http1).await;
        if rotate_client {
            mesh.web.set(mesh.ca.configs(WEB, &mesh.clock));
        } else {
            mesh.cart.set(mesh.ca.configs(CART, &mesh.clock));
        }
        let (client, _server) = mesh.connected(Alpn::Http1).await;
        assert!(!client.resumed());
    }
}

#[tokio::test]
async fn roots_rotate_with_overlap() {
    let mesh = Mesh::new();
    let new = Ca::new("mesh, next root");
    let both = |ca: &Ca, uri| {
        let (chain, key) = ca.issue(&ca::Leaf::of(uri));
        let roots = vec![mesh.ca.root.clone(), new.root.clone()];
        let credentials = Credentials::from_der(chain, key, roots).unwrap();
        TlsConfigs::with_clock(credentials, std::sync::Arc::new(mesh.clock.clone())).unwrap()
    };
    // First both bundles get the new root, then the certificates change one by one, then the old
    // root is removed.
    mesh.web.set(both(&mesh.ca, WEB));
    mesh.connected(Alpn::Http1).await;
    mesh.cart.set(both(&mesh.ca, CART));
    mesh.connected(Alpn::Http1).await;
    mesh.web.set(both(&new, WEB));
    mesh.connected(Alpn::Http1).await;
    mesh.cart.set(both(&new, CART));
    mesh.connected(Alpn::Http1).await;
    mesh.web.set(new.configs(WEB, &mesh.clock));
    mesh.connected(Alpn::Http1).await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_given_up() {
    let mesh = Mesh::new();
    let (near, _far) = pair().await;
    let client = mesh.connector.connect(near, &identity(CART), &[Alpn::Http1]).await;
    assert_eq!(client.unwrap_err().reason(), "timeout");
    let (_near, far) = pair().await;
    let server = mesh.acceptor.accept(far, ClientIdentity::Required).await;
    assert_eq!(server.unwrap_err().reason(), "timeout");
}

/// The time from which the tests' certificates are valid: the beginning of 2030.
const BEGIN_S: i64 = 1_893_456_000;

#[tokio::test]
async fn a_revoked_certificate_is_refused_and_its_connections_end() {
    let mesh = Mesh::new();
    let (mut client, mut server) = mesh.connected(Alpn::Http1).await;
    let revoked = |uri: &str, begin| Revocations::new([(identity(uri), begin)]);
    assert_eq!(end_revoked(&revoked(WEB, BEGIN_S - 1)), 0, "it began later");

    let configs = |revoked: Revocations| {
        let credentials = mesh.ca.credentials(CART).with_revoked(revoked);
        TlsConfigs::with_clock(credentials, std::sync::Arc::new(mesh.clock.clone())).unwrap()
    };
    mesh.cart.set(configs(revoked(WEB, BEGIN_S)));
    for (mode, outcome) in
        [(ClientIdentity::Required, None), (ClientIdentity::Optional, Some("revoked"))]
    {
        let (_client, server) = mesh.handshake_with(Alpn::Http1, mode).await;
        match outcome {
            None => assert_eq!(server.unwrap_err().reason(), "revoked"),
            Some(reason) => assert_eq!(server.unwrap().unproven(), Some(reason)),
        }
    }
    // Only the server's end of the connection ends. At the client's end, the peer's certificate is the server's, which
    // was not revoked.
    assert_eq!(end_revoked(&revoked(WEB, BEGIN_S)), 1);
    let mut byte = [0];
    assert!(server.read(&mut byte).await.is_err(), "a cut stream is no complete one");
    assert!(client.read(&mut byte).await.is_err());
    drop((client, server));
    assert_eq!(end_revoked(&revoked(WEB, BEGIN_S)), 0, "it is not listed any more");

    mesh.cart.set(configs(Revocations::default()));
    mesh.web.set(mesh.ca.configs(WEB, &mesh.clock));
    let (client, _server) = mesh.connected(Alpn::Http1).await;
    assert_eq!(
        end_revoked(&revoked(CART, BEGIN_S)),
        1,
        "a client closes its connection to a server"
    );
    drop(client);
}
