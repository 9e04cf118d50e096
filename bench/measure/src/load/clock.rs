//! A timer with microsecond precision; tokio's own timer rounds up to the next millisecond.

#![expect(
    unsafe_code,
    reason = "tokio takes any descriptor on the caller's word that it stays open"
)]

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::unix::AsyncFd;

/// A kernel timer whose descriptor tokio watches; must be created inside a tokio runtime.
#[derive(Debug)]
pub struct Clock(AsyncFd<Timer>);

/// Lends the timer's descriptor to tokio's reactor.
#[derive(Debug)]
struct Timer(TimerFd);

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Clock {
    /// Creates a timer that is not set to any moment yet.
    pub fn new() -> Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = Timer(TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?);
        // SAFETY: `Timer` owns its descriptor and nothing takes it out of the `AsyncFd`.
        Ok(Clock(unsafe { AsyncFd::register(timer)? }))
    }

    /// Waits until `when`; returns at once if that moment is over.
    pub async fn until(&self, when: Instant) -> Result<()> {
        let left = when.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        let left = left.max(Duration::from_nanos(1));
        let timer = &self.0.get_ref().0;
        timer
            .set(Expiration::OneShot(TimeSpec::from_duration(left)), TimerSetTimeFlags::empty())?;
        loop {
            let mut ready = self.0.readable().await?;
            let mut count = [0_u8; 8];
            match nix::unistd::read(self.0.get_ref().0.as_fd(), &mut count) {
                Err(nix::errno::Errno::EAGAIN) => ready.clear_ready(),
                Err(e) => return Err(e.into()),
                Ok(_) => {
                    ready.clear_ready();
                    return Ok(());
                }
            }
        }
    }
}
