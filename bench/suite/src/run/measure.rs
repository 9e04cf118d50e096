//! One measurement: a lab, proxies, load, the resources they use, and the record.

use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, SocketAddrV4};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use leno_bpf::Counting;
use leno_measure::load::{Bucket, MAX_BUSY, Pace, Plan, Report};

use super::{Case, Options, prober};
use crate::distribution;
use crate::generator::{self, Generator};
use crate::interrupt::Interrupt;
use crate::lab::{Lab, Running};
use crate::mesh::Sidecars;
use crate::meter::{LabComponents, ResourceUse, Sampler};
use crate::real;
use crate::record::{KernelPrograms, Mark, MarkKind, RAW, Record, RssKib};
use crate::scenario::{self, Disturbance, Neighbour, Scenario};

/// The share of failed requests above which a run is marked, and a rate is not sustained.
pub(crate) const MAX_ERRORS: f64 = 0.01;
/// The share of the machine used by other programs above which a run is marked.
const MAX_OTHERS: f64 = 0.10;
/// The share of stolen time above which a run is marked.
const MAX_STEAL: f64 = 0.02;
/// The generator counts as the bottleneck if its own delay is more than this share of the latency,
/// both at the 99th percentile.
const MAX_LAG: f64 = 0.1;
/// How long the neighbour floods before the measurement starts.
pub(crate) const FLOOD_LEAD: Duration = Duration::from_millis(300);
/// How long the flood continues after the measured time if it is not stopped. Normally the bench
/// stops it as soon as the generator has reported.
const FLOOD_MOST: Duration = Duration::from_secs(600);
/// How long proxies are left alone before their memory counts as idle. By then, proxies that
/// release the memory of their start have done so.
pub(crate) const SETTLE: Duration = Duration::from_secs(3);
/// The pause between two probes of a real application that does not answer yet.
const LOOK: Duration = Duration::from_millis(500);
/// The heading of the file of samples.
pub(crate) const USAGE: &str =
    "elapsed_ms,proxies_rss_kib,control_rss_kib,proxies_cpu_ms,application_cpu_ms";
/// Steps of the search for the highest rate. Each halves the interval; five of them leave 3 % of
/// the maximum.
const SEARCH_STEPS: u32 = 5;

/// A lab with everything that a mesh needs. The sidecars are dropped before the namespaces.
struct LabStage {
    sidecars: Option<Sidecars>,
    lab: Lab,
    addresses: Vec<SocketAddrV4>,
    parts: LabComponents,
}

