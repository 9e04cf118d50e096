//! The cluster of a run, and the nodes and rights that a run needs there.

use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use leno_charts::Values;
use leno_kube::api::ListParams;
use leno_kube::{Api, Client, Right};
use leno_operate::{ClusterTarget, Error};

use super::mesh::Mesh;
use super::names::MANAGED;
use super::nodes::{self, Nodes};
use super::run_lock;
use crate::measurement::options::Options;
use crate::measurement::records::blank;
use crate::real_application::images::Images;
use crate::record::Record;
use crate::record::cluster::Cluster;
use crate::scenario::Scenario;

/// The role that the guide grants to users who measure. Applying an object needs `create` if it does not exist, and
/// `patch`. Attaching needs `get` or `create`, depending on its protocol.
const ROLE: &str = include_str!("../../data/rights.yaml");
static RULES: LazyLock<Vec<PolicyRule>> = LazyLock::new(|| {
    let role: ClusterRole = serde_saphyr::from_str(ROLE).expect("a test reads the built-in file");
    role.rules.unwrap_or_default()
});

/// The rights in the whole cluster that a measurement needs; installing a mesh needs more.
fn rights() -> Vec<Right> {
    let of_rule = |rule: &'static PolicyRule| {
        let resources = rule.resources.iter().flatten();
        let each = resources.flat_map(|one| rule.verbs.iter().map(move |verb| (verb, one)));
        let groups = rule.api_groups.iter().flatten();
        groups.flat_map(move |group| {
            each.clone().map(move |(verb, one)| (verb.as_str(), group.as_str(), one.as_str()))
        })
    };
    RULES.iter().flat_map(of_rule).collect()
}

/// The options of a run in a cluster.
pub struct ClusterRun {
    /// The scenarios, rounds and durations. The meshes and generators in these options are only for the lab and are not
    /// used.
    pub options: Options,
    /// The meshes to measure; the baseline is added if it is missing.
    pub meshes: Vec<Mesh>,
    /// The image of the client and the services, with `leno-bench` as its entrypoint.
    pub image: String,
    /// The real application instead of the suite's own services.
    pub real: Option<Images>,
    /// The values with which Leno is installed.
    pub values: Values,
    /// The same values as `NAME=VALUE`, for the records.
    pub told: Vec<String>,
    /// Whether meshes are installed and removed; otherwise the meshes of the cluster are measured.
    pub install: bool,
}

/// The cluster of a run.
pub struct BenchCluster {
    pub(super) client: Client,
    pub(super) target: ClusterTarget,
    /// The UID that distinguishes the cluster from other clusters.
    pub(super) identity: String,
    pub(super) namespace: String,
    pub(super) nodes: Nodes,
    server_version: String,
}

impl BenchCluster {
    /// Checks whether a cluster can be used for measurements, and finds its nodes. Creates nothing.
    ///
    /// # Errors
    /// If the cluster is not reachable, a right is missing, or no node accepts pods.
    pub async fn open(target: &ClusterTarget) -> Result<Self> {
        let ClusterTarget { kubeconfig, context } = target.pinned();
        // An absolute path, because `clean` may run in another directory.
        let kubeconfig = kubeconfig.map(std::path::absolute).transpose()?;
        let target = ClusterTarget { kubeconfig, context };
        let client = leno_operate::connect(&target).await?;
        let version = client.apiserver_version().await.map_err(Error::api("get /version"))?;
        let lacking = leno_operate::lacking(&client, &rights()).await?;
        ensure!(
            lacking.is_empty(),
            "the user of the kubeconfig is not permitted to {}: docs/guide/bench.md lists the \
             rights that are needed",
            lacking.join(", ")
        );
        let identity = run_lock::identity(&client).await?;
        let nodes = nodes::nodes(&client).await?;
        let server_version = version.git_version;
        Ok(Self { client, target, identity, namespace: namespace(), nodes, server_version })
    }

    /// The processors of the nodes in use.
    pub fn cpus(&self) -> usize {
        self.nodes.usable.iter().map(|one| one.node.cpus).sum()
    }

    /// Fails if another run is active, or was killed and has left changes.
    pub(super) async fn is_free(&self) -> Result<()> {
        let all: Api<Namespace> = Api::all(self.client.clone());
        let (label, value) = MANAGED;
        let ours = ListParams::default().labels(&format!("{label}={value}"));
        let found = all.list(&ours).await.map_err(Error::api("list namespaces"))?;
        found.items.first().map_or(Ok(()), run_lock::refused)
    }

    /// The description of this cluster in a record.
    fn place(
        &self,
        run: &ClusterRun,
        (scenario, mesh): (&Scenario, Mesh),
        beside: &[String],
    ) -> Cluster {
        let placement = nodes::Placement::of(&self.nodes.usable, scenario);
        Cluster {
            context: self.target.name(),
            uid: self.identity.clone(),
            server_version: self.server_version.clone(),
            nodes: self.nodes.usable.iter().map(|one| one.node.clone()).collect(),
            image: run.image.clone(),
            application: run.real.clone(),
            found: !run.install && mesh != Mesh::None,
            told: match mesh {
                mesh if mesh.is_leno() && run.install => run.told.clone(),
                _ => Vec::new(),
            },
            beside: beside.to_vec(),
            placement: placement.names(),
        }
    }
}

/// A unique name for a namespace, from the current time and the process ID.
fn namespace() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |since| since.subsec_nanos());
    format!("leno-bench-{:05x}", (now ^ std::process::id().rotate_left(12)) & 0xf_ffff)
}

/// The directory of the records and its host, so that users who find the namespace know whose it is.
pub(super) fn whose(out: &Path) -> Result<String> {
    let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned());
    let host = host.unwrap_or_else(|_| "a machine without a name".to_owned());
    Ok(format!("{} (on {host})", std::path::absolute(out)?.display()))
}

/// A record of which only the circumstances of the run are set.
pub(super) fn at(
    run: &ClusterRun,
    ground: &BenchCluster,
    (scenario, mesh, round, step): (&Scenario, Mesh, u32, Option<f64>),
    beside: &[String],
) -> Record {
    let place = ground.place(run, (scenario, mesh), beside);
    let mut record = blank(&run.options, scenario, mesh.name(), round);
    record.machine = place.machine();
    record.cluster = Some(place);
    record.step = step;
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rights_that_are_needed_are_those_of_the_guide() {
        assert!(include_str!("../../../../docs/guide/bench.md").contains(ROLE));
        let rights = rights();
        assert_eq!(rights.len(), 33, "{rights:?}");
        assert!(rights.contains(&("create", "discovery.k8s.io", "endpointslices")), "{rights:?}");
    }

    #[test]
    fn every_object_of_a_measurement_may_be_applied_by_these_rights() {
        let objects = include_str!("../../data/cluster.golden.yaml");
        for object in leno_operate::documents(objects).unwrap() {
            let (version, kind) = (&object["apiVersion"], &object["kind"]);
            let group = version.as_str().unwrap().split_once('/').map_or("", |(group, _)| group);
            let resource = kind.as_str().unwrap().to_lowercase() + "s";
            for verb in ["create", "patch"] {
                let right = (verb, group, resource.as_str());
                assert!(rights().contains(&right), "{right:?}");
            }
        }
    }

    #[test]
    fn namespaces_of_two_runs_differ_from_those_of_a_mesh() {
        let name = namespace();
        assert!(name.starts_with("leno-bench-") && name.len() == 16, "{name}");
    }
}
