//! The programs of other projects that install and remove their meshes.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use leno_operate::ClusterTarget;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::interrupt::Interrupt;
use crate::process::Running;

/// The time limit of one call. It is long because an installation waits for images and pods.
const LIMIT: Duration = Duration::from_secs(600);
/// How long a program may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);

/// Runs a program against a cluster and returns its output.
///
/// # Errors
/// If the program cannot be started, fails, takes more than ten minutes, or the run is interrupted. Then the
/// program and all its children are ended.
pub(super) fn run(
    program: &Path,
    words: &[&str],
    target: &ClusterTarget,
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
    // Ctrl-C must end only the bench, and not this program.
    command.process_group(0);
    let mut running = Running::start(&mut command, "")?;
    let ended = running.wait(LIMIT, interrupt);
    if let Ok(Some(status)) = ended {
        return Ok(String::from_utf8_lossy(&running.output(status)?).into_owned());
    }
    end_group(&mut running);
    ended?;
    let (limit, errors) = (LIMIT.as_secs(), running.errors()?);
    bail!("{command:?} did not end within {limit} s: {errors}")
}

/// Ends a program with all its children, such as kubectl: first with SIGTERM, then with SIGKILL.
fn end_group(running: &mut Running) {
    // The process group has the program's ID and exists as long as one of its members. If the group no longer exists,
    // the signal fails, which does no harm.
    let group = Pid::from_raw(running.pid().cast_signed());
    let _gone = killpg(group, Signal::SIGTERM);
    let _ended = running.wait(GRACE, &Interrupt::default());
    let _gone = killpg(group, Signal::SIGKILL);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installer_gets_the_cluster_and_its_failure_shows_its_output() {
        let target = ClusterTarget { kubeconfig: Some("/k".into()), context: Some("c".into()) };
        let interrupt = Interrupt::default();
        let said = run(Path::new("echo"), &["install", "-y"], &target, &interrupt).unwrap();
        assert_eq!(said, "install -y --kubeconfig /k --context c\n");
        let words = ["-c", "echo because >&2; exit 3"];
        let error =
            run(Path::new("sh"), &words, &ClusterTarget::default(), &interrupt).unwrap_err();
        assert!(error.to_string().ends_with("because"), "{error}");
        interrupt.raise();
        let error =
            run(Path::new("sleep"), &["600"], &ClusterTarget::default(), &interrupt).unwrap_err();
        assert!(error.is::<crate::interrupt::Interrupted>());
    }

    #[test]
    fn children_of_an_installer_end_with_it() {
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
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        run(Path::new("sh"), &["-c", &script], &ClusterTarget::default(), &interrupt).unwrap_err();
        let status = format!("/proc/{}/stat", pid.join().unwrap());
        // The child has another parent by now, which may not yet have collected its exit status.
        while let Ok(text) = std::fs::read_to_string(&status) {
            if text.contains(") Z ") {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
