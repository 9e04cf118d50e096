//! Control groups (version 2) of workloads. Captures are attached to them, and all processes of a workload are
//! found and killed with their help.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::{Error, Result};

/// How long processes may take to disappear after SIGKILL. They normally take milliseconds. A process that hangs
/// in the kernel for longer is reported.
const KILL_BOUND: Duration = Duration::from_secs(5);
/// How often a group is checked while it empties.
const POLL: Duration = Duration::from_millis(5);
/// Deepest level of groups that is examined. Workloads may create groups themselves, so a bound is needed.
const MAX_DEPTH: usize = 32;

/// One control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// The group at `path`. Creates it, and its parents, if it is missing.
    ///
    /// # Errors
    /// When the directory cannot be created.
    pub fn create(path: PathBuf) -> Result<Self> {
        fs::create_dir_all(&path)
            .map_err(Error::os(|| format!("cannot create {}", path.display())))?;
        Ok(Self(path))
    }

    /// The group at `path`, which need not exist.
    #[must_use]
    pub fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The kernel's number of the group, with which eBPF programs compare. It is the inode of the group's
    /// directory.
    ///
    /// # Errors
    /// When the group is gone.
    pub fn id(&self) -> Result<u64> {
        let metadata = fs::metadata(&self.0)
            .map_err(Error::os(|| format!("cannot read {}", self.0.display())))?;
        Ok(metadata.ino())
    }

    /// The file to which a process writes `0` in order to join the group.
    ///
    /// # Errors
    /// When the group is gone.
    pub fn entry(&self) -> Result<File> {
        let path = self.0.join("cgroup.procs");
        OpenOptions::new()
            .write(true)
            .open(&path)
            .map_err(Error::os(|| format!("cannot open {}", path.display())))
    }

    /// All processes in this group and in the groups below it.
    #[must_use]
    pub fn processes(&self) -> Vec<Pid> {
        let mut found = Vec::new();
        for directory in self.descendants() {
            let Ok(text) = fs::read_to_string(directory.join("cgroup.procs")) else {
                continue;
            };
            // 0 stands for a process in another PID namespace. kill(2) would interpret it as the caller's own
            // process group.
            let pids = text.lines().filter_map(|line| line.parse().ok());
            found.extend(pids.filter(|pid| *pid > 0).map(Pid::from_raw));
        }
        found
    }

    /// Sends `signal` to all processes in this group and in the groups below it.
    pub fn signal(&self, signal: Signal) {
        for process in self.processes() {
            // The process may have ended since it was listed.
            let _ = kill(process, signal);
        }
    }

    /// Kills all processes in this group and in the groups below it, and waits until they are gone.
    ///
    /// # Errors
    /// When a process still exists after [`KILL_BOUND`].
    pub fn kill(&self) -> Result<()> {
        let deadline = Instant::now() + KILL_BOUND;
        while self.0.exists() {
            // Kernels before 5.14 have no cgroup.kill. There, each listed process gets the signal in every round
            // of this loop.
            if self.order_kill().is_err() {
                self.signal(Signal::SIGKILL);
            }
            if self.processes().is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                let left: Vec<String> = self.processes().iter().map(Pid::to_string).collect();
                return Err(Error::Survive(format!(
                    "processes {} in {} survive SIGKILL: /proc/PID/stack shows where the kernel \
                     holds them",
                    left.join(", "),
                    self.0.display()
                )));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn order_kill(&self) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.0.join("cgroup.kill"))?.write_all(b"1")
    }

    /// Removes the group and the groups below it. No process may be in them. Succeeds if the group does not exist.
    ///
    /// # Errors
    /// When the kernel reports it as busy for longer than [`KILL_BOUND`].
    pub fn remove(&self) -> Result<()> {
        let deadline = Instant::now() + KILL_BOUND;
        for directory in self.descendants().into_iter().rev() {
            loop {
                match fs::remove_dir(&directory) {
                    Ok(()) => break,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                    // A killed process leaves its group a moment after it disappears from the list.
                    Err(error)
                        if error.raw_os_error() == Some(libc::EBUSY)
                            && Instant::now() < deadline =>
                    {
                        std::thread::sleep(POLL);
                    }
                    Err(error) => {
                        let what = || format!("cannot remove {}", directory.display());
                        return Err(Error::os(what)(error));
                    }
                }
            }
        }
        Ok(())
    }

    /// The group itself, then every group below it, parents before children.
    fn descendants(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut pending = vec![(self.0.clone(), 0)];
        while let Some((directory, depth)) = pending.pop() {
            if let Ok(entries) = fs::read_dir(&directory)
                && depth < MAX_DEPTH
            {
                for entry in entries.flatten() {
                    if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                        pending.push((entry.path(), depth + 1));
                    }
                }
            }
            found.push(directory);
        }
        found
    }
}
