//! Tests the values that are built for services.

use leno_index::Index;
use leno_types::Protocol;
use leno_types::mesh::{Distribution, Resolution, declared, takes_datagrams};
use leno_types::traffic::{Algorithm, HashOn, Traffic};

use crate::support::{SHOP, endpoints, index, ip, names, put, service, shop, workload};

#[test]
fn slices_of_both_families_make_one_endpoint_of_each_instance() {
    let index = shop();
    let web = service(&index, "shop/web");
    assert_eq!(web.vips, [ip("10.96.0.1"), ip("fd96::1")]);
    let expected =
        ["shop/web-0 10.89.0.2,fd89::2 8080 web", "shop/web-1 10.89.0.3,fd89::3 8080 web"];
    assert_eq!(endpoints(web.port(80).unwrap()), expected);
}

#[test]
fn every_vip_leads_to_the_service() {
    let index = shop();
    let web = service(&index, "shop/web");
    for vip in ["10.96.0.1", "fd96::1", "::ffff:10.96.0.1"] {
        assert_eq!(
            index.resolve(&ip(vip).into(), "client"),
            Resolution::Service(web.clone()),
            "{vip}"
        );
    }
    let address = index.address(ip("fd96::1")).unwrap();
    assert_eq!(index.aliases(&address), [ip("10.96.0.1"), ip("fd96::1")]);
    assert_eq!(index.resolve(&ip("10.96.0.9").into(), "client"), Resolution::Unknown);
}

#[test]
fn only_ready_endpoints_are_told() {
    let mut index = shop();
    let slice = |conditions: &str, other: &str| {
        format!(
            r#"
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: db, namespace: shop, labels: {{kubernetes.io/service-name: db}}}}
addressType: IPv4
ports: [{{port: 5432}}]
endpoints: [{{addresses: [10.89.0.9], conditions: {conditions}}}, {other}]
---
apiVersion: v1
kind: Service
metadata: {{name: db, namespace: shop}}
spec: {{ports: [{{port: 5432}}]}}
"#
        )
    };
    let told = |index: &leno_index::Index| endpoints(service(index, "shop/db").port(5432).unwrap());
    // A missing condition counts as ready. A terminating endpoint serves while no other one is ready.
    let (unready, ready) =
        ("{addresses: [10.89.0.11], conditions: {ready: false}}", "{addresses: [10.89.0.10]}");
    for (conditions, ready) in [
        ("{}", true),
        ("{ready: true}", true),
        ("{ready: false}", false),
        ("{ready: false, serving: true, terminating: true}", true),
        ("{ready: false, serving: false, terminating: true}", false),
        ("{ready: false, serving: true, terminating: false}", false),
    ] {
        put(&mut index, &slice(conditions, unready));
        assert_eq!(!told(&index).is_empty(), ready, "{conditions}");
    }
    put(&mut index, &slice("{ready: false, serving: true, terminating: true}", ready));
    assert_eq!(told(&index), ["- 10.89.0.10 5432 -"]);
}

#[test]
fn a_place_without_an_instance_is_served_in_plaintext() {
    let mut index = shop();
    put(
        &mut index,
        r#"
apiVersion: v1
kind: Service
metadata: {name: bank, namespace: shop}
spec: {clusterIP: 10.96.0.7, ports: [{port: 443, appProtocol: https}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: bank, namespace: shop, labels: {kubernetes.io/service-name: bank}}
addressType: IPv4
ports: [{port: 8443}]
endpoints:
- {addresses: [192.0.2.7]}
- {addresses: [192.0.2.8], targetRef: {kind: Node, name: web-0}}
- {addresses: [10.89.0.77], targetRef: {kind: Pod, name: gone, namespace: shop}}
"#,
    );
    let bank = service(&index, "shop/bank");
    let port = bank.port(443).unwrap();
    assert_eq!(port.protocol, Protocol::Opaque);
    let expected = ["shop/gone 10.89.0.77 8443 -", "- 192.0.2.7 8443 -", "- 192.0.2.8 8443 -"];
    assert_eq!(endpoints(port), expected);
}

#[test]
fn ports_are_matched_by_name() {
    let mut index = shop();
    put(
        &mut index,
        r#"
apiVersion: v1
kind: Service
metadata: {name: many, namespace: shop}
spec:
  ports:
  - {name: metrics, port: 9090}
  - {name: http, port: 80, targetPort: 8080}
  - {name: dns, port: 53, protocol: UDP}
  - {name: unserved, port: 81}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: many, namespace: shop, labels: {kubernetes.io/service-name: many}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: dns, port: 53, protocol: UDP}, {name: metrics, port: 9191}]
endpoints: [{addresses: [10.89.0.2], targetRef: {kind: Workload, name: web-0}}]
"#,
    );
    let many = service(&index, "shop/many");
    let numbers: Vec<_> = many.ports.iter().map(|port| port.port).collect();
    assert_eq!(numbers, [80, 81, 9090], "by number, TCP only");
    assert_eq!(endpoints(many.port(80).unwrap()), ["shop/web-0 10.89.0.2 8080 web"]);
    assert_eq!(endpoints(many.port(9090).unwrap()), ["shop/web-0 10.89.0.2 9191 web"]);
    assert_eq!(endpoints(many.port(81).unwrap()), [""; 0]);
}

