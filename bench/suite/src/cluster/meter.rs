//! What everything of a measurement uses, as the kubelets count it.
//!
//! ```text
//! kubelet:   look ........ look ........ look ........ look       every 10 to 20 s, at each container
//! load:               [  A  ==== load ====  B  ]
//! ```
//! A kubelet looks at a container now and then, and gives its last look to whoever asks. So a measurement lies
//! between two looks at every container: one from after all was quiet (A) and one from after the load (B). What
//! an idle proxy uses in between is part of it. Memory under load is that of the looks between the brackets.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;

use super::manifests::CONTAINER;
use super::mesh::Mesh;
use crate::lab::{CLIENT, NEIGHBOUR};
use crate::meter::Used;
use crate::record::{CpuMs, RssKib};
use crate::statistics::median;

/// Who uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// Proxies, beside workloads or of nodes.
    Proxy,
    Application,
    Generator,
    /// Who floods another service, that service, and the proxies of both.
    Neighbour,
    /// What captures traffic on each node.
    Agent,
    Control,
}

impl Role {
    /// Whether it carries none of the load.
    fn is_beside(self) -> bool {
        matches!(self, Self::Agent | Self::Control)
    }
}

/// Who is who in a measurement.
#[derive(Clone, Debug)]
pub(super) struct Roles {
    pub(super) namespace: String,
    pub(super) mesh: Mesh,
    /// The namespace of the mesh itself.
    pub(super) system: Option<String>,
    /// Other namespaces that what a mesh has on nodes is in.
    pub(super) beside: BTreeSet<String>,
    /// The service that is flooded.
    pub(super) flooded: Option<String>,
    /// The nodes that are asked.
    pub(super) nodes: BTreeSet<String>,
    pub(super) carriers: Carriers,
    /// The processors of each node.
    pub(super) cpus: BTreeMap<String, usize>,
}

/// On which nodes a proxy of the node carries something, and whose: those of all others are idle.
#[derive(Clone, Debug, Default)]
pub(super) struct Carriers {
    /// Nodes with workloads that are measured.
    measured: BTreeSet<String>,
    /// Nodes with whoever floods, or is flooded.
    flood: BTreeSet<String>,
}

impl Carriers {
    /// By where workloads are.
    pub(super) fn of(places: BTreeMap<String, String>, flooded: Option<&str>) -> Self {
        let mut found = Self::default();
        for (workload, node) in places {
            let floods = workload == NEIGHBOUR || Some(workload.as_str()) == flooded;
            if floods { &mut found.flood } else { &mut found.measured }.insert(node);
        }
        found
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &str> {
        self.measured.union(&self.flood).map(String::as_str)
    }

    /// The nodes whose proxies carry both.
    pub(super) fn shared(&self) -> Vec<&str> {
        self.measured.intersection(&self.flood).map(String::as_str).collect()
    }

    fn role_on(&self, node: &str) -> Option<Role> {
        if self.measured.contains(node) {
            return Some(Role::Proxy);
        }
        self.flood.contains(node).then_some(Role::Neighbour)
    }
}

/// A container, or a node as a whole, at the kubelet's last look.
#[derive(Clone, Debug, PartialEq)]
struct Look {
    /// Where it is.
    node: String,
    /// When, by the node's clock, in seconds.
    at: i64,
    /// When what is looked at began; none where that is not said.
    began: Option<i64>,
    /// CPU time since then.
    cpu_ms: f64,
    memory_kib: u64,
    /// When memory was looked at.
    memory_at: i64,
}

/// The last looks at everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reading {
    /// By role, and `namespace/pod/container`.
    containers: BTreeMap<(Role, String), Look>,
    nodes: BTreeMap<String, Look>,
}

