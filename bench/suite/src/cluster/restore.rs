//! Reverts the changes that a run has made to a cluster, which its ledger lists.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use leno_kube::Client;
use leno_program::note;

use super::install::{self, Installation};
use super::inventory::{self, Inventory};
use super::ledger::{self, Installed, Ledger};
use super::{namespace, run_lock};
use crate::interrupt::Interrupt;

/// The cluster or its nodes still have objects or changes of the run. The ledger lists them and is kept.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the cluster is not as it was before the run; run leno bench clean {} once the cause is removed", .0.display())]
pub(super) struct NotRestored(PathBuf);

/// Reverts the changes in a ledger: removes the namespace of the measurements, then the installed mesh, then the
/// objects that the mesh left behind. Afterwards the ledger in the directory lists no mesh. Can safely be called again.
pub(super) async fn take_back(client: &Client, (ledger, out): (&mut Ledger, &Path)) -> Result<()> {
    let back = async {
        namespace::delete(client, &ledger.namespace).await?;
        if let Some(installed) = ledger.mesh.clone() {
            remove(client, (ledger, out), &installed).await?;
            ledger.mesh = None;
            ledger.write(out)?;
        }
        if !ledger.unclean.is_empty() {
            // The cluster is restored; only some nodes are not.
            run_lock::release(client, &ledger.namespace).await?;
            bail!(
                "Leno is not gone from every node ({}): run `leno-agent cleanup` there, then \
                 remove {}, the only record of it",
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
) -> Result<()> {
    let Installed { mesh, before, .. } = installed;
    let (mesh, name) = (*mesh, mesh.name());
    if let Some(namespace) = install::foreign_namespace(client, mesh, &ledger.namespace).await? {
        note!("{name}: in namespace {namespace}, which this run has not made: it stays");
        return Ok(());
    }
    note!("{name}: being removed");
    // Some tools, such as linkerd, fail if there is nothing to remove.
    let something = Inventory::take(client).await?.has_new(mesh, before);
    if mesh.facts().tool.is_none() || something {
        let tool = mesh.find()?;
        let target = &ledger.target();
        let (tool, interrupt) = (tool.as_deref(), &Interrupt::default());
        let installation = Installation { client, target, mesh, tool, interrupt };
        // Until the removal succeeds, the objects that a second attempt needs stay in the cluster.
        ledger.unclean.extend(installation.remove(installed).await?);
        ledger.write(out)?;
    }
    inventory::restore(client, (&ledger.namespace, mesh, before)).await
}

/// Releases a cluster in which all changes of the run are reverted.
pub(super) async fn let_go(client: &Client, ledger: &Ledger, out: &Path) -> Result<()> {
    run_lock::release(client, &ledger.namespace)
        .await
        .with_context(|| NotRestored(out.to_owned()))?;
    Ledger::forget(out)
}

/// Like [`clean`], in a directory that this process has locked.
pub(super) async fn finish(out: &Path) -> Result<bool> {
    let Some(mut ledger) = Ledger::read(out)? else { return Ok(false) };
    let reached = async {
        let client = leno_operate::connect(&ledger.target()).await?;
        anyhow::Ok((run_lock::identity(&client).await?, client))
    };
    let file = out.join(ledger::FILE);
    let (identity, client) = reached.await.with_context(|| {
        format!(
            "{} lists changes of a cluster that cannot be reached: if the cluster no longer \
             exists, remove the file",
            file.display()
        )
    })?;
    ledger.check(out, &identity)?;
    note!("reverting the changes of an earlier run: namespace {}", ledger.namespace);
    take_back(&client, (&mut ledger, out)).await?;
    let_go(&client, &ledger, out).await?;
    Ok(true)
}
