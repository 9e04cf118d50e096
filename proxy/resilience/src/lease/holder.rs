//! One proxy's side of a shared rate limit.
#![expect(clippy::arithmetic_side_effects, reason = "counts of tokens, checked before they shrink")]

use std::time::{Duration, Instant};

use super::{ASK_EVERY, ASK_SOON, Ask, Grant, LEASE, LOST, MAX_CREDIT};
use crate::bucket::{Rate, TokenBucket};
use crate::keyed::Verdict;

/// The factor by which a proxy asks for more tokens than it recently needed, so that growing traffic need not wait for
/// the next question.
const HEADROOM: f64 = 1.25;

/// The smallest number of tokens to ask for, so that a limit that was not used lately has some at once.
const MIN_WANTED: u32 = 1;

/// How many leases are kept: as many as can be valid at the same time.
const MAX_LEASES: usize = (LEASE.as_millis() / ASK_SOON.as_millis()) as usize + 1;

/// The tokens of one global limit that a proxy may spend.
///
/// ```text
/// leased ──(no answer for LOST)──► alone: a bucket of its own ──(a grant)──► leased
/// ```
#[derive(Debug)]
pub struct Holder {
    rate: Option<Rate>,
    /// The bucket that is used while the control plane does not answer.
    alone: TokenBucket,
    /// How many proxies share the limit, as far as known.
    holders: u32,
    /// The number of requests that passed on credit and have not been paid for.
    debt: u32,
    /// How many requests may pass on credit. It is one until the control plane has sent the number of holders.
    credit: u32,
    /// The largest credit, which a sole holder has: the requests that the rate allows between two questions, at most
    /// [`MAX_CREDIT`].
    most_credit: u32,
    leases: [Lease; MAX_LEASES],
    /// When the last question was asked.
    asked_at: Option<Instant>,
    /// Whether a question waits for its answer.
    is_asking: bool,
    /// Since when questions have had no answer.
    unanswered_since: Option<Instant>,
    /// The number of requests since the last question, whether they passed or were rejected.
    needed: u32,
    /// Whether some of these requests were rejected.
    has_refused: bool,
}

/// Tokens that were leased together and are valid until the same time.
#[derive(Clone, Copy, Debug, Default)]
struct Lease {
    tokens: u32,
    until: Option<Instant>,
}

impl Holder {
    /// A limit without leased tokens.
    #[must_use]
    pub fn new(requests: u32, per: Duration) -> Self {
        let a_second = f64::from(requests) / per.as_secs_f64().max(1e-9);
        let most_credit = ((a_second * ASK_EVERY.as_secs_f64()) as u32).min(MAX_CREDIT);
        Self {
            debt: 0,
            credit: u32::from(requests > 0),
            most_credit,
            // Without a burst, since every proxy would have its own.
            rate: Rate::new(requests, per, 1),
            alone: TokenBucket::default(),
            // This one, until the control plane has sent the number of all.
            holders: 1,
            leases: [Lease::default(); MAX_LEASES],
            asked_at: None,
            is_asking: false,
            unanswered_since: None,
            needed: 0,
            has_refused: false,
        }
    }

    /// Counts a request, and decides whether it passes.
    pub fn check(&mut self, now: Instant) -> Verdict {
        self.needed = self.needed.saturating_add(1);
        // Spend tokens of the lease that expires first.
        let live =
            |lease: &&mut Lease| lease.tokens > 0 && lease.until.is_some_and(|until| now < until);
        if let Some(lease) = self.leases.iter_mut().filter(live).min_by_key(|lease| lease.until) {
            lease.tokens -= 1;
            return Verdict::Pass;
        }
        if !self.is_alone(now) && self.debt < self.credit {
            self.debt += 1;
            return Verdict::Pass;
        }
        self.has_refused = true;
        if !self.is_alone(now) {
            return Verdict::Limited(ASK_EVERY);
        }
        let Some(rate) = self.rate else { return Verdict::Limited(LOST) };
        match self.alone.take(rate.divided(self.holders), now) {
            Ok(()) => Verdict::Pass,
            Err(wait) => Verdict::Limited(wait),
        }
    }

    /// Whether the control plane has not answered for so long that this proxy uses a limit of its
    /// own.
    #[must_use]
    pub fn is_alone(&self, now: Instant) -> bool {
        let since = self.unanswered_since;
        since.is_some_and(|since| now.saturating_duration_since(since) >= LOST)
    }

    /// The next question, if it is time for one. While there are requests, a proxy asks every [`ASK_EVERY`], or after
    /// [`ASK_SOON`] if it had no token for some of them. If the last question has no answer yet, it waits for
    /// [`LEASE`], after which the tokens of that answer would be too old.
    pub fn ask(&mut self, now: Instant) -> Option<Ask> {
        let since = self.asked_at.map(|at| now.saturating_duration_since(at));
        let wait = match (self.is_asking, self.has_refused) {
            (true, _) => LEASE,
            (false, true) => ASK_SOON,
            (false, false) => ASK_EVERY,
        };
        if self.needed == 0 || since.is_some_and(|since| since < wait) {
            return None;
        }
        // Assume that requests arrive at the same rate until the next question.
        let since = since.unwrap_or(ASK_EVERY).max(ASK_SOON);
        let a_period = f64::from(self.needed) * ASK_EVERY.as_secs_f64() / since.as_secs_f64();
        let expected = (a_period * HEADROOM).ceil() as u32;
        let wanted = expected.saturating_sub(self.left(now)).max(MIN_WANTED);
        let wanted = wanted.saturating_add(self.debt);
        self.asked_at = Some(now);
        self.unanswered_since.get_or_insert(now);
        self.is_asking = true;
        self.needed = 0;
        self.has_refused = false;
        Some(Ask { wanted })
    }

    /// Stores an answer, whose lease begins when the last question was asked. If that question already has an answer,
    /// this one brings no tokens, because they may be too old.
    pub fn granted(&mut self, grant: Grant) {
        self.unanswered_since = None;
        self.holders = grant.holders.max(1);
        if !std::mem::take(&mut self.is_asking) {
            return;
        }
        if self.credit > 0 {
            self.credit = (self.most_credit / self.holders).max(1);
        }
        let paid = self.debt.min(grant.tokens);
        self.debt -= paid;
        let until = self.asked_at.map(|asked| asked + LEASE);
        let oldest = self.leases.iter_mut().min_by_key(|lease| lease.until);
        if let Some(oldest) = oldest {
            *oldest = Lease { tokens: grant.tokens - paid, until };
        }
    }

    /// How many tokens can be spent now.
    #[must_use]
    pub fn left(&self, now: Instant) -> u32 {
        let live = |lease: &&Lease| lease.until.is_some_and(|until| now < until);
        self.leases.iter().filter(live).map(|lease| lease.tokens).sum()
    }
}
