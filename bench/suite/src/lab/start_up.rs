//! Measures how long a proxy takes from its start until a request is served through it.
//!
//! ```text
//! prober:  ok ok ok ✗ ✗ ✗ ✗ ok ── answers with the time
//! bench:         kill, exec         (both use CLOCK_MONOTONIC)
//! ```

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use leno_local::status::ProxyProcess;
use leno_measure::load::Plan;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::namespaces::{Lab, is_client};
use super::sidecars::Sidecars;
use crate::interrupt::Interrupt;
use crate::measurement::probe::monotonic;
use crate::pod_program::{POD, PodAnswer, PodRequest, PodTask};
use crate::process::own_program;

/// How long the prober tries. A start that takes longer counts as failed.
const LIMIT: Duration = Duration::from_secs(20);

/// Restarts the client's proxy and measures the time until it serves again, in milliseconds; `None` if the prober saw
/// no interruption.
pub(super) fn start_up(
    lab: &Lab,
    sidecars: Option<&mut Sidecars>,
    plan: &Plan,
    interrupt: &Interrupt,
) -> Result<Option<f64>> {
    interrupt.check()?;
    let mut command = lab.as_client(&own_program()?)?;
    command.arg(POD).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().context("cannot start the prober")?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(PodRequest::line(1, PodTask::Probe(plan.clone(), LIMIT))?.as_bytes())?;
    }
    let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    let mut answer = || -> Result<Option<u64>> {
        let Some(line) = lines.next().transpose()? else { return Ok(None) };
        Ok(serde_json::from_str::<PodAnswer>(&line)?.answer.ok().and_then(|at| at.as_u64()))
    };
    let mut took = None;
    if answer()?.is_some() {
        let begun = match sidecars {
            Some(sidecars) => {
                let before_exec = sidecars.restart_client()?;
                monotonic()?.saturating_sub(before_exec.elapsed())
            }
            None => end_own(lab)?,
        };
        took = answer()?.map(|nanos| Duration::from_nanos(nanos).saturating_sub(begun));
    }
    // The prober has ended, or is no longer needed.
    let _gone = child.kill();
    let _gone = child.wait();
    Ok(took.map(|took| took.as_secs_f64() * 1000.0))
}

/// Kills the client's own proxy, which `leno up` starts again at once. Returns the time of the kill. In node mode the
/// process serves all workloads of its group.
fn end_own(lab: &Lab) -> Result<Duration> {
    let status = lab.status()?;
    let client =
        status.instances.iter().find(|one| is_client(one)).context("the lab has no client")?;
    let pids = client.proxy.as_ref().map(ProxyProcess::pids).unwrap_or_default();
    let begun = monotonic()?;
    end(pids)?;
    Ok(begun)
}

/// Kills all of Leno's own proxies and its control plane, which `leno up` starts again. Does nothing if there are none.
/// The brokers of node mode carry no traffic, so they are not killed.
pub(super) fn end_all_own(lab: &Lab) -> Result<()> {
    let status = lab.status()?;
    let proxies = status.instances.iter().filter_map(|one| one.proxy.as_ref());
    let pids: BTreeSet<i32> =
        proxies.flat_map(ProxyProcess::pids).chain(status.controller).collect();
    end(pids)
}

fn end(pids: impl IntoIterator<Item = i32>) -> Result<()> {
    pids.into_iter().try_for_each(|pid| Ok(kill(Pid::from_raw(pid), Signal::SIGKILL)?))
}
