//! What is broken: deterministic rules over a window of the history and the state of the mesh.
//!
//! | rule | severity |
//! |---|---|
//! | the control plane is away, or proxies have lost it | bad |
//! | the last edit of the documents was refused | warning |
//! | instances take no traffic | bad where none of a workload does, else a warning |
//! | at least 1 % of an edge's requests fail, and at least [`MIN_FAILURES`] | bad |
//! | the mesh itself fails or refuses connections of an edge that carries bytes | bad |
//! | endpoints of an edge are ejected while its requests succeed | warning |
//! | proxies do not answer | warning |
//!
//! Of the past only the rules over edges and readiness hold: the state is that of the last observation.

use leno_observe::stat::Name;

use crate::api::{About, Cause, ControlPlane, Problem, Severity, State, Topology, Unready};
use crate::history::{History, Mark, Window};
use crate::hub::TICK;
use crate::query::{self, edges};
use crate::series::{Series, Subject};
use crate::tally::{Tally, float};

/// Fewest requests of an edge that fail in a window for it to be broken: one may be chance.
const MIN_FAILURES: u64 = 2;
/// Least share of them.
const MIN_SHARE: f64 = 0.01;
/// Most lines of evidence.
const MAX_EVIDENCE: usize = 6;
/// How far back the begin of a problem is looked for, in frames: an hour of the finest.
const MAX_FRAMES: usize = 720;
/// Frames without the problem after which an earlier one is another problem.
const QUIET_FRAMES: usize = 6;
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
    }
    workloads(topology, state, &mut all);
    broken_edges(history, window, &mut all);
    since(history, window.end_ms, &mut all);
    for problem in &mut all {
        if let Some(since) = problem.since_ms {
            problem.changes = changes(history, since);
        }
    }
    all.sort_by(|a, b| (a.severity, &a.about).cmp(&(b.severity, &b.about)));
    all
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
    let unready = state.map_or(&[][..], |state| &state.unready);
    for workload in topology.workloads.iter().filter(|one| one.ready < one.instances) {
        let of =
            |one: &&Unready| one.namespace == workload.namespace && one.workload == workload.name;
        let unready: Vec<&Unready> = unready.iter().filter(of).collect();
        // What has completed takes no traffic, and nothing is wrong with it.
        if state.is_some() && unready.is_empty() {
            continue;
        }
        let (namespace, name) = (workload.namespace.clone(), workload.name.clone());
        let (ready, instances) = (workload.ready, workload.instances);
        let evidence = unready.iter().take(MAX_EVIDENCE);
        all.push(Problem {
            severity: if ready == 0 { Severity::Bad } else { Severity::Warning },
            title: format!("{ready} of {instances} instances of {namespace}/{name} take traffic"),
            evidence: evidence.map(|one| format!("{}: {}", one.instance, one.reason)).collect(),
            about: About::Workload { namespace, name },
            since_ms: None,
            changes: Vec::new(),
        });
    }
}

fn broken_edges(history: &History, window: &Window, all: &mut Vec<Problem>) {
    let names = history.names();
    for ((client, server), both) in edges(names, window) {
        let tally = &both.sum;
        let (severity, title) = if fails(tally) {
            let share = 100.0 * float(tally.failures()) / float(tally.requests());
            (Severity::Bad, format!("{share:.1} % of the requests {{}} fail"))
        } else if refuses(tally) {
            let count = tally.errors().max(tally.connect_failures);
            (Severity::Bad, format!("{count} connections {{}} failed"))
        } else if tally.ejected > 0 {
            (Severity::Warning, "endpoints are left out {}: they failed".to_owned())
        } else {
            continue;
        };
        let path = format!("from {} to {}", text(&client), text(&server));
        all.push(Problem {
            severity,
            title: title.replace("{}", &path),
            evidence: evidence(names, tally, served(names, window, &server)),
            about: About::Edge {
                client_namespace: client.0,
                client: client.1,
                server_namespace: server.0,
                server: server.1,
            },
            since_ms: None,
            changes: Vec::new(),
        });
    }
}

/// Whether an edge's requests fail.
fn fails(tally: &Tally) -> bool {
    let failures = tally.failures();
    failures >= MIN_FAILURES && float(failures) >= MIN_SHARE * float(tally.requests())
}

/// Whether an edge that carries bytes is refused.
fn refuses(tally: &Tally) -> bool {
    tally.requests() == 0 && (tally.errors() > 0 || tally.connect_failures > 0)
}

/// What the proxies of a server have counted as such.
fn served<'a>(names: &Series, window: &'a Window, server: &Name) -> Option<&'a Tally> {
    window.tallies.get(&names.find(&Subject::Workload(server.clone()))?)
}

fn evidence(names: &Series, tally: &Tally, served: Option<&Tally>) -> Vec<String> {
    let signals = query::signals(names, tally, 0.0);
    let at_server = served.map(|served| query::signals(names, served, 0.0).causes);
    let mut lines = Vec::new();
    let own = tally.errors().min(tally.failures());
    let requests = tally.requests();
    if tally.failures() > 0 {
        lines.push(format!("{} of {requests} requests answered 5xx", tally.failures()));
    }
    let server = tally.failures() - own;
    if server > 0 {
        lines.push(culprit(server, at_server.as_deref()));
    }
    for cause in signals.causes {
        lines.push(format!("{} times {}", cause.count, cause.cause));
    }
    for cause in at_server.into_iter().flatten() {
        lines.push(format!("{} times {} at the proxy of the server", cause.count, cause.cause));
    }
    if tally.connect_failures > 0 {
        lines.push(format!("{} connections could not be made", tally.connect_failures));
    }
    if tally.ejected > 0 {
        lines.push(format!("{} workers leave endpoints out", tally.ejected));
    }
    lines.truncate(MAX_EVIDENCE);
    lines
}

