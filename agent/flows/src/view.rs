//! Reads flows from pins, for any process that has permission to read the pins.

use std::cmp::Reverse;

use leno_bpf::flows::{AccountingPrice, EventReader, Flows, WorkloadAddresses};
use leno_bpf::{Error, PinRoot};
use leno_bpf_abi::flow::{Flow, FlowName};

use crate::caps::WorkloadCap;
use crate::connection::{ClockOffset, ConnectionChange, FlowConnection, WorkloadNames};
use crate::drops::{DropRow, Drops};
use crate::requests::{self, RequestRow};
use crate::wire::{self, WireRow};

/// The flows of one owner.
#[derive(Debug)]
pub struct FlowView {
    flows: Flows,
}

/// Changes of flows as they happen.
pub struct FlowEvents<'a> {
    flows: &'a Flows,
    follower: EventReader<'a>,
    names: WorkloadNames,
    locals: WorkloadAddresses,
}

impl FlowView {
    /// Opens the flows of this owner; `None` if there are none.
    ///
    /// # Errors
    /// If the pins cannot be read.
    pub fn open(owner: &str) -> Result<Option<Self>, Error> {
        Ok(Flows::open(&PinRoot::find()?, owner)?.map(|flows| Self { flows }))
    }

    /// Updates the table. Returns all its flows, the oldest first, and how many are missing because the
    /// table was full.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn list(&self) -> Result<(Vec<FlowConnection>, u64), Error> {
        self.list_latest(usize::MAX).map(|(flows, missing, _)| (flows, missing))
    }

    /// Returns at most `most` flows, those with the latest changes, and how many others the table has. Uses memory only
    /// for what it returns, whatever the size of the table.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn list_latest(&self, most: usize) -> Result<(Vec<FlowConnection>, u64, usize), Error> {
        let _lock = self.flows.lock_pins()?;
        // The number of added flows is read before the table, and the number of removed ones after it. So a flow
        // that is added or removed in between does not count as evicted.
        let added = self.flows.totals()?.added;
        self.flows.refresh()?;
        let (mut latest, mut present) = (Vec::new(), 0);
        self.flows.for_each(|cookie, flow| {
            present += 1;
            latest.push((cookie, flow));
            if latest.len() >= most.saturating_mul(2) {
                keep_latest(&mut latest, most);
            }
        })?;
        keep_latest(&mut latest, most);
        let (names, locals, clock) =
            (names(&self.flows)?, self.flows.locals()?, ClockOffset::now());
        let mut all: Vec<FlowConnection> = latest
            .iter()
            .map(|(cookie, flow)| FlowConnection::new((*cookie, flow), &names, &locals, clock))
            .collect();
        all.sort_by_key(|one| (one.first_seen_unix_ms, one.cookie));
        let left_out = present - all.len();
        let totals = self.flows.totals()?;
        let evicted = added.saturating_sub(totals.removed).saturating_sub(present as u64);
        Ok((all, evicted + totals.unlisted, left_out))
    }

    /// Requests by pair, as last read from proxies. The process that enrols workloads reads them every 5 s.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn requests(&self) -> Result<Vec<RequestRow>, Error> {
        let rows = self.flows.requests()?;
        let sums = requests::sums(rows.iter().map(|(_, row)| row));
        Ok(sums.iter().map(|(pair, sums)| RequestRow::new(pair, sums)).collect())
    }

    /// Requests of unencrypted traffic, as last read from samples. The process that enrols workloads stores them
    /// every 5 s.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn wire_requests(&self) -> Result<Vec<WireRow>, Error> {
        Ok(wire::list(&self.flows.wire_requests()?, &names(&self.flows)?))
    }

    /// The level of accounting, its CPU budget, and its CPU use.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn price(&self) -> Result<AccountingPrice, Error> {
        self.flows.price()
    }

    /// The workloads that have their own budget, sorted by name.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn caps(&self) -> Result<Vec<WorkloadCap>, Error> {
        let mut all = Vec::new();
        for (id, (namespace, workload)) in names(&self.flows)? {
            let price = self.flows.cap(id)?;
            if price.budget_millionths > 0 {
                all.push(WorkloadCap { namespace, workload, price });
            }
        }
        all.sort_by_cached_key(|one| (one.namespace.clone(), one.workload.clone()));
        Ok(all)
    }

    /// Packets that the kernel dropped, by workload and reason.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn drops(&self) -> Result<Vec<DropRow>, Error> {
        let mut drops = Drops::default();
        drops.take_in(&self.flows.drops()?, &names(&self.flows)?);
        Ok(drops.into_rows())
    }

    /// Why dropped packets are not counted; `None` if they are.
    #[must_use]
    pub fn drops_are_not_counted(&self) -> Option<String> {
        self.flows.drops_are_not_counted()
    }

    /// Resizes the table and the ring of events while the programs run; `None` keeps a size.
    ///
    /// # Errors
    /// If a size is beyond its bound, the events have a reader, or the kernel refuses.
    pub fn resize(&self, flows: Option<u32>, events: Option<u32>) -> Result<(), Error> {
        self.flows.resize(flows, events)
    }

    /// Replaces the programs by those of this build, without a gap in the counts, if `self_test` succeeds.
    ///
    /// # Errors
    /// If the self-test fails or the kernel refuses. Then the earlier programs stay.
    pub fn upgrade(&self, self_test: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        self.flows.upgrade(self_test)
    }

    /// Returns the changes from now on. Only one process at a time may follow them.
    ///
    /// # Errors
    /// [`Error::Followed`] if another process does, or if the kernel refuses.
    pub fn follow(&self) -> Result<FlowEvents<'_>, Error> {
        let follower = self.flows.follow()?;
        let (names, locals) = (names(&self.flows)?, self.flows.locals()?);
        Ok(FlowEvents { flows: &self.flows, follower, names, locals })
    }
}

impl FlowEvents<'_> {
    /// The changes since the last call, oldest first. The caller must poll, because the kernel does not wake
    /// readers.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn take(&mut self) -> Result<Vec<ConnectionChange>, Error> {
        let events = self.follower.take()?;
        let unknown = |id: u16| !self.names.contains_key(&id.into());
        if events.iter().any(|event| unknown(event.flow.workload) || unknown(event.flow.peer)) {
            self.names = names(self.flows)?;
        }
        // An address that was only known from frames may be certain by now, because its workload was named.
        let uncertain = |number| !self.locals.is_certain(number);
        if events.iter().filter_map(|event| event.flow.local_number()).any(uncertain) {
            self.locals = self.flows.locals()?;
        }
        let (names, locals, clock) = (&self.names, &self.locals, ClockOffset::now());
        Ok(events.iter().map(|event| ConnectionChange::new(event, names, locals, clock)).collect())
    }

    /// How many changes were dropped since this reader started, because it was too slow.
    ///
    /// # Errors
    /// If the counter cannot be read.
    pub fn dropped(&self) -> Result<u64, Error> {
        self.follower.dropped()
    }
}

fn keep_latest(flows: &mut Vec<(u64, Flow)>, most: usize) {
    if flows.len() > most {
        flows.select_nth_unstable_by_key(most, |(_, flow)| Reverse(flow.last_ns));
        flows.truncate(most);
    }
}

/// The names of workloads by ID.
pub(crate) fn names(flows: &Flows) -> Result<WorkloadNames, Error> {
    let parts = |(id, name): (u32, FlowName)| (id, name.parts());
    Ok(flows.names()?.into_iter().map(parts).collect())
}
