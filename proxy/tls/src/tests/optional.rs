//! Tests acceptors for which an identity is optional: a client that does not prove an identity is accepted without one.

use rcgen::ExtendedKeyUsagePurpose::ServerAuth;
use rustls_pki_types::PrivatePkcs8KeyDer;

use super::ca::Leaf;
use super::certificates::{Presented, lies};
use super::*;

/// Why the acceptor finds no identity for a client that presents this certificate. The client's bytes arrive
/// nevertheless.
async fn unproven(mesh: &Mesh, certificate: Option<Presented>) -> &'static str {
    let (near, far) = pair().await;
    let client = liar::connect(near, certificate, &["leno-h1"]);
    let (client, server) =
        tokio::join!(client, mesh.acceptor.accept(far, ClientIdentity::Optional));
    let (mut client, mut server) = (client.unwrap(), server.unwrap());
    client.write_all(b"ping").await.unwrap();
    let mut bytes = [0; 4];
    server.read_exact(&mut bytes).await.unwrap();
    assert_eq!((&bytes, server.alpn()), (b"ping", Alpn::Http1));
    assert_eq!(server.identity(), None);
    server.unproven().unwrap()
}

#[tokio::test]
async fn who_proves_an_identity_has_it() {
    let mesh = Mesh::new();
    let (client, server) = mesh.connected_with(Alpn::Http1, ClientIdentity::Optional).await;
    assert_eq!(client.identity(), Some(&identity(CART)));
    assert_eq!(server.identity(), Some(&identity(WEB)));
    assert!(!server.resumed());
    let (_client, server) = mesh.connected_with(Alpn::Opaque, ClientIdentity::Optional).await;
    assert!(server.resumed());
    assert_eq!(server.identity(), Some(&identity(WEB)));
}

#[tokio::test]
async fn a_client_with_a_wrong_certificate_or_none_has_no_identity() {
    let mesh = Mesh::new();
    assert_eq!(unproven(&mesh, None).await, "no-certificate");
    for (reason, web, _) in lies(&mesh.ca, &Ca::new("other"), &Ca::new("mesh")) {
        assert_eq!(unproven(&mesh, Some(web)).await, reason);
    }
    let for_servers = mesh.ca.issue(&Leaf { purposes: vec![ServerAuth], ..Leaf::of(WEB) });
    assert_eq!(unproven(&mesh, Some(for_servers)).await, "purpose");
}

#[tokio::test]
async fn a_certificate_without_its_key_is_refused() {
    let mesh = Mesh::new();
    let (chain, _) = mesh.ca.issue(&Leaf::of(WEB));
    let other = rcgen::KeyPair::generate().unwrap();
    let key = PrivatePkcs8KeyDer::from(other.serialize_der()).into();
    let (near, far) = pair().await;
    let client = async {
        let mut client = liar::connect_without_key(near, chain, key).await.unwrap();
        client.read_u8().await.unwrap_err();
    };
    let (server, ()) = tokio::join!(mesh.acceptor.accept(far, ClientIdentity::Optional), client);
    assert_eq!(server.unwrap_err().reason(), "bad-signature");
}

#[tokio::test]
async fn a_session_without_identity_is_resumed_without_and_not_under_strict() {
    let mesh = Mesh::new();
    let other = Ca::new("other");
    // The client trusts the mesh, but the mesh does not trust the client.
    let (chain, key) = other.issue(&Leaf::of(WEB));
    let credentials = Credentials::from_der(chain, key, vec![mesh.ca.root.clone()]).unwrap();
    let clock = std::sync::Arc::new(mesh.clock.clone());
    mesh.web.set(TlsConfigs::with_clock(credentials, clock).unwrap());
    for resumed in [false, true] {
        let (_client, server) = mesh.connected_with(Alpn::Http1, ClientIdentity::Optional).await;
        assert_eq!((server.identity(), server.resumed()), (None, resumed));
    }
    let (_client, server) = mesh.handshake_with(Alpn::Http1, ClientIdentity::Required).await;
    assert_eq!(server.unwrap_err().reason(), "unknown-issuer");
}

#[tokio::test]
async fn a_ticket_of_one_mode_is_worth_nothing_in_the_other() {
    use ClientIdentity::{Optional, Required};
    for (first, second) in [(Optional, Required), (Required, Optional)] {
        let mesh = Mesh::new();
        mesh.connected_with(Alpn::Http1, first).await;
        let (_client, server) = mesh.connected_with(Alpn::Http1, second).await;
        assert!(!server.resumed());
        assert_eq!(server.identity(), Some(&identity(WEB)));
    }
}

#[tokio::test]
async fn an_identity_ends_with_its_certificate_in_a_resumed_session_too() {
    let mesh = Mesh::new();
    let end_of_year = Duration::from_secs(199 * 86_400 + 86_400 - 3_600);
    mesh.clock.advance(end_of_year);
    // The server's own certificate stays valid, so the client has no reason to refuse it.
    let (chain, key) = mesh.ca.issue(&Leaf { years: (2030, 2032), ..Leaf::of(CART) });
    let credentials = Credentials::from_der(chain, key, vec![mesh.ca.root.clone()]).unwrap();
    let clock = std::sync::Arc::new(mesh.clock.clone());
    mesh.cart.set(TlsConfigs::with_clock(credentials, clock).unwrap());
    mesh.connected_with(Alpn::Http1, ClientIdentity::Optional).await;
    mesh.clock.advance(Duration::from_secs(2 * 3_600));
    let (_client, server) = mesh.connected_with(Alpn::Http1, ClientIdentity::Optional).await;
    assert!(server.resumed());
    assert_eq!(server.identity(), None);
}
