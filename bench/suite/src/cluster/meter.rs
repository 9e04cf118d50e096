//! The resources that a measurement uses, as reported by the watchers of the nodes.
//!
//! ```text
//! pods' statuses ─► container IDs by role ─► each watcher's report ─► a reading
//! reading before ── readings under load ── reading after          ─► resources used
//! ```
//! Each process is counted separately: CPU time of a process that has ended still counts, up to the
//! last sample.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use leno_kube::ResourceExt as _;
use leno_operate::statuses;

use super::manifests::{CONTAINER, is_watcher};
use super::mesh::Mesh;
use crate::lab::{CLIENT, NEIGHBOUR};
use crate::meter::{ResourceUse, under_load};
use crate::record::{KernelPrograms, RssKib};
use crate::watch::{NodeCounters, Process, Whole};

/// The role of a container in a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// Proxies, beside workloads or of nodes.
    Proxy,
    Application,
    Generator,
    /// The client that floods another service, that service, and the proxies of both.
    Neighbour,
    /// Captures traffic on each node.
    Agent,
    Control,
}

impl Role {
    /// Whether it carries no part of the load.
    fn is_beside(self) -> bool {
        matches!(self, Self::Agent | Self::Control)
    }
}

/// Assigns roles to the containers of a measurement.
#[derive(Clone, Debug)]
pub(super) struct Roles {
    pub(super) namespace: String,
    pub(super) mesh: Mesh,
    /// The namespace of the mesh.
    pub(super) system: Option<String>,
    /// Other namespaces with pods that the mesh has on nodes.
    pub(super) beside: BTreeSet<String>,
    /// The service that is flooded.
    pub(super) flooded: Option<String>,
    /// The nodes that have a watcher.
    pub(super) nodes: BTreeSet<String>,
    pub(super) carriers: Carriers,
}

/// The nodes whose node proxies carry traffic, and which traffic; all other node proxies are idle.
#[derive(Clone, Debug, Default)]
pub(super) struct Carriers {
    /// Nodes with measured workloads.
    measured: BTreeSet<String>,
    /// Nodes with the flooding client or the flooded service.
    flood: BTreeSet<String>,
}

impl Carriers {
    /// From the nodes of the workloads.
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

/// A container whose resources are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Watched {
    pub(super) role: Role,
    /// `namespace/pod/container`.
    pub(super) name: String,
    pub(super) node: String,
    /// The runtime's container ID; a restarted container has another one.
    pub(super) id: String,
}

impl Watched {
    /// Whether this is the suite's own client container, from whose network namespace the load
    /// comes.
    pub(super) fn is_client(&self) -> bool {
        self.role == Role::Generator
    }
}

