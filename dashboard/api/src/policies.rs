//! Finds what each policy selects, from its document and the labels of workloads.
//!
//! A collector keeps a [`PolicyDocument`] of each policy. [`PolicyDocument::selection`] then finds what it selects
//! among the present workloads and services.

use std::collections::{BTreeMap, BTreeSet};

use leno_observe::stat::NamespacedName;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fair::keep_fairly_of;
use crate::inventory::Policy;

/// Most targets of a policy that are kept. The Gateway API permits no more.
const MAX_TARGETS: usize = 16;
/// Most labels of a selector that are kept.
const MAX_LABELS: usize = 64;
/// Longest name or label that is kept, in bytes. This is Kubernetes' limit for a name with a prefix.
const MAX_TEXT: usize = 600;
/// Most workloads of one policy that are named. An answer states the number of the others.
const MAX_NAMED: usize = 200;
/// Most workloads that are named for all policies together. Each name costs some hundred bytes, in the collector
/// and in every answer.
const MAX_NAMED_OF_ALL: usize = 32_768;
/// Most policies that are shown.
pub(crate) const MAX_POLICIES: usize = 10_000;
/// Longest description of a policy's selection, in bytes.
const MAX_WORDS: usize = 1_024;

/// Labels of a workload, or of a selector.
pub type Labels = BTreeMap<String, String>;

/// The parts of a policy that are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyDocument {
    /// The kind, such as `AuthorizationPolicy`.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The action for a request that matches, such as `Allow` or `Deny`. Empty for kinds without actions.
    pub action: String,
    /// The number of its rules.
    pub rules: usize,
    targets: Vec<Target>,
    /// The labels that select workloads in the policy's namespace; `None` if the policy has no selector.
    selector: Option<Labels>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    kind: String,
    name: String,
    section: String,
}

/// The present workloads and services, from which policies select.
#[derive(Clone, Debug, Default)]
pub struct SelectableObjects<'a> {
    /// The namespace of the control plane, in which alone policies may select the whole mesh. `None` if policies
    /// of any namespace may.
    pub system: Option<&'a str>,
    /// The workloads by namespace, with the labels of their instances. A workload may occur several times.
    pub workloads: BTreeMap<String, Vec<(String, &'a Labels)>>,
    /// The selectors of services. A service with an empty selector selects the workload with the same name.
    pub services: BTreeMap<NamespacedName, &'a Labels>,
}

/// The objects that a policy selects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySelection {
    /// A description, such as `workloads with app=web` or `Service cart port http`.
    pub selects: Vec<String>,
    /// The selected workloads, by namespace and name; empty for routes, which select requests.
    pub workloads: Vec<NamespacedName>,
    /// How many selected workloads are not named. 0 for a policy of the whole mesh if the reader may not see all
    /// namespaces.
    pub left_out: usize,
    /// Whether the policy selects the whole mesh, so that `left_out` counts workloads of any namespace.
    #[serde(skip)]
    pub(crate) is_of_mesh: bool,
}

impl<'a> SelectableObjects<'a> {
    /// Adds instances of a workload that have the same labels.
    pub fn add(&mut self, (namespace, name): NamespacedName, labels: &'a Labels) {
        self.workloads.entry(namespace).or_default().push((name, labels));
    }
}

impl PolicyDocument {
    fn key(&self) -> (&str, &str, &str) {
        (&self.kind, &self.namespace, &self.name)
    }

    /// The policy with this `spec`. Unknown fields, for example of a newer version, are ignored.
    #[must_use]
    pub fn new(kind: &str, (namespace, name): (&str, &str), spec: &Value) -> Self {
        let text = |value: &Value| value.as_str().map_or_else(String::new, bounded);
        let target = |one: &Value| Target {
            kind: text(&one["kind"]),
            name: text(&one["name"]),
            section: text(&one["sectionName"]),
        };
        let targets = spec["targetRefs"].as_array().into_iter().flatten();
        let rules = ["rules", "limits"].iter().find_map(|field| spec[*field].as_array());
        let labels = spec["selector"]["matchLabels"].as_object();
        let label = |(key, value): (&String, &Value)| (bounded(key), text(value));
        let action = match (kind, spec["action"].as_str()) {
            (_, Some(action)) => bounded(action),
            ("AuthorizationPolicy", None) => "Allow".to_owned(),
            _ => String::new(),
        };
        Self {
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            action,
            rules: rules.map_or(0, Vec::len),
            targets: targets.take(MAX_TARGETS).map(target).collect(),
            selector: spec["selector"]
                .is_object()
                .then(|| labels.into_iter().flatten().take(MAX_LABELS).map(label).collect()),
        }
    }

