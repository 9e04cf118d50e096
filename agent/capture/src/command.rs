//! Runs a command of the system inside a network namespace.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};

use crate::Error;

/// What is kept of a command's complaints, in bytes.
const MAX_STDERR: usize = 2000;

/// Runs `work` on a thread of its own in the namespace of `file`; a process started there is in
/// it too.
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

/// Runs `work` in a new network namespace that ends with it.
pub(crate) fn inside_new<T: Send>(
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    on_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET)
            .map_err(|errno| Error::io("make a network namespace")(errno.into()))?;
        work()
    })
}

/// A thread of its own, so that the caller stays where it is.
fn on_thread<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    thread::scope(|scope| scope.spawn(work).join().expect("the work does not panic"))
}

/// Runs a command with this standard input; its standard output.
pub(crate) fn run(program: &str, arguments: &[&str], stdin: &str) -> Result<String, Error> {
    let line = || format!("{program} {}", arguments.join(" "));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Error::io(format!("run {program}")))?;
    let mut pipe = child.stdin.take().expect("stdin was asked to be a pipe");
    let input = stdin.to_owned();
    // On a thread, so that a command which writes before it has read all cannot block both.
    let writer = thread::spawn(move || pipe.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(Error::io(format!("run {program}")))?;
    let written = writer.join().expect("writing does not panic");
    if !output.status.success() {
        let stderr: String = String::from_utf8_lossy(&output.stderr).trim().into();
        let stderr = stderr.chars().take(MAX_STDERR).collect();
        return Err(Error::Command { command: line(), stderr });
    }
    written.map_err(Error::io(format!("feed {program}")))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
