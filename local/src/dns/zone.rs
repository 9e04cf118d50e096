//! The names of a mesh and their records.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use hickory_proto::rr::rdata::{CNAME, PTR, SOA, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use super::DOMAIN;
use crate::ranges::MeshRanges;

/// The TTL of answers, in seconds. It is short, because endpoints change.
const TTL_SECONDS: u32 = 5;

/// Most aliases that are followed in a row; other resolvers have a similar bound.
const MAX_ALIASES: usize = 8;

/// All names of a mesh. A zone is immutable: each change of the mesh creates a new one.
#[derive(Clone, Debug, Default)]
pub struct Zone {
    services: BTreeMap<(String, String), ServiceNames>,
    namespaces: BTreeSet<String>,
    /// The namespaces of meshed clients, by their addresses. These clients get VIPs.
    meshed: BTreeMap<IpAddr, String>,
    /// VIPs of services that represent a name outside of the mesh, by that name and then by the service's
    /// namespace.
    outside: BTreeMap<String, BTreeMap<String, Vec<IpAddr>>>,
    reverse: BTreeMap<IpAddr, String>,
    /// The mesh's address ranges. Only this server has names for their addresses.
    ranges: MeshRanges,
}

/// What the records of a service are made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceNames {
    /// Its VIPs; empty for a headless service.
    pub vips: Vec<IpAddr>,
    /// Its named ports.
    pub ports: Vec<PortName>,
    /// Its ready endpoints.
    pub endpoints: Vec<EndpointNames>,
    /// The names outside of the mesh that the service represents.
    pub outside: Vec<String>,
}

/// What the records of one endpoint of a service are made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointNames {
    /// The first label of the endpoint's name, which is the instance's name.
    pub host: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its named ports.
    pub ports: Vec<PortName>,
}

/// A named port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortName {
    /// Its name.
    pub name: String,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// Its number.
    pub port: u16,
}

/// The answer to a query.
#[derive(Clone, Debug, PartialEq)]
pub enum ZoneAnswer {
    /// The requested records; empty if the name exists and has no such record.
    Records(Vec<Record>),
    /// The name is an alias of this name outside of the mesh.
    Alias(Name),
    /// There is no such name.
    NoName,
    /// The name is outside of the mesh.
    Elsewhere,
}

impl Zone {
    /// Creates the zone of these services. `meshed` has the addresses of meshed workloads, with their namespaces.
    #[must_use]
    pub fn new(
        services: impl IntoIterator<Item = ((String, String), ServiceNames)>,
        meshed: impl IntoIterator<Item = (IpAddr, String)>,
    ) -> Self {
        let services: BTreeMap<_, _> = services.into_iter().collect();
        let mut reverse = BTreeMap::new();
        let mut outside: BTreeMap<String, BTreeMap<String, Vec<IpAddr>>> = BTreeMap::new();
        for ((namespace, service), names) in &services {
            for host in names.outside.iter().filter(|_| !names.vips.is_empty()) {
                let of_host = outside.entry(host.clone()).or_default();
                // If a namespace has two services for the host, the first by name is used.
                of_host.entry(namespace.clone()).or_insert_with(|| names.vips.clone());
            }
            let full = format!("{service}.{namespace}.svc.{DOMAIN}.");
            for endpoint in &names.endpoints {
                for address in &endpoint.addresses {
                    let name = format!("{}.{full}", endpoint.host);
                    reverse.entry(*address).or_insert(name);
                }
            }
            for vip in &names.vips {
                reverse.insert(*vip, full.clone());
            }
        }
        Self {
            namespaces: services.keys().map(|(namespace, _)| namespace.clone()).collect(),
            services,
            meshed: meshed.into_iter().collect(),
            outside,
            reverse,
            ranges: MeshRanges::default(),
        }
    }