    /// What the policy selects among these objects. At most `places` workloads are named.
    pub(crate) fn selection(&self, of: &SelectableObjects<'_>, places: usize) -> PolicySelection {
        let mut selects = Vec::new();
        let mut workloads: BTreeSet<(&str, &str)> = BTreeSet::new();
        let with = |wanted: &Labels, labels: &Labels| {
            wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
        };
        let own = || {
            let own = of.workloads.get_key_value(&self.namespace).into_iter();
            own.flat_map(|(namespace, all)| {
                all.iter().map(move |(name, labels)| (&**namespace, &**name, *labels))
            })
        };
        let mut add = |wanted: &dyn Fn(&str, &Labels) -> bool| {
            let all = own().filter(|(_, name, labels)| wanted(name, labels));
            workloads.extend(all.map(|(namespace, name, _)| (namespace, name)));
        };
        if let Some(wanted) = &self.selector {
            selects.push(match wanted.is_empty() {
                true => "all workloads of the namespace".to_owned(),
                false => format!("workloads with {}", labelled(wanted)),
            });
            add(&|_, labels| with(wanted, labels));
        }
        let mut is_of_mesh = false;
        for target in &self.targets {
            selects.push(target.words());
            let service = || of.services.get(&(self.namespace.clone(), target.name.clone()));
            match &*target.kind {
                "Workload" => add(&|name, _| name == target.name),
                "Namespace" => add(&|_, _| true),
                "Mesh" | "XMesh" => {
                    is_of_mesh |= of.system.is_none_or(|system| system == self.namespace)
                }
                "Service" => match service() {
                    Some(wanted) if wanted.is_empty() => add(&|name, _| name == target.name),
                    Some(wanted) => add(&|_, labels| with(wanted, labels)),
                    None => {}
                },
                _ => {}
            }
        }
        if is_of_mesh {
            let all = of.workloads.iter().flat_map(|(namespace, all)| {
                all.iter().map(move |(name, _)| (&**namespace, &**name))
            });
            workloads.extend(all);
        }
        let left_out = workloads.len().saturating_sub(places);
        let named = workloads.into_iter().take(places);
        let workloads =
            named.map(|(namespace, name)| (namespace.to_owned(), name.to_owned())).collect();
        PolicySelection { selects: worded(selects), workloads, left_out, is_of_mesh }
    }
}

/// The policies that are shown, each with what it selects.
#[derive(Clone, Debug, Default)]
pub struct MatchedPolicies {
    /// The policies, by kind, namespace and name.
    pub policies: Vec<Policy>,
    /// How many policies were dropped because the list was full, by namespace.
    pub(crate) left_out: BTreeMap<String, usize>,
}

