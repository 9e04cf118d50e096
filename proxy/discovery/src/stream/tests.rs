//! What is acknowledged, what is refused, and what stays.

use leno_types::MtlsMode;
use leno_types::mesh::{Distribution, Place, Resolution, ServerPolicy, Service};
use leno_wire::{encode, proto};

use super::*;
use crate::directory::Directory;

fn response(type_url: &str, resources: Vec<proto::Resource>) -> DeltaDiscoveryResponse {
    DeltaDiscoveryResponse {
        type_url: type_url.to_owned(),
        nonce: "7".to_owned(),
        resources,
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
        ports: Vec::new(),
        routes: [].into(),
        traffic: [].into(),
    })
}

fn policy(workload: &str, mtls: MtlsMode) -> proto::Any {
    let workload = workload.parse().unwrap();
    encode::server_policy(&ServerPolicy {
        workload,
        mtls,
        ports: Vec::new(),
        limits: [].into(),
        egress: leno_types::Egress::Allow,
        place: Place::default(),
        ending: false,
        removal: leno_types::Removal::None,
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
    // The last good state of the bad one stays; the good one is taken.
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
