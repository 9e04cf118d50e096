//! Tests what a stream is sent, and what it is not sent.

use std::collections::HashMap;
use std::time::Duration;

use leno_resources::Kind;
use leno_types::mesh::{Distribution, Service};
use leno_types::{MAX_FINISHING, MtlsMode};
use leno_wire::decode::{self, AddressResource};
use leno_wire::proto::{DeltaDiscoveryRequest, TrustInUse};
use leno_wire::trust::bundle_hash;
use leno_wire::{ADDRESS_TYPE, SERVER_POLICY_TYPE, TRUST_BUNDLE_TYPE, USED_SERVICES_TYPE};
use tonic::Code;

use crate::client::{self, Response, Stream, names};
use crate::{Plane, service, workload};

#[tokio::test]
async fn without_a_certificate_there_is_no_discovery() {
    let plane = Plane::start("").await;
    let channel = client::connect(plane.address, None).await.unwrap();
    let refused = Stream::open(channel, "shop/web-0").await.err().unwrap();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    assert_eq!(plane.metric("leno_control_streams_refused_total"), 1);
}

#[tokio::test]
async fn the_name_of_another_instance_is_refused() {
    let plane = Plane::start(&workload("shop", "cart", "10.89.0.9", "strict")).await;
    let shown = plane.certificate("shop/web-0").await;
    let db = plane.grant("shop/db-0", "db");
    client::issue(plane.address, &db, None).await.unwrap();
    for (node, code) in [
        // The instance is known by its token, but has another service account.
        ("shop/db-0", Code::PermissionDenied),
        ("shop/nobody-0", Code::Unauthenticated),
        ("nonsense", Code::InvalidArgument),
    ] {
        let channel = client::connect(plane.address, Some(&shown)).await.unwrap();
        let mut stream = Stream::open(channel, node).await.unwrap();
        stream.subscribe(&["ip/192.0.2.1"]).await;
        let refused = stream.next().await.err().unwrap();
        assert_eq!(refused.code(), code, "{node}: {refused}");
    }
}

/// A tenant opens as many streams as it can with the certificate of its only pod.
#[tokio::test]
async fn an_instance_has_the_streams_of_one_proxy_and_others_are_served() {
    let documents = ["web", "db"].map(|name| workload("shop", name, "10.89.0.2", "strict"));
    let plane = Plane::start(&documents.concat()).await;
    let shown = plane.certificate("shop/web-0").await;
    // Two streams for each process (the one that serves, the next one, and those that finish open streams), and
    // twice as many to spare.
    let most = 4 * (2 + MAX_FINISHING);
    let mut held = Vec::new();
    for nth in 0..most + 2 {
        let channel = client::connect(plane.address, Some(&shown)).await.unwrap();
        let mut stream = Stream::open(channel, "shop/web-0").await.unwrap();
        stream.subscribe(&["ip/192.0.2.1"]).await;
        let answered = stream.next().await.map(drop).map_err(|refused| refused.code());
        assert_eq!(
            answered,
            if nth < most { Ok(()) } else { Err(Code::ResourceExhausted) },
            "{nth}"
        );
        held.push(stream);
    }
    assert_eq!(plane.metric("leno_control_streams_refused_total"), 2);
    let mut other = plane.stream("shop/db-0").await;
    other.subscribe(&["ip/192.0.2.1"]).await;
    other.next().await.unwrap();
}

#[tokio::test]
async fn a_proxy_of_another_version_is_told_what_to_do() {
    let plane = Plane::start(&workload("shop", "web", "10.89.0.2", "strict")).await;
    let mut stream = plane.stream("shop/web-0").await;
    let node =
        leno_wire::proto::Node { id: "shop/web-0".to_owned(), protocol: 0, features: Vec::new() };
    stream.send_as(node).await;
    let refused = stream.next().await.err().unwrap();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("restart the pod of shop/web-0"), "{refused}");
}

#[tokio::test]
async fn an_instance_that_the_index_knows_needs_no_token_again() {
    let authority = leno_identity::Authority::ephemeral(&leno_types::TrustDomain::default());
    let authority = std::sync::Arc::new(authority.unwrap());
    let hour = Duration::from_hours(1);
    let before = Plane::start_as(std::sync::Arc::clone(&authority), "", hour).await;
    let shown = before.certificate("shop/web-0").await;
    // Simulates a restart of the control plane: the authority is the same, but all other state is lost.
    let documents = workload("shop", "web", "10.89.0.2", "strict");
    let after = Plane::start_as(authority, &documents, hour).await;
    let channel = client::connect(after.address, Some(&shown)).await.unwrap();
    let mut stream = Stream::open(channel, "shop/web-0").await.unwrap();
    stream.subscribe(&["ip/10.89.0.2"]).await;
    assert_eq!(names(&stream.next().await.unwrap()), ["workload/shop/web-0"]);
}

