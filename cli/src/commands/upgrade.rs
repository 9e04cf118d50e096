//! Implements the command `leno upgrade`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use leno_console::note;
use leno_local::hint::command;
use leno_local::layout::Layout;
use leno_local::orders::{self, MeshOrder};
use leno_local::status::{InstanceStatus, MeshStatus};

use super::install::InstallOptions;
use super::{Cluster, RunningMesh, block_on, print};

/// How often to check the progress of the proxies.
const POLL: Duration = Duration::from_millis(50);
/// How often to print which instances are still waited for.
const TOLD: Duration = Duration::from_secs(10);
/// How many instances are named while the command waits. At the end all are named.
const MAX_NAMED: usize = 3;

/// Prints the objects of this version, with the settings of the installation in the cluster
///
/// Reads the cluster and changes nothing: apply the output with kubectl. Settings that are given here take
/// precedence. With --proxies, replaces the proxies of a mesh of `leno up` instead, without cutting connections: each
/// new process, of the program that is installed now, accepts new connections, and the old process finishes its own.
/// That needs root.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  leno upgrade | kubectl apply --server-side -f -\n  \
                  leno upgrade --set image.tag=0.2.0 | kubectl diff -f -\n  \
                  sudo leno upgrade --proxies")]
pub(crate) struct Upgrade {
    #[command(flatten)]
    options: InstallOptions,

    #[command(flatten)]
    cluster: Cluster,

    /// Replaces the proxies of a mesh of `leno up` without cutting connections, and prints no objects
    #[arg(long, conflicts_with_all = ["ha", "values", "set", "kubeconfig", "context"])]
    proxies: bool,

    #[command(flatten)]
    mesh: RunningMesh,

    /// With --proxies, how long to wait until the new processes serve
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
            "Leno is not installed in namespace {namespace}: install it with leno install | \
             kubectl apply --server-side -f -, or pass its namespace with --namespace"
        );
    };
    let before = (format!("the settings of the installed version {}", there.version), there.values);
    let values = upgrade.options.values(Some(before))?;
    print(&leno_charts::render(&values, namespace)?).context("printing")?;
    note!("leno: {} -> {} in {namespace}", there.version, env!("CARGO_PKG_VERSION"));
    Ok(true)
}

/// Replaces the processes of the proxies of a mesh on this machine, and waits until the new ones serve.
fn proxies(upgrade: &Upgrade) -> Result<bool> {
    let layout = Layout::new(&upgrade.mesh.name()?)?;
    let before = MeshStatus::read(&layout)?.proxy_revision;
    let (begun, mut told) = (Instant::now(), Instant::now());
    block_on(async { Ok(orders::send(&layout, &MeshOrder::UpgradeProxies).await?) })?;
    let mut revision = None;
    loop {
        let status = MeshStatus::read(&layout)?;
        // Another upgrade may begin meanwhile; this command does not wait for it.
        revision = revision.or(Some(status.proxy_revision).filter(|revision| *revision > before));
        let meshed = || status.instances.iter().filter(|one| one.meshed && one.proxy.is_some());
        let left: Vec<String> =
            meshed().filter(|one| !serves(one, revision)).map(why_not).collect();
        if left.is_empty() && revision.is_some() {
            let (served, seconds) = (counted(meshed().count()), begun.elapsed().as_secs_f64());
            print(&format!("the new processes serve {served} after {seconds:.1} s\n"))?;
            return Ok(true);
        }
        if begun.elapsed() > upgrade.timeout {
            bail!("{}", late(layout.mesh(), &left, upgrade.timeout));
        }
        if told.elapsed() >= TOLD {
            told = Instant::now();
            note!("leno: {}", waiting(&left));
        }
        std::thread::sleep(POLL);
    }
}

/// An instance, and the reason why the next process does not serve it yet.
fn why_not(instance: &InstanceStatus) -> String {
    let otherwise = "waiting, because only a few are replaced at a time";
    let why = instance.proxy_waits.as_deref().unwrap_or(otherwise);
    format!("{}/{}: {why}", instance.namespace, instance.name)
}

/// A line about the instances that are still waited for.
fn waiting(left: &[String]) -> String {
    let named = left.get(..MAX_NAMED).unwrap_or(left).join("; ");
    let more = left.len().saturating_sub(MAX_NAMED);
    let more = if more == 0 { String::new() } else { format!("; and {more} more") };
    format!("waiting for the new processes of {}: {named}{more}", counted(left.len()))
}

/// The error for next processes that do not serve in time, with what to do about it.
fn late(mesh: &str, left: &[String], timeout: Duration) -> String {
    format!(
        "after {} s {} still served by old processes, which continue to serve:\n  {}\nStarts of the new processes \
         are retried; `{}` has their output. To go back, install the old programs and run `{}` again",
        timeout.as_secs(),
        match left.len() {
            1 => "1 instance is".to_owned(),
            number => format!("{number} instances are"),
        },
        left.join("\n  "),
        command(mesh, "logs --proxy"),
        command(mesh, "upgrade --proxies"),
    )
}

fn counted(number: usize) -> String {
    let instances = if number == 1 { "instance" } else { "instances" };
    format!("{number} {instances}")
}

/// Whether a process of this revision or a later one serves an instance.
fn serves(instance: &InstanceStatus, revision: Option<u64>) -> bool {
    instance.proxy.as_ref().zip(revision).is_some_and(|(proxy, wanted)| proxy.revision >= wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_is_named_with_the_reason_and_the_way_back() {
        let left: Vec<String> =
            (0..5).map(|number| format!("shop/web-{number}: its new process exited")).collect();
        let line = waiting(&left);
        assert!(line.starts_with("waiting for the new processes of 5 instances: shop/web-0: its"));
        assert!(line.ends_with("shop/web-2: its new process exited; and 2 more"), "{line}");
        assert!(waiting(&left[..1]).ends_with("of 1 instance: shop/web-0: its new process exited"));
        let late = late("shop", &left, Duration::from_secs(300));
        assert!(late.starts_with("after 300 s 5 instances are still served by"), "{late}");
        assert!(late.ends_with("run `leno upgrade --proxies --name shop` again"), "{late}");
        assert!(left.iter().all(|one| late.contains(one)) && late.contains("To go back"), "{late}");
    }
}
