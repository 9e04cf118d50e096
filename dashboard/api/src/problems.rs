//! What is broken: deterministic rules over a window of the history and the state of the mesh.
//!
//! | rule | severity |
//! |---|---|
//! | the control plane is away, or proxies have lost it | bad |
//! | the last edit of the documents was refused | warning |
//! | instances take no traffic | bad where none of a workload does, else a warning |
//! | instances run and do not listen on a port that they declare | warning |
//! | proxies of a workload were started again in the window | warning |
//! | at least 1 % of an edge's requests fail, and at least two | bad |
//! | the clients of an edge give up at least 10 % of its requests, and at least two | bad |
//! | the mesh itself fails or refuses connections of an edge that carries bytes | bad |
//! | an authorization policy denies requests or connections of an edge | bad where they passed until a policy was edited, else a warning |
//! | endpoints of an edge are ejected while its requests succeed | warning |
//! | proxies do not answer | warning |
//!
//! Of a chain of edges that fail, the one whose server makes no failing calls of its own comes first.
//!
//! Of the past only the rules over edges and readiness hold: the state is that of the last observation.

use std::collections::BTreeMap;

use leno_observe::stat::Name;

use crate::api::{About, ControlPlane, Problem, Severity, State, Topology, Unready};
use crate::history::{History, Mark, Window};
use crate::hub::TICK;

mod chain;
mod edges;
mod evidence;
mod restarted;
mod since;

use edges::{Broken, Fault};

/// Most lines of evidence.
const MAX_EVIDENCE: usize = 6;
/// How long before the begin of a problem a change may have been to be named with it: an edit that replaces
/// the instances of a workload takes that long.
const BEFORE_MS: u64 = 60_000;
/// Most changes of a problem.
const MAX_CHANGES: usize = 3;

/// What is broken in the window that ends at `to_ms`. `state` is `None` of the past.
pub(crate) fn problems(
    history: &History,
    topology: &Topology,
    window: &Window,
    state: Option<&State>,
) -> Vec<Problem> {
    let mut all = Vec::new();
    if let Some(state) = state {
        control_plane(state, &mut all);
        restarted::find(state, (topology.from_ms, topology.to_ms), &mut all);
    }
    workloads(topology, state, &mut all);

    let mut broken = edges::broken(history, window, state);
    chain::rank(&mut broken);
    since::find(history, window.end_ms, &mut broken);
    let mut ranked: Vec<(usize, Problem)> = all.into_iter().map(|one| (0, one)).collect();
    ranked.extend(broken.into_iter().map(|one| (one.rank, of_edge(history, one))));
    ranked.sort_by(|(a, one), (b, other)| {
        let key = |rank, problem: &Problem| (problem.severity, kind(&problem.about), rank);
        key(*a, one).cmp(&key(*b, other)).then_with(|| one.about.cmp(&other.about))
    });
    ranked.into_iter().map(|(_, problem)| problem).collect()
}

/// The order of what problems are about.
fn kind(about: &About) -> u8 {
    match about {
        About::ControlPlane => 0,
        About::Documents => 1,
        About::Workload { .. } => 2,
        About::Edge { .. } => 3,
        About::Proxies => 4,
    }
}

fn of_edge(history: &History, broken: Broken) -> Problem {
    let changes = broken.since_ms.map_or_else(Vec::new, |since| changes(history, since));
    let is_new =
        broken.worked && changes.iter().flat_map(|mark| &mark.lines).any(|line| is_policy(line));
    let (client, server) = (broken.client, broken.server);
    let path = format!("from {} to {}", text(&client), text(&server));
    Problem {
        severity: match broken.fault {
            Fault::Denied if is_new => Severity::Bad,
            Fault::Denied | Fault::Ejected => Severity::Warning,
            Fault::Failing | Fault::GivenUp | Fault::Refused => Severity::Bad,
        },
        title: broken.title.replace("{}", &path),
        evidence: broken.evidence,
        about: About::Edge {
            client_namespace: client.0,
            client: client.1,
            server_namespace: server.0,
            server: server.1,
        },
        since_ms: broken.since_ms,
        changes,
    }
}

