//! One worker: a thread with its own runtime, listeners, pools and counters.

mod serving;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Once};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use leno_datagram::Datagrams;
use leno_discovery::Directory;
use leno_http::{Limits, Tasks};
use leno_inbound::{Inbound, LimitTable};
use leno_names::Names;
use leno_outbound::{Fixed, Outbound};
use leno_requests::WorkerMemory;
use leno_telemetry::access::Records;
use leno_telemetry::tap::Taps;
use leno_telemetry::trace::Traces;
use leno_telemetry::{Counter, Registry, Snapshot};
use leno_tls::{Acceptor, Connector, Renewal, RenewalsArrive, TlsConfigs};
use leno_transport::budget::{self, Budget};
use leno_transport::{
    Activity, Admission, Directions, Listener, MIN_CONNECTIONS, Pace, Paces, Passage, panics,
    spawn, test_panic,
};
use leno_types::InstanceName;
use leno_types::mesh::ServerPolicy;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, spawn_local};

use crate::admin::probe::KubeletCalls;
use crate::datagrams::{DatagramLoad, DatagramSockets};
use crate::export::{Exporter, Signal, TracePlan};
use crate::guest::{self, GuestBook, Guests, Listing};
use crate::pulse::Pulse;
use crate::reclaim;
use crate::services::OfOutbound;
use crate::setup::{AccessLog, CONNECTIONS_PER_TUNNEL, Handed};
use crate::standing::Standing;

use serving::Arrived;

/// How often idle connections and destinations are checked.
pub(crate) const SWEEP: Duration = Duration::from_secs(5);
/// The memory that is charged for an open connection. It includes the connection's task with its state (5 KiB measured
/// in plaintext, more with a TLS session), and the two smallest buffers, which the connection may have however short
/// memory is.
const CONNECTION_BYTES: usize = 16 * 1024;
/// When another process takes over the workload, the time within which all clients are told to connect to it. A
/// supervisor that ends gives its processes 5 s.
const LEAVE_WITHIN: Duration = Duration::from_secs(4);
/// How many commands may wait in a worker's queue; each is answered within one turn of its event loop.
pub(crate) const MAX_COMMANDS: usize = 16;

/// How many events a worker takes from the kernel at once. The runtime's default is 1024, which takes 12 KiB. Further
/// events are taken once these are handled.
const MAX_EVENTS: usize = 256;

/// All values that a worker needs. They are sent to its thread.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) instance: InstanceName,
    pub(crate) directory: Directory,
    pub(crate) names: Names,
    pub(crate) policy: watch::Receiver<Option<Arc<ServerPolicy>>>,
    pub(crate) connector: Connector,
    pub(crate) acceptor: Acceptor,
    /// The credentials in use, outbound and inbound. They are needed to apply revocation and expiry.
    pub(crate) credentials: watch::Receiver<Option<Arc<TlsConfigs>>>,
    pub(crate) limits: Limits,
    pub(crate) outbound: Vec<SocketAddr>,
    pub(crate) inbound: Vec<SocketAddr>,
    /// The ports of the proxy itself, including that of the admin server.
    pub(crate) own_ports: Vec<u16>,
    /// Whether the worker belongs to a waypoint, which serves clients of those services whose waypoint it is
    /// according to discovery.
    pub(crate) is_waypoint: bool,
    /// Whether the worker carries datagrams.
    pub(crate) datagrams: bool,
    /// The list of the workload's guests on threads of other workloads, if the process serves several.
    pub(crate) guests: Option<Arc<GuestBook>>,
    /// Set if this is a worker for such a guest: the bound on connections that it shares with the workload's own
    /// worker.
    pub(crate) guest_of: Option<Arc<Admission>>,
    /// The probes that a kubelet sends to the workload itself.
    pub(crate) kubelet: Option<KubeletCalls>,
    pub(crate) fixed: Option<Fixed>,
    pub(crate) application: Option<SocketAddr>,
    pub(crate) access_log: Option<AccessLog>,
    pub(crate) taps: Taps,
    pub(crate) traces: Option<TracePlan>,
    /// How many connections may be open, by the number of descriptors; the memory budget may permit fewer.
    pub(crate) max_connections: usize,
    /// How many new connections per second the workload may have, and each of its clients; `None` means that there is
    /// no limit.
    pub(crate) connection_rate: Option<NonZeroU32>,
    /// The budget to which buffers and connections are charged.
    pub(crate) budget: Budget,
    /// The number of workers.
    pub(crate) workers: u16,
    /// The counts of rate limits, which the workers share.
    pub(crate) limit_table: LimitTable,
}

