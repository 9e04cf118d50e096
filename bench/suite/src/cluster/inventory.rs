//! Lists those objects of a cluster whose kinds meshes create outside their namespace. Comparing the lists before the
//! installation and after the removal of a mesh shows what is left.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, anyhow};
use leno_kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use leno_kube::{Api, Client, ResourceExt as _};
use leno_operate::{Error, ObjectReference, is_absent, paged};
use leno_program::note;

use super::install;
use super::mesh::Mesh;
use super::wait::{PollResult, repeated};

/// Cluster-scoped kinds that meshes create. If the cluster does not know a kind, it has no objects of it.
const KINDS: [(&str, &str, &str); 9] = [
    ("", "v1", "Namespace"),
    ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRole"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding"),
    ("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration"),
    ("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration"),
    ("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy"),
    ("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding"),
    ("gateway.networking.k8s.io", "v1", "GatewayClass"),
];
/// The largest number of objects of one kind that are listed. It is large because some kinds have one object in each
/// namespace.
const MOST: usize = 100_000;
/// `ConfigMap`s that control planes create in every namespace.
const EVERYWHERE: [&str; 2] = ["leno-roots", "istio-ca-root-cert"];
/// How long the run searches for remaining objects of a removed mesh. By then, every object that the control plane
/// creates while it ends exists.
const LEFT: Duration = Duration::from_secs(60);

/// The objects, by the names that are shown to users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Inventory(BTreeMap<String, ExistingObject>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct ExistingObject {
    named: ObjectReference,
    /// The UID, which distinguishes the object from others of the same name.
    uid: String,
}

impl Inventory {
    pub(super) async fn take(client: &Client) -> Result<Self> {
        let mut found = BTreeMap::new();
        for (group, version, kind) in KINDS {
            list(client, (group, version, kind), None, &mut found).await?;
        }
        for name in EVERYWHERE {
            list(client, ("", "v1", "ConfigMap"), Some(name), &mut found).await?;
        }
        Ok(Self(found))
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// The objects that a mesh created.
    pub(super) fn of(&self, mesh: Mesh) -> Vec<&str> {
        let owned = self.0.iter().filter(|(_, object)| mesh.owns(&object.named));
        owned.map(|(name, _)| name.as_str()).collect()
    }

    /// Whether there is a new object of a mesh, other than its namespace.
    pub(super) fn has_new(&self, mesh: Mesh, before: &[String]) -> bool {
        let new = self.besides(before);
        new.into_iter().any(|one| one.named.kind != "Namespace" && mesh.owns(&one.named))
    }

    /// The objects that did not exist before.
    fn besides(&self, before: &[String]) -> Vec<&ExistingObject> {
        let new = |(name, _): &(&String, &ExistingObject)| !before.contains(name);
        self.0.iter().filter(new).map(|(_, object)| object).collect()
    }
}

async fn list(
    client: &Client,
    (group, version, kind): (&str, &str, &str),
    name: Option<&str>,
    found: &mut BTreeMap<String, ExistingObject>,
) -> Result<()> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut asked = ListParams::default();
    if let Some(name) = name {
        asked = asked.fields(&format!("metadata.name={name}"));
    }
    let list = async |asked: &ListParams| api.list_metadata(asked).await;
    let objects = match paged(asked, MOST, list).await {
        Ok(objects) if objects.len() >= MOST => {
            return Err(anyhow!(
                "there are {MOST} objects of kind {kind} or more, so what a mesh leaves behind \
                 among them could not be determined"
            ));
        }
        Ok(objects) => objects,
        Err(error) if is_absent(&error) => return Ok(()),
        Err(error) => return Err(Error::api(format!("list objects of kind {kind}"))(error).into()),
    };
    for object in &objects {
        let named = ObjectReference {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
            namespace: object.namespace(),
            name: object.name_any(),
        };
        let uid = object.uid().unwrap_or_default();
        found.insert(named.said(), ExistingObject { named, uid });
    }
    Ok(())
}

/// Removes the new objects of a mesh. All other new objects are reported and left alone. If a user has installed the
/// mesh since the run removed it, its objects are left alone, too. Harmless if no object is left.
pub(super) async fn restore(
    client: &Client,
    (run, mesh, before): (&str, Mesh, &[String]),
) -> Result<()> {
    let mut removed = Vec::new();
    let what = format!("remove what is left of {}", mesh.name());
    let now = repeated((&what, LEFT), async || {
        let now = Inventory::take(client).await?;
        let left: Vec<ExistingObject> =
            now.besides(before).into_iter().filter(|one| mesh.owns(&one.named)).cloned().collect();
        if left.is_empty() {
            return Ok(PollResult::There(Ok(now)));
        }
        if let Some(namespace) = install::foreign_namespace(client, mesh, run).await? {
            return Ok(PollResult::There(Err(namespace)));
        }
        for ExistingObject { named, uid } in &left {
            if leno_operate::delete_exactly(client, named, uid).await? {
                removed.push(named.said());
            }
        }
        let names: Vec<String> = left.iter().map(|one| one.named.said()).collect();
        Ok(PollResult::NotYet(names.join(", ")))
    });
    let now = now.await?;
    for name in removed {
        note!("  removed {name}");
    }
    let now = match now {
        Ok(now) => now,
        Err(namespace) => {
            let name = mesh.name();
            note!(
                "  another user has installed {name} meanwhile (namespace {namespace}): it stays"
            );
            return Ok(());
        }
    };
    for one in now.besides(before) {
        let name = one.named.said();
        note!("  {name} is new, and not known to be {}'s: it stays", mesh.name());
    }
    Ok(())
}
