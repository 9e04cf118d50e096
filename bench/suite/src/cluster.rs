//! `leno bench run --context`: meshes of a Kubernetes cluster under the same load.
//!
//! ```text
//! round × mesh:  inventory ─ ledger ─ install ─┬─ namespace, pods ─ load ─ record ─ namespace gone ─┬─ remove ─ inventory
//!                                              └──────────────── each scenario and step ────────────┘
//! ```
//! The client is a pod that makes load when it is told to by a port-forward (`station`); who used what is
//! asked of the kubelets (`meter`). What is made is in the ledger before it is made, and is taken back whatever
//! happens; a run that was killed is taken back by the next one, or by [`clean`].
//!
//! Read first: [`Run`], [`Mesh`], [`run`].

mod install;
mod inventory;
mod ledger;
mod manifests;
mod measure;
mod mesh;
mod meter;
mod nodes;
mod stage;
mod tool;
mod turn;
mod wait;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use leno_charts::Values;
use leno_operate::{Error, Right, Target};

use crate::interrupt::Interrupt;
use crate::place::Cluster;
use crate::record::{self, Record};
use crate::run::{self, Options, blank, flag_impossible};
use crate::scenario::Scenario;

use install::Installation;
use inventory::Inventory;
use ledger::{Installed, Ledger};
pub use mesh::Mesh;
use nodes::Usable;
use turn::{Clock, Turn, turns};

/// As whom objects are applied.
const MANAGER: &str = "leno-bench";
/// What whoever measures has to be allowed, in the whole cluster. To install a mesh more is needed.
const RIGHTS: [Right; 13] = [
    ("list", "", "nodes"),
    ("get", "", "nodes/proxy"),
    ("create", "", "namespaces"),
    ("delete", "", "namespaces"),
    ("list", "", "namespaces"),
    ("list", "", "configmaps"),
    ("list", "apps", "deployments"),
    ("list", "apiextensions.k8s.io", "customresourcedefinitions"),
    ("patch", "", "serviceaccounts"),
    ("patch", "", "services"),
    ("patch", "", "pods"),
    ("list", "", "pods"),
    ("create", "", "pods/portforward"),
];

/// What to run in a cluster.
pub struct Run {
    /// What is done, how often and how long; its meshes, generator and application are those of the lab.
    pub options: Options,
    /// By whom; the baseline is added where it is missing.
    pub meshes: Vec<Mesh>,
    /// The image of the client and the services: `leno` is its entrypoint.
    pub image: String,
    /// What Leno is told when it is installed.
    pub values: Values,
    /// Whether meshes are installed and removed; else those that are there are taken.
    pub install: bool,
}

/// A cluster that is measured in.
pub struct Ground {
    client: Client,
    target: Target,
    namespace: String,
    nodes: Vec<Usable>,
    server_version: String,
}

impl Ground {
    /// Looks at a cluster: whether it can be measured in, and where. Nothing is made.
    ///
    /// # Errors
    /// Where it is not reached, a right is missing, or no node takes pods.
    pub async fn open(target: &Target) -> Result<Self> {
        let target = target.pinned();
        let client = leno_operate::connect(&target).await?;
        let version = client.apiserver_version().await.map_err(Error::api("get /version"))?;
        let lacking = leno_operate::lacking(&client, &RIGHTS).await?;
        if !lacking.is_empty() {
            bail!(
                "whoever the kubeconfig names may not {}; docs/guide/bench.md has the rights that are needed",
                lacking.join(", ")
            );
        }
        let nodes = nodes::usable(&client).await?;
        let server_version = version.git_version;
        Ok(Self { client, target, namespace: namespace(), nodes, server_version })
    }

    /// The processors of the nodes that are used.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.nodes.iter().map(|one| one.node.cpus).sum()
    }

    /// Refuses where another run is under way, or was killed.
    async fn is_free(&self) -> Result<()> {
        let all: Api<Namespace> = Api::all(self.client.clone());
        let (label, value) = manifests::MANAGED;
        let ours = ListParams::default().labels(&format!("{label}={value}"));
        let found = all.list(&ours).await.map_err(Error::api("list namespaces"))?;
        let Some(there) = found.items.first() else { return Ok(()) };
        let name = there.name_any();
        let of = there.annotations().get(manifests::RECORDS);
        let of = of.map_or("a directory that it does not name", String::as_str);
        bail!(
            "namespace {name} is of a run whose records are in {of}: let it end, or where it was killed say \
             leno bench clean with that directory"
        );
    }

    /// What a record says of this place.
    fn place(
        &self,
        image: &str,
        scenario: &Scenario,
        (found, beside): (bool, &[String]),
    ) -> Cluster {
        let placement = nodes::Placement::of(&self.nodes, scenario);
        Cluster {
            context: self.target.name(),
            server_version: self.server_version.clone(),
            nodes: self.nodes.iter().map(|one| one.node.clone()).collect(),
            image: image.to_owned(),
            found,
            beside: beside.to_vec(),
            placement: placement.names(),
        }
    }
}

/// A namespace that nobody has: of this moment and process.
fn namespace() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |since| since.subsec_nanos());
    format!("leno-bench-{:05x}", (now ^ std::process::id().rotate_left(12)) & 0xf_ffff)
}

