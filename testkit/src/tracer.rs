//! A program that changes threads with ptrace(2), and lets them go when a test is done with them.

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

/// Runs until it is told to let the threads go. When this value is dropped, it is killed, and the kernel detaches it.
#[derive(Debug)]
pub(crate) struct Tracer {
    program: Running,
    go: PathBuf,
    _directory: TempDir,
}

impl Tracer {
    /// Starts a Python script and waits until it has changed the threads. The script gets two paths and the threads. It
    /// creates the first file, and lets the threads go once the second one exists.
    pub(crate) fn start(script: &str, threads: &[String]) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let (held, go) = (directory.path().join("held"), directory.path().join("go"));
        let mut python = Command::new("python3");
        let program = Running::start(python.args(["-c", script]).args([&held, &go]).args(threads))?;
        wait::until("the tracer of threads", LIMIT, || Ok(held.exists().then_some(())))?;
        Ok(Self { program, go, _directory: directory })
    }

    /// Lets the threads go, and waits until that is done.
    pub(crate) fn finish(self) -> Result<()> {
        fs::write(&self.go, "")?;
        self.program.finish(LIMIT).map(drop)
    }
}
