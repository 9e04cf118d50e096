//! Implements the command `leno restart`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use clap::Args;
use leno_local::hint::command;
use leno_local::layout::Layout;
use leno_local::orders::{self, MeshOrder};
use leno_local::status::{InstanceStatus, MeshStatus};

use super::{RunningMesh, block_on, print};

/// How often to check the progress of the restart.
const POLL: Duration = Duration::from_millis(50);

/// Restarts workloads of a mesh of `leno up`, one instance of a workload at a time
///
/// The next instance of a workload ends only when the restarted one is ready for traffic, so a workload with several
/// instances stays available. Returns when all of them are ready, or exits 2 after --timeout. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sudo leno restart web")]
pub(crate) struct Restart {
    /// Instances (web-1) or workloads (web)
    #[arg(required = true)]
    workloads: Vec<String>,

    #[command(flatten)]
    mesh: RunningMesh,

    /// Namespace of the workloads. Not needed if each name is in only one namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// How long to wait until all of them are ready for traffic
    #[arg(long, default_value = "5m", value_name = "DURATION", value_parser = leno_console::duration)]
    timeout: Duration,
}

pub(crate) fn run(restart: &Restart) -> Result<bool> {
    let layout = Layout::new(&restart.mesh.name()?)?;
    let status = MeshStatus::read(&layout)?;
    let mut names = Vec::new();
    for workload in &restart.workloads {
        let meant = status.meant(restart.namespace.as_deref(), Some(workload))?;
        names.extend(meant.into_iter().map(|one| (one.namespace.clone(), one.name.clone())));
    }
    names.sort();
    names.dedup();
    let begun = SystemTime::now();
    block_on(async { Ok(orders::send(&layout, &MeshOrder::Restart(names.clone())).await?) })?;
    let begun_unix_ms = begun.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let begun_unix_ms = i64::try_from(begun_unix_ms).unwrap_or(i64::MAX);
    let again = |one: &InstanceStatus| {
        one.settled() && one.started_unix_ms.is_some_and(|started| started >= begun_unix_ms)
    };
    loop {
        let status = MeshStatus::read(&layout)?;
        let is_meant = |one: &&InstanceStatus| {
            names.iter().any(|(namespace, name)| *namespace == one.namespace && *name == one.name)
        };
        let left: Vec<&InstanceStatus> =
            status.instances.iter().filter(is_meant).filter(|one| !again(one)).collect();
        let elapsed = begun.elapsed().unwrap_or_default();
        if left.is_empty() {
            let seconds = elapsed.as_secs_f64();
            let instances = match names.len() {
                1 => "1 instance".to_owned(),
                many => format!("{many} instances"),
            };
            print(&format!("{instances} restarted in {seconds:.1} s\n"))?;
            return Ok(true);
        }
        if elapsed > restart.timeout {
            let left: Vec<String> =
                left.iter().map(|one| format!("{}/{}", one.namespace, one.name)).collect();
            let (left, ps) = (left.join(", "), command(layout.mesh(), "ps"));
            bail!("not ready again within --timeout: {left}; `{ps}` shows why");
        }
        std::thread::sleep(POLL);
    }
}
