//! The meshes, behind one trait. Leno's mesh is a lab with its own proxies. For another mesh, the
//! lab runs a proxy of that mesh beside each workload and captures its traffic with Leno's capture.

pub(crate) mod adapter;
mod alone;
pub mod certificates;
mod envoy;
mod haproxy;
pub(crate) mod hop;
mod leno;
pub(crate) mod linkerd;
mod nginx;
mod ztunnel;

use std::path::PathBuf;

use anyhow::Result;

use crate::error::Error;
use crate::mesh_names::{CLUSTER, LAB, NONE};
use crate::scenario::Scenario;

pub use adapter::{Mesh, Own};

/// The user's choices about meshes.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    /// Path of Envoy, instead of the installed one.
    pub envoy: Option<PathBuf>,
    /// Path of ztunnel, which has no installer.
    pub ztunnel: Option<PathBuf>,
    /// Path of linkerd2-proxy, which has no installer either.
    pub linkerd2_proxy: Option<PathBuf>,
    /// Path of an earlier build of Leno's proxy.
    pub before: Option<PathBuf>,
}

/// Looks up a mesh by its name.
///
/// # Errors
/// If no mesh has this name; the error lists the names.
pub fn named(name: &str, choices: &Choices) -> Result<Box<dyn Mesh>, Error> {
    Ok(match name {
        NONE => Box::new(leno::None),
        "leno-proxy" => Box::new(alone::Alone::of_this_build()),
        "before" => Box::new(alone::Alone::before(choices.before.clone())),
        "envoy" => Box::new(envoy::Envoy { given: choices.envoy.clone() }),
        "haproxy" => Box::new(haproxy::Haproxy),
        "nginx" => Box::new(nginx::Nginx),
        "linkerd2-proxy" => Box::new(linkerd::Linkerd { given: choices.linkerd2_proxy.clone() }),
        "ztunnel" => Box::new(ztunnel::Ztunnel { given: choices.ztunnel.clone() }),
        _ => match leno::Leno::named(name) {
            Some(leno) => Box::new(leno),
            None => {
                let known: Vec<&str> = LAB.iter().map(|(name, _)| *name).collect();
                let known = known.join(", ");
                let clustered = CLUSTER.iter().any(|(known, _)| *known == name);
                let why =
                    if clustered { "is measured in a cluster (--context)" } else { "is unknown" };
                return Err(Error::Refused(format!(
                    "mesh {name:?} {why}; in the lab of one machine there are: {known}"
                )));
            }
        },
    })
}

