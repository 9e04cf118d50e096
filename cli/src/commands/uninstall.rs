//! Implements the command `leno uninstall`.

use std::io::IsTerminal as _;

use anyhow::{Result, bail};
use clap::Args;
use leno_charts::NAMESPACE;
use leno_console::{note, note_text};
use leno_operate::{MeshRemoval, RemovalReport};

use super::{Cluster, block_on};

/// Removes Leno from a cluster and from the kernel of each node
///
/// First checks that you may remove everything. Then removes the webhooks, the node agents with everything that they
/// have set up, and everything else. Pods with a proxy continue to serve, in plaintext and in the end without the
/// proxy; restart them to remove it. If the command is interrupted, run it again. It stops if the mesh is installed
/// again meanwhile. Exits 1 if a node could not be cleaned.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  leno uninstall\n  leno uninstall --yes --keep-definitions")]
pub(crate) struct Uninstall {
    /// Namespace in which Leno is installed
    #[arg(long, short, default_value = NAMESPACE)]
    namespace: String,

    #[command(flatten)]
    cluster: Cluster,

    /// Keeps the CustomResourceDefinitions of Leno, and so all of its policies
    #[arg(long)]
    keep_definitions: bool,

    /// Does not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

pub(crate) fn run(uninstall: &Uninstall) -> Result<bool> {
    if !uninstall.yes && !agreed(uninstall)? {
        return Ok(false);
    }
    let mut clean = true;
    block_on(async {
        let client = leno_operate::connect(&uninstall.cluster.target()).await?;
        let removal = MeshRemoval::new(client, &uninstall.namespace, uninstall.keep_definitions);
        let done = removal.run(|step| match step {
            RemovalReport::Object(what) => note!("removed  {what}"),
            RemovalReport::Node(name) => note!("cleaned  node {name}"),
            RemovalReport::Unannounced => {
                note!(
                    "missed   every pod: no control plane is ready to notify them; requests \
                     between pods may fail until they are restarted"
                );
            }
            RemovalReport::Untold(pod) => {
                note!(
                    "missed   pod {pod}: it was not notified; requests to or from it may fail \
                     until it is restarted"
                );
            }
            RemovalReport::Proxies(left) => {
                for (namespace, pods) in left {
                    note!(
                        "left     {pods} pods of {namespace} with a proxy: restart them, \
                         kubectl rollout restart -n {namespace} deployment,statefulset,daemonset"
                    );
                }
            }
            RemovalReport::NamespaceKept(name) => {
                note!("kept     Namespace {name}: it was not created by Leno");
            }
            RemovalReport::NodeLeft(name, why) => {
                clean = false;
                note!("left     node {name}: {why}: run `leno-agent cleanup` on it");
            }
        });
        Ok(done.await?)
    })?;
    Ok(clean)
}

fn agreed(uninstall: &Uninstall) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!(
            "cannot ask for confirmation to remove everything in {}, because standard input is not \
             a terminal: add --yes",
            uninstall.namespace
        );
    }
    let policies = if uninstall.keep_definitions {
        ""
    } else {
        " and every TrafficPolicy, RateLimitPolicy and AuthorizationPolicy"
    };
    note_text!("Remove Leno, namespace {}{policies}? [y/N] ", uninstall.namespace);
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