impl MatchedPolicies {
    /// Matches policies with the present objects. The number of policies is limited, and the namespaces share this
    /// limit; the number of named workloads is limited, and the policies of each namespace share that limit. So no
    /// namespace displaces the policies of others.
    #[must_use]
    pub fn of<'a>(
        documents: impl Iterator<Item = &'a PolicyDocument>,
        of: &SelectableObjects<'_>,
    ) -> Self {
        Self::at_most((MAX_POLICIES, MAX_NAMED_OF_ALL), documents, of)
    }

    fn at_most<'a>(
        (most, most_named): (usize, usize),
        documents: impl Iterator<Item = &'a PolicyDocument>,
        of: &SelectableObjects<'_>,
    ) -> Self {
        let mut all: Vec<&PolicyDocument> = documents.collect();
        all.sort_by(|a, b| a.key().cmp(&b.key()));
        let left_out = keep_fairly_of(&mut all, most, |one| &one.namespace);
        let mut by_namespace: BTreeMap<&str, Vec<&PolicyDocument>> = BTreeMap::new();
        for one in all {
            by_namespace.entry(&one.namespace).or_default().push(one);
        }
        // Namespaces with few policies come first, so that the others can share the places that these leave.
        let mut namespaces: Vec<Vec<&PolicyDocument>> = by_namespace.into_values().collect();
        namespaces.sort_by_key(Vec::len);
        let (mut policies, mut places) = (Vec::new(), most_named);
        let mut shares = namespaces.len();
        for documents in namespaces {
            let mut own = places / shares;
            shares -= 1;
            let mut to_match = documents.len();
            for document in documents {
                let policy = Policy::new(document, of, MAX_NAMED.min(own / to_match));
                to_match -= 1;
                own -= policy.selection.workloads.len();
                places -= policy.selection.workloads.len();
                policies.push(policy);
            }
        }
        policies.sort_by(|a, b| a.key().cmp(&b.key()));
        Self { policies, left_out }
    }
}

/// Shortens the description to its maximum length.
fn worded(mut words: Vec<String>) -> Vec<String> {
    let mut places = MAX_WORDS;
    for text in &mut words {
        if text.len() > places {
            text.truncate(text.floor_char_boundary(places));
            text.push('…');
        }
        places = places.saturating_sub(text.len());
    }
    words
}

impl Target {
    fn words(&self) -> String {
        match (&*self.kind, &*self.section) {
            ("Namespace", _) => "all workloads of the namespace".to_owned(),
            ("Mesh" | "XMesh", _) => "all workloads of the mesh".to_owned(),
            (kind, "") => format!("{kind} {}", self.name),
            ("Service", port) => format!("Service {} port {port}", self.name),
            (kind, rule) => format!("{kind} {} rule {rule}", self.name),
        }
    }
}

fn labelled(labels: &Labels) -> String {
    let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(", ")
}

