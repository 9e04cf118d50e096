//! Finds what is broken, by deterministic rules over a window of the history and the state of the mesh.
//!
//! | rule | severity |
//! |---|---|
//! | the control plane does not run, or proxies have lost their connection to it | bad |
//! | the last edit of the documents was refused | warning |
//! | instances of a workload take no traffic | bad if none does and not all of them are being started; else a warning |
//! | instances run but do not listen on a port that they declare | warning |
//! | proxies of a workload were started again in the window | warning |
//! | the application of a workload ended in the window | bad if it ended at least twice; else a warning |
//! | at least 1 % of an edge's requests fail, and at least two | bad |
//! | the clients of an edge abandon at least 10 % of its requests, and at least two | bad |
//! | opaque connections of an edge fail | bad |
//! | an authorization policy denies requests or connections of an edge | bad if they passed until a policy, a route or a namespace was edited, or if failures of other edges follow from it; else a warning |
//! | the server of an edge with opaque connections has stopped sending bytes, although the client sends some | bad |
//! | requests of an edge take three times as long as usual: the median is at least 100 ms longer, or the 90th percentile at least 250 ms | bad if failures of other edges follow from it; else a warning |
//! | a limit, a route, an egress policy or the check for valid HTTP rejects at least 10 % of an edge's requests, and at least two | as for denials |
//! | at least half of an edge's requests get 4xx responses, and usually at most a twentieth do | bad if failures of other edges follow from it; else a warning |
//! | retries add at least 20 % to the requests of an edge, and at least ten | warning |
//! | endpoints of an edge are ejected, but its requests succeed | warning |
//! | a certificate has expired, an instance looks up names that do not exist, segments are lost, or one instance differs from the others | evidence of a broken edge to the workload, if there is one; else bad for a certificate, and a warning for the others |
//! | proxies do not answer the observer | warning |
//!
//! In a chain of failing edges, the edge whose server makes no failing calls of its own is shown first. It is also
//! shown before a client of it that takes no traffic. Each problem names its [culprit].
//!
//! For a past window, only the rules over edges and over instances that take no traffic apply, because the state of the
//! mesh is known only for the last observation.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use leno_observe::stat::NamespacedName;

use crate::api::{ControlPlane, MeshState, Problem, ProblemSubject, Severity, Topology, Unready};
use crate::history::{Mark, MarkKind, Window};
use crate::hub::TICK;
use crate::view::HistoryView;

mod chain;
mod comparison;
mod culprit;
mod edges;
mod evidence;
mod fault_begin;
mod restarted;
mod signs;

use culprit::logs;
use edges::{BrokenEdge, EdgeFault};

/// Most lines of evidence of a problem.
const MAX_EVIDENCE: usize = 6;
/// How long before the beginning of a problem a change may be to be shown with it. An edit that replaces the
/// instances of a workload may take this long to have an effect.
const BEFORE_MS: u64 = 60_000;
/// Most changes that are shown with a problem.
const MAX_CHANGES: usize = 3;

/// The problems in the window that ends at `to_ms`. `state` is `None` for a past window.
pub(crate) fn problems(
    view: &HistoryView<'_>,
    topology: &Topology,
    window: &Window,
    state: Option<&MeshState>,
) -> Vec<Problem> {
    let span = (topology.from_ms, topology.to_ms);
    let mut all = Vec::new();
    if let Some(state) = state {
        control_plane(state, &mut all);
        restarted::find(state, span, &mut all);
    }
    workloads(topology, state, &mut all);

    let mut broken = edges::broken(view, window, state);
    fault_begin::find(view, window.end_ms, &mut broken);
    chain::rank(&mut broken);
    culprit::name(&mut broken, topology, state);
    signs::find(state, span, &broken, &mut all);
    let mut ranked: Vec<(Order, Problem)> = all
        .into_iter()
        .map(|mut one| {
            let follows = follows(&mut one, &broken);
            (Order { follows, ..Order::default() }, one)
        })
        .collect();
    ranked.extend(broken.into_iter().map(|one| {
        let order = Order { rank: one.rank, weight: Reverse(one.weight), follows: false };
        (order, of_edge(view, one))
    }));
    ranked.sort_by(|(a, one), (b, other)| {
        let key = |order: &Order, problem: &Problem| {
            (problem.severity, order.follows, kind(&problem.about), order.rank, order.weight)
        };
        key(a, one).cmp(&key(b, other)).then_with(|| one.about.cmp(&other.about))
    });
    ranked.into_iter().map(|(_, problem)| problem).collect()
}

