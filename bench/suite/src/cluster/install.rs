//! Installs a mesh into a cluster, and removes it.
//!
//! ```text
//! leno           the chart, applied in its order     leno_operate::MeshRemoval
//! istio          istioctl install                    istioctl uninstall --purge
//! linkerd        linkerd install --crds, install     deletes what linkerd uninstall prints
//! ```
//! Objects that remain after the removal are found and removed by comparison with the state before
//! (`inventory`).

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use leno_charts::{NAMESPACE, Values};
use leno_kube::api::ListParams;
use leno_kube::{Api, Client, ResourceExt as _, Right};
use leno_operate::{ClusterTarget, Error, MeshRemoval, RemovalReport, is_ready};
use leno_program::note;
use serde_json::Value;

use super::ledger::Installed;
use super::mesh::Mesh;
use super::names::MANAGER;
use super::pod_failure::Patience;
use super::wait::{PollResult, repeated};
use super::{installer, revisions, run_lock};
use crate::interrupt::Interrupt;

/// How long a mesh may take to become ready, because its images come from a registry.
const READY: Duration = Duration::from_secs(300);

/// Kinds of objects that the installations of other meshes contain.
const OTHERS: [(&str, &str); 15] = [
    ("", "namespaces"),
    ("", "serviceaccounts"),
    ("", "services"),
    ("", "configmaps"),
    ("", "secrets"),
    ("apps", "deployments"),
    ("apps", "daemonsets"),
    ("batch", "cronjobs"),
    ("rbac.authorization.k8s.io", "roles"),
    ("rbac.authorization.k8s.io", "rolebindings"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
];

/// A function to call before the first object that changes nodes is created.
pub(super) type Agents<'a> = &'a mut dyn FnMut() -> Result<()>;

pub(super) struct Installation<'a> {
    pub(super) client: &'a Client,
    pub(super) target: &'a ClusterTarget,
    pub(super) mesh: Mesh,
    /// The program that installs the mesh, if the mesh has one of its own.
    pub(super) tool: Option<&'a Path>,
    /// Interrupts an installation, but not a removal, because objects would remain in the cluster.
    pub(super) interrupt: &'a Interrupt,
}

