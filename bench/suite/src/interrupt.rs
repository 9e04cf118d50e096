//! Ctrl-C: running programs are ended in an orderly way, and the records made so far are kept.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The longest time until a waiting run notices an interrupt.
const LOOK: Duration = Duration::from_millis(100);

/// A flag that a signal sets; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

/// The error after Ctrl-C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted: the records are kept, and --resume continues the run")]
pub struct Interrupted;

impl Interrupt {
    /// A flag that Ctrl-C and other termination signals set, so that the run can end in an orderly way.
    pub fn by_signals() -> Result<Self> {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, interrupt.0.clone())?;
        }
        Ok(interrupt)
    }

    /// Sets the flag.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Checks the flag.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.0.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
    }

    /// Waits for the given time, or until the flag is set.
    pub(crate) fn sleep(&self, time: Duration) -> Result<(), Interrupted> {
        let end = Instant::now() + time;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            self.check()?;
            thread::sleep(left.min(LOOK));
        }
        self.check()
    }

    /// Does some work and returns its result. When the flag is set, the work is stopped at its next wait, so it need
    /// not check the flag.
    pub(crate) async fn ends<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let raised = async {
            while self.check().is_ok() {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            done = work => done,
            () = raised => Err(Interrupted.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_interrupt_ends_work_that_hangs() {
        let interrupt = Interrupt::default();
        assert_eq!(interrupt.ends(async { Ok(7) }).await.unwrap(), 7);
        interrupt.raise();
        let error = interrupt.ends(std::future::pending::<Result<()>>()).await.unwrap_err();
        assert!(error.is::<Interrupted>(), "{error}");
    }
}
