//! The control thread: it starts everything, waits for the end, and drains.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use leno_handover::{AsyncChannel, MemberReport, MemberState, ProxyOrder};
use leno_transport::IDLE_GRACE;
use leno_types::ports;
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, LocalSet};

use crate::admin::{server, socket};
use crate::config::Flags;
use crate::confine::confine;
use crate::pulse::beat;
use crate::setup::{Setup, access_log};
use crate::state::State;
use crate::worker::{Departure, Worker};
use crate::{capture, control, fixed, reclaim};

/// The shortest time for which a draining proxy continues. Other proxies learn within this time that it is ending.
const DRAIN_MIN: Duration = Duration::from_millis(500);
/// How often a draining proxy checks whether it is done.
const DRAIN_LOOK: Duration = Duration::from_millis(50);
/// How often a proxy checks whether it is done after it has drained for [`DRAIN_LONG`] while another process serves its
/// workload. This drain may last for hours, and nothing waits for its end.
const DRAIN_LONG_LOOK: Duration = Duration::from_secs(1);
const DRAIN_LONG: Duration = Duration::from_secs(5);

/// How many events the control thread takes from the kernel at once: it has few sockets, and the runtime makes room
/// for 1024 otherwise.
const MAX_EVENTS: usize = 64;

/// The runtime of the control thread. It must be made before the process is confined.
pub(crate) fn control_runtime() -> anyhow::Result<Runtime> {
    reclaim::find_stack();
    let mut builder = Builder::new_current_thread();
    builder.enable_all().max_io_events_per_tick(MAX_EVENTS).on_thread_park(reclaim::before_wait);
    builder.build().context("creating the runtime of the control thread")
}

/// Runs until a signal, `/drain` or an order of the supervisor ends it.
pub(crate) fn run(flags: &Flags) -> anyhow::Result<()> {
    let runtime = control_runtime()?;
    // This is boxed, because the runtime would otherwise have a copy of the future in several stack frames.
    LocalSet::new().block_on(&runtime, Box::pin(live(flags)))
}

async fn live(flags: &Flags) -> anyhow::Result<()> {
    let supervisor = flags.supervised.then(supervisor).transpose()?;
    let mut setup = match &flags.static_file {
        Some(file) => fixed::setup(flags, file)?,
        None => control::setup(flags, None)?,
    };
    let files = read_again(flags);
    // A confined process could not create these files.
    let socket = flags.admin_socket.as_deref().map(socket::bind).transpose()?;
    let workload_api = flags.workload_api.as_deref().map(socket::bind_for_all).transpose()?;
    // A thread that exists already would not be confined.
    confine(&files)?;
    setup.access_log = access_log(flags)?;
    let served = setup.application_identity.clone().zip(workload_api);
    // Serves the Workload API to the application, if that is configured. This is polled together with the proxy,
    // because the end of a task of its own might not be noticed.
    let of_application = async {
        match served {
            Some((application, listener)) => application.serve(listener).await,
            None => std::future::pending().await,
        }
    };
    // This task ends with the runtime.
    tokio::task::spawn_local(reclaim::trim_when_quiet());
    let ends = EndOrders::Signals(Signals::new()?, supervisor.clone());
    (setup.succeeds, setup.supervisor) = (flags.succeeds, supervisor);
    tokio::select! {
        ended = serve(setup, flags.await_capture, socket, ends) => ended,
        never = of_application => match never {},
    }
}

/// The channel to the supervisor, at standard input.
fn supervisor() -> anyhow::Result<Rc<AsyncChannel>> {
    let input = io::stdin().as_fd().try_clone_to_owned().context("opening standard input")?;
    let channel = AsyncChannel::new(input.into()).context(
        "standard input is not the socket of a supervisor: leno up starts proxies with \
         --supervised",
    )?;
    Ok(Rc::new(channel))
}