/// The position of a problem among those of the same severity.
#[derive(Default)]
struct Order {
    /// Whether it is a consequence of a failing edge.
    follows: bool,
    /// The distance of its edge from the beginning of a chain of failures.
    rank: usize,
    weight: Reverse<u64>,
}

/// Whether a problem is about a workload that takes no traffic and is the client of a failing edge. If so, adds
/// that edge to the evidence.
fn follows(problem: &mut Problem, broken: &[BrokenEdge]) -> bool {
    let ProblemSubject::Workload { namespace, name } = &problem.about else { return false };
    let calls = |one: &&BrokenEdge| {
        one.fault.is_failure() && (&one.client.0, &one.client.1) == (namespace, name)
    };
    let Some(called) = broken.iter().filter(calls).min_by_key(|one| one.rank) else { return false };
    let server = text(&called.server);
    problem.evidence.insert(0, format!("its own requests or connections to {server} fail"));
    problem.evidence.truncate(MAX_EVIDENCE);
    true
}

/// The position of a subject's kind in the order of problems.
fn kind(about: &ProblemSubject) -> u8 {
    match about {
        ProblemSubject::ControlPlane => 0,
        ProblemSubject::Documents => 1,
        ProblemSubject::Workload { .. } => 2,
        ProblemSubject::Edge { .. } => 3,
        ProblemSubject::Proxies => 4,
    }
}

fn of_edge(view: &HistoryView<'_>, broken: BrokenEdge) -> Problem {
    let changes = broken.since_ms.map_or_else(Vec::new, |since| changes(view, since));
    let is_new =
        broken.worked && changes.iter().flat_map(|mark| &mark.lines).any(|line| is_policy(line));
    let changed = changed(&changes, &broken);
    let mut evidence = broken.evidence;
    evidence.truncate(MAX_EVIDENCE);
    let (client, server) = (broken.client, broken.server);
    let path = format!("from {} to {}", text(&client), text(&server));
    Problem {
        severity: match broken.fault {
            EdgeFault::Denied | EdgeFault::Limited if is_new => Severity::Bad,
            EdgeFault::Denied | EdgeFault::Limited | EdgeFault::Slow(_) | EdgeFault::Rejected
                if broken.is_blamed =>
            {
                Severity::Bad
            }
            EdgeFault::Denied
            | EdgeFault::Limited
            | EdgeFault::Slow(_)
            | EdgeFault::Rejected
            | EdgeFault::Retried
            | EdgeFault::Ejected => Severity::Warning,
            EdgeFault::Failing
            | EdgeFault::GivenUp
            | EdgeFault::Refused
            | EdgeFault::Unanswered => Severity::Bad,
        },
        title: broken.title.replace("{}", &path),
        evidence,
        about: ProblemSubject::Edge {
            client_namespace: client.0,
            client: client.1,
            server_namespace: server.0,
            server: server.1,
        },
        since_ms: broken.since_ms,
        changes,
        culprit: match changed {
            Some(object) => format!("{}; {object} was changed just before", broken.culprit.text),
            None => broken.culprit.text,
        },
        more: broken.culprit.more,
    }
}

/// The object that was edited before a problem and is most likely related to the edge: an object with the server's
/// name, or else one with the client's name, or else one that routes or authorizes requests.
fn changed(changes: &[Mark], broken: &BrokenEdge) -> Option<String> {
    let edits = changes.iter().filter(|mark| mark.kind == MarkKind::Documents);
    let lines: Vec<&str> = edits.flat_map(|mark| &mark.lines).map(String::as_str).collect();
    let object = |line: &str| {
        let mut words = line.split(' ');
        Some((words.next()?.to_owned(), words.next()?.trim_end_matches([',', ';']).to_owned()))
    };
    let named = |name: &str| {
        lines.iter().filter_map(|line| object(line)).find(|(_, object)| object == name)
    };
    let found = named(&text(&broken.server))
        .or_else(|| named(&text(&broken.client)))
        .or_else(|| lines.iter().find(|line| is_policy(line)).and_then(|line| object(line)));
    found.map(|(kind, name)| format!("{kind} {name}"))
}

