//! The counts between two scrapes. A history is made of these counts rather than of rates.

use std::collections::BTreeMap;

use super::believed::{MAX_EDGES, MAX_ROUTES};
use super::{
    GrownCounts, NamespacedName, PairCounts, ProxyCounters, ProxyState, RouteGrowth, Scrape,
    StatInstance, grown, routes,
};

/// What all proxies of a mesh have counted between two scrapes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeshGrowth {
    /// The time between the scrapes.
    pub seconds: f64,
    /// Every workload that exists, by namespace and name.
    pub workloads: Vec<WorkloadGrowth>,
    /// Every edge on which something was counted.
    pub edges: Vec<EdgeGrowth>,
    /// Every rule of a route that requests followed.
    pub routes: Vec<RouteGrowth>,
    /// The identities that the proxies of workloads prove, by namespace and name.
    pub identities: BTreeMap<NamespacedName, String>,
    /// Instances whose proxy did not answer, with the reason.
    pub silent: Vec<String>,
    /// Instances whose proxy has lost the control plane.
    pub detached: Vec<String>,
    /// Instances whose certificate has expired, by namespace and name.
    pub expired: Vec<NamespacedName>,
    /// The counts of each instance, for workloads with several instances, as their clients count them.
    pub instances: Vec<InstanceGrowth>,
}

/// A workload as a server.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadGrowth {
    /// Its namespace and name.
    pub name: NamespacedName,
    /// How many instances it has.
    pub instances: u32,
    /// How many of them are ready for traffic.
    pub ready: u32,
    /// Whether it has proxies.
    pub meshed: bool,
    /// What its proxies have counted of the requests that it answered.
    pub counts: PairCounts,
}

/// An instance of a workload that has several, as a server.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceGrowth {
    /// Its namespace and name.
    pub name: NamespacedName,
    /// Its workload.
    pub workload: String,
    /// What the proxies of its clients have counted.
    pub counts: PairCounts,
}

/// A client workload and a server workload.
#[derive(Clone, Debug, PartialEq)]
pub struct EdgeGrowth {
    /// Namespace and name of the client.
    pub client: NamespacedName,
    /// Namespace and name of the server.
    pub server: NamespacedName,
    /// Whether the connections between their proxies are mTLS.
    pub encrypted: bool,
    /// What was counted.
    pub counts: PairCounts,
}

impl Scrape {
    /// Takes over from `before` what this scrape lacks: the counters of proxies that did not answer, and the
    /// counters of edges that a proxy no longer shows because they are idle. Otherwise, all counts in the next
    /// answer of such a proxy would look like new requests.
    pub fn remember(&mut self, before: &Self) {
        // A proxy that starts during the observation has no earlier counts.
        self.unknown.retain(|name| before.unknown.contains(name));
        for instance in &self.instances {
            let name = (instance.namespace.clone(), instance.name.clone());
            let Some(earlier) = before.counted.get(&name) else { continue };
            let now = self.counted.entry(name).or_insert_with(|| ProxyCounters {
                at: earlier.at,
                edges: BTreeMap::new(),
                routes: BTreeMap::new(),
                identity: earlier.identity.clone(),
                ejected: Vec::new(),
                detached: false,
                expired: false,
                state: ProxyState::default(),
            });
            // Edges in the new answer are kept before idle ones, because the proxy drops idle edges as well.
            for (ends, counts) in &earlier.edges {
                if now.edges.len() >= MAX_EDGES {
                    break;
                }
                now.edges.entry(ends.clone()).or_insert_with(|| counts.idle());
            }
            for (name, counts) in &earlier.routes {
                if now.routes.len() >= MAX_ROUTES {
                    break;
                }
                now.routes.entry(name.clone()).or_insert_with(|| counts.idle());
            }
        }
    }

    /// The counts of each instance, for workloads with several instances, as their clients count them.
    fn grown_instances(&self, before: &Self) -> Vec<InstanceGrowth> {
        let workload = |one: &StatInstance| (one.namespace.clone(), one.workload.clone());
        let mut numbers: BTreeMap<NamespacedName, usize> = BTreeMap::new();
        for instance in &self.instances {
            *numbers.entry(workload(instance)).or_default() += 1;
        }
        let several = self.instances.iter().filter(|one| numbers[&workload(one)] > 1);
        let mut sums: BTreeMap<NamespacedName, (&StatInstance, PairCounts)> = several
            .map(|one| ((one.namespace.clone(), one.name.clone()), (one, PairCounts::default())))
            .collect();
        if sums.is_empty() {
            return Vec::new();
        }
        for increase in self.increases(before).filter(|one| !one.ends.inbound) {
            if let Some((_, sum)) = sums.get_mut(&increase.ends.server) {
                sum.add(&increase.sum);
            }
        }
        let all = sums.into_iter();
        all.map(|(name, (instance, counts))| InstanceGrowth {
            name,
            workload: instance.workload.clone(),
            counts,
        })
        .collect()
    }

    fn detached(&self) -> Vec<String> {
        let all = self.counted.iter().filter(|(_, counted)| counted.detached);
        all.map(|((namespace, name), _)| format!("{namespace}/{name}")).collect()
    }

    /// What was counted between `before` and this scrape.
    #[must_use]
    pub fn growth(&self, before: &Self) -> MeshGrowth {
        let GrownCounts { mut servers, edges } = grown(self, before);
        let mut workloads: BTreeMap<NamespacedName, WorkloadGrowth> = BTreeMap::new();
        for instance in &self.instances {
            let name = (instance.namespace.clone(), instance.workload.clone());
            let one = workloads.entry(name.clone()).or_insert_with(|| WorkloadGrowth {
                counts: servers.remove(&name).map(|total| total.sum).unwrap_or_default(),
                name,
                instances: 0,
                ready: 0,
                meshed: false,
            });
            one.instances += 1;
            one.ready += u32::from(instance.ready);
            one.meshed |= instance.meshed;
        }
        let edge = |((client, server, encrypted), total): (super::EdgeKey, super::Total)| {
            let counts = total.sum;
            (!counts.is_empty()).then_some(EdgeGrowth { client, server, encrypted, counts })
        };
        MeshGrowth {
            seconds: self.at.duration_since(before.at).as_secs_f64(),
            workloads: workloads.into_values().collect(),
            edges: edges.into_iter().filter_map(edge).collect(),
            routes: routes::grown(self, before)
                .into_iter()
                .filter(|(_, total)| !total.sum.is_empty())
                .map(|(name, total)| RouteGrowth { name, counts: total.sum })
                .collect(),
            identities: self.identities(),
            silent: self.silent(),
            detached: self.detached(),
            expired: self
                .counted
                .iter()
                .filter(|one| one.1.expired)
                .map(|one| one.0.clone())
                .collect(),
            instances: self.grown_instances(before),
        }
    }
}
