//! Describes what an edit of the files changes, and how many of the replaced instances take traffic again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Instant, SystemTime};

use leno_resources::{Documents, Kind, Object, ObjectKey};
use leno_types::InstanceName;

use crate::status::FileEdit;

/// Most objects that an edit names one by one.
const MAX_NAMED: usize = 20;

/// The objects of the running documents, with which an edit is compared.
pub(super) type RunningObjects = BTreeMap<ObjectKey, Object>;

/// The effect of an edit on one instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EditEffect {
    Starts,
    Replaced,
    /// The instance moves to another proxy and keeps running.
    Moves,
    Ends,
}

/// An instance that an edit affects.
#[derive(Clone, Debug)]
pub(super) struct AffectedInstance {
    pub(super) name: InstanceName,
    pub(super) workload: String,
    pub(super) effect: EditEffect,
}

/// The instances that an edit replaces, until all of them take traffic again.
#[derive(Debug, Default)]
pub(super) struct Replacements(BTreeMap<(String, String), Replacement>);

#[derive(Debug)]
struct Replacement {
    waiting: BTreeSet<InstanceName>,
    total: usize,
    begun: Instant,
}

/// The objects of documents, by their keys.
pub(super) fn objects(documents: &Documents) -> RunningObjects {
    let keyed = documents.objects.iter().map(|one| (one.value.key(), one.value.clone()));
    keyed.collect()
}

/// One line for each changed object, with the effect on instances.
pub(super) fn changes(
    before: &RunningObjects,
    after: &RunningObjects,
    affected: &[AffectedInstance],
) -> Vec<String> {
    let keys: BTreeSet<&ObjectKey> = before.keys().chain(after.keys()).collect();
    let mut lines: Vec<String> = keys
        .into_iter()
        .filter_map(|key| {
            let verb = match (before.get(key), after.get(key)) {
                (Some(before), Some(after)) if before == after => return None,
                (Some(_), Some(_)) => "changed",
                (None, _) => "added",
                (_, None) => "removed",
            };
            Some(format!("{key} {verb}; {}", effects(key, affected)))
        })
        .collect();
    if lines.is_empty() {
        return vec!["the files changed, but describe the same objects".to_owned()];
    }
    if lines.len() > MAX_NAMED {
        let more = lines.len() - MAX_NAMED;
        lines.truncate(MAX_NAMED);
        lines.push(format!("and {more} more objects"));
    }
    lines
}

/// Records an edit with the present time.
pub(super) fn edit(refused: bool, mut lines: Vec<String>) -> FileEdit {
    lines.truncate(MAX_NAMED + 1);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let at_unix_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    FileEdit { at_unix_ms, refused, lines }
}

/// Describes the effect of a changed object on instances.
fn effects(key: &ObjectKey, affected: &[AffectedInstance]) -> String {
    let concerned = |one: &&AffectedInstance| match key.kind {
        Kind::Workload => *one.name.namespace == *key.namespace && one.workload == key.name,
        Kind::Namespace => *one.name.namespace == *key.name,
        _ => false,
    };
    let count = |effect: EditEffect| {
        affected.iter().filter(concerned).filter(|one| one.effect == effect).count()
    };
    let instances = |number: usize| super::counted(number, "instance");
    let mut parts = Vec::new();
    match count(EditEffect::Replaced) {
        0 => {}
        1 => parts.push("1 instance is replaced".to_owned()),
        many => parts.push(format!("{many} instances are replaced, one at a time")),
    }
    match count(EditEffect::Moves) {
        0 => {}
        1 => parts.push("1 instance moves to another proxy without a restart".to_owned()),
        many => parts.push(format!("{many} instances move to other proxies without a restart")),
    }
    match count(EditEffect::Starts) {
        0 => {}
        1 => parts.push("1 instance starts".to_owned()),
        many => parts.push(format!("{} start", instances(many))),
    }
    match count(EditEffect::Ends) {
        0 => {}
        1 => parts.push("1 instance ends".to_owned()),
        many => parts.push(format!("{} end", instances(many))),
    }
    if parts.is_empty() { "nothing restarts".to_owned() } else { parts.join(", ") }
}

