//! One HTTP/1.1 hop in plaintext: throughput at saturation, and CPU a request at a fixed rate.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::ValueEnum;
use leno_testkit::load::{self, Plan};
use leno_testkit::usage::Cpu;

use crate::backend::Backend;
use crate::process::Place;
use crate::proxy::{Contender, Proxy};
use crate::record::{self, Record};
use crate::{report, wrk};

/// Load before each measurement, so that pools are full and code is warm.
const WARM_UP: Duration = Duration::from_millis(500);
/// Connections of the load at a fixed rate with new connections: most are idle.
const NEW_CONNECTION_RATE: f64 = 0.25;

/// What is asked of the proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// Connections are kept, 1 KiB responses.
    #[value(name = "keepalive-1k")]
    Keepalive1k,
    /// Connections are kept, 10 KiB responses.
    #[value(name = "keepalive-10k")]
    Keepalive10k,
    /// A new connection for each request, 1 KiB responses.
    NewConnection,
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Scenario::Keepalive1k => "keepalive-1k",
            Scenario::Keepalive10k => "keepalive-10k",
            Scenario::NewConnection => "new-connection",
        })
    }
}

impl Scenario {
    fn path(self) -> &'static str {
        if self == Scenario::Keepalive10k { "/10k" } else { "/1k" }
    }
}

/// How to run.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) proxies: Vec<Contender>,
    pub(crate) scenarios: Vec<Scenario>,
    pub(crate) rounds: u32,
    pub(crate) duration: Duration,
    pub(crate) connections: usize,
    pub(crate) rate: f64,
    pub(crate) pin: bool,
    pub(crate) out: PathBuf,
}

/// Runs all rounds, writes the records, prints the tables.
pub(crate) fn run(options: &Options) -> Result<()> {
    let (proxy_place, rest) =
        if options.pin { (Place::Proxy, Place::Rest) } else { (Place::Anywhere, Place::Anywhere) };
    // This thread makes load and starts wrk; both inherit its place.
    rest.apply(0)?;
    let backend = Backend::start(rest)?;
    let mut proxies = Vec::new();
    for contender in &options.proxies {
        match Proxy::start(*contender, backend.address, proxy_place) {
            Ok(proxy) => proxies.push(proxy),
            Err(error) => eprintln!("{contender}: left out: {error:#}"),
        }
    }
    if proxies.is_empty() {
        bail!("no proxy could be started");
    }
    let mut records = Vec::new();
    for round in 0..options.rounds {
        for scenario in &options.scenarios {
            for turn in 0..proxies.len() {
                let proxy = &proxies[(turn + round as usize) % proxies.len()];
                for record in [saturate(proxy, *scenario, options), pace(proxy, *scenario, options)]
                {
                    let record = Record { round, ..record? };
                    eprintln!("{}", report::line(&record));
                    records.push(record);
                    record::write(&options.out, &records)?;
                }
            }
        }
    }
    print!("{}", report::tables(&records));
    println!("records: {}", options.out.display());
    Ok(())
}

/// A closed loop of wrk.
fn saturate(proxy: &Proxy, scenario: Scenario, options: &Options) -> Result<Record> {
    let url = format!("http://{}{}", proxy.address, scenario.path());
    let new = scenario == Scenario::NewConnection;
    wrk::run(&url, options.connections, WARM_UP, new)?;
    let meter = Meter::start(proxy)?;
    let count = wrk::run(&url, options.connections, options.duration, new)?;
    let mut record = meter.stop(count.requests)?;
    record.scenario = scenario.to_string();
    record.pace = "saturation".into();
    record.connections = options.connections;
    record.errors = count.errors;
    record.requests_per_s = count.requests_per_s;
    Ok(record)
}

/// An open loop at the same rate for all.
fn pace(proxy: &Proxy, scenario: Scenario, options: &Options) -> Result<Record> {
    let new = scenario == Scenario::NewConnection;
    let rate = if new { options.rate * NEW_CONNECTION_RATE } else { options.rate };
    let url = format!("http://{}{}", proxy.address, scenario.path());
    let mut plan = Plan::new(url, rate, WARM_UP);
    plan.connections = options.connections;
    plan.new_connection = new;
    load::run(&plan)?;
    plan.duration = options.duration;
    let meter = Meter::start(proxy)?;
    let load = load::run(&plan)?;
    let mut record = meter.stop(load.requests)?;
    record.scenario = scenario.to_string();
    record.pace = "rate".into();
    record.connections = options.connections;
    record.errors = load.errors;
    record.requests_per_s = load.requests_per_s;
    record.latency_us = Some(load.latency_us);
    record.generator_limited = load.generator_limited;
    Ok(record)
}

/// The CPU of a proxy between two moments.
struct Meter<'a> {
    proxy: &'a Proxy,
    cpu: Cpu,
    start: Instant,
}

impl<'a> Meter<'a> {
    fn start(proxy: &'a Proxy) -> Result<Self> {
        Ok(Meter { proxy, cpu: cpu(proxy)?, start: Instant::now() })
    }

    fn stop(self, requests: u64) -> Result<Record> {
        let wall = self.start.elapsed();
        let cpu = cpu(self.proxy)? - self.cpu;
        if requests == 0 {
            bail!("{} answered no request", self.proxy.contender);
        }
        let each = |us: u64| us as f64 / requests as f64;
        Ok(Record {
            bench: "http1".into(),
            proxy: self.proxy.contender.to_string(),
            version: self.proxy.version.clone(),
            duration_s: wall.as_secs_f64(),
            requests,
            cpu_user_us_per_request: each(cpu.user_us),
            cpu_system_us_per_request: each(cpu.system_us),
            cpu_share: cpu.total_us() as f64 / wall.as_micros() as f64,
            ..Record::default()
        })
    }
}

fn cpu(proxy: &Proxy) -> Result<Cpu> {
    Ok(match &proxy.process {
        Some(process) => process.usage()?.cpu,
        None => Cpu::default(),
    })
}
