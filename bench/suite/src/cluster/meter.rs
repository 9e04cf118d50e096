//! What everything of a measurement uses, as those see it who watch the nodes.
//!
//! ```text
//! pods' statuses ─► container IDs by role ─► looks of each node ─► a reading
//! reading before ── readings under load ── reading after      ─► what was used
//! ```
//! A process counts by itself: what one had used when it ended stays counted as far as it was seen.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt as _;
use leno_operate::statuses;

use super::manifests::{CONTAINER, is_watcher};
use super::mesh::Mesh;
use crate::lab::{CLIENT, NEIGHBOUR};
use crate::meter::{Used, under_load};
use crate::record::{KernelPrograms, RssKib};
use crate::watch::{Look, Process, Whole};

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
    /// The nodes that are watched.
    pub(super) nodes: BTreeSet<String>,
    pub(super) carriers: Carriers,
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

/// A container that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Watched {
    pub(super) role: Role,
    /// `namespace/pod/container`.
    pub(super) name: String,
    pub(super) node: String,
    /// As its runtime names it; a container that is restarted has another.
    pub(super) id: String,
}

impl Watched {
    /// Whether the load comes from its network namespace, and it is the suite's own.
    pub(super) fn is_client(&self) -> bool {
        self.role == Role::Generator
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
            _ if is_watcher(pod) => return None,
            NEIGHBOUR => Role::Neighbour,
            _ if Some(pod) == self.flooded.as_deref() => Role::Neighbour,
            _ if !ours => Role::Proxy,
            CLIENT => Role::Generator,
            _ => Role::Application,
        })
    }

    /// The running containers of a pod that are of the measurement and on a node that is watched.
    pub(super) fn watched(&self, pod: &Pod) -> Vec<Watched> {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        if !self.nodes.contains(&node) {
            return Vec::new();
        }
        let found = running(pod).filter_map(|one| {
            let role = self.of(&node, (&namespace, &name, &one.name))?;
            // As in containerd://0123.
            let (_, id) = one.container_id.as_ref()?.rsplit_once("://")?;
            let name = format!("{namespace}/{name}/{}", one.name);
            Some(Watched { role, name, node: node.clone(), id: id.to_owned() })
        });
        found.collect()
    }
}

/// The containers of a pod that run.
pub(super) fn running(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    statuses(pod).filter(|one| one.state.as_ref().is_some_and(|state| state.running.is_some()))
}

/// A container as it was seen.
#[derive(Clone, Debug, PartialEq)]
struct Container {
    whose: Watched,
    /// Of which kernel its processes are.
    boot_id: String,
    processes: Vec<Process>,
}

/// One look at everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reading {
    /// Those with processes, by their IDs.
    containers: BTreeMap<String, Container>,
    /// The nodes that were looked at.
    nodes: BTreeSet<String>,
    /// When each kernel was looked at, by its boot's ID, in microseconds since its boot. Nodes may share one.
    moments: BTreeMap<String, u64>,
    /// Each kernel as a whole, where that was asked for.
    kernels: BTreeMap<String, Whole>,
    /// Connections that leave the client's network namespace.
    connections: u64,
}

/// What was used of whom between two readings.
#[derive(Clone, Debug, Default)]
pub(super) struct Between {
    pub(super) used: Used,
    pub(super) programs: KernelPrograms,
    /// What ended or began meanwhile; control planes have tasks that come and go.
    pub(super) broken: Vec<String>,
}

impl Reading {
    /// Adds what was seen of a node.
    pub(super) fn add(&mut self, node: &str, look: Look, watched: &[Watched]) {
        let Look { boot_id, at_us, containers, connections, whole } = look;
        for (id, processes) in containers {
            let Some(whose) = watched.iter().find(|one| one.id == id && one.node == node) else {
                continue;
            };
            let (whose, boot_id) = (whose.clone(), boot_id.clone());
            self.containers.insert(id, Container { whose, boot_id, processes });
        }
        self.nodes.insert(node.to_owned());
        self.moments.entry(boot_id.clone()).or_insert(at_us);
        if let Some(whole) = whole {
            self.kernels.entry(boot_id).or_insert(whole);
        }
        self.connections = self.connections.max(connections.unwrap_or_default());
    }

    /// Adds what was seen of other nodes later.
    pub(super) fn extend(&mut self, other: Self) {
        self.containers.extend(other.containers);
        self.nodes.extend(other.nodes);
        for (boot_id, at_us) in other.moments {
            self.moments.entry(boot_id).or_insert(at_us);
        }
        for (boot_id, whole) in other.kernels {
            self.kernels.entry(boot_id).or_insert(whole);
        }
        self.connections = self.connections.max(other.connections);
    }