#[test]
fn ports_of_datagrams_are_apart_from_those_of_connections() {
    let mut index = shop();
    put(
        &mut index,
        r#"
apiVersion: v1
kind: Service
metadata: {name: game, namespace: shop}
spec:
  ports:
  - {name: play, port: 70, protocol: UDP, appProtocol: leno.dev/udp}
  - {name: both, port: 80, protocol: UDP, appProtocol: leno.dev/udp}
  - {name: http, port: 80, appProtocol: http}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: game, namespace: shop, labels: {kubernetes.io/service-name: game}}
addressType: IPv4
ports:
- {name: play, port: 7000, protocol: UDP, appProtocol: leno.dev/udp}
- {name: http, port: 8080, appProtocol: http}
endpoints: [{addresses: [10.89.0.2], targetRef: {kind: Workload, name: web-0}}]
"#,
    );
    let game = service(&index, "shop/game");
    assert_eq!(endpoints(game.datagram_port(70).unwrap()), ["shop/web-0 10.89.0.2 7000 web"]);
    assert_eq!(game.port(70), None, "a connection has no such port");
    assert_eq!(game.port(80).unwrap().protocol, Protocol::Http1, "a number that is of TCP too");
    assert_eq!(game.datagram_port(80), None);
    let workload = workload(&index, "shop/web-0");
    let policy = index.server_policy(&"shop/web-0".parse().unwrap()).unwrap();
    for ports in [&workload.ports, &policy.ports] {
        assert!(takes_datagrams(ports, 7000), "{ports:?}");
        assert_eq!(declared(ports, 7000), Protocol::Detect);
    }
}

#[test]
fn a_named_target_port_may_differ_between_instances() {
    let mut index = shop();
    let slice = |name: &str, port: &str, ip: &str, instance: &str| {
        format!(
            "---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {name}, \
             namespace: shop, labels: {{kubernetes.io/service-name: web2}}}}, addressType: IPv4, \
             ports: [{port}], endpoints: [{{addresses: [{ip}], \
             targetRef: {{kind: Workload, name: {instance}}}}}]}}\n"
        )
    };
    let service_document = "{apiVersion: v1, kind: Service, metadata: {name: web2, \
                            namespace: shop}, spec: {ports: [{port: 80, targetPort: http}]}}\n";
    let documents = [
        service_document.to_owned(),
        slice("a", "{port: 8081}", "10.89.0.2", "web-0"),
        // If a slice has no port number, the workload's port `http` is used. If the workload is not known, there
        // is no endpoint.
        slice("b", "{appProtocol: http}", "10.89.0.3", "web-1"),
        slice("c", "{appProtocol: http}", "10.89.0.4", "gone"),
    ];
    put(&mut index, &documents.concat());
    let expected = ["shop/web-0 10.89.0.2 8081 web", "shop/web-1 10.89.0.3 8080 web"];
    assert_eq!(endpoints(service(&index, "shop/web2").port(80).unwrap()), expected);
}

#[test]
fn a_headless_service_has_endpoints_and_no_vip() {
    let mut index = shop();
    put(
        &mut index,
        r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: None, clusterIPs: [None], ports: [{name: http, port: 80}]}
"#,
    );
    let web = service(&index, "shop/web");
    assert_eq!((web.vips.len(), web.port(80).unwrap().endpoints.len()), (0, 2));
    assert_eq!(index.resolve(&ip("10.96.0.1").into(), "client"), Resolution::Unknown);
    assert!(matches!(index.resolve(&ip("10.89.0.2").into(), "client"), Resolution::Workload(_)));
}

#[test]
fn an_external_name_without_ports_is_an_alias_in_dns_alone() {
    let mut index = shop();
    let changed = put(
        &mut index,
        "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, \
         spec: {type: ExternalName, externalName: example.org}}",
    );
    assert!(index.service(&"shop/web".parse().unwrap()).is_none());
    assert_eq!(names(&changed.services), ["shop/web"]);
}

/// The protocol of port 80 for these declarations of the service, its two slices and the workload.
fn protocol(service_says: &str, slices_say: [&str; 2], workload_says: &str) -> Protocol {
    let said = |text: &str| match text {
        "" => String::new(),
        text => format!(", appProtocol: {text}"),
    };
    let slice = |name: &str, says: &str| {
        format!(
            "---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {name}, \
             labels: {{kubernetes.io/service-name: s}}}}, addressType: IPv4, \
             ports: [{{port: 8080{}}}], endpoints: [{{addresses: [10.0.0.1], \
             targetRef: {{kind: Workload, name: w-0}}, conditions: {{ready: false}}}}]}}\n",
            said(says)
        )
    };
    let text = [
        format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: s}}, \
             spec: {{ports: [{{port: 80{}}}]}}}}\n",
            said(service_says)
        ),
        slice("a", slices_say[0]),
        slice("b", slices_say[1]),
        format!(
            "---\n{{apiVersion: leno.dev/v1alpha1, kind: Workload, metadata: {{name: w}}, \
             spec: {{command: [w], ports: [{{port: 8080{}}}]}}, \
             status: {{instances: [{{name: w-0, addresses: [10.0.0.1]}}]}}}}\n",
            said(workload_says)
        ),
    ];
    let mut index = index();
    put(&mut index, &text.concat());
    service(&index, "default/s").ports[0].protocol
}

