//! `leno upgrade`.

use anyhow::{Context, Result, bail};
use clap::Args;

use super::install::InstallOptions;
use super::{Cluster, block_on, print};

/// Prints what this version installs, with what the installation that is there was told
///
/// Reads the cluster, changes nothing: apply what it prints. What is given here wins over what was told.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  leno upgrade | kubectl apply --server-side -f -\n  \
                  leno upgrade --set image.tag=0.2.0 | kubectl diff -f -")]
pub(crate) struct Upgrade {
    #[command(flatten)]
    options: InstallOptions,

    #[command(flatten)]
    cluster: Cluster,
}

pub(crate) fn run(upgrade: &Upgrade) -> Result<bool> {
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