/// Runs all of it and writes a record for each measurement; what is done when it is interrupted is kept.
/// `say` gets a line about each step.
///
/// # Errors
/// When it cannot begin, is interrupted, a record cannot be written, or the cluster cannot be left as it was
/// found. A measurement that fails is a record that says why.
pub async fn run(
    run: &mut Run,
    ground: Ground,
    interrupt: &Interrupt,
    say: &mut dyn FnMut(&str),
) -> Result<()> {
    run.meshes.retain(|mesh| *mesh != Mesh::None);
    run::prepare_out(&run.options)?;
    let old = old_records(&run.options, &ground)?;
    clean(&run.options.out, say).await?;
    ground.is_free().await?;
    let there = Inventory::take(&ground.client).await?;
    let tools = able(run, &ground, &there, say).await?;
    let found = |mesh: &Mesh| !there.of(*mesh).is_empty();
    let beside = Mesh::ALL.into_iter().filter(found).map(|mesh| mesh.name().to_owned());
    let beside: Vec<String> = beside.collect();
    let turns = turns(run, &tools, &old);
    let total = turns.iter().map(|turn| turn.cases.len()).sum::<usize>();
    let mut clock = Clock::of(total);
    for turn in &turns {
        interrupt.check()?;
        let tool = tools.get(turn.mesh.name()).and_then(Option::as_deref);
        let turn = Turn { run, ground: &ground, turn, tool, beside: &beside };
        turn.take(&mut clock, interrupt, say).await?;
    }
    flag_impossible(&run.options.out)
}

/// The records that are there, which have to be of the same cluster.
fn old_records(options: &Options, ground: &Ground) -> Result<Vec<Record>> {
    let old =
        if options.resume { record::read(&options.out).unwrap_or_default() } else { Vec::new() };
    let context = ground.target.name();
    let other = old
        .iter()
        .find(|record| record.cluster.as_ref().is_none_or(|cluster| cluster.context != context));
    if let Some(record) = other {
        let place = record.cluster.as_ref().map_or_else(
            || "the lab of one machine".to_owned(),
            |cluster| format!("cluster {}", cluster.context),
        );
        bail!("{} holds records of {place}: choose another --out", options.out.display());
    }
    Ok(old)
}

/// Where the records are, for whoever finds the namespace.
fn whose(out: &Path) -> Result<String> {
    let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned());
    let host = host.unwrap_or_else(|_| "a machine without a name".to_owned());
    Ok(format!("{} (on {host})", std::path::absolute(out)?.display()))
}

/// The tools of the meshes that can be measured; of the others, records that say what is missing.
///
/// # Errors
/// Where a mesh is there that would be installed, or is not there that would be taken.
async fn able(
    run: &Run,
    ground: &Ground,
    there: &Inventory,
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
        match mesh.find() {
            Ok(tool) => drop(tools.insert(name, tool)),
            Err(missing) => {
                say(&format!("{name}: {missing}"));
                for scenario in &run.options.scenarios {
                    let mut record = at(run, ground, (scenario, *mesh, 0, None), &[]);
                    record.left_out = Some(missing.to_string());
                    record.write(&run.options.out)?;
                }
            }
        }
    }
    Ok(tools)
}

/// A record of which only the circumstances are known.
fn at(
    run: &Run,
    ground: &Ground,
    (scenario, mesh, round, step): (&Scenario, Mesh, u32, Option<f64>),
    beside: &[String],
) -> Record {
    let place = ground.place(&run.image, scenario, (!run.install && mesh != Mesh::None, beside));
    let mut record = blank(&run.options, scenario, mesh.name(), round);
    record.machine = place.machine();
    record.cluster = Some(place);
    record.step = step;
    record
}

/// Takes back what a ledger has: the namespace of the measurements, then the mesh that was installed, then what
/// that has left. Harmless where it was done before.
async fn take_back(
    client: &Client,
    ledger: &Ledger,
    (values, tool): (&Values, Option<&Path>),
    say: &mut dyn FnMut(&str),
) -> Result<()> {
    stage::strike(client, &ledger.namespace).await?;
    let Some(Installed { mesh, before }) = &ledger.mesh else { return Ok(()) };
    say(&format!("{}: being removed", mesh.name()));
    let installation = Installation { client, target: &ledger.target(), mesh: *mesh, tool, values };
    // What its own way leaves goes by the inventory; only then does it matter how it went.
    let removed = installation.remove(say).await;
    inventory::restore(client, (*mesh, before), say).await?;
    removed
}

/// Takes back what a run left that was killed, by the ledger in the directory of its records; whether there was
/// anything.
///
/// # Errors
/// When the cluster is not reached, or something does not go.
pub async fn clean(out: &Path, say: &mut dyn FnMut(&str)) -> Result<bool> {
    let Some(ledger) = Ledger::read(out)? else { return Ok(false) };
    say(&format!("taking back what a run left: namespace {}", ledger.namespace));
    let client = leno_operate::connect(&ledger.target()).await?;
    let tool = match &ledger.mesh {
        Some(Installed { mesh, .. }) => mesh.find()?,
        None => None,
    };
    take_back(&client, &ledger, (&Values::defaults(), tool.as_deref()), say).await?;
    Ledger::forget(out)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_of_two_runs_differ_from_those_of_a_mesh() {
        let name = namespace();
        assert!(name.starts_with("leno-bench-") && name.len() == 16, "{name}");
    }
}
