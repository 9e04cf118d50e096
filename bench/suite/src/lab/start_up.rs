//! Measures how long a proxy takes from its start to the first request that is served through it.
//!
//! ```text
//! prober:  ok ok ok ✗ ✗ ✗ ✗ ok ── prints the time
//! bench:         kill, exec         (both on CLOCK_MONOTONIC)
//! ```

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use leno_measure::load::Plan;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::namespaces::{Lab, is_client, proxy_cgroup};
use super::sidecars::Sidecars;
use crate::interrupt::Interrupt;
use crate::measurement::probe::monotonic;
use crate::process::own_program;

/// Restarts the client's proxy and measures the time until it serves again, in milliseconds; `None`
/// if the prober did not see an interruption.
pub(super) fn start_up(
    lab: &Lab,
    sidecars: Option<&mut Sidecars>,
    plan: &Plan,
    interrupt: &Interrupt,
) -> Result<Option<f64>> {
    interrupt.check()?;
    let mut command = lab.as_client(&own_program()?)?;
    command.arg("probe").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().context("cannot start the prober")?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(serde_json::to_string(plan)?.as_bytes())?;
    }
    let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    let answered = lines.next().transpose()?.is_some();
    let mut took = None;
    if answered {
        let begun = match sidecars {
            Some(sidecars) => {
                let before_exec = sidecars.restart_client()?;
                monotonic()?.saturating_sub(before_exec.elapsed())
            }
            None => end_own(lab)?,
        };
        let again = lines.next().transpose()?.and_then(|line| line.parse::<u64>().ok());
        took = again.map(|nanos| Duration::from_nanos(nanos).saturating_sub(begun));
    }
    // The prober has ended, or is no longer needed.
    let _gone = child.kill();
    let _gone = child.wait();
    Ok(took.map(|took| took.as_secs_f64() * 1000.0))
}

/// Kills the client's own proxy, which `leno up` starts again at once; returns the time of the
/// kill.
fn end_own(lab: &Lab) -> Result<Duration> {
    let status = lab.status()?;
    let client =
        status.instances.iter().find(|one| is_client(one)).context("the lab has no client")?;
    let pids = leno_measure::usage::pids_of_cgroup(&proxy_cgroup(client)?)?;
    let begun = monotonic()?;
    for pid in pids {
        kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL)?;
    }
    Ok(begun)
}

/// Kills all of Leno's own proxies and its control plane, which `leno up` starts again. Does
/// nothing without any.
pub(super) fn end_all_own(lab: &Lab) -> Result<()> {
    let status = lab.status()?;
    let mut pids: Vec<i32> = status.controller.into_iter().collect();
    for instance in &status.instances {
        for pid in leno_measure::usage::pids_of_cgroup(&proxy_cgroup(instance)?)? {
            pids.push(i32::try_from(pid)?);
        }
    }
    for pid in pids {
        kill(Pid::from_raw(pid), Signal::SIGKILL)?;
    }
    Ok(())
}
