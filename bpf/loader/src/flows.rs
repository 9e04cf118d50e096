//! The flow programs of a mesh or a node: attaching, replacing and removing them, and reading what they have counted.
//!
//! ```text
//! <bpffs>/leno/<owner>/     owner, version, layout      notes: symbolic links whose target is the text
//!                           map_<name>                  flows, pairs, sockets, workloads, addresses, names, ...
//!                           map_<name>_earlier          a map of an earlier layout, until its content is copied
//!                           link_leno_flow_sockops      on the cgroup
//!                           program_leno_flow_sent, _received, and link_port<number>_... for each interface whose
//!                                                       frames are counted; or a note filters_port<number>
//!                           link_leno_flow_drop         on the tracepoint of dropped packets
//!                           read_leno_flow_read         the kernel visits every open socket when this is read; or,
//!                                                       where that is not safe, read_leno_flow_read_tcp and notes of
//!                                                       namespaces
//! ```

mod attach;
mod caps;
mod clock;
mod drops;
mod events;
mod filters;
mod locals;
mod migrate;
mod pin_lock;
mod ports;
mod reading;
mod requests;
mod samples;
mod self_test;
mod sizes;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use leno_bpf_abi::flow::{
    FLOW_LAYOUT, FLOW_TOTALS, Flow, FlowAddress, FlowLevel, FlowName, FlowPair, FlowSums,
    FlowWorkload,
};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::error::Error;
use crate::{PinRoot, RunTime, batch, netns, object, pins, run_time};

pub(crate) use attach::open as open_programs;
pub use caps::ProgramRuns;
pub use clock::{monotonic, thread_time};
pub(crate) use drops::Tracepoint;
pub use drops::drop_reasons;
pub use events::EventReader;
pub(crate) use filters::{put_source_filter, remove_source_filter};
pub use locals::WorkloadAddresses;
pub use pin_lock::PinLock;
pub use ports::WorkloadInterface;
pub(crate) use ports::{RawLink, filtered, index_of, link_to_sent, try_frames};
pub use samples::{SampleCounts, SampleReader, SamplesAt};
pub use self_test::self_test;
pub use sizes::{FlowSizes, MAX_EVENTS, MAX_FLOWS, memory_of, try_memory};

/// Indexes of `control` (`enum flow_setting`): whether events are followed, and the number of the iterator's pass.
const FOLLOWED: u32 = 0;
const PASS: u32 = 1;
/// The level of accounting, and its budget and cost in millionths of the machine's CPU time.
const LEVEL: u32 = 2;
const BUDGET: u32 = 3;
const COST: u32 = 4;

/// The pinned flow programs of one owner. Dropping this value changes nothing in the kernel.
#[derive(Debug)]
pub struct Flows {
    directory: PathBuf,
    maps: Maps,
}

/// The maps that user space uses, opened.
#[derive(Debug)]
struct Maps {
    pairs: MapHandle,
    workloads: MapHandle,
    addresses: MapHandle,
    names: MapHandle,
    totals: MapHandle,
    control: MapHandle,
}

/// What [`Flows::attach`] did with the maps of an earlier process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlierMaps {
    /// There were none.
    New,
    /// They are used further, with their counters.
    Kept,
    /// They had a layout that this build does not know, so they were removed. The counters begin at zero.
    Replaced,
}

/// The counters that belong to no pair of workload and peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowTotals {
    /// Entries that were created in the table.
    pub added: u64,
    /// Flows for which the table had no entry left.
    pub unlisted: u64,
    /// Connections that are not accounted for at all: the kernel had no memory.
    pub untracked: u64,
    /// Flows that were added to the sums of all further pairs, because the map of pairs was full.
    pub folded: u64,
    /// Events that were written.
    pub events_written: u64,
    /// Events that were dropped because their reader was too slow.
    pub events_dropped: u64,
    /// Connections that are not in the table because of the level.
    pub aggregated: u64,
    /// Connections that are not accounted for because of the level.
    pub left_out: u64,
    /// Entries that user space removed from the table, so that they are not taken for evicted ones.
    pub removed: u64,
}

/// How much is accounted for, and the CPU time of the programs, in millionths of the machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountingPrice {
    /// How much is accounted for.
    pub level: FlowLevel,
    /// The most that the programs may take; 0 if there is no bound.
    pub budget_millionths: u32,
    /// What they took when it was measured last.
    pub cost_millionths: u32,
}