/// The files that are read again while the proxy runs.
fn read_again(flags: &Flags) -> Vec<&Path> {
    let given = [&flags.token, &flags.roots, &flags.certificate, &flags.certificate_roots];
    let reserved = flags.await_capture.then(|| Path::new(ports::RESERVED_FILE));
    given.into_iter().flatten().map(PathBuf::as_path).chain(reserved).collect()
}

/// The state of a workload when the proxy begins to serve it.
fn state_of(setup: &Setup, await_capture: bool) -> State {
    State {
        instance: setup.instance.clone(),
        workload: setup.workload.clone(),
        metrics_compat: setup.metrics_compat,
        tap_bodies: setup.tap_bodies,
        scrapers: setup.scrapers.clone(),
        workers: RefCell::default(),
        guests: setup.guests.clone(),
        directory: setup.directory.clone(),
        names: setup.names.clone(),
        policy: setup.policy.clone(),
        identity: setup.identity.clone(),
        application_identity: setup.application_identity.clone(),
        has_application: setup.application.is_some(),
        shown: setup.handed.borrow().as_ref().map(|handed| handed.namespace.shown()),
        awaits_capture: await_capture,
        uncaptured: Cell::new(await_capture),
        probes: setup.probes.clone(),
        taps: setup.taps.clone(),
        draining: Cell::new(false),
        drain_asked: Notify::new(),
        workers_drain: watch::Sender::new(false),
        stalls: Cell::new(setup.stalls),
        stalled: Cell::new(0),
        started: SystemTime::now(),
    }
}

/// Serves one workload until the proxy is told to end.
pub(crate) async fn serve(
    setup: Setup,
    await_capture: bool,
    socket: Option<UnixListener>,
    mut ends: EndOrders,
) -> anyhow::Result<()> {
    let state = Rc::new(state_of(&setup, await_capture));
    // While another process serves the workload, that process serves the admin pages.
    let mut admin = AbortOnDrop(None);
    if !setup.succeeds {
        admin = serve_admin(&setup, &state).await?;
    }
    if let Some(socket) = socket {
        tokio::task::spawn_local(socket::serve(socket, Rc::clone(&state)));
    }
    let told = Rc::clone(&state);
    tokio::task::spawn_local(async move { told.tell_of_removal().await });
    if let Some(supervisor) = &setup.supervisor {
        let goes_on = Rc::clone(&state);
        tokio::task::spawn_local(beat(Rc::clone(supervisor), move || !goes_on.hangs()));
    }
    tokio::select! {
        started = start(&setup, &state) => started?,
        _ = ends.next() => return Ok(()),
    }
    if setup.succeeds {
        admin = serve_admin(&setup, &state).await?;
    }
    match &setup.reports {
        Some(reports) => reports.send(MemberState::Serving),
        None => watch_workers(&state),
    }
    report(&setup, MemberState::Serving);
    let departure = tokio::select! {
        departure = ends.next() => departure,
        worker = until_one_stalls(&setup, &state) => {
            // The next membership serves new connections and the admin pages.
            admin = AbortOnDrop(None);
            let Some(departure) = until_it_goes_on(&worker, &mut ends).await else {
                // The connections of a stalled worker cannot be drained.
                return Ok(());
            };
            departure
        }
        // A workload of a node proxy is served again after this, with the same listeners.
        () = state.drain_asked.notified() => match state.shown {
            Some(_) => Departure::Replaced,
            None => Departure::Last,
        },
    };
    if matches!(departure, Departure::Succeeded | Departure::PassedOn) {
        drop(admin);
    }
    if drain(&setup, &state, &mut ends, departure).await == OpenStreams::Cut {
        if let Some(reports) = &setup.reports {
            reports.has_cut().await;
        }
        report(&setup, MemberState::Cut);
    }
    Ok(())
}

/// What became of the streams that were open when a proxy was ordered to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenStreams {
    Ended,
    Cut,
}

