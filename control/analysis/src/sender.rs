//! Finds the workload that a question names as the sender of the request.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use leno_resources::Workload;
use leno_types::{InstanceName, Owner, nearest};

use crate::explain::ExplainQuestion;
use crate::mesh::MeshModel;

/// How many names a message lists at most. A cluster may have thousands.
const MAX_NAMED: usize = 20;

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswerable {
    /// No client has this name.
    #[error("there is no workload {wanted:?}{}", instead(.meant.as_deref(), .known))]
    NoWorkload {
        /// The name in the question.
        wanted: String,
        /// A similar name.
        meant: Option<String>,
        /// All names that exist.
        known: Vec<String>,
    },
    /// Several namespaces have a workload of this name.
    #[error("{wanted:?} is in the namespaces {}: choose one with -n", .namespaces.join(", "))]
    Ambiguous {
        /// The name in the question.
        wanted: String,
        /// The namespaces that have such a workload.
        namespaces: Vec<String>,
    },
    /// Several objects of the namespace have this name.
    #[error("{wanted:?} may be any of {}: name one of them", .owners.join(", "))]
    Several {
        /// The name in the question.
        wanted: String,
        /// The objects that have the name.
        owners: Vec<String>,
    },
    /// The workload has no such port, and no service of its namespace has it either.
    #[error(
        "{workload} has no port {port}: use one of {}",
        .known.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
    )]
    NoPort {
        /// `<namespace>/<name>` of the workload.
        workload: String,
        /// The port in the question.
        port: u16,
        /// The ports that it declares.
        known: Vec<u16>,
    },
    /// The documents contain no workload, so the caller has to name the client's namespace.
    #[error("no document has workloads: name the namespace of {0:?} with -n")]
    NoNamespace(String),
}

fn instead(meant: Option<&str>, known: &[String]) -> String {
    if let Some(meant) = meant {
        return format!(": did you mean {meant}?");
    }
    let (named, rest) = known.split_at(known.len().min(MAX_NAMED));
    match (named, rest.len()) {
        ([], _) => ": the mesh has no workload".to_owned(),
        (_, 0) => format!(": use one of {}", named.join(", ")),
        (_, rest) => format!(": use one of {} and {rest} more", named.join(", ")),
    }
}

/// The prefixes that a name may have, as in kubectl, and the workloads that each selects.
const KINDS: [(&str, SenderScope); 28] = [
    ("workload", SenderScope::Any),
    ("workloads", SenderScope::Any),
    ("deploy", SenderScope::By("Deployment")),
    ("deployment", SenderScope::By("Deployment")),
    ("deployments", SenderScope::By("Deployment")),
    ("sts", SenderScope::By("StatefulSet")),
    ("statefulset", SenderScope::By("StatefulSet")),
    ("statefulsets", SenderScope::By("StatefulSet")),
    ("ds", SenderScope::By("DaemonSet")),
    ("daemonset", SenderScope::By("DaemonSet")),
    ("daemonsets", SenderScope::By("DaemonSet")),
    ("rs", SenderScope::By("ReplicaSet")),
    ("replicaset", SenderScope::By("ReplicaSet")),
    ("replicasets", SenderScope::By("ReplicaSet")),
    ("job", SenderScope::By("Job")),
    ("jobs", SenderScope::By("Job")),
    ("cj", SenderScope::By("CronJob")),
    ("cronjob", SenderScope::By("CronJob")),
    ("cronjobs", SenderScope::By("CronJob")),
    ("rc", SenderScope::By("ReplicationController")),
    ("replicationcontroller", SenderScope::By("ReplicationController")),
    ("replicationcontrollers", SenderScope::By("ReplicationController")),
    ("po", SenderScope::Instance),
    ("pod", SenderScope::Instance),
    ("pods", SenderScope::Instance),
    ("sa", SenderScope::Account),
    ("serviceaccount", SenderScope::Account),
    ("serviceaccounts", SenderScope::Account),
];

