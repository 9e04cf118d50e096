//! Decides which replica leads, by the content of the Lease and how long it has been unchanged. Clocks of other
//! machines are not used: a term ends when the Lease has not changed for the length of the term, measured with
//! this machine's clock.

use std::time::{Duration, Instant};

/// The content of a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeaseRecord {
    /// The version of the object, which every write changes.
    pub(super) version: String,
    /// The replica that leads; empty if no replica does.
    pub(super) holder: String,
    /// How long a term lasts.
    pub(super) term: Duration,
}

/// What this replica has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseAction {
    /// There is no Lease: create it.
    Create,
    /// No replica leads: write this replica into the Lease.
    Take,
    /// This replica leads: renew the Lease.
    Renew,
    /// Another replica leads.
    Wait,
}

/// What one replica has observed of the Lease so far.
#[derive(Debug)]
pub(super) struct Election {
    me: String,
    seen: Option<(LeaseRecord, Instant)>,
}

impl Election {
    /// Starts without an observation. `me` must be different for every replica and every run of a replica.
    pub(super) fn new(me: String) -> Self {
        Self { me, seen: None }
    }

    pub(super) fn me(&self) -> &str {
        &self.me
    }

    /// Decides what to do, given the present content of the Lease.
    pub(super) fn step(&mut self, found: Option<LeaseRecord>, now: Instant) -> LeaseAction {
        let Some(found) = found else {
            self.seen = None;
            return LeaseAction::Create;
        };
        let since = match &self.seen {
            Some((seen, since)) if *seen == found => *since,
            _ => now,
        };
        let ended = now.duration_since(since) >= found.term;
        let step = match found.holder.as_str() {
            "" => LeaseAction::Take,
            holder if holder == self.me => LeaseAction::Renew,
            _ if ended => LeaseAction::Take,
            _ => LeaseAction::Wait,
        };
        self.seen = Some((found, since));
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Duration = Duration::from_secs(15);

    fn record(version: &str, holder: &str) -> Option<LeaseRecord> {
        Some(LeaseRecord { version: version.to_owned(), holder: holder.to_owned(), term: TERM })
    }

    #[test]
    fn a_lease_that_does_not_exist_or_is_empty_is_taken() {
        let mut election = Election::new("a".to_owned());
        let now = Instant::now();
        assert_eq!(election.step(None, now), LeaseAction::Create);
        assert_eq!(election.step(record("1", ""), now), LeaseAction::Take);
        assert_eq!(election.step(record("2", "a"), now), LeaseAction::Renew);
    }

    #[test]
    fn anothers_term_ends_only_after_it_was_seen_unchanged_for_its_length() {
        let mut election = Election::new("a".to_owned());
        let begin = Instant::now();
        assert_eq!(election.step(record("1", "b"), begin), LeaseAction::Wait);
        let almost = begin + TERM - Duration::from_millis(1);
        assert_eq!(election.step(record("1", "b"), almost), LeaseAction::Wait);
        assert_eq!(
            election.step(record("2", "b"), begin + TERM),
            LeaseAction::Wait,
            "it was renewed"
        );
        assert_eq!(election.step(record("2", "b"), begin + TERM * 2), LeaseAction::Take);
    }

    #[test]
    fn our_own_record_of_before_is_renewed_whenever_it_was_seen() {
        let mut election = Election::new("a".to_owned());
        let begin = Instant::now();
        assert_eq!(election.step(record("1", "a"), begin), LeaseAction::Renew);
        assert_eq!(election.step(record("1", "a"), begin + TERM * 2), LeaseAction::Renew);
    }
}
