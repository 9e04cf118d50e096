//! Measures the resources of a lab: CPU by component, memory over time, context switches.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use leno_bpf::{PinRoot, RunTime};
use leno_local::status::Status;
use leno_measure::usage;

use super::namespaces::{Lab, is_client, proxy_cgroup};
use crate::kernel_counters::{self, Machine};
use crate::measurement::figures::{ResourceUse, USAGE, under_load};
use crate::record::{ContextSwitches, CpuMs, RssKib};
use crate::scenario::{NEIGHBOUR, Scenario};

/// Time between two samples of memory: short enough for peaks of a few seconds, at less than 0.1 %
/// of a CPU.
const PERIOD: Duration = Duration::from_millis(250);
/// Connections are counted once in this many samples, because counting is expensive if there are
/// many.
const LOOKS_PER_COUNT: u32 = 2;

/// The components of a running lab: their cgroups and processes.
#[derive(Clone, Debug, Default)]
pub(crate) struct LabComponents {
    proxies: Vec<PathBuf>,
    applications: Vec<PathBuf>,
    generator: Vec<PathBuf>,
    /// The client that floods another service, that service, and the proxies of both.
    neighbour: Vec<PathBuf>,
    agent: u32,
    control: Option<u32>,
    /// The names under which the capture pins its kernel programs.
    captured: Vec<String>,
    /// A process in the network namespace of the load's client.
    client: Option<u32>,
}

/// The counters of all components at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    cpu: CpuMs,
    proxy_user_ms: f64,
    switches: ContextSwitches,
    at: Instant,
}

impl LabComponents {
    pub(crate) fn of(lab: &Lab, scenario: &Scenario) -> Result<Self> {
        let status: Status = lab.status()?;
        let mut parts = LabComponents { agent: lab.agent(), ..LabComponents::default() };
        parts.control = status.controller.and_then(|pid| u32::try_from(pid).ok());
        let flooded = scenario.neighbour.map(|neighbour| scenario.service(neighbour.service));
        for instance in &status.instances {
            let application = instance.surroundings.cgroup.clone();
            if instance.workload == NEIGHBOUR || Some(&instance.workload) == flooded.as_ref() {
                parts.neighbour.extend([application, proxy_cgroup(instance)?]);
                continue;
            }
            parts.captured.push(instance.surroundings.netns.clone());
            match is_client(instance) {
                true => {
                    let pids = usage::pids_of_cgroup(&application).unwrap_or_default();
                    parts.client = pids.first().copied();
                    parts.generator.push(application);
                }
                false => parts.applications.push(application),
            }
            parts.proxies.push(proxy_cgroup(instance)?);
        }
        Ok(parts)
    }

    /// The number of running proxies.
    pub(crate) fn proxies(&self) -> u32 {
        let runs =
            |group: &&PathBuf| usage::pids_of_cgroup(group).is_ok_and(|pids| !pids.is_empty());
        u32::try_from(self.proxies.iter().filter(runs).count()).unwrap_or(u32::MAX)
    }

    /// The processes of all proxies.
    pub(crate) fn pids_of_proxies(&self) -> Vec<u32> {
        self.proxies
            .iter()
            .filter_map(|group| usage::pids_of_cgroup(group).ok())
            .flatten()
            .collect()
    }

    /// Resident memory of all proxies together, and of the control plane.
    pub(crate) fn memory_kib(&self) -> (u64, u64) {
        let of = |group: &PathBuf| usage::of_cgroup(group).map_or(0, |usage| usage.rss_kib);
        let control = self.control.and_then(|pid| usage::of_process(pid).ok());
        (self.proxies.iter().map(of).sum(), control.map_or(0, |usage| usage.rss_kib))
    }

    /// The run time of the capture's kernel programs so far; zero if it has none.
    pub(crate) fn kernel_programs(&self) -> RunTime {
        let found = PinRoot::find().and_then(|root| leno_bpf::run_time(&root, &self.captured));
        found.unwrap_or_default()
    }

    /// Open connections that leave the client's namespace.
    fn connections(&self) -> u64 {
        self.client.map_or(0, kernel_counters::crossing_of)
    }

