//! Measures how long a proxy takes from its start to the first request that is served through it.
//!
//! ```text
//! prober:  ok ok ok ✗ ✗ ✗ ✗ ok ── prints the time
//! bench:         kill, exec         (both on CLOCK_MONOTONIC)
//! ```

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use leno_measure::load::{self, Pace, Plan};
use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use crate::interrupt::Interrupt;
use crate::lab::{self, Lab, is_client, proxy_cgroup};
use crate::mesh::Sidecars;

/// The time limit of a request: it may hang while a proxy starts.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long the prober tries; a start that takes longer counts as failed.
const LIMIT: Duration = Duration::from_secs(20);

/// The command `leno-bench probe`: sends requests until one succeeds, then until one fails, then
/// until one succeeds again, and prints the times of both successes.
///
/// # Errors
/// If the plan is invalid, or a step takes too long.
pub fn probe(plan: &str, out: &mut impl Write) -> Result<()> {
    let plan: Plan = serde_json::from_str(plan).context("this is no plan of load")?;
    probe_for(
        plan,
        LIMIT,
        || Ok(()),
        |at| {
            writeln!(out, "{}", at.as_nanos())?;
            Ok(out.flush()?)
        },
    )
}

/// As [`probe`], within a limit and as long as `goes_on` returns `Ok`. `answered` receives the
/// times of both successes on CLOCK_MONOTONIC.
pub(crate) fn probe_for(
    mut plan: Plan,
    limit: Duration,
    goes_on: impl Fn() -> Result<()>,
    mut answered: impl FnMut(Duration) -> Result<()>,
) -> Result<()> {
    plan.pace = Pace::Rate(1000.0);
    plan.duration = Duration::from_millis(1);
    plan.warm_up = Duration::ZERO;
    (plan.connections, plan.streams, plan.threads) = (1, 1, 1);
    plan.timeout = PATIENCE;
    let ask = || Ok::<bool, anyhow::Error>(load::run(&plan)?.errors == 0);
    let begun = Instant::now();
    for wanted in [true, false, true] {
        while ask()? != wanted {
            goes_on()?;
            anyhow::ensure!(begun.elapsed() < limit, "there was no answer within {limit:?}");
        }
        if wanted {
            answered(monotonic()?)?;
        }
    }
    Ok(())
}

/// Restarts the client's proxy and measures the time until it serves again, in milliseconds; `None`
/// if the prober did not see an interruption.
pub(super) fn start_up(
    lab: &Lab,
    sidecars: Option<&mut Sidecars>,
    plan: &Plan,
    interrupt: &Interrupt,
) -> Result<Option<f64>> {
    interrupt.check()?;
    let mut command = lab.as_client(&lab::own_program()?)?;
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
        status.instances.iter().find(|one| is_client(one)).context("there is no client")?;
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

fn monotonic() -> Result<Duration> {
    Ok(Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?))
}
