//! Tests peers from other trust domains: each identity is proven only by the roots of its own domain.

use std::sync::Arc;

use super::ca::Leaf;
use super::certificates::Presented;
use super::*;

const NEAR: &str = "spiffe://near.example/ns/shop/sa/web";
const FAR: &str = "spiffe://far.example/ns/shop/sa/web";

/// A mesh that federates with `near.example`, and the authorities of both and of `far.example`.
struct Federation {
    mesh: Mesh,
    near: Ca,
    far: Ca,
}

impl Federation {
    fn new() -> Self {
        let (mesh, near, far) = (Mesh::new(), Ca::new("near"), Ca::new("far"));
        let domain = identity(NEAR).trust_domain().clone();
        let own = identity(WEB).trust_domain().clone();
        // Roots that are given for the own trust domain are ignored.
        let federated: FederatedRoots =
            [(domain, vec![near.root.clone()]), (own, vec![far.root.clone()])].into();
        for (keyring, uri) in [(&mesh.web, WEB), (&mesh.cart, CART)] {
            let credentials = mesh.ca.credentials(uri).with_federated(federated.clone());
            let clock = Arc::new(mesh.clock.clone());
            keyring.set(TlsConfigs::with_clock(credentials, clock).unwrap());
        }
        Self { mesh, near, far }
    }

    /// The identity that the server finds for this client; `Err("anonymous")` if it accepts the client without one,
    /// otherwise why it refuses the client.
    async fn client(&self, shown: Presented, mode: ClientIdentity) -> Result<String, String> {
        let (near, far) = pair().await;
        let client = async {
            let mut client = liar::connect(near, Some(shown), &["leno-h1"]).await.unwrap();
            // A refusal arrives with the first read. The end of an accepted connection arrives with it, too.
            let _ended = client.read_u8().await;
        };
        let accepting = async {
            let accepted = self.mesh.acceptor.accept(far, mode).await;
            accepted.map(|stream| stream.identity().map(ToString::to_string))
        };
        let (accepted, ()) = tokio::join!(accepting, client);
        match accepted {
            Ok(identity) => identity.ok_or_else(|| "anonymous".to_owned()),
            Err(error) => Err(error.reason().to_owned()),
        }
    }

    /// Whether a client that expects `expected` accepts a server with this certificate, or why not.
    async fn server(&self, shown: Presented, expected: &str) -> Result<(), String> {
        let (near, far) = pair().await;
        let (expected, offered) = (identity(expected), [Alpn::Http1]);
        let client = self.mesh.connector.connect(near, &expected, &offered);
        let (client, _server) = tokio::join!(client, liar::accept(far, shown, "leno-h1"));
        client.map(drop).map_err(|error| error.reason().to_owned())
    }
}

#[tokio::test]
async fn a_client_of_a_federated_trust_domain_is_its_own_identity() {
    let all = Federation::new();
    for mode in [ClientIdentity::Required, ClientIdentity::Optional] {
        assert_eq!(all.client(all.near.issue(&Leaf::of(NEAR)), mode).await, Ok(NEAR.to_owned()));
        let own = all.mesh.ca.issue(&Leaf::of(WEB));
        assert_eq!(all.client(own, mode).await, Ok(WEB.to_owned()));
    }
}

#[tokio::test]
async fn the_roots_of_one_trust_domain_prove_no_identity_of_another() {
    let all = Federation::new();
    let (mesh, near, far) = (&all.mesh.ca, &all.near, &all.far);
    for (signer, claimed, reason) in [
        (near, WEB, "unknown-issuer"),
        (mesh, NEAR, "unknown-issuer"),
        (far, FAR, "unknown-issuer"),
        (far, NEAR, "unknown-issuer"),
        (far, WEB, "unknown-issuer"),
        (near, FAR, "unknown-issuer"),
        (mesh, FAR, "trust-domain"),
    ] {
        let shown = || signer.issue(&Leaf::of(claimed));
        let refused = all.client(shown(), ClientIdentity::Required).await;
        assert_eq!(refused, Err(reason.to_owned()), "{claimed}");
        // If an identity is optional, the client is accepted without an identity.
        let anonymous = all.client(shown(), ClientIdentity::Optional).await;
        assert_eq!(anonymous, Err("anonymous".to_owned()), "{claimed}");
    }
}

#[tokio::test]
async fn a_server_is_checked_by_the_roots_of_the_trust_domain_that_is_expected() {
    let all = Federation::new();
    let shown = |signer: &Ca, uri| signer.issue(&Leaf::of(uri));
    assert_eq!(all.server(shown(&all.near, NEAR), NEAR).await, Ok(()));
    let refused = Err("unknown-issuer".to_owned());
    assert_eq!(all.server(shown(&all.mesh.ca, NEAR), NEAR).await, refused);
    assert_eq!(all.server(shown(&all.near, CART), CART).await, refused);
    // No root proves an identity of an unknown trust domain.
    assert_eq!(all.server(shown(&all.mesh.ca, FAR), FAR).await, refused);
}
