//! Generates a mesh from a seed: servers of every protocol and mode, aliases, routes, and names outside the mesh.

use std::fmt::{Result, Write as _};

use crate::outside::ADDRESS;

/// A name outside the mesh. A service in the namespace `lab` stands for it, with all its ports.
pub(super) const HOST: &str = "far.example";
/// A name outside the mesh. The service in the namespace `lab` that stands for it lists only port 80.
pub(super) const CUT_HOST: &str = "cut.example";
/// The name with which the outside server answers.
pub(super) const OUTSIDE: &str = "outside";
/// The ports of outside servers that carry neither HTTP nor TLS.
pub(super) const OUTSIDE_TCP: u16 = 9000;
pub(super) const OUTSIDE_GRPC: u16 = 9001;

/// The port of every server and service in the mesh. It must be the same for clients with and without a proxy,
/// because only clients with a proxy call a service by its virtual address.
const PORT: u16 = 8080;

/// The clients, with their metadata.
pub(super) const CLIENTS: [(&str, &str, &str); 4] = [
    ("lab", "client", "labels: {}"),
    ("lab", "closed", "annotations: {leno.dev/egress: deny}"),
    ("lab", "unmeshed", "labels: {leno.dev/inject: disabled}"),
    ("far", "denied", "labels: {}"),
];

/// The protocols of servers, each with its declaration and what clients send.
const SERVERS: [(&str, &str, Scheme); 6] = [
    ("http", ", appProtocol: http", Scheme::Http),
    ("plain", "", Scheme::Http),
    ("grpc", ", appProtocol: grpc", Scheme::Grpc),
    ("https", ", appProtocol: https", Scheme::Https),
    ("tls", "", Scheme::Https),
    ("tcp", ", appProtocol: tcp", Scheme::Tcp),
];

/// What accepts the connections of a server: a proxy that admits plaintext, a proxy that does not, or the server
/// itself.
pub(super) const MODES: [(&str, &str); 3] = [
    ("open", "annotations: {leno.dev/mtls: permissive}"),
    ("strict", "annotations: {leno.dev/mtls: strict}"),
    ("bare", "labels: {leno.dev/inject: disabled}"),
];

/// The kinds of routes, each with the protocol of its services and the servers from which its backends are chosen.
const ROUTES: [(&str, &str, Scheme, [&str; 2]); 4] = [
    ("HTTPRoute", "http", Scheme::Http, ["http", "plain"]),
    ("HTTPRoute", "http", Scheme::Http, ["http", "plain"]),
    ("GRPCRoute", "grpc", Scheme::Grpc, ["grpc", "grpc"]),
    ("TLSRoute", "https", Scheme::Https, ["https", "tls"]),
];

/// The number of aliases. Half of them list ports.
const ALIASES: usize = 8;

/// What a client sends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    Http,
    Grpc,
    Https,
    /// Nothing at first, because the server sends its name.
    Tcp,
}

impl Scheme {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::Https => "https",
            Self::Tcp => "tcp",
        }
    }
}

/// A name that clients call, and the protocol.
#[derive(Clone)]
pub(super) struct Destination {
    /// The host, which is the same for all clients. If it is a single label, it is in the namespace `lab`.
    host: String,
    pub(super) port: u16,
    pub(super) scheme: Scheme,
    /// Whether requests are divided among several backends by weight.
    pub(super) split: bool,
}

impl Destination {
    fn new(host: impl Into<String>, port: u16, scheme: Scheme) -> Self {
        Self { host: host.into(), port, scheme, split: false }
    }

    /// The host in a form that clients in every namespace can call.
    pub(super) fn host(&self) -> String {
        match self.host.contains('.') {
            true => self.host.clone(),
            false => format!("{}.lab", self.host),
        }
    }
}

pub(super) struct Generated {
    pub(super) yaml: String,
    pub(super) destinations: Vec<Destination>,
    numbers: Numbers,
}

/// Generates numbers from a seed (Knuth's MMIX generator).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

impl Generated {
    pub(super) fn new(seed: u64) -> std::result::Result<Self, std::fmt::Error> {
        let mut all =
            Self { yaml: String::new(), destinations: Vec::new(), numbers: Numbers(seed) };
        all.clients()?;
        all.servers()?;
        for number in 0..ALIASES {
            all.alias(number)?;
        }
        for (number, route) in ROUTES.into_iter().enumerate() {
            all.route(number, route)?;
        }
        all.outside()?;
        Ok(all)
    }

    fn clients(&mut self) -> Result {
        self.yaml += "apiVersion: v1\nkind: Namespace\nmetadata: {name: far, annotations: {leno.dev/egress: deny}}\n";
        for (namespace, name, metadata) in CLIENTS {
            write!(
                self.yaml,
                "---\napiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: {name}, namespace: \
                 {namespace}, {metadata}}}\nspec: {{command: ['@BIN@/leno-peer', idle]}}\n"
            )?;
        }
        Ok(())
    }

