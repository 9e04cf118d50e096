//! One measurement: a lab, proxies, load, the resources they use, and the record.

use std::fs;
use std::net::SocketAddrV4;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use leno_measure::load::{Plan, Report};

use super::case::Case;
use super::meter::{LabComponents, LoadSamples, Sampler};
use super::namespaces::Lab;
use super::pinning::Pinning;
use super::sidecars::Sidecars;
use super::start_up;
use crate::generator::name::Generator;
use crate::interrupt::Interrupt;
use crate::kernel_counters::NodeCounters;
use crate::measurement::figures::{SETTLE, table};
use crate::measurement::flood::{FLOOD_LEAD, FLOOD_MOST, FloodResult};
use crate::measurement::options::Options;
use crate::measurement::plans::{flood, lasting, load_plans};
use crate::measurement::records::write_raw;
use crate::measurement::search::RateSearch;
use crate::measurement::usage::Readings;
use crate::process::Running;
use crate::record::{Record, RssKib};
use crate::scenario::{self, Disturbance, NEIGHBOUR, Scenario};
use crate::{generator, real_application};

/// The pause between two probes of a real application that does not answer yet.
const LOOK: Duration = Duration::from_millis(500);
/// A lab with everything that a mesh needs. The sidecars are dropped before the namespaces.
struct LabEnvironment {
    sidecars: Option<Sidecars>,
    lab: Lab,
    addresses: Vec<SocketAddrV4>,
    parts: LabComponents,
}