    fn of(&self, role: Role) -> impl Iterator<Item = &Container> {
        self.containers.values().filter(move |one| one.whose.role == role)
    }

    /// What of this has no process.
    pub(super) fn lacks<'a>(&self, watched: &'a [Watched]) -> Option<&'a Watched> {
        watched.iter().find(|one| !self.containers.contains_key(&one.id))
    }

    /// How many proxies there are.
    pub(super) fn proxies(&self) -> u32 {
        u32::try_from(self.of(Role::Proxy).count()).unwrap_or(u32::MAX)
    }

    /// Bytes of the proxies' program, the largest that runs in their containers; none where there is none.
    pub(super) fn program_bytes(&self) -> Option<u64> {
        let all = self.of(Role::Proxy).flat_map(|one| &one.processes);
        all.map(|process| process.program_bytes).filter(|bytes| *bytes > 0).max()
    }

    /// Memory of all proxies, and of the control plane.
    pub(super) fn memory_kib(&self) -> (u64, u64) {
        let sum = |role| {
            let all = self.of(role).flat_map(|one| &one.processes);
            all.map(|process| process.rss_kib).sum()
        };
        (sum(Role::Proxy), sum(Role::Control))
    }

    /// Connections that leave the client's network namespace.
    pub(super) fn connections(&self) -> u64 {
        self.connections
    }

    /// The processors that all proxies kept busy since an earlier reading.
    pub(super) fn proxies_cpus_since(&self, earlier: &Self) -> f64 {
        let used = between(&[earlier, self]).used;
        let ms = used.wall.as_secs_f64() * 1000.0;
        if ms > 0.0 { used.cpu.proxies / ms } else { 0.0 }
    }

    /// What of it is not as in an earlier reading, where its node was looked at both times.
    fn broken_since(&self, earlier: &Self) -> Vec<String> {
        let of = |reading: &Self| -> BTreeMap<String, String> {
            let all = reading.containers.values().map(|one| &one.whose);
            let carrying = all.filter(|one| !one.role.is_beside());
            let both = |one: &&Watched| {
                self.nodes.contains(&one.node) && earlier.nodes.contains(&one.node)
            };
            carrying.filter(both).map(|one| (one.name.clone(), one.id.clone())).collect()
        };
        let (old, new) = (of(earlier), of(self));
        let mut broken = Vec::new();
        for (name, id) in &new {
            match old.get(name) {
                Some(before) if before == id => {}
                Some(_) => broken.push(format!("{name} was restarted meanwhile")),
                None => broken.push(format!("{name} has begun meanwhile")),
            }
        }
        let ended = old.keys().filter(|name| !new.contains_key(*name));
        broken.extend(ended.map(|name| format!("{name} has ended meanwhile")));
        broken
    }
}

/// What was used from the first of some readings to the last, which are in their order. A process that was not in
/// the first counts from its beginning where that was later, and from first sight where it was not; one that is not
/// in the last, as far as it was seen.
pub(super) fn between(readings: &[&Reading]) -> Between {
    let (Some(first), Some(last)) = (readings.first(), readings.last()) else {
        return Between::default();
    };
    let mut tally = Tally::since(first);
    readings.iter().for_each(|reading| tally.add(reading));
    let mut used = tally.used(last);
    let programs = kernels((first, last), &mut used);
    Between { used, programs, broken: last.broken_since(first) }
}

/// The file of samples: a line for each reading of which nothing is missing, with the memory of then and the CPU that
/// was used since the first. The readings are in their order.
pub(super) fn lines(first: &Reading, readings: &[(Duration, &Reading, bool)]) -> String {
    let mut tally = Tally::since(first);
    let mut text = String::new();
    for (elapsed, reading, is_whole) in readings {
        tally.add(reading);
        if *is_whole {
            let (proxies, control) = reading.memory_kib();
            let cpu = tally.used(reading).cpu;
            let (elapsed, of_proxies, of_applications) =
                (elapsed.as_millis(), cpu.proxies, cpu.application);
            text +=
                &format!("{elapsed},{proxies},{control},{of_proxies:.1},{of_applications:.1}\n");
        }
    }
    text
}

/// What every process has used since a reading, as far as those that were added have seen it.
struct Tally<'r> {
    first: &'r Reading,
    /// By container, process and its beginning.
    seen: BTreeMap<(&'r str, u32, u64), Counted<'r>>,
}

/// A process that is counted.
struct Counted<'r> {
    container: &'r Container,
    /// What is not counted of it.
    from: Process,
    to: &'r Process,
}