/// Returns when the worker of a workload that shares its process stalls, and reports it. The workload then joins the
/// process again, with new threads. Until then, new connections wait in the queues of the listeners.
async fn until_one_stalls(setup: &Setup, state: &State) -> Worker {
    let worker = state.workers.borrow().first().cloned();
    let reports = setup.reports.as_ref().filter(|reports| reports.watches());
    let (Some(reports), Some(worker)) = (reports, worker) else {
        return std::future::pending().await;
    };
    tokio::select! {
        () = worker.pulse.until_it_stalls() => {}
        never = reports.cpu_use(&worker.pulse) => match never {},
    }
    tracing::error!(
        instance = %setup.instance,
        cpu_ms = worker.pulse.cpu().as_millis(),
        "the worker thread of a workload does not respond, and another one accepts new \
         connections: report this with the stack of the thread (`gdb -p PID -batch -ex 'thread \
         apply all bt'`)"
    );
    reports.has_stalled(&worker.pulse);
    if let Some(guests) = &setup.guests {
        // The stalled worker passes no more sockets to guests, so their clients must connect to the next membership.
        guests.leave(Departure::Succeeded);
    }
    worker
}

/// Keeps in `state` how many workers stall now, and how often workers have stalled, in a process that serves one
/// workload. A stalled thread cannot be ended, so the supervisor or the kubelet has to restart the process.
fn watch_workers(state: &Rc<State>) {
    for worker in state.workers.borrow().iter().cloned() {
        let state = Rc::clone(state);
        // This task ends with the runtime.
        tokio::task::spawn_local(async move {
            loop {
                worker.pulse.until_it_stalls().await;
                if state.draining.get() {
                    return;
                }
                state.stalls.update(|stalls| stalls.saturating_add(1));
                state.stalled.update(|stalled| stalled.saturating_add(1));
                tracing::error!(
                    cpu_ms = worker.pulse.cpu().as_millis(),
                    "a worker thread of this proxy does not respond, and a supervisor or a kubelet \
                     restarts the proxy if this continues: report this with the stack of the \
                     thread (`gdb -p PID -batch -ex 'thread apply all bt'`)"
                );
                worker.pulse.until_it_comes_round().await;
                state.stalled.update(|stalled| stalled.saturating_sub(1));
            }
        });
    }
}

/// Waits until a stalled worker completes its turn. `None` if it is ordered to end before that.
async fn until_it_goes_on(worker: &Worker, ends: &mut EndOrders) -> Option<Departure> {
    tokio::select! {
        () = worker.pulse.until_it_comes_round() => Some(Departure::Succeeded),
        _ = ends.next() => None,
    }
}

