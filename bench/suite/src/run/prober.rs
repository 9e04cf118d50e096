//! How long a proxy takes from its start to the first request that is served through it.
//!
//! ```text
//! prober:  ok ok ok ✗ ✗ ✗ ✗ ok ── says when
//! bench:         end, exec          (both by the clock of the kernel)
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

/// How long a request of the prober may take: while a proxy starts it may hang.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long it tries: longer is no start any more.
const LIMIT: Duration = Duration::from_secs(20);

/// The command behind `leno-bench probe`: asks until it is answered, then until it is not, then
/// until it is again, and says when that was.
///
/// # Errors
/// When the plan is none, or that does not happen in time.
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

/// As [`probe`], within a limit, as long as it `goes_on`: `answered` gets both moments, by the clock of the kernel.
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

/// Starts the client's proxy again and measures that, in milliseconds; none when it was too quick
/// to be seen.
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
    // It has ended, or nothing more is wanted of it.
    let _gone = child.kill();
    let _gone = child.wait();
    Ok(took.map(|took| took.as_secs_f64() * 1000.0))
}

/// Ends the client's own proxy, which `leno up` starts again at once; the moment of that.
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

/// Ends every proxy of Leno's own and its control plane, which `leno up` starts again; nothing to do
/// without any.
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
