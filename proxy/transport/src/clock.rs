//! The time by which the planes decide.

use std::time::Instant;

/// Now, on the clock of the runtime's timers: the machine's, or in a test one that stands still.
#[must_use]
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
