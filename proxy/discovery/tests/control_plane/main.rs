//! Tests the client with the real control plane over loopback: files, index, discovery, identity.
#![expect(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod application;
mod leases;
mod look_alike;
mod plane;
mod rotation;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use leno_discovery::{CertificateSource, ConnectError, Directory, IdentityClient, IdentityError};
use leno_types::MtlsMode;
use leno_types::mesh::{Resolution, Service};
use tokio::sync::watch;

use plane::{Plane, eventually, mesh};

/// Waits until `fits` returns true for the resolution.
async fn until(
    watched: &mut watch::Receiver<Resolution>,
    fits: impl Fn(&Resolution) -> bool,
) -> Resolution {
    let waited = tokio::time::timeout(Duration::from_secs(20), watched.wait_for(fits));
    waited.await.expect("it comes in time").expect("the directory lives").clone()
}

async fn resolved(directory: &Directory, ip: &str) -> Resolution {
    let mut watched = directory.watch(ip.parse().unwrap());
    until(&mut watched, |now| !matches!(now, Resolution::Pending)).await
}

fn service(resolution: &Resolution) -> &Arc<Service> {
    match resolution {
        Resolution::Service(service) => service,
        other => panic!("not a service: {other:?}"),
    }
}

/// The addresses of a service's endpoints on port 80, and whether all endpoints are meshed.
fn endpoints(resolution: &Resolution) -> (Vec<IpAddr>, bool) {
    let port = service(resolution).port(80).unwrap();
    let addresses = port.endpoints.iter().flat_map(|one| one.addresses.clone()).collect();
    (addresses, port.endpoints.iter().all(|one| one.identity.is_some()))
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_resolve_on_demand_and_follow_edits() {
    let mut plane = Plane::start(&mesh(&["10.89.0.7"])).await;
    let (proxy, directory) = plane.proxy("shop/web-0");

    // The service is in another namespace, so the proxy only queries it when it is first watched.
    let mut db = directory.watch("10.96.0.5".parse().unwrap());
    let first = until(&mut db, |now| !matches!(now, Resolution::Pending)).await;
    assert_eq!(endpoints(&first), (vec!["10.89.0.7".parse().unwrap()], true));
    let by_address = resolved(&directory, "10.89.0.7").await;
    assert!(matches!(by_address, Resolution::Workload(w) if w.name.to_string() == "data/db-0"));
    assert!(matches!(resolved(&directory, "192.0.2.1").await, Resolution::Unknown));

    // The namespace's annotation sets the policy that inbound enforces.
    let mut policy = directory.server_policy();
    let policy = policy.wait_for(Option::is_some).await.unwrap().clone().unwrap();
    assert_eq!(
        (policy.workload.to_string().as_str(), policy.mtls),
        ("shop/web-0", MtlsMode::Strict)
    );

    plane.edit(&mesh(&["10.89.0.7", "10.89.0.8"]));
    let second = until(&mut db, |now| endpoints(now).0.len() == 2).await;
    assert_eq!(service(&second).name.to_string(), "data/db");

    // An invalid edit is refused as a whole with its location, and nothing changes.
    plane.edit(&mesh(&["10.89.0.9"]).replace("replicas: 1", "replicas: one"));
    let problems = plane.refused().await;
    let text = problems[0].to_string();
    assert!(text.contains("spec.replicas") && text.contains("mesh.yaml:"), "{text}");
    assert_eq!(*db.borrow(), second);

    // An address at which there was no workload gets one, and loses it again.
    let mut late = directory.watch("10.89.0.9".parse().unwrap());
    plane.edit(&mesh(&["10.89.0.9"]));
    until(&mut late, |now| matches!(now, Resolution::Workload(_))).await;
    plane.edit(&mesh(&["10.89.0.7"]));
    until(&mut late, |now| matches!(now, Resolution::Unknown)).await;
    until(&mut db, |now| endpoints(now).0.len() == 1).await;
    assert_eq!(directory.status().nacks, 0);
    proxy.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_workloads_of_the_same_identity_use_is_there_without_asking() {
    let plane = Plane::start(&mesh(&["10.89.0.7"])).await;
    let (first, used) = plane.proxy("shop/web-0");
    assert!(matches!(resolved(&used, "10.96.0.5").await, Resolution::Service(_)));
    let (second, directory) = plane.proxy("shop/web-0");
    let prefetched = tokio::time::timeout(Duration::from_secs(20), directory.prefetched());
    prefetched.await.expect("it comes in time");
    // The resolution is never pending: the prefetched service is resolved at once.
    let vip = directory.watch("10.96.0.5".parse().unwrap());
    assert!(matches!(&*vip.borrow(), Resolution::Service(_)));
    assert_eq!(directory.status().resources, 1, "another service of the namespace is not used");
    first.abort();
    second.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_good_state_outlives_the_control_plane() {
    let mut plane = Plane::start(&mesh(&["10.89.0.7"])).await;
    let (proxy, directory) = plane.proxy("shop/web-0");
    let mut db = directory.watch("10.96.0.5".parse().unwrap());
    let before = until(&mut db, |now| !matches!(now, Resolution::Pending)).await;
    db.mark_unchanged();

    plane.stop().await;
    eventually("the loss is noticed", || !directory.status().connected).await;
    assert_eq!(*db.borrow(), before);
    // These are watched while no control plane answers.
    let mut web = directory.watch("10.96.0.6".parse().unwrap());
    let mut nothing = directory.watch("192.0.2.1".parse().unwrap());
    assert!(matches!(&*nothing.borrow(), Resolution::Pending));

    plane.restart().await;
    eventually("the stream is back", || directory.status().connected).await;
    until(&mut web, |now| matches!(now, Resolution::Service(_))).await;
    until(&mut nothing, |now| matches!(now, Resolution::Unknown)).await;
    // The state is the same as before, so no receiver was notified.
    assert!(!db.has_changed().unwrap());
    plane.edit(&mesh(&["10.89.0.7", "10.89.0.8"]));
    until(&mut db, |now| endpoints(now).0.len() == 2).await;
    assert!(directory.status().connects >= 2);
    proxy.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_age_is_followed_by_another_without_a_backoff() {
    let mut plane = Plane::start(&mesh(&["10.89.0.7"])).await;
    plane.stop().await;
    plane.stream_age = Duration::from_millis(100);
    plane.restart().await;
    let (proxy, directory) = plane.proxy("shop/web-0");
    let mut db = directory.watch("10.96.0.5".parse().unwrap());
    let before = until(&mut db, |now| !matches!(now, Resolution::Pending)).await;
    db.mark_unchanged();
    eventually("several streams", || directory.status().connects >= 4).await;
    assert!(!db.has_changed().unwrap() && *db.borrow() == before);
    // The server would end a stream 30 s after its maximum age; the proxy has replaced the streams
    // before.
    plane.edit(&mesh(&["10.89.0.7", "10.89.0.8"]));
    until(&mut db, |now| endpoints(now).0.len() == 2).await;
    assert_eq!(directory.status().nacks, 0);
    proxy.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ended_while_away_is_forgotten() {
    let mut plane = Plane::start(&mesh(&["10.89.0.7", "10.89.0.8"])).await;
    let (proxy, directory) = plane.proxy("shop/web-0");
    let mut gone = directory.watch("10.89.0.8".parse().unwrap());
    until(&mut gone, |now| matches!(now, Resolution::Workload(_))).await;
    plane.stop().await;
    plane.edit(&mesh(&["10.89.0.7"]));
    plane.restart().await;
    until(&mut gone, |now| matches!(now, Resolution::Unknown)).await;
    proxy.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_replaced_before_it_ends_and_the_stream_goes_on() {
    let plane = Plane::start_with(&mesh(&["10.89.0.7"]), leno_identity::MIN_LIFETIME).await;
    let (client, directory) = plane.client("shop/web-0");
    let mut certificates = client.certificates();
    let proxy = tokio::spawn(client.run());
    let first = certificates.wait_for(Option::is_some).await.unwrap().clone().unwrap();
    let renewed = certificates.wait_for(|now| now.as_ref() != Some(&first)).await.unwrap().clone();
    let second = renewed.unwrap();
    assert!(second.not_after > first.not_after);
    assert_ne!(second.key_der, first.key_der);
    assert_eq!(second.roots_der(), first.roots_der());
    // The control plane ends a stream whose certificate has expired; the next stream continues.
    eventually("a stream with the new certificate", || {
        let status = directory.status();
        status.connected && status.connects >= 2
    })
    .await;
    assert!(matches!(resolved(&directory, "10.96.0.5").await, Resolution::Service(_)));
    proxy.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_the_control_plane_does_not_accept_is_replaced() {
    let mut plane = Plane::start(&mesh(&["10.89.0.7"])).await;
    let (client, directory) = plane.client("shop/web-0");
    let mut certificates = client.certificates();
    let proxy = tokio::spawn(client.run());
    eventually("the stream is open", || directory.status().connected).await;
    let first = certificates.wait_for(Option::is_some).await.unwrap().clone();

    plane.stop().await;
    plane.lose_authority();
    plane.restart().await;
    eventually("the stream is back", || directory.status().connected).await;
    let second = certificates.borrow().clone();
    assert_ne!(first.unwrap().roots_der(), second.unwrap().roots_der());
    proxy.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_is_not_known_shows_its_token_again() {
    let mut plane = Plane::start(&mesh(&["10.89.0.7"])).await;
    // No document has this instance, so only its token proves its identity.
    let (proxy, directory) = plane.proxy("shop/job-0");
    eventually("the stream is open", || directory.status().connected).await;

    plane.stop().await;
    plane.revoke("shop/job-0");
    plane.restart().await;
    let asked = || plane.metric("leno_control_certificates_refused_total") >= 1;
    eventually("it asks with its token", asked).await;
    assert!(plane.metric("leno_control_streams_refused_total") >= 1);

    plane.grant("shop/job-0");
    eventually("the stream is back", || directory.status().connected).await;
    proxy.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_is_refused() {
    let plane = Plane::start(&mesh(&["10.89.0.7"])).await;
    let mut settings = plane.settings("shop/web-0");
    let mut token = plane.grant("shop/web-0");
    std::fs::write(&token, "0".repeat(64)).unwrap();
    let refused = IdentityClient::new(Arc::new(settings.clone())).issue().await.unwrap_err();
    let IdentityError::Refused(status) = &refused else {
        panic!("not refused: {refused:?}");
    };
    assert_eq!(status.code(), tonic::Code::Unauthenticated, "{status}");

    token.set_extension("absent");
    settings.certificates = CertificateSource::Token(token);
    let refused = IdentityClient::new(Arc::new(settings)).issue().await.unwrap_err();
    assert!(matches!(refused, IdentityError::Token(..)), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_of_another_authority_or_trust_domain_is_refused() {
    let plane = Plane::start(&mesh(&["10.89.0.7"])).await;
    let other = Plane::start(&mesh(&["10.89.0.7"])).await;
    let mut settings = plane.settings("shop/web-0");
    settings.roots = other.settings("shop/web-0").roots;
    let refused = IdentityClient::new(Arc::new(settings)).issue().await.unwrap_err();
    assert!(matches!(refused, IdentityError::Connect(ConnectError::Tls(..))), "{refused:?}");

    let mut settings = plane.settings("shop/web-0");
    settings.trust_domain = leno_types::TrustDomain::new("other.example").unwrap();
    let refused = IdentityClient::new(Arc::new(settings)).issue().await.unwrap_err();
    assert!(matches!(refused, IdentityError::Connect(ConnectError::Tls(..))), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_workload_cannot_pass_for_another() {
    let plane = Plane::start(&mesh(&["10.89.0.7"])).await;
    let mut settings = plane.settings("shop/web-0");
    plane.grant("data/db-0");
    settings.instance = "data/db-0".parse().unwrap();
    let (client, directory) = leno_discovery::Client::new(settings);
    let proxy = tokio::spawn(client.run());
    let refused = || plane.metric("leno_control_streams_refused_total") >= 1;
    eventually("the stream is refused", refused).await;
    assert!(directory.server_policy().borrow().is_none());
    assert_eq!(directory.status().resources, 0);
    proxy.abort();
}