/// A task that is aborted when this value is dropped. Tasks that it has spawned continue.
struct AbortOnDrop(Option<JoinHandle<()>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// Serves the admin pages, on a listener of this process or on a listener that a broker has handed over.
async fn serve_admin(setup: &Setup, state: &Rc<State>) -> anyhow::Result<AbortOnDrop> {
    let listener = match (setup.admin, setup.admin_handed.take()) {
        (Some(address), _) => {
            let bound = match setup.supervisor {
                // The process that takes over listens before this one has closed its listener.
                Some(_) => leno_program::listen_beside(address).and_then(|listener| {
                    // When an earlier process took over, it may have directed all clients to its own listener.
                    leno_sockets::spread(&listener).map(|()| listener)
                }),
                None => leno_program::listen(address).await,
            };
            bound
                .with_context(|| format!("listening on {address} for /metrics, /ready and so on"))?
        }
        (None, Some(handed)) => {
            // The socket may be bound and not listening yet.
            leno_sockets::listen(&handed, leno_sockets::ADMIN_BACKLOG)?;
            tokio::net::TcpListener::from_std(handed.into())?
        }
        (None, None) => return Ok(AbortOnDrop(None)),
    };
    let task = tokio::task::spawn_local(server::serve(listener, Rc::clone(state)));
    Ok(AbortOnDrop(Some(task)))
}

/// Waits until the proxy can serve, and then lets it listen.
async fn start(setup: &Setup, state: &State) -> anyhow::Result<()> {
    if !setup.is_static {
        control::until_usable(setup).await;
    }
    // The kernel programs only notice a listener when it starts to listen, so the capture must be complete.
    if state.uncaptured.get() {
        capture::until_marked().await?;
        state.uncaptured.set(false);
    }
    for number in 0..setup.workers.max(1) {
        let worker = Worker::start(number, setup.plan(number), setup.handed.take()).await?;
        let listening: Vec<String> = worker.listening.iter().map(ToString::to_string).collect();
        tracing::info!(number, listening = listening.join(" "), "worker listens");
        state.workers.borrow_mut().push(worker);
    }
    reclaim::heap_was_freed();
    Ok(())
}

/// Serves until nothing is in progress, the time limit is reached, or a second order ends the proxy.
///
/// Without a next process ([`Departure::Last`]), connections are accepted while something is in progress, but for
/// half of the time at most, so that clients that do not know yet that the proxy is ending are served. Then the
/// listeners close, so that the last clients have time as well. In all other cases no connection is accepted, because
/// new ones belong to the next process. If the next process serves already, open streams have a longer limit
/// (`handover_timeout`).
async fn drain(
    setup: &Setup,
    state: &State,
    ends: &mut EndOrders,
    departure: Departure,
) -> OpenStreams {
    state.draining.set(true);
    let workers = state.workers.borrow().clone();
    let done = async {
        if departure != Departure::Last {
            close(&workers, departure).await;
            report(setup, MemberState::Closed);
        }
        for worker in &workers {
            worker.drain().await;
        }
        if let Some(guests) = &setup.guests {
            guests.leave(departure);
        }
        let began = Instant::now();
        // A worker answers after it has carried out earlier orders, so all workers drain now.
        state.load().await;
        state.workers_drain.send_replace(true);
        if departure == Departure::Last {
            let half = setup.drain_timeout.checked_div(2).unwrap_or_default();
            until_idle(state, DRAIN_MIN, (began, half), departure).await;
            close(&workers, departure).await;
        }
        let bound = match departure {
            Departure::Last | Departure::Replaced => setup.drain_timeout,
            Departure::Succeeded | Departure::PassedOn => setup.handover_timeout,
        };
        let busy = until_idle(state, Duration::ZERO, (began, bound), departure).await;
        if busy > 0 {
            tracing::warn!(
                busy,
                "the drain has reached its time limit: closing the remaining \
                 connections"
            );
            return OpenStreams::Cut;
        }
        OpenStreams::Ended
    };
    tokio::select! {
        streams = done => streams,
        // This order ends what is in progress.
        () = ends.again() => OpenStreams::Cut,
    }
}

/// Reports the state of a proxy that serves one workload to its supervisor, if it has one.
fn report(setup: &Setup, state: MemberState) {
    let Some(supervisor) = &setup.supervisor else { return };
    if let Err(error) = supervisor.send(&MemberReport { number: 0, state }, &[]) {
        // If the supervisor has ended, this process ends, too.
        tracing::error!(%error, ?state, "cannot report to the supervisor");
    }
}

/// Tells workers to accept no more connections.
async fn close(workers: &[Worker], departure: Departure) {
    let mut closing = Vec::new();
    for worker in workers {
        closing.extend(worker.close(departure).await);
    }
    for closed in closing {
        // A worker that has ended accepts no connections either.
        let _ended = closed.await;
    }
}

/// Waits until nothing is in progress, and for at least `least`. If there are idle HTTP/1 clients, it also waits until
/// all were told to leave and their grace has passed, because they may send a request until then. Returns what is still
/// in progress after the longest wait since the drain `began`.
async fn until_idle(
    state: &State,
    least: Duration,
    (began, longest): (Instant, Duration),
    departure: Departure,
) -> usize {
    let since = Instant::now();
    loop {
        tokio::time::sleep(pause(departure, since.elapsed())).await;
        let left = state.load().await;
        let grace = match left.connections {
            0 => Duration::ZERO,
            _ => IDLE_GRACE.saturating_add(departure.time_to_leave()),
        };
        let busy = left.busy.saturating_add(left.hosted);
        let idle = busy == 0 && since.elapsed() >= least.saturating_add(grace);
        if idle || began.elapsed() >= longest {
            return busy;
        }
    }
}

/// How long to wait between two checks of a proxy that has been draining for this long.
fn pause(departure: Departure, drained: Duration) -> Duration {
    match departure {
        Departure::Succeeded | Departure::PassedOn if drained >= DRAIN_LONG => DRAIN_LONG_LOOK,
        _ => DRAIN_LOOK,
    }
}

/// Where the orders to end come from. The first order makes a proxy drain, and a second one ends it at once.
pub(crate) enum EndOrders {
    /// The signals of the process, and orders of its supervisor.
    Signals(Signals, Option<Rc<AsyncChannel>>),
    /// Orders for one of several workloads in a process.
    Order(watch::Receiver<Departure>),
}

impl EndOrders {
    async fn next(&mut self) -> Departure {
        match self {
            Self::Signals(signals, supervisor) => tokio::select! {
                () = signals.first() => Departure::Last,
                departure = ordered(supervisor.as_deref()) => departure,
            },
            Self::Order(order) => {
                // If the sender was dropped, the process is ending, too.
                let _ended = order.changed().await;
                *order.borrow_and_update()
            }
        }
    }

    /// Waits for an order that ends a draining proxy at once. The order to pass the workload on is not one, because a
    /// supervisor may send it twice.
    async fn again(&mut self) {
        while self.next().await == Departure::PassedOn {}
    }
}

/// Waits for the supervisor's order to end. If the supervisor itself ends, this does not return, because the kernel
/// then ends the proxy.
async fn ordered(supervisor: Option<&AsyncChannel>) -> Departure {
    let Some(supervisor) = supervisor else { return std::future::pending().await };
    loop {
        match supervisor.receive::<ProxyOrder>().await {
            Ok(Some((ProxyOrder::Leave { succeeded: true, .. }, _))) => return Departure::PassedOn,
            Ok(Some((ProxyOrder::Leave { succeeded: false, .. }, _))) => return Departure::Last,
            Ok(Some((ProxyOrder::Join { .. }, _))) => {}
            Ok(None) => return std::future::pending().await,
            // A supervisor of a later version may send other orders.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!(%error, "an order of the supervisor is unknown");
            }
            Err(error) => {
                tracing::error!(%error, "cannot read orders, so this proxy cannot hand its \
                                         workload over");
                return std::future::pending().await;
            }
        }
    }
}

