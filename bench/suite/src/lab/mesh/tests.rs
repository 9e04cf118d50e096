//! Checks the configurations of every mesh in the file, for all kinds of scenarios.

use std::fs;
use std::net::SocketAddrV4;
use std::os::unix::fs::PermissionsExt as _;

use leno_measure::load::Protocol;
use nix::sys::signal::Signal;
use serde::Deserialize;

use super::*;
use crate::scenario::Disturbance;

#[test]
fn meshes_are_found_by_name_and_those_of_a_cluster_need_a_context() {
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

/// A hop that calls services. `services` has the last number of the address of each.
fn to(services: &[u8]) -> Hop {
    let at = |last: &u8| SocketAddrV4::new([10, 89, 0, *last].into(), 8080);
    let services = services.iter().map(at).collect();
    Hop { services, directory: "/d".into(), ..Hop::default() }
}

/// The given hop, but beside an application.
fn beside_application(hop: Hop) -> Hop {
    Hop { application: Some(SocketAddrV4::new([127, 0, 0, 1].into(), 8080)), ..hop }
}

/// The configuration of a proxy, with all its files and its environment, as a text.
fn configured(name: &str, hop: &Hop) -> String {
    let made = named(name, &Choices::default()).unwrap().configure(hop).unwrap();
    let files = made.others.into_iter().map(|(_, text)| text).chain([made.text]);
    let environment = made.environment.iter().map(|(name, value)| format!("{name}={value}\n"));
    files.chain(environment).collect::<Vec<_>>().join("\n")
}

#[test]
fn only_proxies_of_callers_are_revised_by_the_means_of_their_mesh() {
    for (name, told_by) in
        [("envoy", None), ("haproxy", Some(Signal::SIGUSR2)), ("nginx", Some(Signal::SIGHUP))]
    {
        let mesh = named(name, &Choices::default()).unwrap();
        let revised = |hop: Hop| {
            let disturbance = Some(Disturbance::Push { every_ms: 100 });
            [0, 7].map(|revision| mesh.configure(&Hop { disturbance, revision, ..hop.clone() }))
        };
        let [first, next] = revised(to(&[3])).map(Option::unwrap);
        assert!(first != next && first.told_by == told_by, "{name}");
        let [first, next] = revised(beside_application(to(&[])));
        assert_eq!(first, next, "{name}");
    }
}

/// A hop, and words that its configuration must contain.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfiguredHop {
    mesh: String,
    hop: Hop,
    #[serde(default)]
    protocols: Vec<Protocol>,
    has: Vec<String>,
    #[serde(default)]
    lacks: Vec<String>,
}

#[test]
fn proxies_of_others_are_told_what_they_need() {
    let all: Vec<ConfiguredHop> =
        serde_saphyr::from_str(include_str!("../../../data/lab.test.yaml")).unwrap();
    for ConfiguredHop { mesh, hop, protocols, has, lacks } in all {
        let protocols = if protocols.is_empty() { vec![hop.protocol] } else { protocols };
        for protocol in protocols {
            let text = configured(&mesh, &Hop { protocol, ..hop.clone() });
            let is_there = |words: &&String| text.contains(*words);
            assert!(has.iter().all(|words| is_there(&words)), "{mesh}: {has:?}: {text}");
            assert_eq!(lacks.iter().find(is_there), None, "{mesh}: {text}");
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
fn a_start_script_of_pip_stands_for_the_binary_behind_it() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    fs::write(place("binary"), "\x7fELF").unwrap();
    // A script in place of Python: when it is called with `-c`, it prints the path of the binary.
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
    // These programs have no installer.
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