#[tokio::test]
async fn an_instance_without_mtls_is_known_to_the_index_too() {
    let authority = leno_identity::Authority::ephemeral(&leno_types::TrustDomain::default());
    let authority = std::sync::Arc::new(authority.unwrap());
    let hour = Duration::from_hours(1);
    let before = Plane::start_as(std::sync::Arc::clone(&authority), "", hour).await;
    let shown = before.certificate("shop/web-0").await;
    let documents = workload("shop", "web", "10.89.0.2", "disabled");
    let after = Plane::start_as(authority, &documents, hour).await;
    let channel = client::connect(after.address, Some(&shown)).await.unwrap();
    let mut stream = Stream::open(channel, "shop/web-0").await.unwrap();
    stream.subscribe(&["ip/10.89.0.2"]).await;
    assert_eq!(names(&stream.next().await.unwrap()), ["workload/shop/web-0"]);
}

#[tokio::test]
async fn an_instance_that_the_index_does_not_know_is_recognised_after_a_restart_by_its_token() {
    let before = Plane::start("").await;
    let shown = before.certificate("shop/web-0").await;
    let after = before.restart(&workload("shop", "db", "10.89.0.3", "strict")).await;
    let channel = client::connect(after.address, Some(&shown)).await.unwrap();
    let mut stream = Stream::open(channel, "shop/web-0").await.unwrap();
    stream.subscribe(&["ip/10.89.0.3"]).await;
    assert_eq!(names(&stream.next().await.unwrap()), ["workload/shop/db-0"]);

    // An instance whose token was revoked is not accepted any more.
    after.tokens.revoke(&"shop/web-0".parse().unwrap()).unwrap();
    let channel = client::connect(after.address, Some(&shown)).await.unwrap();
    let mut stream = Stream::open(channel, "shop/web-0").await.unwrap();
    stream.subscribe(&["ip/10.89.0.3"]).await;
    assert_eq!(stream.next().await.err().unwrap().code(), Code::Unauthenticated);
}

#[tokio::test]
async fn an_address_is_answered_whatever_is_there() {
    let documents = service("books", "api", "10.96.0.7", 80)
        + &workload("books", "api", "10.89.0.7", "permissive");
    let plane = Plane::start(&documents).await;
    let mut stream = plane.stream("shop/web-0").await;

    stream.subscribe(&["ip/10.96.0.7"]).await;
    let response = stream.next().await.unwrap();
    assert_eq!(names(&response), ["service/books/api"]);
    assert_eq!(response.resources[0].aliases, ["ip/10.96.0.7"]);
    assert_eq!(first_service(&response).ports[0].port, 80);

    stream.subscribe(&["ip/10.89.0.7"]).await;
    assert_eq!(names(&stream.next().await.unwrap()), ["workload/books/api-0"]);

    stream.subscribe(&["ip/192.0.2.1", "workload/books/none"]).await;
    let response = stream.next().await.unwrap();
    assert!(response.resources.is_empty());
    assert_eq!(response.removed_resources, ["ip/192.0.2.1", "workload/books/none"]);

    // Something that appears later is sent without another request, and so is its removal.
    plane.apply(&service("books", "late", "192.0.2.1", 80));
    let response = stream.next().await.unwrap();
    assert_eq!(names(&response), ["service/books/late"]);
    assert!(response.removed_resources.is_empty());
    plane.delete(Kind::Service, "books", "late");
    let response = stream.next().await.unwrap();
    assert_eq!(response.removed_resources, ["ip/192.0.2.1", "service/books/late"]);
}

#[tokio::test]
async fn a_service_is_answered_by_its_name() {
    let plane = Plane::start(&service("books", "headless", "None", 80)).await;
    let mut stream = plane.stream("shop/web-0").await;
    stream.subscribe(&["service/books/headless", "service/books/late"]).await;
    let response = stream.next().await.unwrap();
    assert_eq!(names(&response), ["service/books/headless"]);
    assert_eq!(response.removed_resources, ["service/books/late"]);
    plane.apply(&service("books", "late", "10.96.0.8", 80));
    assert_eq!(names(&stream.next().await.unwrap()), ["service/books/late"]);
    stream.unsubscribe(&["service/books/late"]).await;
    plane.apply(&service("books", "late", "10.96.0.8", 81));
    plane.delete(Kind::Service, "books", "headless");
    let response = stream.next().await.unwrap();
    assert!(response.resources.is_empty(), "{response:?}");
    assert!(response.removed_resources.contains(&"service/books/headless".to_owned()));
}

