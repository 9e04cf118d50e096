//! Reads the counters of a lab: once before the measured load, four times a second during it, and
//! once after it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use leno_bpf::{PinRoot, RunTimeCounting};
use leno_local::status::{MeshStatus, ProxyProcess};
use leno_measure::usage::{Memory, memory_of_process, pids_of_cgroup};

use super::namespaces::{Lab, is_client, proxy_cgroup};
use crate::kernel_counters::{self, KernelCounters, NodeCounters, Process};
use crate::measurement::usage::{Component, Reading, Role, Sample};
use crate::record::{IdleMemory, Mark, MarkKind};
use crate::scenario::{NEIGHBOUR, Scenario};

/// Time between two samples: short enough for peaks of a few seconds, at less than 0.1 % of a CPU.
const PERIOD: Duration = Duration::from_millis(250);
/// Connections are counted once in this many samples, because counting many of them is expensive.
const SAMPLES_PER_COUNT: usize = 2;

/// The components of a running lab: their control groups and processes.
#[derive(Clone, Debug, Default)]
pub(crate) struct LabComponents {
    /// Components that each have a control group; the component's ID is the directory of the group.
    groups: Vec<Component>,
    /// Proxies in node mode, which several workloads share; their ID is also a control group.
    shared: Vec<Component>,
    /// Components that consist of one process, with the process ID.
    processes: Vec<(Component, u32)>,
    /// The names under which the capture of measured workloads pins its eBPF programs.
    captured: Vec<String>,
    /// A process in the network namespace of the load's client.
    client: Option<u32>,
}

impl LabComponents {
    pub(crate) fn of(lab: &Lab, scenario: &Scenario) -> Result<Self> {
        let status: MeshStatus = lab.status()?;
        let component = |role, name: &str, id: &Path| Component {
            role,
            name: name.to_owned(),
            node: String::new(),
            id: id.display().to_string(),
        };
        let mut parts = LabComponents::default();
        let control = status.controller.and_then(|pid| u32::try_from(pid).ok());
        for (role, name, pid) in
            [(Role::Agent, "leno", Some(lab.agent())), (Role::Control, "leno-controller", control)]
        {
            let process = pid.map(|pid| (component(role, name, Path::new(name)), pid));
            parts.processes.extend(process);
        }
        let flooded: Vec<String> =
            scenario.neighbours.iter().map(|one| scenario.service(one.service)).collect();
        // If several clients flood, the mesh decides which proxy does how much of the work for the floods. So all
        // proxies are measured then.
        let of_proxies = if flooded.len() > 1 { Role::Proxy } else { Role::Neighbour };
        let mut shared: BTreeMap<&Path, (Role, &str)> = BTreeMap::new();
        for instance in &status.instances {
            let application = &instance.surroundings.cgroup;
            let name = &instance.workload;
            let roles = if name.starts_with(NEIGHBOUR) || flooded.contains(name) {
                [Role::Neighbour, of_proxies]
            } else {
                parts.captured.push(instance.surroundings.netns.clone());
                [if is_client(instance) { Role::Generator } else { Role::Application }, Role::Proxy]
            };
            if is_client(instance) {
                parts.client = pids_of_cgroup(application).unwrap_or_default().first().copied();
            }
            for (role, group) in roles.into_iter().zip([application, &proxy_cgroup(instance)?]) {
                parts.groups.push(component(role, name, group));
            }
            if let Some(ProxyProcess { group: Some(group), cgroup, .. }) = &instance.proxy {
                // A process that takes over has a control group beside that of its predecessor. So their common parent
                // is measured.
                let all = cgroup.parent().filter(|_| scenario.upgrades());
                let of = shared.entry(all.unwrap_or(cgroup)).or_insert((roles[1], group));
                of.0 = of.0.min(roles[1]);
            }
        }
        parts.shared =
            shared.into_iter().map(|(at, (role, name))| component(role, name, at)).collect();
        Ok(parts)
    }

    /// Returns a mark if the floods pass through the same proxy process as the measured load.
    pub(crate) fn mark(&self) -> Option<Mark> {
        let floods = self.groups.iter().any(|one| one.role == Role::Neighbour);
        let is_shared = floods && self.shared.len() == 1;
        let why = "one process carries the flood as well".to_owned();
        is_shared.then_some(Mark { kind: MarkKind::SharedProxies, why })
    }