/// What happens to the listeners of a proxy that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    /// No process will listen for its workload.
    Last,
    /// The workload's broker keeps the listeners. Connections in their queues wait for the next process, which starts
    /// after this one has ended.
    Replaced,
    /// Another process already accepts connections from the same listeners, so streams have time to end here.
    Succeeded,
    /// Another process accepts connections on listeners of its own with the same ports, so streams have time to end
    /// here.
    PassedOn,
}

impl Departure {
    /// The time in which clients are told, one after the other, to connect elsewhere.
    pub(crate) fn time_to_leave(self) -> Duration {
        match self {
            Self::Last | Self::Replaced => Duration::ZERO,
            // Nothing waits for the end of these processes, and they serve requests meanwhile.
            Self::Succeeded | Self::PassedOn => LEAVE_WITHIN,
        }
    }
}

/// What the control thread can ask of a worker.
#[derive(Debug)]
pub(crate) enum Command {
    /// Send all counts so far.
    Snapshot(oneshot::Sender<Snapshot>),
    /// Send the numbers of requests and connections that are in progress and open.
    Load(oneshot::Sender<Load>),
    /// Drain: close HTTP/1 connections after their next response, and HTTP/2 connections after their open streams.
    Drain,
    /// Close the listeners, and answer when that is done. Connections that were accepted or are in the queue are
    /// served, unless another process continues to use the listeners.
    Close(Departure, oneshot::Sender<()>),
}

/// The numbers of requests and connections that a worker has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// Requests in progress, and connections that are relayed as bytes.
    pub(crate) busy: usize,
    /// Requests and relays of other workloads in progress on the worker's thread.
    pub(crate) hosted: usize,
    /// Accepted connections, including idle ones.
    pub(crate) connections: usize,
    /// The number of bytes that are charged for buffers and connections.
    pub(crate) charged: usize,
    /// HTTP/2 connections from clients, and to servers.
    pub(crate) http2: [leno_h2::Open; 2],
    /// The load by datagrams, if the worker carries any.
    pub(crate) datagrams: Option<DatagramLoad>,
}

/// A running worker. It ends with the process.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    commands: mpsc::Sender<Command>,
    /// The addresses on which the worker listens, outbound first.
    pub(crate) listening: Vec<SocketAddr>,
    /// The memory budget, which the worker shares with the other workers.
    pub(crate) budget: Budget,
    /// How many connections the worker may have open.
    pub(crate) max_connections: usize,
    /// Shows whether the worker stalls.
    pub(crate) pulse: Arc<Pulse>,
}

impl Worker {
    /// Starts the thread and waits until it listens.
    pub(crate) async fn start(
        number: u16,
        plan: Plan,
        handed: Option<Handed>,
    ) -> anyhow::Result<Self> {
        let (commands, received) = mpsc::channel(MAX_COMMANDS);
        let (listening, listens) = oneshot::channel();
        let (budget, max_connections) = (plan.budget, max_connections(&plan));
        // In a process with several workloads, the workers of all workloads have the number 0, so the name contains
        // the workload.
        let name = match handed {
            Some(_) => format!("w:{}", plan.instance),
            None => format!("worker-{number}"),
        };
        let pulse = Arc::<Pulse>::default();
        let of_thread = Arc::clone(&pulse);
        let start = WorkerStart { plan, handed, pulse: of_thread, commands: received, listening };
        let start = Box::new(start);
        thread::Builder::new()
            .name(name)
            .spawn(move || run(start))
            .context("starting a worker thread")?;
        let listening = listens.await.context("a worker ended before it listened")??;
        Ok(Self { commands, listening, budget, max_connections, pulse })
    }