#[test]
fn the_service_declares_before_slices_before_workloads() {
    assert_eq!(protocol("http", ["grpc", "grpc"], "mysql"), Protocol::Http1);
    assert_eq!(protocol("", ["grpc", ""], "mysql"), Protocol::Http2);
    assert_eq!(protocol("", ["", ""], "mysql"), Protocol::Opaque);
    assert_eq!(protocol("", ["", ""], ""), Protocol::Detect);
    // If slices contradict each other, the strictest protocol is used.
    assert_eq!(protocol("", ["grpc", "http"], ""), Protocol::Http1);
    assert_eq!(protocol("", ["mysql", "grpc"], ""), Protocol::Http2);
    assert_eq!(protocol("", ["mysql", "http"], "mysql"), Protocol::Http1);
}

/// Endpoints have their zone and node only if the service prefers near endpoints. The policy of a workload always
/// has its own.
#[test]
fn places_are_told_where_clients_ask_for_them() {
    let mut index = shop();
    let text = |distribution: &str, hints: &str| {
        format!(
            r#"
apiVersion: v1
kind: Service
metadata: {{name: db, namespace: shop}}
spec: {{clusterIP: 10.96.0.7, {distribution} ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: db, namespace: shop, labels: {{kubernetes.io/service-name: db}}}}
addressType: IPv4
ports: [{{port: 80}}]
endpoints: [{{addresses: [10.89.0.9], zone: a, nodeName: n1{hints}}}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {{name: near, namespace: shop, labels: {{topology.kubernetes.io/zone: b}}}}
spec: {{command: [run]}}
status: {{instances: [{{name: near-0, addresses: [10.89.0.8]}}]}}
"#
        )
    };
    let mut told = |distribution: &str, hints: &str| {
        put(&mut index, &text(distribution, hints));
        let db = service(&index, "shop/db");
        let place = db.port(80).unwrap().endpoints[0].place.clone();
        (db.distribution, place.zone.to_string(), place.node.to_string())
    };
    let none = (Distribution::Any, String::new(), String::new());
    assert_eq!(told("", ""), none);
    for (name, distribution) in [
        ("PreferClose", Distribution::SameZone),
        ("PreferSameZone", Distribution::SameZone),
        ("PreferSameNode", Distribution::SameNode),
    ] {
        let wanted = format!("trafficDistribution: {name},");
        assert_eq!(told(&wanted, ""), (distribution, "a".to_owned(), "n1".to_owned()));
        let hinted = told(&wanted, ", hints: {forZones: [{name: b}], forNodes: [{name: n2}]}");
        assert_eq!(hinted, (distribution, "b".to_owned(), "n2".to_owned()));
    }
    assert_eq!(told("", ""), none);
    let policy = index.server_policy(&"shop/near-0".parse().unwrap()).unwrap();
    assert_eq!((&*policy.place.zone, &*policy.place.node), ("b", ""));
}

#[test]
fn clients_stay_with_their_endpoint_where_the_service_says_so() {
    let mut index = shop();
    let keeps = |index: &Index| {
        let web = service(index, "shop/web");
        let of = |one: &Traffic| one.balancing.as_ref().and_then(|b| b.algorithm.clone());
        web.traffic.iter().filter_map(|one| of(one)).collect::<Vec<_>>()
    };
    assert_eq!(keeps(&index), []);
    put(
        &mut index,
        &SHOP.replacen(
            "spec:\n  clusterIP:",
            "spec:\n  sessionAffinity: ClientIP\n  clusterIP:",
            1,
        ),
    );
    assert_eq!(keeps(&index), [Algorithm::Maglev(HashOn::Source)]);
    let policy = r#"
apiVersion: leno.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: turns, namespace: shop}
spec:
  targetRefs: [{group: "", kind: Service, name: web}]
  balancing: {algorithm: RoundRobin}
"#;
    let first = |index: &mut Index, policy: &str| {
        put(index, policy);
        let web = service(index, "shop/web");
        let first = web.traffic.iter().min_by_key(|one| &one.source).unwrap();
        first.balancing.clone().unwrap()
    };
    let algorithm = first(&mut index, policy).algorithm;
    assert_eq!(algorithm, Some(Algorithm::RoundRobin), "a policy goes before it");
    let slow = first(&mut index, &policy.replace("algorithm: RoundRobin", "slowStart: 30s"));
    assert_eq!(slow.algorithm, Some(Algorithm::Maglev(HashOn::Source)), "one that names none");
    assert!(slow.slow_start.is_some());
}
