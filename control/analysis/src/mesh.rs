//! The objects of a mesh, indexed.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use leno_index::{Index, MeshSettings, ObjectChange};
use leno_policy::authorization::CertificateView;
use leno_resources::{Documents, Located, Object, ObjectKey, Workload, egress};
use leno_types::{Egress, InstanceName, Owner};

use crate::authz::assumed;
use crate::sender::Sender;

/// The model of a mesh, which answers questions about it.
#[derive(Debug)]
pub struct MeshModel {
    pub(crate) index: Index,
    pub(crate) objects: Vec<Object>,
    /// Where objects are written, if the caller provided it.
    pub(crate) places: HashMap<ObjectKey, String>,
    /// The owners of instances, if the caller provided them. Without them, an instance's owner is its `Workload`.
    pub(crate) owners: HashMap<InstanceName, Owner>,
    pub(crate) settings: MeshSettings,
    /// Whether instances can reach addresses outside of the mesh.
    pub(crate) way_out: OutsideReach,
    /// Whether the names of `leno up`'s DNS apply. There, a name outside of the mesh that a service represents
    /// resolves to the service's VIPs.
    pub(crate) dns_of_leno_up: bool,
    /// The certificate that is assumed for each client with an identity.
    pub(crate) certificate: CertificateView,
}

/// Whether instances have a network path to addresses outside of the mesh. Policies are not considered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutsideReach {
    /// Through the network of the cluster or the machine.
    #[default]
    Open,
    /// Only if `leno up` runs with `--uplink`, which documents do not show.
    WithUplink,
    /// `leno up` runs without `--uplink`.
    None,
}

impl MeshModel {
    /// Indexes objects with the controller's default settings.
    #[must_use]
    pub fn new(objects: Vec<Object>) -> Self {
        Self::told(MeshSettings::default(), objects)
    }

    /// Indexes objects with these controller settings.
    #[must_use]
    pub fn told(settings: MeshSettings, objects: Vec<Object>) -> Self {
        let mut index = Index::new(settings.clone());
        index.apply_all(objects.iter().cloned().map(ObjectChange::Upsert).collect());
        let way_out = OutsideReach::default();
        let (places, owners) = (HashMap::new(), HashMap::new());
        let (dns_of_leno_up, certificate) = (false, assumed(None, None));
        Self { index, objects, places, owners, settings, way_out, dns_of_leno_up, certificate }
    }

    /// Sets the age of clients' certificates, as policies count it, and the time until they expire. If only one is
    /// given, the other is computed for a lifetime of 24 hours. If neither is given, the certificate was just
    /// issued.
    #[must_use]
    pub fn with_certificates(mut self, age: Option<Duration>, left: Option<Duration>) -> Self {
        self.certificate = assumed(age, left);
        self
    }

    /// Sets the owners of instances, so that questions can name a client by its owner.
    #[must_use]
    pub fn owned(mut self, owners: impl IntoIterator<Item = (InstanceName, Owner)>) -> Self {
        self.owners = owners.into_iter().collect();
        self
    }

    /// Makes this the model of a mesh that `leno up` runs, with its DNS. `way_out` is whether instances can reach
    /// addresses outside of it.
    #[must_use]
    pub fn of_leno_up(mut self, way_out: OutsideReach) -> Self {
        self.way_out = way_out;
        self.dns_of_leno_up = true;
        self
    }

    /// Sets where objects are written, so that answers can refer to it.
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

    /// The workloads of a namespace that have all of these labels.
    pub(crate) fn labelled<'m>(
        &'m self,
        namespace: &str,
        labels: &BTreeMap<String, String>,
    ) -> impl Iterator<Item = &'m Workload> {
        self.workloads().filter(move |one| {
            let own = &one.metadata;
            own.namespace == namespace
                && labels.iter().all(|(key, value)| own.labels.get(key) == Some(value))
        })
    }

    /// Whether a sender may connect to destinations outside of the mesh that it has no document for.
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
        own.or_else(of_namespace).unwrap_or(self.settings.default_egress)
    }
}
