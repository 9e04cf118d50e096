//! A hop, which is a proxy between clients and servers: the facts about it, and its configuration, which is made from
//! them.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;

use leno_measure::load::Protocol;
use leno_types::ports::{INBOUND, OUTBOUND};
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value, context};
use nix::sys::signal::Signal;
use serde::Serialize;

use crate::application::{PORT, PUSHED};
use crate::process::free_address;
use crate::scenario::{Disturbance, Scenario};

/// The port on which the stand-in for Linkerd's control plane listens on the loopback of each workload.
pub(super) const CONTROL: u16 = 8086;
/// nginx's TCP proxy, which Debian packages as a separate module.
pub(super) const STREAM: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// The templates, each with the names of the files that are made from it.
const TEMPLATES: [(&[&str], &str); 6] = [
    (
        &["envoy.json", "endpoints.json", "routes.json"],
        include_str!("../../../data/peers/envoy.json"),
    ),
    (&["haproxy.cfg"], include_str!("../../../data/peers/haproxy.cfg")),
    (&["nginx.conf"], include_str!("../../../data/peers/nginx.conf")),
    (&["proxy.yaml"], include_str!("../../../data/peers/proxy.yaml")),
    (&["local.yaml"], include_str!("../../../data/peers/local.yaml")),
    (&["token"], include_str!("../../../data/peers/token")),
];