    pub(crate) async fn snapshot(&self) -> Option<Snapshot> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::Snapshot(answer)).await.ok()?;
        answered.await.ok()
    }

    pub(crate) async fn load(&self) -> Option<Load> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::Load(answer)).await.ok()?;
        answered.await.ok()
    }

    pub(crate) async fn drain(&self) {
        // A worker that has ended has nothing to drain.
        let _ended = self.commands.send(Command::Drain).await;
    }

    /// Makes the worker accept no more connections; the receiver resolves when the listeners are closed. `None` if the
    /// worker has ended.
    pub(crate) async fn close(&self, departure: Departure) -> Option<oneshot::Receiver<()>> {
        let (answer, closed) = oneshot::channel();
        self.commands.send(Command::Close(departure, answer)).await.ok()?;
        Some(closed)
    }
}

/// What the thread of a worker gets. In a box: values that functions pass on stay in their frames, and the frames above
/// the one that waits are never returned.
struct WorkerStart {
    plan: Plan,
    handed: Option<Handed>,
    pulse: Arc<Pulse>,
    commands: mpsc::Receiver<Command>,
    listening: oneshot::Sender<anyhow::Result<Vec<SocketAddr>>>,
}

fn run(start: Box<WorkerStart>) {
    start.pulse.begin();
    start.plan.budget.enter();
    reclaim::find_stack();
    // The tasks use the scheduler of the runtime. With a `LocalSet`, there would be a second scheduler.
    let mut builder = Builder::new_current_thread();
    builder.enable_all().max_io_events_per_tick(MAX_EVENTS);
    builder.on_thread_park(reclaim::before_wait_of_worker);
    let runtime = match builder.build_local(LocalOptions::default()) {
        Ok(runtime) => runtime,
        Err(error) => {
            // The receiver is only gone if the process is ending.
            let _ending = start.listening.send(Err(error.into()));
            return;
        }
    };
    runtime.block_on(served(start));
    // Dropping the runtime drops its tasks and what they own.
    drop(runtime);
    budget::leave();
}

/// The future [`serve`] in a box. It is made in a frame that ends, where [`run`] would keep the place for it on its
/// stack.
#[inline(never)]
fn served(start: Box<WorkerStart>) -> Pin<Box<dyn Future<Output = ()>>> {
    Box::pin(serve(start))
}

/// Like [`served`], for [`begin`]: the frame of the future that polls it has no room for what only the start needs.
#[inline(never)]
fn begun(start: Box<WorkerStart>) -> Pin<Box<dyn Future<Output = Option<RunningWorker>>>> {
    Box::pin(begin(start))
}

/// The state of a worker's thread.
pub(crate) struct Planes {
    outbound: Outbound,
    inbound: Inbound,
    registry: Rc<Registry>,
    activity: Rc<Activity>,
    admission: Arc<Admission>,
    /// Limit the rates of new connections: one for all outbound ones, and one for each client of inbound ones.
    paces: Option<RefCell<(Pace, Paces)>>,
    /// Ends and renews connections with other proxies.
    standing: Standing,
    /// The tasks that accept connections.
    accepting: RefCell<Vec<JoinHandle<()>>>,
    /// The tasks that serve connections of the workload.
    serving: Rc<Tasks<Box<Arrived>>>,
    /// `None` while connections are accepted, then why they no longer are.
    open: watch::Sender<Option<Departure>>,
    /// The number of workers that accept on the same ports.
    workers: u16,
    /// The exporters of spans and of records of the access log, if there are any.
    exporters: Vec<Rc<Exporter>>,
    /// How many panics of this thread, or of the guest, were already counted in the registry.
    panics: Cell<u64>,
    /// How many connections of this thread that use a pipe in memory were already counted in the registry.
    in_process: Cell<u64>,
    /// How many of the proxy's own responses that clients of this thread did not read in time were already counted in
    /// the registry.
    unread_answers: Cell<u64>,
    /// How many lost announcements of this thread were already counted in the registry. The kernel announces each
    /// socket that is destroyed, with the bytes that were not read.
    lost_announcements: Cell<u64>,
    /// How many refused connections of the proxy to itself (of a waypoint) were already counted in the registry.
    refused_passages: Cell<u64>,
    /// Carries datagrams, if the workload has any.
    datagrams: RefCell<Option<Datagrams>>,
    /// Serves this workload's connections on the threads of other workloads, in a process that serves several
    /// workloads.
    guests: Option<Guests>,
    /// Whether this workload is a guest on another workload's thread. Then the counts of its thread are not its own.
    is_guest: bool,
    /// The entry of a guest in the list of its workload. The guest's last counts go to the list when the last
    /// connection has ended.
    listing: Option<Listing>,
}

