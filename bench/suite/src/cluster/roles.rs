//! Assigns roles to the containers of a measurement.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use leno_kube::ResourceExt as _;
use leno_operate::statuses;

use super::manifests::is_watcher;
use super::mesh::Mesh;
use super::names::CONTAINER;
use crate::measurement::usage::{Component, Role};
use crate::scenario::{CLIENT, NEIGHBOUR};

#[derive(Clone, Debug)]
pub(super) struct Roles {
    pub(super) namespace: String,
    pub(super) mesh: Mesh,
    /// The namespace of the mesh.
    pub(super) system: Option<String>,
    /// Other namespaces in which the mesh has pods on nodes.
    pub(super) beside: BTreeSet<String>,
    /// The service that the neighbour floods.
    pub(super) flooded: Option<String>,
    /// The nodes that have a watcher.
    pub(super) nodes: BTreeSet<String>,
    pub(super) carriers: Carriers,
}

/// The nodes whose node proxies carry traffic, by the kind of traffic; the node proxies of all other nodes are idle.
#[derive(Clone, Debug, Default)]
pub(super) struct Carriers {
    /// Nodes with measured workloads.
    measured: BTreeSet<String>,
    /// Nodes with the flooding client or the flooded service.
    flood: BTreeSet<String>,
}

impl Carriers {
    pub(super) fn of(places: BTreeMap<String, String>, flooded: Option<&str>) -> Self {
        let mut found = Self::default();
        for (workload, node) in places {
            let floods = workload == NEIGHBOUR || Some(workload.as_str()) == flooded;
            if floods { &mut found.flood } else { &mut found.measured }.insert(node);
        }
        found
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &str> {
        self.measured.union(&self.flood).map(String::as_str)
    }

    /// The nodes whose proxies carry both the measured traffic and the flood.
    pub(super) fn shared(&self) -> Vec<&str> {
        self.measured.intersection(&self.flood).map(String::as_str).collect()
    }

    fn role_on(&self, node: &str) -> Option<Role> {
        if self.measured.contains(node) {
            return Some(Role::Proxy);
        }
        self.flood.contains(node).then_some(Role::Neighbour)
    }
}

impl Roles {
    /// The role of a container; `None` if it does not belong to the measurement.
    pub(super) fn of(
        &self,
        node: &str,
        (namespace, pod, container): (&str, &str, &str),
    ) -> Option<Role> {
        if namespace != self.namespace {
            let own = self.system.as_deref() == Some(namespace);
            let ours = own || self.beside.contains(namespace);
            return match ours.then(|| self.mesh.role_of(pod))? {
                Role::Proxy => self.carriers.role_on(node),
                // Other pods in such a namespace do not belong to the mesh.
                Role::Control if !own => None,
                role => Some(role),
            };
        }
        let ours = container == CONTAINER;
        Some(match pod {
            _ if is_watcher(pod) => return None,
            NEIGHBOUR => Role::Neighbour,
            _ if Some(pod) == self.flooded.as_deref() => Role::Neighbour,
            _ if !ours => Role::Proxy,
            CLIENT => Role::Generator,
            _ => Role::Application,
        })
    }

    /// The running containers of a pod that belong to the measurement, if its node has a watcher.
    pub(super) fn watched(&self, pod: &Pod) -> Vec<Component> {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        if !self.nodes.contains(&node) {
            return Vec::new();
        }
        let found = running(pod).filter_map(|one| {
            let role = self.of(&node, (&namespace, &name, &one.name))?;
            // The container's identifier is, for example, `containerd://0123`.
            let (_, id) = one.container_id.as_ref()?.rsplit_once("://")?;
            let name = format!("{namespace}/{name}/{}", one.name);
            Some(Component { role, name, node: node.clone(), id: id.to_owned() })
        });
        found.collect()
    }
}

pub(super) fn running(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    statuses(pod).filter(|one| one.state.as_ref().is_some_and(|state| state.running.is_some()))
}

#[cfg(test)]
mod tests;