impl Flows {
    /// Loads the programs and attaches them to a cgroup. They account for connections that are made in that cgroup or
    /// below, in a network namespace that is enrolled ([`Flows::enrol`]). If an earlier process has pinned programs
    /// under the same name, with a layout that this build knows, these are replaced without a gap: the maps stay, and
    /// the flows of the table are copied if the new table has another size.
    ///
    /// # Errors
    /// If the kernel refuses. What was pinned before then stays.
    pub fn attach(
        root: &PinRoot,
        owner: &str,
        cgroup: &Path,
        sizes: FlowSizes,
    ) -> Result<(Self, EarlierMaps), Error> {
        let directory = root.of(owner)?;
        let mut kept = EarlierMaps::New;
        if directory.is_dir() {
            kept = EarlierMaps::Kept;
            if !migrate::is_known(&pins::read_note(&directory, "layout")) {
                remove(&directory)?;
                kept = EarlierMaps::Replaced;
            }
        }
        let lock = pin_lock::take(&directory)?;
        let attached = attach::attach_in(&directory, owner, cgroup, sizes.capacities());
        drop(lock);
        if attached.is_err()
            && kept != EarlierMaps::Kept
            && let Err(error) = remove(&directory)
        {
            tracing::warn!(owner, %error, "cannot undo a failed attachment");
        }
        attached?;
        let flows = Self { maps: Maps::open(&directory)?, directory };
        Ok((flows, kept))
    }

    /// The programs that are pinned under this name. `None` if there are none, or if they have another layout.
    ///
    /// # Errors
    /// If the name is invalid, or a map cannot be opened.
    pub fn open(root: &PinRoot, owner: &str) -> Result<Option<Self>, Error> {
        let directory = root.of(owner)?;
        if pins::read_note(&directory, "layout") != FLOW_LAYOUT.to_string() {
            return Ok(None);
        }
        Ok(Some(Self { maps: Maps::open(&directory)?, directory }))
    }

    /// Changes the sizes of the table and of the ring of events; `None` keeps a size. Meanwhile the programs go on, no
    /// counter changes, and the flows of the table are copied. If the new table is too small for them, the least
    /// recently used ones are evicted, and counted as such.
    ///
    /// # Errors
    /// [`Error::Size`] beyond the bounds; [`Error::Followed`] if the ring of events is to change while a process reads
    /// it; or if the kernel refuses, which leaves the sizes as they were.
    pub fn resize(&self, flows: Option<u32>, events: Option<u32>) -> Result<(), Error> {
        let all = FlowSizes::default();
        let asked = FlowSizes::new(flows.unwrap_or(all.flows()), events.unwrap_or(all.events()))?;
        let lock = self.lock_pins()?;
        let _unfollowed = events.map(|_| events::lock(&self.directory)).transpose()?;
        let mut capacities = self.capacities()?;
        if flows.is_some() {
            capacities.flows = asked.capacities().flows;
        }
        if events.is_some() {
            capacities.event_bytes = asked.capacities().event_bytes;
        }
        attach::put_in_place(&self.directory, None, capacities)?;
        drop(lock);
        Ok(())
    }

    /// Replaces the programs by those of this build; the maps stay. `self_test` must succeed before anything is
    /// replaced.
    ///
    /// # Errors
    /// The error of the self-test; or if the kernel refuses. The previous programs then stay.
    pub fn upgrade(&self, self_test: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        self_test()?;
        let _lock = self.lock_pins()?;
        attach::put_in_place(&self.directory, None, self.capacities()?)
    }

    /// Waits until no other process changes the programs or the table, and prevents others from doing so until the
    /// result is dropped.
    ///
    /// # Errors
    /// If another process holds the lock for more than 30 seconds.
    pub fn lock_pins(&self) -> Result<PinLock, Error> {
        pin_lock::take(&self.directory)
    }

    fn capacities(&self) -> Result<sizes::MapCapacities, Error> {
        let of = |name| Maps::open_one(&self.directory, name).map(|map| map.max_entries());
        // Programs of an earlier version take no samples, so there is no such map.
        let sample_bytes = of("samples").unwrap_or(samples::NO_RING);
        Ok(sizes::MapCapacities { flows: of("flows")?, event_bytes: of("events")?, sample_bytes })
    }

    /// Opens the table of flows. It is opened each time, because another process may have replaced it by one of another
    /// size.
    fn table(&self) -> Result<MapHandle, Error> {
        Maps::open_one(&self.directory, "flows")
    }

