//! The commands, and what several of them share.

pub(crate) mod analyze;
pub(crate) mod authz;
pub(crate) mod bench;
pub(crate) mod bug_report;
pub(crate) mod check;
pub(crate) mod cleanup;
mod columns;
pub(crate) mod completion;
pub(crate) mod dashboard;
pub(crate) mod demo;
pub(crate) mod diagnostics;
pub(crate) mod down;
pub(crate) mod ebpf;
pub(crate) mod edges;
pub(crate) mod exec;
pub(crate) mod explain;
mod figures;
pub(crate) mod flows;
pub(crate) mod guard;
mod history;
pub(crate) mod identity;
pub(crate) mod inject;
pub(crate) mod install;
pub(crate) mod lines;
pub(crate) mod logs;
pub(crate) mod man;
pub(crate) mod mcp;
pub(crate) mod observer;
pub(crate) mod open;
mod order;
mod past;
pub(crate) mod port_forward;
pub(crate) mod ps;
mod recorded;
pub(crate) mod restart;
pub(crate) mod routes;
pub(crate) mod slo;
pub(crate) mod stat;
pub(crate) mod table;
pub(crate) mod tap;
pub(crate) mod top;
pub(crate) mod trace_request;
pub(crate) mod uninstall;
pub(crate) mod up;
pub(crate) mod upgrade;
pub(crate) mod why;

use anyhow::Context as _;
use clap::Args;
pub(crate) use leno_console::{
    Cluster, OutputForm, block_on, escaped, print, print_json, print_raw,
};
use leno_local::ranges::{MeshRange, RequestedRanges};

/// Selects one of the meshes that run on this machine.
#[derive(Debug, Args)]
pub(crate) struct RunningMesh {
    /// Name of the mesh [default: the only mesh that runs on this machine, or the one named default]
    #[arg(long, visible_alias = "mesh", value_name = "NAME")]
    pub(crate) name: Option<String>,
}

impl RunningMesh {
    /// The name of the selected mesh.
    pub(crate) fn name(&self) -> leno_local::Result<String> {
        leno_local::record::chosen(self.name.as_deref())
    }
}

/// A node of a cluster, whose agent is queried instead of this machine.
#[derive(Debug, Args)]
pub(crate) struct NodeOfCluster {
    /// Reads this node of a cluster instead of this machine, through a port-forward to the node's agent
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,

    #[command(flatten)]
    which: Cluster,

    /// Namespace of the control plane in the cluster
    #[arg(long, value_name = "NAME", default_value = leno_charts::NAMESPACE)]
    system_namespace: String,
}

impl NodeOfCluster {
    /// Whether a node is named.
    pub(crate) fn is_named(&self) -> bool {
        self.node.is_some()
    }

    /// A page of the node's agent.
    pub(crate) fn get<T: serde::de::DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let node = self.node.as_deref().unwrap_or_default();
        let page = block_on(async {
            let client = leno_operate::connect(&self.which.target()).await?;
            Ok(leno_operate::node_page(&client, &self.system_namespace, node, path).await?)
        })?;
        serde_json::from_value(page).with_context(|| {
            format!(
                "the agent of node {node} is of another version than this \
                 program: use the leno of the installation, or leno upgrade | \
                 kubectl apply --server-side -f -"
            )
        })
    }
}

/// The address ranges of a mesh that is read from files.
#[derive(Debug, Args)]
pub(crate) struct PlannedRanges {
    /// Address range of workloads in the files, as it is passed to `leno up`
    #[arg(long, value_name = "RANGE")]
    workload_range: Option<MeshRange>,

    /// Address range of services in the files, as it is passed to `leno up`
    #[arg(long, value_name = "RANGE")]
    service_range: Option<MeshRange>,
}

impl PlannedRanges {
    /// Makes these options require files, because a running mesh keeps the ranges with which it was started.
    pub(crate) fn with_files(arg: clap::Arg) -> clap::Arg {
        match arg.get_id().as_str() {
            "workload_range" | "service_range" => arg.requires("files"),
            _ => arg,
        }
    }

    /// The given ranges; `None` if neither option was given.
    pub(crate) fn asked(&self) -> Option<RequestedRanges> {
        let asked = (self.workload_range, self.service_range);
        (asked != (None, None)).then_some(asked)
    }
}

/// Selects a mesh of a cluster or a mesh of this machine.
#[derive(Clone, Debug, Args)]
pub(crate) struct AnyMesh {
    /// Selects the mesh of `leno up` with this name [default: the only mesh that runs on this machine, or the one named
    /// default]
    #[arg(long, visible_alias = "mesh", value_name = "NAME",
          conflicts_with_all = ["cluster", "kubeconfig", "context"])]
    pub(crate) name: Option<String>,

    /// Selects the mesh of the cluster that the kubeconfig names. --kubeconfig and --context imply it
    #[arg(long)]
    pub(crate) cluster: bool,

    #[command(flatten)]
    pub(crate) which: Cluster,

    /// Namespace of the control plane in the cluster
    #[arg(long, value_name = "NAME", default_value = leno_charts::NAMESPACE)]
    pub(crate) system_namespace: String,
}

/// The mesh that a command works with.
#[derive(Clone, Debug)]
pub(crate) enum ChosenMesh {
    /// A mesh of `leno up`, by its name.
    Machine(String),
    /// The mesh of a cluster.
    Cluster(leno_operate::ClusterTarget),
}

impl AnyMesh {
    /// The mesh that the options name. Without these options, the only mesh that is found.
    pub(crate) fn choose(&self) -> anyhow::Result<ChosenMesh> {
        if self.cluster || self.which.is_named() {
            return Ok(ChosenMesh::Cluster(self.which.target()));
        }
        if let Some(name) = &self.name {
            return Ok(ChosenMesh::Machine(name.clone()));
        }
        let running = leno_local::record::chosen(None);
        match (running, self.which.target().is_there()) {
            (Ok(name), false) => Ok(ChosenMesh::Machine(name)),
            (Ok(name), true) => anyhow::bail!(
                "mesh {name} runs on this machine, and a kubeconfig names a cluster: choose one \
                 with --name {name} or --cluster"
            ),
            // Only root can see which meshes run on this machine, so other users get the cluster's mesh.
            (Err(leno_local::Error::NeedsRoot), true) => {
                Ok(ChosenMesh::Cluster(self.which.target()))
            }
            (Err(leno_local::Error::NotNamed(none)), true) if none.is_empty() => {
                Ok(ChosenMesh::Cluster(self.which.target()))
            }
            (Err(leno_local::Error::NotNamed(none)), false) if none.is_empty() => anyhow::bail!(
                "no mesh runs on this machine, and no kubeconfig names a cluster: start a mesh \
                 with `leno up FILE`, or pass --kubeconfig FILE"
            ),
            (Err(error), _) => Err(error.into()),
        }
    }
}