/// The workloads among which a name is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SenderScope {
    /// All of them, and their instances.
    Any,
    /// The pods that were created by objects of a kind. To select these, the owners of pods must be known.
    By(&'static str),
    /// Instances, and workloads: in `leno up` the two have different names.
    Instance,
    /// Workloads that run under a service account.
    Account,
}

/// The sender of a request, with those of its properties that affect the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sender {
    pub(crate) namespace: String,
    /// The name of the workload, or of the object that owns the instance, such as a Deployment.
    pub(crate) workload: String,
    /// The instance, if one is known.
    pub(crate) instance: Option<InstanceName>,
    pub(crate) meshed: bool,
}

/// A possible sender, and the names by which a question may refer to it.
struct Candidate {
    sender: Sender,
    owner: Option<Owner>,
    account: String,
}

impl Candidate {
    fn is(&self, meant: SenderScope, name: &str) -> bool {
        let instance = || self.sender.instance.as_ref().is_some_and(|one| *one.name == *name);
        let workload = self.sender.workload == name;
        match meant {
            SenderScope::Any => workload || instance(),
            SenderScope::By(kind) => match &self.owner {
                Some(owner) => owner.kind == kind && owner.name == name,
                None => workload || instance(),
            },
            SenderScope::Instance => instance() || (self.owner.is_none() && workload),
            SenderScope::Account => self.account == name,
        }
    }

    /// The name of the candidate in messages.
    fn full(&self) -> String {
        let mut text = format!("{}/", self.sender.namespace);
        // Writing to a String cannot fail.
        let _ = match &self.owner {
            Some(owner) => write!(text, "{}", owner.name),
            None => write!(text, "{}", self.sender.workload),
        };
        text
    }
}

impl MeshModel {
    /// The sender with the name `wanted`: a workload or an instance. The kind (`deploy/web`) or the namespace
    /// (`shop/web`) may precede the name.
    pub(crate) fn sender(
        &self,
        namespace: Option<&str>,
        wanted: &str,
    ) -> Result<Sender, Unanswerable> {
        let kind = |word: &str| KINDS.into_iter().find(|(kind, _)| *kind == word);
        let (namespace, meant, name) = match wanted.split_once('/') {
            Some((word, name)) => match kind(word) {
                Some((_, meant)) => (namespace, meant, name),
                None => (Some(word), SenderScope::Any, name),
            },
            None => (namespace, SenderScope::Any, wanted),
        };
        if self.workloads().next().is_none() && self.owners.is_empty() {
            // The documents are meant for a cluster whose workloads they do not contain.
            let namespace = namespace.ok_or_else(|| Unanswerable::NoNamespace(name.to_owned()))?;
            let (namespace, workload) = (namespace.to_owned(), name.to_owned());
            return Ok(Sender { namespace, workload, instance: None, meshed: true });
        }
        let all = self.candidates();
        let mut found: Vec<&Candidate> = all
            .iter()
            .filter(|one| namespace.is_none_or(|namespace| namespace == one.sender.namespace))
            .filter(|one| one.is(meant, name))
            .collect();
        let namespaces: BTreeSet<&str> = found.iter().map(|one| &*one.sender.namespace).collect();
        if namespaces.len() > 1 {
            let namespaces = namespaces.into_iter().map(str::to_owned).collect();
            return Err(Unanswerable::Ambiguous { wanted: name.to_owned(), namespaces });
        }
        // A workload of `leno up` takes precedence over an instance with the same name, as in all commands.
        let is_workload = |one: &&Candidate| one.owner.is_none() && one.sender.workload == name;
        if meant == SenderScope::Any && found.iter().any(is_workload) {
            found.retain(is_workload);
        }
        // An instance with exactly this name takes precedence over everything else with the name.
        if let Some(exact) = found.iter().position(|one| {
            meant == SenderScope::Any
                && one.sender.instance.as_ref().is_some_and(|own| *own.name == *name)
        }) {
            return Ok(found.swap_remove(exact).sender.clone());
        }
        let owners: BTreeSet<&Owner> = found.iter().filter_map(|one| one.owner.as_ref()).collect();
        if meant != SenderScope::Account && owners.len() > 1 {
            let owners = owners.into_iter().map(ToString::to_string).collect();
            return Err(Unanswerable::Several { wanted: name.to_owned(), owners });
        }
        // If only some instances have a proxy so far, the answer is for one of them.
        found.sort_by_key(|one| !one.sender.meshed);
        let first = found.first().map(|one| one.sender.clone());
        first.ok_or_else(|| no_workload(&all, namespace, name))
    }

