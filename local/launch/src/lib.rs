//! Starts `leno up` as a child process, for the demo, the bench and tests.
//!
//! ```text
//!  LaunchedMesh::start ── poll_ready, poll_ready, ... ── the mesh is used ── poll_end, poll_end, ...
//! ```
//! This crate does not read the mesh's status file: the caller passes whether the mesh is ready. No function here
//! waits; the caller chooses how to pause between two polls, because it has its own runtime and signal handling.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How many of the last lines of the output are included in an error.
const LINES: usize = 40;

/// A running `leno up`. Dropping this kills the process, and what the mesh has created is left for `leno cleanup`.
#[derive(Debug)]
pub struct LaunchedMesh {
    up: Mutex<Child>,
    /// Receives the standard output and standard error of the process.
    log: File,
    started: Instant,
    /// When the process was asked to end.
    ending: Mutex<Option<Instant>>,
}

impl LaunchedMesh {
    /// Starts the command, with `documents` on its standard input.
    ///
    /// # Errors
    /// If the command cannot be started, or closes its standard input before it has read the documents.
    pub fn start(command: &mut Command, documents: &str) -> io::Result<Self> {
        let log = tempfile::tempfile()?;
        let mut up = command
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log.try_clone()?)
            .spawn()?;
        // The pipe is closed at the end of this statement; `leno up` reads it to its end.
        if let Some(mut stdin) = up.stdin.take()
            && !documents.is_empty()
        {
            stdin.write_all(documents.as_bytes())?;
        }
        let (up, ending) = (Mutex::new(up), Mutex::default());
        Ok(Self { up, log, started: Instant::now(), ending })
    }

    fn up(&self) -> MutexGuard<'_, Child> {
        self.up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process ID of `leno up`.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.up().id()
    }

    /// The exit status of the process; `None` while it runs.
    ///
    /// # Errors
    /// If the kernel cannot report it.
    pub fn ended(&self) -> io::Result<Option<ExitStatus>> {
        self.up().try_wait()
    }

    /// Returns `ready`, the caller's answer to whether the mesh is ready, unless the process has failed.
    ///
    /// # Errors
    /// If the process has ended, or was started longer than `limit` ago and the mesh is not ready. The error
    /// includes the last lines of its output.
    pub fn poll_ready(&self, limit: Duration, ready: bool) -> io::Result<bool> {
        self.check_alive()?;
        if !ready && self.started.elapsed() > limit {
            return Err(self.error(&format!("the mesh was not ready within {limit:?}")));
        }
        Ok(ready)
    }

    /// # Errors
    /// If the process has ended; the error includes the last lines of its output.
    pub fn check_alive(&self) -> io::Result<()> {
        match self.ended()? {
            Some(status) => Err(self.error(&format!("leno up has ended: {status}"))),
            None => Ok(()),
        }
    }

    /// Returns whether the process has ended. The first call sends it SIGINT, at which it removes all that it has
    /// created.
    ///
    /// # Errors
    /// If SIGINT was sent longer than `limit` ago. The error includes the last lines of the output.
    pub fn poll_end(&self, limit: Duration) -> io::Result<bool> {
        if self.ended()?.is_some() {
            return Ok(true);
        }
        let mut ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(since) = *ending else {
            kill(Pid::from_raw(self.pid().cast_signed()), Signal::SIGINT)?;
            *ending = Some(Instant::now());
            return Ok(false);
        };
        if since.elapsed() > limit {
            return Err(self.error(&format!("leno up did not end within {limit:?}")));
        }
        Ok(false)
    }

    /// Kills the process if it still runs.
    pub fn kill(&self) {
        let mut up = self.up();
        // Both calls fail only if the process has ended and was reaped already.
        let _ = up.kill();
        let _ = up.wait();
    }

    /// The whole output of the process so far; empty if it cannot be read.
    #[must_use]
    pub fn printed(&self) -> String {
        let end = self.log.metadata().map_or(0, |metadata| metadata.len());
        let mut bytes = vec![0; usize::try_from(end).unwrap_or(0)];
        // `read_at` does not move the file's position, at which the process writes.
        let read = self.log.read_at(&mut bytes, 0).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    }

    /// The last lines of the output.
    #[must_use]
    pub fn last_lines(&self) -> String {
        let text = self.printed();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }

    fn error(&self, what: &str) -> io::Error {
        io::Error::other(format!("{what}:\n{}", self.last_lines()))
    }
}

impl Drop for LaunchedMesh {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a shell script in place of `leno up`. `env` resets SIGINT, because a shell cannot trap a signal that
    /// its parent ignores, and a background job ignores SIGINT.
    fn launched(script: &str, documents: &str) -> LaunchedMesh {
        let mut command = Command::new("env");
        command.args(["--default-signal=INT", "sh", "-c", script]);
        LaunchedMesh::start(&mut command, documents).unwrap()
    }

    fn error(polled: impl Fn() -> io::Result<bool>) -> String {
        loop {
            if let Err(error) = polled() {
                return error.to_string();
            }
        }
    }

    #[test]
    fn one_that_ends_early_or_is_late_says_what_it_printed() {
        let early = launched("read line; echo \"refused: $line\" >&2; exit 3", "documents\n");
        let said = error(|| early.poll_ready(Duration::MAX, false));
        assert!(said.contains("exit status: 3") && said.ends_with("refused: documents"), "{said}");
        let late = launched("exec sleep 1000", "");
        assert!(late.poll_ready(Duration::ZERO, true).unwrap());
        assert!(late.poll_ready(Duration::ZERO, false).is_err());
    }

    #[test]
    fn one_that_is_asked_to_end_ends_in_its_own_way() {
        let polite =
            launched("trap 'echo removed; exit 0' INT; echo up; while :; do sleep 0.01; done", "");
        while !polite.printed().contains("up") {}
        while !polite.poll_end(Duration::MAX).unwrap() {}
        assert_eq!(polite.last_lines(), "up\nremoved");
        let deaf = launched("trap '' INT; echo up; while :; do sleep 0.01; done", "");
        while !deaf.printed().contains("up") {}
        let said = error(|| deaf.poll_end(Duration::ZERO));
        assert!(said.contains("did not end"), "{said}");
    }
}
