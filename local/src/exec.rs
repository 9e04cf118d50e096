//! `leno exec`: a command as a workload.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::cgroup::Cgroup;
use crate::enclosure::{Credentials, Enclosure};
use crate::error::{Attempt, Error, Result};
use crate::layout::Layout;
use crate::netns::Netns;
use crate::process::not_started;
use crate::status::Status;

/// Becomes `command`, run as the instance or the first instance of the workload called `wanted`:
/// in its namespace, control group, environment and directory, with its names of hosts. Terminal,
/// signals and exit code are the command's own. Comes back only when it cannot be run.
#[must_use]
pub fn exec(mesh: &str, namespace: Option<&str>, wanted: &str, command: &[OsString]) -> Error {
    match prepare(mesh, namespace, wanted, command) {
        Ok((mut process, program)) => {
            let reason = process.exec();
            let directory = std::env::current_dir().unwrap_or_default();
            not_started(&program, &directory, reason)
        }
        Err(error) => error,
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
    let status = Status::read(&Layout::new(mesh)?)?;
    let instance = status.find(namespace, wanted)?;
    let surroundings = &instance.surroundings;
    if surroundings.netns.is_empty() {
        return Err(Error::Refused(format!("{} is not set up yet: try again", instance.name)));
    }
    let netns = Netns::open(&surroundings.netns)?;
    let group = Cgroup::at(surroundings.cgroup.clone());
    let credentials = Credentials::invoking();
    let mut process = Command::new(program);
    process.args(arguments);
    process.envs(credentials.environment());
    process.envs(&surroundings.environment);
    let enclosure = Enclosure::new(&group, &netns, &surroundings.files, &instance.name)?;
    let what = || format!("cannot become {}", instance.name);
    enclosure.enter().attempt(what)?;
    credentials.assume().attempt(what)?;
    // After the change of user, and of mounts: the directory as the application sees it.
    std::env::set_current_dir(&surroundings.directory)
        .attempt(|| format!("cannot enter {}", surroundings.directory.display()))?;
    Ok((process, program.clone()))
}
