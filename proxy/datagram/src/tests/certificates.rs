//! Tests the certificates of peers: who may connect, and for how long.

use std::time::SystemTime;

use leno_types::Revocations;
use quinn::VarInt;

use super::*;
use crate::counts::Counts;
use crate::peers::{Peers, UNUSED};
use crate::quic::Endpoints;

#[test]
fn a_server_of_another_identity_gets_nothing() {
    run(async {
        let pair = Pair::start().await;
        let other = "spiffe://cluster.local/ns/shop/sa/other";
        pair.client.leads(PLACEHOLDER, pair.application, pair.route(other));
        let socket = socket().await;
        socket.send_to(b"secret", pair.placeholder()).await.unwrap();
        pair.client.counted(Count::OutboundConnectFailed, 1).await;
        hears_nothing(&socket).await;
        assert_eq!(pair.client.count(Count::OutboundSent), 0);
        assert!(pair.server.gate.asked.borrow().is_empty());
    });
}

#[test]
fn a_client_of_another_authority_opens_no_flow() {
    run(async {
        let pair = Pair::start().await;
        let liar = Ca::new("root");
        let credentials = liar.credentials_trusting(WEB, &pair.ca);
        pair.client.keyring.rotate(credentials).unwrap();
        let socket = socket().await;
        socket.send_to(b"x", pair.placeholder()).await.unwrap();
        pair.server.counted(Count::InboundConnectFailed, 1).await;
        hears_nothing(&socket).await;
        assert!(pair.server.gate.asked.borrow().is_empty());
    });
}

#[test]
fn a_client_of_another_trust_domain_opens_no_flow() {
    run(async {
        let pair = Pair::start().await;
        let credentials = pair.ca.credentials("spiffe://elsewhere/ns/shop/sa/web");
        pair.client.keyring.rotate(credentials).unwrap();
        let socket = socket().await;
        socket.send_to(b"x", pair.placeholder()).await.unwrap();
        pair.server.counted(Count::InboundConnectFailed, 1).await;
        hears_nothing(&socket).await;
        assert!(pair.server.gate.asked.borrow().is_empty());
    });
}

#[test]
fn new_flows_use_the_newest_certificate_and_old_ones_go_on() {
    run(async {
        let pair = Pair::start().await;
        let (old, new) = (socket().await, socket().await);
        pair.reaches(&old, b"old").await;
        pair.client.keyring.rotate(pair.ca.credentials(WEB)).unwrap();
        pair.reaches(&new, b"new").await;
        pair.reaches(&old, b"old goes on").await;
        assert_eq!(pair.client.datagrams.open().connections[0], 2);
        assert_eq!(pair.client.count(Count::OutboundOpened), 2);
    });
}

#[test]
fn a_revocation_ends_the_connection_at_either_end() {
    run(async {
        for ends_at_server in [true, false] {
            let pair = Pair::start().await;
            let socket = socket().await;
            pair.reaches(&socket, b"before").await;
            let (revoking, of, own) = match ends_at_server {
                true => (&pair.server, WEB, CART),
                false => (&pair.client, CART, WEB),
            };
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
            let until_s = i64::try_from(now.as_secs()).unwrap() + 3600;
            let revoked = Revocations::new([(identity(of), until_s)]);
            let credentials = pair.ca.credentials(own).with_revoked(revoked);
            revoking.keyring.rotate(credentials).unwrap();
            let count = match ends_at_server {
                true => Count::InboundUnproven,
                false => Count::OutboundUnproven,
            };
            revoking.counted(count, 1).await;
            socket.send_to(b"after", pair.placeholder()).await.unwrap();
            hears_nothing(&socket).await;
        }
    });
}

/// A connection to the server by a client that is not a proxy, with the credentials of `keyring`.
async fn connection(pair: &Pair, keyring: &Keyring) -> (Endpoints, quinn::Connection) {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let configs = configs(keyring);
    let endpoints = Endpoints::new(vec![socket], ProcessMark::random(), Some(&configs)).unwrap();
    let connecting = endpoints.connect(pair.server.quic_at, identity(CART), &configs).unwrap();
    (endpoints, connecting.await.unwrap())
}

