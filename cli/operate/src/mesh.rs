//! Reads the objects and settings of a cluster's mesh, for explanations and analysis.

use leno_charts::{Egress, Mtls};
use leno_index::{MeshSettings, ObjectWriters};
use leno_kube::Client;
use leno_resources::{AuthorizationAction, Kind, Object, ObjectKey};
use leno_sources::{ReadError, SourceObjects, UnreadObject};
use leno_types::TrustDomain;

use crate::{Error, installed, namespaces};

/// The objects of a cluster, and the settings of its control plane.
#[derive(Clone, Debug)]
pub struct ClusterObjects {
    /// Its objects.
    pub read: SourceObjects,
    /// The settings of the control plane.
    pub settings: MeshSettings,
    /// What could not be found out, in words.
    pub gaps: Vec<String>,
}

/// The extent of the objects to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectExtent {
    /// All objects of the cluster.
    Cluster,
    /// All objects of the cluster or, if the user may not read them, those of this namespace.
    AtLeast(String),
}

impl ClusterObjects {
    /// Reads the objects that the control plane in the namespace `system` watches.
    ///
    /// # Errors
    /// The objects cannot be read. If the control plane's own namespace cannot be read, that is a
    /// gap instead.
    pub async fn read(client: &Client, extent: &ObjectExtent, system: &str) -> Result<Self, Error> {
        let mut gaps = Vec::new();
        let read = match (leno_sources::read(client, None).await.map_err(unread), extent) {
            (Err(error), ObjectExtent::AtLeast(namespace)) if error.is_forbidden() => {
                gaps.push(format!(
                    "only the objects of namespace {namespace} were read, so those of others are \
                     unknown ({error})"
                ));
                leno_sources::read(client, Some(namespace)).await.map_err(unread)?
            }
            (read, _) => read?,
        };
        let settings = match told(client, system).await {
            Ok(Some(settings)) => settings,
            Ok(None) => {
                gaps.push(format!(
                    "Leno is not installed in namespace {system}: default settings \
                     are assumed; if it is in another namespace, pass \
                     --system-namespace"
                ));
                assumed()
            }
            Err(error) if error.is_forbidden() => {
                gaps.push(format!(
                    "the settings of the installation are unknown, so defaults are assumed \
                     ({error})"
                ));
                assumed()
            }
            Err(error) => return Err(error),
        };
        Ok(Self { read, settings, gaps })
    }

    /// Empties the list of objects that could not be read. An object that takes effect in place of such an object, if
    /// there is one, joins the objects that were read. Returns one line for each unread object, with the reason.
    pub fn replace_unread(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        for UnreadObject { key, reason, in_its_place } in std::mem::take(&mut self.read.unread) {
            let denies = matches!(
                in_its_place.as_deref(),
                Some(Object::AuthorizationPolicy(policy)) if policy.spec.action != AuthorizationAction::Audit
            );
            let meanwhile = match denies {
                true => {
                    "; until it is corrected it denies every client of its targets, unless the control plane has read a valid \
                     version of it since it started"
                }
                false => "",
            };
            lines.push(format!("{key}: {reason}{meanwhile}"));
            self.read.objects.extend(in_its_place.map(|object| *object));
        }
        lines
    }

    /// The namespaces that were read.
    pub fn namespaces(&self) -> impl Iterator<Item = String> {
        self.read
            .objects
            .iter()
            .map(Object::key)
            .filter_map(|key: ObjectKey| (key.kind == Kind::Namespace).then_some(key.name))
    }

    /// Checks that a namespace exists, if namespaces could be read at all.
    ///
    /// # Errors
    /// [`Error::NoNamespace`] if it does not.
    pub fn has_namespace(&self, wanted: &str) -> Result<(), Error> {
        let known: Vec<String> = self.namespaces().collect();
        if known.is_empty() || known.iter().any(|one| one == wanted) {
            return Ok(());
        }
        Err(namespaces::none(wanted, known.iter().map(String::as_str)))
    }
}

fn unread(ReadError { kind, source }: ReadError) -> Error {
    Error::api(format!("list objects of kind {kind}"))(source)
}

/// The settings that are assumed for a control plane whose settings are unknown.
fn assumed() -> MeshSettings {
    MeshSettings { writers: ObjectWriters::Tenants, ..MeshSettings::default() }
}

/// The settings of the control plane in a namespace; `None` if there is no installation.
async fn told(client: &Client, system: &str) -> Result<Option<MeshSettings>, Error> {
    let Some(there) = installed(client, system).await? else { return Ok(None) };
    let values = there.told()?;
    let defaults = MeshSettings::default();
    Ok(Some(MeshSettings {
        trust_domain: TrustDomain::new(&values.trust_domain).unwrap_or(defaults.trust_domain),
        default_mtls: match values.mtls {
            Mtls::Strict => leno_types::MtlsMode::Strict,
            Mtls::Permissive => leno_types::MtlsMode::Permissive,
            Mtls::Disabled => leno_types::MtlsMode::Disabled,
        },
        default_egress: match values.egress {
            Egress::Allow => leno_types::Egress::Allow,
            Egress::Deny => leno_types::Egress::Deny,
        },
        namespace: Some(system.to_owned()),
        writers: ObjectWriters::Tenants,
        agents_report: values.node.report_served,
    }))
}