/// Shortens the text to its maximum length.
fn bounded(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT)].to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn name(namespace: &str, name: &str) -> NamespacedName {
        (namespace.to_owned(), name.to_owned())
    }

    #[test]
    fn a_policy_selects_by_labels_and_by_each_kind_of_target() {
        let (web, cart, none) =
            (labels(&[("app", "web")]), labels(&[("app", "cart")]), Labels::new());
        let mut of = SelectableObjects {
            system: Some("leno-system"),
            services: [(name("shop", "front"), &web), (name("shop", "cart"), &none)].into(),
            ..SelectableObjects::default()
        };
        of.add(name("shop", "web"), &web);
        of.add(name("shop", "web"), &web);
        of.add(name("shop", "cart"), &cart);
        of.add(name("bank", "web"), &web);
        let select = |namespace: &str, spec: Value| {
            let policy = PolicyDocument::new("AuthorizationPolicy", (namespace, "p"), &spec);
            let selection = policy.selection(&of, MAX_NAMED);
            let names = selection.workloads.iter().map(|(of, name)| format!("{of}/{name}"));
            (selection.selects.join("; "), names.collect::<Vec<_>>().join(" "))
        };
        let target = |kind: &str, name: &str| json!({"targetRefs": [{"kind": kind, "name": name}]});
        for (namespace, spec, words, names) in [
            (
                "shop",
                json!({"selector": {"matchLabels": {"app": "web"}}}),
                "workloads with app=web",
                "shop/web",
            ),
            (
                "shop",
                json!({"selector": {}}),
                "all workloads of the namespace",
                "shop/cart shop/web",
            ),
            ("shop", target("Service", "front"), "Service front", "shop/web"),
            ("shop", target("Service", "cart"), "Service cart", "shop/cart"),
            ("shop", target("Service", "nosuch"), "Service nosuch", ""),
            ("shop", target("Workload", "cart"), "Workload cart", "shop/cart"),
            ("bank", target("Namespace", "bank"), "all workloads of the namespace", "bank/web"),
            (
                "leno-system",
                target("Mesh", "leno"),
                "all workloads of the mesh",
                "bank/web shop/cart shop/web",
            ),
            ("bank", target("Mesh", "leno"), "all workloads of the mesh", ""),
            ("shop", target("HTTPRoute", "cart"), "HTTPRoute cart", ""),
            ("shop", json!({}), "", ""),
        ] {
            assert_eq!(
                select(namespace, spec.clone()),
                (words.to_owned(), names.to_owned()),
                "{spec}"
            );
        }
        let port =
            json!({"targetRefs": [{"kind": "Service", "name": "front", "sectionName": "http"}]});
        assert_eq!(select("shop", port).0, "Service front port http");
    }

    #[test]
    fn the_kept_parts_of_a_policy_are_bounded() {
        let spec = json!({"rules": [{}, {}], "action": "Deny", "targetRefs": vec![json!({"kind": "x".repeat(9_000)}); 99]});
        let policy = PolicyDocument::new("AuthorizationPolicy", ("shop", "p"), &spec);
        assert_eq!((policy.rules, &*policy.action, policy.targets.len()), (2, "Deny", MAX_TARGETS));
        assert_eq!(policy.targets[0].kind.len(), MAX_TEXT);
        let (none, mut of) = (Labels::new(), SelectableObjects::default());
        (0..MAX_NAMED + 7).for_each(|nth| of.add(name("shop", &nth.to_string()), &none));
        let all = PolicyDocument::new("x", ("shop", "p"), &json!({"selector": {}}));
        let selection = all.selection(&of, MAX_NAMED);
        assert_eq!((selection.workloads.len(), selection.left_out), (MAX_NAMED, 7));
    }

    /// Some policies of a namespace, each of which selects all workloads in it.
    fn full(namespace: &str, policies: usize) -> Vec<PolicyDocument> {
        let document = |nth: usize| {
            let spec = json!({"selector": {}});
            PolicyDocument::new("AuthorizationPolicy", (namespace, &format!("p{nth:06}")), &spec)
        };
        (0..policies).map(document).collect()
    }

    #[test]
    fn policies_and_the_workloads_that_they_name_are_bounded_together_and_fairly() {
        let none = Labels::new();
        let mut of = SelectableObjects::default();
        for namespace in ["a", "b", "c"] {
            (0..300).for_each(|nth| of.add(name(namespace, &nth.to_string()), &none));
        }
        let documents = [full("a", MAX_POLICIES), full("b", 2), full("c", 20)].concat();
        let all = MatchedPolicies::of(documents.iter(), &of);
        assert_eq!(all.policies.len(), MAX_POLICIES);
        assert_eq!(all.left_out, [("a".to_owned(), 22)].into());
        let named = |all: &MatchedPolicies, namespace: &str| -> usize {
            let own = all.policies.iter().filter(|one| one.namespace == namespace);
            own.map(|one| one.selection.workloads.len()).sum()
        };
        assert_eq!((named(&all, "b"), named(&all, "c")), (2 * MAX_NAMED, 20 * MAX_NAMED));
        assert_eq!(named(&all, "a"), MAX_NAMED_OF_ALL - 22 * MAX_NAMED);
        for one in &all.policies {
            assert_eq!(one.selection.workloads.len() + one.selection.left_out, 300);
        }
        // There are fewer places than policies, and each namespace gets its share.
        let few =
            MatchedPolicies::at_most((MAX_POLICIES, 30), documents[MAX_POLICIES..].iter(), &of);
        assert_eq!((named(&few, "b"), named(&few, "c")), (15, 15));
    }

    #[test]
    fn the_words_of_what_a_policy_selects_are_bounded() {
        let long: Labels =
            (0..60).map(|nth| (format!("{nth}é{}", "x".repeat(500)), String::new())).collect();
        let target = json!({"kind": "Workload", "name": "é".repeat(900)});
        let spec = json!({"selector": {"matchLabels": long}, "targetRefs": vec![target; 16]});
        let policy = PolicyDocument::new("AuthorizationPolicy", ("shop", "p"), &spec);
        let words = policy.selection(&SelectableObjects::default(), MAX_NAMED).selects;
        assert_eq!(words.len(), 17);
        assert!(words.concat().len() <= MAX_WORDS + 17 * '…'.len_utf8());
    }
}
