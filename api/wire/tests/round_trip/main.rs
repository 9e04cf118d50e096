//! An encoded value decodes to an equal value, and invalid bytes are an error.
#![expect(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod authorization;
mod endpoints;
mod external;
mod routes;
mod traffic;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::Bytes;
use leno_types::mesh::{
    Distribution, Endpoint, PortProtocol, ServerPolicy, Service, ServicePort, Topology, WireForm,
    Workload,
};
use leno_types::{Identity, InstanceName, MtlsMode, Protocol, ServiceName, TrustDomain};
use leno_wire::{decode, encode, proto};
use proptest::prelude::*;

fn label() -> impl Strategy<Value = String> {
    "[a-z]([a-z0-9-]{0,6}[a-z0-9])?"
}

fn ip() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|bits| Ipv4Addr::from(bits).into()),
        any::<u128>().prop_map(|bits| Ipv6Addr::from(bits).into()),
    ]
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop::sample::select(vec![Protocol::Detect, Protocol::Http1, Protocol::Http2, Protocol::Opaque])
}

fn identity() -> impl Strategy<Value = Identity> {
    (label(), prop::sample::select(vec!["web", "db", "default"])).prop_map(
        |(namespace, account)| Identity::new(TrustDomain::default(), &namespace, account).unwrap(),
    )
}

fn place() -> impl Strategy<Value = Topology> {
    let text = || prop::sample::select(vec!["", "a", "b"]);
    (text(), text()).prop_map(|(zone, node)| Topology { zone: zone.into(), node: node.into() })
}

fn wire() -> impl Strategy<Value = WireForm> {
    prop::sample::select(vec![WireForm::Leno, WireForm::Hbone])
}

/// The wire form of an endpoint. Of a workload it is never [`WireForm::Waypoint`].
fn wire_of_endpoint() -> impl Strategy<Value = WireForm> {
    prop::sample::select(vec![WireForm::Leno, WireForm::Hbone, WireForm::Waypoint])
}

prop_compose! {
    fn endpoint()(
        workload in prop::option::of((label(), label())),
        addresses in prop::collection::vec(ip(), 1..3),
        port in 1_u16..,
        identity in prop::option::of(identity()),
        place in place(),
        wire in wire_of_endpoint(),
    ) -> Endpoint {
        let workload = workload.map(|(ns, name)| InstanceName::new(&ns, &name).unwrap());
        Endpoint { workload, addresses, port, identity, place, wire }
    }
}

prop_compose! {
    fn service()(
        namespace in label(),
        name in label(),
        vips in prop::collection::vec(ip(), 0..3),
        ports in prop::collection::btree_map(
            1_u16.., (".{0,8}", protocol(), prop::collection::vec(endpoint(), 0..5)), 0..4),
        routes in routes::routes(),
        traffic in traffic::traffic(),
        distribution in prop::sample::select(vec![
            Distribution::Any, Distribution::SameZone, Distribution::SameNode]),
    ) -> Service {
        let port = |(port, (name, protocol, endpoints)): (u16, (String, _, Vec<_>))| ServicePort {
            external: port.is_multiple_of(2).then(|| external::of(port)),
            port, name: name.into(), protocol, endpoints: endpoints.into(),
        };
        let ports = ports.into_iter().map(port).collect();
        let name = ServiceName::new(&namespace, &name).unwrap();
        Service { name, vips, ports, distribution, routes, traffic, waypoint: None }
    }
}

/// Applies an update to the service that the proxy holds.
fn received(any: proto::Any, held: Option<(&str, &Service)>) -> Service {
    let decode::AddressResource::Service(update) = decode::address(&any).unwrap() else {
        panic!("not a service: {any:?}");
    };
    update.apply(held).unwrap()
}

fn ports() -> impl Strategy<Value = Vec<PortProtocol>> {
    let port = (1_u16.., protocol()).prop_map(|(port, protocol)| PortProtocol { port, protocol });
    prop::collection::vec(port, 0..4)
}