/// The facts from which the configuration of the proxy beside a workload is made. Templates use the fields under the
/// same names.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct Hop {
    /// The protocol of the traffic.
    #[serde(skip_serializing)]
    pub protocol: Protocol,
    /// Where the proxy listens if it is the only one between the client and the first service, without TLS. `None` if
    /// there is a proxy beside each workload, with mTLS between proxies.
    pub listen: Option<SocketAddrV4>,
    /// Whether the traffic is a mix of HTTP/1.1 and gRPC calls.
    pub mixed: bool,
    /// The application's address on loopback; `None` beside the client.
    pub application: Option<SocketAddrV4>,
    /// The services that the workload calls; empty if the workload only answers.
    pub services: Vec<SocketAddrV4>,
    /// The services whose traffic every proxy must forward as opaque bytes, whatever `protocol` is.
    pub opaque: Vec<SocketAddrV4>,
    /// The workload beside the proxy. It is in the namespace `bench`, and its service account has the same name.
    pub workload: String,
    /// All workloads, with their addresses.
    pub workloads: Vec<(String, Ipv4Addr)>,
    /// The directory of the proxy's files: `chain.pem`, `key.pem`, `both.pem` and `roots.pem`.
    pub directory: PathBuf,
    /// The change of the configuration that happens while the proxy runs.
    #[serde(skip_serializing)]
    pub disturbance: Option<Disturbance>,
    /// The number of this revision. The first is 0.
    pub revision: u64,
    /// The endpoints of the called service in this revision; empty unless endpoints come and go.
    pub endpoints: Vec<SocketAddrV4>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Configuration {
    /// The name of the file with the configuration.
    pub file: &'static str,
    /// The contents of that file.
    pub text: String,
    /// Other files, which are written under another name and renamed.
    pub others: Vec<(&'static str, String)>,
    /// The arguments of the program.
    pub arguments: Vec<String>,
    /// Variables to add to its environment.
    pub environment: Vec<(&'static str, String)>,
    /// The signal on which the proxy reads its files again; `None` if it notices changes itself.
    pub told_by: Option<Signal>,
}

impl Hop {
    pub(crate) fn in_revision(&self, scenario: &Scenario, revision: u64) -> Self {
        let there = scenario.disturbance.map(|one| one.endpoints(scenario.services, revision));
        let there = there.unwrap_or_default().into_iter();
        let endpoints = there.filter_map(|nth| self.services.get(nth as usize).copied()).collect();
        Self { disturbance: scenario.disturbance, revision, endpoints, ..self.clone() }
    }

    /// Whether this proxy gets new revisions while it runs. The proxies of callers do.
    pub(super) fn is_revised(&self) -> bool {
        let revised = self.disturbance.is_some_and(|one| one.period().is_some());
        revised && !self.services.is_empty()
    }

    pub(super) fn file(&self, file: &str) -> String {
        let template = TEMPLATES.iter().find(|(files, _)| files.contains(&file));
        let (_, template) = template.expect("a test makes every file");
        // The template engine removes the line break of the last line, and HAProxy refuses a file without it.
        self.render(file, template) + "\n"
    }

    /// Renders a template with the values of this hop. `file` is the name of the resulting file.
    pub(super) fn render(&self, file: &str, template: &str) -> String {
        let disturbance = self.disturbance.filter(|_| self.is_revised());
        let pushes = matches!(disturbance, Some(Disturbance::Push { .. }));
        let churns = matches!(disturbance, Some(Disturbance::Churn { .. }));
        let own = self.workloads.iter().find(|(name, _)| *name == self.workload);
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        let values = context! {
            file,
            tcp => self.protocol == Protocol::Tcp,
            http2 => self.protocol.is_http2(),
            admin => self.listen.and_then(|_| Some(free_address().ok()?.to_string())),
            own_address => own.map_or_else(String::new, |(_, at)| at.to_string()),
            at => self.directory.to_string_lossy().into_owned(),
            roots => fs::read_to_string(self.directory.join("roots.pem")).unwrap_or_default(),
            revised => self.is_revised(),
            pushed => pushes.then_some(self.revision),
            churning => Serde(churns.then_some(&self.endpoints)),
            pushed_header => PUSHED,
            outbound => OUTBOUND,
            inbound => INBOUND,
            control => CONTROL,
            port => PORT,
            stream => STREAM,
            ..Value::from(Serde(self))
        };
        environment.render_str(template, values).expect("the templates are tested with every hop")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::lab::mesh::{Choices, named, names};

    /// Calls `with` for hops with all combinations of the values that templates distinguish.
    pub(in crate::lab::mesh) fn for_each_hop(mut with: impl FnMut(&Hop)) {
        let at = |last| SocketAddrV4::new(Ipv4Addr::new(10, 89, 0, last), 8080);
        let services = [at(3), at(4), at(5)];
        let workloads = [("client".to_owned(), *at(2).ip()), ("s0".to_owned(), *at(3).ip())];
        let protocols = [Protocol::Http1, Protocol::Http2, Protocol::Grpc, Protocol::Tcp];
        let disturbances = [
            None,
            Some(Disturbance::Restart),
            Some(Disturbance::Push { every_ms: 100 }),
            Some(Disturbance::Churn { changes_per_s: 50 }),
        ];
        for (protocol, disturbance) in
            protocols.iter().flat_map(|one| disturbances.map(|other| (*one, other)))
        {
            for bits in 0..32_u8 {
                let bit = |nth: u8| bits & (1 << nth) != 0;
                with(&Hop {
                    protocol,
                    listen: bit(0).then_some(at(1)),
                    mixed: bit(1),
                    application: bit(2).then_some(at(9)),
                    services: if bit(3) { services.to_vec() } else { Vec::new() },
                    opaque: if bit(4) { services[1..].to_vec() } else { Vec::new() },
                    workload: "client".to_owned(),
                    workloads: workloads.to_vec(),
                    directory: "/d".into(),
                    disturbance,
                    revision: 7,
                    endpoints: services[..2].to_vec(),
                });
            }
        }
    }

    #[test]
    fn every_template_renders_for_every_hop() {
        for_each_hop(|hop| {
            for name in names() {
                let mesh = named(name, &Choices::default()).unwrap();
                let Some(made) = mesh.configure(hop) else { continue };
                let files = made.others.iter().map(|(file, text)| (*file, text));
                for (file, text) in files.chain([(made.file, &made.text)]) {
                    assert!(!text.contains("{%"), "{file}: {text}");
                    if file.ends_with(".json") {
                        serde_json::from_str::<serde_json::Value>(text).expect(text);
                    }
                }
            }
        });
    }
}
