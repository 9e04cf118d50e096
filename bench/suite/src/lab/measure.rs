//! One measurement: it starts a lab and proxies, generates load, measures the resources that they use, and fills the
//! record.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddrV4;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures_util::FutureExt as _;
use leno_measure::load::{Plan, Report};

use super::case::Case;
use super::mesh::LenoProxies;
use super::meter::{LabComponents, LoadSamples, Sampler};
use super::namespaces::Lab;
use super::pinning::Pinning;
use super::sidecars::Sidecars;
use super::start_up;
use crate::generator::name::Generator;
use crate::kernel_counters::NodeCounters;
use crate::measurement::figures::{SETTLE, table};
use crate::measurement::flood::{FLOOD_LEAD, FLOOD_MOST, FloodResult};
use crate::measurement::options::Options;
use crate::measurement::plans::{flood, lasting, load_plans, websockets};
use crate::measurement::records::write_raw;
use crate::measurement::search;
use crate::measurement::usage::Readings;
use crate::process::Running;
use crate::record::{Latency, Mark, MarkKind, Record, RssKib, WebSockets};
use crate::scenario::{self, CLIENT, Disturbance, Scenario};
use crate::{generator, real_application};

/// The pause between two requests to a real application that does not answer yet.
const LOOK: Duration = Duration::from_millis(500);
/// How long before the measurement WebSockets are opened, one after another. A thousand of them take less time than
/// this.
const WEBSOCKETS_OPEN: Duration = Duration::from_secs(3);
/// A lab with everything that a mesh needs. The sidecars must be dropped before the namespaces.
struct LabEnvironment {
    sidecars: Option<Sidecars>,
    lab: Lab,
    addresses: Vec<SocketAddrV4>,
    parts: LabComponents,
}

