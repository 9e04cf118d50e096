//! Starts a broker inside a pod.

#![expect(unsafe_code, reason = "pre_exec runs between fork and exec")]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use leno_handover::Channel;
use leno_supervise::ProcessCredentials;
use leno_types::ports::PROXY_UID;
use nix::sched::{CloneFlags, setns};
use tokio::process::Command;

use super::PodSandbox;

/// The broker's control group of version 2, below the pod's. It is needed because a group with controllers cannot
/// contain processes itself.
const GROUP: &str = "leno-broker";

/// Starts a broker as the proxies' user, and returns the channel for its orders. The broker does not end with this
/// process. It belongs to the pod's control groups, by which the kubelet kills the remaining processes of a pod.
pub(super) fn broker(program: &Path, place: &PodSandbox<'_>) -> io::Result<Channel> {
    let (near, far) = Channel::pair()?;
    let netns = File::open(place.netns)?;
    let group = place.cgroup.as_ref().map(|pod| own_group(pod)).transpose()?;
    let group = group.as_deref().map(entry).transpose()?;
    let others: Vec<File> = place.others.iter().filter_map(|group| other_entry(group)).collect();
    let credentials = ProcessCredentials::confined(PROXY_UID);
    let mut command = Command::new(program);
    if place.enters {
        // The listeners are only bound. The node proxy begins to listen once it can serve.
        command.args(["--supervised", "--succeeds"]);
    }
    command
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(far)))
        .stdout(Stdio::null())
        .current_dir("/")
        .process_group(0);
    let prepare = move || {
        if let Some(mut group) = group.as_ref() {
            group.write_all(b"0")?;
        }
        for mut other in &others {
            // A cpuset group of version 1 whose CPUs are not set accepts no process. The error is ignored, because
            // the capture only depends on the group of version 2.
            let _full = other.write_all(b"0");
        }
        setns(&netns, CloneFlags::CLONE_NEWNET)?;
        credentials.assume()
    };
    // SAFETY: between fork and exec, `prepare` only makes system calls, on descriptors that were opened before. It
    // neither allocates nor takes a lock.
    unsafe { command.pre_exec(prepare) };
    let mut child = command.spawn().map_err(|error| not_started(program, error))?;
    // This task only reaps the process. The end of the channel shows that the process has ended.
    tokio::spawn(async move {
        let _reaped = child.wait().await;
    });
    Ok(near)
}

/// If the program is missing, adds what to do about it.
fn not_started(program: &Path, error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::NotFound || program.exists() {
        return error;
    }
    let why = format!(
        "{} does not exist: use an image with leno-broker beside leno-agent, or pass its path with \
         --broker-binary",
        program.display()
    );
    io::Error::new(io::ErrorKind::NotFound, why)
}

fn own_group(pod: &Path) -> io::Result<PathBuf> {
    let group = pod.join(GROUP);
    match fs::create_dir(&group) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(group),
    }
}

/// The file for joining a control group of version 1, which is created if it is missing. A broker that cannot join
/// the group stays in that of this agent's container, and ends with the container.
fn other_entry(group: &Path) -> Option<File> {
    let opened = fs::create_dir_all(group).and_then(|()| entry(group));
    let warn = |error: &io::Error| {
        tracing::warn!(group = %group.display(), %error, "a broker cannot join a control group of its pod");
    };
    opened.inspect_err(warn).ok()
}

/// The file to which a process writes 0 in order to join a control group.
fn entry(group: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(group.join("cgroup.procs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_told_from_other_missing_files() {
        let missing =
            not_started(Path::new("/nonexistent/leno-broker"), io::ErrorKind::NotFound.into());
        let text = missing.to_string();
        assert!(text.contains("/nonexistent/leno-broker does not exist"), "{text}");
        assert!(text.contains("--broker-binary"), "{text}");
        let other = not_started(Path::new("/"), io::ErrorKind::NotFound.into());
        assert!(!other.to_string().contains("use an image"), "{other}");
    }
}
