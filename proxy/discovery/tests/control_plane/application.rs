//! Tests certificates for the application, over the Workload API of its proxy.

use std::time::{Duration, SystemTime};

use leno_discovery::{ApplicationIdentity, CertificateSource};
use leno_identity::MIN_LIFETIME;
use leno_spiffe::{Bundles, Svid, Svids, WorkloadApiError};
use leno_types::{Identity, TrustDomain, WorkloadApiAddress};
use tempfile::TempDir;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

use crate::plane::{Plane, eventually, mesh};
use crate::rotation::begin;

/// A proxy of `shop/web-0` that serves its application.
struct Served {
    directory: TempDir,
    application: ApplicationIdentity,
    tasks: [JoinHandle<()>; 2],
}

impl Served {
    fn start(plane: &Plane) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (mut client, _directory) = plane.client("shop/web-0");
        let application = client.application().expect("the proxy has a token");
        let listener = UnixListener::bind(directory.path().join("api.sock")).unwrap();
        let (own, mut issued) = (application.clone(), client.certificates());
        let run = tokio::spawn(async move { match client.run().await {} });
        let serve = tokio::spawn(async move {
            // An application usually starts once its proxy is ready.
            drop(issued.wait_for(Option::is_some).await);
            match own.serve(listener).await {}
        });
        Self { directory, application, tasks: [run, serve] }
    }

    fn socket(&self) -> WorkloadApiAddress {
        format!("unix://{}", self.directory.path().join("api.sock").display()).parse().unwrap()
    }

    async fn next(svids: &mut Svids) -> Svid {
        let next = tokio::time::timeout(Duration::from_secs(60), svids.next());
        let mut all = next.await.expect("in time").unwrap();
        assert_eq!(all.len(), 1);
        all.remove(0)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_has_the_identity_of_its_proxy_with_a_key_of_its_own_through_a_rotation() {
    let plane = Plane::start(&mesh(&["10.89.0.7"])).await;
    let served = Served::start(&plane);
    let issued = || plane.metric("leno_control_certificates_issued_total");
    eventually("the proxy has its certificate", || issued() == 1).await;
    assert_eq!(served.application.counts().svids, 0);

    let socket = served.socket();
    let mut svids = Svids::open(&socket).await.unwrap();
    let first = Served::next(&mut svids).await;
    assert_eq!(first.id, "spiffe://cluster.local/ns/shop/sa/web");
    assert_eq!(issued(), 2, "the key is not the proxy's");
    assert_eq!(first.roots_der.len(), 1);
    // A second process of the pod gets the same certificate.
    let same = Served::next(&mut Svids::open(&socket).await.unwrap()).await;
    assert_eq!((same.key_der, same.chain_der), (first.key_der.clone(), first.chain_der.clone()));
    assert_eq!(issued(), 2);
    let mut bundles = Bundles::open(&socket).await.unwrap();
    let of_all = bundles.next().await.unwrap();
    assert_eq!(of_all.len(), 1);
    assert_eq!(of_all.values().next().unwrap().as_ref().unwrap(), &first.roots_der);

    let mut state = begin(&plane);
    plane.apply(&state);
    let added = Served::next(&mut svids).await;
    assert_eq!((added.roots_der.len(), &added.key_der), (2, &first.key_der));
    state = state.advance(0);
    plane.apply(&state);
    let mut switched = Served::next(&mut svids).await;
    while switched.key_der == first.key_der {
        switched = Served::next(&mut svids).await;
    }
    assert_ne!(switched.chain_der, first.chain_der);
    state = state.advance(0);
    plane.apply(&state);
    while switched.roots_der.len() > 1 {
        switched = Served::next(&mut svids).await;
    }
    assert_ne!(switched.roots_der, first.roots_der);
    drop((svids, bundles));
    eventually("no connection is left", || served.application.counts().connections == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_the_workload_api_have_a_bound() {
    let plane = Plane::start(&mesh(&["10.89.0.7"])).await;
    let served = Served::start(&plane);
    let path = served.directory.path().join("api.sock");
    let mut idle = Vec::new();
    for _ in 0..16 {
        idle.push(UnixStream::connect(&path).await.unwrap());
    }
    eventually("all have a place", || served.application.counts().connections == 16).await;
    let refused = Svids::open(&served.socket()).await;
    assert!(refused.is_err(), "{refused:?}");
    assert!(served.application.counts().refused >= 1);
    // The connections stay open and send nothing.
    eventually("the places are free", || served.application.counts().connections == 0).await;
    assert_eq!(served.application.counts().silent, 16);
    let mut svids = Svids::open(&served.socket()).await.unwrap();
    Served::next(&mut svids).await;
    // A client that has made a call may wait for the next certificate as long as it likes.
    tokio::time::sleep(Duration::from_secs(11)).await;
    let counts = served.application.counts();
    assert_eq!((counts.connections, counts.silent, counts.svids), (1, 16, 1));
}

/// Expects that a new caller is refused after the wait for a certificate.
async fn refused(socket: &WorkloadApiAddress) {
    let answer = Svids::open(socket).await.unwrap().next().await;
    let Err(WorkloadApiError::Refused(_, status)) = &answer else { panic!("{answer:?}") };
    assert_eq!(status.code(), tonic::Code::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_has_ended_is_given_to_no_new_caller() {
    let mut plane = Plane::start_with(&mesh(&["10.89.0.7"]), MIN_LIFETIME).await;
    let served = Served::start(&plane);
    let socket = served.socket();
    let mut svids = Svids::open(&socket).await.unwrap();
    let first = Served::next(&mut svids).await;
    plane.stop().await;
    tokio::time::sleep(MIN_LIFETIME + Duration::from_secs(1)).await;
    refused(&socket).await;
    // Roots remain valid after the certificate has expired.
    let of_all = Bundles::open(&socket).await.unwrap().next().await.unwrap();
    assert_eq!(of_all.values().next().unwrap().as_ref().unwrap(), &first.roots_der);
    let sent = served.application.counts().svids;
    plane.restart().await;
    Served::next(&mut Svids::open(&socket).await.unwrap()).await;
    eventually("it is counted", || served.application.counts().svids > sent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_was_revoked_is_given_to_no_new_caller() {
    let plane = Plane::start(&mesh(&["10.89.0.7"])).await;
    let served = Served::start(&plane);
    let socket = served.socket();
    let mut svids = Svids::open(&socket).await.unwrap();
    Served::next(&mut svids).await;
    // Without its token the proxy gets no other certificate.
    plane.revoke("shop/web-0");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let identity = Identity::new(TrustDomain::default(), "shop", "web").unwrap();
    let state = plane.authority().trust().state().revoke(&identity, now, now).unwrap();
    plane.apply(&state);
    let is_refused = async {
        while Svids::open(&socket).await.unwrap().next().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_refused).await.expect("it is in use no more");
    refused(&socket).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_learns_that_there_is_no_certificate_and_gets_one_later() {
    let mut plane = Plane::start(&mesh(&["10.89.0.7"])).await;
    let served = Served::start(&plane);
    eventually("the proxy has its certificate", || {
        plane.metric("leno_control_certificates_issued_total") == 1
    })
    .await;
    plane.stop().await;
    let mut svids = Svids::open(&served.socket()).await.unwrap();
    let refused = svids.next().await.unwrap_err();
    let WorkloadApiError::Refused(_, status) = &refused else { panic!("{refused:?}") };
    assert_eq!(status.code(), tonic::Code::Unavailable);
    assert!(status.message().contains("the log of the pod's proxy"), "{status}");
    plane.restart().await;
    Served::next(&mut Svids::open(&served.socket()).await.unwrap()).await;
}

/// A proxy with certificates of a Workload API has no token with which to request another one.
#[tokio::test]
async fn without_a_token_there_is_no_certificate_for_the_application() {
    let plane = Plane::start(&mesh(&["10.89.0.7"])).await;
    let mut settings = plane.settings("shop/web-0");
    let identity = "spiffe://cluster.local/ns/shop/sa/web".parse().unwrap();
    let address = "unix:///run/a.sock".parse().unwrap();
    settings.certificates = CertificateSource::WorkloadApi(address, identity);
    let (mut client, _directory) = leno_discovery::Client::new(settings);
    assert!(client.application().is_none());
}
