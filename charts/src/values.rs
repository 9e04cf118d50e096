//! What an installation can be told: the chart's values, typed.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Error, VALUES};

/// Everything that `values.yaml` has, which says what each is for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Values {
    /// Where images come from.
    pub image: Image,
    /// The trust domain of identities.
    pub trust_domain: String,
    /// What workloads do with plaintext where no annotation says.
    pub mtls: Mtls,
    /// Whether workloads may call what the mesh does not know, where no annotation says.
    pub egress: Egress,
    /// Three replicas of the control plane on different nodes.
    pub ha: bool,
    /// The control plane.
    pub controller: Controller,
    /// The agents of the nodes.
    pub agent: Agent,
    /// The proxies that are put into pods.
    pub proxy: Proxy,
    /// What the API server asks the control plane.
    pub webhook: Webhook,
}

/// Where images come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Image {
    /// What comes before their names, without the slash; may be empty.
    pub registry: String,
    /// Their tag; Leno's version where empty.
    pub tag: String,
    /// When a node fetches them.
    pub pull_policy: PullPolicy,
}

/// When a node fetches an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[expect(missing_docs, reason = "Kubernetes' own words")]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

/// What workloads do with plaintext.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Mtls {
    /// It is refused.
    Strict,
    /// It is served, and encrypted where both sides can.
    Permissive,
    /// All is plaintext.
    Disabled,
}

/// What workloads may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Egress {
    /// Anything.
    Allow,
    /// What the mesh knows.
    Deny,
}

/// The control plane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Controller {
    /// How many replicas; 0 means one, or three with `ha`.
    pub replicas: u32,
    /// How long workloads' certificates hold.
    pub cert_lifetime: String,
    /// What is logged.
    pub log: String,
    /// What it asks of a node, and may use there (Kubernetes' `ResourceRequirements`).
    pub resources: Map<String, Value>,
}

/// The agents of the nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Agent {
    /// Where the nodes keep their CNI configuration.
    pub cni_configuration: String,
    /// Where they keep their CNI plugins.
    pub cni_plugins: String,
    /// Where their kubelet keeps its pods.
    pub kubelet: String,
    /// What is logged.
    pub log: String,
    /// What they ask of a node, and may use there (Kubernetes' `ResourceRequirements`).
    pub resources: Map<String, Value>,
}

/// The proxies that are put into pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Proxy {
    /// As what they run.
    pub shape: Shape,
    /// What is logged.
    pub log: String,
}

/// As what a proxy runs in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// A native sidecar (KEP-753).
    Sidecar,
    /// An ordinary container, for Kubernetes before 1.29.
    Container,
}

/// What the API server asks the control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Webhook {
    /// What becomes of pods while nobody answers.
    pub failure_policy: FailurePolicy,
}

/// What becomes of pods that should have a proxy while no controller answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum FailurePolicy {
    /// They are not made.
    Fail,
    /// They are made without one.
    Ignore,
}

impl Values {
    /// The values that the chart has.
    ///
    /// # Panics
    /// Never: a test reads them.
    #[must_use]
    pub fn defaults() -> Self {
        let text: Value = serde_saphyr::from_str(VALUES).expect("values.yaml is YAML");
        serde_json::from_value(text).expect("values.yaml has what the chart wants")
    }

    /// The chart's values, changed by files (in their order) and then by settings, `controller.log=debug`.
    ///
    /// # Errors
    /// A file that is no YAML, a setting without `=`, a name that the chart does not have, or a value that
    /// its name cannot have.
    pub fn load(files: &[(String, String)], settings: &[String]) -> Result<Self, Error> {
        let mut values = serde_json::to_value(Self::defaults()).expect("values are plain data");
        for (name, text) in files {
            let changes: Value = serde_saphyr::from_str(text)
                .map_err(|error| Error::Values(name.clone(), error.to_string()))?;
            if !changes.is_null() {
                merge(&mut values, changes);
                check(&values).map_err(|reason| Error::Values(name.clone(), reason))?;
            }
        }
        for setting in settings {
            let (path, text) = setting
                .split_once('=')
                .ok_or_else(|| Error::Values(setting.clone(), "write NAME=VALUE".to_owned()))?;
            let there = values.pointer(&format!("/{}", path.replace('.', "/")));
            // A tag may look like a number.
            let is_text = there.is_some_and(Value::is_string) && text != "null";
            let value = if is_text { Value::from(text) } else { plain(text) };
            let change = path
                .rsplit('.')
                .fold(value, |inner, key| Value::Object(Map::from_iter([(key.to_owned(), inner)])));
            merge(&mut values, change);
            check(&values).map_err(|reason| Error::Values(setting.clone(), reason))?;
        }
        serde_json::from_value(values)
            .map_err(|error| Error::Values("values".to_owned(), error.to_string()))
    }
}

impl Image {
    /// The image called `name` of an installation of `version`, as the chart names it.
    #[must_use]
    pub fn named(&self, name: &str, version: &str) -> String {
        let tag = if self.tag.is_empty() { version } else { &self.tag };
        match self.registry.as_str() {
            "" => format!("{name}:{tag}"),
            registry => format!("{registry}/{name}:{tag}"),
        }
    }
}

fn check(values: &Value) -> Result<(), String> {
    serde_json::from_value::<Values>(values.clone()).map(drop).map_err(|error| error.to_string())
}

/// A setting's value as Helm's `--set` takes it: truth, number or text.
fn plain(value: &str) -> Value {
    match value {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        "null" => Value::Null,
        number => number.parse::<i64>().map_or_else(|_| Value::from(number), Value::from),
    }
}

/// Puts `changes` into `values`, map by map, as Helm does.
fn merge(values: &mut Value, changes: Value) {
    match (values, changes) {
        (Value::Object(values), Value::Object(changes)) => {
            for (key, change) in changes {
                if change.is_null() {
                    values.remove(&key);
                } else {
                    merge(values.entry(key).or_insert(Value::Null), change);
                }
            }
        }
        (value, change) => *value = change,
    }
}