/// Who failed the requests that the client's proxy did not fail. What the server's proxy failed may have
/// been another client's, so it bounds what was not the application.
fn culprit(failures: u64, at_server: Option<&[Cause]>) -> String {
    let Some(causes) = at_server else {
        return format!("{failures} of them by the server or its proxy");
    };
    match causes.iter().map(|cause| cause.count).sum::<u64>() {
        0 => format!("{failures} of them by the application itself"),
        proxy if proxy < failures => {
            format!("at least {} of them by the application itself", failures - proxy)
        }
        _ => format!("{failures} of them by the server or its proxy"),
    }
}

/// Finds since when edges are broken.
fn since(history: &History, end_ms: u64, all: &mut [Problem]) {
    let names = history.names();
    let mut searched: Vec<(Vec<u32>, usize, &mut Option<u64>)> = Vec::new();
    for problem in all {
        let About::Edge { client_namespace, client, server_namespace, server } = &problem.about
        else {
            continue;
        };
        let client = (client_namespace.clone(), client.clone());
        let server = (server_namespace.clone(), server.clone());
        let of =
            |encrypted| Subject::Edge { client: client.clone(), server: server.clone(), encrypted };
        let numbers = [true, false].into_iter().filter_map(|one| names.find(&of(one))).collect();
        searched.push((numbers, 0, &mut problem.since_ms));
    }
    if searched.is_empty() {
        return;
    }
    let frames: Vec<_> = history.between(0, end_ms).collect();
    for frame in frames.iter().rev().take(MAX_FRAMES) {
        if searched.iter().all(|(_, quiet, _)| *quiet >= QUIET_FRAMES) {
            break;
        }
        let mut broken = vec![false; searched.len()];
        let _ = frame.each(|series, tally| {
            for ((numbers, ..), broken) in searched.iter().zip(&mut broken) {
                let bad = tally.failures() > 0 || refuses(&tally) || tally.ejected > 0;
                *broken |= bad && numbers.contains(&series);
            }
        });
        for ((_, quiet, since), broken) in searched.iter_mut().zip(broken) {
            match broken {
                _ if *quiet >= QUIET_FRAMES => {}
                true => {
                    *quiet = 0;
                    **since = Some(frame.end_ms.saturating_sub(frame.millis));
                }
                false => *quiet += 1,
            }
        }
    }
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
mod tests {
    use super::*;
    use crate::history::MarkKind;
    use crate::testing::{edge, growth, workload};

    fn found(history: &History, state: Option<&State>) -> Vec<Problem> {
        let end = history.end_ms().unwrap();
        let window = history.window(end - 60_000, end);
        let topology = query::topology(history, "default", &window);
        problems(history, &topology, &window, state)
    }

    #[test]
    fn nothing_is_broken_where_all_is_well() {
        let mut history = History::default();
        for tick in 1..=20 {
            let mut now = growth(5.0, vec![edge("web", "cart", 50.0)]);
            // One failure may be chance.
            now.edges[0].counts.classes[4] = if tick == 20 { 1.0 } else { 0.0 };
            now.workloads = vec![workload("cart", (2, 2))];
            history.push(tick * 5_000, &now);
        }
        let state = State { control_plane: ControlPlane::Running, ..State::default() };
        assert_eq!(found(&history, Some(&state)), []);
    }

    #[test]
    fn an_edge_that_fails_is_named_with_its_causes_and_its_begin() {
        let mut history = History::default();
        for tick in 1..=40 {
            let mut now = growth(5.0, vec![edge("web", "cart", 50.0)]);
            if tick > 20 {
                now.edges[0].counts.classes[4] = 5.0;
                now.edges[0].counts.causes = [("no-endpoints".to_owned(), 4.0)].into();
            }
            now.workloads = vec![workload("cart", (2, 0))];
            if tick > 35 {
                now.workloads[0].counts.causes = [("deadline".to_owned(), 1.0)].into();
            }
            history.push(tick * 5_000, &now);
        }
        for at_ms in [10_000, 60_000, 101_000, 150_000] {
            let lines = vec![format!("changed at {at_ms}")];
            history.mark(Mark { at_ms, kind: MarkKind::Documents, lines });
        }
        let state = State {
            control_plane: ControlPlane::Away,
            unready: vec![Unready {
                namespace: "shop".to_owned(),
                workload: "cart".to_owned(),
                instance: "cart-0".to_owned(),
                reason: "exited with 3".to_owned(),
            }],
            ..State::default()
        };
        let all = found(&history, Some(&state));
        let titles: Vec<&str> = all.iter().map(|one| one.title.as_str()).collect();
        assert_eq!(
            titles,
            [
                "the control plane is away: proxies serve on what they were told last",
                "0 of 2 instances of shop/cart take traffic",
                "9.1 % of the requests from shop/web to shop/cart fail",
            ]
        );
        assert_eq!(all[1].evidence, ["cart-0: exited with 3"]);
        assert_eq!(all[2].since_ms, Some(100_000));
        let changes: Vec<u64> = all[2].changes.iter().map(|mark| mark.at_ms).collect();
        assert_eq!(changes, [101_000, 60_000]);
        assert_eq!(
            all[2].evidence,
            [
                "60 of 660 requests answered 5xx",
                "at least 7 of them by the application itself",
                "48 times no-endpoints",
                "5 times deadline at the proxy of the server",
            ]
        );
    }
}
