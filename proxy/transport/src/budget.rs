//! The memory that buffers may take: one budget a process, charged by each worker on its own.
//!
//! ```text
//!             granted in pieces of GRANT, by an atomic
//!   budget ──────────────────────────────────────────► quota of a worker ◄── charge, credit
//!     │                                                 (cells of its thread)
//!     ├─ up to three quarters: new work may begin
//!     └─ above, up to the whole: for the work that is under way; what it holds stays small
//! ```
//!
//! What is charged is what is held: a buffer while there are bytes in it, a connection while it is
//! open. A charge never fails, since work that has begun must be able to end; what keeps the sum
//! within the budget is that nothing new begins ([`admits`]) and nothing grows ([`is_short`])
//! while it is short. Each connection is charged its least buffers in advance.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "grants are within the budget, and a worker gives back no more than it was granted"
)]

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a worker takes from the budget, and gives back, at a time: many buffers, so that requests
/// seldom touch the shared count, and little beside a budget of some MiB.
const GRANT: usize = 256 * 1024;

/// The least budget: some grants for each of a few workers.
pub const MIN_BUDGET: usize = 4 * 1024 * 1024;

/// The memory that buffers of this process may take. Made once; workers [`enter`](Self::enter) it.
#[derive(Clone, Copy, Debug)]
pub struct Budget(&'static BudgetState);

#[derive(Debug)]
struct BudgetState {
    /// Bytes in all.
    limit: usize,
    /// Above this, grants are for work that is under way.
    limit_of_new: usize,
    granted: AtomicUsize,
}

/// What one thread holds of the budget.
struct Account {
    shared: Cell<Option<&'static BudgetState>>,
    used: Cell<usize>,
    quota: Cell<usize>,
    /// The last grant was above what is left for new work.
    strained: Cell<bool>,
}

thread_local! {
    // A thread that has entered no budget has no bound.
    static ACCOUNT: Account = const {
        Account {
            shared: Cell::new(None),
            used: Cell::new(0),
            quota: Cell::new(usize::MAX),
            strained: Cell::new(false),
        }
    };
}

impl Budget {
    /// A budget of `bytes`, [`MIN_BUDGET`] at least. It is never freed.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let limit = bytes.max(MIN_BUDGET);
        let limit_of_new = limit / 4 * 3;
        Self(Box::leak(Box::new(BudgetState { limit, limit_of_new, granted: AtomicUsize::new(0) })))
    }

    /// Bytes in all.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.0.limit
    }

    /// Bytes that may be charged before new work is refused.
    #[must_use]
    pub fn bytes_for_new(self) -> usize {
        self.0.limit_of_new
    }

    /// Charges what the calling thread holds, now and from now on, to this budget.
    pub fn enter(self) {
        ACCOUNT.with(|account| {
            account.shared.set(Some(self.0));
            account.quota.set(0);
            if account.used.get() > 0 {
                account.grow();
            }
        });
    }
}

/// Charges `bytes` to the calling thread.
pub fn charge(bytes: usize) {
    ACCOUNT.with(|account| {
        let used = account.used.get().saturating_add(bytes);
        account.used.set(used);
        if used > account.quota.get() {
            account.grow();
        }
    });
}

/// Takes back a charge. What was charged on another thread must not be taken back here.
pub fn credit(bytes: usize) {
    ACCOUNT.with(|account| {
        let used = account.used.get().saturating_sub(bytes);
        account.used.set(used);
        // Twice, so that use that goes up and down around a bound does not ask each time.
        if account.quota.get().saturating_sub(used) >= 2 * GRANT {
            account.shrink();
        }
    });
}

/// Whether new work, a request or a connection, may begin.
#[must_use]
pub fn admits() -> bool {
    ACCOUNT.with(|account| {
        let at_ease = account.used.get() <= account.quota.get() && !account.strained.get();
        at_ease || account.relax()
    })
}

/// Whether what is held is to stay small, because new work is refused already.
#[must_use]
pub fn is_short() -> bool {
    ACCOUNT.with(|account| account.strained.get())
}

/// Bytes charged to the calling thread and not taken back.
#[must_use]
pub fn charged() -> usize {
    ACCOUNT.with(|account| account.used.get())
}

/// A charge for as long as it lives, on the thread that made it.
#[derive(Debug)]
pub struct Charge(usize);

impl Charge {
    /// Charges `bytes`.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        charge(bytes);
        Self(bytes)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        credit(self.0);
    }
}

impl Account {
    /// Asks for what is charged beyond the quota, and one grant ahead.
    #[cold]
    fn grow(&self) {
        let Some(shared) = self.shared.get() else { return };
        let missing = self.used.get().saturating_sub(self.quota.get());
        let wanted = missing.next_multiple_of(GRANT);
        let (got, granted) = shared.grant(wanted);
        self.quota.set(self.quota.get() + got);
        self.strained.set(got < missing || granted > shared.limit_of_new);
    }

    /// Keeps one grant beyond what is used.
    #[cold]
    fn shrink(&self) {
        let Some(shared) = self.shared.get() else { return };
        let keep = self.used.get().next_multiple_of(GRANT) + GRANT;
        let back = self.quota.get().saturating_sub(keep);
        self.quota.set(self.quota.get() - back);
        // Nothing else is published by it.
        let granted = shared.granted.fetch_sub(back, Ordering::Relaxed) - back;
        if granted <= shared.limit_of_new {
            self.strained.set(false);
        }
    }

    /// Looks again whether the budget is short.
    #[cold]
    fn relax(&self) -> bool {
        let Some(shared) = self.shared.get() else { return true };
        self.shrink();
        if self.used.get() > self.quota.get() {
            self.grow();
        }
        let short = self.used.get() > self.quota.get()
            || shared.granted.load(Ordering::Relaxed) > shared.limit_of_new;
        self.strained.set(short);
        !short
    }
}

impl BudgetState {
    /// Grants up to `wanted`; how much, and how much is granted in all then.
    fn grant(&self, wanted: usize) -> (usize, usize) {
        let mut granted = self.granted.load(Ordering::Relaxed);
        loop {
            let got = wanted.min(self.limit.saturating_sub(granted));
            let after = granted + got;
            let swapped = self.granted.compare_exchange_weak(
                granted,
                after,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match swapped {
                Ok(_) => return (got, after),
                Err(now) => granted = now,
            }
        }
    }
}

#[cfg(test)]
mod tests;
