//! Implements the command `leno down`.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use leno_local::Error;
use leno_local::hint::command;
use leno_local::layout::{DEFAULT_MESH, Layout};
use leno_local::record::{self, RecordedProcess};
use leno_local::status::MeshStatus;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{RunningMesh, print};

/// How often to check whether the mesh has ended.
const POLL: Duration = Duration::from_millis(50);

/// Ends a mesh of `leno up`, as Ctrl-C in its terminal does, and waits until it has ended
///
/// Applications receive SIGTERM, and have the time of --grace of `leno up` to end; proxies finish their requests and
/// connections. Without --name, ends the mesh named default, else the only mesh that runs, and prints its name. If
/// several run and none of them is named default, ends none, lists their names and exits 2. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sudo leno down")]
pub(crate) struct Down {
    #[command(flatten)]
    mesh: RunningMesh,

    /// Kills all processes of the mesh without waiting for them
    #[arg(long)]
    now: bool,
}

pub(crate) fn run(down: &Down) -> Result<bool> {
    let name = down.mesh.name()?;
    let layout = Layout::new(&name)?;
    // The mesh can be ended even if its status is missing or damaged.
    let status = match MeshStatus::read(&layout) {
        Err(error @ (Error::NotRunning { .. } | Error::NeedsRoot)) => return Err(error.into()),
        other => other,
    };
    let Some(owner) = record::owner(&layout) else {
        bail!("mesh {name} has ended by itself before it could be signalled");
    };
    if down.mesh.name.is_none() && name != DEFAULT_MESH {
        print(&format!("ending mesh {name}, the only one that runs on this machine\n"))?;
    }
    // The first signal ends the mesh in order, the second one at once.
    terminate(owner)?;
    let mut killed = !down.now;
    while owner.alive() {
        std::thread::sleep(POLL);
        if !killed {
            terminate(owner)?;
            killed = true;
        }
    }
    if layout.record().exists() {
        let cleanup = command(&name, "cleanup");
        bail!(
            "mesh {name} has ended, but not everything of it was removed: `{cleanup}` removes \
             the rest"
        );
    }
    let instances = match status.map(|status| status.instances.len()) {
        Ok(1) => ", 1 instance".to_owned(),
        Ok(many) => format!(", {many} instances"),
        Err(_) => String::new(),
    };
    print(&format!("mesh {name} has ended{instances}\n"))?;
    Ok(true)
}

fn terminate(owner: RecordedProcess) -> Result<()> {
    match kill(Pid::from_raw(owner.pid), Signal::SIGTERM) {
        // The process has ended meanwhile.
        Ok(()) | Err(nix::errno::Errno::ESRCH) => Ok(()),
        Err(errno) => bail!("cannot end process {}: {errno}", owner.pid),
    }
}