impl Replacements {
    /// Records which instances an edit replaces.
    pub(super) fn begin(&mut self, affected: &[AffectedInstance], now: Instant) {
        for one in affected.iter().filter(|one| one.effect == EditEffect::Replaced) {
            let key = (one.name.namespace.to_string(), one.workload.clone());
            let of = self.0.entry(key).or_insert_with(|| Replacement {
                waiting: BTreeSet::new(),
                total: 0,
                begun: now,
            });
            of.total += usize::from(of.waiting.insert(one.name.clone()));
        }
    }

    /// Returns the lines to print about the progress of an edit. `state` gives the present state of an instance:
    /// `None` if it is no longer wanted, else whether it was replaced and whether it takes traffic.
    pub(super) fn proceed(
        &mut self,
        now: Instant,
        state: impl Fn(&InstanceName) -> Option<bool>,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        for ((_, workload), of) in &mut self.0 {
            let before = of.waiting.len();
            of.waiting.retain(|name| state(name) == Some(false));
            let left = of.waiting.len();
            if left == before {
                continue;
            }
            let done = of.total - left;
            let mut line = format!("{workload}: {done} of {} replaced", of.total);
            if left == 0 {
                line += &format!(" after {:.0} s", (now - of.begun).as_secs_f64().ceil());
            }
            lines.push(line);
        }
        self.0.retain(|_, of| !of.waiting.is_empty());
        lines
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MESH: &str = "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
        metadata: {name: web, namespace: uni}\nspec: {command: [a], replicas: 3}\n---\n\
        apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: uni}\n\
        spec: {ports: [{port: 80}]}\n";

    fn parsed(text: &str) -> RunningObjects {
        objects(&leno_resources::parse("mesh.yaml", text).unwrap())
    }

    fn affected(effect: EditEffect, numbers: std::ops::Range<u32>) -> Vec<AffectedInstance> {
        let one = |number| AffectedInstance {
            name: InstanceName::new("uni", &format!("web-{number}")).unwrap(),
            workload: "web".to_owned(),
            effect,
        };
        numbers.map(one).collect()
    }

    #[test]
    fn an_edit_names_what_it_changes_and_what_restarts() {
        let before = parsed(MESH);
        let service = parsed(&MESH.replace("port: 80", "port: 81"));
        assert_eq!(changes(&before, &service, &[]), ["Service uni/web changed; nothing restarts"]);
        let workload = parsed(&MESH.replace("[a]", "[b]"));
        let replaced = affected(EditEffect::Replaced, 0..3);
        assert_eq!(
            changes(&before, &workload, &replaced),
            ["Workload uni/web changed; 3 instances are replaced, one at a time"]
        );
        let (_, shorter) = MESH.split_once("---\n").unwrap();
        assert_eq!(
            changes(&before, &parsed(shorter), &affected(EditEffect::Ends, 0..3)),
            ["Workload uni/web removed; 3 instances end"]
        );
        assert_eq!(
            changes(&before, &workload, &affected(EditEffect::Moves, 0..1)),
            ["Workload uni/web changed; 1 instance moves to another proxy without a restart"]
        );
        assert_eq!(
            changes(&before, &before, &[]),
            ["the files changed, but describe the same objects"]
        );
    }

    #[test]
    fn replacements_are_counted_until_the_last() {
        let begun = Instant::now();
        let mut replacements = Replacements::default();
        replacements.begin(&affected(EditEffect::Replaced, 0..3), begun);
        let done =
            |names: &'static [&str]| move |name: &InstanceName| Some(names.contains(&&*name.name));
        let mut at = |seconds, names| {
            replacements.proceed(begun + Duration::from_secs(seconds), done(names))
        };
        assert_eq!(at(1, &[]), [""; 0]);
        assert_eq!(at(2, &["web-0"]), ["web: 1 of 3 replaced"]);
        assert_eq!(at(3, &["web-0"]), [""; 0]);
        assert_eq!(at(6, &["web-0", "web-1", "web-2"]), ["web: 3 of 3 replaced after 6 s"]);
        assert_eq!(at(7, &["web-0", "web-1", "web-2"]), [""; 0]);
    }
}