/// Why the generator cannot make this load. This is known before the lab exists.
pub(super) fn unable(options: &Options, case: &Case<'_>) -> Result<Option<&'static str>> {
    let nowhere = [SocketAddrV4::new([127, 0, 0, 1].into(), 0)];
    let rate = case.step.map(|rate| rate * options.scale);
    let plans = plans(&nowhere, case.scenario, options, rate)?;
    Ok(case.generator.unable(&plans[0]))
}

pub(super) fn measure(
    options: &Options,
    case: &Case<'_>,
    mut record: Record,
    interrupt: &Interrupt,
) -> Result<Record> {
    let mut stage = LabStage::set(options, case, interrupt)?;
    record.capture = stage.capture()?;
    record.proxies = stage.parts.proxies();
    let program = case.found.program.as_deref();
    record.binary_bytes = program.and_then(|program| Some(fs::metadata(program).ok()?.len()));
    if record.proxies > 0 {
        interrupt.sleep(SETTLE)?;
    }
    let (idle, control_idle) = stage.parts.memory_kib();
    if let Some(folder) = &options.application {
        record.application_digests = real::digests(folder, case.scenario)?;
        stage.answers(case.scenario, interrupt)?;
    }
    let plans = self::plans(
        &stage.addresses,
        case.scenario,
        options,
        case.step.map(|rate| rate * options.scale),
    )?;
    if record.proxies > 0 {
        record.start_up_ms =
            prober::start_up(&stage.lab, stage.sidecars.as_mut(), &plans[0], interrupt)?;
        stage.parts = LabComponents::of(&stage.lab, case.scenario)?;
    }
    let plans = match &case.scenario.pace {
        scenario::Pace::SearchP99Ms(bound) if case.generator.keeps_rates(&plans[0]) => {
            let rate = stage.search(case, options, Duration::from_millis(*bound), interrupt)?;
            self::plans(&stage.addresses, case.scenario, options, Some(rate))?
        }
        _ => plans,
    };
    if !options.warm_up.is_zero() {
        let warm: Vec<Plan> =
            plans.iter().map(|plan| Plan { duration: options.warm_up, ..plan.clone() }).collect();
        case.generator.run(&stage.lab, &warm, interrupt)?;
    }
    let usage = options.out.join(RAW).join(format!("{}.usage.csv", record.name()));
    // If the kernel cannot time its programs, their run time counts as 0.
    let counting = Counting::start().ok();
    let programs = stage.parts.kernel_programs();
    let before = stage.parts.read()?;
    let sampler = Sampler::start(&stage.parts, &usage)?;
    let meters = |parts: &LabComponents| -> Result<_> {
        let used = before.since(parts)?;
        Ok((used, parts.kernel_programs(), sampler.stop()?))
    };
    let load = stage.load(options, (case, &plans), meters, interrupt);
    drop(counting);
    let ((report, (used, programs_after, sampled)), beside) = load?;
    record.revisions = beside.revisions;
    let pushes = matches!(case.scenario.disturbance, Some(Disturbance::Push { .. }));
    record.revisions_arrived = (pushes && beside.revisions > 0).then(|| stage.lab.arrived());
    record.rss_kib = RssKib { idle, ..sampled.proxies };
    record.control_rss_kib = RssKib { idle: control_idle, ..sampled.control };
    record.crossing_connections = sampled.connections;
    record.kernel_programs = KernelPrograms {
        runs: programs_after.runs.saturating_sub(programs.runs),
        ms: programs_after.took.saturating_sub(programs.took).as_secs_f64() * 1000.0,
    };
    if record.proxies == 0 {
        record.control_rss_kib = RssKib::default();
    }
    fill(&mut record, &report, &used);
    record.marks = marks(&record, &report, &used);
    record.marks.extend(Search::missed(case.scenario, &record));
    beside.flooded.iter().for_each(|flooded| flooded.keep(&mut record));
    let raw = options.out.join(RAW).join(format!("{}.latency.csv", record.name()));
    fs::write(&raw, table(&report.buckets))
        .with_context(|| format!("cannot write {}", raw.display()))?;
    stage.strike()?;
    Ok(record)
}

impl LabStage {
    fn set(options: &Options, case: &Case<'_>, interrupt: &Interrupt) -> Result<Self> {
        let name = format!("bench-{}", std::process::id());
        let what = (case.scenario, options.application.as_deref());
        let lab = Lab::start(&name, what, case.mesh.own(), interrupt)?;
        let addresses = match case.scenario.churns() && case.mesh.own().is_some() {
            true => vec![lab.churning()?],
            false => lab.addresses(case.scenario)?,
        };
        let sidecars = match (&case.found.program, case.mesh.own()) {
            (Some(program), None) => {
                let place = (&lab, case.scenario);
                Some(Sidecars::start(case.mesh, program, place, &addresses, interrupt)?)
            }
            _ => None,
        };
        let parts = LabComponents::of(&lab, case.scenario)?;
        Ok(LabStage { sidecars, lab, addresses, parts })
    }

    /// Waits until the real application answers.
    fn answers(&self, scenario: &Scenario, interrupt: &Interrupt) -> Result<()> {
        let questions = real::questions(&self.addresses, scenario);
        let begin = Instant::now();
        loop {
            let report = Generator::Leno.run(&self.lab, &questions, interrupt)?;
            let Some(why) = real::unanswered(&report) else { return Ok(()) };
            if begin.elapsed() > real::ANSWERED {
                let (limit, log) = (real::ANSWERED.as_secs(), self.lab.log());
                bail!("the application does not answer: waited for {limit} s: {why}\n{log}");
            }
            interrupt.sleep(LOOK)?;
        }
    }

    fn capture(&self) -> Result<String> {
        if let Some(sidecars) = &self.sidecars {
            return Ok(sidecars.capture());
        }
        let status = self.lab.status()?;
        Ok(status.instances.iter().find_map(|one| one.capture.clone()).unwrap_or_default())
    }

    /// Runs the measured load, with the flood and the disturbance of the scenario. `meters` are
    /// read as soon as the generator has reported, so that they do not include the end of the
    /// flood.
    fn load<T: Send>(
        &mut self,
        options: &Options,
        (case, plans): (&Case<'_>, &[Plan]),
        meters: impl FnOnce(&LabComponents) -> Result<T> + Send,
        interrupt: &Interrupt,
    ) -> Result<((Report, T), Beside)> {
        let flood = self.flood(case.scenario, options)?;
        let LabStage { sidecars, lab, parts, .. } = self;
        let (lab, parts, generator) = (&*lab, &*parts, case.generator);
        let load = || -> Result<((Report, T), Option<Flooded>)> {
            let mut flood = flood.map(|plan| generator::flood(lab, &plan)).transpose()?;
            if flood.is_some() {
                interrupt.sleep(FLOOD_LEAD)?;
            }
            let report = generator.run(lab, plans, interrupt);
            let lasted = flood.as_mut().map_or(Ok(false), Running::is_running);
            let read = meters(parts);
            let report = (report?, read?);
            let Some(flood) = flood else { return Ok((report, None)) };
            // The measurement is complete: an unknown result of the flood only leads to a mark.
            let ended = generator::end_flood(flood, interrupt);
            interrupt.check()?;
            let known = |error: anyhow::Error| format!("{error:#}");
            let requests_per_s = ended.map(|report| report.requests_per_s).map_err(known);
            Ok((report, Some(Flooded { requests_per_s, lasted: lasted.map_err(known) })))
        };
        let Some(disturbance) = case.scenario.disturbance else {
            let (report, flooded) = load()?;
            return Ok((report, Beside { flooded, revisions: 0 }));
        };
        // Processes end with the thread that started them. So this thread restarts the proxies, and
        // a second one runs the load.
        std::thread::scope(|scope| {
            let running = scope.spawn(load);
            let disturbed = match disturbance.period() {
                None => {
                    std::thread::sleep(options.duration / 2);
                    restart(lab, sidecars.as_mut()).map(|()| 0)
                }
                Some(period) => {
                    let ended = || running.is_finished();
                    revise((lab, sidecars.as_ref()), case, period, ended)
                }
            };
            let report = running.join().unwrap_or_else(|_| bail!("the load panicked"));
            let revisions = disturbed?;
            let (report, flooded) = report?;
            Ok((report, Beside { flooded, revisions }))
        })
    }

    /// The neighbour's load, which starts before the measurement and ends after it.
    fn flood(&self, scenario: &Scenario, options: &Options) -> Result<Option<Plan>> {
        let Some(neighbour) = scenario.neighbour else { return Ok(None) };
        let duration = options.duration + FLOOD_MOST;
        flood(neighbour, scenario, &self.addresses, duration).map(Some)
    }

    /// The highest rate that keeps the 99th percentile under a bound: a bisection between 0 and the
    /// rate of a closed loop.
    fn search(
        &self,
        case: &Case<'_>,
        options: &Options,
        bound: Duration,
        interrupt: &Interrupt,
    ) -> Result<f64> {
        let short = Search::step(options.duration);
        let try_with = |rate: Option<f64>| -> Result<Report> {
            let plans = plans(&self.addresses, case.scenario, options, rate)?;
            let plans: Vec<Plan> =
                plans.into_iter().map(|plan| Plan { duration: short, ..plan }).collect();
            case.generator.run(&self.lab, &plans, interrupt)
        };
        let mut search = Search::below(try_with(None)?.requests_per_s, bound);
        while let Some(rate) = search.next() {
            search.tried(rate, &try_with(Some(rate))?);
        }
        search.found()
    }

    /// Removes the lab and its proxies.
    fn strike(self) -> Result<()> {
        drop(self.sidecars);
        self.lab.stop()
    }
}

/// The load on each service; `rate` replaces the scenario's own.
pub(crate) fn plans<A: Copy + Into<SocketAddr>>(
    addresses: &[A],
    scenario: &Scenario,
    options: &Options,
    rate: Option<f64>,
) -> Result<Vec<Plan>> {
    let pace = match (rate.or(scenario.rate_per_service(options.scale)), &scenario.pace) {
        (Some(rate), _) => Pace::Rate(rate),
        (None, scenario::Pace::ThinkMs(ms)) => Pace::Think(Duration::from_millis(*ms)),
        (None, _) => Pace::Saturate,
    };
    if addresses.is_empty() {
        bail!("there is no service");
    }
    let published = rate.map(|rate| rate / options.scale);
    let plan = |address: &A| Plan {
        protocol: scenario.protocol,
        streams: scenario.streams,
        pace,
        connections: scenario.connections_at(published),
        new_connection: scenario.new_connection,
        primed: true,
        body_size: scenario.request_bytes,
        paths: scenario.paths_in_turn().to_vec(),
        ..Plan::new(
            format!("http://{}{}", (*address).into(), scenario.path()),
            1.0,
            options.duration,
        )
    };
    Ok(addresses.iter().take(scenario.loaded() as usize).map(plan).collect())
}

/// The neighbour's load on a service for `duration`.
pub(crate) fn flood(
    neighbour: Neighbour,
    scenario: &Scenario,
    addresses: &[impl Copy + Into<SocketAddr>],
    duration: Duration,
) -> Result<Plan> {
    let address = addresses.get(neighbour.service as usize).context("no such service")?;
    Ok(Plan {
        protocol: scenario.protocol,
        pace: Pace::Saturate,
        connections: neighbour.connections,
        ..Plan::new(format!("http://{}/", (*address).into()), 1.0, duration)
    })
}

/// The search for the highest rate that keeps the 99th percentile under a bound, by bisection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    bound: Duration,
    low: f64,
    high: f64,
    left: u32,
}

impl Search {
    /// How long each step is measured.
    pub(crate) fn step(duration: Duration) -> Duration {
        (duration / SEARCH_STEPS).max(Duration::from_secs(1))
    }

    /// Starts between 0 and `most`, the rate of a closed loop.
    pub(crate) fn below(most: f64, bound: Duration) -> Self {
        Self { bound, low: 0.0, high: most, left: SEARCH_STEPS }
    }

    /// The rate to try next; `None` if the result is precise enough.
    pub(crate) fn next(&self) -> Option<f64> {
        (self.left > 0).then(|| f64::midpoint(self.low, self.high))
    }

    /// Records the result of a rate.
    pub(crate) fn tried(&mut self, rate: f64, report: &Report) {
        let p99 = distribution::latency(&report.buckets).p99;
        let good = u128::from(p99) < self.bound.as_micros() && !failing(report);
        if good {
            self.low = rate
        } else {
            self.high = rate
        }
        self.left -= 1;
    }

    /// The mark for a rate that the search found but that did not keep the bound in the longer
    /// measurement.
    pub(crate) fn missed(scenario: &Scenario, record: &Record) -> Option<Mark> {
        let scenario::Pace::SearchP99Ms(bound) = scenario.pace else { return None };
        // A generator that cannot keep a rate has not searched for one.
        let rate = record.rate_per_s?;
        let p99 = record.latency_us.p99 as f64 / 1000.0;
        (p99 >= bound as f64).then(|| Mark {
            kind: MarkKind::BoundMissed,
            why: format!(
                "at {rate:.0}/s the 99th percentile was {p99:.1} ms, and {bound} ms is the bound: a longer \
                 --duration tries each rate for longer"
            ),
        })
    }

    /// The highest rate that kept the bound.
    pub(crate) fn found(&self) -> Result<f64> {
        if self.low == 0.0 {
            let (high, bound) = (self.high, self.bound);
            bail!("no rate above {high:.0}/s kept the 99th percentile under {bound:?}");
        }
        Ok(self.low)
    }
}

/// Events during the measured load.
#[derive(Clone, Debug, Default)]
struct Beside {
    flooded: Option<Flooded>,
    revisions: u64,
}

/// The results of the neighbour's flood, or why they are unknown.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Flooded {
    /// The rate of answered requests.
    pub(crate) requests_per_s: Result<f64, String>,
    /// Whether the flood was still running when the measurement ended.
    pub(crate) lasted: Result<bool, String>,
}

