//! Rounds of measurements: every subject in turn under the same load, with one record each.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use leno_testkit::usage::{self, Cpu};

use crate::load::{Target, connections_of};
use crate::proxy::Contender;
use crate::record::{self, Record};
use crate::report;
use crate::scenario::{Scenario, Work};

/// Load before each measurement, so that pools are full and code is warm.
const WARM_UP: Duration = Duration::from_secs(1);
/// The share of the fixed rate at which new connections are made: one costs as much as several
/// requests.
const NEW_CONNECTION_RATE: f64 = 0.25;

/// How to measure.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) scenarios: Vec<Scenario>,
    pub(crate) rounds: u32,
    pub(crate) duration: Duration,
    /// Connections of HTTP/1.1 and TCP round trips.
    pub(crate) connections: usize,
    /// Requests a second in the open loop.
    pub(crate) rate: f64,
    /// Where the records go.
    pub(crate) out: PathBuf,
}

impl Options {
    /// The kinds of work that the scenarios need, without duplicates.
    pub(crate) fn works(&self) -> Vec<Work> {
        let mut works: Vec<Work> = self.scenarios.iter().map(|scenario| scenario.work()).collect();
        works.sort_unstable();
        works.dedup();
        works
    }
}

/// The subject of a measurement: the processes whose CPU counts, and the target of their load.
#[derive(Debug)]
pub(crate) struct Subject {
    /// The bench: `http` or `mesh`.
    pub(crate) bench: &'static str,
    pub(crate) contender: Contender,
    pub(crate) work: Work,
    pub(crate) version: String,
    pub(crate) target: Target,
    /// Empty if there is no proxy.
    pub(crate) pids: Vec<u32>,
}

/// Runs all rounds, appends their records to `records`, writes the file, and prints the tables.
pub(crate) fn rounds(
    subjects: &[Subject],
    options: &Options,
    mut records: Vec<Record>,
) -> Result<()> {
    for round in 0..options.rounds {
        for scenario in &options.scenarios {
            let able: Vec<_> = subjects.iter().filter(|s| s.work == scenario.work()).collect();
            for turn in 0..able.len() {
                let subject = able[(turn + round as usize) % able.len()];
                for record in subject.measure(*scenario, options)? {
                    let record = Record { round, ..record };
                    eprintln!("{}", report::line(&record));
                    records.push(record);
                    record::write(&options.out, &records)?;
                }
            }
        }
    }
    record::write(&options.out, &records)?;
    print!("{}", report::tables(&records));
    println!("\nrecords: {}", options.out.display());
    Ok(())
}

/// Makes a record for each scenario of this work that states why the contender was not measured.
pub(crate) fn left_out(
    bench: &str,
    (contender, work): (Contender, Work),
    options: &Options,
    why: &anyhow::Error,
) -> Vec<Record> {
    eprintln!("{contender}, {work:?}: left out: {why:#}");
    let scenarios = options.scenarios.iter().filter(|scenario| scenario.work() == work);
    scenarios
        .map(|scenario| Record {
            bench: bench.into(),
            scenario: scenario.to_string(),
            pace: "saturation".into(),
            proxy: contender.to_string(),
            left_out: Some(format!("{why:#}")),
            ..Record::default()
        })
        .collect()
}

impl Subject {
    fn measure(&self, scenario: Scenario, options: &Options) -> Result<Vec<Record>> {
        let mut records = vec![self.saturate(scenario, options)?];
        if scenario.is_paced() {
            records.push(self.pace(scenario, options)?);
        }
        Ok(records)
    }

    /// Measures a closed loop.
    fn saturate(&self, scenario: Scenario, options: &Options) -> Result<Record> {
        self.target.saturate(scenario, options.connections, WARM_UP)?;
        let meter = Meter::start(self)?;
        let count = self.target.saturate(scenario, options.connections, options.duration)?;
        let record = meter.stop(count.requests)?;
        Ok(Record {
            scenario: scenario.to_string(),
            pace: "saturation".into(),
            connections: connections_of(scenario, options.connections),
            errors: count.errors,
            requests_per_s: count.requests_per_s,
            ..record
        })
    }

    /// Measures an open loop, at the same rate for all subjects.
    fn pace(&self, scenario: Scenario, options: &Options) -> Result<Record> {
        let new = scenario == Scenario::NewConnection;
        let rate = if new { options.rate * NEW_CONNECTION_RATE } else { options.rate };
        self.target.pace(scenario, options.connections, (rate, WARM_UP))?;
        let meter = Meter::start(self)?;
        let load = self.target.pace(scenario, options.connections, (rate, options.duration))?;
        let record = meter.stop(load.requests)?;
        Ok(Record {
            scenario: scenario.to_string(),
            pace: "rate".into(),
            connections: connections_of(scenario, options.connections),
            errors: load.errors,
            requests_per_s: load.requests_per_s,
            latency_us: Some(load.latency_us),
            generator_limited: load.generator_limited,
            ..record
        })
    }

    fn cpu(&self) -> Result<Cpu> {
        let mut sum = Cpu::default();
        for pid in &self.pids {
            sum += usage::cpu_of_process(*pid)?;
        }
        Ok(sum)
    }
}

/// Measures the CPU time of a subject between two moments.
struct Meter<'a> {
    subject: &'a Subject,
    cpu: Cpu,
    start: Instant,
}

impl<'a> Meter<'a> {
    fn start(subject: &'a Subject) -> Result<Self> {
        Ok(Meter { subject, cpu: subject.cpu()?, start: Instant::now() })
    }

    fn stop(self, requests: u64) -> Result<Record> {
        let wall = self.start.elapsed();
        let cpu = self.subject.cpu()? - self.cpu;
        if requests == 0 {
            bail!("{} answered no request", self.subject.contender);
        }
        let each = |us: u64| us as f64 / requests as f64;
        Ok(Record {
            bench: self.subject.bench.into(),
            proxy: self.subject.contender.to_string(),
            version: self.subject.version.clone(),
            duration_s: wall.as_secs_f64(),
            requests,
            cpu_user_us_per_request: each(cpu.user_us),
            cpu_system_us_per_request: each(cpu.system_us),
            cpu_share: cpu.total_us() as f64 / wall.as_micros() as f64,
            ..Record::default()
        })
    }
}
