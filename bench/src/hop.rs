//! One hop in plaintext: throughput at saturation, and CPU a request at a fixed rate.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use leno_testkit::load::Plan;
use leno_testkit::usage::Cpu;

use crate::backend::Backends;
use crate::load::{Count, h2load, tcp, wrk};
use crate::process::Place;
use crate::proxy::{Contender, Proxy};
use crate::record::{self, Record};
use crate::report;
use crate::scenario::{Scenario, Work, not_spoken};

/// Load before each measurement, so that pools are full and code is warm.
const WARM_UP: Duration = Duration::from_secs(1);
/// Connections of the load at a fixed rate with new connections: most are idle.
const NEW_CONNECTION_RATE: f64 = 0.25;
/// Connections of HTTP/2, and streams on each: what a busy sidecar has towards few others.
const H2_CONNECTIONS: usize = 4;
const H2_STREAMS: usize = 10;
/// Connections of large bodies and bulk: enough to keep a worker busy, few enough that each moves.
const BULK_CONNECTIONS: usize = 4;

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
    // This thread makes load and starts the generators; all inherit its place.
    rest.apply(0)?;
    let mut works: Vec<Work> = options.scenarios.iter().map(|scenario| scenario.work()).collect();
    works.sort_unstable();
    works.dedup();
    let backends = Backends::start(&works, rest)?;
    let mut records = Vec::new();
    let mut proxies = Vec::new();
    for work in works {
        for contender in &options.proxies {
            let address = backends.address(work)?;
            let started = match not_spoken(*contender, work) {
                Some(why) => Err(anyhow::anyhow!(why)),
                None => Proxy::start(*contender, work, address, proxy_place),
            };
            match started {
                Ok(proxy) => proxies.push(proxy),
                Err(error) => {
                    let scenarios = options.scenarios.iter().filter(|s| s.work() == work);
                    records.extend(scenarios.map(|s| left_out(*contender, *s, &error)));
                    eprintln!("{contender}, {work:?}: left out: {error:#}");
                }
            }
        }
    }
    for round in 0..options.rounds {
        for scenario in &options.scenarios {
            let able: Vec<_> = proxies.iter().filter(|p| p.work == scenario.work()).collect();
            for turn in 0..able.len() {
                let proxy = able[(turn + round as usize) % able.len()];
                for record in measure(proxy, *scenario, options, &backends)? {
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

/// That this one is missing, and why.
fn left_out(contender: Contender, scenario: Scenario, error: &anyhow::Error) -> Record {
    Record {
        bench: "http".into(),
        scenario: scenario.to_string(),
        pace: "saturation".into(),
        proxy: contender.to_string(),
        left_out: Some(format!("{error:#}")),
        ..Record::default()
    }
}

fn measure(
    proxy: &Proxy,
    scenario: Scenario,
    options: &Options,
    backends: &Backends,
) -> Result<Vec<Record>> {
    let mut records = vec![saturate(proxy, scenario, options, backends)?];
    if scenario.is_paced() {
        records.push(pace(proxy, scenario, options)?);
    }
    Ok(records)
}

/// A closed loop.
fn saturate(
    proxy: &Proxy,
    scenario: Scenario,
    options: &Options,
    backends: &Backends,
) -> Result<Record> {
    let url = format!("http://{}{}", proxy.address, scenario.path());
    let connections = match scenario {
        Scenario::H2 | Scenario::GrpcUnary => H2_CONNECTIONS,
        Scenario::Download1m | Scenario::Upload1m | Scenario::TcpBulk => BULK_CONNECTIONS,
        _ => options.connections,
    };
    let load = |duration| -> Result<Count> {
        match scenario {
            Scenario::NewConnection => wrk::run(&url, connections, duration, wrk::Ask::Close),
            Scenario::Upload1m => {
                wrk::run(&url, connections, duration, wrk::Ask::Script(&backends.upload()?))
            }
            Scenario::H2 => h2load::run(&url, (connections, H2_STREAMS), duration, None),
            Scenario::GrpcUnary => {
                let message = backends.message()?;
                h2load::run(&url, (connections, H2_STREAMS), duration, Some(&message))
            }
            Scenario::TcpRoundTrip => tcp::round_trips(proxy.address, connections, duration),
            Scenario::TcpBulk => tcp::bulk(proxy.address, connections, duration),
            _ => wrk::run(&url, connections, duration, wrk::Ask::Keep),
        }
    };
    load(WARM_UP)?;
    let meter = Meter::start(proxy)?;
    let count = load(options.duration)?;
    let mut record = meter.stop(count.requests)?;
    record.scenario = scenario.to_string();
    record.pace = "saturation".into();
    record.connections = connections;
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
    leno_testkit::load::run(&plan)?;
    plan.duration = options.duration;
    let meter = Meter::start(proxy)?;
    let load = leno_testkit::load::run(&plan)?;
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
            bench: "http".into(),
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
