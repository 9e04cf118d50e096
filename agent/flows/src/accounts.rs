//! Enrols workloads in the accounting of flows, and publishes their counters.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use leno_bpf::flows::{
    AccountingPrice, EarlierMaps, FlowSizes, Flows, WorkloadInterface, monotonic,
};
use leno_bpf::{Error, PinRoot};
use leno_bpf_abi::flow::{
    FIRST_WORKLOAD, Flow, FlowAddress, FlowLevel, FlowName, FlowOwner, FlowState, FlowWorkload,
    PEER_CONTROL_PLANE, PEER_OUTSIDE,
};

use crate::budget::{self, CpuBudget, FrameUse, Governor, LevelChange, Measurement};
use crate::caps::{self, Caps};
use crate::connection::IpProtocol;
use crate::drops::Drops;
use crate::metrics::{self, CapRow, Gauges, WorkloadCounts};
use crate::pairs::PublishedFlows;
use crate::requests::{self, ProxyCgroup, Requests};
use crate::setting::FlowMetricsSource;
use crate::view;
use crate::wire;

/// How long an ended flow stays in the table, for readers of the list.
const LINGER: Duration = Duration::from_secs(10);

/// How long an open flow of frames may be idle. For TCP this is longer than the time in which Linux detects a dead
/// peer by keep-alive (7,200 s and 9 probes at intervals of 75 s). For other protocols, which have no end of a
/// connection, it is the usual time of firewalls.
const QUIET_TCP: Duration = Duration::from_secs(2 * 3600 + 15 * 60);
const QUIET_OTHER: Duration = Duration::from_secs(60);

/// The level, budget and cost of accounting if there is no budget: all connections are accounted for, whatever that
/// costs.
const NO_BOUND: AccountingPrice =
    AccountingPrice { level: FlowLevel::Full, budget_millionths: 0, cost_millionths: 0 };

/// Most addresses of unnamed peers that are collected in one reading.
const MAX_STRANGERS: usize = 256;
/// The ID that flows have for a peer without a name.
const OUTSIDE: u16 = PEER_OUTSIDE as u16;

/// An instance of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowMember {
    /// The namespace of its workload.
    pub namespace: String,
    /// Its workload. The counters of its instances are summed.
    pub workload: String,
    /// Its network namespace, as a file.
    pub netns: PathBuf,
    /// Its addresses, by which it is recognised as a peer of others.
    pub addresses: Vec<IpAddr>,
    /// The user that its proxy runs as.
    pub proxy_uid: u32,
    /// The source of its flows.
    pub source: FlowMetricsSource,
    /// The CPU budget for accounting for its workload. If the workload's instances have different budgets, the
    /// lowest applies.
    pub budget: Option<CpuBudget>,
    /// The control groups in or below which its proxy runs. The proxy's request counts are read there. Empty if it
    /// has no proxy.
    pub proxies: Vec<PathBuf>,
    /// The outer end of its interface, where frames are counted; `None` if it has none.
    pub port: Option<WorkloadInterface>,
}

/// The flows of a mesh or of a node. Dropping this changes nothing in the kernel; [`Accounts::end`] removes
/// everything.
#[derive(Debug)]
pub struct Accounts {
    flows: Flows,
    ids: BTreeMap<(String, String), u32>,
    members: BTreeMap<String, EnrolledMember>,
    /// Whether every existing workload that should be accounted for was enrolled.
    knows_all: bool,
    /// The addresses of the control plane.
    peers: Vec<SocketAddr>,
    /// Addresses of workloads that another machine accounts for.
    elsewhere: BTreeSet<IpAddr>,
    strangers: BTreeSet<IpAddr>,
    published: PublishedFlows,
    requests: Requests,
    published_requests: requests::PublishedRequests,
    /// Reads requests from samples of unencrypted traffic.
    reading: wire::WireSampling,
    published_wire: wire::PublishedWire,
    drops: Drops,
    gauges: Gauges,
    /// Open flows in the table whose socket was not found in the last pass.
    missed: BTreeSet<u64>,
    /// How long an ended flow stays in the table.
    linger: Duration,
    governor: Option<Governor>,
    caps: Caps,
    measurement: Option<Measurement>,
    /// How many times the level was lowered and raised.
    steps: [u64; 2],
}

