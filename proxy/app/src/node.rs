//! A node proxy: several workloads in one process, each served by a thread of its own.
//!
//! ```text
//!  standard input: orders ─► main thread ─► join ─► control tasks of a workload ─► its worker, a thread
//!                               ▲                     identity, discovery, admin     listeners, pools,
//!                               └─ serving, released ◄────┘                          counters, budget
//! ```
//! The supervisor at the other end of standard input orders workloads to join and to leave. The time in between is a
//! membership, which has a number. A workload in this process is also called a member.
//!
//! A sidecar has keys, certificates, discovery, policies, counters and bounds for its process or thread. Here each
//! workload has its own, made by the same code. The workers of two workloads share only the process' memory,
//! descriptors and connection to standard output. Their control tasks take turns on the main thread. Sockets in the
//! network namespace of a workload come from its broker (`leno-broker`); sockets to the control plane and to
//! resolvers are in the process' own namespace.
//!
//! If a workload moves to another process, its worker stays here until its open streams have ended, which may take
//! hours. If the workload returns, it gets a new worker. A workload whose worker stalls ([`crate::pulse`]) gets a new
//! worker, too, while the stalled one keeps its connections.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use leno_handover::{
    AsyncChannel, BrokerOffer, Channel, CpuUse, MAX_MEMBERS, Member, MemberReport, MemberState,
    ProxyOrder, SocketRole,
};
use leno_transport::HandedNamespace;
use leno_transport::budget::{Budget, Pool};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{LocalSet, spawn_local};

use crate::admin::probe::Probes;
use crate::config::Flags;
use crate::confine::confine;
use crate::control;
use crate::guest::{EndOfGuests, GuestBook};
use crate::pulse::{Pulse, Stalled, beat};
use crate::reclaim;
use crate::run::{EndOrders, Signals, control_runtime, serve};
use crate::setup::{AccessLog, Handed, access_log, budget};
use crate::worker::Departure;

/// Each workload may use at most one eighth of the process' memory budget and descriptors. If more than eight workloads
/// are flooded at the same time, the descriptors may not be enough. But with shares of one 64th, for the largest number
/// of members, a workload would have only some hundred connections on machines with few descriptors.
const SHARE: u16 = 8;
/// The memory budget of the process is divided by this number. The result, a half, is split into equal reserved shares,
/// one for each possible workload. The rest is a common pool.
const OWN: usize = 2;
/// How many reports about memberships may wait to be sent to the supervisor.
const MAX_EVENTS: usize = 256;

/// How many memberships may finish open streams in this process while other processes serve their workloads. If there
/// are more, the oldest membership of the workload that has most of them is cut: it ends at once, and its open
/// streams break.
const MAX_LEAVING: usize = MAX_MEMBERS as usize;
/// How many memberships were cut because of [`MAX_LEAVING`].
static CUT: AtomicU64 = AtomicU64::new(0);
/// How many workloads may have stalled workers at the same time. If there is one more, the process ends and is started
/// again, because the cause persists and each stalled worker may keep a CPU busy. A single workload cannot end the
/// process that it shares with others.
const MAX_STALLED: usize = 4;
/// How many workers of all workloads together may have stalled.
const MAX_STALLED_WORKERS: usize = 16;
/// For how many workloads stalls are counted.
const MAX_COUNTED: usize = 4096;
/// The interval between reports of a workload's CPU use.
const CPU_WINDOW: Duration = Duration::from_secs(2);
/// A worker is idle if it uses less than this part (a hundredth) of a CPU.
const CPU_LEAST: u32 = 100;

/// A workload that the process serves, with the state that orders of the supervisor change.
struct Served {
    /// The namespace and the name of the workload.
    workload: String,
    /// Orders the workload to drain. A second order ends it.
    end: watch::Sender<Departure>,
    /// Whether the membership accepts no new connections any more: it was ordered to leave, or its worker has
    /// stalled.
    leaving: bool,
    /// Whether its open streams were cut because of [`MAX_LEAVING`].
    cut: bool,
}

