//! The meshes, behind one trait. Leno's mesh is a lab with its own proxies. For another mesh, the
//! lab runs a proxy of that mesh beside each workload and captures its traffic with Leno's capture.

mod certificates;
mod envoy;
mod haproxy;
mod leno;
mod linkerd;
mod nginx;
mod sidecar;
pub(crate) mod tools;
mod ztunnel;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use leno_capture::Choice;
use leno_measure::load::Protocol;
use nix::sys::signal::Signal;

use crate::cluster;
use crate::error::Error;
use crate::scenario::{Disturbance, Scenario};

use certificates::Authority;
use linkerd::Control;
pub(crate) use sidecar::Sidecars;

/// The baseline of every round.
pub const NONE: &str = "none";

/// One mesh, or none.
pub trait Mesh {
    /// Its name in records.
    fn name(&self) -> &str;

    /// Looks for the mesh's programs.
    ///
    /// # Errors
    /// What is missing, and the command that installs it.
    fn find(&self) -> Result<MeshPrograms, Missing>;

    /// Why the mesh cannot carry a scenario; `None` if it can.
    fn unable(&self, scenario: &Scenario) -> Option<&'static str> {
        let _ = scenario;
        None
    }

    /// How Leno's own proxies are captured; `None` if the lab has none of them.
    fn own(&self) -> Option<Choice> {
        None
    }

    /// How traffic reaches the proxy beside a workload.
    fn captured(&self, hop: &Hop<'_>) -> Captured {
        let _ = hop;
        Captured::Fully
    }

    /// The stand-in for the mesh's control plane on loopback of a workload, if the mesh needs one.
    fn control(&self, hop: &Hop<'_>, authority: &Arc<Authority>) -> Option<Control> {
        let _ = (hop, authority);
        None
    }

    /// The configuration of the proxy beside one workload; `None` if the lab runs Leno's own
    /// proxies or none.
    fn configure(&self, hop: &Hop<'_>) -> Option<Configuration> {
        let _ = hop;
        None
    }
}

/// How traffic reaches the proxy beside a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Captured {
    /// All outgoing and incoming connections are captured.
    Fully,
    /// Nothing is captured: other proxies dial this port of the proxy, and the workload calls no
    /// service.
    Not(u16),
}

/// The programs of a mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeshPrograms {
    /// The proxy; `None` without one.
    pub program: Option<PathBuf>,
    /// The version, as the program prints it.
    pub version: String,
}

/// A mesh that cannot be measured here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is missing: {bring}")]
pub struct Missing {
    /// The missing program.
    pub what: String,
    /// The command that installs it.
    pub bring: String,
}

/// What the configuration of the proxy beside one workload depends on.
#[derive(Clone, Copy, Debug)]
pub struct Hop<'a> {
    /// The protocol of the traffic.
    pub protocol: Protocol,
    /// Whether the traffic is a mix of HTTP/1.1 and gRPC calls.
    pub mixed: bool,
    /// The application's address on loopback; `None` beside the client.
    pub application: Option<SocketAddrV4>,
    /// The services that the workload calls; empty beside a workload that only answers.
    pub services: &'a [SocketAddrV4],
    /// The services whose traffic every proxy must forward as opaque bytes, whatever the protocol
    /// of the others.
    pub opaque: &'a [SocketAddrV4],
    /// The workload beside the proxy. It is in the namespace `bench` and has a service account of
    /// its own name.
    pub workload: &'a str,
    /// All workloads, with their addresses.
    pub workloads: &'a [(String, Ipv4Addr)],
    /// The directory of the proxy's files: `chain.pem`, `key.pem`, `both.pem` and `roots.pem`.
    pub directory: &'a Path,
    /// The change of configuration while the proxy runs.
    pub disturbance: Option<Disturbance>,
    /// The number of this revision; 0 is the first.
    pub revision: u64,
    /// The endpoints of the called service in this revision; empty unless endpoints come and go.
    pub endpoints: &'a [SocketAddrV4],
}

/// A proxy's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// The name of its file.
    pub file: &'static str,
    /// The contents of that file.
    pub text: String,
    /// Other files; each is replaced by a rename.
    pub others: Vec<(&'static str, String)>,
    /// The arguments of the program; `{}` stands for the path of the file.
    pub arguments: Vec<String>,
    /// Variables to add to its environment.
    pub environment: Vec<(String, String)>,
    /// The signal that makes the proxy read its files again; `None` if it watches them itself.
    pub told_by: Option<Signal>,
}

impl Hop<'_> {
    /// Whether the traffic is HTTP/2.
    fn http2(&self) -> bool {
        matches!(self.protocol, Protocol::Http2 | Protocol::Grpc | Protocol::GrpcStream)
    }

    /// Whether this proxy gets new revisions while it runs, as the proxies of callers do.
    fn is_revised(&self) -> bool {
        let revised = self.disturbance.is_some_and(|one| one.period().is_some());
        revised && !self.services.is_empty()
    }

    /// The revision of the pushed configuration; `None` if configurations are not pushed to this
    /// proxy.
    fn pushed(&self) -> Option<u64> {
        let pushes = matches!(self.disturbance, Some(Disturbance::Push { .. }));
        (pushes && self.is_revised()).then_some(self.revision)
    }

    /// The endpoints of this revision; `None` if they do not change or this proxy calls no service.
    fn churning(&self) -> Option<&[SocketAddrV4]> {
        let churns = matches!(self.disturbance, Some(Disturbance::Churn { .. }));
        (churns && self.is_revised()).then_some(self.endpoints)
    }
}