/// A kubelet's answer.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    node: NodeStats,
    #[serde(default)]
    pods: Vec<PodStats>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeStats {
    node_name: String,
    cpu: Option<CpuStats>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStats {
    pod_ref: PodRef,
    #[serde(default)]
    containers: Vec<ContainerStats>,
}

#[derive(Deserialize)]
struct PodRef {
    name: String,
    namespace: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerStats {
    name: String,
    start_time: Option<Time>,
    cpu: Option<CpuStats>,
    memory: Option<MemoryStats>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CpuStats {
    time: Time,
    usage_core_nano_seconds: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MemoryStats {
    time: Option<Time>,
    working_set_bytes: Option<u64>,
}

impl Look {
    /// Whether it is at what an earlier one was at: what is restarted begins later, and has used less at first. A
    /// beginning that is said to be earlier than before is one of a file's time, which some kubelets go by.
    fn goes_on_from(&self, earlier: &Self) -> bool {
        let later = earlier.began.zip(self.began).is_some_and(|(one, now)| now > one);
        !later && self.cpu_ms >= earlier.cpu_ms
    }
}

impl CpuStats {
    fn look(&self, node: &str, began: Option<&Time>, memory: Option<&MemoryStats>) -> Option<Look> {
        let bytes = memory.and_then(|memory| memory.working_set_bytes).unwrap_or_default();
        let memory_at = memory.and_then(|memory| memory.time.as_ref()).unwrap_or(&self.time);
        Some(Look {
            node: node.to_owned(),
            at: self.time.0.as_second(),
            began: began.map(|began| began.0.as_second()),
            cpu_ms: self.usage_core_nano_seconds? as f64 / 1e6,
            memory_kib: bytes / 1024,
            memory_at: memory_at.0.as_second(),
        })
    }
}

impl Roles {
    /// Who a container of a pod is; none where it has nothing to do with the measurement.
    fn of(&self, node: &str, (namespace, pod, container): (&str, &str, &str)) -> Option<Role> {
        if namespace != self.namespace {
            let own = self.system.as_deref() == Some(namespace);
            let ours = own || self.beside.contains(namespace);
            return match ours.then(|| self.mesh.role_of(pod))? {
                Role::Proxy => self.carriers.role_on(node),
                // Whoever else is in such a namespace is none of the mesh's.
                Role::Control if !own => None,
                role => Some(role),
            };
        }
        let ours = container == CONTAINER;
        Some(match pod {
            NEIGHBOUR => Role::Neighbour,
            _ if Some(pod) == self.flooded.as_deref() => Role::Neighbour,
            _ if !ours => Role::Proxy,
            CLIENT => Role::Generator,
            _ => Role::Application,
        })
    }

    /// Adds what a kubelet says.
    pub(super) fn add(&self, summary: &Summary, reading: &mut Reading) {
        let node = &summary.node.node_name;
        let look = summary.node.cpu.as_ref().and_then(|cpu| cpu.look(node, None, None));
        reading.nodes.extend(look.map(|look| (node.clone(), look)));
        for PodStats { pod_ref, containers } in &summary.pods {
            for one in containers {
                let role = self.of(node, (&pod_ref.namespace, &pod_ref.name, &one.name));
                let (began, memory) = (one.start_time.as_ref(), one.memory.as_ref());
                let look = one.cpu.as_ref().and_then(|cpu| cpu.look(node, began, memory));
                let name = format!("{}/{}/{}", pod_ref.namespace, pod_ref.name, one.name);
                reading.containers.extend(role.zip(look).map(|(role, look)| ((role, name), look)));
            }
        }
    }
}

impl Reading {
    /// What of `wanted`, workloads with their containers as `workload/container`, the kubelets have not seen yet.
    pub(super) fn lacks<'a>(&self, wanted: &'a [String]) -> Vec<&'a str> {
        let seen = |one: &str| {
            let end = format!("/{one}");
            self.containers.keys().any(|(_, name)| name.ends_with(&end))
        };
        wanted.iter().map(String::as_str).filter(|one| !seen(one)).collect()
    }

    /// What has not been looked at again since an earlier reading.
    pub(super) fn stale(&self, earlier: &Self) -> Vec<&str> {
        let same =
            |look: &Look, earlier: Option<&Look>| earlier.is_some_and(|one| one.at == look.at);
        let containers =
            self.containers.iter().filter(|(key, look)| same(look, earlier.containers.get(*key)));
        let nodes = self.nodes.iter().filter(|(key, look)| same(look, earlier.nodes.get(*key)));
        let containers = containers.map(|((_, name), _)| name.as_str());
        containers.chain(nodes.map(|(name, _)| name.as_str())).collect()
    }

    /// How many proxies there are.
    pub(super) fn proxies(&self) -> u32 {
        u32::try_from(self.of(Role::Proxy).count()).unwrap_or(u32::MAX)
    }

    /// Memory of all proxies, and of the control plane.
    pub(super) fn memory_kib(&self) -> (u64, u64) {
        let sum = |role| self.of(role).map(|look| look.memory_kib).sum();
        (sum(Role::Proxy), sum(Role::Control))
    }

    fn of(&self, role: Role) -> impl Iterator<Item = &Look> {
        self.containers.iter().filter(move |((of, _), _)| *of == role).map(|(_, look)| look)
    }

    /// What was used between an earlier reading and this one, with those in between, on nodes with so many processors
    /// each, and what has ended or begun in between, of which only a part is counted. Control planes have tasks that
    /// come and go. What was there before and is missing from the earlier reading counts from where it is first seen.
    pub(super) fn since(
        &self,
        earlier: &Self,
        between: &[Self],
        cpus: &BTreeMap<String, usize>,
    ) -> (Used, Vec<String>) {
        let mut cpu = CpuMs::default();
        let mut broken = Vec::new();
        for (key, look) in &self.containers {
            let before = earlier.containers.get(key);
            let same = before.filter(|one| look.goes_on_from(one));
            let begun = same.is_some() || earlier.is_older_than(look);
            if same.is_none() && !key.0.is_beside() {
                let what = match (before, begun) {
                    (Some(_), _) => "was restarted meanwhile",
                    (None, true) => "has begun meanwhile",
                    (None, false) => "was not in the first figures of its kubelet",
                };
                broken.push(format!("{} {what}", key.1));
            }
            let of = match key.0 {
                Role::Proxy => &mut cpu.proxies,
                Role::Application => &mut cpu.application,
                Role::Generator => &mut cpu.generator,
                Role::Neighbour => &mut cpu.neighbour,
                Role::Agent => &mut cpu.agent,
                Role::Control => &mut cpu.control,
            };
            let first = || {
                let seen = between.iter().find_map(|reading| reading.containers.get(key));
                seen.filter(|one| look.goes_on_from(one)).unwrap_or(look)
            };
            *of += match same {
                Some(same) => look.cpu_ms - same.cpu_ms,
                None if before.is_some() || begun => look.cpu_ms,
                None => look.cpu_ms - first().cpu_ms,
            };
        }
        let ended = earlier.containers.keys().filter(|key| !self.containers.contains_key(*key));
        let ended = ended.filter(|key| !key.0.is_beside());
        broken.extend(ended.map(|key| format!("{} has ended meanwhile", key.1)));
        let (mut wall, mut capacity) = (0.0, 0.0);
        for (name, look) in &self.nodes {
            let Some(before) = earlier.nodes.get(name) else { continue };
            cpu.machine += (look.cpu_ms - before.cpu_ms).max(0.0);
            let time = (look.at - before.at) as f64;
            wall = f64::max(time, wall);
            capacity += time * cpus.get(name).copied().unwrap_or(1) as f64;
        }
        let processors = (wall > 0.0).then(|| capacity / wall);
        let wall = Duration::from_secs_f64(wall);
        (Used { cpu, wall, processors, ..Used::default() }, broken)
    }

    /// Whether something that is looked at began after this reading, by the clock of its node.
    fn is_older_than(&self, look: &Look) -> bool {
        let at = self.nodes.get(&look.node).map(|node| node.at);
        look.began.zip(at).is_some_and(|(began, at)| began > at)
    }

    /// The processors that all proxies kept busy since an earlier reading; 0 where no kubelet has looked since.
    pub(super) fn proxies_cpus_since(&self, earlier: &Self) -> f64 {
        let of = |(key, look): (&(Role, String), &Look)| {
            let before = earlier.containers.get(key).filter(|one| look.goes_on_from(one))?;
            let seconds = (look.at - before.at) as f64;
            (seconds > 0.0).then(|| (look.cpu_ms - before.cpu_ms) / 1000.0 / seconds)
        };
        let proxies = self.containers.iter().filter(|((role, _), _)| *role == Role::Proxy);
        proxies.filter_map(of).fold(0.0, |sum, one| sum + one)
    }

    /// A line of the file of samples.
    pub(super) fn line(&self, elapsed: Duration) -> String {
        let (proxies, control) = self.memory_kib();
        // A sum of nothing would be -0.
        let cpu = |role| self.of(role).fold(0.0, |sum, look| sum + look.cpu_ms);
        let (of_proxies, of_applications) = (cpu(Role::Proxy), cpu(Role::Application));
        let elapsed = elapsed.as_millis();
        format!("{elapsed},{proxies},{control},{of_proxies:.1},{of_applications:.1}\n")
    }
}

/// Memory of the proxies and of the control plane under load, and how many proxies no kubelet looked at meanwhile:
/// of those it is that of the first look after it.
///
/// The first reading is of the moment when load began, the others are from before it ended. A look counts once,
/// by its own time, which readings only order: clocks of nodes are not ours. Containers are looked at at different
/// times, so that `peak` is the sum of what each had at its own worst.
pub(super) fn memory(
    idle: &Reading,
    during: &[Reading],
    after: &Reading,
) -> (RssKib, RssKib, usize) {
    let of = |role: Role, idle: u64| {
        let (mut load, mut peak, mut unseen) = (0.0, 0.0, 0);
        for (key, last) in after.containers.iter().filter(|((of, _), _)| *of == role) {
            let looks = during.iter().filter_map(|reading| reading.containers.get(key));
            let looks: BTreeMap<i64, f64> =
                looks.map(|look| (look.memory_at, look.memory_kib as f64)).collect();
            // Where the first reading lacks it, the one after that: it may be of before the load as well.
            let first = during.iter().find_map(|reading| reading.containers.get(key));
            let later =
                looks.into_iter().filter(|(at, _)| first.is_some_and(|one| *at > one.memory_at));
            let mut kib: Vec<f64> = later.map(|(_, kib)| kib).collect();
            if kib.is_empty() {
                unseen += 1;
                kib.push(last.memory_kib as f64);
            }
            load += median(&kib);
            peak += kib.iter().fold(0.0, |most, one| f64::max(most, *one));
        }
        (RssKib { idle, load: load as u64, peak: peak as u64 }, unseen)
    };
    let (proxies, control) = idle.memory_kib();
    let ((proxies, unseen), (control, _)) = (of(Role::Proxy, proxies), of(Role::Control, control));
    (proxies, control, unseen)
}

#[cfg(test)]
mod tests;
