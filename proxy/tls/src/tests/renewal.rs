//! Tests that connections end with the certificate of the peer, unless the peer presents its next certificate.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;

use super::ca::{CART, Ca, Clock, Leaf, WEB, identity};
use super::{Mesh, echo, pair};
use crate::renewal::{RenewalDue, RenewalsArrive};
use crate::{Acceptor, Alpn, ClientIdentity, Credentials, HandshakeError, TlsConfigs, TlsStream};

const DAY: Duration = Duration::from_hours(24);

/// Credentials with a certificate that is valid until the end of the given year.
fn until(ca: &Ca, uri: &'static str, year: i32, clock: &Clock) -> TlsConfigs {
    let (chain, key) = ca.issue(&Leaf { years: (2030, year + 1), ..Leaf::of(uri) });
    let credentials = Credentials::from_der(chain, key, vec![ca.root.clone()]).unwrap();
    TlsConfigs::with_clock(credentials, Arc::new(clock.clone())).unwrap()
}

impl Mesh {
    fn due(&self) -> Vec<RenewalDue> {
        self.web.current().unwrap().renewals_due()
    }

    fn ended(&self) -> u64 {
        self.ended_where(RenewalsArrive::Here)
    }

    fn ended_where(&self, renewals: RenewalsArrive) -> u64 {
        self.cart.current().unwrap().end_expired(renewals)
    }

    /// Performs one renewal. Returns at how many connections the client and the server have recorded it.
    async fn renew(&self, due: &RenewalDue) -> (Result<u64, HandshakeError>, u64) {
        let mut renewed = self.acceptor.renewed();
        let (near, far) = pair().await;
        let server = async {
            let accepted = self.acceptor.accept(far, ClientIdentity::Optional).await?;
            assert_eq!(accepted.alpn(), Alpn::Renewal);
            self.acceptor.take_renewal(accepted).await
        };
        let (client, server) = tokio::join!(self.connector.renew(near, due), server);
        assert_eq!(client.is_ok(), server.is_ok(), "{client:?} {server:?}");
        (client, renewed.try_recv().map_or(0, |renewal| renewal.apply()))
    }
}

async fn is_cut(stream: &mut TlsStream) -> bool {
    stream.read(&mut [0]).await.is_err()
}

#[tokio::test]
async fn a_connection_ends_with_the_certificate_of_its_peer() {
    let mesh = Mesh::new();
    let (mut client, mut server) = mesh.connected(Alpn::Opaque).await;
    assert_eq!((mesh.due().len(), mesh.ended()), (0, 0), "half of a year is left");
    mesh.clock.advance(120 * DAY);
    assert_eq!((mesh.due().len(), mesh.ended()), (1, 0));
    assert_eq!(mesh.due().len(), 0, "due again after half of the time that is left");
    mesh.clock.advance(50 * DAY);
    assert_eq!((mesh.due().len(), mesh.due().len()), (1, 0));
    mesh.clock.advance(31 * DAY);
    assert_eq!(mesh.ended(), 2, "both ends are of this thread");
    assert!(is_cut(&mut client).await && is_cut(&mut server).await);
    assert_eq!(mesh.ended(), 0, "they are counted once");
}

#[tokio::test]
async fn a_connection_goes_on_with_the_next_certificates_of_both_ends() {
    let mesh = Mesh::new();
    let (mut client, mut server) = mesh.connected(Alpn::Opaque).await;
    let shown = server.certificate().unwrap();
    let before = shown.validity().unwrap();
    mesh.cart.set(until(&mesh.ca, CART, 2031, &mesh.clock));
    assert_eq!(mesh.due().len(), 0, "the client learns of it in time by asking");
    mesh.web.set(until(&mesh.ca, WEB, 2032, &mesh.clock));
    let due = mesh.due();
    assert_eq!(due.len(), 1, "this end has another certificate");
    let (at_client, at_server) = mesh.renew(&due[0]).await;
    assert_eq!((at_client.unwrap(), at_server), (1, 1));
    // Policies see the certificate that was presented last.
    assert!(shown.validity().unwrap().not_after_s > before.not_after_s);
    mesh.clock.advance(300 * DAY);
    assert_eq!(mesh.ended(), 0);
    echo(&mut client, &mut server).await;
    // The server's certificate expires at the end of 2031. Its connections end then, whenever the client's certificate
    // expires.
    mesh.clock.advance(300 * DAY);
    assert_eq!(mesh.ended(), 1);
    assert!(is_cut(&mut client).await && is_cut(&mut server).await);
    drop(server);
    assert_eq!(shown.validity(), None);
}