impl Flooded {
    /// Adds the results to a record.
    pub(crate) fn keep(&self, record: &mut Record) {
        record.neighbour_requests_per_s = self.requests_per_s();
        record.marks.extend(self.marks());
    }

    /// The rate of answered requests; `None` if it is unknown.
    fn requests_per_s(&self) -> Option<f64> {
        self.requests_per_s.as_ref().ok().copied()
    }

    /// The marks for a flood that ended before the measurement, may have ended, or has no figures.
    fn marks(&self) -> Vec<Mark> {
        let mut marks = Vec::new();
        let mut mark = |kind, why| marks.push(Mark { kind, why });
        match &self.lasted {
            Ok(true) => {}
            Ok(false) => {
                let why = "the neighbour's flood had ended when the measurement did";
                mark(MarkKind::FloodEnded, why.to_owned());
            }
            Err(why) => mark(
                MarkKind::FloodEnded,
                format!("whether the neighbour's flood lasted is not known: {why}"),
            ),
        }
        if let Err(why) = &self.requests_per_s {
            mark(MarkKind::FloodUnreported, format!("what the neighbour was answered: {why}"));
        }
        marks
    }
}

/// Kills every proxy; it is started again.
fn restart(lab: &Lab, sidecars: Option<&mut Sidecars>) -> Result<()> {
    match sidecars {
        Some(sidecars) => sidecars.restart_all(),
        None => prober::end_all_own(lab),
    }
}

