//! Requests that are sent until one succeeds, until one fails, and until one succeeds again.

use std::time::{Duration, Instant};

use anyhow::Result;
use leno_measure::load::{self, Pace, Plan};
use nix::time::{ClockId, clock_gettime};

/// The time limit of a request, which may hang while a proxy starts.
const PATIENCE: Duration = Duration::from_millis(250);

/// Sends requests until one succeeds, then until one fails, then until one succeeds again, within a limit and as long
/// as `goes_on` returns `Ok`. `answered` receives the times of both successes on CLOCK_MONOTONIC.
pub(crate) fn probe(
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

/// The time on CLOCK_MONOTONIC.
pub(crate) fn monotonic() -> Result<Duration> {
    Ok(Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?))
}
