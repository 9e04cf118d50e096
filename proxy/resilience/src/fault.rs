//! Injected faults, for testing how clients handle them.

use std::time::Duration;

use leno_balance::Rng;
use leno_types::traffic::{Faults, RequestShare};

/// The faults to inject into one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// The request is delayed by this time first.
    pub delay: Option<Duration>,
    /// The proxy answers with this status and does not forward the request.
    pub abort: Option<u16>,
}

/// Decides at random which faults are injected into one request. Delay and abort are independent of each other.
#[must_use]
pub fn draw(faults: &Faults, rng: &mut Rng) -> Fault {
    let mut hit =
        |share: RequestShare| rng.chance(share.0.min(RequestShare::ALL.0), RequestShare::ALL.0);
    Fault {
        delay: faults.delay.filter(|delay| hit(delay.share)).map(|delay| delay.by),
        abort: faults.abort.filter(|abort| hit(abort.share)).map(|abort| abort.status),
    }
}

#[cfg(test)]
mod tests {
    use leno_types::traffic::{Abort, Delay};

    use super::*;

    #[test]
    fn shares_are_kept_and_independent() {
        let by = Duration::from_millis(5);
        let faults = Faults {
            delay: Some(Delay { by, share: RequestShare(500_000) }),
            abort: Some(Abort { status: 503, share: RequestShare(100_000) }),
        };
        let mut rng = Rng::seeded(9);
        let drawn: Vec<_> = (0..100_000).map(|_| draw(&faults, &mut rng)).collect();
        let count = |of: &dyn Fn(&Fault) -> bool| drawn.iter().filter(|fault| of(fault)).count();
        let delayed = count(&|fault| fault.delay == Some(by));
        let aborted = count(&|fault| fault.abort == Some(503));
        let both = count(&|fault| fault.delay.is_some() && fault.abort.is_some());
        assert!((49_000..51_000).contains(&delayed), "{delayed}");
        assert!((9_500..10_500).contains(&aborted), "{aborted}");
        assert!((4_600..5_400).contains(&both), "{both}");
    }

    #[test]
    fn none_and_all() {
        let mut rng = Rng::seeded(9);
        let abort = |share| Faults { abort: Some(Abort { status: 500, share }), delay: None };
        assert!((0..1_000).all(|_| draw(&abort(RequestShare(0)), &mut rng) == Fault::default()));
        assert!((0..1_000).all(|_| draw(&abort(RequestShare::ALL), &mut rng).abort == Some(500)));
    }
}
