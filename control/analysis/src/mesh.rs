//! The objects of a mesh, indexed.

use std::collections::HashMap;

use leno_index::{Change, Index, Settings};
use leno_resources::{Documents, Located, Object, ObjectKey, Workload, egress};
use leno_types::{Egress, InstanceName, Owner};

use crate::sender::Sender;

/// A mesh that can be asked about.
#[derive(Debug)]
pub struct Mesh {
    pub(crate) index: Index,
    pub(crate) objects: Vec<Object>,
    /// Where objects are written, as far as somebody has said.
    pub(crate) places: HashMap<ObjectKey, String>,
    /// What made the instances, as far as somebody has said; else their `Workload` did.
    pub(crate) owners: HashMap<InstanceName, Owner>,
    default_egress: Egress,
}

impl Mesh {
    /// Indexes objects, as a controller that was told nothing else does.
    #[must_use]
    pub fn new(objects: Vec<Object>) -> Self {
        Self::told(Settings::default(), objects)
    }

    /// Indexes objects, as a controller of these settings does.
    #[must_use]
    pub fn told(settings: Settings, objects: Vec<Object>) -> Self {
        let default_egress = settings.default_egress;
        let mut index = Index::new(settings);
        index.apply_all(objects.iter().cloned().map(Change::Upsert).collect());
        Self { index, objects, places: HashMap::new(), owners: HashMap::new(), default_egress }
    }

    /// The same, where these made the instances: they are asked about by their owners' names.
    #[must_use]
    pub fn owned(mut self, owners: impl IntoIterator<Item = (InstanceName, Owner)>) -> Self {
        self.owners = owners.into_iter().collect();
        self
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
        own.or_else(of_namespace).unwrap_or(self.default_egress)
    }
}
