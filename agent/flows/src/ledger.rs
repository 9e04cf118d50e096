//! The flow accounts of a mesh or a node, for the program that enrols workloads. Counters are read at intervals
//! and for each scrape, the budget is enforced, and only one thread at a time changes the accounts.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leno_program::chain;

use crate::accounts::Accounts;
use crate::budget::CpuBudget;
use crate::setting::FlowMetricsSource;
use crate::{EarlierMaps, Error, FlowSizes};

/// How often [`Ledger::round`] must be called, so that ended flows are removed from the table before it is full.
pub const ROUND: Duration = Duration::from_secs(5);
/// A scrape within this time after another reading reports the same numbers.
const FRESH: Duration = Duration::from_millis(200);

/// How flows are accounted for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LedgerSettings {
    /// The source for workloads whose documents set none.
    pub source: FlowMetricsSource,
    /// Sizes of the table and of the ring of events.
    pub sizes: FlowSizes,
    /// The largest share of CPU time that accounting may use; `None` for no limit.
    pub budget: Option<CpuBudget>,
}

impl LedgerSettings {
    /// Replaces those sizes that are not `None`.
    ///
    /// # Errors
    /// If a size is beyond its bounds.
    pub fn with(self, (flows, events): (Option<u32>, Option<u32>)) -> Result<Self, Error> {
        Ok(Self { sizes: self.sizes.with(flows, events)?, ..self })
    }
}

/// The accounts with their lock. All functions block for as long as the kernel needs.
pub struct Ledger {
    held: Mutex<LedgerState>,
    /// Prints a line for the operator.
    say: Box<dyn Fn(&str) + Send + Sync>,
}

struct LedgerState {
    /// The accounts; `None` after [`Ledger::end`].
    accounts: Option<Accounts>,
    /// The sizes of the last call of [`Ledger::resize`].
    sizes: FlowSizes,
    collected: Option<Instant>,
}

impl Ledger {
    /// Attaches the programs to a cgroup ([`Accounts::start`]). Later errors of the kernel are passed to `say`.
    ///
    /// # Errors
    /// If the kernel refuses the programs.
    pub fn start(
        (owner, cgroup): (&str, &Path),
        settings: LedgerSettings,
        say: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<(Self, EarlierMaps), Error> {
        let (accounts, earlier) = Accounts::start(owner, cgroup, settings.sizes)?;
        Ok((Self::new(accounts, settings, Box::new(say)), earlier))
    }

    /// Like [`Ledger::start`], but keeps the namespaces that an earlier process has enrolled
    /// ([`Accounts::resume`]).
    ///
    /// # Errors
    /// If the kernel refuses the programs.
    pub fn resume(
        (owner, cgroup): (&str, &Path),
        settings: LedgerSettings,
        say: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<(Self, EarlierMaps), Error> {
        let (accounts, earlier) = Accounts::resume(owner, cgroup, settings.sizes)?;
        Ok((Self::new(accounts, settings, Box::new(say)), earlier))
    }

    fn new(
        mut accounts: Accounts,
        settings: LedgerSettings,
        say: Box<dyn Fn(&str) + Send + Sync>,
    ) -> Self {
        let bounded = accounts.set_budget(settings.budget);
        let held = LedgerState { accounts: Some(accounts), sizes: settings.sizes, collected: None };
        let ledger = Self { held: Mutex::new(held), say };
        ledger.tell(bounded);
        ledger
    }

    /// Changes which workloads are accounted for. If the kernel refuses the change, prints that for the operator.
    pub fn change(&self, change: impl FnOnce(&mut Accounts) -> Result<(), Error>) {
        let changed = self.lock().accounts.as_mut().map_or(Ok(()), change);
        self.tell(changed);
    }

    /// Like [`Ledger::change`], for a caller that handles the error.
    ///
    /// # Errors
    /// The kernel's error, on one line.
    pub fn try_change(
        &self,
        change: impl FnOnce(&mut Accounts) -> Result<(), Error>,
    ) -> Result<(), String> {
        let changed = self.lock().accounts.as_mut().map_or(Ok(()), change);
        changed.map_err(|error| chain(&error))
    }

    /// Resizes the table and the ring of events, if `sizes` differ from those of the last call. Otherwise sizes
    /// that an operator may have set since are kept. If the kernel refuses, prints that for the operator, and the
    /// next call tries again.
    pub fn resize(&self, sizes: FlowSizes) {
        let mut held = self.lock();
        let (flows, events) = sizes.since(held.sizes);
        if (flows, events) == (None, None) {
            return;
        }
        let resized =
            held.accounts.as_ref().map_or(Ok(()), |accounts| accounts.resize(flows, events));
        match &resized {
            Ok(()) => {
                held.sizes = sizes;
                let (flows, events) = (sizes.flows(), sizes.events());
                (self.say)(&format!(
                    "flows: the table can now hold {flows} flows, and the ring {events} changes"
                ));
            }
            Err(error) => (self.say)(&format!("flows: {}", chain(error))),
        }
    }

    /// Runs one round: enforces the budget, and reads the counters unless a scrape has just done so.
    pub fn round(&self) {
        let kept = self.lock().accounts.as_mut().map_or(Ok(Vec::new()), Accounts::keep_budget);
        match kept {
            Ok(steps) => {
                steps.iter().for_each(|step| (self.say)(&format!("flows: accounting {step}")));
            }
            Err(error) => self.tell(Err(error)),
        }
        self.collect(ROUND / 2);
    }

    /// The metrics in Prometheus' text format; empty after the end.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.collect(FRESH);
        self.lock().accounts.as_ref().map(Accounts::metrics).unwrap_or_default()
    }

    /// Private addresses of peers without a name, from the last reading.
    #[must_use]
    pub fn strangers(&self) -> Vec<IpAddr> {
        self.lock().accounts.as_ref().map(Accounts::strangers).unwrap_or_default()
    }

    /// Stops reading, so that the pins can be removed.
    pub fn end(&self) {
        self.lock().accounts = None;
    }

    fn collect(&self, age: Duration) {
        let mut held = self.lock();
        if held.collected.is_some_and(|last| last.elapsed() < age) {
            return;
        }
        let collected = held.accounts.as_mut().map_or(Ok(()), Accounts::collect);
        held.collected = Some(Instant::now());
        drop(held);
        self.tell(collected);
    }

    fn tell(&self, done: Result<(), Error>) {
        if let Err(error) = done {
            (self.say)(&format!("flows: {}", chain(&error)));
        }
    }

    /// Poisoning is ignored, because the next reading updates all counters even after a panic.
    fn lock(&self) -> MutexGuard<'_, LedgerState> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}