/// Why the generator cannot make this load. This is known before the lab exists.
pub(super) fn unable(options: &Options, case: &Case<'_>) -> Result<Option<&'static str>> {
    let nowhere = [SocketAddrV4::new([127, 0, 0, 1].into(), 0)];
    let rate = case.step.map(|rate| rate * options.scale);
    let plans = load_plans(&nowhere, case.scenario, options, rate)?;
    Ok(case.generator.unable(&plans[0]))
}

pub(super) fn measure(
    options: &Options,
    case: &Case<'_>,
    mut record: Record,
    interrupt: &Interrupt,
) -> Result<Record> {
    let mut environment = LabEnvironment::set(options, case, interrupt)?;
    record.capture = environment.capture()?;
    record.proxies = environment.parts.running_proxies();
    let program = case.found.program.as_deref();
    record.binary_bytes = program.and_then(|program| Some(fs::metadata(program).ok()?.len()));
    if record.proxies > 0 {
        interrupt.sleep(SETTLE)?;
    }
    let idle = environment.parts.read(NodeCounters::now()?)?;
    if let Some(folder) = &options.application {
        record.application_digests = real_application::digests(folder, case.scenario)?;
        environment.answers(case.scenario, interrupt)?;
    }
    let rate = case.step.map(|rate| rate * options.scale);
    let plans = load_plans(&environment.addresses, case.scenario, options, rate)?;
    if record.proxies > 0 {
        record.start_up_ms = start_up::start_up(
            &environment.lab,
            environment.sidecars.as_mut(),
            &plans[0],
            interrupt,
        )?;
        environment.parts = LabComponents::of(&environment.lab, case.scenario)?;
    }
    if options.pinned {
        environment.pin()?;
    }
    let plans = match &case.scenario.pace {
        scenario::Pace::SearchP99Ms(bound) if case.generator.keeps_rates(&plans[0]) => {
            let rate =
                environment.search(case, options, Duration::from_millis(*bound), interrupt)?;
            load_plans(&environment.addresses, case.scenario, options, Some(rate))?
        }
        _ => plans,
    };
    environment.warm_up(case, &plans, options.warm_up, interrupt)?;
    let sampler = Sampler::start(&environment.parts)?;
    let load = environment.load(options, (case, &plans), || sampler.stop(), interrupt);
    let ((report, samples), beside) = load?;
    record.revisions = beside.revisions;
    let pushes = matches!(case.scenario.disturbance, Some(Disturbance::Push { .. }));
    record.revisions_arrived = (pushes && beside.revisions > 0).then(|| environment.lab.arrived());
    let LoadSamples { before, during, after } = &samples;
    let readings = Readings { idle: &idle, before, during, after };
    // Proxies of the lab that end are started again in the same control group.
    let _ended = readings.fill(&mut record, &report);
    if record.proxies == 0 {
        record.control_rss_kib = RssKib::default();
    }
    record.marks.extend(RateSearch::missed(case.scenario, &record));
    beside.flooded.iter().for_each(|flooded| flooded.keep(&mut record));
    write_raw(&options.out, &record, "usage", &readings.table())?;
    write_raw(&options.out, &record, "latency", &table(&report.buckets))?;
    environment.remove()?;
    Ok(record)
}

impl LabEnvironment {
    /// Gives the proxies CPUs of their own.
    fn pin(&self) -> Result<()> {
        self.parts.pids_of_proxies().into_iter().try_for_each(|pid| Pinning::Proxies.apply_to(pid))
    }

    fn set(options: &Options, case: &Case<'_>, interrupt: &Interrupt) -> Result<Self> {
        let name = format!("bench-{}", std::process::id());
        let what = (case.scenario, options.application.as_deref());
        let own = (case.mesh.own(), case.mesh.observed());
        let lab = Lab::start(&name, what, own, interrupt)?;
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
        Ok(LabEnvironment { sidecars, lab, addresses, parts })
    }

    fn warm_up(
        &self,
        case: &Case<'_>,
        plans: &[Plan],
        duration: Duration,
        interrupt: &Interrupt,
    ) -> Result<()> {
        if !duration.is_zero() {
            case.generator.run(&self.client(), &lasting(plans, duration), interrupt)?;
        }
        Ok(())
    }

    /// Runs generators as the client.
    fn client(&self) -> impl Fn(&Path) -> Result<Command> + Sync {
        |program| self.lab.as_generator(program)
    }

    /// Waits until the real application answers.
    fn answers(&self, scenario: &Scenario, interrupt: &Interrupt) -> Result<()> {
        let questions = real_application::questions(&self.addresses, scenario);
        let begin = Instant::now();
        loop {
            let report = Generator::Leno.run(&self.client(), &questions, interrupt)?;
            let Some(why) = real_application::unanswered(&report) else { return Ok(()) };
            if begin.elapsed() > real_application::ANSWERED {
                let (limit, log) = (real_application::ANSWERED.as_secs(), self.lab.log());
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

    /// Runs the measured load, with the flood and the disturbance of the scenario. `sampled` is
    /// called as soon as the generator has reported, so that its result does not include the end of
    /// the flood.
    fn load<T: Send>(
        &mut self,
        options: &Options,
        (case, plans): (&Case<'_>, &[Plan]),
        sampled: impl FnOnce() -> Result<T> + Send,
        interrupt: &Interrupt,
    ) -> Result<((Report, T), DuringLoad)> {
        let flood = self.flood(case.scenario, options)?;
        let LabEnvironment { sidecars, lab, .. } = self;
        let (lab, generator) = (&*lab, case.generator);
        let client = |program: &Path| lab.as_generator(program);
        let neighbour = |program: &Path| lab.as_workload(NEIGHBOUR, program);
        let load = || -> Result<((Report, T), Option<FloodResult>)> {
            let mut flood = flood.map(|plan| generator::flood(&neighbour, &plan)).transpose()?;
            if flood.is_some() {
                interrupt.sleep(FLOOD_LEAD)?;
            }
            let report = generator.run(&client, plans, interrupt);
            let lasted = flood.as_mut().map_or(Ok(false), Running::is_running);
            let read = sampled();
            let report = (report?, read?);
            let Some(flood) = flood else { return Ok((report, None)) };
            // The measurement is complete: an unknown result of the flood only leads to a mark.
            let ended = generator::end_flood(flood, interrupt);
            interrupt.check()?;
            let known = |error: anyhow::Error| format!("{error:#}");
            let requests_per_s = ended.map(|report| report.requests_per_s).map_err(known);
            Ok((report, Some(FloodResult { requests_per_s, lasted: lasted.map_err(known) })))
        };
        let Some(disturbance) = case.scenario.disturbance else {
            let (report, flooded) = load()?;
            return Ok((report, DuringLoad { flooded, revisions: 0 }));
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
            Ok((report, DuringLoad { flooded, revisions }))
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
        let short = RateSearch::step(options.duration);
        let try_with = |rate: Option<f64>| -> Result<Report> {
            let plans = load_plans(&self.addresses, case.scenario, options, rate)?;
            case.generator.run(&self.client(), &lasting(&plans, short), interrupt)
        };
        let mut search = RateSearch::below(try_with(None)?.requests_per_s, bound);
        while let Some(rate) = search.next() {
            search.tried(rate, &try_with(Some(rate))?);
        }
        search.found()
    }

    /// Removes the lab and its proxies.
    fn remove(self) -> Result<()> {
        drop(self.sidecars);
        self.lab.stop()
    }
}

/// Events during the measured load.
#[derive(Clone, Debug, Default)]
struct DuringLoad {
    flooded: Option<FloodResult>,
    revisions: u64,
}

/// Kills every proxy; it is started again.
fn restart(lab: &Lab, sidecars: Option<&mut Sidecars>) -> Result<()> {
    match sidecars {
        Some(sidecars) => sidecars.restart_all(),
        None => start_up::end_all_own(lab),
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
