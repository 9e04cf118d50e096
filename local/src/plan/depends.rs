//! Checks the dependencies between workloads: every name must exist, every condition must be possible, and there
//! must be no cycle.

use std::collections::BTreeMap;

use leno_resources::{DependencyCondition, Object, RestartPolicy, Workload};
use leno_types::nearest;

use super::Draft;

/// A workload by namespace and name.
type Key = (String, String);
type Workloads<'a> = BTreeMap<Key, &'a Workload>;

/// The conditions that must be satisfied before a workload starts.
pub(super) fn wanted(workload: &Workload) -> BTreeMap<Key, DependencyCondition> {
    let named = workload.spec.depends_on.iter();
    named.map(|(name, dependency)| (resolved(workload, name), dependency.condition)).collect()
}

fn key_of(workload: &Workload) -> Key {
    (workload.metadata.namespace.clone(), workload.metadata.name.clone())
}

/// The workload that `written` in workload `of` refers to. It has the form `name` or `namespace/name`.
fn resolved(of: &Workload, written: &str) -> Key {
    let (namespace, name) = written.split_once('/').unwrap_or((&of.metadata.namespace, written));
    (namespace.to_owned(), name.to_owned())
}

impl Draft<'_> {
    /// Rejects dependencies that can never be satisfied.
    pub(super) fn check_dependencies(&mut self) {
        let documents = self.documents;
        let mut all = Workloads::new();
        for located in &documents.objects {
            if let Object::Workload(workload) = &located.value {
                all.insert(key_of(workload), workload);
            }
        }
        for located in &documents.objects {
            let Object::Workload(workload) = &located.value else { continue };
            let own = key_of(workload);
            let mut sound = true;
            for (written, dependency) in &workload.spec.depends_on {
                let key = resolved(workload, written);
                if let Some(reason) = impossible(&all, &key, dependency.condition) {
                    self.problem(located, &format!("spec.dependsOn.{written}"), reason);
                    sound = false;
                }
            }
            // A cycle is reported once, at its first member.
            if let Some(cycle) = cycle(&all, &own).filter(|_| sound)
                && cycle.iter().min() == Some(&own)
            {
                let names: Vec<String> =
                    cycle.iter().chain([&own]).map(|(_, name)| name.clone()).collect();
                let reason = format!(
                    "these wait for each other: {}: remove one of the dependencies",
                    names.join(" -> ")
                );
                self.problem(located, "spec.dependsOn", reason);
            }
        }
    }
}

/// Why the condition on workload `key` can never be satisfied; `None` if it can.
fn impossible(all: &Workloads<'_>, key: &Key, condition: DependencyCondition) -> Option<String> {
    let (namespace, name) = key;
    let Some(workload) = all.get(key) else {
        let same = all.keys().filter(|(one, _)| one == namespace).map(|(_, name)| name.as_str());
        return Some(match nearest(name, same) {
            Some(meant) => {
                format!("there is no Workload {namespace}/{name}: did you mean {meant}?")
            }
            None => format!("there is no Workload {namespace}/{name}"),
        });
    };
    let spec = &workload.spec;
    if spec.replicas == 0 {
        return Some(format!(
            "{name} has no replicas, so it will never be {condition}: give it a \
             replica, or remove the dependency"
        ));
    }
    if spec.cron.is_some() {
        return Some(format!(
            "{name} runs on a schedule, so nothing can wait for it: remove the \
             dependency"
        ));
    }
    match (condition, spec.restart) {
        (DependencyCondition::Completed, RestartPolicy::Always) => Some(format!(
            "{name} never completes, because it is restarted whenever it ends: set \
             restart: on-failure for it"
        )),
        _ => None,
    }
}

/// The cycle of dependencies from a workload back to itself, with that workload only at the start.
fn cycle(all: &Workloads<'_>, from: &Key) -> Option<Vec<Key>> {
    let mut pending = vec![vec![from.clone()]];
    let mut seen = std::collections::BTreeSet::new();
    while let Some(way) = pending.pop() {
        let last = way.last()?;
        let Some(workload) = all.get(last) else { continue };
        for next in wanted(workload).into_keys() {
            if next == *from {
                return Some(way);
            }
            if seen.insert(next.clone()) {
                let mut longer = way.clone();
                longer.push(next);
                pending.push(longer);
            }
        }
    }
    None
}
