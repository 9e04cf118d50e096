//! What everything of a lab uses: CPU by whom, memory over time, context switches.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use leno_bpf::{PinRoot, RunTime};
use leno_local::status::Status;
use leno_measure::usage;

use crate::lab::{Lab, NEIGHBOUR, is_client, proxy_cgroup};
use crate::record::{ContextSwitches, CpuMs, RssKib};
use crate::scenario::Scenario;
use crate::statistics::median;

/// Time between two looks at memory: often enough for a peak of seconds, and below 0.1 % of a CPU.
const PERIOD: Duration = Duration::from_millis(250);
/// Looks at memory for each look at connections, which is dearer where there are many.
const LOOKS_PER_COUNT: u32 = 2;
/// The parent of every thread of the kernel's own.
const KTHREADD: &str = "2";

/// Where the parts of a running lab are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    proxies: Vec<PathBuf>,
    applications: Vec<PathBuf>,
    generator: Vec<PathBuf>,
    /// Of who floods another service, of that service, and of the proxies of both.
    neighbour: Vec<PathBuf>,
    agent: u32,
    control: Option<u32>,
    /// Under what names the capture keeps its kernel programs.
    captured: Vec<String>,
    /// A process in the namespace that the load comes from.
    client: Option<u32>,
}

/// The counters of all parts at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    cpu: CpuMs,
    proxy_user_ms: f64,
    switches: ContextSwitches,
    at: Instant,
}

/// What was used between two readings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    pub(crate) cpu: CpuMs,
    pub(crate) proxy_user_ms: f64,
    pub(crate) switches: ContextSwitches,
    pub(crate) wall: Duration,
    /// The processors on which `cpu.machine` was counted; none where they are those of the record.
    pub(crate) processors: Option<f64>,
}