/// Why the generator cannot generate this load. This is determined before the lab exists.
pub(super) fn unable(options: &Options, case: &Case<'_>) -> Result<Option<&'static str>> {
    let nowhere = [SocketAddrV4::new([127, 0, 0, 1].into(), 0)];
    let rate = case.step.map(|rate| rate * options.scale);
    let plans = load_plans(&nowhere, case.scenario, options, rate)?;
    Ok(case.generator.unable(&plans[0]))
}

pub(super) fn measure(options: &Options, case: &Case<'_>, mut record: Record) -> Result<Record> {
    let interrupt = &options.interrupt;
    let mut environment = LabEnvironment::set(options, case)?;
    record.capture = environment.capture()?;
    record.proxies = environment.parts.running_proxies();
    let program = case.found.program.as_deref();
    record.binary_bytes = program.and_then(|program| Some(fs::metadata(program).ok()?.len()));
    if record.proxies > 0 {
        interrupt.sleep(SETTLE)?;
    }
    let idle = environment.parts.read(NodeCounters::now()?)?;
    record.idle_memory = Some(environment.parts.memory());
    if let Some(folder) = &options.application {
        record.application_digests = real_application::digests(folder, case.scenario)?;
        environment.answers(options, case.scenario)?;
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
            let rate = environment.search(case, options, Duration::from_millis(*bound))?;
            load_plans(&environment.addresses, case.scenario, options, Some(rate))?
        }
        _ => plans,
    };
    if !options.warm_up.is_zero() {
        let plans = lasting(&plans, options.warm_up);
        case.generator.run(&environment.client(), &plans, interrupt)?;
    }
    if !case.scenario.neighbours.is_empty() {
        let alone = case.generator.run(&environment.client(), &plans, interrupt)?;
        record.alone_latency_us = Some(Latency::of(&alone.buckets));
    }
    let sampler = Sampler::start(&environment.parts)?;
    let load = environment.load(options, (case, &plans), || sampler.stop());
    let ((report, samples), beside) = load?;
    let pushes = matches!(case.scenario.disturbance, Some(Disturbance::Push { .. }));
    record.revisions_arrived = (pushes && beside.revisions > 0).then(|| environment.lab.arrived());
    let LoadSamples { before, during, after } = &samples;
    let readings = Readings { idle: &idle, before, during, after };
    // If a proxy of the lab ends, it is started again in the same control group.
    let _ended = readings.fill(&mut record, &report);
    if record.proxies == 0 {
        record.control_rss_kib = RssKib::default();
    }
    record.marks.extend(search::missed(case.scenario, &record));
    record.marks.extend(environment.parts.mark());
    beside.keep(case.scenario, &mut record)?;
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

    fn set(options: &Options, case: &Case<'_>) -> Result<Self> {
        let interrupt = &options.interrupt;
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
        Ok(LabEnvironment { sidecars, lab, addresses, parts })
    }

    fn client(&self) -> impl Fn(&Path) -> Result<Command> + Sync {
        |program| self.lab.as_generator(program)
    }

    /// Waits until the real application answers.
    fn answers(&self, options: &Options, scenario: &Scenario) -> Result<()> {
        let interrupt = &options.interrupt;
        let asked = &self.addresses[..scenario.loaded() as usize];
        let questions = real_application::questions(asked, scenario);
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

    /// Runs the measured load, with the loads beside it and the disturbance of the scenario. `sampled` is called as
    /// soon as the generator has reported, so that the sample does not include the end of the floods.
    fn load<T: Send>(
        &mut self,
        options: &Options,
        (case, plans): (&Case<'_>, &[Plan]),
        sampled: impl FnOnce() -> Result<T> + Send,
    ) -> Result<((Report, T), DuringLoad)> {
        let beside = self.beside(case.scenario, options)?;
        let LabEnvironment { sidecars, lab, .. } = self;
        let (lab, generator, interrupt) = (&*lab, case.generator, &options.interrupt);
        let client = |program: &Path| lab.as_generator(program);
        let has_floods = !case.scenario.neighbours.is_empty();
        let load = |begins: mpsc::Sender<()>| -> Result<((Report, T), DuringLoad)> {
            let start = |(workload, plan): &(String, Plan)| {
                let client = |program: &Path| lab.as_workload(workload, program);
                generator::start(&client, std::slice::from_ref(plan))
            };
            let mut beside = beside.iter().map(start).collect::<Result<Vec<Running>>>()?;
            if !beside.is_empty() {
                interrupt.sleep(if has_floods { FLOOD_LEAD } else { WEBSOCKETS_OPEN })?;
            }
            // Without a disturbance no task receives this.
            let _ = begins.send(());
            let report = generator.run(&client, plans, interrupt);
            let running: Vec<_> = beside.iter_mut().map(Running::is_running).collect();
            let read = sampled();
            let report = (report?, read?);
            // From here on only an interrupt is an error; if the result of a flood is unknown, the record gets a mark.
            let charged = if has_floods { lab.charged() } else { Ok(BTreeMap::new()) };
            let ended = beside.into_iter().map(|one| generator::end(one, interrupt));
            let ended: Vec<_> = ended.zip(running).collect();
            interrupt.check()?;
            Ok((report, DuringLoad { ended, charged, revisions: 0 }))
        };
        let Some(disturbance) = case.scenario.disturbance else {
            return load(mpsc::channel().0);
        };
        let disturb = |has_ended: &dyn Fn() -> bool| match disturbance.period() {
            None => {
                std::thread::sleep(options.duration / 2);
                restart(lab, sidecars.as_mut()).map(|()| 0)
            }
            Some(period) => revise((lab, sidecars.as_ref()), case, period, has_ended),
        };
        let ((report, during), revisions) = disturbed(load, disturb)?;
        Ok((report, DuringLoad { revisions, ..during }))
    }

    /// Returns the loads that start before the measurement and end after it, each with the workload that generates it:
    /// floods by neighbours, and WebSockets of the client.
    fn beside(&self, scenario: &Scenario, options: &Options) -> Result<Vec<(String, Plan)>> {
        let duration = options.duration + FLOOD_MOST;
        let neighbours = scenario.neighbours.iter().enumerate().map(|(nth, one)| {
            Ok((scenario::neighbour(nth), flood(*one, scenario, &self.addresses, duration)?))
        });
        let websockets = websockets(scenario, &self.addresses, duration);
        neighbours.chain(websockets.map(|plan| Ok((CLIENT.to_owned(), plan)))).collect()
    }

    /// Searches for the highest rate at which the 99th percentile stays under a bound.
    fn search(&self, case: &Case<'_>, options: &Options, bound: Duration) -> Result<f64> {
        let measure = async |rate| {
            let plans = load_plans(&self.addresses, case.scenario, options, rate)?;
            let plans = lasting(&plans, search::step(options.duration));
            case.generator.run(&self.client(), &plans, &options.interrupt)
        };
        let found = search::highest_rate(bound, measure).now_or_never();
        found.context("the lab measures without a wait")?
    }

    fn remove(self) -> Result<()> {
        drop(self.sidecars);
        self.lab.stop()
    }
}

/// Runs a load, and disturbs the mesh from the moment when the load reports through the channel that its generator has
/// started. Returns also how many revisions the mesh got.
///
/// A child process ends with the thread that started it. So this thread, which continues, restarts the proxies, and a
/// second thread runs the load.
fn disturbed<T: Send>(
    load: impl FnOnce(mpsc::Sender<()>) -> Result<T> + Send,
    disturb: impl FnOnce(&dyn Fn() -> bool) -> Result<u64>,
) -> Result<(T, u64)> {
    let (begins, begun) = mpsc::channel();
    std::thread::scope(|scope| {
        let running = scope.spawn(move || load(begins));
        let revisions = match begun.recv() {
            Ok(()) => disturb(&|| running.is_finished()),
            // The load failed before it began, and returns its error below.
            Err(mpsc::RecvError) => Ok(0),
        };
        let report = running.join().unwrap_or_else(|_| bail!("the load panicked"));
        let revisions = revisions?;
        Ok((report?, revisions))
    })
}

/// What happened while the measured load ran.
struct DuringLoad {
    /// For each load that ran at the same time: its report, and whether it was still running when the measured load
    /// ended.
    ended: Vec<(Result<Report>, Result<bool>)>,
    charged: Result<BTreeMap<String, u64>>,
    revisions: u64,
}

impl DuringLoad {
    /// Adds this to a record. If the result of a flood is unknown, the record gets a mark.
    fn keep(mut self, scenario: &Scenario, record: &mut Record) -> Result<()> {
        record.revisions = self.revisions;
        if scenario.neighbours.is_empty() {
            let websockets = self.ended.pop().map(|(report, _)| report).transpose()?;
            record.websockets = websockets.map(|all| WebSockets::of(scenario, &all));
            return Ok(());
        }
        let known = |error: anyhow::Error| format!("{error:#}");
        let floods = scenario.neighbours.iter().enumerate().zip(self.ended);
        for ((nth, one), (report, lasted)) in floods {
            let (workload, sends) = (scenario::neighbour(nth), one.sends);
            let (report, lasted) = (report.map_err(known), lasted.map_err(known));
            FloodResult { workload, sends, report, lasted }.keep(record);
        }
        match self.charged {
            Ok(charged) => record.charged_bytes = charged,
            Err(why) => record.marks.push(Mark {
                kind: MarkKind::FloodUnreported,
                why: format!("what buffers and connections took: {why:#}"),
            }),
        }
        Ok(())
    }
}

/// Kills every proxy; all are started again.
fn restart(lab: &Lab, sidecars: Option<&mut Sidecars>) -> Result<()> {
    match sidecars {
        Some(sidecars) => sidecars.restart_all(),
        None => start_up::end_all_own(lab),
    }
}

/// Writes one revision of a mesh's configuration after the other until `ended`, and returns how many. Without a mesh
/// there is nothing to configure.
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
            None => match case.mesh.own() {
                // Editing a document would not replace the process that serves.
                Some(LenoProxies { share: None, .. }) if what.0.upgrades() => {
                    lab.upgrade_proxies()?;
                }
                Some(_) => lab.edit(what.0, what.1)?,
                None => return Ok(0),
            },
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_disturbance_begins_with_the_generator_and_not_with_what_is_beside_it() {
        let has_led = &AtomicBool::new(false);
        let (disturbs, is_disturbed) = mpsc::channel();
        let load = move |begins: mpsc::Sender<()>| {
            has_led.store(true, Ordering::SeqCst);
            begins.send(())?;
            is_disturbed.recv()?;
            Ok("report")
        };
        let disturb = |has_ended: &dyn Fn() -> bool| {
            assert!(has_led.load(Ordering::SeqCst) && !has_ended());
            disturbs.send(())?;
            Ok(7)
        };
        assert_eq!(disturbed(load, disturb).unwrap(), ("report", 7));
    }

    #[test]
    fn a_load_that_fails_before_its_generator_starts_is_not_disturbed() {
        let load = |_begins| -> Result<()> { bail!("no WebSocket opens") };
        let error = disturbed(load, |_| panic!("nothing runs")).unwrap_err();
        assert_eq!(error.to_string(), "no WebSocket opens");
    }

    #[test]
    fn every_flood_is_recorded_and_an_unknown_figure_only_marks() {
        let scenario =
            scenario::all().unwrap().into_iter().find(|one| one.name == "neighbours").unwrap();
        let report = |requests, errors: &[(&str, u64)]| Report {
            requests,
            errors: errors.iter().map(|(_, count)| count).sum(),
            errors_by_kind: errors.iter().map(|(kind, n)| ((*kind).to_owned(), *n)).collect(),
            ..Report::default()
        };
        let ended = vec![
            (Ok(report(90, &[("reset", 40)])), Ok(true)),
            (Ok(report(9, &[("status_5xx", 2)])), Ok(true)),
            (Err(anyhow::anyhow!("it was killed")), Ok(false)),
        ];
        let charged = Err(anyhow::anyhow!("no status"));
        let mut record = Record::default();
        DuringLoad { ended, charged, revisions: 0 }.keep(&scenario, &mut record).unwrap();
        let floods = record.floods.iter().map(|one| (&*one.workload, one.requests, one.errors));
        assert_eq!(floods.collect::<Vec<_>>(), [("neighbour", 90, 40), ("neighbour-2", 9, 2)]);
        let marks: Vec<_> = record.marks.iter().map(|mark| mark.kind).collect();
        let expected = [
            MarkKind::FloodFailed,
            MarkKind::FloodEnded,
            MarkKind::FloodUnreported,
            MarkKind::FloodUnreported,
        ];
        assert_eq!(marks, expected, "{:?}", record.marks);
        assert!(record.marks[0].why.starts_with("neighbour-2"), "{:?}", record.marks);
    }
}