impl<'r> Tally<'r> {
    fn since(first: &'r Reading) -> Self {
        let mut tally = Self { first, seen: BTreeMap::new() };
        tally.add(first);
        tally
    }

    fn add(&mut self, reading: &'r Reading) {
        for (id, container) in &reading.containers {
            let at_first = self.first.moments.get(&container.boot_id);
            for to in &container.processes {
                let is_new = at_first.is_some_and(|at| to.began_us > *at);
                let from = || if is_new { Process::default() } else { to.clone() };
                let key = (id.as_str(), to.pid, to.began_us);
                let counted =
                    self.seen.entry(key).or_insert_with(|| Counted { container, from: from(), to });
                // A thread that has ended takes a part of what was seen with it.
                if to.cpu.total_us() >= counted.to.cpu.total_us() {
                    counted.to = to;
                }
            }
        }
    }

    /// Until `last`, the reading that was added last.
    fn used(&self, last: &Reading) -> Used {
        let mut used = Used::default();
        for Counted { container, from, to } in self.seen.values() {
            let cpu = to.cpu - from.cpu;
            let role = container.whose.role;
            let of = match role {
                Role::Proxy => &mut used.cpu.proxies,
                Role::Application => &mut used.cpu.application,
                Role::Generator => &mut used.cpu.generator,
                Role::Neighbour => &mut used.cpu.neighbour,
                Role::Agent => &mut used.cpu.agent,
                Role::Control => &mut used.cpu.control,
            };
            let ms = cpu.total_us() as f64 / 1000.0;
            *of += ms;
            let is_there = |reading: &Reading| reading.kernels.contains_key(&container.boot_id);
            if !is_there(self.first) || !is_there(last) {
                used.elsewhere_ms += ms;
            }
            if role == Role::Proxy {
                used.proxy_user_ms += cpu.user_us as f64 / 1000.0;
                let (new, old) = (to.switches, from.switches);
                used.switches.voluntary += new.voluntary.saturating_sub(old.voluntary);
                used.switches.involuntary += new.involuntary.saturating_sub(old.involuntary);
            }
        }
        used
    }
}

/// What each kernel has used as a whole, once for all of its nodes.
fn kernels((first, last): (&Reading, &Reading), used: &mut Used) -> KernelPrograms {
    let mut programs = KernelPrograms::default();
    let mut capacity = 0.0;
    let mut threads = Some(0.0);
    for (boot_id, at_us) in &last.moments {
        let Some(before_us) = first.moments.get(boot_id) else { continue };
        let wall = Duration::from_micros(at_us.saturating_sub(*before_us));
        used.wall = used.wall.max(wall);
        let kernels = last.kernels.get(boot_id).zip(first.kernels.get(boot_id));
        let Some((new, old)) = kernels else { continue };
        let less = |new: f64, old: f64| (new - old).max(0.0);
        let cpu = &mut used.cpu;
        cpu.machine += less(new.machine.busy_ms, old.machine.busy_ms);
        cpu.interrupts += less(new.machine.interrupts_ms, old.machine.interrupts_ms);
        cpu.steal += less(new.machine.steal_ms, old.machine.steal_ms);
        let pair = new.kernel_threads_ms.zip(old.kernel_threads_ms);
        threads = threads.zip(pair).map(|(sum, (new, old))| sum + less(new, old));
        capacity += wall.as_secs_f64() * new.machine.processors as f64;
        for (id, (runs, nanos)) in &new.programs {
            let (old_runs, old_nanos) = old.programs.get(id).copied().unwrap_or_default();
            programs.runs += runs.saturating_sub(old_runs);
            programs.ms += nanos.saturating_sub(old_nanos) as f64 / 1e6;
        }
    }
    let wall = used.wall.as_secs_f64();
    used.processors = (capacity > 0.0).then(|| capacity / wall);
    // Where one kernel's are not seen, the sum of the others would be taken for all.
    used.cpu.kernel_threads = threads.filter(|_| capacity > 0.0);
    programs
}

/// Memory of the proxies and of the control plane under load: the median and the most of what all of them had
/// together, in the readings of which nothing is missing.
pub(super) fn memory(idle: &Reading, during: &[&Reading]) -> (RssKib, RssKib) {
    let of = |which: fn((u64, u64)) -> u64| {
        let under: Vec<f64> = during.iter().map(|one| which(one.memory_kib()) as f64).collect();
        RssKib { idle: which(idle.memory_kib()), ..under_load(&under) }
    };
    (of(|(proxies, _)| proxies), of(|(_, control)| control))
}

#[cfg(test)]
mod tests;
