//! One worker: a thread with its own runtime, listeners, pools and counters.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant};

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
use leno_tls::{Acceptor, Connector, RenewalsArrive, TlsConfigs};
use leno_transport::budget::{self, Budget, Charge};
use leno_transport::{
    Activity, Admission, Admitted, Arrival, Directions, Io, Listener, MIN_CONNECTIONS, Pace, Paces,
    Passage, panics, spawn_contained, test_panic,
};
use leno_types::InstanceName;
use leno_types::mesh::ServerPolicy;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, spawn_local};

use crate::admin::probe::KubeletCalls;
use crate::datagrams::{DatagramLoad, DatagramSockets};
use crate::export::{Exporter, Signal, TracePlan};
use crate::pulse::Pulse;
use crate::reclaim;
use crate::services::OfOutbound;
use crate::setup::{AccessLog, CONNECTIONS_PER_TUNNEL, Handed};
use crate::standing::Standing;

/// How often idle connections and destinations are checked.
const SWEEP: Duration = Duration::from_secs(5);
/// The memory that is charged for an open connection: its task with its state (5 KiB measured in plaintext, more with a
/// TLS session), and the two smallest buffers, which it may have however short memory is.
const CONNECTION_BYTES: usize = 16 * 1024;
/// The time within which all clients of a process that another one succeeds are told to go there. A supervisor that ends gives its
/// processes 5 s.
const LEAVE_WITHIN: Duration = Duration::from_secs(4);
/// Questions to a worker that may wait; each is answered within one turn of its event loop.
const MAX_COMMANDS: usize = 16;

/// Events that a worker takes from the kernel at once. The runtime's default is 1024, which takes 12 KiB. Further
/// events are taken once these are handled.
const MAX_EVENTS: usize = 256;

/// Everything that a worker needs, to be sent to its thread.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) instance: InstanceName,
    pub(crate) directory: Directory,
    pub(crate) names: Names,
    pub(crate) policy: watch::Receiver<Option<Arc<ServerPolicy>>>,
    pub(crate) connector: Connector,
    pub(crate) acceptor: Acceptor,
    /// The credentials of both sides, in order to apply revocations and expiry.
    pub(crate) credentials: watch::Receiver<Option<Arc<TlsConfigs>>>,
    pub(crate) limits: Limits,
    pub(crate) outbound: Vec<SocketAddr>,
    pub(crate) inbound: Vec<SocketAddr>,
    /// The ports of the proxy itself, including that of the admin server.
    pub(crate) own_ports: Vec<u16>,
    /// It may serve clients of services, if discovery says that it is their waypoint.
    pub(crate) is_waypoint: bool,
    /// It carries datagrams.
    pub(crate) datagrams: bool,
    /// The sockets of another network namespace, instead of listeners of this one.
    pub(crate) handed: Option<Handed>,
    /// The probes that a kubelet sends to the workload itself.
    pub(crate) kubelet: Option<KubeletCalls>,
    pub(crate) fixed: Option<Fixed>,
    pub(crate) application: Option<SocketAddr>,
    pub(crate) access_log: Option<AccessLog>,
    pub(crate) taps: Taps,
    pub(crate) traces: Option<TracePlan>,
    /// Most open connections; further ones are refused.
    pub(crate) max_connections: usize,
    /// Most new connections a second of the workload, and of each of its clients; `None`: unlimited.
    pub(crate) connection_rate: Option<NonZeroU32>,
    /// The budget to which buffers and connections are charged.
    pub(crate) budget: Budget,
    /// How many workers there are.
    pub(crate) workers: u16,
    /// The part of the workload's rate limits that the workers share.
    pub(crate) limit_table: LimitTable,
}

/// What happens to the listeners of a proxy that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    /// No process will listen for its workload.
    Last,
    /// The workload's broker keeps them. Connections in their queues wait for the next process, which starts after this
    /// one has ended.
    Replaced,
    /// Another process accepts from them already, so streams have time to end here.
    Succeeded,
    /// Like `Succeeded`, but the other process has its own listeners on the same ports.
    PassedOn,
}

