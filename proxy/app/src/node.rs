//! A node proxy: several workloads in one process, each served by threads of its own.
//!
//! ```text
//!  standard input: orders ─► main thread ─► join ─► control thread of a workload ─► its worker
//!                               ▲                     identity, discovery, admin      listeners, pools,
//!                               └─ serving, released ◄────┘                           counters, budget
//! ```
//! What a sidecar keeps for each process or thread is kept for each workload here, by the same code: keys,
//! certificates, discovery, policies, counters, bounds. The threads of two workloads share the process' memory,
//! descriptors and connection to standard output, and nothing else. Sockets in the network namespace of a
//! workload come from its broker ([`crate::broker`]); those to the control plane and to resolvers are of the
//! process' own namespace.
//!
//! A workload that goes to another process leaves this one's threads to what they have, for hours if need be; should it
//! come back, it gets threads of their own.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use leno_handover::{
    AsyncChannel, Channel, MAX_MEMBERS, Member, MemberReport, MemberState, Offer, Order, Role,
};
use leno_telemetry::access::{AccessSettings, Form};
use leno_transport::HandedNamespace;
use leno_transport::budget::{Budget, Pool};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::LocalSet;

use crate::admin::probe::Probes;
use crate::config::Flags;
use crate::confine::confine;
use crate::control;
use crate::run::{Ends, Signals, serve};
use crate::setup::{AccessLog, Handed, access_log, budget};
use crate::worker::Departure;

/// What one workload may use of the process' memory budget, and of its descriptors, at most: an eighth. More than eight
/// that are flooded at once may exceed the descriptors; by a 64th, for the most members that there may be, a workload
/// would have some hundred connections where descriptors are few.
const SHARE: u16 = 8;
/// The part of the process' memory budget of which each workload has an equal share for itself, be there as many as
/// there may. The other part is a pool, which they take turns in.
const OWN: usize = 2;
/// Events of threads that wait for the main thread.
const MAX_EVENTS: usize = 256;

/// Most workloads that this process finishes what it has for, while other processes serve them. Of more the first is cut.
const MAX_LEAVING: usize = MAX_MEMBERS as usize;

/// The threads of a workload, as the main thread sees them.
struct Served {
    /// Asks it to drain; a second time, to end.
    end: watch::Sender<Departure>,
    leaving: bool,
    /// It was told to end what it has at once.
    cut: bool,
}

/// The memberships by their numbers, which grow.
type Members = BTreeMap<u64, Served>;

/// What all workloads of the process have in common.
struct Common {
    flags: Flags,
    /// The memory of the process in bytes, and the pool that is a part of it.
    memory: (usize, Pool),
    log: Option<AccessLog>,
    /// What has become of a membership.
    events: mpsc::Sender<MemberReport>,
}