/// A member, with its IDs in the kernel.
#[derive(Debug)]
struct EnrolledMember {
    member: FlowMember,
    /// The ID of its workload.
    id: u32,
    /// The key of its namespace, if it is accounted for.
    cookie: Option<u64>,
    /// The index of its interface, if its frames are counted.
    port: Option<u32>,
}

impl Accounts {
    /// Checks whether programs can be pinned on this machine. No test pins remain.
    ///
    /// # Errors
    /// Why they cannot be pinned.
    pub fn check_pins() -> Result<(), Error> {
        PinRoot::find().map(drop)
    }

    /// Attaches the programs to a cgroup. The counters of an earlier process with the same owner's name are kept,
    /// but the namespaces that it has enrolled are not.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn start(
        owner: &str,
        cgroup: &Path,
        sizes: FlowSizes,
    ) -> Result<(Self, EarlierMaps), Error> {
        let (mut accounts, earlier) = Self::resume(owner, cgroup, sizes)?;
        accounts.withdraw_unknown()?;
        Ok((accounts, earlier))
    }

    /// Like [`Accounts::start`], but namespaces that an earlier process has enrolled stay enrolled until they are
    /// enrolled again or [`Accounts::withdraw_unknown`] is called. This is for workloads that keep running while
    /// the process that enrols them restarts.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn resume(
        owner: &str,
        cgroup: &Path,
        sizes: FlowSizes,
    ) -> Result<(Self, EarlierMaps), Error> {
        let (flows, earlier) = Flows::attach(&PinRoot::find()?, owner, cgroup, sizes)?;
        let ids: BTreeMap<_, _> =
            view::names(&flows)?.into_iter().map(|(id, name)| (name, id)).collect();
        caps::clear(&flows, ids.values().copied())?;
        let requests = Requests::resume(&flows)?;
        let reading = wire::WireSampling::resume(&flows)?;
        let accounts = Self {
            flows,
            requests,
            published_requests: requests::PublishedRequests::default(),
            ids,
            members: BTreeMap::new(),
            knows_all: false,
            peers: Vec::new(),
            elsewhere: BTreeSet::new(),
            strangers: BTreeSet::new(),
            published: PublishedFlows::default(),
            reading,
            published_wire: wire::PublishedWire::default(),
            drops: Drops::default(),
            gauges: Gauges::default(),
            missed: BTreeSet::new(),
            linger: LINGER,
            governor: None,
            caps: Caps::default(),
            measurement: None,
            steps: [0, 0],
        };
        accounts.flows.set_price(NO_BOUND)?;
        Ok((accounts, earlier))
    }

    /// Withdraws the instances that an earlier process has enrolled and this one has not.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn withdraw_unknown(&mut self) -> Result<(), Error> {
        self.requests.know_all();
        self.knows_all = true;
        self.sample(&self.ids.values().copied().collect::<Vec<_>>())?;
        let members = || self.members.values();
        self.flows.keep_ports(&members().filter_map(|one| one.port).collect())?;
        let cookies: BTreeSet<u64> = members().filter_map(|one| one.cookie).collect();
        for cookie in self.flows.enrolled()? {
            if !cookies.contains(&cookie) {
                self.flows.withdraw(cookie)?;
            }
        }
        let ours =
            |one: &EnrolledMember| one.member.addresses.clone().into_iter().map(FlowAddress::new);
        let mut known: HashSet<_> = members().flat_map(ours).map(|at| at.to_bytes()).collect();
        known.extend(self.elsewhere.iter().map(|ip| FlowAddress::new(*ip).to_bytes()));
        known.extend(self.peers.iter().map(|at| FlowAddress::of_port(*at).to_bytes()));
        let mut over = self.flows.addresses()?;
        over.retain(|address| !known.contains(&address.to_bytes()));
        self.flows.forget(&over)
    }

    /// Sets how long an ended flow stays in the table; the default is 10 s.
    pub fn set_linger(&mut self, linger: Duration) {
        self.linger = linger;
    }

    /// Resizes the table and the ring of events, and keeps the content of the table; `None` keeps a size.
    ///
    /// # Errors
    /// If the ring must be resized but has a reader, or if the kernel refuses. The sizes are then unchanged.
    pub fn resize(&self, flows: Option<u32>, events: Option<u32>) -> Result<(), Error> {
        self.flows.resize(flows, events)
    }

    /// Sets the budget of the programs; `None` removes it. [`Accounts::keep_budget`] enforces it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_budget(&mut self, budget: Option<CpuBudget>) -> Result<(), Error> {
        self.measurement = None;
        match (&mut self.governor, budget) {
            (Some(governor), Some(budget)) => governor.set_budget(budget),
            _ => self.governor = budget.map(Governor::new),
        }
        let price = |governor: &Governor| AccountingPrice {
            level: governor.level(),
            budget_millionths: governor.budget().millionths(),
            cost_millionths: 0,
        };
        self.flows.set_price(self.governor.as_ref().map_or(NO_BOUND, price))
    }

    /// Sets the level for connections that begin from now on, without a budget.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_level(&self, level: FlowLevel) -> Result<(), Error> {
        self.flows.set_price(AccountingPrice { level, ..NO_BOUND })
    }

    /// One round of enforcing all budgets: compares them with the cost of the programs since the last round. The
    /// kernel measures its programs in every second round, and in every round while a budget is exceeded or the
    /// level is lowered.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn keep_budget(&mut self) -> Result<Vec<LevelChange>, Error> {
        if self.governor.is_none() && self.caps.is_empty() {
            return Ok(Vec::new());
        }
        let Some(measurement) = self.measurement.take() else {
            self.measurement = Some(self.measure()?);
            return Ok(Vec::new());
        };
        let measured = measurement.end(&self.flows, self.reading.took())?;
        let mut steps: Vec<LevelChange> =
            self.keep_that_of_all(measured.total)?.into_iter().collect();
        let frames = |id| frames_of(self.members.values().filter(|one| one.id == id));
        for (id, step) in self.caps.judge(&self.flows, &measured, frames)? {
            steps.push(LevelChange { of: self.name_of(id), ..step });
        }
        if self.governor.as_ref().is_some_and(Governor::is_watching) || self.caps.are_watching() {
            self.measurement = Some(self.measure()?);
        }
        Ok(steps)
    }

    fn measure(&self) -> Result<Measurement, Error> {
        let all = (!self.caps.is_empty()).then(|| self.ids.values().copied());
        Measurement::start(&self.flows, all.into_iter().flatten(), self.reading.took())
    }

    fn keep_that_of_all(&mut self, cost: f64) -> Result<Option<LevelChange>, Error> {
        let Some(governor) = &mut self.governor else { return Ok(None) };
        governor.set_frames(frames_of(self.members.values()));
        let step = governor.judge(cost);
        self.flows.set_price(AccountingPrice {
            level: governor.level(),
            budget_millionths: governor.budget().millionths(),
            cost_millionths: budget::millionths(cost),
        })?;
        if let Some(step) = &step {
            self.steps[usize::from(!step.down)] += 1;
        }
        Ok(step)
    }

    /// Enables sampling of payload for those of these workloads that have an instance that needs it. The reader of
    /// samples runs while any workload needs it.
    fn sample(&mut self, ids: &[u32]) -> Result<(), Error> {
        let is_any = frames_of(self.members.values()).sampled;
        if is_any {
            self.reading.set(&self.flows, true)?;
        }
        for id in ids {
            let own = self.members.values().filter(|one| one.id == *id);
            self.flows.set_sampled(*id, frames_of(own).sampled)?;
        }
        if is_any { Ok(()) } else { self.reading.set(&self.flows, false) }
    }

    /// Sets the budget of a workload, and whether its payload is sampled, according to the settings of its
    /// instances.
    fn bound(&mut self, id: u32) -> Result<(), Error> {
        let members = self.members.values().filter(|one| one.id == id);
        let budgets = members.filter_map(|one| one.member.budget);
        let least = budgets.min_by(|one, other| one.share().total_cmp(&other.share()));
        self.caps.set(&self.flows, id, least)?;
        self.sample(&[id])
    }

    fn name_of(&self, id: u32) -> Option<(String, String)> {
        self.ids.iter().find(|(_, of)| **of == id).map(|(name, _)| name.clone())
    }

    fn cap_rows(&self) -> Vec<CapRow> {
        let row = |(id, price, steps)| {
            let (namespace, workload) = self.name_of(id)?;
            Some(CapRow { namespace, workload, price, steps })
        };
        self.caps.prices().filter_map(row).collect()
    }

    /// Sets the addresses of the control plane, by which it is recognised as the peer of proxies.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn control_plane(&mut self, at: &[SocketAddr]) -> Result<(), Error> {
        self.peers.extend(at);
        at.iter().try_for_each(|at| self.flows.set_peer(*at, PEER_CONTROL_PLANE))
    }

    /// Sets the name of the workload with this address, which another machine accounts for. Connections to it that
    /// begin from now on have this name as their peer. `None` removes the name. Addresses of enrolled instances
    /// are not changed.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn name_peer(&mut self, ip: IpAddr, name: Option<(String, String)>) -> Result<(), Error> {
        if self.members.values().any(|one| one.member.addresses.contains(&ip)) {
            self.elsewhere.remove(&ip);
            return Ok(());
        }
        let Some((namespace, workload)) = name else {
            self.elsewhere.remove(&ip);
            return self.flows.forget(&[FlowAddress::new(ip)]);
        };
        let id = self.id_of(&namespace, &workload);
        self.flows.name(id, &FlowName::new(&namespace, &workload), &[ip])?;
        self.elsewhere.insert(ip);
        Ok(())
    }

    /// Private addresses of peers without a name, from the last [`Accounts::collect`]; at most 256.
    #[must_use]
    pub fn strangers(&self) -> Vec<IpAddr> {
        self.strangers.iter().copied().collect()
    }

    /// Enrols an instance under its name, and replaces an earlier instance with that name.
    ///
    /// # Errors
    /// If the kernel refuses. The instance may then be partly enrolled: if its frames cannot be counted, its
    /// sockets are.
    pub fn enrol(&mut self, name: &str, member: FlowMember) -> Result<(), Error> {
        if let Some(enrolled) = self.members.get_mut(name) {
            let is_same = enrolled.member.proxies == member.proxies;
            enrolled.member.proxies.clone_from(&member.proxies);
            // The control groups of proxies may change without a gap in the accounts.
            if enrolled.member == member {
                let id = enrolled.id;
                return if is_same { Ok(()) } else { self.bound(id) };
            }
        }
        let before = self.take_out(name)?;
        let id = self.id_of(&member.namespace, &member.workload);
        self.flows.name(
            id,
            &FlowName::new(&member.namespace, &member.workload),
            &member.addresses,
        )?;
        let proxy_uid = member.proxy_uid;
        let cookie = match member.source {
            FlowMetricsSource::Off => None,
            _ => Some(self.flows.enrol(&member.netns, FlowWorkload { id, proxy_uid })?),
        };
        let port = match (member.source, cookie) {
            (source, Some(cookie)) if source.has_frames() => match &member.port {
                Some(port) => self.flows.enrol_port(port, cookie, id).map(Some),
                None => Err(no_port()),
            },
            _ => Ok(None),
        };
        let (port, refused) = port.map_or_else(|error| (None, Err(error)), |port| (port, Ok(())));
        self.members.insert(name.to_owned(), EnrolledMember { member, id, cookie, port });
        self.bound(id)?;
        before.map_or(Ok(()), |before| self.bound(before))?;
        refused
    }

    /// Withdraws an instance. Succeeds if it is not enrolled. Its open connections are still accounted for.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn withdraw(&mut self, name: &str) -> Result<(), Error> {
        let id = self.take_out(name)?;
        id.map_or(Ok(()), |id| self.bound(id))
    }

    /// Withdraws an instance, but keeps the budget of its workload. Returns the workload's ID.
    fn take_out(&mut self, name: &str) -> Result<Option<u32>, Error> {
        let Some(enrolled) = self.members.get(name) else { return Ok(None) };
        if let Some(cookie) = enrolled.cookie {
            if let Some(port) = enrolled.port {
                self.flows.withdraw_port(port, cookie)?;
            }
            self.flows.withdraw(cookie)?;
        }
        let (id, mut addresses) = (enrolled.id, enrolled.member.addresses.clone());
        self.members.remove(name);
        // A later instance may already have the same address.
        let is_taken =
            |ip: &IpAddr| self.members.values().any(|other| other.member.addresses.contains(ip));
        addresses.retain(|ip| !is_taken(ip));
        self.flows.forget(&addresses.into_iter().map(FlowAddress::new).collect::<Vec<_>>())?;
        Ok(Some(id))
    }

    /// Changes the source of an instance's flows, and its budget.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_source(
        &mut self,
        name: &str,
        source: FlowMetricsSource,
        budget: Option<CpuBudget>,
    ) -> Result<(), Error> {
        match self.members.get(name) {
            Some(enrolled) => {
                let member = FlowMember { source, budget, ..enrolled.member.clone() };
                self.enrol(name, member)
            }
            None => Ok(()),
        }
    }

    /// Reads the counters, and removes flows from the table that ended a while ago.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn collect(&mut self) -> Result<(), Error> {
        // The lock prevents other processes from resizing the table while it is read.
        let lock = self.flows.lock_pins()?;
        let read = self.read();
        drop(lock);
        read.and(self.reading.revive(&self.flows))
    }

    /// Collects while the pins are locked.
    fn read(&mut self) -> Result<(), Error> {
        self.flows.end_abandoned()?;
        // The totals are read before the table. Otherwise a flow that is added between the two reads would count
        // as evicted.
        let totals = self.flows.totals()?;
        let began = nanos(monotonic());
        let pass = self.flows.refresh()?;
        let names = view::names(&self.flows)?;
        let mut entries = BTreeMap::new();
        let linger = self.linger;
        let mut strangers = BTreeSet::new();
        let (mut present, mut over, mut missed) = (0, Vec::new(), BTreeSet::new());
        let missed_before = std::mem::take(&mut self.missed);
        self.flows.for_each(|cookie, flow| {
            present += 1;
            let Some(state) = flow.state() else { return };
            let ip = flow.remote().ip().to_canonical();
            if flow.peer == OUTSIDE && strangers.len() < MAX_STRANGERS && is_private(ip) {
                strangers.insert(ip);
            }
            *entries.entry(state).or_default() += 1;
            if state == FlowState::Closed {
                if flow.last_ns.saturating_add(nanos(linger)) < began {
                    over.push(cookie);
                }
            } else if flow.owner() == Some(FlowOwner::Wire) {
                if flow.last_ns.saturating_add(nanos(quiet(&flow))) < began {
                    over.push(cookie);
                }
            } else if is_before(flow.pass, pass) && flow.opened_ns < began {
                // The iterator sometimes skips a socket. A socket that two passes have missed is gone: it was
                // destroyed with its network namespace, which no kernel program notices.
                if missed_before.contains(&cookie) {
                    over.push(cookie);
                } else {
                    missed.insert(cookie);
                }
            }
        })?;
        self.missed = missed;
        self.strangers = strangers;
        let evicted = totals.added.saturating_sub(totals.removed).saturating_sub(present);
        self.flows.remove(&over)?;
        let folded = self.published.take_in(&self.flows.pairs()?, &names);
        self.drops.take_in(&self.flows.drops()?, &names);
        self.requests.take_in(&self.flows, &self.places_of_proxies())?;
        self.published_requests.take_in(self.requests.rows());
        if self.knows_all {
            let members = || self.members.values();
            let gone = self.reading.rows().forget(|id| members().any(|one| one.id == id));
            self.published_wire.forget(&gone, &names);
        }
        self.reading.keep(&self.flows)?;
        self.published_wire.take_in(&self.reading.rows(), &names);
        let samples = self.flows.sample_counts()?;
        self.gauges = Gauges {
            entries,
            samples: [
                samples.written,
                samples.lost,
                self.reading.evicted(),
                self.reading.given_up(),
            ],
            rows_left_out: self.requests.left_out(),
            capacity: self.flows.capacity()?.into(),
            overflow: self.gauges.overflow.max(evicted + totals.unlisted),
            untracked: totals.untracked,
            folded: folded as u64 + totals.folded,
            events_dropped: totals.events_dropped,
            price: Some(self.flows.price()?),
            caps: self.cap_rows(),
            steps: self.steps,
            reduced: [totals.aggregated, totals.left_out],
        };
        Ok(())
    }

    /// The metrics from the last collection, in Prometheus' text format.
    #[must_use]
    pub fn metrics(&self) -> String {
        let counted = WorkloadCounts {
            pairs: &self.published,
            requests: &self.published_requests,
            wire: &self.published_wire,
            drops: &self.drops,
        };
        metrics::text(&counted, &self.gauges)
    }

    /// Detaches and removes all programs, maps and pins.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub fn end(self) -> Result<(), Error> {
        self.flows.detach()
    }

    /// The control groups of the proxies of all enrolled instances.
    fn places_of_proxies(&self) -> BTreeSet<ProxyCgroup> {
        let members = self.members.values().filter(|one| one.cookie.is_some());
        let places = |one: &EnrolledMember| {
            let uid = one.member.proxy_uid;
            let place = move |cgroup: PathBuf| ProxyCgroup { cgroup, uid };
            one.member.proxies.clone().into_iter().map(place)
        };
        members.flat_map(places).collect()
    }

    /// The ID of a workload: its present one, or else the next free one. If there are too many workloads, the
    /// kernel refuses to name it.
    fn id_of(&mut self, namespace: &str, workload: &str) -> u32 {
        let next = self.ids.values().max().map_or(FIRST_WORKLOAD, |last| last + 1);
        let key = (namespace.to_owned(), workload.to_owned());
        *self.ids.entry(key).or_insert(next)
    }
}