impl Departure {
    /// The time within which clients are told, one after the other, to connect elsewhere.
    pub(crate) fn time_to_leave(self) -> Duration {
        match self {
            Self::Last | Self::Replaced => Duration::ZERO,
            // These wait for nothing: what they send is served meanwhile.
            Self::Succeeded | Self::PassedOn => LEAVE_WITHIN,
        }
    }
}

/// What a worker is asked.
#[derive(Debug)]
pub(crate) enum Command {
    /// Send all counts so far.
    Snapshot(oneshot::Sender<Snapshot>),
    /// Send what is in progress and open.
    Load(oneshot::Sender<Load>),
    /// Drain: close HTTP/1 connections after their next response, and HTTP/2 connections after their open streams.
    Drain,
    /// Close the listeners, and answer when that is done. Connections that were accepted or are in the queue are
    /// served, unless the listeners live on elsewhere.
    Close(Departure, oneshot::Sender<()>),
}

/// What a worker has in progress.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// Requests and relays in progress.
    pub(crate) busy: usize,
    /// Accepted connections, including idle ones.
    pub(crate) connections: usize,
    /// Bytes that are charged for buffers and connections.
    pub(crate) charged: usize,
    /// HTTP/2 connections from clients, and to servers.
    pub(crate) http2: [leno_h2::Open; 2],
    /// Set if the worker carries datagrams.
    pub(crate) datagrams: Option<DatagramLoad>,
}

/// A running worker. It ends with the process.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    commands: mpsc::Sender<Command>,
    /// The addresses that it listens on, outbound first.
    pub(crate) listening: Vec<SocketAddr>,
    /// The memory budget, which it shares with the other workers.
    pub(crate) budget: Budget,
    /// Most connections that it may have open.
    pub(crate) max_connections: usize,
    /// Shows whether it stalls.
    pub(crate) pulse: Arc<Pulse>,
}

impl Worker {
    /// Starts the thread and waits until it listens.
    pub(crate) async fn start(number: u16, plan: Plan) -> anyhow::Result<Self> {
        let (commands, received) = mpsc::channel(MAX_COMMANDS);
        let (listening, listens) = oneshot::channel();
        let (budget, max_connections) = (plan.budget, max_connections(&plan));
        // A process with several workloads has threads with the same number for each of them.
        let name = match plan.handed {
            Some(_) => format!("w:{}", plan.instance),
            None => format!("worker-{number}"),
        };
        let pulse = Arc::<Pulse>::default();
        let of_thread = Arc::clone(&pulse);
        thread::Builder::new()
            .name(name)
            .spawn(move || run((plan, of_thread), received, listening))
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
        // A worker that has ended has nothing left to drain.
        let _ended = self.commands.send(Command::Drain).await;
    }

    /// Lets it accept no more connections; the receiver resolves when the listeners are closed. `None` if the worker
    /// has ended.
    pub(crate) async fn close(&self, departure: Departure) -> Option<oneshot::Receiver<()>> {
        let (answer, closed) = oneshot::channel();
        self.commands.send(Command::Close(departure, answer)).await.ok()?;
        Some(closed)
    }
}

fn run(
    (plan, pulse): (Plan, Arc<Pulse>),
    commands: mpsc::Receiver<Command>,
    listening: oneshot::Sender<anyhow::Result<Vec<SocketAddr>>>,
) {
    pulse.begin();
    plan.budget.enter();
    reclaim::find_stack();
    // The tasks use the scheduler of the runtime. A `LocalSet` would add a second scheduler.
    let mut builder = Builder::new_current_thread();
    builder.enable_all().max_io_events_per_tick(MAX_EVENTS);
    let runtime = match builder.build_local(LocalOptions::default()) {
        Ok(runtime) => runtime,
        Err(error) => {
            // The receiver is only gone if the process is ending.
            let _ending = listening.send(Err(error.into()));
            return;
        }
    };
    runtime.block_on(Box::pin(serve((plan, &pulse), commands, listening)));
    // Dropping the runtime drops its tasks and what they own.
    drop(runtime);
    budget::leave();
}

/// The counters of outbound connections that were delayed, and that were reset, because of earlier ones.
const OUTBOUND_PACED: (Counter, Counter) = (Counter::OutboundSlowed, Counter::OutboundRate);
const INBOUND_PACED: (Counter, Counter) = (Counter::InboundSlowed, Counter::InboundRate);

