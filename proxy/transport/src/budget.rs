//! The memory that buffers may use. There is one budget for each workload, and each worker charges it separately.
//!
//! ```text
//!             granted in pieces of GRANT, by an atomic
//!   budget ──────────────────────────────────────────► quota of a worker ◄── charge, credit
//!     │ ▲                                               (thread-local, without atomics)
//!     │ └─ pool, shared by several workloads of one process: grants beyond the budget's own part come from it
//!     ├─ up to three quarters: new work may begin
//!     └─ above, up to the whole: for work in progress, whose buffers stay small
//! ```
//!
//! If a process has one workload, the workload owns its whole budget. If several workloads share a process, each owns a
//! part of its budget and takes the rest from a [`Pool`] while that has memory. So the sum of all budgets is at most
//! the pool plus the owned parts, and a workload that takes the whole pool leaves the owned parts of the others.
//!
//! Memory is charged while it is held: a buffer while it contains bytes, a connection while it is open. A charge never
//! fails, because work that has begun must be able to end. Instead, while the budget is short, no work begins
//! ([`admits`]) and no buffer grows ([`is_short`]). The smallest buffers of a connection are charged when it is opened.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "grants are within the budget, and a worker gives back no more than it was granted"
)]

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How much a worker takes from the budget or returns to it at a time. It is enough for many buffers, so that requests
/// seldom touch the shared counter, and little compared with a budget of some MiB.
const GRANT: usize = 256 * 1024;

/// The smallest budget: enough for several grants to each of a few workers.
pub const MIN_BUDGET: usize = 4 * 1024 * 1024;

/// The memory that buffers of a workload may use. It is created once, and each worker [`enters`](Self::enter) it.
#[derive(Clone, Copy, Debug)]
pub struct Budget(&'static BudgetState);

/// Memory that several workloads' budgets share.
#[derive(Clone, Copy, Debug)]
pub struct Pool(&'static PoolState);

#[derive(Debug)]
struct BudgetState {
    /// The size of the budget in bytes.
    limit: usize,
    /// If more than this is granted, further memory is granted only for work in progress.
    limit_of_new: usize,
    /// How many bytes do not come from the pool. Without a pool these are all bytes.
    own: usize,
    pool: Option<Pool>,
    granted: AtomicUsize,
}

#[derive(Debug)]
struct PoolState {
    limit: usize,
    taken: AtomicUsize,
}

/// The part of the budget that one thread holds, and how much of it the thread uses.
struct Account {
    shared: Cell<Option<&'static BudgetState>>,
    /// How many bytes are charged to this thread.
    used: Cell<usize>,
    /// How many bytes were granted to this thread. `used` may exceed it only if the budget had no more.
    quota: Cell<usize>,
    /// Whether the last grant left only memory that is reserved for work in progress.
    strained: Cell<bool>,
}

thread_local! {
    // If a thread has entered no budget, its memory is not limited.
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
    /// A budget of `bytes`, or of [`MIN_BUDGET`] if that is more. It is never freed.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self::of(bytes.max(MIN_BUDGET), usize::MAX, None)
    }

    /// A budget of `bytes`. `own` of them, at least one grant, are reserved for this workload; the rest is taken from
    /// `pool`. A thread must [`leave`] such a budget before it ends. The budget is never freed.
    #[must_use]
    pub fn with_pool(bytes: usize, own: usize, pool: Pool) -> Self {
        Self::of(bytes.max(MIN_BUDGET), own.max(GRANT), Some(pool))
    }

    fn of(limit: usize, own: usize, pool: Option<Pool>) -> Self {
        let (limit_of_new, granted) = (new_of(limit), AtomicUsize::new(0));
        Self(Box::leak(Box::new(BudgetState { limit, limit_of_new, own, pool, granted })))
    }

    /// The pool from which a part of the budget is taken.
    #[must_use]
    pub fn pool(self) -> Option<Pool> {
        self.0.pool
    }

    /// The size of the budget in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.0.limit
    }

    /// How many bytes may be charged before new work is refused.
    #[must_use]
    pub fn bytes_for_new(self) -> usize {
        self.0.limit_of_new
    }

    /// Charges the memory that the calling thread holds, now and from now on, to this budget.
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

/// The part of `bytes` that new work may use; the rest is for work in progress.
const fn new_of(bytes: usize) -> usize {
    bytes / 4 * 3
}

impl Pool {
    /// A pool of `bytes`. It is never freed.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self(Box::leak(Box::new(PoolState { limit: bytes, taken: AtomicUsize::new(0) })))
    }

    /// The size of the pool in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.0.limit
    }

    /// How many bytes budgets have taken.
    #[must_use]
    pub fn taken(self) -> usize {
        // The ordering is relaxed, here and below, because the counter does not announce changes of other memory.
        self.0.taken.load(Ordering::Relaxed)
    }

    /// Takes up to `wanted` bytes; returns how many it has taken.
    fn take(self, wanted: usize) -> usize {
        let mut taken = self.taken();
        loop {
            let got = wanted.min(self.0.limit.saturating_sub(taken));
            let (order, after) = (Ordering::Relaxed, taken + got);
            match self.0.taken.compare_exchange_weak(taken, after, order, order) {
                Ok(_) => return got,
                Err(now) => taken = now,
            }
        }
    }

    fn give_back(self, bytes: usize) {
        self.0.taken.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether the remaining memory is reserved for work in progress.
    fn is_short(self) -> bool {
        self.taken() > new_of(self.0.limit)
    }
}