    /// Detaches and unpins everything; succeeds if there is nothing.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub fn detach(&self) -> Result<(), Error> {
        remove(&self.directory)
    }

    /// Stores the name and the addresses of the workload with this id.
    ///
    /// # Errors
    /// If the kernel refuses, for example because the map is full.
    pub fn name(&self, id: u32, name: &FlowName, addresses: &[IpAddr]) -> Result<(), Error> {
        let action = "name a workload";
        update(&self.maps.names, &id.to_ne_bytes(), &name.to_bytes(), action)?;
        for ip in addresses {
            let key = FlowAddress::new(*ip).to_bytes();
            update(&self.maps.addresses, &key, &id.to_ne_bytes(), action)?;
        }
        Ok(())
    }

    /// Stores that a peer that is no workload has this address and port.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_peer(&self, at: SocketAddr, peer: u32) -> Result<(), Error> {
        let key = FlowAddress::of_port(at).to_bytes();
        update(&self.maps.addresses, &key, &peer.to_ne_bytes(), "name a peer of flows")
    }

    /// Removes addresses. The name stays, since flows and sums refer to it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn forget(&self, addresses: &[FlowAddress]) -> Result<(), Error> {
        for address in addresses {
            let action = "forget the addresses of a workload";
            delete(&self.maps.addresses, &address.to_bytes(), action)?;
        }
        Ok(())
    }

    /// The addresses that are assigned to a workload or another peer.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn addresses(&self) -> Result<Vec<FlowAddress>, Error> {
        let mut all = Vec::new();
        batch::for_each(&self.maps.addresses, "read the addresses of workloads", |key, _| {
            all.extend(FlowAddress::from_bytes(key));
        })?;
        Ok(all)
    }

    /// Accounts for the connections of this workload that are made in this network namespace from now on. Returns the
    /// key for [`Flows::withdraw`].
    ///
    /// # Errors
    /// If the kernel refuses, or the map is full.
    pub fn enrol(&self, netns: &Path, workload: FlowWorkload) -> Result<u64, Error> {
        let action = || format!("account for the connections of {}", netns.display());
        let file = File::open(netns).map_err(Error::io(action()))?;
        let mut cookie = netns::cookie(&file).map_err(Error::io(action()))?;
        if cookie == 0 {
            // The kernel has no cookies: programs tell namespaces apart by their inodes.
            cookie = file.metadata().map_err(Error::io(action()))?.ino();
        }
        reading::note(&self.directory, cookie, netns)?;
        update(&self.maps.workloads, &cookie.to_ne_bytes(), &workload.to_bytes(), &action())?;
        Ok(cookie)
    }

    /// Stops accounting for new connections of a network namespace. Those that are open are still accounted for.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn withdraw(&self, cookie: u64) -> Result<(), Error> {
        delete(&self.maps.workloads, &cookie.to_ne_bytes(), "end the accounting of a namespace")
    }

    /// Counts the frames of the interface that leads to an enrolled network namespace from now on, and no longer its
    /// new sockets. Returns the interface's index, for [`Flows::withdraw_port`].
    ///
    /// # Errors
    /// If the kernel refuses, or the map is full.
    pub fn enrol_port(
        &self,
        port: &WorkloadInterface,
        cookie: u64,
        workload: u32,
    ) -> Result<u32, Error> {
        let action = "count the frames of an interface";
        let [ports, by_frames] = self.maps_of_frames()?;
        let index = port.attach(&self.directory)?;
        let number = index.to_ne_bytes();
        update(&ports, &number, &workload.to_ne_bytes(), action)?;
        update(&by_frames, &cookie.to_ne_bytes(), &number, action)?;
        Ok(index)
    }

    /// Stops counting the frames of an interface.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn withdraw_port(&self, index: u32, cookie: u64) -> Result<(), Error> {
        let action = "end the counting of frames";
        let [ports, by_frames] = self.maps_of_frames()?;
        delete(&by_frames, &cookie.to_ne_bytes(), action)?;
        delete(&ports, &index.to_ne_bytes(), action)?;
        ports::detach(&self.directory, index)
    }

    /// Stops counting the frames of all interfaces but these, including those that an earlier process has left.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn keep_ports(&self, kept: &BTreeSet<u32>) -> Result<(), Error> {
        let action = "end the counting of frames";
        let is_kept = |index: &[u8]| {
            index.try_into().is_ok_and(|index| kept.contains(&u32::from_ne_bytes(index)))
        };
        let [ports, by_frames] = self.maps_of_frames()?;
        let mut over = Vec::new();
        batch::for_each(&by_frames, action, |cookie, index| {
            over.extend((!is_kept(index)).then(|| cookie.to_vec()));
        })?;
        over.iter().try_for_each(|key| delete(&by_frames, key, action))?;
        over.clear();
        batch::for_each(&ports, action, |index, _| {
            over.extend((!is_kept(index)).then(|| index.to_vec()));
        })?;
        over.iter().try_for_each(|key| delete(&ports, key, action))?;
        ports::detach_others(&self.directory, kept)
    }

    /// The maps of interfaces, which only the process that enrols uses. Pins of a version that counts no frames do not
    /// have them.
    fn maps_of_frames(&self) -> Result<[MapHandle; 2], Error> {
        let open = |name| Maps::open_one(&self.directory, name);
        Ok([open("ports")?, open("by_frames")?])
    }

    /// The keys of the namespaces that are enrolled.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn enrolled(&self) -> Result<Vec<u64>, Error> {
        let mut all = Vec::new();
        batch::for_each(&self.maps.workloads, "read the enrolled namespaces", |key, _| {
            all.extend(key.try_into().map(u64::from_ne_bytes));
        })?;
        Ok(all)
    }

    /// The names of all ids of workloads.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn names(&self) -> Result<Vec<(u32, FlowName)>, Error> {
        let mut all = Vec::new();
        batch::for_each(&self.maps.names, "read the names of workloads", |key, value| {
            let id = key.try_into().map(u32::from_ne_bytes).ok();
            all.extend(id.zip(FlowName::from_bytes(value)));
        })?;
        Ok(all)
    }

    /// Makes the kernel visit every open socket, which updates flows and sums. Returns the number of this pass, which
    /// the visited flows then have as well.
    ///
    /// # Errors
    /// If the pin cannot be read.
    pub fn refresh(&self) -> Result<u32, Error> {
        let pass = self.setting(PASS)?.wrapping_add(1);
        self.set(PASS, pass)?;
        reading::read(&self.directory)?;
        Ok(pass)
    }

    /// Calls `each` with the cookie of every flow of the table, and the flow.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn for_each(&self, mut each: impl FnMut(u64, Flow)) -> Result<(), Error> {
        batch::for_each(&self.table()?, "read the flows", |key, value| {
            let cookie = key.try_into().map(u64::from_ne_bytes).ok();
            if let Some((cookie, flow)) = cookie.zip(Flow::from_bytes(value)) {
                each(cookie, flow);
            }
        })
    }

    /// Removes flows from the table, and counts those that existed. Only one process may do this: the one that enrols
    /// workloads.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove(&self, cookies: &[u64]) -> Result<(), Error> {
        let mut removed = 0;
        let table = self.table()?;
        for cookie in cookies {
            match table.delete(&cookie.to_ne_bytes()) {
                Ok(()) => removed += 1,
                Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => {}
                Err(error) => return Err(Error::bpf("remove a flow")(error)),
            }
        }
        self.add_removed(removed)
    }

    fn add_removed(&self, removed: u64) -> Result<(), Error> {
        if removed == 0 {
            return Ok(());
        }
        let index = FLOW_TOTALS.len() as u32 - 1;
        let sum = self.totals()?.removed + removed;
        let action = "count removed flows";
        update(&self.maps.totals, &index.to_ne_bytes(), &sum.to_ne_bytes(), action)
    }

    /// The sums of every pair of workload and peer.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn pairs(&self) -> Result<Vec<(FlowPair, FlowSums)>, Error> {
        let mut all = Vec::new();
        batch::for_each(&self.maps.pairs, "read the sums of pairs", |key, value| {
            all.extend(FlowPair::from_bytes(key).zip(FlowSums::from_bytes(value)));
        })?;
        Ok(all)
    }

    /// The counters that belong to no pair.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn totals(&self) -> Result<FlowTotals, Error> {
        let action = "read the counters of flows";
        let mut all = [0; FLOW_TOTALS.len()];
        for (index, total) in (0u32..).zip(&mut all) {
            let value = self.maps.totals.lookup(&index.to_ne_bytes(), MapFlags::ANY);
            let value = value.map_err(Error::bpf(action))?.unwrap_or_default();
            *total = value.as_slice().try_into().map(u64::from_ne_bytes).unwrap_or_default();
        }
        let [
            added,
            unlisted,
            untracked,
            folded,
            events_written,
            events_dropped,
            aggregated,
            left_out,
            removed,
        ] = all;
        Ok(FlowTotals {
            added,
            unlisted,
            untracked,
            folded,
            events_written,
            events_dropped,
            aggregated,
            left_out,
            removed,
        })
    }

    /// How many flows the table can hold.
    ///
    /// # Errors
    /// If the map cannot be opened.
    pub fn capacity(&self) -> Result<u32, Error> {
        Ok(self.table()?.max_entries())
    }

    /// Begins to read events. Only one process at a time may do this.
    ///
    /// # Errors
    /// [`Error::Followed`] if another process reads them; or if the kernel refuses.
    pub fn follow(&self) -> Result<EventReader<'_>, Error> {
        EventReader::start(self)
    }

    /// Stops the writing of events if the process that followed them was killed.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn end_abandoned(&self) -> Result<(), Error> {
        if self.setting(FOLLOWED)? == 0 {
            return Ok(());
        }
        match events::lock(&self.directory) {
            Ok(_lock) => self.set_followed(false),
            Err(Error::Followed) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The level of accounting, its budget and its present cost.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn price(&self) -> Result<AccountingPrice, Error> {
        Ok(AccountingPrice {
            level: level_of(self.setting(LEVEL)?),
            budget_millionths: self.setting(BUDGET)?,
            cost_millionths: self.setting(COST)?,
        })
    }

    /// Sets the level of accounting for connections that begin from now on, and stores budget and cost for readers.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_price(&self, price: AccountingPrice) -> Result<(), Error> {
        self.set(BUDGET, price.budget_millionths)?;
        self.set(COST, price.cost_millionths)?;
        self.set(LEVEL, u32::from(price.level as u8))
    }

    /// The run time of each program by its name, as far as the kernel has measured it
    /// ([`RunTimeCounting`](crate::RunTimeCounting)).
    ///
    /// # Errors
    /// If the pins cannot be read.
    pub fn run_times(&self) -> Result<BTreeMap<String, RunTime>, Error> {
        run_time::by_name(&self.directory)
    }

    /// Switches the writing of events on or off.
    fn set_followed(&self, followed: bool) -> Result<(), Error> {
        self.set(FOLLOWED, followed.into())
    }

    fn setting(&self, index: u32) -> Result<u32, Error> {
        let action = "read the settings of flows";
        let value = self.maps.control.lookup(&index.to_ne_bytes(), MapFlags::ANY);
        let value = value.map_err(Error::bpf(action))?.unwrap_or_default();
        let value = value.as_slice().try_into().map(u32::from_ne_bytes);
        value.map_err(|_| Error::io(action)(io::ErrorKind::InvalidData.into()))
    }

    fn set(&self, index: u32, value: u32) -> Result<(), Error> {
        let action = "change the settings of flows";
        update(&self.maps.control, &index.to_ne_bytes(), &value.to_ne_bytes(), action)
    }
}

