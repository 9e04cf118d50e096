//! The resources that a measurement uses, calculated from readings of the counters of its components.
//!
//! ```text
//! cluster: pods' statuses ─► containers by role ─► each node's watcher ─┐
//! lab: namespaces' status ─► control groups by role ────────────────────┴─► a reading
//! reading before ── readings under load ── reading after                ──► resources used
//! ```
//! Each process, and each control group of the lab, is counted separately. The CPU time of a process that has ended is
//! still counted, up to the last reading in which the process was running.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leno_measure::load::Report;

use super::figures::{ResourceUse, USAGE, fill, marks, under_load};
use crate::kernel_counters::{KernelCounters, NodeCounters, Process};
use crate::record::{KernelPrograms, Record, RssKib};

/// The part of the measured system to which a program belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(test, derive(serde::Deserialize), serde(rename_all = "kebab-case"))]
pub(crate) enum Role {
    /// A proxy, beside a workload or of a node.
    Proxy,
    /// The suite's own services, or those of a real application.
    Application,
    /// The program that sends the load.
    Generator,
    /// The client that floods another service, that service, and the proxies of both.
    Neighbour,
    /// Captures traffic on each node.
    Agent,
    /// The control plane.
    Control,
}

impl Role {
    /// Whether programs of this role do not carry the load.
    pub(crate) fn is_beside(self) -> bool {
        matches!(self, Self::Agent | Self::Control)
    }
}

/// A part of a measurement whose resources are measured: a container in a cluster, a control group or a process in the
/// lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Component {
    pub(crate) role: Role,
    /// `namespace/pod/container`, or the workload in the lab.
    pub(crate) name: String,
    pub(crate) node: String,
    /// The runtime's ID of the container, which changes when the container is restarted. In the lab, the directory of
    /// the control group.
    pub(crate) id: String,
}

impl Component {
    /// Whether this component is the suite's own client, from whose network namespace the load comes.
    pub(crate) fn is_client(&self) -> bool {
        self.role == Role::Generator
    }
}

#[derive(Clone, Debug, PartialEq)]
struct ComponentCounters {
    whose: Component,
    /// The boot ID of the kernel that runs its processes.
    boot_id: String,
    processes: Vec<Process>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    /// The components that have processes, by their IDs.
    components: BTreeMap<String, ComponentCounters>,
    nodes: BTreeSet<String>,
    /// For each kernel, by its boot ID, the time of its report in microseconds since boot. Nodes may share a kernel.
    moments: BTreeMap<String, u64>,
    /// The counters of whole kernels, if they were requested.
    kernels: BTreeMap<String, KernelCounters>,
    /// Connections from the client's network namespace to other hosts.
    connections: u64,
}

/// The resources used between two readings, by role.
#[derive(Clone, Debug, Default)]
struct UsageByRole {
    used: ResourceUse,
    programs: KernelPrograms,
    /// Components that ended or started meanwhile. Control planes are not among them, because some of their processes
    /// run only for a short time.
    broken: Vec<String>,
}

impl Reading {
    pub(crate) fn add(&mut self, node: &str, look: NodeCounters, watched: &[Component]) {
        let NodeCounters { boot_id, at_us, containers, connections, whole } = look;
        let of_container = |(id, processes): (String, Vec<Process>)| {
            let whose = watched.iter().find(|one| one.id == id && one.node == node)?.clone();
            Some((id, ComponentCounters { whose, boot_id: boot_id.clone(), processes }))
        };
        self.extend(Self {
            components: containers.into_iter().filter_map(of_container).collect(),
            nodes: [node.to_owned()].into(),
            moments: [(boot_id.clone(), at_us)].into(),
            kernels: whole.map(|whole| (boot_id.clone(), whole)).into_iter().collect(),
            connections: connections.unwrap_or_default(),
        });
    }

