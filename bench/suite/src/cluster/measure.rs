//! One measurement in a cluster: pods, load, the resources they use, and the record.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use leno_measure::load::{Plan, Report};
use tokio::time::sleep;

use super::bench_cluster::{BenchCluster, ClusterRun, whose};
use super::environment::ClusterEnvironment;
use super::load_readings::LoadReadings;
use super::manifests;
use super::mesh::Mesh;
use super::names::MANAGER;
use super::namespace;
use super::nodes::Placement;
use super::restart::{KillResult, kills, restart};
use super::revisions::RevisionResults;
use super::running_load::RunningLoad;
use super::start_up::start_up;
use super::watchers::CounterQuery;
use crate::measurement::figures::{SETTLE, table};
use crate::measurement::flood::{FLOOD_LEAD, FLOOD_MOST, FloodResult};
use crate::measurement::plans::{flood, lasting, load_plans};
use crate::measurement::records::write_raw;
use crate::measurement::search;
use crate::measurement::usage::{Readings, Sample};
use crate::record::{Mark, MarkKind, Record};
use crate::scenario::{CLIENT, NEIGHBOUR, Pace, Scenario};

/// Time between two samples during the load; each takes some milliseconds on its node.
const PERIOD: Duration = Duration::from_secs(1);

pub(super) struct ClusterCase<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) mesh: Mesh,
    /// The known version of the mesh, in addition to the image of its proxies.
    pub(super) version: String,
    pub(super) step: Option<f64>,
}

