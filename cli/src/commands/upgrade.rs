//! `leno upgrade`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use leno_local::layout::Layout;
use leno_local::orders::{self, Order};
use leno_local::status::{InstanceStatus, Status};

use super::install::InstallOptions;
use super::{Cluster, RunningMesh, block_on, print};

/// How often it is looked how far the proxies have come.
const POLL: Duration = Duration::from_millis(50);

/// Prints what this version installs, with what the installation that is there was told
///
/// Reads the cluster, changes nothing: apply what it prints. What is given here wins over what was told. With --proxies
/// it replaces the proxies of a mesh of `leno up` instead, while they run: each next process, of the program that is
/// installed now, takes new connections, and the one before finishes what it has. That needs root.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  leno upgrade | kubectl apply --server-side -f -\n  \
                  leno upgrade --set image.tag=0.2.0 | kubectl diff -f -\n  \
                  sudo leno upgrade --proxies")]
pub(crate) struct Upgrade {
    #[command(flatten)]
    options: InstallOptions,

    #[command(flatten)]
    cluster: Cluster,

    /// Replaces the proxies of a mesh of `leno up`, with no connection cut; prints no objects
    #[arg(long, conflicts_with_all = ["ha", "values", "set", "kubeconfig", "context"])]
    proxies: bool,

    #[command(flatten)]
    mesh: RunningMesh,

    /// With --proxies, how long to wait until the next processes serve
    #[arg(long, default_value = "5m", value_name = "DURATION", value_parser = leno_console::duration)]
    timeout: Duration,
}

pub(crate) fn run(upgrade: &Upgrade) -> Result<bool> {
    if upgrade.proxies {
        return proxies(upgrade);
    }
    let namespace = &upgrade.options.namespace;
    let there = block_on(async {
        let client = leno_operate::connect(&upgrade.cluster.target()).await?;
        Ok(leno_operate::installed(&client, namespace).await?)
    })?;
    let Some(there) = there else {
        bail!(
            "nothing is installed in {namespace}: run leno install, or name Leno's namespace with --namespace"
        );
    };
    let before = (format!("what {} was told", there.version), there.values);
    let values = upgrade.options.values(Some(before))?;
    print(&leno_charts::render(&values, namespace)?).context("printing")?;
    eprintln!("leno: {} -> {} in {namespace}", there.version, env!("CARGO_PKG_VERSION"));
    Ok(true)
}

/// Has other processes take over from the proxies of a mesh of this machine, and waits until they serve.
fn proxies(upgrade: &Upgrade) -> Result<bool> {
    let layout = Layout::new(&upgrade.mesh.name()?)?;
    let before = Status::read(&layout)?.proxy_revision;
    let begun = Instant::now();
    block_on(async { Ok(orders::send(&layout, &Order::UpgradeProxies).await?) })?;
    let mut revision = None;
    loop {
        let status = Status::read(&layout)?;
        // A further upgrade meanwhile is one of its own.
        revision = revision.or(Some(status.proxy_revision).filter(|revision| *revision > before));
        let meshed = || status.instances.iter().filter(|one| one.meshed && one.proxy.is_some());
        let left: Vec<String> = meshed()
            .filter(|one| !serves(one, revision))
            .map(|one| format!("{}/{}", one.namespace, one.name))
            .collect();
        if left.is_empty() && revision.is_some() {
            let (count, seconds) = (meshed().count(), begun.elapsed().as_secs_f64());
            let instances = if count == 1 { "instance" } else { "instances" };
            print(&format!("the next processes serve {count} {instances} after {seconds:.1} s\n"))?;
            return Ok(true);
        }
        if begun.elapsed() > upgrade.timeout {
            bail!(
                "served by the processes of before, which go on: {}; `leno logs --proxy` says why the next ones do not serve",
                left.join(", ")
            );
        }
        std::thread::sleep(POLL);
    }
}

/// Whether an instance is served by a process of this revision, or a later one.
fn serves(instance: &InstanceStatus, revision: Option<u64>) -> bool {
    instance.proxy.as_ref().zip(revision).is_some_and(|(proxy, wanted)| proxy.revision >= wanted)
}
