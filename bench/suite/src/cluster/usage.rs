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

use super::mesh::Role;
use super::roles::Watched;
use crate::measurement::figures::{ResourceUse, under_load};
use crate::node_watcher::counters::{KernelCounters, NodeCounters, Process};
use crate::record::{KernelPrograms, RssKib};

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
    kernels: BTreeMap<String, KernelCounters>,
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