    /// If `name` is probably a service in a namespace of the mesh that does not exist, its short form, such as
    /// `cart.shop`. `None` for a name that a client library only tries because of its search list, before it looks
    /// up a name outside of the mesh.
    pub(super) fn absent_service(&self, name: &Name) -> Option<String> {
        let name = name.to_ascii().to_ascii_lowercase();
        let below = below_domain(name.trim_end_matches('.'))?;
        let (service, namespace) = below.strip_suffix(".svc.")?.split_once('.')?;
        self.namespaces.contains(namespace).then(|| format!("{service}.{namespace}"))
    }

    /// Sets the address ranges of the mesh.
    #[must_use]
    pub fn within(self, ranges: MeshRanges) -> Self {
        Self { ranges, ..self }
    }

    /// The answer for `name` and `kind`. `client` is the client's address, and whether its proxy sends the query
    /// rather than its application. Aliases of names in the mesh are followed.
    #[must_use]
    pub fn answer(&self, name: &Name, kind: RecordType, client: (IpAddr, bool)) -> ZoneAnswer {
        let mut target = match self.direct(name, kind, client) {
            ZoneAnswer::Alias(target) if kind != RecordType::CNAME => target,
            other => return other,
        };
        for _ in 0..MAX_ALIASES {
            if below_domain(target.to_ascii().to_ascii_lowercase().trim_end_matches('.')).is_none()
            {
                break;
            }
            let found = match self.direct(&target, kind, client) {
                ZoneAnswer::Alias(next) => {
                    target = next;
                    continue;
                }
                ZoneAnswer::Records(found) => found,
                ZoneAnswer::NoName | ZoneAnswer::Elsewhere => Vec::new(),
            };
            let alias = Self::alias(name.clone(), target);
            return ZoneAnswer::Records([alias].into_iter().chain(found).collect());
        }
        ZoneAnswer::Alias(target)
    }

    /// The answer without following aliases.
    fn direct(
        &self,
        name: &Name,
        kind: RecordType,
        (client, is_proxy): (IpAddr, bool),
    ) -> ZoneAnswer {
        let text = name.to_ascii().to_ascii_lowercase();
        let text = text.trim_end_matches('.');
        if text.ends_with(".in-addr.arpa") || text.ends_with(".ip6.arpa") {
            return self.reverse(name, kind);
        }
        let Some(inside) = below_domain(text) else {
            return match self.outside_vips(text, client).filter(|_| !is_proxy) {
                Some(vips) if matches!(kind, RecordType::A | RecordType::AAAA) => {
                    records(name, addresses(vips.iter().copied(), kind))
                }
                _ => ZoneAnswer::Elsewhere,
            };
        };
        let mut labels: Vec<&str> = inside.split('.').filter(|label| !label.is_empty()).collect();
        labels.reverse();
        let data = match labels.as_slice() {
            [] | ["svc"] => Some(Vec::new()),
            ["svc", namespace] => self.namespaces.contains(*namespace).then(Vec::new),
            ["svc", namespace, service, rest @ ..] => {
                let key = ((*namespace).to_owned(), (*service).to_owned());
                let names = self.services.get(&key);
                let vips = self.meshed.contains_key(&client);
                if let Some(alias) = names.filter(|_| rest.is_empty()).and_then(|n| n.alias(vips)) {
                    return ZoneAnswer::Alias(alias);
                }
                names.and_then(|names| {
                    let front = ServiceView {
                        names,
                        vips,
                        domain: format!("{service}.{namespace}.svc.{DOMAIN}."),
                    };
                    front.data(rest, kind)
                })
            }
            _ => None,
        };
        data.map_or(ZoneAnswer::NoName, |data| records(name, data))
    }

    /// The record that makes `name` an alias of `target`.
    #[must_use]
    pub fn alias(name: Name, target: Name) -> Record {
        Record::from_rdata(name, TTL_SECONDS, RData::CNAME(CNAME(target)))
    }