/// The client of an accepted connection, and the local address.
type Accepted = (SocketAddr, SocketAddr);

/// The state of a worker's thread.
pub(crate) struct Planes {
    outbound: Outbound,
    inbound: Inbound,
    registry: Rc<Registry>,
    activity: Rc<Activity>,
    admission: Arc<Admission>,
    /// Limits the rate of new connections, outbound and inbound.
    paces: Option<RefCell<(Pace, Paces)>>,
    standing: Standing,
    /// The tasks that accept connections. They end with `open`.
    accepting: RefCell<Vec<JoinHandle<()>>>,
    /// The tasks that serve connections of the workload.
    serving: Rc<Tasks<Box<Arrived>>>,
    /// Set when connections are no longer accepted, with the reason; `None` while they are.
    open: watch::Sender<Option<Departure>>,
    /// The number of workers that accept on the same ports.
    workers: u16,
    /// The exporters of spans and of records of the access log, if there are any.
    exporters: Vec<Rc<Exporter>>,
    /// How many panics of this thread the registry has counted.
    panics: Cell<u64>,
    /// How many in-memory connections of this thread the registry has counted, outbound and inbound.
    in_process: Cell<[u64; 2]>,
    /// How many unread responses of this thread the registry has counted.
    unread_answers: Cell<u64>,
    /// How many lost announcements of destroyed sockets the registry has counted.
    lost_announcements: Cell<u64>,
    /// How many refused connections to the proxy itself the registry has counted.
    refused_passages: Cell<u64>,
    /// Carries datagrams, if the workload has any.
    datagrams: RefCell<Option<Datagrams>>,
}

/// An admitted connection of the workload. It is boxed, so that the task that serves it needs no space for this as
/// well.
struct Arrived {
    planes: Rc<Planes>,
    stream: TcpStream,
    /// The local address at which it was accepted.
    listener: SocketAddr,
    turn: Duration,
    /// The connection counts as open until this is dropped.
    open: (Charge, Admitted),
}

async fn serve(
    (mut plan, pulse): (Plan, &Pulse),
    mut commands: mpsc::Receiver<Command>,
    listening: oneshot::Sender<anyhow::Result<Vec<SocketAddr>>>,
) {
    let Sockets { outbound, inbound, passage, datagrams } = match Sockets::bind(&mut plan).await {
        Ok(sockets) => sockets,
        Err(error) => {
            // The receiver is only gone if the process is ending.
            let _ending = listening.send(Err(error));
            return;
        }
    };
    let addresses = outbound.iter().chain(&inbound).map(Listener::address).collect();
    let (mut policy, mut credentials) = (plan.policy.clone(), plan.credentials.clone());
    let mut renewed = plan.acceptor.renewed();
    let planes = Rc::new(Planes::new(plan));
    planes.follow(policy.borrow_and_update().as_deref());
    planes.follow_destroyed();
    for exporter in &planes.exporters {
        spawn_local(Rc::clone(exporter).run());
    }
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
        return;
    }
    let _ending = listening.send(Ok(addresses));
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                Some(command) => planes.answer(command),
                None => return,
            },
            () = pulse.asked() => pulse.turn(),
            // The sender lives as long as the process.
            Ok(()) = policy.changed() => {
                planes.follow(policy.borrow_and_update().as_deref());
                planes.inbound.follow();
            }
            Ok(()) = credentials.changed() => {
                let configs = credentials.borrow_and_update().clone();
                planes.standing.end_revoked(configs.as_deref());
            }
            Some(renewal) = renewed.recv() => planes.standing.apply(&renewal),
            _ = sweep.tick() => {
                planes.sweep();
                planes.standing.sweep(credentials.borrow().as_deref(), planes.renewals_arrive());
            }
        }
    }
}

/// The sockets of a worker.
struct Sockets {
    outbound: Vec<Listener>,
    inbound: Vec<Listener>,
    passage: Option<(Rc<Passage>, Listener)>,
    datagrams: Option<DatagramSockets>,
}