/// Returns everything that was granted to the calling thread, which is then charged to no budget and must end. If a
/// thread ends without this call, its grants are lost to the budget and its pool.
pub fn leave() {
    ACCOUNT.with(|account| {
        let Some(shared) = account.shared.take() else { return };
        shared.give_back(account.quota.replace(usize::MAX));
        account.strained.set(false);
    });
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

/// Takes back a charge that was made on the same thread.
pub fn credit(bytes: usize) {
    ACCOUNT.with(|account| {
        let used = account.used.get().saturating_sub(bytes);
        account.used.set(used);
        // Shrinks only if two grants are unused. If one sufficed, a thread whose use varies around a multiple of a
        // grant would change the shared counter each time.
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

/// Whether buffers should stay small, because the remaining memory is reserved for work in progress.
#[must_use]
pub fn is_short() -> bool {
    ACCOUNT.with(|account| account.strained.get())
}

/// How many bytes are charged to the calling thread now.
#[must_use]
pub fn charged() -> usize {
    ACCOUNT.with(|account| account.used.get())
}

/// A charge to the thread that created this value, which must also drop it. The charge ends with the value.
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
    /// Takes as many grants from the budget as cover all bytes above the quota.
    #[cold]
    fn grow(&self) {
        let Some(shared) = self.shared.get() else { return };
        let missing = self.used.get().saturating_sub(self.quota.get());
        let wanted = missing.next_multiple_of(GRANT);
        let (got, granted) = shared.grant(wanted);
        self.quota.set(self.quota.get() + got);
        self.strained.set(got < missing || shared.is_short(granted));
    }

    /// Returns unused grants except one.
    #[cold]
    fn shrink(&self) {
        let Some(shared) = self.shared.get() else { return };
        let keep = self.used.get().next_multiple_of(GRANT) + GRANT;
        let back = self.quota.get().saturating_sub(keep);
        self.quota.set(self.quota.get() - back);
        let granted = shared.give_back(back);
        if !shared.is_short(granted) {
            self.strained.set(false);
        }
    }

    /// Compares with the budget again, in which other threads may have freed memory. Returns whether new work may
    /// begin.
    #[cold]
    fn relax(&self) -> bool {
        let Some(shared) = self.shared.get() else { return true };
        self.shrink();
        if self.used.get() > self.quota.get() {
            self.grow();
        }
        let short = self.used.get() > self.quota.get()
            || shared.is_short(shared.granted.load(Ordering::Relaxed));
        self.strained.set(short);
        !short
    }
}

impl BudgetState {
    /// Grants up to `wanted` bytes. Returns how many, and how many bytes all threads now have.
    fn grant(&self, wanted: usize) -> (usize, usize) {
        let mut granted = self.granted.load(Ordering::Relaxed);
        loop {
            let within = wanted.min(self.limit.saturating_sub(granted));
            let beyond = self.beyond(granted + within) - self.beyond(granted);
            let lent = self.pool.map_or(beyond, |pool| pool.take(beyond));
            let got = within - (beyond - lent);
            let after = granted + got;
            let swapped = self.granted.compare_exchange_weak(
                granted,
                after,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match swapped {
                Ok(_) => return (got, after),
                Err(now) => {
                    if let Some(pool) = self.pool {
                        pool.give_back(lent);
                    }
                    granted = now;
                }
            }
        }
    }

    /// Takes `bytes` back. Returns how many bytes all threads still have.
    fn give_back(&self, bytes: usize) -> usize {
        // Relaxed, because nothing else is published with this counter.
        let before = self.granted.fetch_sub(bytes, Ordering::Relaxed);
        let after = before - bytes;
        if let Some(pool) = self.pool {
            pool.give_back(self.beyond(before) - self.beyond(after));
        }
        after
    }

    /// How many bytes come from the pool if `granted` bytes are granted.
    fn beyond(&self, granted: usize) -> usize {
        granted.saturating_sub(self.own)
    }

    /// Whether the remaining memory is reserved for work in progress: if three quarters of the budget are granted. If
    /// the pool is short, three quarters of the budget's own part count instead.
    fn is_short(&self, granted: usize) -> bool {
        granted > self.limit_of_new
            || granted > new_of(self.own) && self.pool.is_some_and(Pool::is_short)
    }
}

#[cfg(test)]
mod tests;