/// The memberships by their numbers; later ones have higher numbers.
type Members = BTreeMap<u64, Served>;

/// The state that all workloads of the process share.
#[derive(Debug)]
struct Common {
    flags: Flags,
    /// The memory budget of the process in bytes, and the pool that is a part of it.
    memory: (usize, Pool),
    log: Option<AccessLog>,
    /// How often workers have stalled, for each workload.
    stalls: RefCell<BTreeMap<String, u64>>,
    /// Workers that have stalled and have not completed a turn of their event loop since, with the names of their
    /// workloads.
    stalled: RefCell<Vec<(String, Stalled)>>,
    /// Sends reports about memberships to the main thread.
    events: mpsc::Sender<MemberReport>,
}

/// Runs until the supervisor's end of standard input is closed. A signal makes all workloads drain, and ends the
/// process once they have; a second signal ends it at once.
#[expect(clippy::arithmetic_side_effects, reason = "a constant divides, and a part is subtracted")]
pub(crate) fn run(flags: &Flags) -> anyhow::Result<()> {
    let orders = io::stdin().as_fd().try_clone_to_owned().context("opening standard input")?;
    let token = flags.token.as_deref().context("--token is missing")?;
    let roots = flags.roots.as_deref().context("--roots is missing")?;
    // The allocator must be configured before any thread is started. The tokens of workloads are written into their
    // folder later, so confinement must leave the whole folder readable; it takes the path of any file in it.
    reclaim::bound_arenas();
    let runtime = control_runtime()?;
    confine(&[roots, &token.join("token")])?;
    if !flags.one_pass {
        leno_transport::serve_over_the_network();
    }
    let (events, mut happened) = mpsc::channel(MAX_EVENTS);
    let bytes = budget(flags).bytes();
    let memory = (bytes, Pool::new(bytes - bytes / OWN));
    let common = Rc::new(Common {
        log: access_log(flags)?,
        flags: flags.clone(),
        memory,
        stalls: RefCell::default(),
        stalled: RefCell::default(),
        events,
    });
    LocalSet::new().block_on(&runtime, async {
        let orders = AsyncChannel::new(orders.into()).context(
            "standard input is not the socket of a supervisor: leno up and leno-agent supervise \
             start node proxies",
        )?;
        let orders = Rc::new(orders);
        // These tasks end with the runtime.
        spawn_local(beat(Rc::clone(&orders), || true));
        spawn_local(reclaim::trim_when_quiet());
        let mut signals = Signals::new()?;
        let mut members = Members::new();
        loop {
            tokio::select! {
                order = orders.receive::<ProxyOrder>() => match order {
                    Ok(Some((order, descriptors))) => {
                        obey(order, descriptors, &mut members, &common);
                    }
                    // The supervisor has ended.
                    Ok(None) => return Ok(()),
                    // A supervisor of a later version may send other orders.
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                        tracing::warn!(%error, "an order of the supervisor is unknown");
                    }
                    Err(error) => return Err(error).context("reading orders"),
                },
                Some(event) = happened.recv() => {
                    tokio::select! {
                        told = tell(event, &mut members, (&orders, &common)) => told?,
                        () = signals.first() => break,
                    }
                }
                () = signals.first() => break,
            }
        }
        // The listeners stay open in the brokers, which give them to the next process.
        members.values_mut().for_each(Served::end);
        while !members.is_empty() {
            tokio::select! {
                Some(event) = happened.recv() => {
                    tokio::select! {
                        told = tell(event, &mut members, (&orders, &common)) => told?,
                        () = signals.first() => return Ok(()),
                    }
                }
                () = signals.first() => return Ok(()),
            }
        }
        Ok(())
    })
}

