//! Tests which responses are acknowledged, which are rejected, and which state stays in use.

use leno_types::mesh::{
    Distribution, Endpoint, Resolution, ServerPolicy, Service, ServicePort, Topology,
};
use leno_types::{MtlsMode, Protocol};
use leno_wire::{encode, proto};

use super::*;
use crate::directory::Directory;

fn response(type_url: &str, resources: Vec<proto::Resource>) -> DeltaDiscoveryResponse {
    DeltaDiscoveryResponse {
        type_url: type_url.to_owned(),
        nonce: "7".to_owned(),
        resources: resources.iter().map(encode::resource).collect(),
        ..Default::default()
    }
}

fn resource(name: &str, value: proto::Any) -> proto::Resource {
    proto::Resource {
        name: name.to_owned(),
        version: "v1".to_owned(),
        resource: Some(value),
        aliases: vec!["ip/10.96.0.1".to_owned()],
    }
}

fn service(name: &str, vip: &str) -> proto::Any {
    encode::service(&Service {
        name: name.parse().unwrap(),
        vips: vec![vip.parse().unwrap()],
        distribution: Distribution::Any,
        waypoint: None,
        ports: Vec::new(),
        routes: [].into(),
        traffic: [].into(),
    })
}

/// A service with one endpoint, at `10.0.0.<last>`.
fn served(last: u8) -> Service {
    let endpoint = Endpoint {
        workload: None,
        addresses: vec![[10, 0, 0, last].into()],
        port: 80,
        identity: None,
        place: Topology::default(),
        wire: Default::default(),
    };
    let port = ServicePort {
        port: 80,
        name: "".into(),
        protocol: Protocol::Detect,
        endpoints: [endpoint].into(),
        external: None,
    };
    Service {
        name: "shop/db".parse().unwrap(),
        vips: vec![[10, 96, 0, 1].into()],
        ports: vec![port],
        distribution: Distribution::Any,
        waypoint: None,
        routes: [].into(),
        traffic: [].into(),
    }
}

/// A response that changes the endpoints of version `from`.
fn change(from: &str, version: &str, (old, new): (u8, u8)) -> DeltaDiscoveryResponse {
    let step = encode::endpoints_step(&served(old), &served(new)).unwrap();
    let any = encode::service_update(None, encode::EndpointsUpdate::Delta(from, &[step]));
    let changed = proto::Resource {
        version: version.to_owned(),
        aliases: Vec::new(),
        ..resource("service/shop/db", any)
    };
    response(ADDRESS_TYPE, vec![changed])
}

#[test]
fn a_change_is_applied_to_what_is_held_and_another_one_is_fetched_whole() {
    let (directory, live) =
        Directory::live("shop/web-0".parse().unwrap(), crate::leases::Leases::none());
    let watched = directory.watch("10.96.0.1".parse().unwrap());
    live.take_changes();
    let endpoint = || match &*watched.borrow() {
        Resolution::Service(service) => service.ports[0].endpoints[0].addresses[0].to_string(),
        other => panic!("not a service: {other:?}"),
    };
    // The control plane sent this response before it received the unsubscription, so it is not an error.
    assert!(take(&live, change("e1", "f.e2", (1, 2))).error_detail.is_none());
    assert!(live.resume().1.is_empty());

    let whole = proto::Resource {
        version: "f.e1".to_owned(),
        ..resource("service/shop/db", encode::service(&served(1)))
    };
    take(&live, response(ADDRESS_TYPE, vec![whole]));
    assert!(take(&live, change("e1", "f.e2", (1, 2))).error_detail.is_none());
    assert_eq!(
        (endpoint(), live.resume().1["service/shop/db"].as_str()),
        ("10.0.0.2".to_owned(), "f.e2")
    );

    let answer = take(&live, change("e9", "f.e3", (2, 3)));
    let error = answer.error_detail.unwrap().message;
    assert!(
        error.contains("a change of endpoints came for version \"e9\", and \"e2\" is held"),
        "{error}"
    );
    assert_eq!(endpoint(), "10.0.0.2");
    let subject = Subject::Address("10.96.0.1".parse().unwrap());
    assert_eq!(live.take_changes(), (vec![subject.clone()], vec![subject]));
}