/// The user's choices about meshes.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    /// Path of Envoy, instead of the installed one.
    pub envoy: Option<PathBuf>,
    /// Path of ztunnel, which has no installer.
    pub ztunnel: Option<PathBuf>,
    /// Path of linkerd2-proxy, which has no installer either.
    pub linkerd2_proxy: Option<PathBuf>,
}

/// The names of all meshes, with one line about each.
pub const KNOWN: &[(&str, &str)] = &[
    ("none", "no proxy: the baseline, part of every round"),
    ("leno", "Leno, with the capture it would choose itself"),
    ("leno-ebpf", "Leno, captured by kernel programs"),
    ("leno-nftables", "Leno, captured by nftables rules"),
    ("leno-iptables", "Leno, captured by iptables rules"),
    ("envoy", "Istio's proxy beside each workload, mTLS between them"),
    ("haproxy", "HAProxy beside each workload, mTLS between them"),
    ("nginx", "nginx beside each workload, mTLS between them"),
    ("linkerd2-proxy", "Linkerd's proxy beside each workload, a stand-in for its control plane"),
    ("ztunnel", "Istio's proxy for layer 4 beside each workload, HBONE between them"),
];

/// Looks up a mesh by its name.
///
/// # Errors
/// If no mesh has this name; the error lists the names.
pub fn named(name: &str, choices: &Choices) -> Result<Box<dyn Mesh>, Error> {
    Ok(match name {
        NONE => Box::new(leno::None),
        "envoy" => Box::new(envoy::Envoy { given: choices.envoy.clone() }),
        "haproxy" => Box::new(haproxy::Haproxy),
        "nginx" => Box::new(nginx::Nginx),
        "linkerd2-proxy" => Box::new(linkerd::Linkerd { given: choices.linkerd2_proxy.clone() }),
        "ztunnel" => Box::new(ztunnel::Ztunnel { given: choices.ztunnel.clone() }),
        _ => match leno::Leno::named(name) {
            Some(leno) => Box::new(leno),
            None => {
                let known: Vec<&str> = KNOWN.iter().map(|(name, _)| *name).collect();
                let known = known.join(", ");
                let clustered = cluster::Mesh::ALL.iter().any(|mesh| mesh.name() == name);
                let why =
                    if clustered { "is measured in a cluster (--context)" } else { "is unknown" };
                return Err(Error::Refused(format!(
                    "mesh {name:?} {why}; in the lab of one machine there are: {known}"
                )));
            }
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mesh_of_a_cluster_is_sent_there() {
        let why = |name| named(name, &Choices::default()).err().unwrap().to_string();
        assert!(why("istio").contains("is measured in a cluster (--context)"), "{}", why("istio"));
        assert!(why("x").contains("is unknown") && why("x").contains("leno-ebpf"), "{}", why("x"));
    }

    #[test]
    fn every_known_mesh_is_there_under_its_name() {
        for (name, _) in KNOWN {
            assert_eq!(named(name, &Choices::default()).unwrap().name(), *name);
        }
        let Err(error) = named("istio", &Choices::default()) else { panic!("no such adapter") };
        assert!(error.to_string().contains("envoy"));
    }

    #[test]
    fn a_named_binary_that_is_not_there_is_missing_by_its_path() {
        let choices = Choices { envoy: Some("/nowhere/envoy".into()), ..Choices::default() };
        let missing = named("envoy", &choices).unwrap().find().unwrap_err();
        assert!(missing.to_string().contains("/nowhere/envoy"), "{missing}");
    }

    /// A proxy without services or application.
    pub(super) fn hop() -> Hop<'static> {
        Hop {
            protocol: Protocol::Http1,
            mixed: false,
            application: None,
            services: &[],
            opaque: &[],
            workload: "client",
            workloads: &[],
            directory: Path::new("/d"),
            disturbance: None,
            revision: 0,
            endpoints: &[],
        }
    }

    #[test]
    fn every_mesh_is_given_what_is_pushed_and_who_is_there() {
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
                ("envoy", "trusted_ca", "require_client_certificate: true"),
            ];
            for (name, out, back) in words {
                let mesh = named(name, &Choices::default()).unwrap();
                let (client, server) = (mesh.configure(&client), mesh.configure(&server));
                let (client, server) = (client.unwrap().text, server.unwrap().text);
                assert!(
                    client.contains(out) && client.contains("127.0.0.1:15001")
                        || client.contains("port_value: 15001"),
                    "{name}: {client}"
                );
                assert!(server.contains(back), "{name}: {server}");
            }
        }
    }

    #[test]
    fn envoy_does_not_look_into_what_goes_to_an_opaque_service() {
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
