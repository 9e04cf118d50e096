//! Every mesh of the file, with each configuration that scenarios ask for.

use std::fs;
use std::net::SocketAddrV4;
use std::os::unix::fs::PermissionsExt as _;

use leno_measure::load::Protocol;
use nix::sys::signal::Signal;

use super::*;
use crate::scenario::Disturbance;

#[test]
fn meshes_are_known_by_their_names_and_those_of_a_cluster_are_sent_there() {
    for name in names() {
        assert_eq!(named(name, &Choices::default()).unwrap().name(), name);
    }
    let why = |name| named(name, &Choices::default()).err().unwrap().to_string();
    assert!(why("istio").contains("is measured in a cluster (--context)"), "{}", why("istio"));
    assert!(why("x").contains("is unknown") && why("x").contains("leno-ebpf"), "{}", why("x"));
}

#[test]
fn only_proxies_of_lenos_own_meshes_hand_over_while_they_serve() {
    let upgrade = crate::scenario::find("upgrade").unwrap();
    let able = |name: &&str| {
        let mesh = named(name, &Choices::default()).unwrap();
        mesh.unable(&upgrade).is_none()
    };
    let able: Vec<&str> = names().filter(able).collect();
    let all: Vec<&str> = names().take_while(|name| *name != "leno-proxy").collect();
    assert_eq!(able, all);
}

/// A hop to services at these last numbers of addresses.
fn to(services: &[u8]) -> Hop {
    let at = |last: &u8| SocketAddrV4::new([10, 89, 0, *last].into(), 8080);
    let services = services.iter().map(at).collect();
    Hop { services, directory: "/d".into(), ..Hop::default() }
}

/// The same beside an application.
fn beside_application(hop: Hop) -> Hop {
    Hop { application: Some(SocketAddrV4::new([127, 0, 0, 1].into(), 8080)), ..hop }
}

