//! Clocks that the standard library does not read.
#![expect(unsafe_code, reason = "clock_gettime")]

use std::time::Duration;

/// The time of `CLOCK_MONOTONIC`, the clock of `bpf_ktime_get_ns`.
#[must_use]
pub fn monotonic() -> Duration {
    read(libc::CLOCK_MONOTONIC)
}

/// The processor time that this thread has taken.
#[must_use]
pub fn thread_time() -> Duration {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn read(clock: libc::clockid_t) -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec to `now`, which lives through the call.
    let result = unsafe { libc::clock_gettime(clock, &raw mut now) };
    assert_eq!(result, 0, "every Linux has this clock");
    let part = |number: i64| u64::try_from(number).unwrap_or_default();
    Duration::from_secs(part(now.tv_sec)) + Duration::from_nanos(part(now.tv_nsec))
}
