//! Tests proxies that never become ready. The old processes must continue to serve, and messages must name what is
//! missing.
//!
//! ```text
//! client, web ── share: node ──► one process      apart ── a sidecar
//! ```

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess};
use leno_testkit::{binaries, command, wait};

use super::node::{LIMIT, MESH, echoes};
use super::{Case, once};

/// How long a command may take.
const LONG: Duration = Duration::from_secs(120);
/// The command of a program that never serves. Its processes are found by this command line.
const NEVER: &str = "sleep 86399.5";

pub(super) fn cases() -> Vec<Case> {
    vec![
        once!(an_update_to_a_program_that_never_serves_is_named_and_can_be_taken_back),
        once!(a_workload_that_runs_as_the_user_of_proxies_is_refused_and_named),
    ]
}

/// Replaces a program by another one, as an installation does.
fn replace(program: &Path, put: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let next = program.with_extension("next");
    put(&next)?;
    Ok(fs::rename(next, program)?)
}

/// Replaces `leno-proxy` by a script.
fn replace_by_script(program: &Path, script: &str) -> Result<()> {
    replace(program, |next| {
        fs::write(next, format!("#!/bin/sh\n{script}\n"))?;
        Ok(fs::set_permissions(next, Permissions::from_mode(0o755))?)
    })
}

/// Updates the proxies to a program that does not serve within the timeout. Returns the output.
fn update_in_vain(lab: &Lab) -> Result<String> {
    let arguments = ["--proxies", "--timeout", "30s"];
    let output = command::run(lab.leno("upgrade").args(arguments), LONG)?;
    ensure!(output.status.code() == Some(2), "{output:?}");
    Ok(String::from_utf8(output.stderr)?)
}

/// Whether any process of the program that never serves is running.
fn any_that_never_serves() -> Result<bool> {
    let wanted = NEVER.replace(' ', "\0");
    for process in fs::read_dir("/proc")? {
        // The command line of a process that has just ended is empty.
        let line = fs::read_to_string(process?.path().join("cmdline")).unwrap_or_default();
        if line.trim_end_matches('\0') == wanted {
            return Ok(true);
        }
    }
    Ok(false)
}

fn an_update_to_a_program_that_never_serves_is_named_and_can_be_taken_back(
    capture: Capture,
) -> Result<()> {
    const GROUP: MeshProcess<'_> = MeshProcess::Node("node");
    let installed =
        tempfile::Builder::new().prefix("installed").tempdir_in(binaries::directory()?)?;
    for program in ["leno", "leno-proxy", "leno-broker", "leno-controller"] {
        fs::hard_link(binaries::ours(program)?, installed.path().join(program))?;
    }
    let program = installed.path().join("leno-proxy");
    let programs = Some(installed.path().to_owned());
    let options = LabOptions { programs, mtls: Some("strict"), ..LabOptions::new(capture) };
    let lab = Lab::start(&options, MESH, |_| Ok(()))?;
    let outcome = || -> Result<()> {
        let serves = || -> Result<()> {
            echoes(&lab, "apart:9000")?;
            lab.reach("client", "web:8080").map(|_| ())
        };
        serves()?;
        let before = [lab.pid_of(GROUP)?, lab.pid_of(MeshProcess::Proxy("apart-0"))?];

        // The processes that this script leaves behind must end with the script; the end of this case checks that.
        replace_by_script(&program, &format!("{NEVER} &\nexit 9"))?;
        let said = update_in_vain(&lab)?;
        for part in [
            "waiting for the new processes of 3 instances: ",
            "after 30 s 3 instances are still served by old processes",
            "\n  lab/apart-0: its new process exited with 9, and is restarted\n",
            "\n  lab/web-0: the proxy of group node (2 served) exited with 9",
            "To go back, install the old programs",
        ] {
            ensure!(said.contains(part), "{part:?} is not in {said}");
        }
        let check = command::run(&mut lab.leno("check"), LONG)?;
        let check = String::from_utf8(check.stdout)?;
        ensure!(check.contains("lab/apart-0 next proxy"), "{check}");
        serves().context("while the next processes end")?;

        replace_by_script(&program, &format!("exec {NEVER}"))?;
        let said = update_in_vain(&lab)?;
        for part in ["apart-0: its new process does not serve yet", "group node does not serve it"]
        {
            ensure!(said.contains(part), "{part:?} is not in {said}");
        }
        ensure!(any_that_never_serves()?, "the program was not started");
        ensure!(
            before.iter().all(|pid| Path::new(&format!("/proc/{pid}")).exists()),
            "a proxy of before has ended"
        );
        serves().context("while the next processes stand still")?;

        replace(&program, |next| Ok(fs::hard_link(binaries::ours("leno-proxy")?, next)?))?;
        let said = command::text(lab.leno("upgrade").arg("--proxies"), LONG)?;
        ensure!(said.starts_with("the new processes serve 3 instances"), "{said}");
        serves().context("once the program of before is back")?;
        wait::until("the end of what never served, and of what has finished", LIMIT, || {
            let left = before.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists());
            Ok((!left && !any_that_never_serves()?).then_some(()))
        })?;
        let ps = command::text(&mut lab.leno("ps"), LONG)?;
        ensure!(!ps.contains("still served by the old proxy"), "{ps}");
        serves()
    };
    lab.explain(outcome())
}

/// If a workload ran as the user of proxies, the capture would treat its connections as those of a proxy.
fn a_workload_that_runs_as_the_user_of_proxies_is_refused_and_named(
    capture: Capture,
) -> Result<()> {
    const OWN: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: own, namespace: lab}
spec: {user: '2102', command: ['@BIN@/leno-peer', idle]}
";
    let lab = Lab::start(&LabOptions::new(capture), MESH, |_| Ok(()))?;
    let outcome = || -> Result<()> {
        lab.edit(&format!("{MESH}{OWN}"))?;
        lab.wait_for("a workload that is refused", |status| {
            status.instance("own-0").is_ok_and(|own| own.phase == "failed")
        })?;
        for verb in ["ps", "check"] {
            let output = command::run(&mut lab.leno(verb), LONG)?;
            let said = String::from_utf8(output.stdout)?;
            ensure!(said.contains("it would run as user 2102"), "{verb}: {said}");
        }
        ensure!(lab.pid_of(MeshProcess::Application("own-0")).is_err(), "it runs");
        Ok(())
    };
    lab.explain(outcome())
}
