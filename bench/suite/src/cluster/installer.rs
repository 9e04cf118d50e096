//! The programs of other projects that install and remove their meshes.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use leno_operate::Target;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::interrupt::Interrupt;

/// The time limit of one call: an installation waits for images and pods.
const LIMIT: Duration = Duration::from_secs(600);
/// How long a program may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
/// How often the program's state is polled.
const LOOK: Duration = Duration::from_millis(100);
/// How many of the last bytes of its output an error shows.
const SHOWN: usize = 2000;

/// Runs a program against a cluster and returns its output.
///
/// # Errors
/// If it cannot be started, fails, takes more than ten minutes, or the run is interrupted. Then the
/// program and all its children are ended.
pub(super) fn run(
    program: &Path,
    words: &[&str],
    target: &Target,
    interrupt: &Interrupt,
) -> Result<String> {
    let mut command = Command::new(program);
    command.args(words);
    if let Some(kubeconfig) = &target.kubeconfig {
        command.arg("--kubeconfig").arg(kubeconfig);
    }
    if let Some(context) = &target.context {
        command.args(["--context", context]);
    }
    let name = format!("{} {}", program.display(), words.join(" "));
    let (out, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut child = command
        // Ctrl-C must only reach the bench.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(errors.try_clone()?)
        .spawn()
        .with_context(|| format!("cannot run {name}"))?;
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let late = begin.elapsed() > LIMIT;
        let interrupted = interrupt.check();
        if late || interrupted.is_err() {
            end(&mut child);
            interrupted?;
            bail!("{name} did not end within {} s: {}", LIMIT.as_secs(), read(errors)?.trim());
        }
        std::thread::sleep(LOOK);
    };
    if !status.success() {
        let said = read(errors)?;
        let said = said.trim();
        let shown = said.char_indices().rev().nth(SHOWN).map_or(said, |(at, _)| &said[at..]);
        // One line, because it becomes part of a line of progress and of a report.
        let shown: Vec<&str> = shown.split_whitespace().collect();
        bail!("{name} ended with {status}: {}", shown.join(" "));
    }
    read(out)
}

/// Ends a program with all its children, such as kubectl: first with SIGTERM, then with SIGKILL.
fn end(child: &mut Child) {
    // The process group has the program's ID and exists as long as one of its members. A signal to
    // a group that is gone fails.
    let group = Pid::from_raw(child.id().cast_signed());
    let begin = Instant::now();
    let _gone = killpg(group, Signal::SIGTERM);
    while matches!(child.try_wait(), Ok(None)) && begin.elapsed() < GRACE {
        std::thread::sleep(LOOK);
    }
    let _gone = killpg(group, Signal::SIGKILL);
    let _gone = child.wait();
}

fn read(mut file: std::fs::File) -> Result<String> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_told_which_cluster_and_its_failure_has_its_own_words() {
        let target = Target { kubeconfig: Some("/k".into()), context: Some("c".into()) };
        let interrupt = Interrupt::default();
        let said = run(Path::new("echo"), &["install", "-y"], &target, &interrupt).unwrap();
        assert_eq!(said, "install -y --kubeconfig /k --context c\n");
        let words = ["-c", "echo because >&2; exit 3"];
        let error = run(Path::new("sh"), &words, &Target::default(), &interrupt).unwrap_err();
        assert!(error.to_string().ends_with("because"), "{error}");
        interrupt.raise();
        let error = run(Path::new("sleep"), &["600"], &Target::default(), &interrupt).unwrap_err();
        assert!(error.is::<crate::interrupt::Interrupted>());
    }
    #[test]
    fn what_a_tool_has_started_ends_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        // The child ignores SIGTERM.
        let script = format!(
            "sh -c 'trap : TERM; echo $$ >{}; while :; do sleep 1; done' & wait",
            file.display()
        );
        let interrupt = Interrupt::default();
        let raised = interrupt.clone();
        let pid = std::thread::spawn(move || {
            loop {
                let text = std::fs::read_to_string(&file).unwrap_or_default();
                if let Ok(pid) = text.trim().parse::<i32>() {
                    raised.raise();
                    return pid;
                }
                std::thread::sleep(LOOK);
            }
        });
        run(Path::new("sh"), &["-c", &script], &Target::default(), &interrupt).unwrap_err();
        let status = format!("/proc/{}/stat", pid.join().unwrap());
        // The child has another parent by now, which may not have reaped it yet.
        while let Ok(text) = std::fs::read_to_string(&status) {
            if text.contains(") Z ") {
                break;
            }
            std::thread::sleep(LOOK);
        }
    }
}
