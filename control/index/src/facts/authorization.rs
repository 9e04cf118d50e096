//! The rows of authorization policies, indexed by the objects to which they are attached.

use std::collections::{BTreeMap, BTreeSet};

use leno_resources::{AuthorizationPolicy, ObjectKey};

use super::policies::{AttachedPolicies, PolicyRow};
use super::{AffectedNames, Facts};
use crate::rows::authorization::{AuthorizationRow, authorization};
use crate::rows::policies::TargetRow;

/// The namespace for policies of the whole mesh if the control plane has no namespace. It is the default namespace
/// of an installation, so that documents have the same meaning everywhere.
const MESH_NAMESPACE: &str = "leno-system";

/// The rows of authorization policies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Authorizations {
    attached: AttachedPolicies<AuthorizationRow>,
    /// The policies that select workloads of their namespace by labels, by namespace.
    selecting: BTreeMap<String, BTreeSet<ObjectKey>>,
    /// The policies for the whole mesh, in any namespace.
    of_mesh: BTreeSet<ObjectKey>,
}

impl PolicyRow for AuthorizationRow {
    fn targets(&self) -> &[TargetRow] {
        &self.targets
    }
}

impl Authorizations {
    /// The policies that are attached to workloads and services.
    pub(crate) fn attached(&self) -> &AttachedPolicies<AuthorizationRow> {
        &self.attached
    }

    /// The policies of a namespace that select workloads by labels, ordered by name.
    pub(crate) fn selecting(&self, namespace: &str) -> impl Iterator<Item = &AuthorizationRow> {
        let keys = self.selecting.get(namespace).into_iter().flatten();
        keys.filter_map(|key| self.attached.get(key))
    }

    fn put(&mut self, key: &ObjectKey, row: AuthorizationRow) {
        if row.selector.is_some() {
            self.selecting.entry(key.namespace.clone()).or_default().insert(key.clone());
        }
        if row.of_mesh {
            self.of_mesh.insert(key.clone());
        }
        self.attached.put(key, row);
    }

    fn remove(&mut self, key: &ObjectKey) -> Option<AuthorizationRow> {
        if let Some(keys) = self.selecting.get_mut(&key.namespace) {
            keys.remove(key);
            if keys.is_empty() {
                self.selecting.remove(&key.namespace);
            }
        }
        self.of_mesh.remove(key);
        self.attached.remove(key)
    }
}

impl Facts {
    pub(crate) fn authorizations(&self) -> &Authorizations {
        &self.authorizations
    }

    /// The policies for the whole mesh. Those outside of the control plane's namespace have no effect, because
    /// their namespace has no right to other workloads.
    pub(crate) fn authorizations_of_mesh(&self) -> impl Iterator<Item = &AuthorizationRow> {
        let all = &self.authorizations;
        let own = all.of_mesh.iter().filter(|key| self.is_of_mesh(&key.namespace));
        own.filter_map(|key| all.attached.get(key))
    }

    /// Whether policies of this namespace may apply to the whole mesh.
    pub(crate) fn is_of_mesh(&self, namespace: &str) -> bool {
        self.system_namespace() == namespace
    }

    /// The namespace of the control plane.
    pub(crate) fn system_namespace(&self) -> &str {
        self.settings.namespace.as_deref().unwrap_or(MESH_NAMESPACE)
    }

    /// Inserts a policy. Returns true, because the mesh uses every policy.
    pub(super) fn put_authorization(
        &mut self,
        key: &ObjectKey,
        policy: &AuthorizationPolicy,
        touched: &mut AffectedNames,
    ) -> bool {
        let row = authorization(policy, &self.settings.trust_domain);
        self.touch_authorized(key, &row, touched);
        self.authorizations.put(key, row);
        true
    }

    pub(super) fn remove_authorization(&mut self, key: &ObjectKey, touched: &mut AffectedNames) {
        if let Some(row) = self.authorizations.remove(key) {
            self.touch_authorized(key, &row, touched);
        }
    }

    /// Marks the workloads to which a changed policy may apply.
    fn touch_authorized(
        &self,
        key: &ObjectKey,
        row: &AuthorizationRow,
        touched: &mut AffectedNames,
    ) {
        if row.of_mesh && self.is_of_mesh(&key.namespace) {
            touched.served.extend(self.instances.keys().cloned());
            self.touch_waypointed(None, touched);
        } else if row.selector.is_some() {
            let names = self.instances_in(&key.namespace);
            touched.served.extend(names.cloned());
            self.touch_waypointed(Some(&key.namespace), touched);
        }
        self.touch_limited(&row.targets, touched);
        // A service's waypoint enforces the policies that are attached to the workloads behind the service.
        if row.targets.iter().any(|target| matches!(target, TargetRow::Object(..))) {
            self.touch_waypointed(Some(&key.namespace), touched);
        }
    }
}