/// Whether a line of an edit is of what authorizes: a policy, or a namespace's default.
fn is_policy(line: &str) -> bool {
    line.starts_with("AuthorizationPolicy ") || line.starts_with("Namespace ")
}

fn control_plane(state: &State, all: &mut Vec<Problem>) {
    let problem = |severity, about, title: &str, evidence| Problem {
        severity,
        about,
        title: title.to_owned(),
        evidence,
        since_ms: None,
        changes: Vec::new(),
    };
    let proxies = |names: &[String]| names.iter().take(MAX_EVIDENCE).cloned().collect();
    if state.control_plane == ControlPlane::Away {
        all.push(problem(
            Severity::Bad,
            About::ControlPlane,
            "the control plane is away: proxies serve on what they were told last",
            proxies(&state.detached),
        ));
    } else if !state.detached.is_empty() {
        all.push(problem(
            Severity::Bad,
            About::ControlPlane,
            "proxies have lost the control plane: they serve on what they were told last",
            proxies(&state.detached),
        ));
    }
    if let Some(reason) = &state.refused_edit {
        all.push(problem(
            Severity::Warning,
            About::Documents,
            "the last edit of the documents was refused: the state before it holds",
            reason.lines().take(MAX_EVIDENCE).map(str::to_owned).collect(),
        ));
    }
    if !state.silent.is_empty() {
        all.push(problem(
            Severity::Warning,
            About::Proxies,
            "proxies do not answer: what they count is missing here",
            proxies(&state.silent),
        ));
    }
}

fn workloads(topology: &Topology, state: Option<&State>, all: &mut Vec<Problem>) {
    let mut problem = |severity, (namespace, name): Name, title: String, evidence| {
        let about = About::Workload { namespace, name };
        let (since_ms, changes) = (None, Vec::new());
        all.push(Problem { severity, about, title, evidence, since_ms, changes });
    };
    let Some(state) = state else {
        for one in topology.workloads.iter().filter(|one| one.ready < one.instances) {
            let name = (one.namespace.clone(), one.name.clone());
            let severity = if one.ready == 0 { Severity::Bad } else { Severity::Warning };
            let title = take_traffic(one.ready, one.instances, &name);
            problem(severity, name, title, Vec::new());
        }
        return;
    };
    for (name, unready) in by_workload(&state.unready) {
        let instances = unready[0].of;
        let ready = instances.saturating_sub(u32::try_from(unready.len()).unwrap_or(u32::MAX));
        let is_starting = unready.iter().all(|one| one.starting);
        let is_bad = ready == 0 && !is_starting;
        let severity = if is_bad { Severity::Bad } else { Severity::Warning };
        let title = take_traffic(ready, instances, &name);
        problem(severity, name, title, reasons(&unready));
    }
    for (name, deaf) in by_workload(&state.deaf) {
        let title = format!("{} does not listen on every port that it declares", text(&name));
        problem(Severity::Warning, name, title, reasons(&deaf));
    }
}

fn take_traffic(ready: u32, instances: u32, name: &Name) -> String {
    format!("{ready} of {instances} instances of {} take traffic", text(name))
}

fn by_workload(all: &[Unready]) -> BTreeMap<Name, Vec<&Unready>> {
    let mut found: BTreeMap<Name, Vec<&Unready>> = BTreeMap::new();
    for one in all {
        found.entry((one.namespace.clone(), one.workload.clone())).or_default().push(one);
    }
    found
}

fn reasons(instances: &[&Unready]) -> Vec<String> {
    let line = |one: &&Unready| format!("{}: {}", one.instance, one.reason);
    instances.iter().take(MAX_EVIDENCE).map(line).collect()
}

/// The changes around the begin of a problem. Its first frame may have begun before the change.
fn changes(history: &History, since: u64) -> Vec<Mark> {
    let around = history.marks(since.saturating_sub(BEFORE_MS), since + TICK.as_millis() as u64);
    let mut all: Vec<Mark> = around.cloned().collect();
    all.reverse();
    all.truncate(MAX_CHANGES);
    all
}

/// `shop/web`, or what is no workload of the mesh.
fn text((namespace, name): &Name) -> String {
    if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") }
}

#[cfg(test)]
mod tests;