    pub(crate) fn read(&self) -> Result<Reading> {
        let sum = |groups: &[PathBuf]| -> Result<usage::Cpu> {
            let mut sum = usage::Cpu::default();
            for group in groups {
                sum += usage::cpu_of_cgroup(group)?;
            }
            Ok(sum)
        };
        let ms = |cpu: usage::Cpu| cpu.total_us() as f64 / 1000.0;
        let proxies = sum(&self.proxies)?;
        let process = |pid: u32| usage::cpu_of_process(pid).map_or(0.0, ms);
        let machine = Machine::read()?;
        Ok(Reading {
            cpu: CpuMs {
                proxies: ms(proxies),
                application: ms(sum(&self.applications)?),
                generator: ms(sum(&self.generator)?),
                neighbour: ms(sum(&self.neighbour)?),
                agent: process(self.agent),
                control: self.control.map_or(0.0, process),
                kernel_threads: kernel_counters::kernel_threads_ms(),
                interrupts: machine.interrupts_ms,
                machine: machine.busy_ms,
                steal: machine.steal_ms,
            },
            proxy_user_ms: proxies.user_us as f64 / 1000.0,
            switches: self.switches(),
            at: Instant::now(),
        })
    }

    fn switches(&self) -> ContextSwitches {
        let mut sum = ContextSwitches::default();
        for switches in self.pids_of_proxies().into_iter().map(kernel_counters::switches) {
            sum.voluntary += switches.voluntary;
            sum.involuntary += switches.involuntary;
        }
        sum
    }
}

impl Reading {
    /// The usage since this reading.
    pub(crate) fn since(&self, parts: &LabComponents) -> Result<ResourceUse> {
        let now = parts.read()?;
        let (new, old) = (now.cpu, self.cpu);
        let less = |new: f64, old: f64| (new - old).max(0.0);
        Ok(ResourceUse {
            processors: None,
            elsewhere_ms: 0.0,
            cpu: CpuMs {
                proxies: less(new.proxies, old.proxies),
                application: less(new.application, old.application),
                generator: less(new.generator, old.generator),
                neighbour: less(new.neighbour, old.neighbour),
                agent: less(new.agent, old.agent),
                control: less(new.control, old.control),
                kernel_threads: new
                    .kernel_threads
                    .zip(old.kernel_threads)
                    .map(|(new, old)| less(new, old)),
                interrupts: less(new.interrupts, old.interrupts),
                machine: less(new.machine, old.machine),
                steal: less(new.steal, old.steal),
            },
            proxy_user_ms: less(now.proxy_user_ms, self.proxy_user_ms),
            switches: ContextSwitches {
                voluntary: now.switches.voluntary.saturating_sub(self.switches.voluntary),
                involuntary: now.switches.involuntary.saturating_sub(self.switches.involuntary),
            },
            wall: now.at - self.at,
        })
    }
}

/// Samples memory and CPU until it is stopped, and writes each sample into a file.
pub(crate) struct Sampler {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<Result<Sampled>>,
}

/// The results of a sampler.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sampled {
    /// Memory of the proxies under load; `idle` stays 0.
    pub(crate) proxies: RssKib,
    /// Memory of the control plane under load.
    pub(crate) control: RssKib,
    /// The largest number of connections between the client's side and the services.
    pub(crate) connections: u64,
}

impl Sampler {
    pub(crate) fn start(parts: &LabComponents, file: &Path) -> Result<Self> {
        let mut file =
            File::create(file).with_context(|| format!("cannot write {}", file.display()))?;
        writeln!(file, "{USAGE}")?;
        let (stop, stopped) = mpsc::channel();
        let parts = parts.clone();
        let thread = std::thread::spawn(move || {
            let begun = Instant::now();
            let (mut proxies, mut control) = (Vec::new(), Vec::new());
            let mut connections = 0;
            for look in 0_u32.. {
                // Not in the first sample, which precedes the load.
                if look % LOOKS_PER_COUNT == 1 {
                    connections = parts.connections().max(connections);
                }
                let (proxy, plane) = parts.memory_kib();
                let cpu = parts.read()?.cpu;
                writeln!(
                    file,
                    "{},{proxy},{plane},{:.1},{:.1}",
                    begun.elapsed().as_millis(),
                    cpu.proxies,
                    cpu.application
                )?;
                proxies.push(proxy as f64);
                control.push(plane as f64);
                if stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            let (proxies, control) = (under_load(&proxies), under_load(&control));
            Ok(Sampled { proxies, control, connections })
        });
        Ok(Sampler { stop, thread })
    }

    pub(crate) fn stop(self) -> Result<Sampled> {
        // Sending fails if the thread has ended; `join` then returns its error.
        let _ = self.stop.send(());
        self.thread.join().map_err(|_| anyhow!("the sampler panicked"))?
    }
}