/// The error code with which the server refuses these first bytes of a stream; `None` if it accepts them.
async fn answers(pair: &Pair, said: &[u8]) -> Option<u64> {
    let (_endpoints, connection) = connection(pair, &pair.client.keyring).await;
    let (mut sends, mut receives) = connection.open_bi().await.unwrap();
    sends.write_all(said).await.unwrap();
    // A server that has reset its direction reads no more, so an error does not matter.
    let _finished = sends.finish();
    let answer = timeout(SOON, receives.read(&mut [0])).await.unwrap();
    connection.close(VarInt::from_u32(0), b"");
    match answer {
        Ok(_) => None,
        Err(quinn::ReadError::Reset(code)) => Some(code.into_inner()),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn only_ports_open_a_flow() {
    run(async {
        let pair = Pair::start().await;
        for said in [&b""[..], &[1], &[0, 0, 0, 1], &[1, 1, 0, 0]] {
            let code = answers(&pair, said).await;
            assert_eq!(code, Some(Refusal::Malformed.code().into()), "{said:?}");
        }
        assert_eq!(answers(&pair, &[1, 1, 1, 1]).await, None);
        pair.reaches(&socket().await, b"as before").await;
    });
}

#[test]
fn a_peer_that_a_flow_waits_for_is_kept_until_it_is_unused() {
    run(async {
        let keyring = keyring(&Ca::new("root"), WEB);
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let endpoints = Endpoints::new(vec![socket], ProcessMark::random(), None).unwrap();
        let peers = Peers::new(Rc::new(endpoints), keyring.watch(), Rc::new(Counts::default()));
        let at = (ip(SERVER), 9).into();
        let waited_for = peers.peer(at, &identity(CART)).unwrap();
        tokio::time::pause();
        tokio::time::advance(UNUSED).await;
        peers.sweep();
        assert!(Rc::ptr_eq(&waited_for, &peers.peer(at, &identity(CART)).unwrap()));
        drop(waited_for);
        tokio::time::advance(UNUSED / 2).await;
        peers.sweep();
        assert_eq!(peers.open(), 1, "it is kept for a while after its last use");
        tokio::time::advance(UNUSED / 2).await;
        peers.sweep();
        assert_eq!(peers.open(), 0);
    });
}

#[test]
fn streams_that_say_nothing_take_the_places_of_their_identity_alone() {
    run(async {
        let pair = Pair::start().await;
        let (_endpoints, connection) = connection(&pair, &pair.server.keyring).await;
        let mut streams = Vec::new();
        let each = crate::bounds::SERVER_FLOWS / 2;
        for _ in 0..each + 100 {
            let mut stream = connection.open_bi().await.unwrap();
            // Less than what opens a flow.
            stream.0.write_all(&[1]).await.unwrap();
            streams.push(stream);
        }
        pair.server.counted(Count::InboundLimit, 100).await;
        assert_eq!(pair.server.datagrams.open().flows[1], each);
        assert!(pair.server.gate.asked.borrow().is_empty());
        pair.reaches(&socket().await, b"a client of another identity").await;
    });
}

/// Forwards all packets of clients, but only Retry packets of the server, so that no handshake completes.
async fn dead_end(to: SocketAddr) -> SocketAddr {
    let (near, far) = (socket().await, UdpSocket::bind("127.0.0.8:0").await.unwrap());
    let at = near.local_addr().unwrap();
    tokio::task::spawn_local(async move {
        let (mut client, mut one, mut other) = (None, [0; 2048], [0; 2048]);
        loop {
            tokio::select! {
                received = near.recv_from(&mut one) => {
                    let (length, from) = received.unwrap();
                    client = Some(from);
                    far.send_to(&one[..length], to).await.unwrap();
                }
                received = far.recv_from(&mut other) => {
                    let (length, _) = received.unwrap();
                    // The packet type Retry (RFC 9000 section 17.2.5).
                    let is_retry = other[0] & 0xf0 == 0xf0;
                    if let Some(client) = client.filter(|_| is_retry) {
                        near.send_to(&other[..length], client).await.unwrap();
                    }
                }
            }
        }
    });
    at
}

#[test]
fn handshakes_that_do_not_go_on_keep_no_other_client_out() {
    run(async {
        let pair = Pair::start().await;
        let socket = std::net::UdpSocket::bind("127.0.0.7:0").unwrap();
        let configs = configs(&pair.client.keyring);
        let endpoints =
            Endpoints::new(vec![socket], ProcessMark::random(), Some(&configs)).unwrap();
        let at = dead_end(pair.server.quic_at).await;
        let begin = |_| endpoints.connect(at, identity(CART), &configs).unwrap();
        let _connecting: Vec<_> = (0..2 * crate::bounds::HANDSHAKES).map(begin).collect();
        pair.server.counted(Count::InboundConnectLimit, 1).await;
        let began = tokio::time::Instant::now();
        pair.reaches(&super::socket().await, b"others").await;
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        assert_eq!(pair.server.count(Count::InboundConnected), 1);
    });
}