/// Gives a mesh one revision of its configuration after the other until `ended`, and returns how
/// many. Without a mesh there is nothing to configure.
fn revise(
    (lab, sidecars): (&Lab, Option<&Sidecars>),
    case: &Case<'_>,
    period: Duration,
    ended: impl Fn() -> bool,
) -> Result<u64> {
    let begun = Instant::now();
    for revision in 1.. {
        let due = begun + period * revision;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if ended() {
            return Ok(u64::from(revision) - 1);
        }
        let what = (case.scenario, u64::from(revision));
        match sidecars {
            Some(sidecars) => sidecars.revise(case.mesh, what)?,
            None if case.mesh.own().is_some() => lab.edit(what.0, what.1)?,
            None => return Ok(0),
        }
    }
    Ok(0)
}

/// The failed requests by kind, with counts.
pub(crate) fn kinds(report: &Report) -> String {
    let kinds = report.errors_by_kind.iter().map(|(kind, count)| format!("{count} {kind}"));
    kinds.collect::<Vec<_>>().join(", ")
}

pub(crate) fn failing(report: &Report) -> bool {
    report.requests == 0 || report.errors as f64 > report.requests as f64 * MAX_ERRORS
}

pub(crate) fn fill(record: &mut Record, report: &Report, used: &ResourceUse) {
    record.rate_per_s = report.rate_per_s;
    record.connections = report.connections;
    record.duration_s = report.duration_s;
    record.requests = report.requests;
    record.errors = report.errors;
    record.errors_by_kind.clone_from(&report.errors_by_kind);
    record.requests_per_s = report.requests_per_s;
    record.bytes_per_s = report.body_bytes as f64 / report.duration_s.max(f64::MIN_POSITIVE);
    record.connections_opened = report.connections_opened;
    record.latency_us = distribution::latency(&report.buckets);
    record.spectrum = distribution::spectrum(&report.buckets);
    let each = |ms: f64| ms * 1000.0 / (report.requests.max(1)) as f64;
    record.cpu_user_us_per_request = each(used.proxy_user_ms);
    record.cpu_system_us_per_request = each((used.cpu.proxies - used.proxy_user_ms).max(0.0));
    record.cpu_ms = used.cpu;
    record.context_switches = used.switches;
}