impl Parts {
    pub(crate) fn of(lab: &Lab, scenario: &Scenario) -> Result<Self> {
        let status: Status = lab.status()?;
        let mut parts = Parts { agent: lab.agent(), ..Parts::default() };
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

    /// How many proxies run.
    pub(crate) fn proxies(&self) -> u32 {
        let runs =
            |group: &&PathBuf| usage::pids_of_cgroup(group).is_ok_and(|pids| !pids.is_empty());
        u32::try_from(self.proxies.iter().filter(runs).count()).unwrap_or(u32::MAX)
    }

    /// Resident memory of all proxies, and of the control plane.
    pub(crate) fn memory_kib(&self) -> (u64, u64) {
        let of = |group: &PathBuf| usage::of_cgroup(group).map_or(0, |usage| usage.rss_kib);
        let control = self.control.and_then(|pid| usage::of_process(pid).ok());
        (self.proxies.iter().map(of).sum(), control.map_or(0, |usage| usage.rss_kib))
    }

    /// What the kernel programs of the capture have run so far; nothing where it has none.
    pub(crate) fn kernel_programs(&self) -> RunTime {
        let found = PinRoot::find().and_then(|root| leno_bpf::run_time(&root, &self.captured));
        found.unwrap_or_default()
    }

    /// Connections that have left the client's namespace and are open.
    fn connections(&self) -> u64 {
        let table = |family: &str| {
            let path = self.client.map(|pid| format!("/proc/{pid}/net/{family}"));
            path.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default()
        };
        crossing(&[table("tcp"), table("tcp6")])
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
        let (machine, interrupts, steal) = machine()?;
        Ok(Reading {
            cpu: CpuMs {
                proxies: ms(proxies),
                application: ms(sum(&self.applications)?),
                generator: ms(sum(&self.generator)?),
                neighbour: ms(sum(&self.neighbour)?),
                agent: process(self.agent),
                control: self.control.map_or(0.0, process),
                kernel_threads: kernel_threads(),
                interrupts,
                machine,
                steal,
            },
            proxy_user_ms: proxies.user_us as f64 / 1000.0,
            switches: self.switches(),
            at: Instant::now(),
        })
    }

    fn switches(&self) -> ContextSwitches {
        let mut sum = ContextSwitches::default();
        let pids = self.proxies.iter().filter_map(|group| usage::pids_of_cgroup(group).ok());
        for pid in pids.flatten() {
            // A process or thread that ends meanwhile takes its counters with it.
            let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
            for thread in threads.flatten() {
                let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
                sum.voluntary += field(&status, "voluntary_ctxt_switches:");
                sum.involuntary += field(&status, "nonvoluntary_ctxt_switches:");
            }
        }
        sum
    }
}

impl Reading {
    /// What was used since this reading.
    pub(crate) fn since(&self, parts: &Parts) -> Result<Used> {
        let now = parts.read()?;
        let (new, old) = (now.cpu, self.cpu);
        let less = |new: f64, old: f64| (new - old).max(0.0);
        Ok(Used {
            processors: None,
            cpu: CpuMs {
                proxies: less(new.proxies, old.proxies),
                application: less(new.application, old.application),
                generator: less(new.generator, old.generator),
                neighbour: less(new.neighbour, old.neighbour),
                agent: less(new.agent, old.agent),
                control: less(new.control, old.control),
                kernel_threads: less(new.kernel_threads, old.kernel_threads),
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

/// Established connections to others in the tables of proc(5): the second and third field are the
/// addresses, the fourth is the state, 01 is established.
///
/// One end of a connection within the namespace has the other end beside it; where packets are
/// redirected, at one of its addresses alone.
fn crossing(tables: &[String]) -> u64 {
    // IPv4 within IPv6 is the same address.
    let plain = |end: &str| end.strip_prefix("0000000000000000FFFF0000").unwrap_or(end).to_owned();
    let ends: Vec<(String, String)> = tables
        .iter()
        .flat_map(|table| table.lines().skip(1))
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let (local, remote) = (fields.get(1)?, fields.get(2)?);
            (fields.get(3) == Some(&"01")).then(|| (plain(local), plain(remote)))
        })
        .collect();
    let locals: HashSet<&str> = ends.iter().map(|(local, _)| local.as_str()).collect();
    let remotes: HashSet<&str> = ends.iter().map(|(_, remote)| remote.as_str()).collect();
    let crosses = |(local, remote): &&(String, String)| {
        let address = remote.split(':').next().unwrap_or_default();
        // 127.0.0.0/8 and ::1, as the kernel prints them.
        let loopback = (address.len() == 8 && address.ends_with("7F"))
            || address == "00000000000000000000000001000000";
        !loopback && !locals.contains(remote.as_str()) && !remotes.contains(local.as_str())
    };
    ends.iter().filter(crosses).count() as u64
}

/// CPU time of the whole machine since boot, the part of it that interrupts took, and what was
/// stolen from it, in milliseconds (proc(5): user, nice, system, idle, iowait, irq, softirq, steal).
fn machine() -> Result<(f64, f64, f64)> {
    let stat = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    let first = stat.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = first.split_whitespace().skip(1).filter_map(|t| t.parse().ok()).collect();
    let [user, nice, system, _idle, _wait, irq, softirq, steal, ..] = ticks[..] else {
        return Err(anyhow!("/proc/stat begins with {first:?}"));
    };
    let ms = tick_ms();
    let interrupts = (irq + softirq) * ms;
    Ok(((user + nice + system) * ms + interrupts, interrupts, steal * ms))
}

/// CPU time of the kernel's own threads, in milliseconds.
fn kernel_threads() -> f64 {
    let Ok(processes) = fs::read_dir("/proc") else { return 0.0 };
    let mut ticks = 0;
    for process in processes.flatten() {
        let Ok(stat) = fs::read_to_string(process.path().join("stat")) else { continue };
        // The name, in parentheses, may hold anything; fields are counted after its end.
        let Some((_, rest)) = stat.rsplit_once(')') else { continue };
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        if fields.get(1) == Some(&KTHREADD) {
            let ticks_of = |nth: usize| fields.get(nth).and_then(|field| field.parse().ok());
            ticks += ticks_of(11).unwrap_or(0_u64) + ticks_of(12).unwrap_or(0_u64);
        }
    }
    ticks as f64 * tick_ms()
}

fn tick_ms() -> f64 {
    let hz = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten();
    1000.0 / hz.unwrap_or(100) as f64
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

/// Looks at memory and CPU until it is told to stop, and writes each look into a file.
pub(crate) struct Sampler {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<Result<Sampled>>,
}

/// What a sampler has seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sampled {
    /// Memory of the proxies under load; idle is not its to say.
    pub(crate) proxies: RssKib,
    /// Memory of the control plane under load.
    pub(crate) control: RssKib,
    /// The most connections between the client's side and the services.
    pub(crate) connections: u64,
}

impl Sampler {
    pub(crate) fn start(parts: &Parts, file: &Path) -> Result<Self> {
        let mut file =
            File::create(file).with_context(|| format!("cannot write {}", file.display()))?;
        writeln!(
            file,
            "elapsed_ms,proxies_rss_kib,control_rss_kib,proxies_cpu_ms,application_cpu_ms"
        )?;
        let (stop, stopped) = mpsc::channel();
        let parts = parts.clone();
        let thread = std::thread::spawn(move || {
            let begun = Instant::now();
            let (mut proxies, mut control) = (Vec::new(), Vec::new());
            let mut connections = 0;
            for look in 0_u32.. {
                // Not at the first: the load has not begun then.
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
        // A thread that has ended has a reason, which it gives.
        let _ = self.stop.send(());
        self.thread.join().map_err(|_| anyhow!("the sampler panicked"))?
    }
}

fn under_load(kib: &[f64]) -> RssKib {
    let peak = kib.iter().fold(0.0, |most, one| f64::max(most, *one));
    RssKib { idle: 0, load: median(kib) as u64, peak: peak as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(lines: &[(&str, &str, &str)]) -> u64 {
        let mut table = "  sl  local_address rem_address   st tx_queue rx_queue\n".to_owned();
        for (nth, (local, remote, state)) in lines.iter().enumerate() {
            table += &format!("{nth:4}: {local} {remote} {state} 00000000:00000000\n");
        }
        crossing(&[table])
    }

    #[test]
    fn connections_to_others_are_counted_and_those_to_itself_are_not() {
        let lines = [
            ("0300590A:9C40", "0400590A:1F90", "01"),
            ("0100007F:9C40", "0100007F:3A99", "01"),
            ("0300590A:9C42", "0400590A:1F90", "06"),
            ("00000000:3A99", "00000000:0000", "0A"),
        ];
        assert_eq!(counted(&lines), 1);
        let (mapped, six) = ("0000000000000000FFFF0000", "000000FD0000000000000000");
        let lines = [
            ("00000000000000000000000001000000:1", "00000000000000000000000001000000:2", "01"),
            (&format!("{mapped}0100007F:1"), &format!("{mapped}0100007F:2"), "01"),
            (&format!("{mapped}0300590A:1"), &format!("{mapped}0400590A:2"), "01"),
            (&format!("{six}01000000:1"), &format!("{six}02000000:2"), "01"),
        ];
        assert_eq!(counted(&lines), 2);
    }

    #[test]
    fn a_connection_that_is_redirected_to_the_proxy_stays_within() {
        let lines = [
            // The application thinks it has reached the service; the proxy knows it by its address.
            ("0300590A:9C40", "0100600A:1F90", "01"),
            ("0100007F:3A99", "0300590A:9C40", "01"),
            // The proxy's own connection.
            ("0300590A:9C50", "0400590A:1F90", "01"),
        ];
        assert_eq!(counted(&lines), 1);
    }
}