/// A worker that listens.
struct RunningWorker {
    planes: Rc<Planes>,
    pulse: Arc<Pulse>,
    commands: mpsc::Receiver<Command>,
    policy: watch::Receiver<Option<Arc<ServerPolicy>>>,
    credentials: watch::Receiver<Option<Arc<TlsConfigs>>>,
    renewed: mpsc::Receiver<Arc<Renewal>>,
}

/// Makes the worker listen. `None` if it cannot, which the control thread learns.
async fn begin(start: Box<WorkerStart>) -> Option<RunningWorker> {
    let WorkerStart { plan, handed, pulse, commands, listening } = *start;
    let Sockets { outbound, inbound, passage, datagrams } = match Sockets::bind(&plan, handed).await
    {
        Ok(sockets) => sockets,
        Err(error) => {
            // The receiver is only gone if the process is ending.
            let _ending = listening.send(Err(error));
            return None;
        }
    };
    let addresses = outbound.iter().chain(&inbound).map(Listener::address).collect();
    let (mut policy, credentials) = (plan.policy.clone(), plan.credentials.clone());
    let renewed = plan.acceptor.renewed();
    let planes = Rc::new(Planes::new(plan));
    planes.follow_destroyed();
    planes.begin(policy.borrow_and_update().as_deref());
    for listener in outbound {
        planes.accept(listener, Planes::serve_outbound);
    }
    for listener in inbound {
        planes.accept(listener, Planes::serve_inbound);
    }
    if let Some((passage, listener)) = passage {
        planes.serve_services(passage, listener);
    }
    if let Some(sockets) = datagrams
        && let Err(error) = planes.carry(sockets, credentials.clone())
    {
        let _ending = listening.send(Err(error));
        return None;
    }
    let _ending = listening.send(Ok(addresses));
    Some(RunningWorker { planes, pulse, commands, policy, credentials, renewed })
}

async fn serve(start: Box<WorkerStart>) {
    let Some(running) = begun(start).await else { return };
    let RunningWorker { planes, pulse, mut commands, mut policy, mut credentials, mut renewed } =
        running;
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                Some(command) => planes.answer(command),
                None => return,
            },
            () = pulse.asked() => pulse.turn(),
            // The sender lives as long as the process, so this does not fail.
            Ok(()) = policy.changed() => planes.follow_policy(policy.borrow_and_update().as_deref()),
            Ok(()) = credentials.changed() => {
                planes.end_revoked(credentials.borrow_and_update().clone().as_deref());
            }
            Some(renewal) = renewed.recv() => planes.renew(&renewal),
            _ = sweep.tick() => {
                planes.sweep();
                planes.keep_standing(credentials.borrow().as_deref());
                if planes.busy() == 0 {
                    reclaim::release_before_wait();
                }
            }
        }
    }
}

/// The sockets of a worker.
struct Sockets {
    outbound: Vec<Listener>,
    inbound: Vec<Listener>,
    /// On a waypoint, the listener through which its inbound side connects to its outbound side.
    passage: Option<(Rc<Passage>, Listener)>,
    datagrams: Option<DatagramSockets>,
}

impl Sockets {
    async fn bind(plan: &Plan, handed: Option<Handed>) -> anyhow::Result<Self> {
        let (outbound, inbound) = match handed {
            Some(handed) => handed.enter()?,
            None => (bind(&plan.outbound)?, bind(&plan.inbound)?),
        };
        let passage = plan.is_waypoint.then(Passage::open).transpose();
        let passage = passage.context("listening for the proxy's own connections")?;
        let datagrams = match plan.datagrams {
            true => Some(DatagramSockets::bind().await?),
            false => None,
        };
        Ok(Self { outbound, inbound, passage, datagrams })
    }
}

fn bind(addresses: &[SocketAddr]) -> anyhow::Result<Vec<Listener>> {
    let bind = |address: &SocketAddr| match Listener::bind(*address) {
        // A machine that does not support IPv6 has no such address; the IPv4 listeners serve its clients.
        Err(error) if address.is_ipv6() && leno_sockets::is_no_family(&error) => None,
        other => Some(other.with_context(|| format!("listening on {address}"))),
    };
    addresses.iter().filter_map(bind).collect()
}