    /// The VIPs of the service that represents `host`, a name outside of the mesh, for a meshed client. The VIP
    /// tells the client's proxy which name was meant. Only services of the client's namespace count: a service of
    /// another namespace would decide where the client connects and which certificates it trusts.
    fn outside_vips(&self, host: &str, client: IpAddr) -> Option<&Vec<IpAddr>> {
        let namespace = self.meshed.get(&client)?;
        let services = self.outside.get(host)?;
        services.get(namespace)
    }

    /// The SOA record of negative answers. It sets how long they may be cached (RFC 2308).
    #[must_use]
    pub fn start_of_authority() -> Option<Record> {
        let zone = Name::from_ascii(format!("{DOMAIN}.")).ok()?;
        let server = Name::from_ascii(format!("ns.dns.{DOMAIN}.")).ok()?;
        let keeper = Name::from_ascii(format!("hostmaster.{DOMAIN}.")).ok()?;
        let hour = 3600;
        let authority = SOA::new(server, keeper, 1, hour, hour, hour, TTL_SECONDS);
        Some(Record::from_rdata(zone, TTL_SECONDS, RData::SOA(authority)))
    }

    fn reverse(&self, name: &Name, kind: RecordType) -> ZoneAnswer {
        let Ok(network) = name.parse_arpa_name() else {
            return ZoneAnswer::Elsewhere;
        };
        let address = network.addr();
        let host = network.prefix_len() == network.max_prefix_len();
        let ours = [self.ranges.workloads(true), self.ranges.services(true)];
        if !host || !ours.iter().any(|subnet| subnet.number(address).is_some()) {
            return ZoneAnswer::Elsewhere;
        }
        let Some(target) = self.reverse.get(&address) else {
            return ZoneAnswer::NoName;
        };
        let target = Name::from_ascii(target).ok().filter(|_| kind == RecordType::PTR);
        let record =
            |target| Record::from_rdata(name.clone(), TTL_SECONDS, RData::PTR(PTR(target)));
        ZoneAnswer::Records(target.map(record).into_iter().collect())
    }
}

impl ServiceNames {
    /// The target if this name is an alias. `vips` is whether the client gets VIPs. The target is a name outside
    /// of the mesh if the service has no other records for this client.
    fn alias(&self, vips: bool) -> Option<Name> {
        let has_addresses = vips && !self.vips.is_empty() || !self.endpoints.is_empty();
        let host = self.outside.first().filter(|_| !has_addresses)?;
        Name::from_ascii(format!("{host}.")).ok()
    }
}

/// A service as one client sees it.
struct ServiceView<'a> {
    names: &'a ServiceNames,
    vips: bool,
    domain: String,
}