    /// Adds the counters of other nodes, which were reported later.
    pub(crate) fn extend(&mut self, other: Self) {
        self.components.extend(other.components);
        self.nodes.extend(other.nodes);
        for (boot_id, at_us) in other.moments {
            self.moments.entry(boot_id).or_insert(at_us);
        }
        for (boot_id, whole) in other.kernels {
            self.kernels.entry(boot_id).or_insert(whole);
        }
        self.connections = self.connections.max(other.connections);
    }

    fn of(&self, role: Role) -> impl Iterator<Item = &ComponentCounters> {
        self.components.values().filter(move |one| one.whose.role == role)
    }

    /// The first of these components that has no process.
    pub(crate) fn lacks<'a>(&self, watched: &'a [Component]) -> Option<&'a Component> {
        watched.iter().find(|one| !self.components.contains_key(&one.id))
    }

    pub(crate) fn proxies(&self) -> u32 {
        u32::try_from(self.of(Role::Proxy).count()).unwrap_or(u32::MAX)
    }

    /// The size in bytes of the largest program that a proxy runs; `None` without proxies.
    pub(crate) fn program_bytes(&self) -> Option<u64> {
        let all = self.of(Role::Proxy).flat_map(|one| &one.processes);
        all.map(|process| process.program_bytes).filter(|bytes| *bytes > 0).max()
    }

    /// The memory of all proxies, and that of the control plane.
    pub(crate) fn memory_kib(&self) -> (u64, u64) {
        let sum = |role| {
            let all = self.of(role).flat_map(|one| &one.processes);
            all.map(|process| process.rss_kib).sum()
        };
        (sum(Role::Proxy), sum(Role::Control))
    }

    /// The number of processors that all proxies kept busy since an earlier reading.
    pub(crate) fn proxies_cpus_since(&self, earlier: &Self) -> f64 {
        let used = between(&[earlier, self]).used;
        let ms = used.wall.as_secs_f64() * 1000.0;
        if ms > 0.0 { used.cpu.proxies / ms } else { 0.0 }
    }

    /// The components that differ from an earlier reading, on nodes that both readings have.
    fn broken_since(&self, earlier: &Self) -> Vec<String> {
        let of = |reading: &Self| -> BTreeMap<String, String> {
            let all = reading.components.values().map(|one| &one.whose);
            let carrying = all.filter(|one| !one.role.is_beside());
            let both = |one: &&Component| {
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

/// The resources that were used from the first to the last of these readings, which are in order. A process that is not
/// in the first reading counts from its start if it started later, and otherwise from the first reading in which it is.
/// A process that is not in the last reading counts up to the last reading in which it is.
fn between(readings: &[&Reading]) -> UsageByRole {
    let (Some(first), Some(last)) = (readings.first(), readings.last()) else {
        return UsageByRole::default();
    };
    let mut tally = UsageTally::since(first);
    readings.iter().for_each(|reading| tally.add(reading));
    let mut used = tally.used(last);
    let programs = kernels((first, last), &mut used);
    UsageByRole { used, programs, broken: last.broken_since(first) }
}

/// A reading during the load or right after it.
#[derive(Debug)]
pub(crate) struct Sample {
    /// The time since the start of the load.
    pub(crate) elapsed: Duration,
    pub(crate) reading: Reading,
    /// Whether no counter is missing.
    pub(crate) is_complete: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Readings<'r> {
    /// Before any load.
    pub(crate) idle: &'r Reading,
    /// Right before the measured load.
    pub(crate) before: &'r Reading,
    /// During the measured load, in order.
    pub(crate) during: &'r [Sample],
    /// Right after the measured load.
    pub(crate) after: &'r Sample,
}

impl Readings<'_> {
    /// Fills a record with the figures of the load, and returns the components that ended or started
    /// meanwhile.
    pub(crate) fn fill(&self, record: &mut Record, report: &Report) -> Vec<String> {
        let complete = self.during.iter().filter(|one| one.is_complete).map(|one| &one.reading);
        let complete: Vec<&Reading> = complete.collect();
        (record.rss_kib, record.control_rss_kib) = memory(self.idle, &complete);
        let connections = complete.iter().map(|one| one.connections);
        record.crossing_connections = connections.max().unwrap_or(0);
        let later = self.during.iter().chain([self.after]).map(|one| &one.reading);
        let all: Vec<&Reading> = [self.before].into_iter().chain(later).collect();
        let UsageByRole { used, programs, broken } = between(&all);
        record.kernel_programs = programs;
        fill(record, report, &used);
        record.marks = marks(record, report, &used);
        broken
    }

    /// The file of the samples: a line for each complete reading, with the memory at that time, and the CPU time since
    /// the reading before the load.
    pub(crate) fn table(&self) -> String {
        let mut tally = UsageTally::since(self.before);
        let mut text = format!("{USAGE}\n");
        for Sample { elapsed, reading, is_complete } in self.during.iter().chain([self.after]) {
            tally.add(reading);
            if *is_complete {
                let (proxies, control) = reading.memory_kib();
                let cpu = tally.used(reading).cpu;
                let (elapsed, of_proxies, of_applications) =
                    (elapsed.as_millis(), cpu.proxies, cpu.application);
                text += &format!(
                    "{elapsed},{proxies},{control},{of_proxies:.1},{of_applications:.1}\n"
                );
            }
        }
        text
    }
}

/// Adds up what every process has used since the first reading.
struct UsageTally<'r> {
    first: &'r Reading,
    /// The processes, by component, process ID and start time.
    processes: BTreeMap<(&'r str, u32, u64), ProcessUse<'r>>,
}

/// The counters of a process at its first and its last reading.
struct ProcessUse<'r> {
    component: &'r ComponentCounters,
    /// The counters at the start, which are subtracted.
    from: Process,
    to: &'r Process,
}

impl<'r> UsageTally<'r> {
    fn since(first: &'r Reading) -> Self {
        let mut tally = Self { first, processes: BTreeMap::new() };
        tally.add(first);
        tally
    }

    fn add(&mut self, reading: &'r Reading) {
        for (id, component) in &reading.components {
            let at_first = self.first.moments.get(&component.boot_id);
            for to in &component.processes {
                let is_new = at_first.is_some_and(|at| to.began_us > *at);
                let from = || if is_new { Process::default() } else { to.clone() };
                let key = (id.as_str(), to.pid, to.began_us);
                let counted = self.processes.entry(key).or_insert_with(|| ProcessUse {
                    component,
                    from: from(),
                    to,
                });
                // When a thread ends, its share of the sum may be lost. So only readings in which the sum has not
                // decreased are used.
                if to.cpu.total_us() >= counted.to.cpu.total_us() {
                    counted.to = to;
                }
            }
        }
    }

    /// The resources that were used until `last`, which is the reading that was added last.
    fn used(&self, last: &Reading) -> ResourceUse {
        let mut used = ResourceUse::default();
        for ProcessUse { component, from, to } in self.processes.values() {
            let cpu = to.cpu - from.cpu;
            let role = component.whose.role;
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
            let is_there = |reading: &Reading| reading.kernels.contains_key(&component.boot_id);
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

/// The resources that each kernel used as a whole. If several nodes share a kernel, it counts once.
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
    // `None` if the threads of one kernel are not visible, because the sum of the others would look like the total.
    used.cpu.kernel_threads = threads.filter(|_| capacity > 0.0);
    programs
}

/// Memory of the proxies and of the control plane under load: the median and the maximum of their
/// sums in the complete readings.
fn memory(idle: &Reading, during: &[&Reading]) -> (RssKib, RssKib) {
    let of = |which: fn((u64, u64)) -> u64| {
        let under: Vec<f64> = during.iter().map(|one| which(one.memory_kib()) as f64).collect();
        RssKib { idle: which(idle.memory_kib()), ..under_load(&under) }
    };
    (of(|(proxies, _)| proxies), of(|(_, control)| control))
}

#[cfg(test)]
mod tests;
