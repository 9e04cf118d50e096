//! Finds out whether a client has closed its socket in cases in which reads do not show it.
//!
//! A FIN does not show whether the client has closed its socket: a client that only shuts down its sending direction
//! sends the same FIN. If it closes its socket later, nothing is sent, and the proxy must query the kernel
//! ([`Io::presence`](crate::Io::presence)). Even the socket of a client that closes at once may seem open when its FIN
//! arrives, because the kernel sends the FIN before it orphans the socket. So the query is repeated. And no FIN is read
//! at all while the server does not accept the client's upload, or while the buffer of the client's connection is full.
#![expect(clippy::arithmetic_side_effects, reason = "bounded waits after the present time")]

use std::task::{Context, Poll, ready};
use std::time::Duration;

use leno_transport::{Presence, SILENCE};
use tokio::time::Instant;

use crate::alarm::Alarm;

/// The wait after the first check. Each further wait is an eighth longer, up to [`SILENCE`]. So a departure is noticed
/// within this time, or within an eighth of the time since the first check if that is longer, but always within
/// [`SILENCE`]. A client that stays costs few checks.
const FIRST_WAIT: Duration = Duration::from_millis(75);

/// Waits between checks that grow from [`FIRST_WAIT`] to [`SILENCE`]. Contains the last one.
#[derive(Debug, Default)]
pub(crate) struct GrowingWait(Duration);

impl GrowingWait {
    /// Returns the time of the next check.
    pub(crate) fn next(&mut self) -> Instant {
        self.0 = (self.0 + self.0 / 8).clamp(FIRST_WAIT, SILENCE);
        Instant::now() + self.0
    }
}

/// The checks whether the client of one connection has left.
#[derive(Debug, Default)]
pub(crate) struct DepartureChecks {
    /// Whether a check has returned [`Presence::Unknown`], for example because the client is on another machine.
    /// Further checks would return the same.
    is_unknown: bool,
    /// The wait before the next check.
    wait: GrowingWait,
    /// The time of the next check; `None` before the first check.
    next: Option<Instant>,
    /// The time of the next check while the proxy does not read from the client, and the wait before that check.
    unread: Option<(Instant, GrowingWait)>,
    alarm: Alarm,
}

impl DepartureChecks {
    /// Whether an earlier check has shown that the kernel cannot tell whether this client has left.
    pub(crate) fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Checks now, unless the kernel cannot tell ([`Self::is_unknown`]). Returns true only if the client has certainly
    /// left.
    pub(crate) fn has_left(&mut self, presence: impl FnOnce() -> Presence) -> bool {
        let presence = if self.is_unknown { Presence::Unknown } else { presence() };
        self.is_unknown = presence == Presence::Unknown;
        presence == Presence::Left
    }

    /// Ready once the client has closed its socket. The first call checks at once. Never ready if the kernel cannot
    /// tell.
    pub(crate) fn poll_left(
        &mut self,
        presence: impl Fn() -> Presence,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        loop {
            if self.is_unknown {
                return Poll::Pending;
            }
            if let Some(next) = self.next {
                ready!(self.alarm.poll_at(next, cx));
            }
            if self.has_left(&presence) {
                return Poll::Ready(());
            }
            self.next = Some(self.wait.next());
        }
    }

    /// Like [`Self::poll_left`], for the time while the proxy does not read from the client, so that it notices neither
    /// a FIN nor a reset. Nothing suggests that the client has left, so the first check comes after a wait. The checks
    /// go on even if the kernel cannot tell whether the client has closed its socket, because a connection that the
    /// client has reset is still recognised.
    pub(crate) fn poll_left_unread(
        &mut self,
        presence: impl Fn() -> Presence,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let (next, wait) = self.unread.get_or_insert_with(|| {
            let mut wait = GrowingWait::default();
            (wait.next(), wait)
        });
        loop {
            ready!(self.alarm.poll_at(*next, cx));
            if presence() == Presence::Left {
                return Poll::Ready(());
            }
            *next = wait.next();
        }
    }

    /// Must be called when the proxy reads from the client again. The next checks without reads begin with the shortest
    /// wait.
    pub(crate) fn reads_again(&mut self) {
        self.unread = None;
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
            let presence = || {
                asked.set(asked.get() + 1);
                if Instant::now() >= leaves { Presence::Left } else { Presence::Here }
            };
            let mut checks = DepartureChecks::default();
            poll_fn(|cx| checks.poll_left(presence, cx)).await;
            let bound = (FIRST_WAIT + after / 8).min(SILENCE) + Duration::from_millis(2);
            assert!(leaves.elapsed() <= bound, "{after:?}: {:?}", leaves.elapsed());
            let most = 50 + after.as_secs() as usize / 4;
            assert!(asked.get() <= most, "{after:?}: asked {} times", asked.get());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_not_read_is_checked_in_growing_waits() {
        let (began, asked) = (Instant::now(), Cell::new(0));
        let presence = || {
            asked.set(asked.get() + 1);
            match began.elapsed() {
                past if past >= Duration::from_secs(60) => Presence::Left,
                past if past >= Duration::from_secs(30) => Presence::Unknown,
                _ => Presence::Here,
            }
        };
        let mut checks = DepartureChecks::default();
        let context = &mut Context::from_waker(std::task::Waker::noop());
        assert!(checks.poll_left_unread(presence, context).is_pending());
        assert_eq!(asked.get(), 0, "nothing suggests that it has left");
        poll_fn(|cx| checks.poll_left_unread(presence, cx)).await;
        assert!(began.elapsed() <= Duration::from_secs(60) + SILENCE);
        assert!((20..60).contains(&asked.get()), "asked {} times", asked.get());
        assert!(!checks.is_unknown());
    }

    #[tokio::test(start_paused = true)]
    async fn a_kernel_that_cannot_determine_it_is_queried_once() {
        let asked = Cell::new(0);
        let presence = || {
            asked.set(asked.get() + 1);
            Presence::Unknown
        };
        let mut checks = DepartureChecks::default();
        let left = poll_fn(|cx| checks.poll_left(presence, cx));
        assert!(tokio::time::timeout(Duration::from_secs(600), left).await.is_err());
        assert!(checks.is_unknown() && !checks.has_left(presence));
        assert_eq!(asked.get(), 1);
    }
}
