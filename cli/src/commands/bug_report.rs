//! Implements the command `leno bug-report`.

mod machine;

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::Args;
use leno_console::note;
use leno_operate::{ClusterTarget, ReportScope};

use super::{AnyMesh, ChosenMesh, block_on, print};

/// Collects what a bug report needs from a mesh, in one archive without secrets
///
/// The archive has versions, the settings of the installation, Leno's objects and those attached to the mesh, events,
/// the newest log lines of the control plane, the agents and the proxies, and their metrics and configuration; of a
/// cluster also the observer's figures of the last five minutes. Secrets are not read. Values of variables, headers
/// and annotations, commands of workloads, and all text that looks like a key or a token are removed. Read the
/// archive before you send it. Exits 1 if a part could not be collected.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  sudo leno bug-report               # the mesh that runs here\n  \
                  leno bug-report --context prod -n shop --file shop.tar.gz"
)]
pub(crate) struct BugReport {
    /// Collects from this namespace of workloads in a cluster. Can be repeated [default: all that have proxies]
    #[arg(short, long = "namespace", value_name = "NAME")]
    namespaces: Vec<String>,

    /// Archive to write; the file must not exist yet [default: leno-bug-report-<time>.tar.gz]
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Largest number of proxies whose state, and in a cluster whose log, is included. Those that are not ready come
    /// first
    #[arg(long, default_value_t = 50, value_name = "NUMBER")]
    proxies: usize,

    #[command(flatten)]
    mesh: AnyMesh,
}

pub(crate) fn run(bug_report: &BugReport) -> Result<bool> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let named = || PathBuf::from(format!("leno-bug-report-{now}.tar.gz"));
    let file = bug_report.file.clone().unwrap_or_else(named);
    let missing = match bug_report.mesh.choose()? {
        ChosenMesh::Machine(name) => machine::report(&name, &file, bug_report.proxies)?,
        ChosenMesh::Cluster(target) => of_cluster(bug_report, &target, file.clone())?,
    };
    for one in &missing {
        note!("leno: missing: {one}");
    }
    print(&format!("{}\n", file.display()))?;
    Ok(missing.is_empty())
}

fn of_cluster(
    bug_report: &BugReport,
    target: &ClusterTarget,
    file: PathBuf,
) -> Result<Vec<String>> {
    let wanted = ReportScope {
        namespaces: bug_report.namespaces.clone(),
        system: bug_report.mesh.system_namespace.clone(),
        proxies: bug_report.proxies,
        file,
    };
    block_on(async {
        let client = leno_operate::connect(target).await?;
        let history = leno_operate::ClusterHistory::new(target, &wanted.system).await?;
        Ok(leno_operate::report(&client, &history, &wanted).await?)
    })
}