impl Sockets {
    async fn bind(plan: &mut Plan) -> anyhow::Result<Self> {
        let (outbound, inbound) = match plan.handed.take() {
            Some(handed) => handed.enter()?,
            None => (bind(&plan.outbound)?, bind(&plan.inbound)?),
        };
        let passage = plan.is_waypoint.then(Passage::open).transpose();
        let passage = passage.context("listening for the own connections")?;
        let datagrams = match plan.datagrams {
            true => Some(DatagramSockets::bind().await?),
            false => None,
        };
        Ok(Self { outbound, inbound, passage, datagrams })
    }
}

/// Waits for the turn of a connection. A function of its own, because few connections wait, and so their tasks need no
/// space for the timer.
async fn wait(turn: Duration) {
    if !turn.is_zero() {
        Box::pin(tokio::time::sleep(turn)).await;
    }
}

fn bind(addresses: &[SocketAddr]) -> anyhow::Result<Vec<Listener>> {
    let bind = |address: &SocketAddr| match Listener::bind(*address) {
        // A machine without IPv6 has no such address; the IPv4 listeners serve its clients.
        Err(error) if address.is_ipv6() && leno_sockets::is_no_family(&error) => None,
        other => Some(other.with_context(|| format!("listening on {address}"))),
    };
    addresses.iter().filter_map(bind).collect()
}

/// The number of connections for which there are descriptors and memory.
#[expect(clippy::arithmetic_side_effects, reason = "the divisor is not zero")]
fn max_connections(plan: &Plan) -> usize {
    let charged = plan.budget.bytes_for_new() / CONNECTION_BYTES / usize::from(plan.workers.max(1));
    plan.max_connections.min(charged).max(MIN_CONNECTIONS)
}

/// HBONE tunnels have descriptors of their own, besides those of connections.
fn max_tunnels(plan: &Plan) -> usize {
    max_connections(plan) / CONNECTIONS_PER_TUNNEL
}

/// The memory in which this worker counts requests. The aggregator of flows can read it, if the kernel supports that.
fn memory() -> WorkerMemory {
    WorkerMemory::shared().unwrap_or_else(|error| {
        tracing::warn!(%error, "the aggregator of flows cannot read requests");
        WorkerMemory::private()
    })
}