impl Common {
    /// The memory budget of one workload: at most an eighth of the process' budget. A part of it is reserved for the
    /// workload, and the rest is taken from the common pool.
    #[expect(clippy::arithmetic_side_effects, reason = "constants divide")]
    fn budget(&self) -> Budget {
        let (bytes, pool) = self.memory;
        let own = bytes / OWN / usize::from(MAX_MEMBERS);
        Budget::with_pool(bytes / usize::from(SHARE), own, pool)
    }

    /// How often workers of this workload have stalled.
    fn stalls(&self, name: &str) -> u64 {
        self.stalls.borrow().get(name).copied().unwrap_or_default()
    }

    /// The number of workers that are stalled now, and the number of their workloads.
    fn stalled(&self) -> (usize, usize) {
        let mut stalled = self.stalled.borrow_mut();
        stalled.retain(|(_, worker)| worker.still_stalls());
        let workloads: BTreeSet<&str> = stalled.iter().map(|(name, _)| name.as_str()).collect();
        (stalled.len(), workloads.len())
    }

    fn count_stall(&self, name: &str) {
        let mut stalls = self.stalls.borrow_mut();
        if stalls.len() < MAX_COUNTED || stalls.contains_key(name) {
            let count = stalls.entry(name.to_owned()).or_default();
            *count = count.saturating_add(1);
        }
    }
}

/// How many memberships of this process were cut because too many were finishing streams.
pub(crate) fn cut() -> u64 {
    CUT.load(Ordering::Relaxed)
}

/// Sends the reports of one membership to the main thread, which passes them on to the supervisor.
#[derive(Clone, Debug)]
pub(crate) struct Reports {
    number: u64,
    name: String,
    watches: bool,
    common: Rc<Common>,
}

impl Reports {
    /// Reports a new state of the membership, without waiting for room in the queue.
    pub(crate) fn send(&self, state: MemberState) {
        let (number, events) = (self.number, self.common.events.clone());
        spawn_local(async move {
            // The receiver only ends when the process ends.
            let _ending = events.send(MemberReport { number, state }).await;
        });
    }

    /// Reports that open streams of the workload were cut. This waits until the report is in the queue. A task that
    /// sent it, as in [`Self::send`], would be dropped, because all tasks of the workload end after this.
    pub(crate) async fn has_cut(&self) {
        let report = MemberReport { number: self.number, state: MemberState::Cut };
        // The receiver ends with the process.
        let _ending = self.common.events.send(report).await;
    }

    /// Reports that the worker has stalled, and counts it.
    pub(crate) fn has_stalled(&self, worker: &Arc<Pulse>) {
        let stalled = (self.name.clone(), worker.stalled());
        self.common.stalled.borrow_mut().push(stalled);
        self.common.count_stall(&self.name);
        self.send(MemberState::Stalled);
    }

    /// Whether the supervisor understands reports of CPU use and stalls.
    pub(crate) fn watches(&self) -> bool {
        self.watches
    }

    /// Reports the CPU use of a worker in each interval in which it is not idle, and in the first one in which it is.
    pub(crate) async fn cpu_use(&self, worker: &Pulse) -> Infallible {
        let (mut before, mut was_busy) = ((Instant::now(), worker.cpu()), false);
        loop {
            tokio::time::sleep(CPU_WINDOW).await;
            let now = (Instant::now(), worker.cpu());
            let ms = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
            let of_ms = ms(now.0.duration_since(before.0));
            let cpu_ms = ms(now.1.saturating_sub(before.1));
            let is_busy = cpu_ms.saturating_mul(CPU_LEAST) >= of_ms;
            if is_busy || was_busy {
                let state = MemberState::Used(CpuUse { cpu_ms, of_ms });
                // If the queue is full, the time since the last report is part of the next one.
                let report = MemberReport { number: self.number, state };
                if self.common.events.try_send(report).is_err() {
                    continue;
                }
            }
            (before, was_busy) = (now, is_busy);
        }
    }
}