/// How many connections there may be: as many as there are descriptors and memory for, but at least
/// [`MIN_CONNECTIONS`].
#[expect(clippy::arithmetic_side_effects, reason = "the divisor is not zero")]
fn max_connections(plan: &Plan) -> usize {
    let charged = plan.budget.bytes_for_new() / CONNECTION_BYTES / usize::from(plan.workers.max(1));
    plan.max_connections.min(charged).max(MIN_CONNECTIONS)
}

/// How many HBONE tunnels there may be. They have descriptors of their own, in addition to those of connections.
fn max_tunnels(plan: &Plan) -> usize {
    max_connections(plan) / CONNECTIONS_PER_TUNNEL
}

/// The memory in which this worker counts requests. The aggregator of flows can read it, if the kernel supports that.
fn memory() -> WorkerMemory {
    WorkerMemory::shared().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot share the counts of requests with the flow metrics");
        WorkerMemory::private()
    })
}

/// Decides which connections of this worker, and of its guests, are admitted.
fn admission(plan: &Plan) -> Arc<Admission> {
    if let Some(of_worker) = &plan.guest_of {
        return Arc::clone(of_worker);
    }
    let directions = match (plan.outbound.is_empty(), plan.inbound.is_empty()) {
        (false, true) => Directions::Outbound,
        (true, false) => Directions::Inbound,
        _ => Directions::Both,
    };
    Admission::new(max_connections(plan), directions)
}

fn paces(rate: NonZeroU32) -> RefCell<(Pace, Paces)> {
    RefCell::new((Pace::new(rate), Paces::new(rate)))
}

/// The request counters of a worker, and the records of its access log if they are exported.
fn registry(
    log: Option<AccessLog>,
    taps: Taps,
    traces: Option<&Rc<Traces>>,
) -> (Rc<Registry>, Option<Rc<Records>>) {
    let (lines, records) = match log {
        Some(AccessLog::Lines(lines)) => (Some(lines), None),
        Some(AccessLog::Records(layout)) => (None, Some(Rc::new(Records::new(layout)))),
        None => (None, None),
    };
    let registry = Registry::counting_in(memory()).with_access_log(lines).with_taps(taps);
    let registry = registry.with_access_records(records.clone()).with_traces(traces.cloned());
    (Rc::new(registry.with_clock(leno_transport::now)), records)
}

/// The task of each connection has a reference to the planes. So this runs after the last connection has ended and
/// was counted, also if it was cut because the guest's thread has ended.
impl Drop for Planes {
    fn drop(&mut self) {
        if let Some(listing) = self.listing.take() {
            listing.end(self.registry.snapshot());
        }
    }
}

impl Planes {
    pub(crate) fn new(plan: Plan) -> Self {
        let (admission, max_tunnels) = (admission(&plan), max_tunnels(&plan));
        let (guests, is_guest) = (Guests::of(&plan, &admission), plan.guest_of.is_some());
        let traces = plan.traces.as_ref().map(|of| Rc::new(Traces::new(of.settings.clone())));
        let (registry, records) = registry(plan.access_log, plan.taps, traces.as_ref());
        let activity = Rc::new(Activity::default());
        let standing = Standing::new(plan.connector.clone(), Rc::clone(&registry));
        let outbound = Outbound::new(leno_outbound::Parts {
            workload: plan.instance.clone(),
            directory: plan.directory.clone(),
            tls: plan.connector,
            registry: Rc::clone(&registry),
            activity: Rc::clone(&activity),
            limits: plan.limits.clone(),
            names: plan.names,
            fixed: plan.fixed,
        });
        let services = Rc::new(OfOutbound(outbound.services()));
        let signals = [traces.map(Signal::Spans), records.map(Signal::Records)];
        let exporter = |signal: Signal| {
            let counted = (Rc::clone(&registry), Rc::clone(&activity));
            let (of, instance) = (plan.traces.as_ref()?, plan.instance.clone());
            let exporter = Exporter::new(signal, of, instance, &*services, counted);
            // The settings may name a service that does not exist.
            exporter.inspect_err(|error| tracing::error!(%error, "nothing is exported")).ok()
        };
        let exporters = signals.into_iter().flatten().filter_map(exporter).map(Rc::new).collect();
        let paces = plan.connection_rate.map(paces);
        let inbound = Inbound::new(leno_inbound::Parts {
            workload: plan.instance,
            directory: plan.directory,
            services,
            policy: plan.policy,
            tls: plan.acceptor,
            registry: Rc::clone(&registry),
            activity: Rc::clone(&activity),
            // The client's proxy decides how long to wait for the response, because it has the policy.
            limits: Limits { response_wait: plan.limits.stall, ..plan.limits },
            application: plan.application,
            limit_table: plan.limit_table,
            max_tunnels,
            own_ports: plan.own_ports,
        });
        if let Some(kubelet) = plan.kubelet {
            inbound.answer_probes(Rc::new(kubelet));
        }
        Self {
            outbound,
            inbound,
            registry,
            activity,
            admission,
            paces,
            standing,
            accepting: RefCell::default(),
            serving: Tasks::new(),
            open: watch::Sender::new(None),
            workers: plan.workers,
            exporters,
            panics: Cell::new(0),
            in_process: Cell::default(),
            unread_answers: Cell::new(0),
            lost_announcements: Cell::new(0),
            refused_passages: Cell::new(0),
            datagrams: RefCell::default(),
            guests,
            is_guest,
            listing: None,
        }
    }