    /// The instances that send a question's request and have a proxy: those of the workload that the question
    /// names as the client.
    ///
    /// # Errors
    /// [`Unanswerable`] if the client of the question is not known.
    pub fn clients(&self, question: &ExplainQuestion) -> Result<Vec<InstanceName>, Unanswerable> {
        let sender = self.sender(question.namespace.as_deref(), &question.client)?;
        let all = self.candidates();
        let same = |one: &&Candidate| one.sender.instance == sender.instance;
        let owner = all.iter().find(same).and_then(|one| one.owner.clone());
        let of_client = all.into_iter().filter(|one| {
            one.sender.meshed
                && one.owner == owner
                && one.sender.namespace == sender.namespace
                && one.sender.workload == sender.workload
        });
        Ok(of_client.filter_map(|one| one.sender.instance).collect())
    }

    /// The service accounts of all workloads, as `<namespace>/<name>`.
    #[must_use]
    pub fn accounts(&self) -> BTreeSet<String> {
        let full = |one: Candidate| format!("{}/{}", one.sender.namespace, one.account);
        self.candidates().into_iter().map(full).collect()
    }

    /// Every instance, and every workload without instances, ordered by namespace and name.
    pub(crate) fn senders(&self) -> Vec<Sender> {
        self.candidates().into_iter().map(|one| one.sender).collect()
    }

    /// All possible senders with their names.
    fn candidates(&self) -> Vec<Candidate> {
        let mut all: Vec<Candidate> =
            self.workloads().flat_map(|one| self.of_workload(one)).collect();
        all.sort_by(|a, b| {
            let key = |one: &Candidate| (one.sender.namespace.clone(), one.sender.workload.clone());
            key(a).cmp(&key(b))
        });
        all
    }

    fn of_workload(&self, workload: &Workload) -> Vec<Candidate> {
        let (namespace, account) = (&workload.metadata.namespace, &workload.spec.service_account);
        let of = |instance: Option<InstanceName>, meshed: bool| {
            let owner = instance.as_ref().and_then(|name| self.owners.get(name)).cloned();
            let by = owner.as_ref().map_or(&workload.metadata.name, |owner| &owner.name);
            let (namespace, workload) = (namespace.clone(), by.clone());
            let sender = Sender { namespace, workload, instance, meshed };
            Candidate { sender, owner, account: account.clone() }
        };
        let instances = workload.status.iter().flat_map(|status| &status.instances);
        let named = |name: &str| InstanceName::new(namespace, name).ok();
        let mut all: Vec<Candidate> = instances
            .map(|instance| {
                let name = named(&instance.name);
                // In node mode the proxy is not in the pod, and the mode may be set by the namespace, so the pod
                // alone does not show it.
                let meshed = name.as_ref().is_some_and(|name| self.index.is_meshed(name));
                of(name, meshed)
            })
            .collect();
        if all.is_empty() {
            all.push(of(None, true));
        }
        all
    }
}

fn no_workload(all: &[Candidate], namespace: Option<&str>, name: &str) -> Unanswerable {
    let known: BTreeSet<String> = all.iter().map(Candidate::full).collect();
    let wanted = namespace.map_or(name.to_owned(), |of| format!("{of}/{name}"));
    let whole = nearest(&wanted, known.iter().map(String::as_str));
    // Also compares the names without their namespaces, because the workload may be in another namespace.
    let meant = whole.map(str::to_owned).or_else(|| {
        let names = || known.iter().filter_map(|full| Some(full.split_once('/')?.1));
        let same = names().find(|known| *known == name);
        let near = same.or_else(|| nearest(name, names()))?;
        known.iter().find(|known| known.ends_with(&format!("/{near}"))).cloned()
    });
    Unanswerable::NoWorkload { wanted, meant, known: known.into_iter().collect() }
}
