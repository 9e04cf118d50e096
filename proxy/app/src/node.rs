//! A node proxy: several workloads in one process, each served by threads of its own.
//!
//! ```text
//!  standard input: orders ─► main thread ─► join ─► control thread of a workload ─► its worker
//!                               ▲                     identity, discovery, admin      listeners, pools,
//!                               └── left ◄────────────────── ends                    counters, budget
//! ```
//! What a sidecar keeps for each process or thread is kept for each workload here, by the same code: keys,
//! certificates, discovery, policies, counters, bounds. The threads of two workloads share the process' memory,
//! descriptors and connection to standard output, and nothing else. Sockets in the network namespace of a
//! workload come from its broker ([`crate::broker`]); those to the control plane and to resolvers are of the
//! process' own namespace.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, bail};
use leno_handover::{
    AsyncChannel, Channel, MAX_MEMBERS, Member, Offer, Order, Role, WorkloadReleased,
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

type Name = (String, String);

/// The threads of a workload, as the main thread sees them.
struct Served {
    /// Asks it to drain; a second time, to end.
    end: watch::Sender<Departure>,
    /// Tells it from an earlier one of the same name.
    number: u64,
}

/// What all workloads of the process have in common.
struct Common {
    flags: Flags,
    /// The memory of the process in bytes, and the pool that is a part of it.
    memory: (usize, Pool),
    log: Option<AccessLog>,
    /// Which workload has ended, by name and number.
    ended: mpsc::Sender<(Name, u64)>,
}

/// Runs until the supervisor's end of standard input is closed, or a signal ends it.
#[expect(clippy::arithmetic_side_effects, reason = "a constant divides, and a part is subtracted")]
pub(crate) fn run(flags: &Flags) -> anyhow::Result<()> {
    let orders = io::stdin().as_fd().try_clone_to_owned().context("opening standard input")?;
    let token = flags.token.as_deref().context("--token is missing")?;
    let roots = flags.roots.as_deref().context("--roots is missing")?;
    // No thread has been started yet. Tokens are put into the folder later.
    confine(&[roots, &token.join("token")])?;
    let (ended, mut endings) = mpsc::channel(MAX_EVENTS);
    let bytes = budget(flags).bytes();
    let memory = (bytes, Pool::new(bytes - bytes / OWN));
    let common = Arc::new(Common { log: access_log(flags)?, flags: flags.clone(), memory, ended });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let orders = AsyncChannel::new(orders.into()).context(
            "standard input is not the socket of a supervisor: leno up starts node proxies",
        )?;
        let mut signals = Signals::new()?;
        let mut members = HashMap::new();
        let mut number = 0_u64;
        loop {
            tokio::select! {
                order = orders.receive::<Order>() => match order.context("reading orders")? {
                    Some((order, descriptors)) => {
                        number = number.wrapping_add(1);
                        obey(order, descriptors, number, &mut members, &common)?;
                    }
                    // The supervisor has ended.
                    None => return Ok(()),
                },
                Some(ended) = endings.recv() => has_ended(ended, &mut members, &orders)?,
                () = signals.first() => break,
            }
        }
        // Their brokers hand the listeners to the next process.
        members.values().for_each(|member| member.end(Departure::Replaced));
        while !members.is_empty() {
            tokio::select! {
                Some(ended) = endings.recv() => has_ended(ended, &mut members, &orders)?,
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
    fn end(&self, departure: Departure) {
        self.end.send_replace(departure);
    }
}

fn obey(
    order: Order,
    descriptors: Vec<OwnedFd>,
    number: u64,
    members: &mut HashMap<Name, Served>,
    common: &Arc<Common>,
) -> anyhow::Result<()> {
    match order {
        Order::Join(member) => {
            let name = (member.namespace.clone(), member.name.clone());
            if let Err(error) = join(member, descriptors, number, members, common) {
                let error = format!("{error:#}");
                tracing::error!(
                    ?name,
                    error,
                    "a workload is not served; the supervisor tries again"
                );
                // It learns that as it does of every other end.
                common.ended.try_send((name, number))?;
            }
        }
        Order::Leave { namespace, name } => {
            if let Some(member) = members.get(&(namespace, name)) {
                member.end(Departure::Last);
            }
        }
    }
    Ok(())
}

/// Starts the thread of a workload.
fn join(
    member: Member,
    descriptors: Vec<OwnedFd>,
    number: u64,
    members: &mut HashMap<Name, Served>,
    common: &Arc<Common>,
) -> anyhow::Result<()> {
    let Ok([channel]) = <[OwnedFd; 1]>::try_from(descriptors) else {
        bail!("its channel has not arrived: the process has no descriptor left");
    };
    let name = (member.namespace.clone(), member.name.clone());
    if members.len() >= usize::from(MAX_MEMBERS) && !members.contains_key(&name) {
        bail!("this process serves no more than {MAX_MEMBERS}");
    }
    let (end, ends) = watch::channel(Departure::Last);
    let (common, ended) = (Arc::clone(common), name.clone());
    let thread = thread::Builder::new().name(format!("{}/{}", name.0, name.1));
    thread
        .spawn(move || {
            if let Err(error) = live(&member, channel.into(), ends, &common) {
                let (namespace, name) = &ended;
                tracing::error!(namespace, name, error = format!("{error:#}"), "ended");
            }
            // The receiver ends with the process.
            let _ending = common.ended.blocking_send((ended, number));
        })
        .context("starting a thread")?;
    // An earlier one, whose broker has ended, ends by itself.
    members.insert(name, Served { end, number });
    Ok(())
}

fn has_ended(
    (name, number): (Name, u64),
    members: &mut HashMap<Name, Served>,
    orders: &AsyncChannel,
) -> anyhow::Result<()> {
    // A workload that has joined again since is served.
    if members.get(&name).is_some_and(|member| member.number != number) {
        return Ok(());
    }
    members.remove(&name);
    let (namespace, name) = name;
    match orders.send(&WorkloadReleased { namespace, name }, &[]) {
        // That the supervisor has ended is seen where orders are read.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        sent => sent.context("telling the supervisor"),
    }
}

/// The life of a workload in this process, on a thread of its own: that of a sidecar, with handed sockets.
fn live(
    member: &Member,
    broker: Channel,
    end: watch::Receiver<Departure>,
    common: &Common,
) -> anyhow::Result<()> {
    let flags = Flags {
        name: Some(member.name.clone()),
        namespace: member.namespace.clone(),
        token: Some(member.token.clone()),
        probes: probes(member)?,
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
        let Some((handed, broker_ended)) = handed(broker).await? else { return Ok(()) };
        let mut setup = control::setup(&flags, member.pod_uid.clone())?;
        setup.access_log.clone_from(&common.log);
        setup.admin = None;
        setup.kubelet.clone_from(&member.kubelet.addresses);
        setup.sharing = SHARE;
        setup.budget = common.budget();
        setup.handed.replace(Some(handed));
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

/// What a broker hands over first; `None` if it has ended before.
async fn handed(broker: Channel) -> anyhow::Result<Option<(Handed, oneshot::Receiver<()>)>> {
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
    Ok(Some((Handed { outbound, inbound, admin: Some(admin), namespace }, ended)))
}