proptest! {
    #[test]
    fn a_service_survives_the_wire(service in service()) {
        prop_assert_eq!(received(encode::service(&service), None), service);
    }

    #[test]
    fn a_workload_survives_the_wire(
        name in (label(), label()),
        addresses in prop::collection::vec(ip(), 0..3),
        identity in prop::option::of(identity()),
        ports in ports(),
        wire in wire(),
    ) {
        let name = InstanceName::new(&name.0, &name.1).unwrap();
        let workload = Workload { name, addresses, identity, ports, wire };
        let received = decode::address(&encode::workload(&workload)).unwrap();
        prop_assert_eq!(received, decode::AddressResource::Workload(workload));
    }

    #[test]
    fn a_server_policy_survives_the_wire(
        name in (label(), label()),
        mtls in prop::sample::select(vec![
            MtlsMode::Strict, MtlsMode::Permissive, MtlsMode::Disabled]),
        ports in ports(),
        limits in traffic::rate_limits(),
        authorization in authorization::authorization(),
        (egress, place, ending, removal) in (
            prop::sample::select(vec![leno_types::Egress::Allow, leno_types::Egress::Deny]),
            place(),
            any::<bool>(),
            prop::sample::select(leno_types::Removal::ALL.to_vec()),
        ),
    ) {
        let workload = InstanceName::new(&name.0, &name.1).unwrap();
        let authorization = std::sync::Arc::new(authorization);
        let policy = ServerPolicy {
            workload, mtls, ports, limits, egress, place, ending, removal, authorization,
        };
        prop_assert_eq!(decode::server_policy(&encode::server_policy(&policy)).unwrap(), policy);
    }

    #[test]
    fn garbage_is_an_error_or_a_value(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let any = |type_url: &str| proto::Any {
            type_url: type_url.to_owned(), value: Bytes::copy_from_slice(&bytes),
        };
        let _ = decode::address(&any(leno_wire::ADDRESS_TYPE));
        let _ = decode::server_policy(&any(leno_wire::SERVER_POLICY_TYPE));
    }

    #[test]
    fn a_flipped_byte_never_panics(service in service(), at in any::<prop::sample::Index>(), bit in 0_u8..8) {
        let mut any = encode::service(&service);
        let mut bytes = any.value.to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        any.value = bytes.into();
        let _ = decode::address(&any);
    }
}

#[test]
fn errors_name_what_the_peer_did_wrong() {
    let refused = |service: proto::Service| Service::try_from(service).unwrap_err().to_string();
    let named = || proto::Service { name: "shop/web".to_owned(), ..Default::default() };
    assert_eq!(refused(proto::Service::default()), "bad name");
    let port = |port| proto::ServicePort { port, ..Default::default() };
    assert_eq!(refused(proto::Service { ports: vec![port(0)], ..named() }), "0 is not a port");
    assert_eq!(
        refused(proto::Service { ports: vec![port(70_000)], ..named() }),
        "70000 is not a port"
    );
    assert_eq!(
        refused(proto::Service { vips: vec![Bytes::from_static(b"abc")], ..named() }),
        "an address of 3 bytes"
    );
    let endpoint = proto::Endpoint {
        addresses: vec![Bytes::from_static(&[10, 0, 0, 1])],
        port: 80,
        identity: 1,
        ..Default::default()
    };
    let all = proto::PortEndpoints { port: 80, endpoints: vec![endpoint] };
    let all = proto::Endpoints { ports: vec![all], ..Default::default() };
    let update = proto::ServiceUpdate {
        service: Some(proto::Service { ports: vec![port(80)], ..named() }),
        endpoints: Some(proto::service_update::Endpoints::All(all)),
    };
    assert_eq!(refused_update(update, None), "1 is not a place of an identity");
    let policy = proto::ServerPolicy { workload: "shop/web-0".to_owned(), ..Default::default() };
    assert_eq!(ServerPolicy::try_from(policy).unwrap_err().to_string(), "0 is not a mTLS mode");
    let any = proto::Any { type_url: "other".to_owned(), value: Bytes::new() };
    assert!(matches!(decode::address(&any), Err(decode::DecodeError::Type { .. })));
}

/// The error for an invalid update.
fn refused_update(update: proto::ServiceUpdate, held: Option<(&str, &Service)>) -> String {
    decode::ServiceUpdate::from(update).apply(held).unwrap_err().to_string()
}
