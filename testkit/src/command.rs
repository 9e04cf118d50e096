//! Runs commands, either to their end with a time limit or for as long as a test needs them.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::wait;

/// A running command whose output is collected. Dropping this kills the command.
#[derive(Debug)]
pub struct Running {
    child: Child,
    what: String,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

impl Running {
    /// Starts `command` with no input.
    pub fn start(command: &mut Command) -> Result<Self> {
        let what = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {what}"))?;
        let stdout = child.stdout.take().map(collect);
        let stderr = child.stderr.take().map(collect);
        Ok(Running { child, what, stdout, stderr })
    }

    /// The process ID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the command has ended.
    ///
    /// # Errors
    /// The system's error.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits up to `limit` for the command to end. After that the command is killed, and an error is returned.
    pub fn finish(mut self, limit: Duration) -> Result<Output> {
        let status = wait::until(&format!("the end of {}", self.what), limit, || {
            Ok(self.child.try_wait()?)
        })?;
        let text = |thread: Option<JoinHandle<Vec<u8>>>| {
            thread.and_then(|t| t.join().ok()).unwrap_or_default()
        };
        let (stdout, stderr) = (text(self.stdout.take()), text(self.stderr.take()));
        Ok(Output { status, stdout, stderr })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both calls fail only if the command has ended and was reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How long a program may take to listen.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A program that listens. Dropping this ends the program.
#[derive(Debug)]
pub struct Listening {
    address: SocketAddr,
    child: Child,
}

impl Listening {
    /// Starts `command` and waits until it accepts at `address`.
    pub fn start(command: &mut Command, address: SocketAddr) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Listening { address, child: command.spawn()? };
        let program = command.get_program().display().to_string();
        wait::until(&format!("{program} to listen"), START_LIMIT, || {
            if let Some(status) = server.child.try_wait()? {
                bail!("{program} ended: {status}");
            }
            Ok(TcpStream::connect(address).ok())
        })?;
        Ok(server)
    }

    /// The address at which the program accepts connections.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // Both calls fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `command` to its end. It may take up to `limit`.
pub fn run(command: &mut Command, limit: Duration) -> Result<Output> {
    Running::start(command)?.finish(limit)
}

/// Runs `command` and returns its standard output; an exit status other than 0 is an error that
/// quotes both outputs.
pub fn text(command: &mut Command, limit: Duration) -> Result<String> {
    let what = format!("{command:?}");
    success(&what, run(command, limit)?)
}

/// The standard output, if the command succeeded.
pub fn success(what: &str, output: Output) -> Result<String> {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{what}: {}\n{}{}", output.status, stdout, stderr);
    }
    Ok(stdout)
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // If reading fails, the bytes from before are used.
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_failure_are_reported() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            text(&mut command, Duration::from_secs(10))
        };
        assert_eq!(shell("echo out").unwrap(), "out\n");
        let error = format!("{:#}", shell("echo why >&2; exit 3").unwrap_err());
        assert!(error.contains("why") && error.contains('3'), "{error}");
    }

    #[test]
    fn a_command_that_does_not_end_is_killed() {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do read x; done < /dev/zero"]);
        assert!(run(&mut command, Duration::from_millis(50)).is_err());
    }
}
