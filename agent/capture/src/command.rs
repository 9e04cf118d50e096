//! Runs a system command inside a network namespace.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns, unshare};

use crate::Error;

/// Most bytes of a command's standard error that an error shows.
const MAX_STDERR: usize = 2000;

/// Longest time for a command. It usually takes a thousandth of that, but may have to wait for another program
/// that holds the tables.
const COMMAND_LIMIT: Duration = Duration::from_secs(10);

/// The first and the longest pause between two checks whether the command has ended; most take some
/// milliseconds.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Runs `work` on a separate thread in the namespace of `file`. A process that `work` starts is in that namespace
/// as well.
pub(crate) fn inside<T: Send>(
    file: &Path,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let action = format!("enter the network namespace {}", file.display());
    let namespace = File::open(file).map_err(Error::io(action.clone()))?;
    on_thread(move || {
        setns(&namespace, CloneFlags::CLONE_NEWNET)
            .map_err(|errno| Error::io(action)(errno.into()))?;
        work()
    })
}

/// Runs `work` in a new network namespace, which ends when `work` returns.
pub(crate) fn inside_new<T: Send>(
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    on_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET)
            .map_err(|errno| Error::io("create a network namespace")(errno.into()))?;
        work()
    })
}

/// Runs `work` on a separate thread, so that the caller's thread stays in its namespace.
fn on_thread<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    thread::scope(|scope| scope.spawn(work).join().expect("the work does not panic"))
}

/// Runs a command with this standard input. Returns its standard output.
pub(crate) fn run(program: &str, arguments: &[&str], stdin: &str) -> Result<String, Error> {
    run_within(COMMAND_LIMIT, program, arguments, stdin)
}

fn run_within(
    limit: Duration,
    program: &str,
    arguments: &[&str],
    stdin: &str,
) -> Result<String, Error> {
    let line = || format!("{program} {}", arguments.join(" "));
    let failed = || Error::io(format!("run {program}"));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed())?;
    let deadline = Instant::now() + limit;
    let pipes = Pipes::of(&mut child, stdin);
    let ended = wait(&mut child, deadline).map_err(failed())?;
    let Some((status, output)) = ended.and_then(|status| Some((status, pipes.end(deadline)?)))
    else {
        abandon(child);
        return Err(Error::CommandTimeout { command: line(), limit });
    };
    if !status.success() {
        let stderr: String = String::from_utf8_lossy(&output.stderr).trim().into();
        let stderr = stderr.chars().take(MAX_STDERR).collect();
        return Err(Error::Command { command: line(), stderr });
    }
    output.written.map_err(Error::io(format!("feed {program}")))?;
    let stdout = output.stdout.map_err(failed())?;
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

/// The results of reading and writing a command's three pipes. Each pipe has a separate thread: a command may
/// write before it has read all its input, and no pipe may delay the caller beyond the deadline.
struct Pipes {
    written: Receiver<io::Result<()>>,
    stdout: Receiver<io::Result<Vec<u8>>>,
    stderr: Receiver<io::Result<Vec<u8>>>,
}

struct Output {
    written: io::Result<()>,
    stdout: io::Result<Vec<u8>>,
    stderr: Vec<u8>,
}

impl Pipes {
    /// Starts the threads. Each ends when its pipe closes, which is when the command and all processes that have
    /// inherited the pipe have ended.
    fn of(child: &mut Child, stdin: &str) -> Self {
        let mut pipe = child.stdin.take().expect("stdin was asked to be a pipe");
        let stdout = child.stdout.take().expect("stdout was asked to be a pipe");
        let stderr = child.stderr.take().expect("stderr was asked to be a pipe");
        let input = stdin.to_owned();
        Self {
            written: beside(move || pipe.write_all(input.as_bytes())),
            stdout: beside(move || read_all(stdout)),
            stderr: beside(move || read_all(stderr)),
        }
    }

    /// Waits for the results; `None` if a pipe is still open at the deadline.
    fn end(self, deadline: Instant) -> Option<Output> {
        let left = || deadline.saturating_duration_since(Instant::now());
        Some(Output {
            written: self.written.recv_timeout(left()).ok()?,
            stdout: self.stdout.recv_timeout(left()).ok()?,
            // If standard error cannot be read, that alone is not a failure.
            stderr: self.stderr.recv_timeout(left()).ok()?.unwrap_or_default(),
        })
    }
}

fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    // The receiver is only gone if the command has exceeded its time.
    thread::spawn(move || sender.send(work()));
    receiver
}

fn read_all(mut pipe: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes).map(|_| bytes)
}

/// The exit status; `None` if the command still runs at the deadline.
fn wait(child: &mut Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Kills the command, and lets a thread wait for its end. A process that hangs in the kernel only ends once the
/// kernel releases it.
fn abandon(mut child: Child) {
    if let Err(error) = child.kill() {
        tracing::warn!(pid = child.id(), %error, "cannot kill a command that exceeded its time limit");
    }
    thread::spawn(move || child.wait());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_reads_what_it_is_given_and_its_output_is_returned() {
        let much = "0123456789abcdef\n".repeat(20_000);
        assert_eq!(run("cat", &[], &much).unwrap(), much);
    }

    #[test]
    fn a_command_that_fails_is_quoted() {
        let error = run("sh", &["-c", "echo no such table >&2; exit 1"], "").unwrap_err();
        let text = error.to_string();
        assert_eq!(text, "sh -c echo no such table >&2; exit 1 failed: no such table");
    }

    #[test]
    fn a_command_that_does_not_end_is_killed_and_named() {
        let limit = Duration::from_millis(50);
        // The second script leaves its pipes open in a background process that outlives it.
        for script in ["exec sleep 600", "sleep 1 & exit 0"] {
            let error = run_within(limit, "sh", &["-c", script], "").unwrap_err();
            assert!(matches!(error, Error::CommandTimeout { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("did not end within 50ms"), "{text}");
        }
    }
}