    /// Makes these the planes of a guest with this entry in the list of its workload.
    pub(crate) fn listed(mut self, listing: Listing) -> Self {
        self.listing = Some(listing);
        self
    }

    /// Starts the tasks that need no connection, such as exporters, once the sockets of the namespace can be used.
    pub(crate) fn begin(&self, policy: Option<&ServerPolicy>) {
        self.follow(policy);
        for exporter in &self.exporters {
            spawn(Rc::clone(exporter).run());
        }
    }

    /// Applies a change of the workload's policy.
    pub(crate) fn follow_policy(&self, policy: Option<&ServerPolicy>) {
        self.follow(policy);
        self.inbound.follow();
    }

    /// Ends the connections whose peers have shown a certificate that was revoked.
    pub(crate) fn end_revoked(&self, credentials: Option<&TlsConfigs>) {
        self.standing.end_revoked(credentials);
    }

    /// Ends the connections whose peers' certificates have expired, and starts to renew those of which a renewal is
    /// due.
    pub(crate) fn keep_standing(&self, credentials: Option<&TlsConfigs>) {
        self.standing.sweep(credentials, self.renewals_arrive());
    }

    /// Applies a client's next certificate to its connections.
    pub(crate) fn renew(&self, renewal: &Renewal) {
        self.standing.apply(renewal);
    }

    /// Makes a guest drain in the same way as the workload's own worker.
    pub(crate) fn leave(&self, departure: Departure) {
        self.open.send_replace(Some(departure));
        self.drain(departure.time_to_leave());
    }

    /// Tells all clients, one after the other within a time, to connect elsewhere.
    pub(crate) fn drain(&self, within: Duration) {
        self.activity.drain(within);
    }

    /// Requests and relays in progress.
    pub(crate) fn busy(&self) -> usize {
        self.activity.busy()
    }

    /// The counts so far, without the counts that a thread keeps for all of its tasks.
    pub(crate) fn counted(&self) -> Snapshot {
        // This removes expired ejections, so that only present ones are reported.
        self.outbound.sweep();
        self.count_panics();
        self.registry.snapshot()
    }

    pub(crate) fn outbound(&self) -> &Outbound {
        &self.outbound
    }

    pub(crate) fn inbound(&self) -> &Inbound {
        &self.inbound
    }

    /// Carries datagrams on these sockets until the worker closes its listeners.
    fn carry(
        self: &Rc<Self>,
        sockets: DatagramSockets,
        credentials: watch::Receiver<Option<Arc<TlsConfigs>>>,
    ) -> anyhow::Result<()> {
        self.datagrams.replace(Some(sockets.carry(self, credentials)?));
        Ok(())
    }

    /// Applies the policy of the workload, if the control plane has sent one.
    fn follow(&self, policy: Option<&ServerPolicy>) {
        if let Some(policy) = policy {
            self.outbound.follow(policy);
            self.activity.close(policy.closes());
        }
    }

