//! `leno bench run --context`: measures meshes of a Kubernetes cluster under the same load.
//!
//! ```text
//! round × mesh:  inventory ─ ledger ─ install ─┬─ namespace, pods ─ load ─ record ─ namespace gone ─┬─ remove ─ inventory
//!                                              └──────────────── each scenario and step ────────────┘
//! ```
//! The client is a pod that generates load on request, and a pod on each node reads the counters of its processes. Both
//! run `pod_program`, and are reached like `kubectl attach` (`pod_stream`). The ledger lists every change to the
//! cluster before it is made. A run reverts its changes when it ends, even after an error; those of a killed run are
//! reverted by the next run or by [`clean`].
//!
//! Read [`ClusterRun`], [`Mesh`] and [`run`] first.

mod bench_cluster;
mod environment;
mod install;
mod installer;
mod inventory;
mod ledger;
mod load_readings;
mod manifests;
mod measure;
mod mesh;
mod mesh_round;
mod names;
mod namespace;
mod nodes;
mod pod_failure;
mod pod_stream;
mod pods;
mod restart;
mod restore;
mod revisions;
mod roles;
mod run_lock;
mod running_load;
mod start_up;
mod wait;
mod watchers;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use leno_program::note;

use crate::measurement::records::{
    Progress, flag_impossible, has_same_application, leave_out, prepare_out,
};
use crate::record::cluster::Cluster;
use crate::record::{self, Record};

pub use bench_cluster::{BenchCluster, ClusterRun};
use bench_cluster::{at, whose};
use install::Installation;
use inventory::Inventory;
use ledger::Ledger;
pub use mesh::Mesh;
use mesh_round::{MeshRoundContext, mesh_rounds};
use restore::{NotRestored, finish, let_go};
use run_lock::Claimant;

/// The largest number of missing rights that an error names. A user who lacks more than these lacks most of them.
const SHOWN: usize = 12;

/// Runs everything and writes a record for each measurement. After an interrupt, the records made
/// so far are kept. `say` receives one line for each step.
///
/// # Errors
/// If the run cannot start, is interrupted, cannot write a record, or cannot restore the cluster. A
/// measurement that fails is a record with the reason.
pub async fn run(run: &mut ClusterRun, ground: BenchCluster) -> Result<()> {
    run.meshes.retain(|mesh| *mesh != Mesh::None);
    let out = run.options.out.clone();
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let _held = run_lock::directory(&out)?;
    finish(&out).await?;
    prepare_out(&run.options)?;
    let old = old_records(run, &ground)?;
    ground.is_free().await?;
    let there = Inventory::take(&ground.client).await?;
    // Leno is one installation, with the name that it has here first.
    let is_named = |mesh: &Mesh| !mesh.is_leno() || *mesh == Mesh::Leno;
    let found = |mesh: &Mesh| is_named(mesh) && !there.of(*mesh).is_empty();
    let beside = Mesh::ALL.into_iter().filter(found).map(|mesh| mesh.name().to_owned());
    let beside: Vec<String> = beside.collect();
    let tools = able(run, &ground, (&there, &beside, &old)).await?;
    let rounds = mesh_rounds(run, &tools, &old);
    let mut progress = Progress::of(rounds.iter().map(|round| round.cases.len()).sum(), 0);
    let rounds = rounds.iter().map(|round| {
        let tool = tools.get(round.mesh.name()).and_then(Option::as_deref);
        MeshRoundContext { run, ground: &ground, round, tool, beside: &beside }
    });
    let mut ledger = Ledger::new(&ground.target, &ground.identity, &ground.namespace);
    ledger.write(&out)?;
    let done = async {
        let claimant = Claimant { run: &ground.namespace, records: &whose(&out)? };
        if let Some(there) = run_lock::namespace(&ground.client, names::RUN, claimant).await? {
            run_lock::refused(&there)?;
        }
        for round in rounds {
            run.options.interrupt.check()?;
            round.carry_out(&mut ledger, &mut progress).await?;
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

/// The existing records in the directory. They must be of the same cluster and applications.
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
            "{} has records of {place}, but this is {here} (UID {}): choose another --out",
            options.out.display(),
            ground.identity
        );
    }
    for scenario in &options.scenarios {
        let record = at(run, ground, (scenario, Mesh::None, 0, None), &[]);
        has_same_application(&options.out, &old, &record)?;
    }
    Ok(old)
}

/// The installers of the meshes that can be measured. For the other meshes, this writes records that name what is
/// missing.
///
/// # Errors
/// If a mesh that the run should install is already in the cluster, a mesh that it should measure without installing it
/// does not exist, or a node for which an installation would wait is not Ready.
async fn able(
    run: &ClusterRun,
    ground: &BenchCluster,
    (there, beside, old): (&Inventory, &[String], &[Record]),
) -> Result<BTreeMap<&'static str, Option<PathBuf>>> {
    let mut tools = BTreeMap::from([(Mesh::None.name(), None)]);
    for mesh in &run.meshes {
        let name = mesh.name();
        let objects = there.of(*mesh);
        if !run.install {
            if let Some(why) = install::lacks(&ground.client, *mesh).await? {
                bail!(
                    "{name} is not installed or not ready ({why}): remove --no-install, and the \
                     bench installs it"
                );
            }
            tools.insert(name, None);
            continue;
        }
        if let Some(first) = objects.first() {
            bail!(
                "{name} is already installed, or a part of it ({} objects, such as {first}): \
                 measure it with --no-install, or remove it first",
                objects.len()
            );
        }
        if mesh.facts().is_on_every_node
            && let Some(node) = ground.nodes.unready.first()
        {
            bail!(
                "node {node} is not Ready, but {name} needs its part on every node: repair the \
                 node, remove it from the cluster (kubectl delete node {node}), or remove {name} \
                 from --mesh"
            );
        }
        match mesh.find() {
            Ok(tool) => {
                may_install(run, ground, (*mesh, tool.as_deref())).await?;
                tools.insert(name, tool);
            }
            Err(missing) => {
                note!("{name}: {missing}");
                for scenario in &run.options.scenarios {
                    let record = at(run, ground, (scenario, *mesh, 0, None), beside);
                    leave_out(&run.options, (scenario, record), &missing.to_string(), old)?;
                }
            }
        }
    }
    Ok(tools)
}

/// Checks that the user may install a mesh, before any object of the mesh is created.
async fn may_install(
    run: &ClusterRun,
    ground: &BenchCluster,
    (mesh, tool): (Mesh, Option<&Path>),
) -> Result<()> {
    let (client, target) = (&ground.client, &ground.target);
    let interrupt = &run.options.interrupt;
    let lacking = Installation { client, target, mesh, tool, interrupt };
    let lacking = lacking.lacking(&run.values).await?;
    if lacking.is_empty() {
        return Ok(());
    }
    let (name, count) = (mesh.name(), lacking.len());
    let more = if count > SHOWN { format!(" and {} more", count - SHOWN) } else { String::new() };
    bail!(
        "the user of the kubeconfig is not permitted to install and remove {name} (missing: \
         {}{more}); nothing was created: run the bench as an administrator, install {name} \
         yourself and use --no-install, or remove it from --mesh",
        lacking[..count.min(SHOWN)].join(", ")
    )
}

/// Reverts the changes of a killed run, which the ledger in the directory of its records lists. Returns whether there
/// were any.
///
/// # Errors
/// If a run is active in the directory, the cluster is not reachable or not that of the ledger, or an object cannot be
/// removed.
pub async fn clean(out: &Path) -> Result<bool> {
    let _held = run_lock::directory(out)?;
    finish(out).await
}
