//! `leno bench run --context`: measures meshes of a Kubernetes cluster under the same load.
//!
//! ```text
//! round × mesh:  inventory ─ ledger ─ install ─┬─ namespace, pods ─ load ─ record ─ namespace gone ─┬─ remove ─ inventory
//!                                              └──────────────── each scenario and step ────────────┘
//! ```
//! The client is a pod that generates load on request, through a port-forward (`station`). A pod on
//! each node reads the counters of its processes (`watchers`, `meter`). The ledger lists every
//! change to the cluster before it is made. A run reverts its changes when it ends, even after an
//! error; those of a killed run are reverted by the next run or by [`clean`].
//!
//! Read [`ClusterRun`], [`Mesh`] and [`run`] first.

mod claim;
mod disturb;
mod hopeless;
mod install;
mod inventory;
mod ledger;
mod manifests;
mod measure;
mod mesh;
mod meter;
mod nodes;
mod restart;
mod stage;
mod start;
mod tool;
mod turn;
mod wait;
mod watchers;
mod watching;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Namespace;
use leno_charts::Values;
use leno_kube::api::ListParams;
use leno_kube::{Api, Client, Right};
use leno_operate::{Error, Target};

use crate::error::Attempt as _;
use crate::interrupt::Interrupt;
use crate::place::Cluster;
use crate::real::Images;
use crate::record::{self, Record};
use crate::run::{self, Options, blank, flag_impossible, leave_out};
use crate::scenario::Scenario;

use claim::Claimant;
use install::Installation;
use inventory::Inventory;
use ledger::{Installed, Ledger};
pub use mesh::Mesh;
use nodes::Nodes;
use turn::{Clock, TurnContext, turns};

