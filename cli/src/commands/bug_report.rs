//! `leno bug-report`.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::Args;
use leno_operate::Wanted;

use super::{Cluster, block_on, print};

/// Gathers what a report of a defect needs from a cluster into one archive, without secrets
///
/// Versions, what was installed, Leno's objects and those attached to the mesh, events, the newest lines of the
/// logs of the control plane, the agents and the proxies, and what these say of themselves. Secrets are not
/// read; values of environments, headers and annotations, commands of other containers, and whatever looks like
/// a key or a token are removed. Look into it before you send it. Exits 1 where something could not be gathered.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  leno bug-report\n  \
                  leno bug-report --context prod -n shop --file shop.tar.gz")]
pub(crate) struct BugReport {
    /// A namespace of workloads; may be given several times [default: all that have proxies]
    #[arg(short, long = "namespace", value_name = "NAME")]
    namespaces: Vec<String>,

    /// The archive; it must not be there [default: leno-bug-report-<time>.tar.gz]
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Most proxies whose state and log are in it; those that are not ready come first
    #[arg(long, default_value_t = 50, value_name = "NUMBER")]
    proxies: usize,

    #[command(flatten)]
    which: Cluster,

    /// The namespace of the control plane
    #[arg(long, value_name = "NAME", default_value = leno_charts::NAMESPACE)]
    system_namespace: String,
}

pub(crate) fn run(bug_report: &BugReport) -> Result<bool> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let named = || PathBuf::from(format!("leno-bug-report-{now}.tar.gz"));
    let wanted = Wanted {
        namespaces: bug_report.namespaces.clone(),
        system: bug_report.system_namespace.clone(),
        proxies: bug_report.proxies,
        file: bug_report.file.clone().unwrap_or_else(named),
    };
    let missing = block_on(async {
        let client = leno_operate::connect(&bug_report.which.target()).await?;
        Ok(leno_operate::report(&client, &wanted).await?)
    })?;
    for one in &missing {
        eprintln!("leno: missing: {one}");
    }
    print(&format!("{}\n", wanted.file.display()))?;
    Ok(missing.is_empty())
}