/// The marks for these figures.
pub(crate) fn marks(record: &Record, report: &Report, used: &ResourceUse) -> Vec<Mark> {
    let mut marks = Vec::new();
    let mut mark = |kind, why| marks.push(Mark { kind, why });
    let answered = report.requests.saturating_sub(report.errors);
    if answered == 0 {
        mark(MarkKind::DeadTarget, format!("nothing was answered: {}", kinds(report)));
    } else if failing(report) {
        let share = report.errors as f64 / report.requests as f64 * 100.0;
        mark(MarkKind::Errors, format!("{share:.1} % of the requests failed: {}", kinds(report)));
    }
    let (lag, latency) = (report.lag_us.p99 as f64, record.latency_us.p99 as f64);
    if report.rate_per_s.is_some() && report.generator_busy > MAX_BUSY {
        let busy = report.generator_busy * 100.0;
        mark(
            MarkKind::GeneratorLimited,
            format!("a thread of load was busy {busy:.0} % of the time"),
        );
    } else if report.generator_limited && (lag > latency * MAX_LAG || lag == 0.0) {
        let why = format!("requests left {lag:.0} us late at the 99th percentile");
        mark(MarkKind::GeneratorLimited, why);
    }
    let cpus = used.processors.unwrap_or(record.machine.cpus.max(1) as f64);
    let all_ms = used.wall.as_secs_f64() * 1000.0 * cpus;
    let cpu = &used.cpu;
    let ours = cpu.proxies
        + cpu.application
        + cpu.generator
        + cpu.neighbour
        + cpu.agent
        + cpu.control
        + cpu.kernel_threads.unwrap_or_default()
        + cpu.interrupts
        - used.elsewhere_ms;
    let (others, steal) = ((cpu.machine - ours).max(0.0) / all_ms, cpu.steal / all_ms);
    if others > MAX_OTHERS {
        let share = others * 100.0;
        let who = match cpu.kernel_threads {
            Some(_) => "others",
            None => "others, or threads of the kernel, which are not seen here,",
        };
        mark(MarkKind::BusyMachine, format!("{who} used {share:.0} % of the machine"));
    }
    if steal > MAX_STEAL {
        let share = steal * 100.0;
        mark(MarkKind::BusyMachine, format!("the hypervisor took {share:.0} % of the machine"));
    }
    marks
}

