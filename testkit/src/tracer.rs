//! A Python program that seizes threads with ptrace(2), and releases them when the test has finished with them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use tempfile::TempDir;

use crate::command::Running;
use crate::wait;

/// Only limits a wait; no measurement depends on it.
const LIMIT: Duration = Duration::from_secs(60);

/// The running program. If this value is dropped before [`Tracer::finish`], the program is killed, and the kernel
/// detaches it from the threads.
#[derive(Debug)]
pub(crate) struct Tracer {
    program: Running,
    go: PathBuf,
    _directory: TempDir,
}

impl Tracer {
    /// Starts a Python script and waits until it has seized the threads. The script gets two paths and the thread IDs.
    /// It creates the first file, and releases the threads once the second one exists.
    pub(crate) fn start(script: &str, threads: &[String]) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let (held, go) = (directory.path().join("held"), directory.path().join("go"));
        let mut python = Command::new("python3");
        let program = Running::start(python.args(["-c", script]).args([&held, &go]).args(threads))?;
        wait::until("the tracer of threads", LIMIT, || Ok(held.exists().then_some(())))?;
        Ok(Self { program, go, _directory: directory })
    }

    /// Makes the program release the threads, and waits until it ends.
    pub(crate) fn finish(self) -> Result<()> {
        fs::write(&self.go, "")?;
        self.program.finish(LIMIT).map(drop)
    }
}
