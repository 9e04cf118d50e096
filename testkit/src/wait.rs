//! Waiting for a condition with a bound, never by sleeping a guessed time.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Pause between two looks; short against what is waited for (a process start, a file).
const PAUSE: Duration = Duration::from_millis(10);

/// Looks until `look` gives a value, at most `limit`; `what` names it in the error.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = look()? {
            return Ok(value);
        }
        if start.elapsed() > limit {
            bail!("waited {limit:?} in vain for {what}");
        }
        std::thread::sleep(PAUSE);
    }
}