impl Served {
    /// Orders the workload to finish its open streams, unless it is doing so already.
    fn leave(&mut self, departure: Departure) {
        if !std::mem::replace(&mut self.leaving, true) {
            self.end.send_replace(departure);
        }
    }

    /// Called when the process is ending. Memberships that were already finishing streams are cut.
    fn end(&mut self) {
        match self.leaving {
            false => self.leave(Departure::Replaced),
            true => drop(self.end.send_replace(Departure::Replaced)),
        }
    }
}

fn obey(order: ProxyOrder, descriptors: Vec<OwnedFd>, members: &mut Members, common: &Rc<Common>) {
    match order {
        ProxyOrder::Join { number, succeeds, member, reports } => {
            let name = (member.namespace.clone(), member.name.clone());
            let joined = join((number, succeeds, reports), member, descriptors, members, common);
            if let Err(error) = joined {
                let error = format!("{error:#}");
                tracing::error!(?name, error, "a workload is not served; the supervisor retries");
                // The supervisor gets the same report as for any other end. It is sent by a task of its own, because
                // this task empties the queue and would wait for itself.
                let (events, state) = (common.events.clone(), MemberState::Released);
                spawn_local(async move {
                    let _ending = events.send(MemberReport { number, state }).await;
                });
            }
        }
        ProxyOrder::Leave { number, succeeded } => {
            if let Some(member) = members.get_mut(&number) {
                member.leave(if succeeded { Departure::Succeeded } else { Departure::Last });
            }
            if let Some(first) = first_of_too_many(members) {
                let workload = first.workload.as_str();
                tracing::warn!(
                    workload,
                    MAX_LEAVING,
                    "streams are cut: too many streams of replaced workloads are still open, and \
                     this workload has most of them"
                );
                first.cut = true;
                first.end.send_replace(Departure::Succeeded);
                CUT.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// If too many memberships are finishing streams, returns the oldest membership of the workload that has most of them.
/// So a workload that leaves repeatedly cuts its own streams, and not those of others.
fn first_of_too_many(members: &mut Members) -> Option<&mut Served> {
    // For each workload, the number of its memberships and the oldest of them.
    let mut finishing: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    let mut all = 0_usize;
    for (number, member) in members.iter().filter(|(_, member)| member.leaving && !member.cut) {
        let (count, _) = finishing.entry(&member.workload).or_insert((0, *number));
        *count = count.saturating_add(1);
        all = all.saturating_add(1);
    }
    if all <= MAX_LEAVING {
        return None;
    }
    let most = finishing.into_values().max_by_key(|(count, first)| (*count, Reverse(*first)));
    let (_, first) = most?;
    members.get_mut(&first)
}

/// Starts the tasks of a workload. `descriptors` must be the channel to its broker. Fails if the process serves too
/// many workloads already.
fn join(
    (number, succeeds, watches): (u64, bool, bool),
    member: Member,
    descriptors: Vec<OwnedFd>,
    members: &mut Members,
    common: &Rc<Common>,
) -> anyhow::Result<()> {
    let Ok([channel]) = <[OwnedFd; 1]>::try_from(descriptors) else {
        bail!(
            "its channel has not arrived, because the process has no file descriptor left: raise \
             its limit of open files"
        );
    };
    let served = members.values().filter(|member| !member.leaving).count();
    // A workload that comes from another process may be one of many that move between two processes. As many others
    // leave this process, but each of them stays here until the other process serves it. So the limit is doubled for
    // workloads that move. If none moves, there are never more than the normal limit.
    let most = usize::from(MAX_MEMBERS).saturating_mul(if succeeds { 2 } else { 1 });
    if served >= most {
        bail!("this process serves at most {MAX_MEMBERS} workloads");
    }
    let (end, ends) = watch::channel(Departure::Replaced);
    let (common, name) = (Rc::clone(common), format!("{}/{}", member.namespace, member.name));
    let joined = Joined { number, succeeds, watches, member, broker: channel.into(), end: ends };
    let served = Served { workload: name.clone(), end, leaving: false, cut: false };
    spawn_local(async move {
        // All tasks of the workload end here, and everything that they hold is dropped.
        let ended = LocalSet::new().run_until(Box::pin(live(joined, &common))).await;
        if let Err(error) = ended {
            tracing::error!(name, error = format!("{error:#}"), "ended");
        }
        reclaim::heap_was_freed();
        let state = MemberState::Released;
        // The receiver only ends when the process ends.
        let _ending = common.events.send(MemberReport { number, state }).await;
    });
    members.insert(number, served);
    Ok(())
}

/// Notes a report about a membership, and sends it to the supervisor. If the supervisor is slow, this waits, because
/// a lost report would never be repeated. Fails, so that the process ends, if too many workers stall.
async fn tell(
    event: MemberReport,
    members: &mut Members,
    (orders, common): (&AsyncChannel, &Common),
) -> anyhow::Result<()> {
    match event.state {
        MemberState::Serving
        | MemberState::Closed
        | MemberState::Cut
        | MemberState::Used(_)
        | MemberState::Alive => {}
        MemberState::Released => drop(members.remove(&event.number)),
        MemberState::Stalled => {
            if let Some(member) = members.get_mut(&event.number) {
                member.leaving = true;
            }
            let (workers, workloads) = common.stalled();
            if workloads > MAX_STALLED || workers > MAX_STALLED_WORKERS {
                bail!("{workers} threads of {workloads} workloads do not respond");
            }
        }
    }
    match orders.send_within(Duration::MAX, &event, &[]).await {
        // The loop that reads orders notices that the supervisor has ended.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        sent => sent.context("reporting to the supervisor"),
    }
}

/// A membership, with what the order to join has sent for it.
struct Joined {
    number: u64,
    /// Whether another process serves the workload until this one does.
    succeeds: bool,
    /// Whether the supervisor understands reports of CPU use and stalls.
    watches: bool,
    member: Member,
    broker: Channel,
    end: watch::Receiver<Departure>,
}

/// Serves a workload in this process like a sidecar does, but with sockets that a broker has handed over.
async fn live(joined: Joined, common: &Rc<Common>) -> anyhow::Result<()> {
    let Joined { number, succeeds, watches, member, broker, end } = joined;
    let flags = flags(&member, &common.flags)?;
    let Some((handed, admin, broker_ended)) = handed(broker).await? else { return Ok(()) };
    let mut setup = control::setup(&flags, member.pod_uid.clone())?;
    setup.access_log.clone_from(&common.log);
    setup.admin = None;
    setup.kubelet.clone_from(&member.kubelet.addresses);
    setup.sharing = SHARE;
    setup.budget = common.budget();
    setup.connection_rate = NonZeroU32::new(flags.connection_rate);
    drop(flags);
    setup.handed.replace(Some(handed));
    let guests = Arc::<GuestBook>::default();
    let _end_of_guests = EndOfGuests(Arc::clone(&guests));
    setup.guests = Some(guests);
    setup.admin_handed.replace(Some(admin));
    setup.succeeds = succeeds;
    let name = setup.instance.to_string();
    setup.stalls = common.stalls(&name);
    setup.reports = Some(Reports { number, name, watches, common: Rc::clone(common) });
    tokio::select! {
        ended = serve(setup, false, None, EndOrders::Order(end)) => ended,
        () = has_gone(broker_ended) => Ok(()),
    }
}

/// The flags that a sidecar of this workload would have.
fn flags(member: &Member, of_process: &Flags) -> anyhow::Result<Flags> {
    Ok(Flags {
        name: Some(member.name.clone()),
        namespace: member.namespace.clone(),
        token: Some(member.token.clone()),
        probes: probes(member)?,
        workers: 1,
        datagrams: member.datagrams,
        workload: member.workload.clone(),
        // The Workload API identifies processes, but this process serves several workloads.
        spiffe_endpoint_socket: None,
        certificate: None,
        certificate_roots: None,
        ..of_process.clone()
    })
}

/// The probes that the kubelet sends to this workload.
fn probes(member: &Member) -> anyhow::Result<Probes> {
    match member.kubelet.probes.as_str() {
        "" => Ok(Probes::default()),
        text => text.parse().context("reading its probes"),
    }
}

async fn has_gone(broker: oneshot::Receiver<()>) {
    // Nothing is ever sent, so this waits until the broker has ended.
    let _ = broker.await;
}

/// The sockets in the first message of a broker, and separately the listener of the admin server; `None` if the broker
/// ends without a message. The receiver resolves when the broker ends.
async fn handed(
    broker: Channel,
) -> anyhow::Result<Option<(Handed, OwnedFd, oneshot::Receiver<()>)>> {
    let broker = AsyncChannel::new(broker)?;
    let Some((offer, descriptors)) = broker.receive::<BrokerOffer>().await? else {
        return Ok(None);
    };
    let BrokerOffer::Namespace { roles, addresses, makes_udp } = offer else {
        bail!("a broker has offered sockets before its namespace");
    };
    if roles.len() != descriptors.len() {
        bail!("a broker has named {} descriptors and sent {}", roles.len(), descriptors.len());
    }
    let mut sorted: HashMap<SocketRole, Vec<OwnedFd>> = HashMap::new();
    for (role, descriptor) in roles.into_iter().zip(descriptors) {
        sorted.entry(role).or_default().push(descriptor);
    }
    let mut all = |role| sorted.remove(&role).unwrap_or_default();
    let (outbound, inbound) = (all(SocketRole::Outbound), all(SocketRole::Inbound));
    let announcements = all(SocketRole::Announcements).pop();
    let mut one =
        |role| all(role).pop().with_context(|| format!("a broker offers no socket for {role:?}"));
    let (admin, diagnosis, probe) =
        (one(SocketRole::Admin)?, one(SocketRole::Diagnosis)?, one(SocketRole::Probe)?);
    let (namespace, ended) = HandedNamespace::new(
        broker.into_channel(),
        (addresses, makes_udp),
        (diagnosis, announcements),
        probe,
    )?;
    Ok(Some((Handed { outbound, inbound, namespace }, admin, ended)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: when a workload was promoted repeatedly, the streams of its neighbours were cut.
    #[test]
    fn of_too_many_that_finish_what_they_have_the_first_of_the_workload_with_most_is_cut() {
        let mut members = Members::new();
        let mut leaves = |number: u64, workload: &str| {
            let end = watch::Sender::new(Departure::Succeeded);
            let served =
                Served { workload: workload.to_owned(), end, leaving: number != 1, cut: false };
            members.insert(number, served);
            first_of_too_many(&mut members).map(|first| {
                first.cut = true;
                first.workload.clone()
            })
        };
        let most = MAX_LEAVING as u64;
        assert_eq!(leaves(1, "busy"), None, "it is served");
        let first: Vec<_> = (2..most).filter_map(|number| leaves(number, "quiet")).collect();
        assert!(first.is_empty());
        let next: Vec<_> = (0..most).map(|number| leaves(most + number, "busy")).collect();
        let of = |name: &str| next.iter().flatten().filter(|cut| *cut == name).count();
        // Each of the two workloads keeps half of the places.
        assert_eq!((of("quiet"), of("busy")), (MAX_LEAVING / 2 - 2, MAX_LEAVING / 2));
        let is_cut = |from: u64| members.range(from..).next().unwrap().1.cut;
        assert!(!is_cut(1) && is_cut(2) && is_cut(most) && !is_cut(most - 1));
    }
}