impl ServiceView<'_> {
    /// The records at the name that `rest` and the service's name form; `rest` has the labels below the service's
    /// name, nearest first. `None` if that name does not exist.
    fn data(&self, rest: &[&str], kind: RecordType) -> Option<Vec<RData>> {
        match rest {
            [] => Some(addresses(self.addresses(), kind)),
            [transport @ ("_tcp" | "_udp" | "_sctp")] => {
                let transport = transport.strip_prefix('_')?;
                let known = self.ports().any(|port| port.protocol == transport);
                known.then(Vec::new)
            }
            [transport @ ("_tcp" | "_udp" | "_sctp"), port] => {
                let (transport, port) = (transport.strip_prefix('_')?, port.strip_prefix('_')?);
                let found = self.services(transport, port);
                (!found.is_empty()).then(|| match kind {
                    RecordType::SRV => found,
                    _ => Vec::new(),
                })
            }
            [host] => {
                let mut endpoints = self.names.endpoints.iter();
                let endpoint = endpoints.find(|endpoint| endpoint.host == *host)?;
                Some(addresses(endpoint.addresses.iter().copied(), kind))
            }
            _ => None,
        }
    }

    fn has_vip(&self) -> bool {
        self.vips && !self.names.vips.is_empty()
    }

    fn addresses(&self) -> Box<dyn Iterator<Item = IpAddr> + '_> {
        if self.has_vip() {
            return Box::new(self.names.vips.iter().copied());
        }
        let endpoints = self.names.endpoints.iter();
        Box::new(endpoints.flat_map(|endpoint| endpoint.addresses.iter().copied()))
    }

    fn ports(&self) -> impl Iterator<Item = &PortName> {
        let endpoints = self.names.endpoints.iter();
        let below = endpoints.flat_map(|endpoint| endpoint.ports.iter());
        self.names.ports.iter().chain(below)
    }

    /// The SRV records of a port: one for the service itself if the client gets its VIP, else one for each
    /// endpoint.
    fn services(&self, protocol: &str, name: &str) -> Vec<RData> {
        let matches = |port: &&PortName| port.name == name && port.protocol == protocol;
        let record = |port: u16, target: &str| {
            let target = Name::from_ascii(target).ok()?;
            Some(RData::SRV(SRV::new(0, 100, port, target)))
        };
        if self.has_vip() {
            let port = self.names.ports.iter().find(matches);
            return port.and_then(|port| record(port.port, &self.domain)).into_iter().collect();
        }
        let endpoints = self.names.endpoints.iter();
        let found = endpoints.filter_map(|endpoint| {
            let port = endpoint.ports.iter().find(matches)?;
            record(port.port, &format!("{}.{}", endpoint.host, self.domain))
        });
        found.collect()
    }
}

fn records(name: &Name, data: Vec<RData>) -> ZoneAnswer {
    let record = |data| Record::from_rdata(name.clone(), TTL_SECONDS, data);
    ZoneAnswer::Records(data.into_iter().map(record).collect())
}

/// The part of a name before the mesh's domain; `None` if the name does not end with that domain.
fn below_domain(name: &str) -> Option<&str> {
    let inside = name.strip_suffix(DOMAIN)?;
    (inside.is_empty() || inside.ends_with('.')).then_some(inside)
}

