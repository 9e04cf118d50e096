//! Calculates results from the readings in a file.

use std::fmt::Write as _;

use leno_measure::usage::Cpu;
use serde::Deserialize;

use super::*;
use crate::golden;
use crate::kernel_counters::MachineTime;
use crate::record::ContextSwitches;

/// One second of a kernel's clock, in microseconds.
const SECOND: u64 = 1_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UsageCase {
    case: String,
    readings: Vec<Vec<NodeReading>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeReading {
    at: u64,
    node: Option<String>,
    boot: Option<String>,
    #[serde(default)]
    of: Vec<(Role, String, String, u64, u64)>,
    /// User and system time of each component in microseconds; by default calculated from the milliseconds in `of`.
    cpu: Option<(u64, u64)>,
    #[serde(default)]
    is_partial: bool,
    #[serde(default)]
    unseen_threads: bool,
    #[serde(default)]
    is_silent: bool,
}

impl NodeReading {
    fn reading(&self) -> Reading {
        let node = self.node.as_deref().unwrap_or("n1");
        let mut counters = NodeCounters {
            boot_id: self.boot.clone().unwrap_or_else(|| "k".into()),
            at_us: self.at * SECOND,
            whole: (!self.is_partial).then(|| self.kernel()),
            ..NodeCounters::default()
        };
        let mut read = Vec::new();
        for (role, name, id, ms, kib) in self.of.iter().cloned() {
            let (user_us, system_us) = self.cpu.unwrap_or((ms * 250, ms * 750));
            let process = Process {
                pid: 7,
                began_us: if id.starts_with("new") { 15 * SECOND } else { 0 },
                cpu: Cpu { user_us, system_us },
                switches: ContextSwitches { voluntary: ms, involuntary: 1 },
                rss_kib: kib,
                program_bytes: 1000 + kib,
            };
            counters.containers.insert(id.clone(), vec![process]);
            read.push(Component { role, name, node: node.into(), id });
        }
        let mut reading = Reading::default();
        reading.add(node, counters, &read);
        reading
    }

    fn kernel(&self) -> KernelCounters {
        let busy_ms = (self.at * 1500) as f64;
        let (interrupts_ms, steal_ms, processors) = (1.0, busy_ms / 10.0, 2);
        KernelCounters {
            machine: MachineTime { busy_ms, interrupts_ms, steal_ms, processors },
            kernel_threads_ms: (!self.unseen_threads).then_some(self.at as f64),
            programs: [(1, (self.at, self.at * 1_000_000)), (self.at as u32, (5, 1))].into(),
        }
    }
}

#[test]
fn usage_is_that_of_the_golden_file() {
    let cases: Vec<UsageCase> =
        serde_saphyr::from_str(include_str!("../../../data/usage.test.yaml")).unwrap();
    let mut text = String::new();
    for UsageCase { case, readings } in cases {
        let sample = |nodes: &Vec<NodeReading>| {
            let mut reading = Reading::default();
            nodes.iter().for_each(|node| reading.extend(node.reading()));
            let at = nodes.first().map_or(20, |node| node.at);
            let is_complete = !nodes.iter().any(|node| node.is_silent);
            Sample { elapsed: Duration::from_secs(at - 10), reading, is_complete }
        };
        let samples: Vec<Sample> = readings.iter().map(sample).collect();
        let [first, during @ .., after] = &samples[..] else { panic!("{case}: two readings") };
        let first = &first.reading;
        let readings = Readings { idle: first, before: first, during, after };
        let mut record = Record::default();
        let broken = readings.fill(&mut record, &Report::default());
        let used = between(&samples.iter().map(|one| &one.reading).collect::<Vec<_>>()).used;
        let serde_json::Value::Object(cpu) = serde_json::to_value(used.cpu).unwrap() else {
            panic!("an object")
        };
        let cpu = cpu.into_iter().filter(|(_, ms)| ms.as_f64() != Some(0.0));
        let cpu: Vec<String> = cpu.map(|(role, ms)| format!("{role} {ms}")).collect();
        let ResourceUse { proxy_user_ms, switches, wall, processors, elsewhere_ms, .. } = used;
        let (reading, programs) = (&after.reading, record.kernel_programs);
        writeln!(text, "# {case}\nCPU in ms: {}", cpu.join(", ")).unwrap();
        writeln!(text, "of it user {proxy_user_ms}, elsewhere {elsewhere_ms}").unwrap();
        writeln!(text, "{switches:?}, {programs:?}").unwrap();
        writeln!(text, "{wall:?} of {processors:?} processors").unwrap();
        writeln!(text, "proxies {:?} and control {:?}", record.rss_kib, record.control_rss_kib)
            .unwrap();
        let (proxies, cpus) = (reading.proxies(), reading.proxies_cpus_since(first));
        writeln!(text, "{proxies} proxies of {:?} bytes: {cpus} CPUs", reading.program_bytes())
            .unwrap();
        writeln!(text, "broken: {broken:?}\n{}", readings.table()).unwrap();
    }
    golden::check("usage.golden.txt", &text);
}
