//! One measurement in a cluster: pods, load, what everything used, and a record of it.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use leno_measure::load::{Plan, Report};

use super::Mesh;
use super::disturb::Given;
use super::kubelets::{Answers, Kubelets};
use super::meter::{Reading, Roles, memory};
use super::nodes::Placement;
use super::stage::{Stage, strike};
use super::turn::Case;
use super::wait::pass;
use super::{Ground, Run};
use crate::interrupt::Interrupt;
use crate::lab::{CLIENT, NEIGHBOUR};
use crate::record::{Mark, MarkKind, RAW, Record};
use crate::run::measure::{FLOOD_LEAD, Flooded, Search, fill, flood, marks, plans, table};
use crate::scenario::Pace;

/// How long a flood lasts beyond the measured time where nobody ends it, which is what ends it: before its end
/// pods are reached through the API server several times, a minute each at most.
const FLOOD_MOST: Duration = Duration::from_secs(600);
/// Between two questions to the kubelets while load is made: each costs them some milliseconds.
const PERIOD: Duration = Duration::from_secs(5);

/// Measures, and removes what it made, whatever became of it.
pub(super) async fn measure(
    run: &Run,
    ground: &Ground,
    (case, record): (&Case<'_>, Record),
    interrupt: &Interrupt,
    say: &mut dyn FnMut(&str),
) -> Result<Record> {
    let placement = Placement::of(&ground.nodes.usable, case.scenario);
    let measured = on_stage(run, ground, (case, record, &placement), interrupt, say).await;
    // What it found is worth nothing to the next one if this stays.
    let struck =
        strike(&ground.client, &ground.namespace).await.context("the namespace of the bench stays");
    match (measured, struck) {
        (Ok(mut record), Err(error)) => {
            crate::run::write(&run.options.out, &mut record)?;
            Err(error.context(Left))
        }
        (Err(error), Err(left)) => Err(error.context(format!("{left:#}")).context(Left)),
        (measured, Ok(())) => measured,
    }
}

/// Something of the suite's own is left, so that nothing more can be measured.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("something is left in the cluster")]
pub(super) struct Left;

async fn on_stage(
    run: &Run,
    ground: &Ground,
    (case, mut record, placement): (&Case<'_>, Record, &Placement),
    interrupt: &Interrupt,
    say: &mut dyn FnMut(&str),
) -> Result<Record> {
    let options = &run.options;
    let place = (case.mesh, case.scenario, placement);
    let mut stage = Stage::set((run, ground), place, interrupt, say).await?;
    let roles = stage.roles().await?;
    let proxies: Vec<&str> = stage.proxies.iter().map(String::as_str).collect();
    record.mesh_version = [&case.version, &*proxies.join(", ")].join(" ").trim().to_owned();
    let kubelets = Kubelets { client: &ground.client, roles };
    let (earlier, idle) = kubelets.looked_again(&stage.counted, interrupt, say).await?;
    record.proxies = idle.proxies();
    are_counted(case.mesh, record.proxies)?;
    record.idle_proxies_cpus = idle.proxies_cpus_since(&earlier);
    let rate = case.step.map(|rate| rate * options.scale);
    let plans = match (&case.scenario.pace, plans(&stage.addresses, case.scenario, options, rate)?)
    {
        (Pace::SearchP99Ms(bound), _) => {
            let rate = search(run, &stage, Duration::from_millis(*bound), interrupt).await?;
            self::plans(&stage.addresses, case.scenario, options, Some(rate))?
        }
        (_, plans) => plans,
    };
    if !options.warm_up.is_zero() {
        let warm = |plan: &Plan| Plan { duration: options.warm_up, ..plan.clone() };
        let warm: Vec<Plan> = plans.iter().map(warm).collect();
        stage.load(CLIENT, &warm, interrupt).await?;
    }
    let (_, before) = kubelets.looked_again(&stage.counted, interrupt, say).await?;
    let usage = options.out.join(RAW).join(format!("{}.usage.csv", record.name()));
    let begun = Instant::now();
    let mut during = During::default();
    let (report, flooded, mut given) =
        load(run, &stage, (&plans, &kubelets, &mut during), interrupt).await?;
    // What has ended meanwhile is not waited for.
    let (_, after) = kubelets.looked_again(&[], interrupt, say).await?;
    let (used, broken) = after.since(&before, &during.readings, &kubelets.roles.cpus);
    record.neighbour_requests_per_s = flooded.map(|one| one.requests_per_s);
    stage.arrived(&mut given).await;
    record.revisions = given.revisions;
    record.revisions_arrived = given.arrived();
    let heading = "elapsed_ms,proxies_working_set_kib,control_working_set_kib,proxies_cpu_ms,application_cpu_ms\n";
    let last = after.line(begun.elapsed());
    fs::write(&usage, heading.to_owned() + &during.lines + &last)
        .with_context(|| format!("cannot write {}", usage.display()))?;
    let unseen;
    (record.rss_kib, record.control_rss_kib, unseen) = memory(&idle, &during.readings, &after);
    fill(&mut record, &report, &used);
    record.cpu_undivided_us_per_request = used.cpu.proxies * 1000.0 / report.requests.max(1) as f64;
    (record.cpu_user_us_per_request, record.cpu_system_us_per_request) = (0.0, 0.0);
    record.marks = marks(&record, &report, &used);
    record.marks.extend(Search::missed(case.scenario, &record));
    record.marks.extend(own_marks(&record, &kubelets.roles, (&broken, unseen)));
    record.marks.extend(during.mark());
    record.marks.extend(flooded.and_then(Flooded::mark));
    record.marks.extend(given.mark());
    let raw = options.out.join(RAW).join(format!("{}.latency.csv", record.name()));
    fs::write(&raw, table(&report.buckets))
        .with_context(|| format!("cannot write {}", raw.display()))?;
    Ok(record)
}

/// Refuses a mesh of whose proxies nothing would be known: they would cost nothing.
fn are_counted(mesh: Mesh, proxies: u32) -> Result<()> {
    if mesh == Mesh::None || proxies > 0 {
        return Ok(());
    }
    let labels = mesh.on_nodes().join(", ");
    let which = if mesh.proxy().is_none() {
        format!("; those of its nodes are known by the labels {labels}, in any namespace")
    } else {
        String::new()
    };
    bail!("the kubelets count no proxy of {}{which}: what it uses cannot be said", mesh.name())
}

/// What the kubelets said while load was made.
#[derive(Debug, Default)]
struct During {
    readings: Vec<Reading>,
    /// Those of which nothing is missing, as lines of the file of samples.
    lines: String,
    /// The nodes whose kubelets said nothing: how often, and why the last time.
    silent: BTreeMap<String, (usize, String)>,
}

impl During {
    fn add(&mut self, elapsed: Duration, Answers { reading, silent }: Answers) {
        if silent.is_empty() {
            self.lines += &reading.line(elapsed);
        }
        for (node, why) in silent {
            let (times, last) = self.silent.entry(node).or_default();
            *times += 1;
            *last = why;
        }
        self.readings.push(reading);
    }

    fn mark(&self) -> Option<Mark> {
        let of = self.readings.len();
        let said = self.silent.values().map(|(times, why)| format!("{times} of {of} times, {why}"));
        let said: Vec<String> = said.collect();
        (!said.is_empty()).then(|| Mark { kind: MarkKind::KubeletSilent, why: said.join("; ") })
    }
}

/// What is to be known of figures that come from kubelets.
fn own_marks(record: &Record, roles: &Roles, (broken, unseen): (&[String], usize)) -> Vec<Mark> {
    let mut marks = Vec::new();
    let mut mark = |kind, why| marks.push(Mark { kind, why });
    if !broken.is_empty() {
        mark(MarkKind::Restarted, broken.join("; "));
    }
    if unseen > 0 {
        let why = format!(
            "no kubelet looked at {unseen} of {} proxies under load: --duration 30s lets them look at each",
            record.proxies
        );
        mark(MarkKind::MemoryLate, why);
    }
    let shared = roles.carriers.shared();
    if roles.mesh.carried().is_some() && !shared.is_empty() {
        let why = format!("the proxies of {} carry the flood as well", shared.join(", "));
        mark(MarkKind::SharedProxies, why);
    }
    marks
}

/// The measured load, while the kubelets are asked now and then and the mesh is disturbed; what became of the
/// neighbour's flood, and what the mesh was given.
async fn load(
    run: &Run,
    stage: &Stage<'_>,
    (plans, kubelets, during): (&[Plan], &Kubelets<'_>, &mut During),
    interrupt: &Interrupt,
) -> Result<(Report, Option<Flooded>, Given)> {
    let duration = run.options.duration;
    let flooded = match stage.scenario.neighbour {
        Some(one) => Some(flood(one, stage.scenario, &stage.addresses, duration + FLOOD_MOST)?),
        None => None,
    };
    let flood = match &flooded {
        Some(plan) => {
            let id = stage.begin(NEIGHBOUR, std::slice::from_ref(plan), interrupt).await?;
            pass(FLOOD_LEAD, interrupt).await?;
            Some(id)
        }
        None => None,
    };
    let id = stage.begin(CLIENT, plans, interrupt).await?;
    let begun = Instant::now();
    let watched = async {
        while let Some(left) = duration.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())
        {
            during.add(begun.elapsed(), kubelets.under_load().await?);
            pass(left.min(PERIOD), interrupt).await?;
        }
        during.add(begun.elapsed(), kubelets.under_load().await?);
        stage.report((CLIENT, &id), interrupt).await
    };
    let disturbed = async { Ok(stage.disturb(duration).await) };
    let (report, given) = tokio::try_join!(watched, disturbed)?;
    let flooded = match flood {
        Some(id) => {
            let (report, lasted) = stage.end((NEIGHBOUR, &id), interrupt).await?;
            Some(Flooded { requests_per_s: report.requests_per_s, lasted })
        }
        None => None,
    };
    Ok((report, flooded, given))
}

/// The highest rate that keeps the 99th percentile under a bound.
async fn search(
    run: &Run,
    stage: &Stage<'_>,
    bound: Duration,
    interrupt: &Interrupt,
) -> Result<f64> {
    let short = Search::step(run.options.duration);
    let try_with = async |rate: Option<f64>| -> Result<Report> {
        let plans = plans(&stage.addresses, stage.scenario, &run.options, rate)?;
        let plans: Vec<Plan> =
            plans.into_iter().map(|plan| Plan { duration: short, ..plan }).collect();
        stage.load(CLIENT, &plans, interrupt).await
    };
    let mut search = Search::below(try_with(None).await?.requests_per_s, bound);
    while let Some(rate) = search.next() {
        search.tried(rate, &try_with(Some(rate)).await?);
    }
    search.found()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mesh_without_proxies_is_not_measured_as_if_it_cost_nothing() {
        assert!(are_counted(Mesh::None, 0).is_ok() && are_counted(Mesh::Leno, 2).is_ok());
        let ambient = are_counted(Mesh::IstioAmbient, 0).unwrap_err().to_string();
        assert!(ambient.contains("no proxy of istio-ambient; those of its nodes"), "{ambient}");
        assert!(ambient.contains("app=ztunnel"), "{ambient}");
        are_counted(Mesh::Linkerd, 0).unwrap_err();
    }

    #[test]
    fn a_kubelet_that_says_nothing_under_load_is_a_mark_and_no_line() {
        let mut during = During::default();
        during.add(Duration::from_secs(1), Answers::default());
        assert_eq!((during.mark(), &*during.lines), (None, "1000,0,0,0.0,0.0\n"));
        let silent = BTreeMap::from([("n2".to_owned(), "n2 is late".to_owned())]);
        during.add(Duration::from_secs(6), Answers { silent, ..Answers::default() });
        let mark = during.mark().unwrap();
        assert_eq!((mark.kind, &*mark.why), (MarkKind::KubeletSilent, "1 of 2 times, n2 is late"));
        assert!(!mark.kind.invalidates());
        assert_eq!(during.lines, "1000,0,0,0.0,0.0\n", "a sum of a part would be a dip");
    }
}
