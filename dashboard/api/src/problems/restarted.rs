//! Proxies that were started again: connections that they had were cut, and new ones refused until they were back.

use std::collections::BTreeMap;

use leno_observe::stat::Name;

use super::{MAX_EVIDENCE, text};
use crate::api::{About, Problem, RestartedProxy, Severity, State};

/// Finds the workloads whose proxies were started again between two moments.
pub(super) fn find(state: &State, (from_ms, to_ms): (u64, u64), all: &mut Vec<Problem>) {
    let mut workloads: BTreeMap<Name, BTreeMap<&str, Vec<&RestartedProxy>>> = BTreeMap::new();
    for one in state.restarted.iter().filter(|one| from_ms < one.at_ms && one.at_ms <= to_ms) {
        let name = (one.namespace.clone(), one.workload.clone());
        workloads.entry(name).or_default().entry(&one.instance).or_default().push(one);
    }
    for (name, instances) in workloads {
        let often = instances.values().flatten().map(|one| one.times).sum();
        let whose = match instances.keys().next() {
            Some(instance) if instances.len() == 1 => {
                format!("the proxy of {}", text(&(name.0.clone(), (*instance).to_owned())))
            }
            _ => format!("proxies of {}", text(&name)),
        };
        let were = if instances.len() == 1 { "was" } else { "were" };
        all.push(Problem {
            severity: Severity::Warning,
            title: format!("{whose} {were} started again {}", times(often)),
            evidence: instances.iter().take(MAX_EVIDENCE).map(|one| line(one, to_ms)).collect(),
            since_ms: None,
            changes: Vec::new(),
            about: About::Workload { namespace: name.0, name: name.1 },
        });
    }
}

/// `web-0: 3 times, last 12 s ago: was ended by SIGKILL`
fn line((instance, starts): (&&str, &Vec<&RestartedProxy>), now_ms: u64) -> String {
    let often = starts.iter().map(|one| one.times).sum();
    let last = starts.iter().max_by_key(|one| one.at_ms);
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