/// Decides which connections of this worker are admitted.
fn admission(plan: &Plan) -> Arc<Admission> {
    let directions = match (plan.outbound.is_empty(), plan.inbound.is_empty()) {
        (false, true) => Directions::Outbound,
        (true, false) => Directions::Inbound,
        _ => Directions::Both,
    };
    Admission::new(max_connections(plan), directions)
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

impl Planes {
    fn new(plan: Plan) -> Self {
        let (admission, max_tunnels) = (admission(&plan), max_tunnels(&plan));
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
        let paces = |rate| RefCell::new((Pace::new(rate), Paces::new(rate)));
        let paces = plan.connection_rate.map(paces);
        let inbound = Inbound::new(leno_inbound::Parts {
            workload: plan.instance,
            directory: plan.directory,
            services,
            policy: plan.policy,
            tls: plan.acceptor,
            registry: Rc::clone(&registry),
            activity: Rc::clone(&activity),
            // Waiting for the response is up to the client's proxy, which has the policy.
            limits: Limits { response_wait: plan.limits.stall, ..plan.limits },
            application: plan.application,
            workers: plan.workers,
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
        }
    }

    pub(crate) fn outbound(&self) -> &Outbound {
        &self.outbound
    }

    pub(crate) fn inbound(&self) -> &Inbound {
        &self.inbound
    }

    /// Starts to carry datagrams.
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

    /// Subscribes to the kernel's announcements of destroyed sockets, which show what applications had not read.
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

    fn answer(&self, command: Command) {
        match command {
            // The receiver may be gone.
            Command::Snapshot(answer) => {
                let abuses = leno_h2::abuse_counts().map(|(abuse, count)| (abuse.label(), count));
                let counted = self.panics.replace(panics());
                self.registry.count_many(Counter::Panics, panics().saturating_sub(counted));
                self.count_in_process();
                let unread = leno_http::unread_answers();
                let counted = self.unread_answers.replace(unread);
                self.registry.count_many(Counter::AnswersUnread, unread.saturating_sub(counted));
                let lost = leno_transport::lost_announcements();
                let counted = self.lost_announcements.replace(lost);
                self.registry.count_many(Counter::AnnouncementsLost, lost.saturating_sub(counted));
                let refused = leno_transport::refused_passages();
                let counted = self.refused_passages.replace(refused);
                self.registry
                    .count_many(Counter::OutboundPassages, refused.saturating_sub(counted));
                // Expired ejections are removed first, so that only present ones are reported.
                self.outbound.sweep();
                let _given_up = answer.send(self.registry.snapshot().with_abuses(abuses));
            }
            Command::Load(answer) => {
                let connections = self.admission.connections();
                let (busy, charged) = (self.activity.busy(), budget::charged());
                let http2 = leno_h2::open_counts();
                let datagrams = self.datagrams.borrow().as_ref().map(DatagramLoad::of);
                let load = Load { busy, connections, charged, http2, datagrams };
                let _given_up = answer.send(load);
            }
            Command::Drain => {
                let departure = *self.open.borrow();
                self.activity.drain(departure.map_or(Duration::ZERO, Departure::time_to_leave));
            }
            Command::Close(departure, answer) => {
                self.open.send_replace(Some(departure));
                // Clients open their flows again at another endpoint, or at the next proxy, whose sockets have the same
                // ports.
                let datagrams = self.datagrams.take();
                datagrams.iter().for_each(Datagrams::close);
                let accepting = self.accepting.take();
                spawn_local(async move {
                    for task in accepting {
                        // A task that has panicked accepts nothing either.
                        let _ended = task.await;
                    }
                    if let Some(datagrams) = datagrams {
                        datagrams.closed().await;
                    }
                    // The control thread may end without waiting for the answer.
                    let _ending = answer.send(());
                });
            }
        }
    }

    /// Which process receives the renewals of clients.
    fn renewals_arrive(&self) -> RenewalsArrive {
        match *self.open.borrow() {
            Some(Departure::Succeeded | Departure::PassedOn) => RenewalsArrive::Elsewhere,
            Some(Departure::Last | Departure::Replaced) | None => RenewalsArrive::Here,
        }
    }

    /// Counts the connections that went on in memory since the last call.
    fn count_in_process(&self) {
        let now = leno_tls::in_process_counts();
        let before = self.in_process.replace(now);
        let counters = [Counter::OutboundInProcess, Counter::InboundInProcess];
        for (counter, (now, before)) in counters.into_iter().zip(now.into_iter().zip(before)) {
            self.registry.count_many(counter, now.saturating_sub(before));
        }
    }

    /// Spawns a task that accepts connections of a listener until the worker closes.
    fn accept(
        self: &Rc<Self>,
        listener: Listener,
        serve: impl Fn(&Rc<Self>, TcpStream, Accepted) + 'static,
    ) {
        let (planes, mut open) = (Rc::clone(self), self.open.subscribe());
        let task = spawn_local(async move {
            let address = listener.address();
            loop {
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, client)) => serve(&planes, stream, (client, address)),
                        Err(error) => tracing::error!(%error, %address, "accepting"),
                    },
                    _closing = open.changed() => break,
                }
            }
            let departure = *open.borrow();
            let serve = |stream, client| serve(&planes, stream, (client, address));
            match departure {
                Some(Departure::Last) => listener.close(serve).await,
                Some(Departure::PassedOn) => listener.pass_on(planes.workers, serve).await,
                // A listener that lives on elsewhere must not refuse clients.
                Some(Departure::Replaced | Departure::Succeeded) | None => {}
            }
        });
        self.accepting.borrow_mut().push(task);
    }

    /// Serves clients of the services whose waypoint this proxy is. The listener stays open to the end, because
    /// connections that were accepted before a drain need it until they end.
    fn serve_services(self: &Rc<Self>, passage: Rc<Passage>, listener: Listener) {
        self.inbound.serve_services(Rc::clone(&passage));
        let planes = Rc::clone(self);
        // The task ends with the worker.
        spawn_local(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, client)) => {
                        planes.serve_passage(stream, passage.destination(client))
                    }
                    Err(error) => tracing::error!(%error, "accepting of the own connections"),
                }
            }
        });
    }

    /// Serves a connection from the inbound side, which has admitted its client.
    fn serve_passage(self: &Rc<Self>, mut stream: TcpStream, to: Option<SocketAddr>) {
        let Some(to) = to else {
            tracing::debug!(
                "refused: another program has connected to where this proxy connects to itself"
            );
            stream.reset_on_drop();
            return;
        };
        let Some(charge) = self.charge(&mut stream, Counter::OutboundMemoryBudget) else { return };
        let planes = Rc::clone(self);
        spawn_contained(async move {
            let _open = charge;
            planes.outbound.serve_waypoint(stream, to).await;
        });
    }

    fn sweep(&self) {
        test_panic("sweep", b"");
        self.serving.sweep();
        self.outbound.sweep();
        self.inbound.sweep();
        if let Some(datagrams) = &*self.datagrams.borrow() {
            datagrams.sweep();
        }
        for exporter in &self.exporters {
            exporter.sweep();
        }
        if self.activity.busy() == 0 {
            leno_http::trim_pool();
            leno_h2::trim_chunks();
            leno_transport::trim_buffers();
            reclaim::release_stack();
        }
    }

    /// Charges the budget for one more connection; refuses the connection if memory is short.
    fn charge(&self, stream: &mut TcpStream, refused: Counter) -> Option<Charge> {
        if budget::admits() {
            return Some(Charge::new(CONNECTION_BYTES));
        }
        self.registry.count(refused);
        stream.reset_on_drop();
        None
    }

    /// Whether a connection passes, waits or is refused, because of the connections before it.
    fn arrival(&self, arrive: impl FnOnce(&mut (Pace, Paces), Instant) -> Arrival) -> Arrival {
        let Some(paces) = &self.paces else { return Arrival::Passes };
        arrive(&mut paces.borrow_mut(), Instant::now())
    }

    /// How long the connection must wait, which is counted. If too many wait already, it is reset, and the result is
    /// `None`.
    fn turn(
        &self,
        stream: &mut TcpStream,
        arrival: Arrival,
        (slowed, refused): (Counter, Counter),
    ) -> Option<Duration> {
        match arrival {
            Arrival::Passes => Some(Duration::ZERO),
            Arrival::Waits(wait) => {
                self.registry.count(slowed);
                Some(wait)
            }
            Arrival::Refused => {
                self.registry.count(refused);
                stream.reset_on_drop();
                None
            }
        }
    }

    /// Serves an outbound connection.
    fn serve_outbound(self: &Rc<Self>, mut stream: TcpStream, (_, listener): Accepted) {
        let Some(charge) = self.charge(&mut stream, Counter::OutboundMemoryBudget) else { return };
        let arrival = self.arrival(|(own, _), now| own.arrive(now));
        let Some(turn) = self.turn(&mut stream, arrival, OUTBOUND_PACED) else { return };
        let Ok(admitted) = self.admission.outbound() else {
            self.registry.count(Counter::OutboundConnectionLimit);
            stream.reset_on_drop();
            return;
        };
        let (planes, open) = (Rc::clone(self), (charge, admitted));
        let arrived = Arrived { planes, stream, listener, turn, open };
        self.serving.run(Box::new(arrived), async |arrived: Box<Arrived>| {
            // The box is freed here, and not at the end of the connection.
            let Arrived { planes, stream, listener, turn, open: _open } =
                *std::convert::identity(arrived);
            wait(turn).await;
            planes.outbound.serve(stream, listener).await;
        });
    }

    /// Serves a connection to the workload. Until its client is known, the task may be ended in favour of another
    /// connection.
    fn serve_inbound(self: &Rc<Self>, mut stream: TcpStream, (client, listener): Accepted) {
        let Some(charge) = self.charge(&mut stream, Counter::InboundMemoryBudget) else { return };
        let arrival = self.arrival(|(_, clients), now| clients.arrive(client.ip(), now));
        let Some(turn) = self.turn(&mut stream, arrival, INBOUND_PACED) else { return };
        let (admitted, has_evicted) = self.admission.inbound(client.ip());
        if has_evicted {
            self.registry.count(Counter::InboundSilentEvicted);
        }
        let (planes, number) = (Rc::clone(self), admitted.number());
        let task = spawn_contained(async move {
            let _open = charge;
            wait(turn).await;
            planes.inbound.serve(stream, (client, listener), admitted).await;
        });
        if let Some(number) = number {
            self.admission.attach(number, task.abort_handle());
        }
    }
}
