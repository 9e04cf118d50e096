//! Tests a rotation of the root with a proxy and the control plane.

use std::sync::Arc;

use leno_discovery::{Certificate, Client, Directory};
use leno_identity::{Authority, AuthorityState, RotationPhase};
use leno_types::TrustDomain;
use leno_wire::trust::bundle_hash;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::plane::{Plane, eventually, mesh};

/// A proxy that uses and acknowledges each certificate, as `leno-proxy` does.
struct Proxy {
    tasks: [JoinHandle<()>; 2],
    directory: Directory,
    certificates: watch::Receiver<Option<Arc<Certificate>>>,
}

impl Proxy {
    fn start((client, directory): (Client, Directory)) -> Self {
        let certificates = client.certificates();
        let (mut followed, used) = (certificates.clone(), directory.clone());
        let follow = tokio::spawn(async move {
            while followed.changed().await.is_ok() {
                let certificate = followed.borrow_and_update().clone();
                used.uses(&certificate.unwrap());
            }
        });
        let run = tokio::spawn(async move { match client.run().await {} });
        Self { tasks: [run, follow], directory, certificates }
    }

    fn certificate(&self) -> Option<Arc<Certificate>> {
        self.certificates.borrow().clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Whether the only proxy uses the roots that the control plane has published.
fn is_current(plane: &Plane) -> bool {
    let proxies = plane.state().proxies();
    proxies.len() == 1 && proxies[0].connected && proxies[0].in_use == plane.state().wanted_trust()
}

pub(crate) fn begin(plane: &Plane) -> AuthorityState {
    let next = Authority::new_root(&TrustDomain::default()).unwrap();
    plane.authority().trust().state().begin(next, 0).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_phase_is_acknowledged_by_hash_and_no_stream_is_cut() {
    let mut plane = Plane::start(&mesh(&["10.89.0.7"])).await;
    let proxy = Proxy::start(plane.client("shop/web-0"));
    eventually("the first bundle is acknowledged", || is_current(&plane)).await;
    let first = proxy.certificate().unwrap();
    assert_eq!(first.roots_der().len(), 1);

    let mut state = begin(&plane);
    plane.apply(&state);
    eventually("both roots are trusted", || is_current(&plane)).await;
    let added = proxy.certificate().unwrap();
    assert_eq!((added.roots_der().len(), &added.key_der), (2, &first.key_der), "it is not renewed");
    let reported = plane.state().proxies()[0].in_use.clone().unwrap();
    assert_eq!(reported.bundle, bundle_hash(&added.roots_der()));

    state = state.advance(0);
    plane.apply(&state);
    eventually("the certificate is of the new root", || is_current(&plane)).await;
    let switched = proxy.certificate().unwrap();
    assert_ne!(switched.issuer, first.issuer);
    assert_eq!(switched.roots_der().len(), 2);

    // The next control plane continues from the stored state, and proxies verify it with the new root.
    plane.stop().await;
    plane.restart().await;
    assert_eq!(plane.authority().trust().state().phase, RotationPhase::Switch);
    eventually("it is acknowledged to the next one", || is_current(&plane)).await;

    state = state.advance(0);
    plane.apply(&state);
    eventually("the old root is not trusted any more", || is_current(&plane)).await;
    let last = proxy.certificate().unwrap();
    assert_eq!((last.roots_der().len(), &last.key_der), (1, &switched.key_der));
    assert_ne!(last.roots_der(), first.roots_der());
    let status = proxy.directory.status();
    assert_eq!((status.connects, status.nacks), (2, 0), "one stream for each control plane");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_rotation_leaves_the_root_that_was_there() {
    let plane = Plane::start(&mesh(&["10.89.0.7"])).await;
    let proxy = Proxy::start(plane.client("shop/web-0"));
    eventually("the first bundle is acknowledged", || is_current(&plane)).await;
    let first = proxy.certificate().unwrap();

    let mut state = begin(&plane).advance(0);
    plane.apply(&state);
    eventually("the certificate is of the new root", || is_current(&plane)).await;
    state = state.abort(0).unwrap();
    plane.apply(&state);
    eventually("the certificate is of the old root again", || is_current(&plane)).await;
    assert_eq!(proxy.certificate().unwrap().issuer, first.issuer);
    state = state.advance(0).advance(0);
    plane.apply(&state);
    eventually("the new root is not trusted any more", || is_current(&plane)).await;
    assert_eq!(proxy.certificate().unwrap().roots_der(), first.roots_der());
}