/// Whether a line of an edit is about an object that routes or authorizes requests: a route, a policy, or a namespace's
/// default.
fn is_policy(line: &str) -> bool {
    let kind = line.split(' ').next().unwrap_or_default();
    kind == "Namespace" || kind.ends_with("Policy") || kind.ends_with("Route")
}

fn control_plane(state: &MeshState, all: &mut Vec<Problem>) {
    let problem = |severity, about, title: &str, evidence| {
        let (culprit, more) = match about {
            ProblemSubject::ControlPlane => ("the control plane", "leno logs controller"),
            ProblemSubject::Documents => ("the last edit", "leno analyze"),
            _ => ("the proxies themselves", "leno check"),
        };
        Problem {
            severity,
            about,
            title: title.to_owned(),
            evidence,
            since_ms: None,
            changes: Vec::new(),
            culprit: culprit.to_owned(),
            more: more.to_owned(),
        }
    };
    let proxies = |names: &[String]| names.iter().take(MAX_EVIDENCE).cloned().collect();
    if state.control_plane == ControlPlane::Away {
        all.push(problem(
            Severity::Bad,
            ProblemSubject::ControlPlane,
            "the control plane does not answer: proxies continue with the last state that they \
             received",
            proxies(&state.detached),
        ));
    } else if !state.detached.is_empty() {
        all.push(problem(
            Severity::Bad,
            ProblemSubject::ControlPlane,
            "proxies have lost the control plane: they continue with the last state that they \
             received",
            proxies(&state.detached),
        ));
    }
    if let Some(reason) = &state.refused_edit {
        all.push(problem(
            Severity::Warning,
            ProblemSubject::Documents,
            "the last edit of the documents was rejected: the last valid state stays in effect",
            reason.lines().take(MAX_EVIDENCE).map(str::to_owned).collect(),
        ));
    }
    if !state.silent.is_empty() {
        all.push(problem(
            Severity::Warning,
            ProblemSubject::Proxies,
            "proxies do not answer, so their counts are missing here",
            proxies(&state.silent),
        ));
    }
}

fn workloads(topology: &Topology, state: Option<&MeshState>, all: &mut Vec<Problem>) {
    let mut problem = |severity, (namespace, name): NamespacedName, title: String, evidence| {
        let name = (namespace, name);
        let culprit = format!("the application of {}, which takes no traffic", text(&name));
        let more = logs(&name);
        let about = ProblemSubject::Workload { namespace: name.0, name: name.1 };
        let (since_ms, changes) = (None, Vec::new());
        all.push(Problem { severity, about, title, evidence, since_ms, changes, culprit, more });
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

fn take_traffic(ready: u32, instances: u32, name: &NamespacedName) -> String {
    format!("{ready} of {instances} instances of {} take traffic", text(name))
}

fn by_workload(all: &[Unready]) -> BTreeMap<NamespacedName, Vec<&Unready>> {
    let mut found: BTreeMap<NamespacedName, Vec<&Unready>> = BTreeMap::new();
    for one in all {
        found.entry((one.namespace.clone(), one.workload.clone())).or_default().push(one);
    }
    found
}

fn reasons(instances: &[&Unready]) -> Vec<String> {
    let line = |one: &&Unready| format!("{}: {}", one.instance, one.reason);
    instances.iter().take(MAX_EVIDENCE).map(line).collect()
}

/// The changes around the beginning of a problem. They may be later than the beginning of the first frame with the
/// problem.
fn changes(view: &HistoryView<'_>, since: u64) -> Vec<Mark> {
    let around = view.marks(since.saturating_sub(BEFORE_MS), since + TICK.as_millis() as u64);
    let mut all: Vec<Mark> = around.cloned().collect();
    all.reverse();
    all.truncate(MAX_CHANGES);
    all
}

/// The name as text: `shop/web`, or the bare name of something that is not a workload of the mesh.
fn text((namespace, name): &NamespacedName) -> String {
    if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") }
}

#[cfg(test)]
mod tests;