fn addresses(all: impl Iterator<Item = IpAddr>, kind: RecordType) -> Vec<RData> {
    let of_kind = all.filter_map(|address| match (address, kind) {
        (IpAddr::V4(v4), RecordType::A | RecordType::ANY) => Some(RData::A(v4.into())),
        (IpAddr::V6(v6), RecordType::AAAA | RecordType::ANY) => Some(RData::AAAA(v6.into())),
        _ => None,
    });
    of_kind.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESHED: &str = "10.89.0.2";
    const UNMESHED: &str = "10.89.0.9";
    /// The address of a meshed workload in a namespace without services.
    const ELSEWHERE: &str = "10.89.0.8";

    fn zone() -> Zone {
        let port = |port| PortName { name: "http".into(), protocol: "tcp".into(), port };
        let endpoint = |host: &str, number: u16| EndpointNames {
            host: host.into(),
            addresses: MeshRanges::default().workloads(true).addresses(number).iter().collect(),
            ports: vec![port(8080)],
        };
        let web = ServiceNames {
            vips: MeshRanges::default().services(true).addresses(1).iter().collect(),
            ports: vec![port(80)],
            endpoints: vec![endpoint("web-0", 2), endpoint("web-1", 3)],
            outside: Vec::new(),
        };
        let headless = ServiceNames {
            vips: Vec::new(),
            ports: vec![port(80)],
            endpoints: vec![endpoint("db-0", 4)],
            outside: Vec::new(),
        };
        let outside = |number| ServiceNames {
            vips: MeshRanges::default().services(true).addresses(number).iter().collect(),
            outside: vec!["api.example.com".into()],
            ..ServiceNames::default()
        };
        let alias = ServiceNames { vips: Vec::new(), ..outside(9) };
        let of = |name: &str| ServiceNames {
            outside: vec![format!("{name}.shop.svc.{DOMAIN}")],
            ..ServiceNames::default()
        };
        Zone::new(
            [
                (("shop".to_owned(), "second".to_owned()), of("web")),
                (("shop".to_owned(), "third".to_owned()), of("second")),
                (("shop".to_owned(), "dangling".to_owned()), of("absent")),
                (("shop".to_owned(), "away".to_owned()), of("alias")),
                (("shop".to_owned(), "web".to_owned()), web),
                (("shop".to_owned(), "db".to_owned()), headless),
                (("shop".to_owned(), "pay".to_owned()), outside(7)),
                (("first".to_owned(), "pay".to_owned()), outside(8)),
                (("shop".to_owned(), "alias".to_owned()), alias),
            ],
            [(MESHED, "shop"), (ELSEWHERE, "other")]
                .map(|(ip, namespace)| (ip.parse().unwrap(), namespace.to_owned())),
        )
    }

    /// The answer as text: the data of the records, or the reason why there are none.
    fn ask(name: &str, kind: RecordType, client: &str) -> String {
        ask_as(name, kind, (client, false))
    }

    fn ask_as(name: &str, kind: RecordType, (client, is_proxy): (&str, bool)) -> String {
        let name = Name::from_ascii(name).unwrap();
        match zone().answer(&name, kind, (client.parse().unwrap(), is_proxy)) {
            ZoneAnswer::Alias(target) => format!("alias of {target}"),
            ZoneAnswer::Records(records) => {
                let data: Vec<String> = records.iter().map(|r| r.data.to_string()).collect();
                data.join(" ")
            }
            ZoneAnswer::NoName => "no name".into(),
            ZoneAnswer::Elsewhere => "elsewhere".into(),
        }
    }

    #[test]
    fn a_meshed_client_gets_the_vip() {
        let name = "web.shop.svc.cluster.local.";
        assert_eq!(ask(name, RecordType::A, MESHED), "10.96.0.1");
        assert_eq!(ask(name, RecordType::AAAA, MESHED), "fd96::1");
        assert_eq!(ask("WEB.Shop.svc.cluster.LOCAL.", RecordType::A, MESHED), "10.96.0.1");
        assert_eq!(ask(name, RecordType::MX, MESHED), "");
    }

    #[test]
    fn an_alias_of_a_name_in_the_mesh_is_followed() {
        let name = |alias: &str| format!("{alias}.shop.svc.cluster.local.");
        let web = "web.shop.svc.cluster.local.";
        let first = format!("{web} 10.96.0.1");
        for alias in ["second", "third"] {
            assert_eq!(ask(&name(alias), RecordType::A, MESHED), first);
        }
        assert_eq!(
            ask(&name("second"), RecordType::A, UNMESHED),
            format!("{web} 10.89.0.2 10.89.0.3")
        );
        assert_eq!(ask(&name("second"), RecordType::CNAME, MESHED), format!("alias of {web}"));
        assert_eq!(ask(&name("dangling"), RecordType::A, MESHED), "absent.shop.svc.cluster.local.");
        assert_eq!(ask(&name("away"), RecordType::A, MESHED), "alias of api.example.com.");
    }

    #[test]
    fn a_name_outside_is_a_service_to_the_applications_that_have_one_for_it() {
        let name = "API.example.com.";
        assert_eq!(ask(name, RecordType::A, MESHED), "10.96.0.7");
        assert_eq!(ask(name, RecordType::AAAA, MESHED), "fd96::7");
        // Clients of other namespaces do not get the address of this namespace's service.
        assert_eq!(ask(name, RecordType::A, ELSEWHERE), "elsewhere");
        // Unmeshed clients do not get the VIP. Neither does a proxy, which has to find the real address.
        assert_eq!(ask(name, RecordType::A, UNMESHED), "elsewhere");
        assert_eq!(ask_as(name, RecordType::A, (MESHED, true)), "elsewhere");
        assert_eq!(ask(name, RecordType::MX, MESHED), "elsewhere");
        assert_eq!(ask("www.api.example.com.", RecordType::A, MESHED), "elsewhere");
    }

    #[test]
    fn an_external_service_has_a_vip_and_is_an_alias_where_nothing_routes_that() {
        let name = "pay.shop.svc.cluster.local.";
        assert_eq!(ask(name, RecordType::A, MESHED), "10.96.0.7");
        assert_eq!(ask(name, RecordType::A, UNMESHED), "alias of api.example.com.");
        let alias = "alias.shop.svc.cluster.local.";
        assert_eq!(ask(alias, RecordType::A, MESHED), "alias of api.example.com.");
        assert_eq!(ask("x.pay.shop.svc.cluster.local.", RecordType::A, UNMESHED), "no name");
    }

    #[test]
    fn an_unmeshed_client_gets_endpoints_because_nothing_routes_a_vip_for_it() {
        let name = "web.shop.svc.cluster.local.";
        assert_eq!(ask(name, RecordType::A, UNMESHED), "10.89.0.2 10.89.0.3");
        assert_eq!(ask(name, RecordType::AAAA, UNMESHED), "fd89::2 fd89::3");
    }

    #[test]
    fn headless_and_instance_names_give_endpoints() {
        assert_eq!(ask("db.shop.svc.cluster.local.", RecordType::A, MESHED), "10.89.0.4");
        let instance = "web-1.web.shop.svc.cluster.local.";
        assert_eq!(ask(instance, RecordType::A, MESHED), "10.89.0.3");
        assert_eq!(ask("web-2.web.shop.svc.cluster.local.", RecordType::A, MESHED), "no name");
    }

    #[test]
    fn named_ports_have_service_records() {
        let web = "_http._tcp.web.shop.svc.cluster.local.";
        assert_eq!(ask(web, RecordType::SRV, MESHED), "0 100 80 web.shop.svc.cluster.local.");
        assert_eq!(
            ask("_http._tcp.db.shop.svc.cluster.local.", RecordType::SRV, MESHED),
            "0 100 8080 db-0.db.shop.svc.cluster.local."
        );
        assert_eq!(ask(web, RecordType::A, MESHED), "");
        assert_eq!(
            ask("_grpc._tcp.web.shop.svc.cluster.local.", RecordType::SRV, MESHED),
            "no name"
        );
    }

    #[test]
    fn addresses_have_names() {
        assert_eq!(
            ask("1.0.96.10.in-addr.arpa.", RecordType::PTR, MESHED),
            "web.shop.svc.cluster.local."
        );
        assert_eq!(
            ask("4.0.89.10.in-addr.arpa.", RecordType::PTR, MESHED),
            "db-0.db.shop.svc.cluster.local."
        );
        assert_eq!(ask("7.0.89.10.in-addr.arpa.", RecordType::PTR, MESHED), "no name");
        assert_eq!(ask("1.1.1.1.in-addr.arpa.", RecordType::PTR, MESHED), "elsewhere");
    }

    #[test]
    fn what_has_names_below_it_exists() {
        for name in ["cluster.local.", "svc.cluster.local.", "shop.svc.cluster.local."] {
            assert_eq!(ask(name, RecordType::A, MESHED), "", "{name}");
        }
    }

    #[test]
    fn searching_ends_in_the_zone_and_other_names_leave_it() {
        for name in [
            "nothing.shop.svc.cluster.local.",
            "web.shop.shop.svc.cluster.local.",
            "example.com.cluster.local.",
            "other.svc.cluster.local.",
        ] {
            assert_eq!(ask(name, RecordType::A, MESHED), "no name", "{name}");
        }
        assert_eq!(ask("example.com.", RecordType::A, MESHED), "elsewhere");
        assert_eq!(ask("mycluster.local.", RecordType::A, MESHED), "elsewhere");
    }
}
