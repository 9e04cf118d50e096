//! Finds processes that ended in the window: applications, and proxies, whose connections failed until they ran
//! again.

use std::collections::BTreeMap;

use leno_observe::stat::NamespacedName;

use super::culprit::{logs, with_name};
use super::{MAX_EVIDENCE, text};
use crate::api::{MeshState, Problem, ProblemSubject, Restart, Severity};

/// An application that ended at least this many times in the window is broken. A single end may be an operator's
/// signal.
const OFTEN: u32 = 2;

/// The ends of one workload's processes, by instance.
type Instances<'a> = BTreeMap<&'a str, Vec<&'a Restart>>;

/// Finds the workloads whose processes ended between two moments.
pub(super) fn find(state: &MeshState, span: (u64, u64), all: &mut Vec<Problem>) {
    for (name, instances) in workloads(&state.restarted, span) {
        let often = often(&instances);
        let whose = match instances.keys().next() {
            Some(instance) if instances.len() == 1 => {
                format!("the proxy of {}", text(&(name.0.clone(), (*instance).to_owned())))
            }
            _ => format!("proxies of {}", text(&name)),
        };
        let were = if instances.len() == 1 { "was" } else { "were" };
        let title = format!("{whose} {were} started again {}", times(often));
        let more = with_name("logs --proxy", &name);
        all.push(problem(name, (Severity::Warning, title), (&instances, span.1), (whose, more)));
    }
    for (name, instances) in workloads(&state.ended, span) {
        let often = often(&instances);
        let severity = if often >= OFTEN { Severity::Bad } else { Severity::Warning };
        let title = format!("the application of {} has ended {}", text(&name), times(often));
        let culprit = format!("the application of {}, which ends", text(&name));
        let more = logs(&name);
        all.push(problem(name, (severity, title), (&instances, span.1), (culprit, more)));
    }
}

/// How the applications of a workload ended between two moments, one entry per line.
pub(super) fn ended(state: &MeshState, name: &NamespacedName, span: (u64, u64)) -> Vec<String> {
    let mut all = workloads(&state.ended, span);
    let Some(instances) = all.remove(name) else { return Vec::new() };
    instances.iter().take(MAX_EVIDENCE).map(|one| line(one, span.1)).collect()
}

fn workloads(
    all: &[Restart],
    (from_ms, to_ms): (u64, u64),
) -> BTreeMap<NamespacedName, Instances<'_>> {
    let mut workloads: BTreeMap<NamespacedName, Instances<'_>> = BTreeMap::new();
    for one in all.iter().filter(|one| from_ms < one.at_ms && one.at_ms <= to_ms) {
        let name = (one.namespace.clone(), one.workload.clone());
        workloads.entry(name).or_default().entry(&one.instance).or_default().push(one);
    }
    workloads
}

fn often(instances: &Instances<'_>) -> u32 {
    instances.values().flatten().map(|one| one.times).sum()
}

fn problem(
    (namespace, name): NamespacedName,
    (severity, title): (Severity, String),
    (instances, now_ms): (&Instances<'_>, u64),
    (culprit, more): (String, String),
) -> Problem {
    Problem {
        severity,
        about: ProblemSubject::Workload { namespace, name },
        title,
        evidence: instances.iter().take(MAX_EVIDENCE).map(|one| line(one, now_ms)).collect(),
        since_ms: None,
        changes: Vec::new(),
        culprit,
        more,
    }
}

/// A line such as `web-0: 3 times, last 12 s ago: was ended by SIGKILL`.
fn line((instance, ends): (&&str, &Vec<&Restart>), now_ms: u64) -> String {
    let often = ends.iter().map(|one| one.times).sum();
    let last = ends.iter().max_by_key(|one| one.at_ms);
    let last = last.map_or_else(String::new, |last| {
        let ago = now_ms.saturating_sub(last.at_ms) / 1000;
        format!(", last {ago} s ago: {}", last.ended)
    });
    format!("{instance}: {}{last}", times(often))
}

fn times(number: u32) -> String {
    match number {
        1 => "once".to_owned(),
        number => format!("{number} times"),
    }
}
