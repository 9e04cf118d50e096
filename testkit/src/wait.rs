//! Waits for a condition with a time limit, never by sleeping for a guessed time.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Pause between two checks. It is short compared with the things that are waited for (the start of a process, a
/// file).
const PAUSE: Duration = Duration::from_millis(10);

/// Calls `look` until it returns a value, for at most `limit`; `what` describes the condition in the error.
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
