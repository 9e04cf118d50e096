//! Finds the pod templates in documents of all kinds.

use crate::inject::{PodContext, PodOutcome, inject};
use crate::settings::InjectionSettings;
use crate::uninject::uninject;
use crate::value::JsonValue;

/// The path of the pod template in each kind that creates pods. A pod is its own template.
const TEMPLATES: [(&str, &[&str]); 8] = [
    ("Pod", &[]),
    ("Deployment", &["spec", "template"]),
    ("StatefulSet", &["spec", "template"]),
    ("DaemonSet", &["spec", "template"]),
    ("ReplicaSet", &["spec", "template"]),
    ("ReplicationController", &["spec", "template"]),
    ("Job", &["spec", "template"]),
    ("CronJob", &["spec", "jobTemplate", "spec", "template"]),
];
/// The API groups of these kinds. Other groups may have kinds with the same names.
const GROUPS: [&str; 3] = ["", "apps", "batch"];
/// Deepest nesting of lists. `kubectl` does not nest them at all.
const MAX_DEPTH: usize = 4;

/// What was done with one object that creates pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InjectionReport {
    /// The object's kind, namespace and name, such as `Deployment shop/web`.
    pub object: String,
    /// The outcome for the object.
    pub said: InjectionOutcome,
}

/// The outcome for an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InjectionOutcome {
    /// The object was changed.
    Changed,
    /// The object was not changed, for this reason.
    Skipped(String),
    /// The object should have been changed but cannot be, for this reason.
    Failed(String),
}

/// Adds the proxy to every pod template of a document, and returns a report for each, in their order. A document
/// that creates no pods has no reports. `enclosing` returns the context of pods in a namespace; its argument is
/// `None` for an object without a namespace.
#[must_use]
pub fn inject_document(
    document: &mut JsonValue,
    settings: &InjectionSettings,
    enclosing: impl Fn(Option<&str>) -> PodContext,
) -> Vec<InjectionReport> {
    let mut reports = Vec::new();
    each(document, None, 0, &mut |object, namespace, template| {
        let said = match inject(template, settings, &enclosing(namespace)) {
            Ok(PodOutcome::Injected) => InjectionOutcome::Changed,
            Ok(PodOutcome::Skipped(left)) => InjectionOutcome::Skipped(left.to_string()),
            Err(error) => InjectionOutcome::Failed(error.to_string()),
        };
        reports.push(InjectionReport { object, said });
    });
    reports
}

/// Removes the proxy from every pod template of a document, and returns a report for each, in their order.
#[must_use]
pub fn uninject_document(document: &mut JsonValue) -> Vec<InjectionReport> {
    let mut reports = Vec::new();
    each(document, None, 0, &mut |object, _, template| {
        let said = match uninject(template) {
            Ok(true) => InjectionOutcome::Changed,
            Ok(false) => InjectionOutcome::Skipped("no proxy was injected into it".to_owned()),
            Err(error) => InjectionOutcome::Failed(error.to_string()),
        };
        reports.push(InjectionReport { object, said });
    });
    reports
}

/// Calls a function for all templates of a document. `implied` is the kind of list items that have no kind
/// themselves, as in a `PodList`.
fn each(
    document: &mut JsonValue,
    implied: Option<&str>,
    depth: usize,
    work: &mut impl FnMut(String, Option<&str>, &mut JsonValue),
) {
    let text = |field: &str| document.get(field).and_then(JsonValue::text);
    let group = text("apiVersion").and_then(|version| version.split_once('/'));
    let group = group.map_or("", |(group, _)| group).to_owned();
    let Some(kind) = text("kind").or(implied).map(str::to_owned) else { return };
    if let Some(of) = kind.strip_suffix("List") {
        let of = (!of.is_empty()).then_some(of);
        if let (true, Some(JsonValue::List(items))) = (depth < MAX_DEPTH, document.get_mut("items"))
        {
            items.iter_mut().for_each(|item| each(item, of, depth + 1, work));
        }
        return;
    }
    let Some((_, path)) = TEMPLATES.iter().find(|(known, _)| *known == kind) else { return };
    if !GROUPS.contains(&&*group) || document.at(path).is_none() {
        return;
    }
    let object = object(&kind, document);
    let namespace = document.at(&["metadata", "namespace"]).and_then(JsonValue::text);
    let namespace = namespace.map(str::to_owned);
    let template = path.iter().try_fold(document, |value, field| value.get_mut(field));
    if let Some(template) = template {
        work(object, namespace.as_deref(), template);
    }
}

fn object(kind: &str, document: &JsonValue) -> String {
    let text = |field: &str| document.at(&["metadata", field]).and_then(JsonValue::text);
    let name = text("name").or_else(|| text("generateName")).unwrap_or("without a name");
    match text("namespace") {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}