pub(crate) fn table(buckets: &[Bucket]) -> String {
    let mut text = "value_us,count\n".to_owned();
    for bucket in buckets {
        let _ = writeln!(text, "{},{}", bucket.us, bucket.count);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::machine::Machine;
    use crate::record::{CpuMs, Latency};

    fn report() -> Report {
        Report { requests: 1000, rate_per_s: Some(100.0), duration_s: 10.0, ..Report::default() }
    }

    fn record() -> Record {
        Record {
            machine: Machine { cpus: 2, ..Machine::default() },
            latency_us: Latency { p99: 2000, ..Latency::default() },
            ..Record::default()
        }
    }

    fn kinds(report: &Report, used: &ResourceUse) -> Vec<MarkKind> {
        marks(&record(), report, used).into_iter().map(|mark| mark.kind).collect()
    }

    #[test]
    fn a_good_run_has_no_mark() {
        assert_eq!(kinds(&report(), &ResourceUse::default()), []);
    }

    #[test]
    fn failures_mark_a_run_by_how_many_there_are() {
        let mut report = report();
        report.errors = 10;
        assert_eq!(kinds(&report, &ResourceUse::default()), [], "1 % is not over 1 %");
        report.errors = 11;
        report.errors_by_kind = BTreeMap::from([("reset".into(), 11)]);
        assert_eq!(kinds(&report, &ResourceUse::default()), [MarkKind::Errors]);
        report.errors = 1000;
        assert_eq!(kinds(&report, &ResourceUse::default()), [MarkKind::DeadTarget]);
    }

    #[test]
    fn a_generator_that_is_the_bottleneck_says_so() {
        let mut late = report();
        late.generator_limited = true;
        late.lag_us.p99 = 600;
        assert_eq!(kinds(&late, &ResourceUse::default()), [MarkKind::GeneratorLimited]);
        late.lag_us.p99 = 100;
        assert_eq!(kinds(&late, &ResourceUse::default()), [], "a twentieth of the latency");
        let mut busy = report();
        busy.generator_busy = 0.97;
        assert_eq!(kinds(&busy, &ResourceUse::default()), [MarkKind::GeneratorLimited]);
    }

    /// Runs a search in which `capacity` requests a second are answered in time.
    fn search(capacity: f64) -> Result<f64> {
        let mut search = Search::below(1000.0, Duration::from_millis(10));
        while let Some(rate) = search.next() {
            let us = if rate <= capacity { 2000 } else { 20_000 };
            let buckets = vec![Bucket { us, count: 1000 }];
            search.tried(rate, &Report { buckets, ..report() });
        }
        search.found()
    }

    #[test]
    fn the_highest_rate_that_holds_a_bound_is_found_to_3_percent_of_the_most() {
        for capacity in [40.0, 333.0, 700.0, 1000.0] {
            let found = search(capacity).unwrap();
            assert!(
                found <= capacity && capacity - found <= 1000.0 / 32.0,
                "{found} of {capacity}"
            );
        }
        let none = search(0.0).unwrap_err().to_string();
        assert!(none.contains("no rate above 31/s kept the 99th percentile under 10ms"), "{none}");
    }

    #[test]
    fn a_rate_that_has_not_kept_its_bound_says_so() {
        let saturation = scenario::find("saturation").unwrap();
        let measured = |p99, rate_per_s| {
            let latency_us = Latency { p99, ..Latency::default() };
            let record = Record { latency_us, rate_per_s, ..record() };
            Search::missed(&saturation, &record)
        };
        assert_eq!((measured(19_999, Some(1.0)), measured(90_000, None)), (None, None));
        let mark = measured(57_090, Some(20_801.0)).unwrap();
        assert!(mark.kind == MarkKind::BoundMissed && mark.kind.invalidates(), "{mark:?}");
        assert!(mark.why.starts_with("at 20801/s the 99th percentile was 57.1 ms"), "{mark:?}");
        let other = scenario::find("http-1k").unwrap();
        let slow = Record { rate_per_s: Some(1.0), ..record() };
        assert_eq!(Search::missed(&other, &slow), None);
    }

    #[test]
    fn a_flood_that_ended_before_the_measurement_says_so() {
        let flooded = Flooded { requests_per_s: Ok(1.0), lasted: Ok(true) };
        assert_eq!((flooded.marks(), flooded.requests_per_s()), (vec![], Some(1.0)));
        let marks = Flooded { lasted: Ok(false), ..flooded.clone() }.marks();
        assert!(marks[0].kind == MarkKind::FloodEnded && marks[0].kind.invalidates(), "{marks:?}");
        let unknown = Flooded { lasted: Err("it is away".into()), ..flooded.clone() }.marks();
        assert!(unknown[0].kind == MarkKind::FloodEnded, "{unknown:?}");
        assert!(unknown[0].why.ends_with("not known: it is away"), "{unknown:?}");
        let unreported = Flooded { requests_per_s: Err("it is away".into()), ..flooded };
        let marks = unreported.marks();
        assert_eq!((unreported.requests_per_s(), marks.len()), (None, 1));
        assert!(!marks[0].kind.invalidates(), "what is measured was flooded: {marks:?}");
    }

    #[test]
    fn a_busy_machine_marks_a_run() {
        let cpu = CpuMs { machine: 6000.0, proxies: 2000.0, ..CpuMs::default() };
        let used = ResourceUse { cpu, wall: Duration::from_secs(10), ..ResourceUse::default() };
        assert_eq!(kinds(&report(), &used), [MarkKind::BusyMachine]);
        let cpu = CpuMs { machine: 6000.0, proxies: 5000.0, ..CpuMs::default() };
        let used = ResourceUse { cpu, wall: Duration::from_secs(10), ..ResourceUse::default() };
        assert_eq!(kinds(&report(), &used), []);
        // CPU that proxies used on an uncounted machine is not part of the counted machine's.
        let elsewhere = ResourceUse { elsewhere_ms: 3000.0, ..used };
        assert_eq!(kinds(&report(), &elsewhere), [MarkKind::BusyMachine]);
        let why = |kernel_threads| {
            let cpu = CpuMs { kernel_threads, ..cpu };
            marks(&record(), &report(), &ResourceUse { cpu, ..elsewhere }).remove(0).why
        };
        assert_eq!(why(Some(600.0)), "others used 17 % of the machine");
        let unseen =
            "others, or threads of the kernel, which are not seen here, used 20 % of the machine";
        assert_eq!(why(None), unseen);
        let cpu = CpuMs { steal: 500.0, ..CpuMs::default() };
        let used = ResourceUse { cpu, wall: Duration::from_secs(10), ..ResourceUse::default() };
        assert_eq!(kinds(&report(), &used), [MarkKind::BusyMachine]);
    }
}