/// Why a mesh cannot carry a scenario; `None` if it can.
#[must_use]
pub fn unable(mesh: &dyn Mesh, scenario: &Scenario) -> Option<&'static str> {
    let is_handed_over = mesh.name() == NONE || mesh.own().is_some_and(|own| own.share.is_some());
    if scenario.upgrades() && !is_handed_over {
        return Some("its proxies do not hand over to others while they serve");
    }
    if scenario.websockets > 0 && ["envoy", "nginx"].contains(&mesh.name()) {
        return Some("its adapter does not configure it for connections that are upgraded");
    }
    mesh.unable(scenario)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV4;

    use leno_measure::load::Protocol;
    use nix::sys::signal::Signal;

    use super::hop::Hop;
    use super::hop::tests::hop;
    use super::*;
    use crate::scenario::Disturbance;

    #[test]
    fn a_mesh_of_a_cluster_is_sent_there() {
        let why = |name| named(name, &Choices::default()).err().unwrap().to_string();
        assert!(why("istio").contains("is measured in a cluster (--context)"), "{}", why("istio"));
        assert!(why("x").contains("is unknown") && why("x").contains("leno-ebpf"), "{}", why("x"));
    }

    #[test]
    fn every_known_mesh_is_there_under_its_name() {
        for (name, _) in LAB {
            assert_eq!(named(name, &Choices::default()).unwrap().name(), *name);
        }
        let Err(error) = named("istio", &Choices::default()) else { panic!("no such adapter") };
        assert!(error.to_string().contains("envoy"));
    }

    #[test]
    fn only_node_proxies_hand_over_while_they_serve() {
        let upgrade = crate::scenario::find("upgrade").unwrap();
        let able = |name: &&&str| {
            let mesh = named(name, &Choices::default()).unwrap();
            unable(mesh.as_ref(), &upgrade).is_none()
        };
        let names: Vec<&str> = LAB.iter().map(|(name, _)| *name).collect();
        let able: Vec<&str> = names.iter().filter(able).copied().collect();
        assert_eq!(able, ["none", "leno-node", "leno-shared"]);
    }

    #[test]
    fn a_named_binary_that_is_not_there_is_missing_by_its_path() {
        let choices = Choices { envoy: Some("/nowhere/envoy".into()), ..Choices::default() };
        let missing = named("envoy", &choices).unwrap().find().unwrap_err();
        assert!(missing.to_string().contains("/nowhere/envoy"), "{missing}");
    }

    #[test]
    fn every_mesh_gets_pushed_routes_and_current_endpoints() {
        let services = [3, 4, 5].map(|last| SocketAddrV4::new([10, 89, 0, last].into(), 8080));
        let push = Hop {
            services: &services,
            disturbance: Some(Disturbance::Push { every_ms: 100 }),
            ..hop()
        };
        let churn = Hop {
            disturbance: Some(Disturbance::Churn { changes_per_s: 50 }),
            endpoints: &services[1..],
            ..push
        };
        for (name, told_by) in
            [("envoy", None), ("haproxy", Some(Signal::SIGUSR2)), ("nginx", Some(Signal::SIGHUP))]
        {
            let mesh = named(name, &Choices::default()).unwrap();
            let all = |hop: &Hop<'_>| {
                let configuration = mesh.configure(hop).unwrap();
                assert_eq!(configuration.told_by, told_by, "{name}");
                let others = configuration.others.iter().map(|(_, text)| text.clone());
                others.chain([configuration.text]).collect::<Vec<_>>().join("\n")
            };
            let (one, two) = (all(&push), all(&Hop { revision: 7, ..push }));
            assert_ne!(one, two, "{name}");
            assert!(two.contains(crate::application::PUSHED) && two.contains('7'), "{name}: {two}");
            let some = all(&churn);
            let is_there = |last: u8| some.contains(&format!("10.89.0.{last}"));
            assert!(!is_there(3) && is_there(4) && is_there(5), "{name}: {some}");
            let server = Hop { services: &[], application: Some(services[0]), ..push };
            let later = Hop { revision: 7, ..server };
            assert_eq!(mesh.configure(&server), mesh.configure(&later), "{name}: only callers");
        }
    }

    #[test]
    fn proxies_of_others_ask_for_mtls_on_both_sides() {
        let services = [SocketAddrV4::new([10, 89, 0, 3].into(), 8080)];
        let application = Some(SocketAddrV4::new([127, 0, 0, 1].into(), 8080));
        for protocol in [Protocol::Http1, Protocol::Grpc, Protocol::Tcp] {
            let client = Hop { protocol, services: &services, ..hop() };
            let server = Hop { application, services: &[], ..client };
            let words = [
                ("haproxy", "verify required", "verify required"),
                ("nginx", "ssl_certificate_key /d/key.pem", "ssl_verify_client on"),
                ("envoy", "trusted_ca", "\"require_client_certificate\": true"),
            ];
            for (name, out, back) in words {
                let mesh = named(name, &Choices::default()).unwrap();
                let (client, server) = (mesh.configure(&client), mesh.configure(&server));
                let (client, server) = (client.unwrap().text, server.unwrap().text);
                assert!(
                    client.contains(out) && client.contains("127.0.0.1:15001")
                        || client.contains("\"port_value\": 15001"),
                    "{name}: {client}"
                );
                assert!(server.contains(back), "{name}: {server}");
            }
        }
    }

    #[test]
    fn envoy_forwards_to_opaque_services_without_parsing() {
        let services = [3, 4].map(|last| SocketAddrV4::new([10, 89, 0, last].into(), 8080));
        let envoy = named("envoy", &Choices::default()).unwrap();
        let caller = Hop { services: &services, opaque: &services[1..], ..hop() };
        let text = envoy.configure(&caller).unwrap().text;
        let read: serde_json::Value = serde_saphyr::from_str(&text).expect(&text);
        let chains = &read["static_resources"]["listeners"][0]["filter_chains"];
        let filter = |nth: usize| chains[nth]["filters"][0]["name"].as_str().unwrap();
        assert_eq!(filter(0), "envoy.filters.network.http_connection_manager");
        assert_eq!(filter(1), "envoy.filters.network.tcp_proxy");
        let matching = &chains[1]["filter_chain_match"]["prefix_ranges"];
        assert_eq!(
            *matching,
            serde_json::json!([{"address_prefix": "10.89.0.4", "prefix_len": 32}])
        );
    }

    #[test]
    fn the_configuration_of_envoy_is_yaml_on_both_sides_and_in_between() {
        let services = [SocketAddrV4::new([10, 89, 0, 3].into(), 8080)];
        let application = Some(SocketAddrV4::new([127, 0, 0, 1].into(), 8080));
        let envoy = named("envoy", &Choices::default()).unwrap();
        for (application, services, count) in
            [(None, &services[..], 1), (application, &[][..], 1), (application, &services[..], 2)]
        {
            let hop = Hop { mixed: true, application, services, ..hop() };
            let text = envoy.configure(&hop).unwrap().text;
            let read: serde_json::Value = serde_saphyr::from_str(&text).expect(&text);
            let all = |what: &str| read["static_resources"][what].as_array().map_or(0, Vec::len);
            assert_eq!((all("listeners"), all("clusters")), (count, count), "{text}");
        }
    }
}
