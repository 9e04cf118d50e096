//! When the process returns memory that it does not need (`leno_reclaim`).
//!
//! ```text
//!  stack of the control thread   before it waits, once a second at most
//!  stack of a worker             before it waits, when it has counted for a scrape, or checked what is idle with nothing in
//!                                progress
//!  heap                          when the process is quiet after its start, after load, or after a member has left
//! ```

use std::cell::Cell;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// The shortest time between two releases of stack pages by a control thread, because a busy thread would soon touch
/// them again.
const EVERY: Duration = Duration::from_secs(1);
/// How often the process checks whether it is quiet.
const LOOK: Duration = Duration::from_secs(5);
/// A process is quiet if it uses less than this part (a fiftieth) of a CPU between two checks: idle members, and scrapes of
/// their metrics, but hardly any requests, since threads that allocate wait while free memory is returned.
const BUSY: u32 = 50;

thread_local! {
    static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Whether this worker releases stack pages before it waits.
    static IS_DUE: Cell<bool> = const { Cell::new(false) };
    /// The state of the control thread.
    static QUIET: Cell<Quiet> = const { Cell::new(Quiet { is_due: true, cpu: Duration::ZERO }) };
}

/// Decides when free memory of the heap is returned: once after each time in which the process was busy.
#[derive(Clone, Copy, Debug)]
struct Quiet {
    /// Whether there may be much free memory.
    is_due: bool,
    /// The CPU time of the process at the last check.
    cpu: Duration,
}

impl Quiet {
    /// Must be called every [`LOOK`], with the CPU time of the process. Returns whether to return memory now.
    fn look(&mut self, cpu: Duration) -> bool {
        let used = cpu.saturating_sub(std::mem::replace(&mut self.cpu, cpu));
        let is_busy = used.saturating_mul(BUSY) >= LOOK;
        let returns = self.is_due && !is_busy;
        self.is_due = is_busy;
        returns
    }
}

/// See [`leno_reclaim::bound_arenas`].
pub(crate) fn bound_arenas() {
    if !leno_reclaim::bound_arenas() {
        tracing::warn!("the allocator keeps its number of arenas");
    }
}

/// See [`leno_reclaim::find_stack`].
pub(crate) fn find_stack() {
    if let Err(error) = leno_reclaim::find_stack() {
        tracing::warn!(%error, "a thread does not find its stack");
    }
}

/// Releases stack pages, at most once in [`EVERY`]. Must be called on a control thread before it waits.
pub(crate) fn before_wait() {
    let now = Instant::now();
    if LAST.get().is_none_or(|last| now.duration_since(last) >= EVERY) {
        LAST.set(Some(now));
        release_stack();
    }
}

/// Makes the calling worker release stack pages before it waits the next time, when no task is on its stack.
pub(crate) fn release_before_wait() {
    IS_DUE.set(true);
}

/// Called before a worker waits.
pub(crate) fn before_wait_of_worker() {
    if IS_DUE.replace(false) {
        release_stack();
    }
}

/// See [`leno_reclaim::release_stack`].
fn release_stack() {
    if let Err(error) = leno_reclaim::release_stack() {
        tracing::trace!(%error, "a part of the stack stays");
    }
}

/// Must be called on the control thread when a workload is served or has left, because its start or its state has left
/// free memory behind.
pub(crate) fn heap_was_freed() {
    QUIET.set(Quiet { is_due: true, ..QUIET.get() });
}

/// Returns free memory of the heap when the process is quiet. One task of the control thread runs this; it ends with
/// the runtime.
pub(crate) async fn trim_when_quiet() -> Infallible {
    loop {
        tokio::time::sleep(LOOK).await;
        // The clock exists in every kernel. Without it, the process would count as quiet.
        let cpu = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from);
        let mut quiet = QUIET.get();
        let returns = quiet.look(cpu.unwrap_or_default());
        QUIET.set(quiet);
        if returns {
            leno_reclaim::trim_heap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_returned_once_after_each_busy_time() {
        let mut quiet = QUIET.get();
        let mut cpu = Duration::ZERO;
        // The CPU time of each period, in milliseconds, and whether memory is returned after it.
        for (at, (used_ms, returns)) in [
            (900, false),
            (500, false),
            (99, true),
            (50, false),
            (2_000, false),
            (0, true),
            (0, false),
        ]
        .into_iter()
        .enumerate()
        {
            cpu += Duration::from_millis(used_ms);
            assert_eq!(quiet.look(cpu), returns, "{at}");
        }
        quiet.is_due = true;
        assert!(quiet.look(cpu), "a workload has left");
        assert!(!quiet.look(cpu));
    }

    #[test]
    fn a_workload_that_leaves_makes_the_next_quiet_check_return_memory() {
        QUIET.set(Quiet { is_due: false, cpu: Duration::from_secs(3) });
        heap_was_freed();
        let mut quiet = QUIET.get();
        assert_eq!(quiet.cpu, Duration::from_secs(3));
        assert!(quiet.look(Duration::from_secs(3)));
    }
}