/// The first service of a response, as it is for a proxy that had the service without endpoints.
fn first_service(response: &Response) -> Service {
    let any = response.resources[0].resource.as_ref().unwrap();
    let AddressResource::Service(update) = decode::address(any).unwrap() else { panic!("{any:?}") };
    let held = Service {
        name: "shop/held".parse().unwrap(),
        vips: Vec::new(),
        ports: Vec::new(),
        distribution: Distribution::Any,
        waypoint: None,
        routes: [].into(),
        traffic: [].into(),
    };
    update.apply(Some(("", &held))).unwrap()
}

/// The names of the routes that the first service of a response has.
fn routes(response: &Response) -> Vec<String> {
    let service = first_service(response);
    service.routes.iter().map(|route| route.name.to_string()).collect()
}

/// As in the conformance test MeshConsumerRoute, but on the wire: a route is sent to exactly those proxies to
/// which it applies.
#[tokio::test]
async fn routes_travel_with_the_service_to_its_clients() {
    let route = |name: &str, namespace: &str| {
        format!(
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
             metadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  \
             parentRefs: [{{group: \"\", kind: Service, name: api, namespace: books}}]\n  \
             rules: [{{backendRefs: [{{name: api, namespace: books, port: 80}}]}}]\n"
        )
    };
    let api = service("books", "api", "10.96.0.7", 80);
    let plane = Plane::start(&(api + &route("own", "books"))).await;
    let mut shop = plane.stream("shop/web-0").await;
    let mut other = plane.stream("other/web-0").await;
    for stream in [&mut shop, &mut other] {
        stream.subscribe(&["ip/10.96.0.7"]).await;
        assert_eq!(routes(&stream.next().await.unwrap()), ["own"]);
    }
    plane.apply(&route("theirs", "shop"));
    assert_eq!(routes(&shop.next().await.unwrap()), ["theirs"]);
    // If the consumer route was sent to the other namespace, that message would arrive before this one.
    plane.apply(&service("books", "api", "10.96.0.7", 81));
    let response = other.next().await.unwrap();
    assert_eq!(routes(&response), ["own"]);
    assert_eq!(first_service(&response).ports[0].port, 81);
    assert_eq!(routes(&shop.next().await.unwrap()), ["theirs"]);
    plane.delete(Kind::HttpRoute, "shop", "theirs");
    assert_eq!(routes(&shop.next().await.unwrap()), ["own"]);
}

#[tokio::test]
async fn an_address_that_is_queried_again_is_answered_again() {
    let plane = Plane::start(&service("books", "api", "10.96.0.7", 80)).await;
    let mut stream = plane.stream("shop/web-0").await;
    for _ in 0..2 {
        stream.subscribe(&["ip/10.96.0.7", "ip/192.0.2.1"]).await;
        let response = stream.next().await.unwrap();
        assert_eq!(names(&response), ["service/books/api"]);
        assert_eq!(response.removed_resources, ["ip/192.0.2.1"]);
        stream.unsubscribe(&["ip/10.96.0.7", "ip/192.0.2.1"]).await;
    }
}

/// The names of the services that a proxy is asked to prefetch.
async fn used(stream: &mut Stream) -> Vec<String> {
    let request = DeltaDiscoveryRequest {
        type_url: USED_SERVICES_TYPE.to_owned(),
        resource_names_subscribe: vec!["shop/web-0".to_owned()],
        ..Default::default()
    };
    stream.send(request).await;
    let response = stream.next().await.unwrap();
    assert_eq!(response.type_url, USED_SERVICES_TYPE);
    let any = response.resources[0].resource.as_ref().unwrap();
    decode::used_services(any).unwrap().iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn a_proxy_prefetches_what_workloads_of_its_identity_use() {
    let documents = service("books", "api", "10.96.0.7", 80)
        + &service("books", "other", "10.96.0.8", 80)
        + &workload("books", "api", "10.89.0.7", "permissive");
    let plane = Plane::start(&documents).await;
    let mut first = plane.stream("shop/web-0").await;
    assert_eq!(used(&mut first).await, [""; 0]);
    // A service (by its address) and a workload are used. Another service is only prefetched.
    let request = DeltaDiscoveryRequest {
        type_url: ADDRESS_TYPE.to_owned(),
        resource_names_subscribe: vec!["ip/10.96.0.7".to_owned(), "ip/10.89.0.7".to_owned()],
        resource_names_prefetch: vec!["service/books/other".to_owned()],
        ..Default::default()
    };
    first.send(request).await;
    assert_eq!(first.next().await.unwrap().resources.len(), 3);
    let mut replica = plane.stream("shop/web-1").await;
    assert_eq!(used(&mut replica).await, ["books/api"]);
    let mut other = plane.stream("else/web-0").await;
    assert_eq!(used(&mut other).await, [""; 0], "the identity of another namespace");
    // Once the workload uses the service, it counts as used.
    first.subscribe(&["service/books/other", "ip/192.0.2.1"]).await;
    assert_eq!(first.next().await.unwrap().removed_resources, ["ip/192.0.2.1"]);
    assert_eq!(used(&mut replica).await, ["books/api", "books/other"]);
}

#[tokio::test]
async fn an_update_is_pushed_only_to_its_subscribers() {
    let documents =
        service("shop", "web", "10.96.0.1", 80) + &service("books", "api", "10.96.0.7", 80);
    let plane = Plane::start(&documents).await;
    let mut stream = plane.stream("shop/web-0").await;
    stream.subscribe(&["service/shop/web", "service/shop/cart"]).await;
    let first = stream.next().await.unwrap();
    assert_eq!(names(&first), ["service/shop/web"]);
    assert_eq!(first.removed_resources, ["service/shop/cart"]);

    // The first change does not concern this stream. If it was sent, it would arrive before the second one.
    plane.apply(&service("books", "api", "10.96.0.7", 81));
    plane.apply(&service("shop", "web", "10.96.0.1", 82));
    let second = stream.next().await.unwrap();
    assert_eq!(names(&second), ["service/shop/web"]);
    assert_ne!(first.resources[0].version, second.resources[0].version);
    assert_ne!(first.nonce, second.nonce);

    plane.apply(&service("shop", "cart", "10.96.0.2", 80));
    assert_eq!(names(&stream.next().await.unwrap()), ["service/shop/cart"]);
    plane.delete(Kind::Service, "shop", "web");
    assert_eq!(stream.next().await.unwrap().removed_resources, ["service/shop/web"]);
}

#[tokio::test]
async fn a_refused_response_is_not_sent_again_until_it_changes() {
    let plane = Plane::start(&service("shop", "web", "10.96.0.1", 80)).await;
    let mut stream = plane.stream("shop/web-0").await;
    stream.subscribe(&["service/shop/web"]).await;
    let refused = stream.next().await.unwrap();
    stream.nack(&refused).await;
    // If it was sent again, it would arrive before the answer to this request.
    stream.subscribe(&["ip/192.0.2.1"]).await;
    let response = stream.next().await.unwrap();
    assert_eq!(names(&response), [""; 0]);
    assert_eq!(response.removed_resources, ["ip/192.0.2.1"]);
    assert_eq!(plane.metric("leno_control_nacks_total"), 1);
    plane.apply(&service("shop", "web", "10.96.0.1", 81));
    assert_eq!(names(&stream.next().await.unwrap()), ["service/shop/web"]);
}

#[tokio::test]
async fn a_reconnect_brings_only_what_differs() {
    let documents = ["one", "two", "three"]
        .iter()
        .enumerate()
        .map(|(i, name)| service("shop", name, &format!("10.96.0.{}", i + 1), 80))
        .collect::<String>();
    let plane = Plane::start(&documents).await;
    let mut stream = plane.stream("shop/web-0").await;
    let all = ["service/shop/one", "service/shop/two", "service/shop/three"];
    stream.subscribe(&all).await;
    let held = versions(&stream.next().await.unwrap());
    assert_eq!(held.len(), 3);
    drop(stream);

    plane.apply(&service("shop", "two", "10.96.0.2", 90));
    plane.delete(Kind::Service, "shop", "three");
    let mut stream = plane.stream("shop/web-0").await;
    let request = DeltaDiscoveryRequest {
        type_url: ADDRESS_TYPE.to_owned(),
        resource_names_subscribe: all.iter().map(ToString::to_string).collect(),
        resource_names_prefetch: vec!["ip/10.96.0.1".to_owned()],
        initial_resource_versions: held,
        ..Default::default()
    };
    stream.send(request).await;
    let response = stream.next().await.unwrap();
    assert_eq!(names(&response), ["service/shop/two"]);
    assert_eq!(response.removed_resources, ["service/shop/three"]);
}

#[tokio::test]
async fn a_workload_is_told_its_own_policy_only() {
    let documents = workload("shop", "web", "10.89.0.2", "strict")
        + &workload("shop", "db", "10.89.0.3", "disabled");
    let plane = Plane::start(&documents).await;
    let mut stream = plane.stream("shop/web-0").await;
    stream
        .send(DeltaDiscoveryRequest {
            type_url: SERVER_POLICY_TYPE.to_owned(),
            resource_names_subscribe: vec!["shop/web-0".to_owned(), "shop/db-0".to_owned()],
            ..Default::default()
        })
        .await;
    let response = stream.next().await.unwrap();
    assert_eq!(response.type_url, SERVER_POLICY_TYPE);
    assert_eq!(names(&response), ["shop/web-0"]);
    assert_eq!(response.removed_resources, ["shop/db-0"]);
    assert_eq!(mode(&response), MtlsMode::Strict);

    plane.apply(&workload("shop", "web", "10.89.0.2", "permissive"));
    assert_eq!(mode(&stream.next().await.unwrap()), MtlsMode::Permissive);
    plane.delete(Kind::Workload, "shop", "web");
    assert_eq!(stream.next().await.unwrap().removed_resources, ["shop/web-0"]);
}

#[tokio::test]
async fn a_stream_ends_with_the_certificate_of_its_connection() {
    let plane = Plane::start_with("", leno_identity::MIN_LIFETIME).await;
    let mut stream = plane.stream("shop/web-0").await;
    stream.subscribe(&["ip/192.0.2.1"]).await;
    stream.next().await.unwrap();
    let ended = stream.next().await.err().unwrap();
    assert_eq!(ended.code(), Code::Unauthenticated, "{ended}");
}

fn versions(response: &Response) -> HashMap<String, String> {
    response.resources.iter().map(|r| (r.name.clone(), r.version.clone())).collect()
}

fn mode(response: &Response) -> MtlsMode {
    decode::server_policy(response.resources[0].resource.as_ref().unwrap()).unwrap().mtls
}

#[tokio::test]
async fn a_proxy_that_uses_another_bundle_than_it_was_sent_is_sent_it_again() {
    let plane = Plane::start(&workload("shop", "web", "10.89.0.2", "strict")).await;
    let mut stream = plane.stream("shop/web-0").await;
    let report = |bundle: &str, issuer: &str| DeltaDiscoveryRequest {
        type_url: TRUST_BUNDLE_TYPE.to_owned(),
        trust: Some(TrustInUse { bundle: bundle.to_owned(), issuer: issuer.to_owned() }),
        ..Default::default()
    };
    stream.send(subscribed(TRUST_BUNDLE_TYPE, "shop/web-0")).await;
    let sent = stream.next().await.unwrap();
    let bundle = decode::trust_bundle(sent.resources[0].resource.as_ref().unwrap()).unwrap();
    assert_eq!(bundle.roots, plane.authority.trust().roots_der());
    let wanted = plane.state.wanted_trust().unwrap();
    assert_eq!(wanted.bundle, bundle_hash(&bundle.roots));

    // The proxy reports the roots of a certificate that was issued before the change.
    stream.send(report("older", &bundle.issuer)).await;
    let again = stream.next().await.unwrap();
    assert_eq!(again.resources, sent.resources);
    let proxies = plane.state.proxies();
    assert_eq!(proxies[0].in_use.as_ref().unwrap().bundle, "older");

    stream.send(report(&wanted.bundle, &wanted.issuer)).await;
    // The next response is the answer to this request, so the bundle was not sent again.
    stream.send(subscribed(SERVER_POLICY_TYPE, "shop/web-0")).await;
    assert_eq!(stream.next().await.unwrap().type_url, SERVER_POLICY_TYPE);
    assert_eq!(plane.state.proxies()[0].in_use, Some(wanted));
}

/// A request that subscribes to one resource.
fn subscribed(type_url: &str, name: &str) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: type_url.to_owned(),
        resource_names_subscribe: vec![name.to_owned()],
        ..Default::default()
    }
}
