//! The objects of a mesh, indexed, and who is in it.

use std::collections::HashMap;
use std::sync::Arc;

use leno_index::{Change, Index, Settings};
use leno_resources::{Documents, Located, Object, ObjectKey, Workload, egress};
use leno_types::{Egress, InstanceName, nearest};

/// A mesh that can be asked about.
#[derive(Debug)]
pub struct Mesh {
    pub(crate) index: Index,
    pub(crate) objects: Vec<Object>,
    /// Where objects are written, as far as somebody has said.
    pub(crate) places: HashMap<ObjectKey, String>,
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswerable {
    /// There is no such client.
    #[error("there is no workload {wanted:?}{}", instead(.meant.as_deref(), .known))]
    NoWorkload {
        /// What was asked for.
        wanted: String,
        /// What may have been meant.
        meant: Option<String>,
        /// All that there are.
        known: Vec<String>,
    },
    /// The name is in several namespaces.
    #[error("{wanted:?} is in the namespaces {}: say which with -n", .namespaces.join(", "))]
    Ambiguous {
        /// What was asked for.
        wanted: String,
        /// Where it is.
        namespaces: Vec<String>,
    },
    /// There is no workload at all, so only a namespace can say who calls.
    #[error("no document says what runs: say with -n in which namespace {0:?} is")]
    NoNamespace(String),
}

fn instead(meant: Option<&str>, known: &[String]) -> String {
    match meant {
        Some(meant) => format!(": did you mean {meant}?"),
        None => format!("; there are: {}", known.join(", ")),
    }
}

/// Words before a workload's name, as `kubectl` has them.
const KINDS: [&str; 15] = [
    "workload",
    "workloads",
    "deploy",
    "deployment",
    "deployments",
    "sts",
    "statefulset",
    "statefulsets",
    "ds",
    "daemonset",
    "daemonsets",
    "job",
    "pod",
    "pods",
    "po",
];

/// Who sends a request, as far as it matters to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sender {
    pub(crate) namespace: String,
    pub(crate) workload: String,
    /// The instance, where one is known.
    pub(crate) instance: Option<InstanceName>,
    pub(crate) meshed: bool,
}

impl Mesh {
    /// Indexes objects, as the controller does.
    #[must_use]
    pub fn new(objects: Vec<Object>) -> Self {
        let mut index = Index::new(Settings::default());
        index.apply_all(objects.iter().cloned().map(Change::Upsert).collect());
        Self { index, objects, places: HashMap::new() }
    }

    /// The same, of these documents, so that answers can say where objects are written.
    #[must_use]
    pub fn written_in(mut self, documents: &Documents) -> Self {
        let place = |located: &Located<Object>| {
            (located.value.key(), format!("{}:{}", located.file, located.place))
        };
        self.places = documents.objects.iter().map(place).collect();
        self
    }

    pub(crate) fn workloads(&self) -> impl Iterator<Item = &Workload> {
        self.objects.iter().filter_map(|object| match object {
            Object::Workload(workload) => Some(&**workload),
            _ => None,
        })
    }

    /// Whether a sender may call what the mesh does not know.
    pub(crate) fn egress(&self, sender: &Sender) -> Egress {
        let known = sender.instance.as_ref().and_then(|name| self.index.server_policy(name));
        if let Some(policy) = known {
            return policy.egress;
        }
        let of_namespace = || {
            self.objects.iter().find_map(|object| match object {
                Object::Namespace(namespace) if object.key().name == sender.namespace => {
                    egress(namespace.metadata.annotations.as_ref()?)
                }
                _ => None,
            })
        };
        let own = self.workloads().find(|one| {
            one.metadata.name == sender.workload && one.metadata.namespace == sender.namespace
        });
        let own = own.and_then(|workload| egress(&workload.metadata.annotations));
        own.or_else(of_namespace).unwrap_or_default()
    }

    /// The sender called `wanted`: a workload or an instance of one, with its kind before it
    /// (`deploy/web`) or its namespace (`shop/web`), or neither.
    pub(crate) fn sender(
        &self,
        namespace: Option<&str>,
        wanted: &str,
    ) -> Result<Sender, Unanswerable> {
        let (namespace, name) = match wanted.split_once('/') {
            Some((kind, name)) if KINDS.contains(&kind) => (namespace, name),
            Some((of, name)) => (Some(of), name),
            None => (namespace, wanted),
        };
        if self.workloads().next().is_none() {
            // Documents for a cluster: who runs there is not in them.
            let namespace = namespace.ok_or_else(|| Unanswerable::NoNamespace(name.to_owned()))?;
            let (namespace, workload) = (namespace.to_owned(), name.to_owned());
            return Ok(Sender { namespace, workload, instance: None, meshed: true });
        }
        let found = self.senders().filter(|(sender, instance)| {
            namespace.is_none_or(|namespace| namespace == sender.namespace)
                && (sender.workload == name || instance.as_deref() == Some(name))
        });
        let mut found: Vec<Sender> = found.map(|(sender, _)| sender).collect();
        let mut namespaces: Vec<String> = found.iter().map(|one| one.namespace.clone()).collect();
        namespaces.dedup();
        match (found.is_empty(), namespaces.len()) {
            (true, _) => Err(self.no_workload(namespace, name)),
            (false, 1) => Ok(found.swap_remove(0)),
            (false, _) => Err(Unanswerable::Ambiguous { wanted: name.to_owned(), namespaces }),
        }
    }

    /// Every instance, and every workload without one, by namespace and name.
    fn senders(&self) -> impl Iterator<Item = (Sender, Option<Arc<str>>)> {
        let mut all: Vec<(Sender, Option<Arc<str>>)> = Vec::new();
        for workload in self.workloads() {
            let sender = Sender {
                namespace: workload.metadata.namespace.clone(),
                workload: workload.metadata.name.clone(),
                instance: None,
                meshed: true,
            };
            let instances = workload.status.iter().flat_map(|status| &status.instances);
            let before = all.len();
            for instance in instances {
                let name = InstanceName::new(&sender.namespace, &instance.name).ok();
                let own = name.as_ref().map(|name| Arc::clone(&name.name));
                let meshed = instance.meshed;
                all.push((Sender { instance: name, meshed, ..sender.clone() }, own));
            }
            if all.len() == before {
                all.push((sender, None));
            }
        }
        all.sort_by(|(a, _), (b, _)| {
            let key = |one: &Sender| (one.namespace.clone(), one.workload.clone());
            key(a).cmp(&key(b))
        });
        all.into_iter()
    }

    fn no_workload(&self, namespace: Option<&str>, name: &str) -> Unanswerable {
        let full = |one: &Workload| format!("{}/{}", one.metadata.namespace, one.metadata.name);
        let mut known: Vec<String> = self.workloads().map(full).collect();
        known.sort();
        let wanted = namespace.map_or(name.to_owned(), |of| format!("{of}/{name}"));
        let whole = nearest(&wanted, known.iter().map(String::as_str));
        // The name alone: it may be in another namespace.
        let meant = whole.map(str::to_owned).or_else(|| {
            let names: Vec<&str> = self.workloads().map(|one| &*one.metadata.name).collect();
            let same = names.iter().find(|known| **known == name).copied();
            let near = same.or_else(|| nearest(name, names.iter().copied()))?;
            known.iter().find(|known| known.ends_with(&format!("/{near}"))).cloned()
        });
        Unanswerable::NoWorkload { wanted, meant, known }
    }
}