    fn servers(&mut self) -> Result {
        for (protocol, declared, scheme) in SERVERS {
            for (mode, metadata) in MODES {
                let name = format!("{protocol}-{mode}");
                let command = match scheme {
                    Scheme::Http => {
                        format!("'@BIN@/leno-peer', http, --listen, '[::]:{PORT}', --name, {name}")
                    }
                    Scheme::Grpc => {
                        format!("'@BIN@/examples/tonic-peer', serve, '{PORT}', {name}")
                    }
                    Scheme::Https => format!("python3, '@DIR@/server.py', '{PORT}', {name}"),
                    Scheme::Tcp => format!(
                        "'@BIN@/leno-peer', banner, --listen, '[::]:{PORT}', --greeting, {name}"
                    ),
                };
                write!(
                    self.yaml,
                    "---\napiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: {name}, namespace: \
                     lab, {metadata}}}\nspec: {{command: [{command}], ports: [{{name: p, port: {PORT}{declared}}}]}}\n"
                )?;
                self.destinations.push(Destination::new(name, PORT, scheme));
            }
        }
        Ok(())
    }

    /// Adds an alias of a server, of another alias, or of an outside name. Some aliases list ports.
    fn alias(&mut self, number: usize) -> Result {
        let outside = [(80, Scheme::Http), (443, Scheme::Https)];
        let outside = outside.map(|(port, scheme)| Destination::new(HOST, port, scheme));
        let choice = self.numbers.below(self.destinations.len() + outside.len());
        let mut known = self.destinations.iter().chain(&outside);
        let to = known.nth(choice).expect("below their number").clone();
        let target = match to.host.contains('.') {
            true => to.host.clone(),
            false => format!("{}.lab.svc.cluster.local", to.host),
        };
        // Outside destinations use another port; `outside` generates services with ports for them.
        let ports = match number.is_multiple_of(2) && to.port == PORT {
            true => format!(", ports: [{{port: {PORT}}}]"),
            false => String::new(),
        };
        let name = format!("alias-{number}");
        write!(
            self.yaml,
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: lab}}\nspec: {{type: \
             ExternalName, externalName: {target}{ports}}}\n"
        )?;
        self.destinations.push(Destination { host: name, ..to });
        Ok(())
    }

    /// Adds a service without endpoints, and a route that sends its requests to servers of every mode.
    fn route(
        &mut self,
        number: usize,
        (kind, protocol, scheme, servers): (&str, &str, Scheme, [&str; 2]),
    ) -> Result {
        let name = format!("split-{number}");
        let hostnames = match scheme {
            Scheme::Https => format!("  hostnames: [{name}.lab]\n"),
            _ => String::new(),
        };
        write!(
            self.yaml,
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: lab}}\n\
             spec: {{selector: {{leno.dev/none: none}}, ports: [{{port: {PORT}, appProtocol: {protocol}}}]}}\n\
             ---\napiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: {name}, \
             namespace: lab}}\nspec:\n  parentRefs: [{{group: '', kind: Service, name: {name}}}]\n{hostnames}  \
             rules:\n  - backendRefs:\n"
        )?;
        for (mode, _) in MODES {
            // A weight may be zero, but is otherwise not so small that many requests are needed until its backend
            // is chosen.
            let weight = self.numbers.below(4);
            let server = servers[self.numbers.below(servers.len())];
            writeln!(self.yaml, "    - {{name: {server}-{mode}, port: {PORT}, weight: {weight}}}")?;
        }
        self.destinations.push(Destination { split: true, ..Destination::new(name, PORT, scheme) });
        Ok(())
    }

    /// Adds outside destinations: by a service, by name and by address, including ports that the services do not
    /// list.
    fn outside(&mut self) -> Result {
        const BOTH: &str = "{name: http, port: 80, appProtocol: http}, {name: https, port: 443, appProtocol: https}";
        const FIRST: &str = "{port: 80, appProtocol: http}";
        for (name, host, ports) in [("outside", HOST, BOTH), ("cut", CUT_HOST, FIRST)] {
            write!(
                self.yaml,
                "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: lab}}\nspec: \
                 {{type: ExternalName, externalName: {host}, ports: [{ports}]}}\n"
            )?;
        }
        for host in ["outside", HOST, "cut", CUT_HOST, ADDRESS] {
            self.destinations.push(Destination::new(host, 80, Scheme::Http));
            self.destinations.push(Destination::new(host, 443, Scheme::Https));
        }
        for host in [HOST, ADDRESS] {
            self.destinations.push(Destination::new(host, OUTSIDE_TCP, Scheme::Tcp));
            self.destinations.push(Destination::new(host, OUTSIDE_GRPC, Scheme::Grpc));
        }
        Ok(())
    }
}
