//! `leno exec`: runs a command in the surroundings of a workload.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;

use crate::check::state;
use crate::credentials;
use crate::error::{Attempt, Error, Result};
use crate::isolation::Isolation;
use crate::layout::Layout;
use crate::netns::Netns;
use crate::process::not_started;
use crate::status::{InstancePhase, InstanceStatus, MeshStatus};
use leno_supervise::Cgroup;

/// Exit code: the command does not exist.
const NOT_FOUND: u8 = 127;
/// Exit code: the command cannot be executed.
const NOT_EXECUTABLE: u8 = 126;
/// Exit code: the workload does not exist, or cannot be entered.
const FAILED: u8 = 2;
/// Variables that describe the caller's terminal.
const TERMINAL: [&str; 2] = ["TERM", "COLORTERM"];
/// How long to wait until an instance is set up. In a large mesh that was just started, this takes seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the mesh's status is read while waiting.
const POLL: Duration = Duration::from_millis(20);

/// Replaces this process by `command`, which runs in the surroundings of an instance's application: its namespace,
/// control group, environment, directory and host names. `wanted` is the name of the instance, or of a workload,
/// of which the first instance is used. The command uses the terminal directly and receives its signals, and its
/// exit code is that of this process. Returns only if the command cannot be run, with the exit code that shells
/// use in that case (POSIX.1-2017, Shell Command Language, 2.8.2).
#[must_use]
pub fn exec(
    mesh: &str,
    namespace: Option<&str>,
    wanted: &str,
    command: &[OsString],
) -> (Error, u8) {
    match prepare(mesh, namespace, wanted, command) {
        Ok((mut process, program)) => {
            let reason = process.exec();
            let code = match reason.kind() {
                io::ErrorKind::NotFound => NOT_FOUND,
                _ => NOT_EXECUTABLE,
            };
            let directory = std::env::current_dir().unwrap_or_default();
            (not_started(&program, &directory, reason), code)
        }
        Err(error) => (error, FAILED),
    }
}

/// Waits until the instance has its network namespace and control group, and returns it.
fn set_up(layout: &Layout, namespace: Option<&str>, wanted: &str) -> Result<InstanceStatus> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = MeshStatus::read(layout)?;
        let instance = status.find(namespace, wanted)?;
        if !instance.surroundings.netns.is_empty() {
            return Ok(instance.clone());
        }
        let failed = instance.phase == InstancePhase::Failed;
        if failed || Instant::now() >= deadline {
            return Err(Error::Refused(format!(
                "{} is not set up yet ({}): try again in a moment; `leno up --wait` returns when \
                 every instance is ready",
                instance.name,
                state((&status.mesh, instance), &[], Timestamp::now().as_millisecond())
            )));
        }
        std::thread::sleep(POLL);
    }
}

fn prepare(
    mesh: &str,
    namespace: Option<&str>,
    wanted: &str,
    command: &[OsString],
) -> Result<(Command, OsString)> {
    let (program, arguments) =
        command.split_first().ok_or_else(|| Error::Refused("the command is empty".into()))?;
    let instance = set_up(&Layout::new(mesh)?, namespace, wanted)?;
    let surroundings = &instance.surroundings;
    let netns = Netns::open(&surroundings.netns)?;
    let group = Cgroup::at(surroundings.cgroup.clone());
    let credentials = credentials::of(&surroundings.account).map_err(|(_, reason)| {
        Error::Refused(format!("cannot enter the environment of {}: {reason}", instance.name))
    })?;
    let mut process = Command::new(program);
    process.args(arguments);
    process.env_clear();
    process.envs(&surroundings.environment);
    // The variables of the caller that describe the terminal.
    let terminal = TERMINAL.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    process.envs(terminal);
    let limits: Vec<Cgroup> = surroundings.limits.iter().cloned().map(Cgroup::at).collect();
    let isolation = Isolation::new(&group, &netns, &surroundings.files, &instance.name)?
        .within_groups(&limits)?
        .with_root(surroundings.root.as_deref())?
        .with_volumes(&surroundings.volumes)?;
    let what = || format!("cannot enter the environment of {}", instance.name);
    isolation.enter().attempt(what)?;
    credentials.assume().attempt(what)?;
    // This comes last, so that the path is resolved as the application sees it.
    std::env::set_current_dir(&surroundings.directory)
        .attempt(|| format!("cannot enter {}", surroundings.directory.display()))?;
    Ok((process, program.clone()))
}
