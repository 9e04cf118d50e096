//! The part of a shared rate limit that runs in the control plane.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "counts of holders and tokens, checked before they shrink"
)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{ASK_EVERY, Ask, Grant, LOST};

/// How many proxies may share one limit. A further proxy gets answers without tokens, so that it does not use a limit
/// of its own. It rejects all requests except its first one, which passes on credit, until another proxy has left or
/// stopped asking.
pub const MAX_HOLDERS: usize = 10_000;

/// One global limit.
#[derive(Debug)]
pub struct Allocator {
    /// Tokens per second.
    rate: f64,
    /// How many unused tokens the bucket saves, beside those of one period between questions.
    burst: f64,
    tokens: f64,
    /// When the bucket was last filled.
    paid_at: Instant,
    /// The proxies that share the limit, by the IDs that the caller gives them.
    holders: BTreeMap<u64, Holding>,
}

/// A proxy that shares the limit: its last question.
#[derive(Clone, Copy, Debug)]
struct Holding {
    wanted: u32,
    asked_at: Instant,
}

impl Allocator {
    /// A limit of `requests` per `per`. The bucket starts empty, because tokens that were leased before a restart may
    /// still be spent. `burst` is how many unused tokens it can save.
    #[must_use]
    pub fn new(requests: u32, per: Duration, burst: u32, now: Instant) -> Self {
        let rate = f64::from(requests) / per.as_secs_f64().max(1e-9);
        let burst = f64::from(burst.max(1));
        Self { rate, burst, tokens: 0.0, paid_at: now, holders: BTreeMap::new() }
    }

    /// Answers a question of `holder`.
    pub fn ask(&mut self, holder: u64, ask: Ask, now: Instant) -> Grant {
        self.pay(now);
        self.holders.retain(|_, holding| now.saturating_duration_since(holding.asked_at) < LOST);
        let known = self.holders.contains_key(&holder);
        if !known && self.holders.len() >= MAX_HOLDERS {
            return Grant { tokens: 0, holders: MAX_HOLDERS as u32 };
        }
        self.holders.insert(holder, Holding { wanted: ask.wanted, asked_at: now });
        // The tokens that can be given until all holders have asked again: those that the rate yields, or the saved
        // ones if there are more.
        let between = (self.rate * ASK_EVERY.as_secs_f64()).max(1.0);
        let share = self.fair_share(between.max(self.tokens), now);
        let tokens = f64::from(ask.wanted).min(share).min(self.tokens).floor().max(0.0);
        self.tokens -= tokens;
        let holders = u32::try_from(self.holders.len()).unwrap_or(u32::MAX);
        Grant { tokens: tokens as u32, holders }
    }

    /// Removes a holder that has ended.
    pub fn leave(&mut self, holder: u64) {
        self.holders.remove(&holder);
    }

    /// The number of holders that share the limit.
    #[must_use]
    pub fn holders(&self) -> usize {
        self.holders.len()
    }

    fn pay(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.paid_at).as_secs_f64();
        // The bucket also saves the tokens of one period between questions, because all holders may ask at once after
        // it.
        let most = self.burst + self.rate * ASK_EVERY.as_secs_f64();
        self.tokens = (self.tokens + since * self.rate).min(most);
        self.paid_at = now;
    }

    /// The max-min fair share of `total`. Holders that want less than an equal part leave the rest to the others.
    fn fair_share(&self, total: f64, now: Instant) -> f64 {
        // A holder that has not asked lately has no requests.
        let lately =
            |holding: &&Holding| now.saturating_duration_since(holding.asked_at) < ASK_EVERY * 2;
        let asking = self.holders.values().filter(lately);
        let mut wants: Vec<u32> = asking.map(|holding| holding.wanted).collect();
        wants.sort_unstable();
        let mut left = total;
        for (at, want) in wants.iter().enumerate() {
            let equal = left / (wants.len() - at) as f64;
            if f64::from(*want) >= equal {
                return equal.max(1.0);
            }
            left -= f64::from(*want);
        }
        total
    }
}