/// The signals that ask a process to end.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    pub(crate) async fn first(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// Regression: a confined proxy could not read the certificate of its kubelet, and used its token instead.
    #[test]
    fn a_confined_proxy_reads_the_certificate_of_its_kubelet() {
        let flags = Flags::try_parse_from([
            "leno-proxy",
            "--name=web-0",
            "--control=https://127.0.0.1:15010",
            "--roots=/roots/roots.pem",
            "--token=/token/token",
            "--certificate=/identity/credentials.pem",
            "--certificate-roots=/identity/roots.pem",
        ])
        .unwrap();
        let files = read_again(&flags);
        for file in
            ["/roots/roots.pem", "/token/token", "/identity/credentials.pem", "/identity/roots.pem"]
        {
            assert!(files.contains(&Path::new(file)), "{file}: {files:?}");
        }
    }

    #[test]
    fn only_a_proxy_whose_workload_another_process_serves_looks_seldom_whether_it_is_done() {
        for departure in [Departure::Last, Departure::Replaced] {
            assert_eq!(pause(departure, DRAIN_LONG), DRAIN_LOOK);
        }
        assert_eq!(pause(Departure::Succeeded, Duration::ZERO), DRAIN_LOOK);
        assert_eq!(pause(Departure::Succeeded, DRAIN_LONG), DRAIN_LONG_LOOK);
    }
}