/// For what these instances need frames: to count them, or to sample their payload as well.
fn frames_of<'a>(members: impl Iterator<Item = &'a EnrolledMember>) -> FrameUse {
    members.fold(FrameUse::default(), |all, one| {
        // If the workload has a proxy, the proxy counts its requests, and no payload is sampled.
        let is_read =
            one.member.source == FlowMetricsSource::Requests && one.member.proxies.is_empty();
        FrameUse {
            counted: all.counted || one.port.is_some(),
            sampled: all.sampled || (one.port.is_some() && is_read),
        }
    })
}

/// Whether an address is private (RFC 1918, RFC 6598, RFC 4193), as those of pods are.
fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let [first, second, ..] = ip.octets();
            ip.is_private() || (first == 100 && second & 0xc0 == 64)
        }
        IpAddr::V6(ip) => ip.is_unique_local(),
    }
}

/// The error for a workload whose frames should be counted but that has no outer interface.
fn no_port() -> Error {
    let why = "no interface of this machine is the other end of its interface, as with a veth pair";
    Error::Io { action: "count its frames".to_owned(), source: io::Error::other(why) }
}

/// How long an open flow of frames may be idle.
fn quiet(flow: &Flow) -> Duration {
    let protocol = IpProtocol::new(FlowOwner::Wire, flow.protocol);
    if protocol == IpProtocol::TCP { QUIET_TCP } else { QUIET_OTHER }
}

/// Whether one pass of the iterator came before another one. Each reader numbers its own passes.
fn is_before(pass: u32, other: u32) -> bool {
    pass.wrapping_sub(other) > u32::MAX / 2
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