/// A configuration with all its files.
fn configured(name: &str, hop: &Hop) -> String {
    let made = named(name, &Choices::default()).unwrap().configure(hop).unwrap();
    let files = made.others.into_iter().map(|(_, text)| text).chain([made.text]);
    files.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_mesh_gets_pushed_routes_and_current_endpoints() {
    let disturbed = |one, hop: Hop| Hop { disturbance: Some(one), ..hop };
    let push = disturbed(Disturbance::Push { every_ms: 100 }, to(&[3, 4, 5]));
    let endpoints = to(&[4, 5]).services;
    let churn = Disturbance::Churn { changes_per_s: 50 };
    let churn = Hop { endpoints, ..disturbed(churn, to(&[3, 4, 5])) };
    let later = |hop: &Hop| Hop { revision: 7, ..hop.clone() };
    for (name, told_by) in
        [("envoy", None), ("haproxy", Some(Signal::SIGUSR2)), ("nginx", Some(Signal::SIGHUP))]
    {
        let mesh = named(name, &Choices::default()).unwrap();
        assert_eq!(mesh.configure(&push).unwrap().told_by, told_by, "{name}");
        let (one, two) = (configured(name, &push), configured(name, &later(&push)));
        assert_ne!(one, two, "{name}");
        assert!(two.contains(crate::application::PUSHED) && two.contains('7'), "{name}: {two}");
        let some = configured(name, &churn);
        let is_there = |last: u8| some.contains(&format!("10.89.0.{last}"));
        assert!(!is_there(3) && is_there(4) && is_there(5), "{name}: {some}");
        let server = beside_application(Hop { services: Vec::new(), ..push.clone() });
        let (one, two) = (mesh.configure(&server), mesh.configure(&later(&server)));
        assert_eq!(one, two, "{name}: only callers");
    }
}

#[test]
fn proxies_of_others_ask_for_mtls_on_both_sides() {
    for protocol in [Protocol::Http1, Protocol::Grpc, Protocol::Tcp] {
        let client = Hop { protocol, ..to(&[3]) };
        let server = beside_application(Hop { protocol, ..to(&[]) });
        for (name, hop, all) in [
            ("haproxy", &client, ["verify required", "127.0.0.1:15001"]),
            ("haproxy", &server, ["verify required", ""]),
            ("nginx", &client, ["ssl_certificate_key /d/key.pem", "127.0.0.1:15001"]),
            ("nginx", &server, ["ssl_verify_client on", ""]),
            ("envoy", &client, ["trusted_ca", "\"port_value\": 15001"]),
            ("envoy", &server, ["\"require_client_certificate\": true", ""]),
        ] {
            let text = configured(name, hop);
            assert!(all.iter().all(|words| text.contains(words)), "{name}: {all:?}: {text}");
        }
    }
}

#[test]
fn the_configuration_of_envoy_is_yaml_and_forwards_to_opaque_services_without_parsing() {
    let read = |hop: &Hop| -> serde_json::Value {
        let text = configured("envoy", hop);
        let read: serde_json::Value = serde_saphyr::from_str(&text).expect(&text);
        read["static_resources"].clone()
    };
    for (hop, count) in
        [(to(&[3]), 1), (beside_application(to(&[])), 1), (beside_application(to(&[3])), 2)]
    {
        let read = read(&Hop { mixed: true, ..hop });
        let all = |what: &str| read[what].as_array().map_or(0, Vec::len);
        assert_eq!((all("listeners"), all("clusters")), (count, count), "{read}");
    }
    let read = read(&Hop { opaque: to(&[4]).services, ..to(&[3, 4]) });
    let chains = &read["listeners"][0]["filter_chains"];
    let filter = |nth: usize| chains[nth]["filters"][0]["name"].as_str().unwrap();
    assert_eq!(filter(0), "envoy.filters.network.http_connection_manager");
    assert_eq!(filter(1), "envoy.filters.network.tcp_proxy");
    let matching = &chains[1]["filter_chain_match"]["prefix_ranges"];
    assert_eq!(*matching, serde_json::json!([{"address_prefix": "10.89.0.4", "prefix_len": 32}]));
}

fn given(name: &str, program: PathBuf) -> Mesh {
    Mesh { given: Some(program), ..named(name, &Choices::default()).unwrap() }
}

#[test]
fn a_script_of_the_python_package_is_the_binary_that_it_starts() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    fs::write(place("binary"), "\x7fELF").unwrap();
    // Stands in for Python: called with `-c`, it prints the path of the binary.
    let binary = place("binary");
    let python = format!("#!/bin/sh\n[ \"$1\" = -c ] && echo {}\n", binary.display());
    fs::write(place("python"), python).unwrap();
    fs::set_permissions(place("python"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(place("envoy"), format!("#!{}\nmain()\n", place("python").display())).unwrap();
    let find = |name: &str| given("envoy", place(name)).find().unwrap().program;
    assert_eq!((find("envoy"), find("binary")), (Some(binary.clone()), Some(binary)));
    fs::remove_file(place("binary")).unwrap();
    assert_eq!(find("envoy"), Some(place("envoy")), "starting it reports what is wrong");
}

#[test]
fn a_missing_program_is_named_with_what_brings_it() {
    let missing = |mesh: Mesh| mesh.find().unwrap_err().to_string();
    let why = missing(given("envoy", "/nowhere/envoy".into()));
    assert!(why.contains("/nowhere/envoy"), "{why}");
    // These have no installer.
    for (name, words) in [("linkerd2-proxy", "--linkerd2-proxy PATH"), ("ztunnel", "testing")] {
        let why = missing(named(name, &Choices::default()).unwrap());
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn scenarios_that_a_mesh_cannot_carry_are_refused() {
    let all = ["http-1k", "push", "churn", "faces", "upgrade", "restart-websockets"];
    for (name, able) in [
        ("leno", &all[..]),
        ("leno-proxy", &["http-1k", "faces"]),
        ("envoy", &["http-1k", "push", "churn", "faces"]),
        ("haproxy", &["http-1k", "push", "churn", "restart-websockets"]),
        ("linkerd2-proxy", &["http-1k", "faces", "restart-websockets"]),
        ("ztunnel", &["http-1k", "restart-websockets"]),
    ] {
        let mesh = named(name, &Choices::default()).unwrap();
        let carries =
            |scenario: &&&str| mesh.unable(&crate::scenario::find(scenario).unwrap()).is_none();
        assert_eq!(all.iter().filter(carries).copied().collect::<Vec<_>>(), able, "{name}");
    }
}

#[test]
fn ztunnel_knows_every_workload_and_linkerds_proxy_is_told_all_by_its_environment() {
    let workloads = vec![
        ("client".to_owned(), [10, 89, 0, 2].into()),
        ("s0".to_owned(), [10, 89, 0, 3].into()),
    ];
    let hop = Hop { workload: "s0".into(), workloads, directory: "/d".into(), ..Hop::default() };
    let of = |name: &str| named(name, &Choices::default()).unwrap().configure(&hop).unwrap();
    let ztunnel = of("ztunnel");
    let read: serde_json::Value = serde_saphyr::from_str(&ztunnel.text).unwrap();
    let known = read["workloads"].as_array().unwrap();
    assert_eq!((known.len(), known[1]["workloadIps"][0].as_str()), (2, Some("10.89.0.3")));
    assert_eq!(known[0]["protocol"], "HBONE");
    assert!(known[0]["services"].is_object(), "ztunnel wants the field");
    let linkerd = of("linkerd2-proxy");
    assert_eq!((linkerd.file, &*linkerd.text), ("token", "bench\n"));
    // Neither proxy starts if one of these is missing.
    for (made, name, value) in [
        (&ztunnel, "PROXY_WORKLOAD_INFO", "bench/s0/s0"),
        (&ztunnel, "FAKE_CA", "true"),
        (&ztunnel, "XDS_ADDRESS", ""),
        (&ztunnel, "LOCAL_XDS_PATH", "/d/local.yaml"),
        (&linkerd, "LINKERD2_PROXY_DESTINATION_SVC_ADDR", "127.0.0.1:8086"),
        (&linkerd, "LINKERD2_PROXY_POLICY_WORKLOAD", "s0"),
        (&linkerd, "LINKERD2_PROXY_IDENTITY_LOCAL_NAME", &linkerd::identity("s0")),
        (&linkerd, "LINKERD2_PROXY_IDENTITY_TOKEN_FILE", "/d/token"),
        (&linkerd, "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", ""),
        (&linkerd, "LINKERD2_PROXY_INBOUND_IPS", "10.89.0.3"),
        (&linkerd, "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS", "127.0.0.1:15001"),
        (&linkerd, "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "0.0.0.0:15006"),
    ] {
        let found = made.environment.iter().find(|(known, _)| *known == name);
        assert_eq!(found.map(|(_, value)| &**value), Some(value), "{name}");
    }
}