fn policy(workload: &str, mtls: MtlsMode) -> proto::Any {
    let workload = workload.parse().unwrap();
    encode::server_policy(&ServerPolicy {
        workload,
        mtls,
        ports: Vec::new(),
        limits: [].into(),
        egress: leno_types::Egress::Allow,
        place: Topology::default(),
        ending: false,
        removal: leno_types::Removal::None,
        authorization: Default::default(),
    })
}

#[test]
fn a_good_response_is_taken_and_acknowledged() {
    let (directory, live) =
        Directory::live("shop/web-0".parse().unwrap(), crate::leases::Leases::none());
    let watched = directory.watch("10.96.0.1".parse().unwrap());
    let good = resource("service/shop/db", service("shop/db", "10.96.0.1"));
    let answer = take(&live, response(ADDRESS_TYPE, vec![good]));
    assert_eq!((answer.response_nonce.as_str(), answer.error_detail), ("7", None));
    assert!(matches!(&*watched.borrow(), Resolution::Service(_)));
    assert_eq!(live.resume().1["service/shop/db"], "v1");
}

#[test]
fn what_does_not_convert_is_refused_and_harms_nothing_else() {
    let (directory, live) =
        Directory::live("shop/web-0".parse().unwrap(), crate::leases::Leases::none());
    let watched = directory.watch("10.96.0.1".parse().unwrap());
    let first = resource("service/shop/db", service("shop/db", "10.96.0.1"));
    take(&live, response(ADDRESS_TYPE, vec![first]));

    let bad = proto::Any { value: vec![0xff; 9].into(), ..service("shop/db", "10.96.0.1") };
    let other = resource("service/shop/web", service("shop/web", "10.96.0.2"));
    let mixed = vec![resource("service/shop/db", bad), other];
    let answer = take(&live, response(ADDRESS_TYPE, mixed));
    let error = answer.error_detail.unwrap();
    assert_eq!(error.code, INVALID_ARGUMENT);
    assert!(error.message.starts_with("service/shop/db: not a Address"), "{}", error.message);
    // The invalid resource keeps its last valid state; the valid resource is applied.
    assert!(matches!(&*watched.borrow(), Resolution::Service(_)));
    assert!(live.resume().1.contains_key("service/shop/web"));
    assert_eq!(directory.status().nacks, 1);

    let answer = take(&live, response("type.googleapis.com/other", vec![]));
    assert!(answer.error_detail.is_some());
}

#[test]
fn a_policy_must_be_for_this_workload_and_outlives_its_removal() {
    let (directory, live) =
        Directory::live("shop/web-0".parse().unwrap(), crate::leases::Leases::none());
    let watched = directory.server_policy();
    let foreign = resource("shop/web-1", policy("shop/web-1", MtlsMode::Disabled));
    let answer = take(&live, response(SERVER_POLICY_TYPE, vec![foreign]));
    assert!(answer.error_detail.is_some());
    assert!(watched.borrow().is_none());

    let own = resource("shop/web-0", policy("shop/web-0", MtlsMode::Strict));
    assert!(take(&live, response(SERVER_POLICY_TYPE, vec![own])).error_detail.is_none());
    assert_eq!(watched.borrow().as_ref().unwrap().mtls, MtlsMode::Strict);

    let mut gone = response(SERVER_POLICY_TYPE, vec![]);
    gone.removed_resources = vec!["shop/web-0".to_owned()];
    assert!(take(&live, gone).error_detail.is_none());
    assert_eq!(watched.borrow().as_ref().unwrap().mtls, MtlsMode::Strict);
}

#[test]
fn a_long_reason_is_cut() {
    let (_, live) = Directory::live("shop/web-0".parse().unwrap(), crate::leases::Leases::none());
    let bad = |n: usize| resource(&format!("service/é/{n}"), proto::Any::default());
    let answer = take(&live, response(ADDRESS_TYPE, (0..500).map(bad).collect()));
    assert!(answer.error_detail.unwrap().message.len() <= MAX_REASON);
}
