//! Checks that a proxy that applies changes of endpoints arrives at the control plane's state.

use std::sync::Arc;

use leno_types::mesh::{Distribution, Endpoint, Service, ServicePort, Topology};
use leno_types::{Identity, Protocol, TrustDomain};
use leno_wire::encode::{self, EndpointsUpdate, endpoints_step, service_update};
use leno_wire::{Bytes, proto};
use proptest::prelude::*;

use crate::{endpoint, received, refused_update};

fn service(lists: &[Vec<Endpoint>]) -> Service {
    let port = |(nth, list): (usize, &Vec<Endpoint>)| ServicePort {
        port: u16::try_from(80 + nth).unwrap(),
        name: "".into(),
        protocol: Protocol::Detect,
        endpoints: list.clone().into(),
        external: None,
    };
    Service {
        name: "shop/web".parse().unwrap(),
        vips: vec![[10, 96, 0, 1].into()],
        ports: lists.iter().enumerate().map(port).collect(),
        distribution: Distribution::Any,
        waypoint: None,
        routes: [].into(),
        traffic: [].into(),
    }
}

/// Lists from a small set of endpoints, so that two lists share many, in any order and with
/// repetitions.
fn lists() -> impl Strategy<Value = Vec<Vec<Vec<Endpoint>>>> {
    let pool = prop::collection::vec(endpoint(), 1..12);
    pool.prop_flat_map(|pool| {
        let list = prop::collection::vec(prop::sample::select(pool), 0..12);
        prop::collection::vec(prop::collection::vec(list, 2), 1..6)
    })
}

proptest! {
    #[test]
    fn any_sequence_of_changes_produces_the_whole_state(states in lists()) {
        let states: Vec<Service> = states.iter().map(|lists| service(lists)).collect();
        let steps: Vec<Bytes> =
            states.windows(2).map(|pair| endpoints_step(&pair[0], &pair[1]).unwrap()).collect();
        // Apply the steps one by one, and also from each state to the last one at once.
        for (nth, step) in steps.iter().enumerate() {
            let one = EndpointsUpdate::Delta("v", std::slice::from_ref(step));
            let held = Some(("f.v", &states[nth]));
            prop_assert_eq!(&received(service_update(None, one), held), &states[nth + 1]);
            let rest = EndpointsUpdate::Delta("v", &steps[nth..]);
            prop_assert_eq!(&received(service_update(None, rest), held), states.last().unwrap());
        }
    }
}

/// A service with 1,000 pods, and the same service with pod number 500 replaced.
fn replaced() -> (Service, Service) {
    let pod = |name: String, last: u32| Endpoint {
        workload: Some(format!("shop/{name}").parse().unwrap()),
        addresses: vec![std::net::Ipv4Addr::from(0x0a00_0000 + last).into()],
        port: 8080,
        identity: Some(Identity::new(TrustDomain::default(), "shop", "web").unwrap()),
        place: Topology { zone: "eu-1a".into(), node: "node-17".into() },
        wire: Default::default(),
    };
    let mut pods: Vec<_> = (0..1_000).map(|nth| pod(format!("web-5d8f7b-{nth:04}"), nth)).collect();
    let before = service(&[pods.clone()]);
    pods[500] = pod("web-5d8f7b-0500x".to_owned(), 2_000);
    (before, service(&[pods]))
}

#[test]
fn the_change_of_one_endpoint_in_a_thousand_is_tens_of_bytes() {
    let (before, after) = replaced();
    let step = endpoints_step(&before, &after).unwrap();
    assert!(step.len() < 48, "{} bytes", step.len());
    assert!(encode::endpoints(&after).len() > 30_000);
    // Routes and policy can be sent without endpoints, too.
    let front = encode::front(&after);
    let update = service_update(Some(&front), EndpointsUpdate::None);
    assert_eq!(received(update, Some(("f.v", &after))), after);
    let same = Arc::ptr_eq(
        &received(service_update(Some(&front), EndpointsUpdate::None), Some(("f.v", &after))).ports
            [0]
        .endpoints,
        &after.ports[0].endpoints,
    );
    assert!(same, "endpoints that did not change are not copied");
}

#[test]
fn a_change_for_another_version_is_refused() {
    let (before, after) = replaced();
    let step = endpoints_step(&before, &after).unwrap();
    let change = |from: &str, steps: &[Bytes]| {
        let any = service_update(None, EndpointsUpdate::Delta(from, steps));
        let leno_wire::decode::AddressResource::Service(update) =
            leno_wire::decode::address(&any).unwrap()
        else {
            panic!("not a service")
        };
        update
    };
    let steps = [step];
    let refused = |from: &str, held: Option<(&str, &Service)>| {
        change(from, &steps).apply(held).unwrap_err().to_string()
    };
    assert_eq!(refused("v1", None), "a part of a service came, and the rest of it is not held");
    assert_eq!(
        refused("v1", Some(("f.v0", &before))),
        "a change of endpoints came for version \"v1\", and \"v0\" is held"
    );
    let short = service(&[Vec::new()]);
    assert_eq!(refused("v1", Some(("f.v1", &short))), "500 is not a position of a change");
    let splice = proto::Splice {
        port: 80,
        added: vec![proto::Endpoint {
            addresses: vec![Bytes::from_static(&[10, 0, 0, 1])],
            like: 2_000,
            ..Default::default()
        }],
        ..Default::default()
    };
    let step = proto::EndpointsStep { splices: vec![splice], ..Default::default() };
    let delta = proto::EndpointsDelta { from: "v1".to_owned(), steps: vec![step] };
    let update = proto::ServiceUpdate {
        service: None,
        endpoints: Some(proto::service_update::Endpoints::Delta(delta)),
    };
    assert_eq!(
        refused_update(update, Some(("f.v1", &before))),
        "2000 is not a position of a like endpoint"
    );
}
