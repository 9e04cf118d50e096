//! Whether a client that sends no more has closed its socket.
//!
//! A FIN does not tell: a client that only shuts down its sending direction sends the same one. If it closes its socket
//! later, that sends nothing, and the proxy has to ask the kernel ([`Io::has_left`](crate::Io::has_left)). Even the socket of a client that
//! closes at once may seem open when its FIN arrives, because the kernel sends the FIN before it orphans the socket.
#![expect(clippy::arithmetic_side_effects, reason = "bounded waits after the present time")]

use std::task::{Context, Poll, ready};
use std::time::Duration;

use leno_transport::SILENCE;
use tokio::time::Instant;

use crate::alarm::Alarm;

/// The wait after the first check. Each further wait is an eighth longer, up to [`SILENCE`]. So a departure is noticed
/// within this time or an eighth of the time since the FIN, and a client that stays costs few checks.
const FIRST_WAIT: Duration = Duration::from_millis(75);

/// Repeated checks, from the client's FIN on.
#[derive(Debug, Default)]
pub(crate) struct DepartureChecks {
    /// Between the last check and the next one; zero before the first.
    wait: Duration,
    next: Option<Instant>,
    alarm: Alarm,
}

impl DepartureChecks {
    /// Ready once `has_left` says that the client has closed its socket. The first call checks at once.
    pub(crate) fn poll_left(
        &mut self,
        has_left: impl Fn() -> bool,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        loop {
            if let Some(next) = self.next {
                ready!(self.alarm.poll_at(next, cx));
            }
            if has_left() {
                return Poll::Ready(());
            }
            self.wait = (self.wait + self.wait / 8).clamp(FIRST_WAIT, SILENCE);
            self.next = Some(Instant::now() + self.wait);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_departure_is_noticed_within_an_eighth_of_the_time_since_the_fin() {
        let millis = [0, 1, 50, 74, 75, 76, 300, 1000, 5000, 20_000, 31_000, 60_000, 600_000];
        for after in millis.map(Duration::from_millis) {
            let (leaves, asked) = (Instant::now() + after, Cell::new(0));
            let has_left = || {
                asked.set(asked.get() + 1);
                Instant::now() >= leaves
            };
            let mut checks = DepartureChecks::default();
            poll_fn(|cx| checks.poll_left(has_left, cx)).await;
            let bound = (FIRST_WAIT + after / 8).min(SILENCE) + Duration::from_millis(2);
            assert!(leaves.elapsed() <= bound, "{after:?}: {:?}", leaves.elapsed());
            let most = 50 + after.as_secs() as usize / 4;
            assert!(asked.get() <= most, "{after:?}: asked {} times", asked.get());
        }
    }
}