impl Maps {
    fn open_one(directory: &Path, name: &str) -> Result<MapHandle, Error> {
        MapHandle::from_pinned_path(pins::map_path(directory, name))
            .map_err(Error::bpf(format!("open the map {name}")))
    }

    fn open(directory: &Path) -> Result<Self, Error> {
        let open = |name| Self::open_one(directory, name);
        Ok(Self {
            pairs: open("pairs")?,
            workloads: open("workloads")?,
            addresses: open("addresses")?,
            names: open("names")?,
            totals: open("totals")?,
            control: open("control")?,
        })
    }
}

/// Lets the kernel verify the programs without attaching them.
///
/// # Errors
/// The reason why it rejects one.
pub fn probe() -> Result<(), Error> {
    object::verify(attach::open(true, 0)?).map(drop)
}

/// The level with this number. A number of another version that this one does not know means off.
fn level_of(number: u32) -> FlowLevel {
    u8::try_from(number).ok().and_then(FlowLevel::of).unwrap_or(FlowLevel::Off)
}

fn update(map: &MapHandle, key: &[u8], value: &[u8], action: &str) -> Result<(), Error> {
    map.update(key, value, MapFlags::ANY).map_err(Error::bpf(action))
}

fn delete(map: &MapHandle, key: &[u8], action: &str) -> Result<(), Error> {
    match map.delete(key) {
        Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
            Err(Error::bpf(action)(error))
        }
        _ => Ok(()),
    }
}

/// Detaches and unpins everything in a directory.
pub(crate) fn remove(directory: &Path) -> Result<(), Error> {
    filters::detach_of(directory, |_| true)?;
    pins::remove_all(directory)
}

/// Whether flow programs are pinned in this directory.
pub(crate) fn are_in(directory: &Path) -> bool {
    reading::is_pinned(directory)
}
