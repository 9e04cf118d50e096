//! Programs that a run starts. Their output is written to files, and they are ended with the run.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::interrupt::Interrupt;

/// How often the state of a program is polled.
const LOOK: Duration = Duration::from_millis(20);

/// How long a program may take to listen.
const LISTEN: Duration = Duration::from_secs(20);
/// How many bytes of a program's output an error shows, from its end.
const SHOWN: usize = 2000;

/// The path of this program, which also serves and generates load inside workloads.
pub(crate) fn own_program() -> Result<PathBuf> {
    std::env::current_exe().context("cannot tell where this program is")
}

/// A free port of loopback. If another process uses it before the program for which it is chosen, that program reports
/// the error.
pub(crate) fn free_address() -> Result<SocketAddrV4> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()? {
        SocketAddr::V4(address) => Ok(address),
        SocketAddr::V6(address) => bail!("{address} is not of IPv4"),
    }
}

/// Runs a command with `input` on its standard input, until it ends or the run is interrupted.
pub(crate) fn run(command: &mut Command, input: &str, interrupt: &Interrupt) -> Result<Vec<u8>> {
    Running::start(command, input)?.end(interrupt)
}

/// A running command whose standard input is open. The command is killed when this value is dropped.
pub(crate) struct Running {
    name: String,
    child: Child,
    out: File,
    errors: File,
}

impl Running {
    /// Starts a command and writes `input` to its standard input.
    pub(crate) fn start(command: &mut Command, input: &str) -> Result<Self> {
        let name = format!("{command:?}");
        let (out, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let child = command
            .stdin(Stdio::piped())
            .stdout(out.try_clone()?)
            .stderr(errors.try_clone()?)
            .spawn()
            .with_context(|| format!("cannot run {name}"))?;
        let mut running = Self { name, child, out, errors };
        running.say(input);
        Ok(running)
    }

    pub(crate) fn say(&mut self, input: &str) {
        if let Some(stdin) = &mut self.child.stdin {
            // Writing fails if the command has ended early. Its own output says why.
            let _ = stdin.write_all(input.as_bytes());
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the command listens.
    ///
    /// # Errors
    /// If the command ends before that, or does not listen within 20 s; then the error has its output. Also after an
    /// interrupt.
    pub(crate) fn listens(&mut self, at: SocketAddrV4, interrupt: &Interrupt) -> Result<()> {
        let begin = Instant::now();
        while TcpStream::connect(at).is_err() {
            if !self.is_running()? || begin.elapsed() > LISTEN {
                let errors = self.errors()?;
                bail!("{} does not listen: {errors}", self.name);
            }
            interrupt.sleep(LOOK)?;
        }
        Ok(())
    }

    pub(crate) fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Closes the command's standard input, waits until it ends or the run is interrupted, and
    /// returns its output.
    pub(crate) fn end(mut self, interrupt: &Interrupt) -> Result<Vec<u8>> {
        let ended = self.wait(Duration::MAX, interrupt)?.context("it has no limit")?;
        self.output(ended)
    }

    /// Closes the command's standard input and waits until it ends; `None` if it has not ended within this time.
    pub(crate) fn wait(
        &mut self,
        limit: Duration,
        interrupt: &Interrupt,
    ) -> Result<Option<ExitStatus>> {
        drop(self.child.stdin.take());
        let begin = Instant::now();
        loop {
            let ended = self.child.try_wait()?;
            if ended.is_some() || begin.elapsed() > limit {
                return Ok(ended);
            }
            interrupt.check()?;
            std::thread::sleep(LOOK);
        }
    }

    /// Sends SIGTERM to the command and waits until it ends or `limit` has passed. An interrupt does not end this wait.
    ///
    /// # Errors
    /// The system's reason.
    pub(crate) fn terminate(&mut self, limit: Duration) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.pid())?);
        let begin = Instant::now();
        if self.is_running()? {
            kill(pid, Signal::SIGTERM)?;
        }
        while self.is_running()? && begin.elapsed() < limit {
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// The output of a command that has ended.
    ///
    /// # Errors
    /// If the command has failed; the error has the end of its standard error.
    pub(crate) fn output(mut self, ended: ExitStatus) -> Result<Vec<u8>> {
        if !ended.success() {
            let errors = self.errors()?;
            bail!("{} ended with {ended}: {errors}", self.name);
        }
        read(&mut self.out)
    }

    /// Returns the end of its standard error so far, or of its standard output if standard error is empty, as one line
    /// that fits into the progress and into a report.
    pub(crate) fn errors(&mut self) -> Result<String> {
        let mut text = read(&mut self.errors)?;
        if text.trim_ascii().is_empty() {
            text = read(&mut self.out)?;
        }
        let text = String::from_utf8_lossy(&text);
        let start = text.char_indices().rev().nth(SHOWN).map_or(0, |(at, _)| at);
        Ok(text[start..].split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _gone = self.child.kill();
            let _gone = self.child.wait();
        }
    }
}

fn read(file: &mut File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_ends_with_its_input_and_its_output_is_returned() {
        let mut command = Command::new("sh");
        command.args(["-c", "read line; echo $line; cat; echo ended"]);
        let mut running = Running::start(&mut command, "begun\n").unwrap();
        assert!(running.is_running().unwrap(), "its input is open");
        let said = running.end(&Interrupt::default()).unwrap();
        assert_eq!(String::from_utf8_lossy(&said), "begun\nended\n");
        let interrupted = Interrupt::default();
        interrupted.raise();
        let for_ever = Running::start(Command::new("sleep").arg("3600"), "").unwrap();
        for_ever.end(&interrupted).unwrap_err();
    }

    #[test]
    fn a_program_ends_in_order_if_it_does_within_the_limit() {
        let ended = tempfile::NamedTempFile::new().unwrap();
        let mut command = Command::new("sh");
        let script =
            "trap 'echo in order >\"$0\"; exit' TERM; echo ready; while :; do sleep 0.01; done";
        let mut running =
            Running::start(command.args(["-c", script]).arg(ended.path()), "").unwrap();
        while read(&mut running.out).unwrap().is_empty() {
            std::thread::sleep(LOOK);
        }
        running.terminate(Duration::from_secs(10)).unwrap();
        assert!(!running.is_running().unwrap());
        assert_eq!(std::fs::read_to_string(ended.path()).unwrap(), "in order\n");
        running.terminate(Duration::ZERO).unwrap();
    }
}