    /// Starts to receive the kernel's messages about destroyed sockets, which show what applications had not read.
    fn follow_destroyed(&self) {
        static REPORT: Once = Once::new();
        if let Err(error) = leno_transport::follow_destroyed() {
            self.registry.count(Counter::AnnouncementsMissing);
            REPORT.call_once(|| {
                tracing::warn!(
                    %error,
                    "the kernel does not announce destroyed sockets (sock_diag(7), Linux 4.2): a request of a method \
                     that is not idempotent fails when its application closes the connection without reading it"
                );
            });
        }
    }

    pub(crate) fn answer(&self, command: Command) {
        match command {
            // The receiver may no longer exist.
            Command::Snapshot(answer) => {
                let _given_up = answer.send(match self.is_guest {
                    true => self.counted(),
                    false => self.counted_with_thread(),
                });
                // Counting has used more of the stack than an idle worker needs.
                reclaim::release_before_wait();
            }
            Command::Load(answer) => {
                let _given_up = answer.send(match self.is_guest {
                    // The workload's own worker reports the connections.
                    true => Load { busy: self.busy(), ..Load::default() },
                    false => self.load(),
                });
            }
            Command::Drain => {
                let departure = *self.open.borrow();
                let within = departure.map_or(Duration::ZERO, Departure::time_to_leave);
                self.drain(within);
                guest::drain_hosted(within);
            }
            Command::Close(departure, answer) => {
                guest::host_no_more();
                self.open.send_replace(Some(departure));
                // The flows of datagrams end now. Clients open them again at another endpoint, or at the next proxy,
                // whose sockets have the same ports.
                let datagrams = self.datagrams.take();
                datagrams.iter().for_each(Datagrams::close);
                let accepting = self.accepting.take();
                spawn_local(async move {
                    for task in accepting {
                        // A task that has panicked accepts no connections either.
                        let _ended = task.await;
                    }
                    if let Some(datagrams) = datagrams {
                        datagrams.closed().await;
                    }
                    // The control thread may have ended without waiting for the answer.
                    let _ending = answer.send(());
                });
            }
        }
    }

    /// Which process gets the renewals from clients.
    fn renewals_arrive(&self) -> RenewalsArrive {
        match *self.open.borrow() {
            Some(Departure::Succeeded | Departure::PassedOn) => RenewalsArrive::Elsewhere,
            Some(Departure::Last | Departure::Replaced) | None => RenewalsArrive::Here,
        }
    }

    /// The counts so far, including those that the thread keeps for all of its tasks. They are the worker's, and not
    /// a guest's.
    fn counted_with_thread(&self) -> Snapshot {
        let counts = [
            (Counter::OutboundInProcess, &self.in_process, leno_tls::made_in_process()),
            (Counter::AnswersUnread, &self.unread_answers, leno_http::unread_answers()),
            (
                Counter::AnnouncementsLost,
                &self.lost_announcements,
                leno_transport::lost_announcements(),
            ),
            (Counter::OutboundPassages, &self.refused_passages, leno_transport::refused_passages()),
        ];
        for (counter, before, now) in counts {
            self.registry.count_many(counter, now.saturating_sub(before.replace(now)));
        }
        let abuses = leno_h2::abuse_counts().map(|(abuse, count)| (abuse.label(), count));
        self.counted().with_abuses(abuses)
    }

    fn load(&self) -> Load {
        Load {
            busy: self.busy(),
            hosted: guest::hosted_busy(),
            connections: self.admission.connections(),
            charged: budget::charged(),
            http2: leno_h2::open_counts(),
            datagrams: self.datagrams.borrow().as_ref().map(DatagramLoad::of),
        }
    }

    /// Counts the panics since the last call. A guest has its own count, because it does not own its thread.
    fn count_panics(&self) {
        let before = self.panics.replace(panics());
        self.registry.count_many(Counter::Panics, panics().saturating_sub(before));
    }

    pub(crate) fn sweep(&self) {
        test_panic("sweep", b"");
        self.count_panics();
        self.serving.sweep();
        self.outbound.sweep();
        self.inbound.sweep();
        if let Some(datagrams) = &*self.datagrams.borrow() {
            datagrams.sweep();
        }
        for exporter in &self.exporters {
            exporter.sweep();
        }
        if let Some(guests) = &self.guests {
            guests.sweep();
        }
        // The worker that owns the guest's thread frees unneeded memory.
        if self.activity.busy() == 0 && !self.is_guest {
            leno_http::trim_pool();
            leno_h2::trim_chunks();
            leno_transport::trim_buffers();
        }
    }
}