/// Runs until the supervisor's end of standard input is closed, or a signal ends it.
#[expect(clippy::arithmetic_side_effects, reason = "a constant divides, and a part is subtracted")]
pub(crate) fn run(flags: &Flags) -> anyhow::Result<()> {
    let orders = io::stdin().as_fd().try_clone_to_owned().context("opening standard input")?;
    let token = flags.token.as_deref().context("--token is missing")?;
    let roots = flags.roots.as_deref().context("--roots is missing")?;
    // No thread has been started yet. Tokens are put into the folder later.
    confine(&[roots, &token.join("token")])?;
    let (events, mut happened) = mpsc::channel(MAX_EVENTS);
    let bytes = budget(flags).bytes();
    let memory = (bytes, Pool::new(bytes - bytes / OWN));
    let common = Arc::new(Common { log: access_log(flags)?, flags: flags.clone(), memory, events });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let orders = AsyncChannel::new(orders.into()).context(
            "standard input is not the socket of a supervisor: leno up starts node proxies",
        )?;
        let mut signals = Signals::new()?;
        let mut members = Members::new();
        loop {
            tokio::select! {
                order = orders.receive::<Order>() => match order.context("reading orders")? {
                    Some((order, descriptors)) => obey(order, descriptors, &mut members, &common),
                    // The supervisor has ended.
                    None => return Ok(()),
                },
                Some(event) = happened.recv() => {
                    tokio::select! {
                        told = tell(event, &mut members, &orders) => told?,
                        () = signals.first() => break,
                    }
                }
                () = signals.first() => break,
            }
        }
        // Their brokers hand the listeners to the next process.
        members.values_mut().for_each(Served::end);
        while !members.is_empty() {
            tokio::select! {
                Some(event) = happened.recv() => {
                    tokio::select! {
                        told = tell(event, &mut members, &orders) => told?,
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
    /// The budget of one workload.
    #[expect(clippy::arithmetic_side_effects, reason = "constants divide")]
    fn budget(&self) -> Budget {
        let (bytes, pool) = self.memory;
        let own = bytes / OWN / usize::from(MAX_MEMBERS);
        Budget::with_pool(bytes / usize::from(SHARE), own, pool)
    }
}

impl Served {
    /// Has it finish what it has, unless it does so already.
    fn leave(&mut self, departure: Departure) {
        if !std::mem::replace(&mut self.leaving, true) {
            self.end.send_replace(departure);
        }
    }

    /// The process is to end. What it finishes already has had its time.
    fn end(&mut self) {
        match self.leaving {
            false => self.leave(Departure::Replaced),
            true => drop(self.end.send_replace(Departure::Replaced)),
        }
    }
}

fn obey(order: Order, descriptors: Vec<OwnedFd>, members: &mut Members, common: &Arc<Common>) {
    match order {
        Order::Join { number, succeeds, member } => {
            let name = (member.namespace.clone(), member.name.clone());
            let joined = join((number, succeeds), member, descriptors, members, common);
            if let Err(error) = joined {
                let error = format!("{error:#}");
                tracing::error!(
                    ?name,
                    error,
                    "a workload is not served; the supervisor tries again"
                );
                // It learns that as it does of every other end. This thread takes events, and may not wait for itself.
                let (events, state) = (common.events.clone(), MemberState::Released);
                tokio::spawn(async move {
                    let _ending = events.send(MemberReport { number, state }).await;
                });
            }
        }
        Order::Leave { number, succeeded } => {
            if let Some(member) = members.get_mut(&number) {
                member.leave(if succeeded { Departure::Succeeded } else { Departure::Last });
            }
            let finishes = |member: &&mut Served| member.leaving && !member.cut;
            if members.values_mut().filter(finishes).count() > MAX_LEAVING
                && let Some(first) = members.values_mut().find(finishes)
            {
                tracing::warn!(MAX_LEAVING, "streams are cut of the workload that left first");
                first.cut = true;
                first.end.send_replace(Departure::Succeeded);
            }
        }
    }
}

/// Starts the thread of a workload.
fn join(
    (number, succeeds): (u64, bool),
    member: Member,
    descriptors: Vec<OwnedFd>,
    members: &mut Members,
    common: &Arc<Common>,
) -> anyhow::Result<()> {
    let Ok([channel]) = <[OwnedFd; 1]>::try_from(descriptors) else {
        bail!("its channel has not arrived: the process has no descriptor left");
    };
    let served = members.values().filter(|member| !member.leaving).count();
    if served >= usize::from(MAX_MEMBERS) {
        bail!("this process serves no more than {MAX_MEMBERS}");
    }
    let (end, ends) = watch::channel(Departure::Replaced);
    let (common, name) = (Arc::clone(common), format!("{}/{}", member.namespace, member.name));
    let joined = Joined { number, succeeds, member, broker: channel.into(), end: ends };
    let thread = thread::Builder::new().name(name.clone());
    thread
        .spawn(move || {
            if let Err(error) = live(joined, &common) {
                tracing::error!(name, error = format!("{error:#}"), "ended");
            }
            let state = MemberState::Released;
            // The receiver ends with the process.
            let _ending = common.events.blocking_send(MemberReport { number, state });
        })
        .context("starting a thread")?;
    members.insert(number, Served { end, leaving: false, cut: false });
    Ok(())
}

/// Tells the supervisor what has become of a membership. One that reads slowly is waited for: it would never learn what it
/// has missed.
async fn tell(
    event: MemberReport,
    members: &mut Members,
    orders: &AsyncChannel,
) -> anyhow::Result<()> {
    if event.state == MemberState::Released {
        members.remove(&event.number);
    }
    match orders.send_within(Duration::MAX, &event, &[]).await {
        // That the supervisor has ended is seen where orders are read.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        sent => sent.context("telling the supervisor"),
    }
}

/// A workload as its thread knows it.
struct Joined {
    number: u64,
    /// Another process serves it until this one does.
    succeeds: bool,
    member: Member,
    broker: Channel,
    end: watch::Receiver<Departure>,
}

/// The life of a workload in this process, on a thread of its own: that of a sidecar, with handed sockets.
fn live(joined: Joined, common: &Common) -> anyhow::Result<()> {
    let Joined { number, succeeds, member, broker, end } = joined;
    let flags = Flags {
        name: Some(member.name.clone()),
        namespace: member.namespace.clone(),
        token: Some(member.token.clone()),
        probes: probes(&member)?,
        workers: 1,
        // The thread of the log is started once for all.
        access_log: AccessSettings { form: Form::Off, ..common.flags.access_log.clone() },
        workload: member.workload.clone(),
        // It identifies processes, and this one is several workloads.
        spiffe_endpoint_socket: None,
        certificate: None,
        certificate_roots: None,
        ..common.flags.clone()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let Some((handed, admin, broker_ended)) = handed(broker).await? else { return Ok(()) };
        let mut setup = control::setup(&flags, member.pod_uid.clone())?;
        setup.access_log.clone_from(&common.log);
        setup.admin = None;
        setup.kubelet.clone_from(&member.kubelet.addresses);
        setup.sharing = SHARE;
        setup.budget = common.budget();
        setup.handed.replace(Some(handed));
        setup.admin_handed.replace(Some(admin));
        setup.succeeds = succeeds;
        let (serving, events) = (Rc::clone(&setup.serving), common.events.clone());
        tokio::task::spawn_local(async move {
            serving.notified().await;
            let state = MemberState::Serving;
            // The receiver ends with the process.
            let _ending = events.send(MemberReport { number, state }).await;
        });
        tokio::select! {
            ended = serve(setup, false, None, Ends::Order(end)) => ended,
            () = has_gone(broker_ended) => Ok(()),
        }
    })
}

/// The probes that its kubelet sends to the workload.
fn probes(member: &Member) -> anyhow::Result<Probes> {
    match member.kubelet.probes.as_str() {
        "" => Ok(Probes::default()),
        text => text.parse().context("reading its probes"),
    }
}

async fn has_gone(broker: oneshot::Receiver<()>) {
    // Nothing is ever sent.
    let _ = broker.await;
}

/// What a broker hands over first, the listener of the admin server apart; `None` if it has ended before. The receiver ends
/// when the broker does.
async fn handed(
    broker: Channel,
) -> anyhow::Result<Option<(Handed, OwnedFd, oneshot::Receiver<()>)>> {
    let broker = AsyncChannel::new(broker)?;
    let Some((offer, descriptors)) = broker.receive::<Offer>().await? else { return Ok(None) };
    let Offer::Namespace { roles, addresses } = offer else {
        bail!("a broker has offered sockets before its namespace");
    };
    if roles.len() != descriptors.len() {
        bail!("a broker has named {} descriptors and sent {}", roles.len(), descriptors.len());
    }
    let mut sorted: HashMap<Role, Vec<OwnedFd>> = HashMap::new();
    for (role, descriptor) in roles.into_iter().zip(descriptors) {
        sorted.entry(role).or_default().push(descriptor);
    }
    let mut all = |role| sorted.remove(&role).unwrap_or_default();
    let (outbound, inbound) = (all(Role::Outbound), all(Role::Inbound));
    let announcements = all(Role::Announcements).pop();
    let mut one = |role| all(role).pop().with_context(|| format!("a broker offers no {role:?}"));
    let (admin, diagnosis, probe) = (one(Role::Admin)?, one(Role::Diagnosis)?, one(Role::Probe)?);
    let (namespace, ended) =
        HandedNamespace::new(broker.into_channel(), addresses, (diagnosis, announcements), probe)?;
    Ok(Some((Handed { outbound, inbound, namespace }, admin, ended)))
}