/// Measures, and always removes the objects that it has created.
pub(super) async fn measure(
    run: &ClusterRun,
    ground: &BenchCluster,
    (case, record): (&ClusterCase<'_>, Record),
) -> Result<Record> {
    let placement = Placement::of(&ground.nodes.usable, case.scenario);
    let plan = manifests::Plan {
        namespace: &ground.namespace,
        mesh: case.mesh,
        scenario: case.scenario,
        image: &run.image,
        real: run.real.as_ref(),
        records: &whose(&run.options.out)?,
        placement: &placement,
    };
    let measured = async {
        run.options.interrupt.check()?;
        // The apply cannot be interrupted: the API server might carry out the interrupted request after the removal.
        leno_operate::apply(&ground.client, &plan.namespace(), MANAGER).await?;
        run.options.interrupt.ends(in_environment(run, ground, (case, record, &plan))).await
    };
    let measured: Result<Record> = measured.await;
    // If the namespace cannot be removed, no further measurement would be valid.
    let struck = namespace::delete(&ground.client, &ground.namespace)
        .await
        .context("the namespace of the bench stays");
    match (measured, struck) {
        (Ok(mut record), Err(error)) => {
            crate::measurement::records::write(&run.options.out, &mut record)?;
            Err(error.context(ObjectsLeft))
        }
        (Err(error), Err(left)) => Err(error.context(format!("{left:#}")).context(ObjectsLeft)),
        (measured, Ok(())) => measured,
    }
}

/// Objects of the suite remain in the cluster, so that no further measurement would be valid.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("something is left in the cluster")]
pub(super) struct ObjectsLeft;

async fn in_environment(
    run: &ClusterRun,
    ground: &BenchCluster,
    (case, mut record, plan): (&ClusterCase<'_>, Record, &manifests::Plan<'_>),
) -> Result<Record> {
    let options = &run.options;
    let environment = ClusterEnvironment::set(ground, plan).await?;
    let proxies: Vec<&str> = environment.proxies.iter().map(String::as_str).collect();
    record.mesh_version = [&case.version, &*proxies.join(", ")].join(" ").trim().to_owned();
    record.application_digests = environment.images().await?;
    // By the end of this pause, proxies have released the memory that they only need to start.
    sleep(SETTLE).await;
    let listed = async || environment.watched().await;
    let none = BTreeSet::new();
    let (_, quiet) = environment.watchers.before(listed, &none).await?;
    sleep(SETTLE).await;
    let (watched, idle) = environment.watchers.before(listed, &none).await?;
    record.proxies = idle.proxies();
    are_counted(case.mesh, record.proxies)?;
    record.idle_proxies_cpus = idle.proxies_cpus_since(&quiet);
    record.binary_bytes = idle.program_bytes();
    let rate = case.step.map(|rate| rate * options.scale);
    let plans = load_plans(&environment.addresses, case.scenario, options, rate)?;
    // The kubelet delays the second restart of a container. The scenario that kills proxies measures a restart itself,
    // which must be the first one.
    if !kills(environment.mesh, environment.scenario) {
        record.start_up_ms = start_up(&environment, (&watched, &plans[0])).await?;
    }
    let plans = match &case.scenario.pace {
        Pace::SearchP99Ms(bound) => {
            let rate = search(run, &environment, Duration::from_millis(*bound)).await?;
            load_plans(&environment.addresses, case.scenario, options, Some(rate))?
        }
        _ => plans,
    };
    if !options.warm_up.is_zero() {
        environment.load(&lasting(&plans, options.warm_up)).await?;
    }
    // The counters of whole kernels are read only on nodes with workloads. A node that only has the mesh's control
    // plane is not measured, because it would not be measured without a mesh either.
    let whole: BTreeSet<String> = environment.roles.carriers.nodes().map(str::to_owned).collect();
    let (watched, before) = environment.watchers.before(listed, &whole).await?;
    let mut seen = LoadReadings::of(watched, whole);
    let mut loaded = load(run, &environment, (&plans, &mut seen)).await?;
    environment.arrived(&mut loaded.given).await;
    let (idle, before, during) = (&idle, &before, &seen.samples[..]);
    let readings = Readings { idle, before, during, after: &loaded.after };
    let broken = readings.fill(&mut record, &loaded.report);
    keep(&mut record, &environment, (broken, &seen), &loaded);
    write_raw(&options.out, &record, "usage", &readings.table())?;
    write_raw(&options.out, &record, "latency", &table(&loaded.report.buckets))?;
    Ok(record)
}

/// Adds to the record what only a run in a cluster has: revisions and marks.
fn keep(
    record: &mut Record,
    environment: &ClusterEnvironment<'_>,
    (mut broken, seen): (Vec<String>, &LoadReadings),
    Loaded { flooded, given, killed, .. }: &Loaded,
) {
    record.revisions = given.revisions;
    record.revisions_arrived = given.arrived();
    record.marks.extend(search::missed(environment.scenario, record));
    broken.retain(|one| !killed.explains(one));
    record.marks.extend(Mark::of_all(MarkKind::Restarted, &broken));
    record.marks.extend(seen.marks());
    record.marks.extend(shared(environment).into_iter().chain(environment.uncounted()));
    flooded.iter().for_each(|flooded| flooded.keep(record));
    record.marks.extend(given.mark().into_iter().chain(killed.mark.clone()));
}

/// Refuses a mesh whose proxies were not found, because they would seem to cost nothing.
fn are_counted(mesh: Mesh, proxies: u32) -> Result<()> {
    if mesh == Mesh::None || proxies > 0 {
        return Ok(());
    }
    let which = match mesh.facts().proxy {
        Some(_) => String::new(),
        None => format!(
            "; those of its nodes are known by the labels {}, in any namespace",
            mesh.facts().on_nodes.join(", ")
        ),
    };
    bail!("no proxy of {} runs{which}: the resources that it uses cannot be measured", mesh.name())
}

/// The mark for nodes whose proxies carry both the measured load and the flood.
fn shared(environment: &ClusterEnvironment<'_>) -> Option<Mark> {
    let shared = environment.roles.carriers.shared();
    let why = format!("the proxies of {} carry the flood as well", shared.join(", "));
    let is_one = environment.mesh.shares_proxies() && !shared.is_empty();
    is_one.then(|| Mark::new(MarkKind::SharedProxies, why))
}

struct Loaded {
    report: Report,
    /// The figures that were read as soon as the client had reported.
    after: Sample,
    flooded: Option<FloodResult>,
    /// The revisions that the mesh received during the load.
    given: RevisionResults,
    killed: KillResult,
}

/// Runs the measured load, and meanwhile samples the nodes and disturbs the mesh. After the report has arrived, a
/// failure is no longer an error.
async fn load(
    run: &ClusterRun,
    environment: &ClusterEnvironment<'_>,
    (plans, seen): (&[Plan], &mut LoadReadings),
) -> Result<Loaded> {
    let duration = run.options.duration;
    let flood = match environment.scenario.neighbours.first().copied() {
        Some(one) => {
            let lasts = duration + FLOOD_MOST;
            let plan = flood(one, environment.scenario, &environment.addresses, lasts)?;
            let flood = environment.begin(NEIGHBOUR, &[plan]).await?;
            sleep(FLOOD_LEAD).await;
            Some(flood)
        }
        None => None,
    };
    let client = environment.begin(CLIENT, plans).await?;
    let begun = client.begun;
    let watching = async {
        while begun.elapsed() < duration {
            if kills(environment.mesh, environment.scenario) {
                // The containers that replace the killed containers have other IDs.
                match environment.watched().await {
                    Ok(now) => drop(seen.meet(now)),
                    Err(error) => seen.unmet(format!("{error:#}")),
                }
            }
            let what = CounterQuery { watched: &seen.watched, whole: &BTreeSet::new() };
            let (at, answers) = (begun.elapsed(), environment.watchers.read(what).await);
            seen.add(at, answers);
            let next = (at + PERIOD).min(duration).saturating_sub(begun.elapsed());
            sleep(next).await;
        }
        let report = client.report().await?;
        let read = async |what: CounterQuery<'_>| environment.watchers.read(what).await;
        let answers = seen.end(environment.watched(), read).await;
        let is_complete = answers.silent.is_empty();
        let after = Sample { elapsed: begun.elapsed(), reading: answers.reading, is_complete };
        anyhow::Ok((report, after))
    };
    let disturbed =
        async { Ok(environment.disturb(duration.saturating_sub(begun.elapsed())).await) };
    let restarted = async { Ok(restart(environment, begun + duration / 2).await) };
    let ((report, after), given, killed) = tokio::try_join!(watching, disturbed, restarted)?;
    let flooded = match flood {
        Some(flood) => Some(end_flood(environment, flood).await),
        None => None,
    };
    Ok(Loaded { report, after, flooded, given, killed })
}

/// Stops the flood and returns its results, as far as they are known.
async fn end_flood(
    environment: &ClusterEnvironment<'_>,
    mut flood: RunningLoad<'_>,
) -> FloodResult {
    let sends = environment.scenario.neighbours.first().map(|one| one.sends).unwrap_or_default();
    let known = |why: &anyhow::Error| format!("{why:#}");
    let (report, lasted) = match flood.early_report().await {
        Ok(Some(early)) => (Ok(early), Ok(false)),
        Ok(None) => (flood.end().await.map_err(|why| known(&why)), Ok(true)),
        Err(why) => (Err(known(&why)), Err(known(&why))),
    };
    FloodResult { workload: NEIGHBOUR.to_owned(), sends, report, lasted }
}

/// Searches for the highest rate that keeps the 99th percentile under a bound.
async fn search(
    run: &ClusterRun,
    environment: &ClusterEnvironment<'_>,
    bound: Duration,
) -> Result<f64> {
    let measure = async |rate| {
        let plans = load_plans(&environment.addresses, environment.scenario, &run.options, rate)?;
        environment.load(&lasting(&plans, search::step(run.options.duration))).await
    };
    search::highest_rate(bound, measure).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mesh_whose_proxies_are_not_found_is_not_measured() {
        assert!(are_counted(Mesh::None, 0).is_ok() && are_counted(Mesh::Leno, 2).is_ok());
        let ambient = are_counted(Mesh::IstioAmbient, 0).unwrap_err().to_string();
        assert!(
            ambient.contains("no proxy of istio-ambient runs; those of its nodes"),
            "{ambient}"
        );
        assert!(ambient.contains("app=ztunnel"), "{ambient}");
        are_counted(Mesh::Linkerd, 0).unwrap_err();
    }
}