/// The field manager that applies objects.
const MANAGER: &str = "leno-bench";
/// The rights in the whole cluster that a measurement needs; installing a mesh needs more. Applying
/// an object needs `create` if it does not exist, and `patch`. A port-forward needs `get` or
/// `create`, depending on its protocol.
const RIGHTS: [Right; 31] = [
    ("list", "", "nodes"),
    ("create", "", "namespaces"),
    ("delete", "", "namespaces"),
    ("get", "", "namespaces"),
    ("list", "", "namespaces"),
    ("patch", "", "namespaces"),
    ("create", "", "serviceaccounts"),
    ("patch", "", "serviceaccounts"),
    ("create", "", "services"),
    ("patch", "", "services"),
    ("create", "", "pods"),
    ("list", "", "pods"),
    ("patch", "", "pods"),
    ("create", "", "pods/portforward"),
    ("get", "", "pods/portforward"),
    ("get", "", "pods/log"),
    ("get", "", "configmaps"),
    ("list", "", "configmaps"),
    ("list", "apps", "deployments"),
    // The objects that change during the load.
    ("create", "discovery.k8s.io", "endpointslices"),
    ("patch", "discovery.k8s.io", "endpointslices"),
    ("create", "gateway.networking.k8s.io", "httproutes"),
    ("patch", "gateway.networking.k8s.io", "httproutes"),
    // The kinds of objects that meshes create outside their namespace.
    ("list", "apiextensions.k8s.io", "customresourcedefinitions"),
    ("list", "rbac.authorization.k8s.io", "clusterroles"),
    ("list", "rbac.authorization.k8s.io", "clusterrolebindings"),
    ("list", "admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("list", "admissionregistration.k8s.io", "validatingwebhookconfigurations"),
    ("list", "admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("list", "admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
    ("list", "gateway.networking.k8s.io", "gatewayclasses"),
];

/// The largest number of missing rights that an error names; a user who lacks more lacks most of
/// them.
const SHOWN: usize = 12;

/// The options of a run in a cluster.
pub struct ClusterRun {
    /// The scenarios, rounds and durations. The meshes and generators in these options are not
    /// used: they are for the lab.
    pub options: Options,
    /// The meshes to measure; the baseline is added if it is missing.
    pub meshes: Vec<Mesh>,
    /// The image of the client and the services, with `leno-bench` as its entrypoint.
    pub image: String,
    /// The real application instead of the suite's own services.
    pub real: Option<Images>,
    /// The values that Leno is installed with.
    pub values: Values,
    /// The same values as `NAME=VALUE`, for the records.
    pub told: Vec<String>,
    /// Whether meshes are installed and removed; otherwise the meshes of the cluster are measured.
    pub install: bool,
}

/// The cluster of a run.
pub struct BenchCluster {
    client: Client,
    target: Target,
    /// The UID that distinguishes the cluster from others.
    identity: String,
    namespace: String,
    nodes: Nodes,
    server_version: String,
}

impl BenchCluster {
    /// Checks whether a cluster can be used for measurements, and finds its nodes. Creates nothing.
    ///
    /// # Errors
    /// If the cluster is not reachable, a right is missing, or no node accepts pods.
    pub async fn open(target: &Target) -> Result<Self> {
        let Target { kubeconfig, context } = target.pinned();
        // An absolute path, because `clean` may run in another directory.
        let kubeconfig = kubeconfig.map(std::path::absolute).transpose()?;
        let target = Target { kubeconfig, context };
        let client = leno_operate::connect(&target).await?;
        let version = client.apiserver_version().await.map_err(Error::api("get /version"))?;
        let lacking = leno_operate::lacking(&client, &RIGHTS).await?;
        if !lacking.is_empty() {
            bail!(
                "the user of the kubeconfig may not {}; docs/guide/bench.md has the rights that are needed",
                lacking.join(", ")
            );
        }
        let identity = claim::identity(&client).await?;
        let nodes = nodes::nodes(&client).await?;
        let server_version = version.git_version;
        Ok(Self { client, target, identity, namespace: namespace(), nodes, server_version })
    }

    /// The processors of the nodes in use.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.nodes.usable.iter().map(|one| one.node.cpus).sum()
    }

    /// Fails if another run is active or was killed.
    async fn is_free(&self) -> Result<()> {
        let all: Api<Namespace> = Api::all(self.client.clone());
        let (label, value) = manifests::MANAGED;
        let ours = ListParams::default().labels(&format!("{label}={value}"));
        let found = all.list(&ours).await.map_err(Error::api("list namespaces"))?;
        found.items.first().map_or(Ok(()), claim::refused)
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
                Mesh::Leno if run.install => run.told.clone(),
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

/// Runs everything and writes a record for each measurement. After an interrupt, the records made
/// so far are kept. `say` receives one line for each step.
///
/// # Errors
/// If the run cannot start, is interrupted, cannot write a record, or cannot restore the cluster. A
/// measurement that fails is a record with the reason.
pub async fn run(
    run: &mut ClusterRun,
    ground: BenchCluster,
    interrupt: &Interrupt,
    say: &mut dyn FnMut(&str),
) -> Result<()> {
    run.meshes.retain(|mesh| *mesh != Mesh::None);
    let out = run.options.out.clone();
    fs::create_dir_all(&out).attempt(|| format!("make {}", out.display()))?;
    let _held = claim::directory(&out)?;
    finish(&out, say).await?;
    run::prepare_out(&run.options)?;
    let old = old_records(run, &ground)?;
    ground.is_free().await?;
    let there = Inventory::take(&ground.client).await?;
    let found = |mesh: &Mesh| !there.of(*mesh).is_empty();
    let beside = Mesh::ALL.into_iter().filter(found).map(|mesh| mesh.name().to_owned());
    let beside: Vec<String> = beside.collect();
    let tools = able(run, &ground, (&there, &beside, &old), say).await?;
    let turns = turns(run, &tools, &old);
    let mut clock = Clock::of(turns.iter().map(|turn| turn.cases.len()).sum());
    let turns = turns.iter().map(|turn| {
        let tool = tools.get(turn.mesh.name()).and_then(Option::as_deref);
        TurnContext { run, ground: &ground, turn, tool, beside: &beside }
    });
    let mut ledger = Ledger::new(&ground.target, &ground.identity, &ground.namespace);
    ledger.write(&out)?;
    let done = async {
        let claimant = Claimant { run: &ground.namespace, records: &whose(&out)? };
        if let Some(there) = claim::namespace(&ground.client, claim::RUN, claimant).await? {
            claim::refused(&there)?;
        }
        for turn in turns {
            interrupt.check()?;
            turn.take(&mut ledger, &mut clock, interrupt, say).await?;
        }
        Ok(())
    };
    let done: Result<()> = done.await;
    if done.as_ref().is_err_and(anyhow::Error::is::<NotRestored>) {
        return done;
    }
    match (done, let_go(&ground.client, &ledger, &out).await) {
        (Err(error), Err(left)) => return Err(left.context(format!("{error:#}"))),
        (done, left) => done.and(left)?,
    }
    flag_impossible(&out)
}

/// The existing records, which must be of the same cluster and applications.
fn old_records(run: &ClusterRun, ground: &BenchCluster) -> Result<Vec<Record>> {
    let options = &run.options;
    let old = record::there(&options.out)?;
    let same = |cluster: &Cluster| cluster.uid == ground.identity;
    let other = old.iter().find(|record| !record.cluster.as_ref().is_some_and(same));
    if let Some(record) = other {
        let place = record.cluster.as_ref().map_or_else(
            || "the lab of one machine".to_owned(),
            |cluster| format!("cluster {}", cluster.called()),
        );
        let here = ground.target.name();
        bail!(
            "{} holds records of {place}, and {here} is another (UID {}): choose another --out",
            options.out.display(),
            ground.identity
        );
    }
    for scenario in &options.scenarios {
        let record = at(run, ground, (scenario, Mesh::None, 0, None), &[]);
        run::has_same_application(&options.out, &old, &record)?;
    }
    Ok(old)
}

/// The directory of the records and its host, for users who find the namespace.
fn whose(out: &Path) -> Result<String> {
    let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned());
    let host = host.unwrap_or_else(|_| "a machine without a name".to_owned());
    Ok(format!("{} (on {host})", std::path::absolute(out)?.display()))
}

/// The tools of the meshes that can be measured. For the other meshes, this writes records that
/// name what is missing.
///
/// # Errors
/// If a mesh to install is in the cluster already, a mesh to measure as it is does not exist, or a
/// node that an installation would wait for is not Ready.
async fn able(
    run: &ClusterRun,
    ground: &BenchCluster,
    (there, beside, old): (&Inventory, &[String], &[Record]),
    say: &mut dyn FnMut(&str),
) -> Result<BTreeMap<&'static str, Option<PathBuf>>> {
    let mut tools = BTreeMap::from([(Mesh::None.name(), None)]);
    for mesh in &run.meshes {
        let name = mesh.name();
        let objects = there.of(*mesh);
        if !run.install {
            if let Some(why) = install::lacks(&ground.client, *mesh).await? {
                bail!(
                    "{name} is not there, or not ready ({why}): without --no-install it is installed"
                );
            }
            tools.insert(name, None);
            continue;
        }
        if let Some(first) = objects.first() {
            bail!(
                "{name} is there already, or something of it ({} objects, such as {first}): measure it as it is \
                 with --no-install, or remove it first",
                objects.len()
            );
        }
        if mesh.is_on_every_node()
            && let Some(node) = ground.nodes.unready.first()
        {
            bail!(
                "node {node} is not Ready, and {name} is ready where every node has its part: mend that node, take \
                 it out of the cluster (kubectl delete node {node}), or leave {name} out of --mesh"
            );
        }
        match mesh.find() {
            Ok(tool) => {
                may_install(run, ground, (*mesh, tool.as_deref())).await?;
                tools.insert(name, tool);
            }
            Err(missing) => {
                say(&format!("{name}: {missing}"));
                for scenario in &run.options.scenarios {
                    let record = at(run, ground, (scenario, *mesh, 0, None), beside);
                    leave_out(&run.options, (scenario, record), &missing.to_string(), old)?;
                }
            }
        }
    }
    Ok(tools)
}

/// Checks that the user may install a mesh, before any of it is created.
async fn may_install(
    run: &ClusterRun,
    ground: &BenchCluster,
    (mesh, tool): (Mesh, Option<&Path>),
) -> Result<()> {
    let (client, target) = (&ground.client, &ground.target);
    let lacking = Installation { client, target, mesh, tool }.lacking(&run.values).await?;
    if lacking.is_empty() {
        return Ok(());
    }
    let (name, count) = (mesh.name(), lacking.len());
    let more = if count > SHOWN { format!(" and {} more", count - SHOWN) } else { String::new() };
    bail!(
        "the user of the kubeconfig may not install {name} and remove it again: not allowed to {}{more}; \
         nothing was created. ClusterRun the bench as an administrator, or install {name} and measure it with --no-install, or leave \
         it out of --mesh",
        lacking[..count.min(SHOWN)].join(", ")
    )
}

/// A record that only has the circumstances of the run.
fn at(
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

/// The cluster or its nodes still have something that was not there before. The ledger lists it and
/// stays.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the cluster is not as it was found; say leno bench clean {} once that is seen to", .0.display())]
struct NotRestored(PathBuf);

/// Reverts the changes in a ledger: removes the namespace of the measurements, then the installed
/// mesh, then the objects that the mesh left behind. Afterwards the ledger in the directory has no
/// mesh. Safe to repeat.
async fn take_back(
    client: &Client,
    (ledger, out): (&mut Ledger, &Path),
    say: &mut dyn FnMut(&str),
) -> Result<()> {
    let back = async {
        stage::strike(client, &ledger.namespace).await?;
        if let Some(installed) = ledger.mesh.clone() {
            remove(client, (ledger, out), &installed, say).await?;
            ledger.mesh = None;
            ledger.write(out)?;
        }
        if !ledger.unclean.is_empty() {
            // Only the nodes are not clean.
            claim::release(client, &ledger.namespace).await?;
            bail!(
                "Leno is not gone from every node ({}): run `leno-agent cleanup` there, and then remove {}, which \
                 is all that knows of it",
                ledger.unclean.join("; "),
                out.join(ledger::FILE).display()
            );
        }
        Ok(())
    };
    back.await.with_context(|| NotRestored(out.to_owned()))
}

/// Removes a mesh that this run installed, and the objects that it leaves behind. Adds the nodes
/// that are not clean to the ledger.
async fn remove(
    client: &Client,
    (ledger, out): (&mut Ledger, &Path),
    installed: &Installed,
    say: &mut dyn FnMut(&str),
) -> Result<()> {
    let Installed { mesh, before, .. } = installed;
    let (mesh, name) = (*mesh, mesh.name());
    if let Some(namespace) = install::somebody_elses(client, mesh, &ledger.namespace).await? {
        say(&format!("{name}: in namespace {namespace}, which this run has not made: it stays"));
        return Ok(());
    }
    say(&format!("{name}: being removed"));
    // Some tools fail if there is nothing to remove, as linkerd does.
    let something = Inventory::take(client).await?.has_new(mesh, before);
    if mesh.tool().is_none() || something {
        let tool = mesh.find()?;
        let target = &ledger.target();
        let installation = Installation { client, target, mesh, tool: tool.as_deref() };
        // Until the removal succeeds, the objects that a second attempt needs stay in the cluster.
        ledger.unclean.extend(installation.remove(installed, say).await?);
        ledger.write(out)?;
    }
    inventory::restore(client, (&ledger.namespace, mesh, before), say).await
}

/// Releases a cluster in which nothing of the run is left.
async fn let_go(client: &Client, ledger: &Ledger, out: &Path) -> Result<()> {
    claim::release(client, &ledger.namespace).await.with_context(|| NotRestored(out.to_owned()))?;
    Ok(Ledger::forget(out)?)
}

/// Reverts the changes of a killed run, by the ledger in the directory of its records. Returns
/// whether there were any.
///
/// # Errors
/// If a run is active in the directory, the cluster is not reachable or not that of the ledger, or
/// an object cannot be removed.
pub async fn clean(out: &Path, say: &mut dyn FnMut(&str)) -> Result<bool> {
    let _held = claim::directory(out)?;
    finish(out, say).await
}

/// As [`clean`], in a directory that this process has locked.
async fn finish(out: &Path, say: &mut dyn FnMut(&str)) -> Result<bool> {
    let Some(mut ledger) = Ledger::read(out)? else { return Ok(false) };
    let reached = async {
        let client = leno_operate::connect(&ledger.target()).await?;
        anyhow::Ok((claim::identity(&client).await?, client))
    };
    let file = out.join(ledger::FILE);
    let (identity, client) = reached.await.with_context(|| {
        format!(
            "{} is about a cluster that is not reached; where it is gone, remove the file",
            file.display()
        )
    })?;
    ledger.check(out, &identity)?;
    say(&format!("taking back what a run left: namespace {}", ledger.namespace));
    take_back(&client, (&mut ledger, out), say).await?;
    let_go(&client, &ledger, out).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use k8s_openapi::api::rbac::v1::ClusterRole;

    use super::*;

    #[test]
    fn the_rights_that_are_needed_are_those_of_the_guide() {
        let guide = include_str!("../../../docs/guide/bench.md");
        let (_, role) = guide.split_once("```yaml\n").unwrap();
        let role = leno_operate::documents(role.split_once("```").unwrap().0).unwrap().remove(0);
        let role: ClusterRole = serde_json::from_value(role).unwrap();
        let mut said = BTreeSet::new();
        for rule in role.rules.unwrap() {
            for group in rule.api_groups.unwrap() {
                for resource in rule.resources.iter().flatten() {
                    said.extend(rule.verbs.iter().map(|verb| format!("{verb} {group}/{resource}")));
                }
            }
        }
        let needed = RIGHTS.map(|(verb, group, resource)| format!("{verb} {group}/{resource}"));
        assert_eq!(said, BTreeSet::from(needed));
    }

    #[test]
    fn namespaces_of_two_runs_differ_from_those_of_a_mesh() {
        let name = namespace();
        assert!(name.starts_with("leno-bench-") && name.len() == 16, "{name}");
    }
}
