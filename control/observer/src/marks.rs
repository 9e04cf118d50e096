//! Detects what has changed in the cluster since the last observation, and records it as marks in the history.
//!
//! Every line of a mark begins with its object, such as `Deployment shop/cart` or `shop/cart-0`, and names no
//! other object. So a reader who may see only some namespaces can be shown only their lines
//! (`leno_dashboard::visible_namespaces`).

use std::collections::{BTreeMap, BTreeSet};

use leno_dashboard::history::{Mark, MarkKind};
use leno_dashboard::visible_namespaces::namespace_in;

use crate::scrape::NamedPod;

/// The namespace, kind and name of an object that owns pods.
type OwnerKey = (String, String, String);

/// The state at the last observation, with which the next one is compared.
#[derive(Debug, Default)]
pub(crate) struct ChangeDetector {
    /// The versions of the pod templates of each owner; `None` before the first observation.
    templates: Option<BTreeMap<OwnerKey, BTreeSet<String>>>,
    /// How many times the applications of each pod were restarted, by namespace and pod.
    restarts: BTreeMap<(String, String), u32>,
}

impl ChangeDetector {
    /// The changes since the last observation. `edits` are lines about edited objects, which are included.
    pub(crate) fn look(&mut self, pods: &[NamedPod], edits: Vec<String>, now_ms: u64) -> Vec<Mark> {
        let meshed = || pods.iter().filter(|(_, pod)| pod.meshed && !pod.ending);
        let mut templates: BTreeMap<OwnerKey, BTreeSet<String>> = BTreeMap::new();
        let mut restarts = BTreeMap::new();
        let mut again = Vec::new();
        for (workload, pod) in meshed() {
            if let Some(template) = &pod.template {
                let owner = (pod.namespace.clone(), pod.owner.kind.clone(), pod.owner.name.clone());
                templates.entry(owner).or_default().insert(template.clone());
            }
            let ends = pod.application_ends(workload);
            let key = (pod.namespace.clone(), pod.name.clone());
            if self.restarts.get(&key).is_some_and(|before| ends.times > *before) {
                let how = ends.ended.as_deref().unwrap_or("it ended");
                again.push(format!("{}/{} was restarted: {how}", key.0, key.1));
            }
            restarts.insert(key, ends.times);
        }
        self.restarts = restarts;
        let before = self.templates.replace(templates.clone());
        let changed = templates.iter().filter_map(|(owner, now)| {
            let known = before.as_ref()?.get(owner)?;
            let (namespace, kind, name) = owner;
            (!now.is_subset(known))
                .then(|| format!("{kind} {namespace}/{name} changed; its pods are replaced"))
        });
        let changed: Vec<String> = edits.into_iter().chain(changed).collect();
        let both = [(MarkKind::Documents, changed), (MarkKind::Instance, again)];
        let marks = both.into_iter().flat_map(|(kind, lines)| {
            by_namespace(lines).into_values().map(move |lines| Mark { at_ms: now_ms, kind, lines })
        });
        marks.collect()
    }
}

/// The lines by namespace. Each namespace gets a separate mark, because the number of lines in a mark is limited:
/// many changes in one namespace must not displace those of another.
fn by_namespace(lines: Vec<String>) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in lines {
        let namespace = namespace_in(&line).unwrap_or_default().to_owned();
        all.entry(namespace).or_default().push(line);
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pods::ObservedPod;
    use crate::pods::tests::{in_mesh, pod};

    #[test]
    fn a_rollout_and_a_restart_are_changes_once() {
        let status = |restarts: i32| {
            json!({"phase": "Running", "containerStatuses": [{"name": "application", "image": "i", "imageID": "",
                "ready": true, "restartCount": restarts,
                "lastState": {"terminated": {"exitCode": 3}}}]})
        };
        let named = |pods: Vec<ObservedPod>| -> Vec<NamedPod> {
            pods.into_iter().map(|pod| (pod.owner.name.as_str().into(), in_mesh(pod))).collect()
        };
        let versioned = |mut pod: ObservedPod, version: &str| {
            pod.template = Some(version.to_owned());
            pod
        };
        let version = |name: &str, version: &str| versioned(pod(name, status(0)), version);
        let mut changes = ChangeDetector::default();
        let mut look = |pods: Vec<ObservedPod>| {
            let marks = changes.look(&named(pods), Vec::new(), 5_000);
            marks.into_iter().flat_map(|mark| mark.lines).collect::<Vec<_>>()
        };
        assert!(look(vec![version("web-a", "1")]).is_empty(), "it is there at the first look");
        let both = || vec![version("web-a", "1"), version("web-b", "2")];
        assert_eq!(look(both()), ["Deployment shop/web changed; its pods are replaced"]);
        assert!(look(both()).is_empty());
        assert!(look(vec![version("web-b", "2")]).is_empty());
        let again = versioned(pod("web-b", status(1)), "2");
        assert_eq!(look(vec![again]), ["shop/web-b was restarted: exited with 3"]);
    }

    #[test]
    fn changes_of_two_namespaces_are_two_marks() {
        let edits = ["HTTPRoute shop/a changed", "Service bank/b added", "Service shop/c removed"];
        let edits = edits.map(str::to_owned).into();
        let marks = ChangeDetector::default().look(&[], edits, 5_000);
        let lines: Vec<_> = marks.iter().map(|mark| mark.lines.join(", ")).collect();
        assert_eq!(
            lines,
            ["Service bank/b added", "HTTPRoute shop/a changed, Service shop/c removed"]
        );
    }
}