    /// Reads the memory of the proxies, including the brokers of node mode, and that of the process that supervises
    /// them.
    pub(crate) fn memory(&self) -> IdleMemory {
        let of = |pids: &[u32]| {
            let mut sum = Memory::default();
            // A process that ends meanwhile has no memory any more.
            pids.iter().filter_map(|pid| memory_of_process(*pid).ok()).for_each(|one| sum += one);
            sum
        };
        let agents = self.processes.iter().filter(|(one, _)| one.role == Role::Agent);
        IdleMemory {
            proxies: of(&self.pids_of_proxies()),
            agent: of(&agents.map(|(_, pid)| *pid).collect::<Vec<_>>()),
        }
    }

    /// Returns the processes of each proxy that runs, among the components.
    fn proxies(all: &[Component]) -> impl Iterator<Item = Vec<u32>> {
        let proxies = all.iter().filter(|one| one.role == Role::Proxy);
        let pids = proxies.filter_map(|one| pids_of_cgroup(Path::new(&one.id)).ok());
        pids.filter(|pids| !pids.is_empty())
    }

    /// Returns how many workloads have a proxy: a process of their own, or in node mode a broker.
    pub(crate) fn running_proxies(&self) -> u32 {
        u32::try_from(Self::proxies(&self.groups).count()).unwrap_or(u32::MAX)
    }

    pub(crate) fn pids_of_proxies(&self) -> Vec<u32> {
        Self::proxies(&self.groups).chain(Self::proxies(&self.shared)).flatten().collect()
    }

    /// Reads the counters of all components, and adds them to `counters`.
    pub(crate) fn read(&self, mut counters: NodeCounters) -> Result<Reading> {
        for one in self.groups.iter().chain(&self.shared) {
            let group = Process::of_cgroup(Path::new(&one.id))?;
            counters.containers.insert(one.id.clone(), vec![group]);
        }
        for (one, pid) in &self.processes {
            counters.containers.insert(one.id.clone(), Process::of(*pid).into_iter().collect());
        }
        let all =
            self.groups.iter().chain(&self.shared).chain(self.processes.iter().map(|(one, _)| one));
        let mut reading = Reading::default();
        reading.add("", counters, &all.cloned().collect::<Vec<_>>());
        Ok(reading)
    }

    /// Reads the counters of all components and of the kernel. Of the kernel's eBPF programs, only those of the capture
    /// are counted.
    fn read_whole(&self) -> Result<Reading> {
        let programs = PinRoot::find().and_then(|root| leno_bpf::run_time(&root, &self.captured));
        let programs = kernel_counters::runs_and_nanos(programs.unwrap_or_default());
        let whole = KernelCounters { programs: [(0, programs)].into(), ..KernelCounters::read()? };
        self.read(NodeCounters { whole: Some(whole), ..NodeCounters::now()? })
    }
}

/// A thread that reads the counters until it is stopped.
pub(crate) struct Sampler {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<Result<LoadSamples>>,
}

pub(crate) struct LoadSamples {
    pub(crate) before: Reading,
    pub(crate) during: Vec<Sample>,
    pub(crate) after: Sample,
}

impl Sampler {
    /// Reads all counters once, and from then on only those of the components.
    pub(crate) fn start(parts: &LabComponents) -> Result<Self> {
        // If the kernel cannot measure the run time of its eBPF programs, it counts as 0.
        let counting = RunTimeCounting::start().ok();
        let (before, begun) = (parts.read_whole()?, Instant::now());
        let (stop, stopped) = mpsc::channel();
        let parts = parts.clone();
        let thread = std::thread::spawn(move || {
            let mut during = Vec::new();
            let sample = |reading| Sample { elapsed: begun.elapsed(), reading, is_complete: true };
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                let counts = during.len() % SAMPLES_PER_COUNT == 0;
                let client = parts.client.filter(|_| counts);
                let connections = client.map(kernel_counters::crossing_of);
                let counters = NodeCounters { connections, ..NodeCounters::now()? };
                during.push(sample(parts.read(counters)?));
            }
            let after = sample(parts.read_whole()?);
            drop(counting);
            Ok(LoadSamples { before, during, after })
        });
        Ok(Sampler { stop, thread })
    }

    /// Stops, and reads all counters once more.
    pub(crate) fn stop(self) -> Result<LoadSamples> {
        // Sending fails if the thread has ended; `join` then returns its error.
        let _ = self.stop.send(());
        self.thread.join().map_err(|_| anyhow!("the sampler panicked"))?
    }
}