impl Installation<'_> {
    /// The rights for installing and removing the mesh that the user lacks, in words. A user who creates a role must
    /// also have the rights that the role grants; the API server only checks that when the role is created.
    pub(super) async fn lacking(&self, values: &Values) -> Result<Vec<String>> {
        if self.mesh.is_leno() {
            let text = leno_charts::render(values, NAMESPACE)?;
            let removal = MeshRemoval::new(self.client.clone(), NAMESPACE, false);
            return Ok(removal.lacking_with(&text).await?);
        }
        let rights = |(group, resource): &(&'static str, &'static str)| {
            ["create", "delete", "get", "patch"].map(|verb| (verb, *group, *resource))
        };
        let rights: Vec<Right> = OTHERS.iter().flat_map(rights).collect();
        Ok(leno_operate::lacking(self.client, &rights).await?)
    }

    /// Installs the mesh and waits until it is ready; Leno is installed with `values`. `agents` is called before the
    /// first object that changes nodes is created.
    ///
    /// # Errors
    /// If the installation fails, is not ready in time, or can never become ready; the error gives the reason. Parts of
    /// the mesh may exist then.
    pub(super) async fn install(&self, values: &Values, agents: Agents<'_>) -> Result<()> {
        match self.mesh {
            Mesh::None => return Ok(()),
            Mesh::Leno | Mesh::LenoNode | Mesh::LenoShared => self.leno(values, agents).await?,
            Mesh::Istio => self.istio("profile=minimal")?,
            Mesh::IstioAmbient => self.istio("profile=ambient")?,
            Mesh::Linkerd => {
                let mut words = vec!["install", "--crds"];
                if !revisions::defines_routes(self.client).await? {
                    // Linkerd can install its own version of the Gateway API, but refuses if the
                    // cluster has one already.
                    words.extend(["--set", "installGatewayAPI=true"]);
                }
                self.apply(&self.run(&words)?).await?;
                self.apply(&self.run(&["install"])?).await?;
            }
        }
        self.ready_on(&[]).await
    }

    async fn leno(&self, values: &Values, agents: Agents<'_>) -> Result<()> {
        let text = leno_charts::render(values, NAMESPACE)?;
        let mut documents = leno_operate::documents(&text)?;
        // The objects that identify an installation come first, so that even a partial installation
        // can be removed.
        documents.sort_by_key(|one| !is(one, "Namespace", NAMESPACE));
        documents[1..].sort_by_key(|one| !is(one, "ConfigMap", leno_charts::INSTALLED));
        let first = documents.iter().position(|one| one["kind"] == "DaemonSet");
        let (before, with) = documents.split_at(first.unwrap_or(documents.len()));
        self.apply_all(before).await?;
        self.interrupt.check()?;
        agents()?;
        self.apply_all(with).await
    }

    fn istio(&self, profile: &str) -> Result<()> {
        self.run(&["install", "-y", "--set", profile]).map(drop)
    }

    fn run(&self, words: &[&str]) -> Result<String> {
        let program = self.tool.context("a mesh of others has a tool")?;
        installer::run(program, words, self.target, self.interrupt)
    }

    async fn apply(&self, text: &str) -> Result<()> {
        self.apply_all(&leno_operate::documents(text)?).await
    }

    async fn apply_all(&self, documents: &[Value]) -> Result<()> {
        for document in documents {
            self.interrupt.check()?;
            leno_operate::apply(self.client, document, MANAGER).await?;
        }
        Ok(())
    }

    /// Waits until the mesh is ready, if this program has installed it, and until each of its pods on these nodes is
    /// ready. After all pods of a mesh were killed, its pods on nodes may not be ready although each Deployment has a
    /// ready replica.
    ///
    /// # Errors
    /// If the mesh is not ready in time, or can never become ready; the error gives the reason. Also after an
    /// interrupt.
    pub(super) async fn ready_on(&self, nodes: &[&str]) -> Result<()> {
        let what = format!("{} is ready", self.mesh.name());
        let mut patience = Patience::default();
        let ready = repeated((&what, READY), async || {
            let pods = self.pods().await?;
            if let Some(why) = patience.ends_with(&pods, Instant::now()) {
                bail!("{why}");
            }
            let missing = match self.mesh {
                mesh if mesh.is_leno() => leno_lacks(self.client, NAMESPACE).await?,
                mesh => lacks(self.client, mesh).await?,
            };
            let missing = missing.or_else(|| unready(&pods, nodes));
            Ok(missing.map_or(PollResult::There(()), PollResult::NotYet))
        });
        self.interrupt.ends(ready).await
    }

    async fn pods(&self) -> Result<Vec<Pod>, Error> {
        let Some(namespace) = &self.mesh.facts().namespace else { return Ok(Vec::new()) };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let found = pods.list(&ListParams::default()).await;
        Ok(found.map_err(Error::api(format!("list pods of {namespace}")))?.items)
    }

    /// Removes the mesh, even a partial installation, and reports each step. Returns the nodes that are not clean, with
    /// the reasons. `installed` says whether the mesh may have changed any node. Other objects that remain are removed
    /// by comparing inventories.
    ///
    /// # Errors
    /// If the removal fails; the objects that a second attempt needs still exist then.
    pub(super) async fn remove(&self, installed: &Installed) -> Result<Vec<String>> {
        match self.mesh {
            Mesh::None => {}
            Mesh::Leno | Mesh::LenoNode | Mesh::LenoShared => {
                return self.remove_leno(installed).await;
            }
            Mesh::Istio | Mesh::IstioAmbient => {
                self.run(&["uninstall", "--purge", "-y"])?;
            }
            Mesh::Linkerd => {
                let text = self.run(&["uninstall"])?;
                if text.trim().is_empty() {
                    // The output of `linkerd uninstall` is also empty if the user has no right to list objects, or if
                    // listing fails.
                    bail!(
                        "linkerd uninstall lists nothing to remove, but parts of Linkerd are \
                         installed: remove them by hand"
                    );
                }
                for one in leno_operate::named(&text)?.iter().rev() {
                    leno_operate::delete(self.client, one).await?;
                }
            }
        }
        Ok(Vec::new())
    }

    async fn remove_leno(&self, installed: &Installed) -> Result<Vec<String>> {
        let mut left = Vec::new();
        let removal = MeshRemoval::new(self.client.clone(), NAMESPACE, false);
        let removal = if installed.agents { removal } else { removal.without_agents() };
        let removal = if installed.fresh { removal.fresh() } else { removal };
        let done = removal.run(|step| match step {
            RemovalReport::NodeLeft(node, why) => left.push(format!("{node}: {why}")),
            RemovalReport::NamespaceKept(name) => {
                note!("  namespace {name} existed before: it stays")
            }
            // Only the suite's pods were meshed, and they have been removed.
            _ => {}
        });
        match done.await {
            Ok(()) => Ok(left),
            // The installation was interrupted before its first object, so no node was changed.
            Err(Error::Nothing(_)) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The pods on these nodes that should be ready but are not; `None` if all are.
fn unready(pods: &[Pod], nodes: &[&str]) -> Option<String> {
    let stays = |pod: &&Pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        // A pod that has ended, such as that of a Job, will not become ready any more.
        let ended = matches!(phase, Some("Succeeded" | "Failed"));
        node.is_some_and(|node| nodes.contains(&node))
            && pod.metadata.deletion_timestamp.is_none()
            && !ended
    };
    let waiting = pods.iter().filter(stays).filter(|pod| !is_ready(pod));
    let waiting: Vec<String> = waiting.map(|pod| pod.name_any()).collect();
    (!waiting.is_empty()).then(|| format!("{} not ready", waiting.join(", ")))
}

fn is(document: &Value, kind: &str, name: &str) -> bool {
    document["kind"] == kind && document["metadata"]["name"] == name
}

/// Why an installation of Leno is not healthy; `None` if it is.
async fn leno_lacks(client: &Client, namespace: &str) -> Result<Option<String>, Error> {
    let found = leno_operate::after(client, namespace).await?;
    let bad: Vec<String> = found
        .iter()
        .filter(|one| !one.level.is_well())
        .map(|one| format!("{}: {}", one.subject, one.words()))
        .collect();
    if !bad.is_empty() {
        return Ok(Some(bad.join("; ")));
    }
    let trusted = leno_operate::is_trusted(client).await?;
    Ok((!trusted).then(|| {
        "the webhook that injects proxies has no certificate authority yet (caBundle)".to_owned()
    }))
}

/// Why a mesh cannot be used; `None` if its control plane is ready.
pub(super) async fn lacks(client: &Client, mesh: Mesh) -> Result<Option<String>, Error> {
    let Some(label) = &mesh.facts().control else { return Ok(None) };
    let found = control(client, mesh).await?;
    if found.is_empty() {
        return Ok(Some(format!("there is no Deployment with the label {label}")));
    }
    let ready = |one: &Deployment| {
        let status = one.status.as_ref();
        status.is_some_and(|status| status.ready_replicas.unwrap_or_default() > 0)
    };
    let waiting: Vec<String> = found
        .iter()
        .filter(|one| !ready(one))
        .map(|one| format!("{}/{}", one.namespace().unwrap_or_default(), one.name_any()))
        .collect();
    Ok((!waiting.is_empty()).then(|| format!("{} not ready", waiting.join(", "))))
}

/// The namespace of a mesh that this run did not create. `None` if the run created all namespaces of the mesh, or the
/// mesh has none.
pub(super) async fn foreign_namespace(
    client: &Client,
    mesh: Mesh,
    run: &str,
) -> Result<Option<String>, Error> {
    let found = control(client, mesh).await?;
    let mut names: BTreeSet<String> = found.iter().filter_map(Deployment::namespace).collect();
    names.extend(mesh.facts().namespace.clone());
    for name in names {
        if run_lock::is_of(client, &name, run).await? == Some(false) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// The namespace of a mesh's control plane, or its usual namespace if there is no control plane.
pub(super) async fn system(client: &Client, mesh: Mesh) -> Result<Option<String>, Error> {
    let found = control(client, mesh).await?;
    let first = found.first().and_then(Deployment::namespace);
    Ok(first.or_else(|| mesh.facts().namespace.clone()))
}

/// The Deployments of a control plane, in all namespaces.
async fn control(client: &Client, mesh: Mesh) -> Result<Vec<Deployment>, Error> {
    let Some(label) = &mesh.facts().control else { return Ok(Vec::new()) };
    let all: Api<Deployment> = Api::all(client.clone());
    let found = all.list(&ListParams::default().labels(label)).await;
    Ok(found.map_err(Error::api("list deployments of all namespaces"))?.items)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_that_is_not_ready_again_is_waited_for_where_it_counts() {
        let pod = |name: &str, node: &str, phase: &str, ready: &str| -> Pod {
            let status =
                json!({"phase": phase, "conditions": [{"type": "Ready", "status": ready}]});
            let pod = json!({"metadata": {"name": name}, "status": status,
                "spec": {"nodeName": node, "containers": []}});
            serde_json::from_value(pod).unwrap()
        };
        let mut pods = vec![
            pod("istiod", "n1", "Running", "True"),
            pod("job", "n1", "Succeeded", "False"),
            pod("evicted", "n1", "Failed", "False"),
            pod("elsewhere", "dead", "Running", "False"),
        ];
        assert_eq!(unready(&pods, &["n1"]), None);
        pods.push(pod("ztunnel", "n1", "Running", "False"));
        assert_eq!(unready(&pods, &["n1", "n2"]).unwrap(), "ztunnel not ready");
        assert_eq!(unready(&pods, &[]), None, "where it was not killed");
        let going = json!("2024-01-01T00:00:00Z");
        pods[4].metadata.deletion_timestamp = serde_json::from_value(going).unwrap();
        assert_eq!(unready(&pods, &["n1"]), None, "another follows");
    }
}