impl Roles {
    /// The role of a container; `None` if it does not belong to the measurement.
    fn of(&self, node: &str, (namespace, pod, container): (&str, &str, &str)) -> Option<Role> {
        if namespace != self.namespace {
            let own = self.system.as_deref() == Some(namespace);
            let ours = own || self.beside.contains(namespace);
            return match ours.then(|| self.mesh.role_of(pod))? {
                Role::Proxy => self.carriers.role_on(node),
                // Other pods in such a namespace do not belong to the mesh.
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

    /// The running containers of a pod that belong to the measurement, if its node has a watcher.
    pub(super) fn watched(&self, pod: &Pod) -> Vec<Watched> {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        if !self.nodes.contains(&node) {
            return Vec::new();
        }
        let found = running(pod).filter_map(|one| {
            let role = self.of(&node, (&namespace, &name, &one.name))?;
            // For example containerd://0123.
            let (_, id) = one.container_id.as_ref()?.rsplit_once("://")?;
            let name = format!("{namespace}/{name}/{}", one.name);
            Some(Watched { role, name, node: node.clone(), id: id.to_owned() })
        });
        found.collect()
    }
}

/// The running containers of a pod.
pub(super) fn running(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    statuses(pod).filter(|one| one.state.as_ref().is_some_and(|state| state.running.is_some()))
}

/// The counters of a container.
#[derive(Clone, Debug, PartialEq)]
struct Container {
    whose: Watched,
    /// The boot ID of the kernel that runs its processes.
    boot_id: String,
    processes: Vec<Process>,
}

/// The counters of all containers at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reading {
    /// The containers with processes, by their IDs.
    containers: BTreeMap<String, Container>,
    /// The nodes that reported.
    nodes: BTreeSet<String>,
    /// The time of each kernel's report by boot ID, in microseconds since boot. Nodes may share a
    /// kernel.
    moments: BTreeMap<String, u64>,
    /// The counters of whole kernels, if they were requested.
    kernels: BTreeMap<String, Whole>,
    /// Connections that leave the client's network namespace.
    connections: u64,
}

/// The resources used between two readings, by role.
#[derive(Clone, Debug, Default)]
pub(super) struct UsageByRole {
    pub(super) used: ResourceUse,
    pub(super) programs: KernelPrograms,
    /// Containers that ended or started meanwhile. Control planes are not included, because they
    /// have tasks that come and go.
    pub(super) broken: Vec<String>,
}

impl Reading {
    /// Adds the report of a node.
    pub(super) fn add(&mut self, node: &str, look: NodeCounters, watched: &[Watched]) {
        let NodeCounters { boot_id, at_us, containers, connections, whole } = look;
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

    /// Adds later reports of other nodes.
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

    /// The first of these containers that has no process.
    pub(super) fn lacks<'a>(&self, watched: &'a [Watched]) -> Option<&'a Watched> {
        watched.iter().find(|one| !self.containers.contains_key(&one.id))
    }

    /// The number of proxies.
    pub(super) fn proxies(&self) -> u32 {
        u32::try_from(self.of(Role::Proxy).count()).unwrap_or(u32::MAX)
    }

    /// The size in bytes of the proxies' program, the largest one in their containers; `None`
    /// without proxies.
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

    /// The number of processors that all proxies kept busy since an earlier reading.
    pub(super) fn proxies_cpus_since(&self, earlier: &Self) -> f64 {
        let used = between(&[earlier, self]).used;
        let ms = used.wall.as_secs_f64() * 1000.0;
        if ms > 0.0 { used.cpu.proxies / ms } else { 0.0 }
    }

    /// The containers that differ from an earlier reading, on nodes that both readings have.
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

/// The resources used from the first to the last reading; the readings are in order. A process that
/// is not in the first reading counts from its start if it started later, and otherwise from the
/// first reading that has it. A process that is not in the last reading counts up to the last one
/// that has it.
pub(super) fn between(readings: &[&Reading]) -> UsageByRole {
    let (Some(first), Some(last)) = (readings.first(), readings.last()) else {
        return UsageByRole::default();
    };
    let mut tally = Tally::since(first);
    readings.iter().for_each(|reading| tally.add(reading));
    let mut used = tally.used(last);
    let programs = kernels((first, last), &mut used);
    UsageByRole { used, programs, broken: last.broken_since(first) }
}

/// The lines of the samples' file: one for each complete reading, with the memory at that time and
/// the CPU time since the first reading. The readings are in order.
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

/// Adds up what every process has used since the first reading, from the readings that were added.
struct Tally<'r> {
    first: &'r Reading,
    /// The processes by container, process ID and start time.
    seen: BTreeMap<(&'r str, u32, u64), Counted<'r>>,
}

/// A counted process.
struct Counted<'r> {
    container: &'r Container,
    /// Its counters at the start, which do not count.
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
                // A thread that ends may take a part of the sum with it, so the sum never decreases
                // here.
                if to.cpu.total_us() >= counted.to.cpu.total_us() {
                    counted.to = to;
                }
            }
        }
    }

    /// The resources used until `last`, which is the reading that was added last.
    fn used(&self, last: &Reading) -> ResourceUse {
        let mut used = ResourceUse::default();
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

/// The resources that each kernel used as a whole. A kernel that several nodes share counts once.
fn kernels((first, last): (&Reading, &Reading), used: &mut ResourceUse) -> KernelPrograms {
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
    // `None` if one kernel's threads are not visible: the sum of the others would look like the
    // total.
    used.cpu.kernel_threads = threads.filter(|_| capacity > 0.0);
    programs
}

/// Memory of the proxies and of the control plane under load: the median and the maximum of their
/// sums in the complete readings.
pub(super) fn memory(idle: &Reading, during: &[&Reading]) -> (RssKib, RssKib) {
    let of = |which: fn((u64, u64)) -> u64| {
        let under: Vec<f64> = during.iter().map(|one| which(one.memory_kib()) as f64).collect();
        RssKib { idle: which(idle.memory_kib()), ..under_load(&under) }
    };
    (of(|(proxies, _)| proxies), of(|(_, control)| control))
}

#[cfg(test)]
mod tests;