/// Regression: a proxy process that drained did not learn of renewals, which reach the next process, and cut streams
/// whose certificates had been renewed.
#[tokio::test]
async fn a_connection_outlives_the_certificate_of_a_client_that_renews_it_at_another_process() {
    let mesh = Mesh::new();
    let (mut client, mut server) = mesh.connected(Alpn::Opaque).await;
    mesh.cart.set(until(&mesh.ca, CART, 2032, &mesh.clock));
    mesh.web.set(until(&mesh.ca, WEB, 2032, &mesh.clock));
    let due = mesh.due();
    let (near, far) = pair().await;
    // Another process of the server's proxy accepts the renewal.
    let next = Acceptor::new(mesh.cart.watch());
    let accepts = async {
        let accepted = next.accept(far, ClientIdentity::Optional).await?;
        next.take_renewal(accepted).await
    };
    let (renewed, taken) = tokio::join!(mesh.connector.renew(near, &due[0]), accepts);
    assert_eq!((renewed.unwrap(), taken.is_ok()), (1, true));
    mesh.clock.advance(201 * DAY);
    assert_eq!(mesh.ended_where(RenewalsArrive::Elsewhere), 0);
    echo(&mut client, &mut server).await;
    // The client's end is renewed in this process, so it still ends when the server's certificate expires.
    mesh.clock.advance(2 * 366 * DAY);
    assert_eq!(mesh.ended_where(RenewalsArrive::Elsewhere), 1);
    assert!(is_cut(&mut client).await && is_cut(&mut server).await);
}

#[tokio::test]
async fn a_connection_of_hbone_is_renewed_by_no_client_and_ends_with_its_certificate() {
    let mesh = Mesh::new();
    let (near, far) = pair().await;
    let cart = identity(CART);
    let connects = mesh.connector.connect(near, &cart, &[Alpn::Hbone]);
    let (client, server) = tokio::join!(connects, mesh.acceptor.accept_hbone(far));
    let (_client, mut server) = (client.unwrap(), server.unwrap());
    mesh.clock.advance(201 * DAY);
    assert!(mesh.ended_where(RenewalsArrive::Elsewhere) > 0);
    assert!(is_cut(&mut server).await);
}

#[tokio::test]
async fn what_another_identity_names_is_not_renewed() {
    let mesh = Mesh::new();
    let (_client, mut server) = mesh.connected(Alpn::Opaque).await;
    mesh.cart.set(until(&mesh.ca, CART, 2032, &mesh.clock));
    mesh.web.set(until(&mesh.ca, WEB, 2032, &mesh.clock));
    let due = mesh.due();
    // A workload that knows the binding of another workload's connection presents its own certificate.
    mesh.web.set(until(&mesh.ca, "spiffe://cluster.local/ns/shop/sa/thief", 2032, &mesh.clock));
    let (_, at_server) = mesh.renew(&due[0]).await;
    assert_eq!(at_server, 0);
    // A workload that has the identity, but not the connection, does not know the binding.
    mesh.web.set(until(&mesh.ca, WEB, 2032, &mesh.clock));
    let guessed =
        RenewalDue { server: due[0].server, identity: identity(CART), bindings: vec![[7; 16]] };
    assert_eq!(mesh.renew(&guessed).await.1, 0);
    mesh.clock.advance(201 * DAY);
    mesh.ended();
    assert!(is_cut(&mut server).await);
}

#[tokio::test]
async fn nothing_and_too_much_are_no_renewal() {
    let mesh = Mesh::new();
    for bindings in [vec![], vec![[7; 16]; 1025]] {
        let server = "127.0.0.1:1".parse().unwrap();
        let due = RenewalDue { server, identity: identity(CART), bindings };
        assert!(mesh.renew(&due).await.0.is_err());
    }
}

#[tokio::test]
async fn each_connection_has_a_binding_that_both_ends_know() {
    let mesh = Mesh::new();
    let (first, resumed) = (mesh.connected(Alpn::Http1).await, mesh.connected(Alpn::Http1).await);
    assert!(resumed.0.resumed());
    let bindings = [&first, &resumed].map(|(client, server)| {
        assert_eq!(client.tls.binding(), server.tls.binding());
        client.tls.binding().unwrap()
    });
    assert_ne!(bindings[0], bindings[1]);
}
