//! Starts the brokers of pods in node mode, and hands them to the supervisor of node proxies. A broker is a small
//! process in the network namespace of one pod: it creates the listeners and sockets with which the node proxy, a
//! process outside of the pod, serves the pod.
//!
//! ```text
//!  keeper ── serve, release ──► Brokers ── fork ──► leno-broker             (the pod's namespace and control group)
//!                                  │  ▲ orders                 ▲
//!             Serve, Release       │  │ Held, Served           │ orders
//!                                  ▼  │                        │
//!                               supervisor (DaemonSet leno-node) ──► leno-proxy --node
//! ```
//! A broker ends once no process holds the channel over which it receives orders. This agent and the supervisor both
//! hold it, so the pod's listeners outlive an update of either, and end with the pod.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leno_handover::{
    AsyncChannel, Channel, ChannelListener, PlacedPod, Placement, PlacementReport, ServeOrder,
};
use leno_supervise::Backoff;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::runtime::Handle;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

use crate::host::Host;
use crate::metrics::lock;

mod spawn;
mod supervisors;

use supervisors::{PodProgress, Supervisor, SupervisorEnding, SupervisorOrder, Supervisors};

/// The supervisor's socket, relative to the agent's folder. It is in a separate folder, which the supervisor's pod
/// mounts, so that the supervisor cannot reach any other socket of the agent.
pub(crate) const SOCKET: &str = "node/supervisor.sock";
/// Longest time that a starting pod waits for the supervisor, which may be in the middle of an update.
const SERVED_LIMIT: Duration = Duration::from_secs(10);
/// The pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_secs(1);
/// How long after the start of this agent no broker is started for a running pod, because a supervisor may already
/// have one. The agent does not stop waiting when a supervisor has connected: there may be two, and the first one
/// may not serve all pods.
const HELD_LIMIT: Duration = Duration::from_secs(3);
/// Most orders that are queued for one supervisor. There are two for each pod of a node, which has some hundreds
/// of pods at most. A supervisor whose queue is full is disconnected, and connects again.
const MAX_TOLD: usize = 4096;
/// Longest wait for a supervisor that does not read its orders.
const PATIENCE: Duration = Duration::from_secs(30);
/// Queued notices that a broker has ended. A notice that does not fit is dropped: the keeper's next round finds the
/// pod.
pub(crate) const MAX_ENDED: usize = 64;

const UNSERVED: &str = "no supervisor of node proxies on this node serves it: check the DaemonSet \
                        leno-node, or set leno.dev/mode: sidecar";

/// The brokers of a node; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Brokers {
    program: PathBuf,
    host: Host,
    runtime: Handle,
    state: Mutex<State>,
    /// Notified when a supervisor reports progress, and when a pod is released.
    changed: Notify,
    started: Instant,
    /// The uids of pods whose broker has ended and may be started again.
    ended: mpsc::Sender<String>,
}

#[derive(Debug, Default)]
struct State {
    supervisors: Supervisors,
    /// How many supervisors have connected so far; numbers the connections.
    connected: u64,
    brokers: BTreeMap<String, Broker>,
    /// The back-off for each pod's broker, by uid, because a broker may end unexpectedly. An entry lasts until the
    /// pod is released.
    waits: BTreeMap<String, Backoff>,
    started: u64,
    ended: u64,
    /// How many brokers were killed because they hung.
    hung: u64,
}

#[derive(Debug)]
struct Broker {
    pod: PlacedPod,
    orders: Channel,
    /// Distinguishes the broker from an earlier one of the same pod.
    number: u64,
    /// Whether it was started for a new sandbox of the pod, so that brokers of earlier sandboxes of the pod are
    /// useless.
    is_new: bool,
    watch: AbortHandle,
}

/// What a newly connected supervisor has reported, before it gets its first order.
#[derive(Debug, Default)]
struct Introduction {
    /// The pods that it serves through a broker that this agent accepts.
    holds: BTreeMap<String, PodProgress>,
    /// Of these, the pods whose settings have changed since the supervisor got them.
    outdated: Vec<String>,
    /// The pods that it serves through any other broker.
    refused: Vec<String>,
    ending: SupervisorEnding,
}

/// What to do after a report.
enum ReportEffect {
    Nothing,
    /// The introduction is complete, and orders may be sent. The number is the time at which the supervisor started.
    Complete(u64),
    /// The broker of the pod with this uid must be killed.
    Kill(String),
    /// The connection must be closed.
    Lost,
}

/// The network namespace and the control groups of a pod, in which its broker is started.
#[derive(Debug)]
pub(crate) struct PodSandbox<'a> {
    pub(crate) netns: &'a Path,
    /// The control group of version 2; `None` if the node has none.
    pub(crate) cgroup: Option<PathBuf>,
    /// The control groups of version 1, by which the runtime and the kubelet find the processes of the pod. Missing
    /// ones are created.
    pub(crate) others: Vec<PathBuf>,
    /// Whether the pod's sandbox was just created, so that no supervisor can have a broker for it.
    pub(crate) is_new: bool,
    /// Whether the pod runs without a proxy, so that its listeners must not take connections before a node proxy accepts them.
    pub(crate) enters: bool,
}

impl Brokers {
    /// Creates this without any broker. Brokers are started from `program`. The receiver gets the uids of pods
    /// that need a new broker.
    pub(crate) fn new(
        program: PathBuf,
        host: Host,
        runtime: Handle,
    ) -> (Arc<Self>, mpsc::Receiver<String>) {
        let (ended, has_ended) = mpsc::channel(MAX_ENDED);
        let state = Mutex::default();
        let (changed, started) = (Notify::new(), Instant::now());
        let own = Self { program, host, runtime, state, changed, started, ended };
        (Arc::new(own), has_ended)
    }

    /// Listens for supervisors, on a thread that ends with the process.
    ///
    /// # Errors
    /// If the socket cannot be created.
    pub(crate) fn listen(self: &Arc<Self>, path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let listener = ChannelListener::bind(path)?;
        let brokers = Arc::clone(self);
        let thread = std::thread::Builder::new().name("supervisor".to_owned());
        thread.spawn(move || {
            loop {
                match listener.accept() {
                    Ok(channel) => {
                        brokers.runtime.spawn(Arc::clone(&brokers).meet(channel));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the supervisor of node proxies cannot connect");
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        })?;
        Ok(())
    }

    /// Whether a pod has a broker. If its settings have changed since it was offered, its supervisor is told.
    pub(crate) fn follow(&self, pod: &PlacedPod) -> bool {
        let mut state = lock(&self.state);
        let State { brokers, supervisors, .. } = &mut *state;
        let Some(broker) = brokers.get_mut(&pod.uid) else { return false };
        if broker.pod.follow(pod) {
            supervisors.change(&pod.uid);
        }
        true
    }

    /// Serves a captured pod: starts its broker if there is none, and offers the broker to the supervisor. Just
    /// after the start of this agent, no broker is started for a running pod, because a supervisor may already
    /// have one.
    ///
    /// # Errors
    /// If the broker cannot be started.
    pub(crate) fn serve(
        self: &Arc<Self>,
        pod: PlacedPod,
        place: &PodSandbox<'_>,
    ) -> io::Result<()> {
        let mut state = lock(&self.state);
        let waits = !place.is_new && self.started.elapsed() < HELD_LIMIT;
        if waits || state.brokers.contains_key(&pod.uid) {
            return Ok(());
        }
        let _context = self.runtime.enter();
        let orders = spawn::broker(&self.program, place)?;
        let uid = pod.uid.clone();
        self.insert(&mut state, pod, orders, place.is_new)?;
        // The supervisors' brokers of this pod are from before, and useless now.
        state.supervisors.lose(&uid);
        state.supervisors.settle(&uid);
        Ok(())
    }

    /// Whether a supervisor serves the pod.
    ///
    /// # Errors
    /// Why no supervisor does.
    pub(crate) fn check_served(&self, uid: &str) -> Result<(), String> {
        match lock(&self.state).is_served(uid) {
            true => Ok(()),
            false => Err(UNSERVED.to_owned()),
        }
    }

    /// Whether a proxy process accepts the pod's connections.
    pub(crate) fn is_serving(&self, uid: &str) -> bool {
        let state = lock(&self.state);
        state.brokers.contains_key(uid) && state.supervisors.is_serving(uid)
    }

    /// Completes once a supervisor has reported progress, or a pod was released, after this call.
    pub(crate) fn changes(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Waits until a supervisor serves the pod.
    ///
    /// # Errors
    /// Why no supervisor does.
    pub(crate) async fn until_served(&self, uid: &str) -> Result<(), String> {
        let served = async {
            loop {
                let changed = self.changed.notified();
                let served = {
                    let state = lock(&self.state);
                    !state.brokers.contains_key(uid) || state.is_served(uid)
                };
                if served {
                    return;
                }
                changed.await;
            }
        };
        let _late = tokio::time::timeout(SERVED_LIMIT, served).await;
        self.check_served(uid)
    }

    /// Ends the broker of a pod, and makes all supervisors release the pod, even if its broker has already ended.
    pub(crate) fn release(&self, uid: &str) {
        let mut state = lock(&self.state);
        state.waits.remove(uid);
        if let Some(broker) = state.brokers.remove(uid) {
            broker.watch.abort();
        }
        state.supervisors.release_everywhere(uid);
        self.changed.notify_waiters();
    }

    /// Has the supervisors finish the open streams of a pod that leaves node mode, and the broker close its listeners. The broker
    /// ends with the last stream.
    pub(crate) fn leave(&self, uid: &str) {
        let mut state = lock(&self.state);
        state.waits.remove(uid);
        state.supervisors.leave(uid);
        if let Some(broker) = state.brokers.remove(uid) {
            broker.watch.abort();
            if let Err(error) = broker.orders.send(&ServeOrder { closes: true }, &[]) {
                tracing::warn!(uid, %error, "the broker of a pod cannot be ordered to close its listeners");
            }
        }
        self.changed.notify_waiters();
    }

    /// The uids of all pods that have a broker, or whose broker has ended and will be started again.
    pub(crate) fn uids(&self) -> Vec<String> {
        lock(&self.state).waits.keys().cloned().collect()
    }

    /// Appends the metrics, as Prometheus text.
    pub(crate) fn render(&self, text: &mut String) {
        let state = lock(&self.state);
        let served = state.brokers.keys().filter(|uid| state.is_served(uid)).count();
        let rows = [
            (
                "node_pods",
                "gauge",
                "Pods in node mode that have a broker.",
                state.brokers.len() as u64,
            ),
            (
                "node_pods_served",
                "gauge",
                "Pods in node mode that a node proxy serves.",
                served as u64,
            ),
            (
                "supervisor_connected",
                "gauge",
                "Whether the supervisor of node proxies is connected.",
                u64::from(!state.supervisors.is_empty()),
            ),
            (
                "supervisors",
                "gauge",
                "Supervisors of node proxies that are connected: two or more while one replaces another.",
                state.supervisors.len() as u64,
            ),
            ("broker_ends_total", "counter", "Brokers that ended before their pods.", state.ended),
            (
                "brokers_hung_total",
                "counter",
                "Brokers that were replaced because they received no messages for 5 s.",
                state.hung,
            ),
        ];
        for (name, kind, help, value) in rows {
            text.push_str(&format!(
                "# HELP leno_agent_{name} {help}\n# TYPE leno_agent_{name} {kind}\nleno_agent_{name} {value}\n"
            ));
        }
    }

    /// Adds a broker, and starts a task that notices its end.
    fn insert(
        self: &Arc<Self>,
        state: &mut State,
        pod: PlacedPod,
        orders: Channel,
        is_new: bool,
    ) -> io::Result<()> {
        state.started = state.started.wrapping_add(1);
        let (uid, number) = (pod.uid.clone(), state.started);
        state
            .waits
            .entry(uid.clone())
            .or_insert_with(|| Backoff::eager(Instant::now()))
            .started(Instant::now());
        let (brokers, watched) = (Arc::clone(self), orders.try_clone()?);
        let of = uid.clone();
        let watch = self.runtime.spawn(async move {
            // A broker sends nothing. So if `receive` returns anything, the broker has ended.
            if let Ok(watched) = AsyncChannel::new(watched) {
                let _ended = watched.receive::<()>().await;
            }
            brokers.has_ended(of, number).await;
        });
        let watch = watch.abort_handle();
        state.brokers.insert(uid, Broker { pod, orders, number, is_new, watch });
        Ok(())
    }

    async fn has_ended(self: Arc<Self>, uid: String, number: u64) {
        let wait = {
            let mut state = lock(&self.state);
            if state.brokers.get(&uid).is_none_or(|broker| broker.number != number) {
                return;
            }
            state.brokers.remove(&uid);
            state.supervisors.lose(&uid);
            state.ended = state.ended.wrapping_add(1);
            let now = Instant::now();
            state.waits.get_mut(&uid).map_or(Duration::ZERO, |backoff| backoff.ended(now))
        };
        tracing::warn!(uid, "the broker of a pod has ended; restarting it");
        tokio::time::sleep(wait).await;
        // If the queue is full, the keeper's next round finds the pod.
        let _full = self.ended.try_send(uid);
    }

    /// Kills the broker of a pod because it hangs, unless a debugger has stopped it. Its end is noticed like any other.
    /// Blocks.
    fn kill_hung(&self, uid: &str) {
        let program = self.program.file_name().unwrap_or_default().to_string_lossy();
        for pid in self.host.brokers(uid, &program) {
            let Some(how) = self.host.hangs(pid) else {
                tracing::info!(
                    uid,
                    pid,
                    "a debugger has stopped the broker of a pod, and new connections wait for it"
                );
                continue;
            };
            match kill(Pid::from_raw(pid), Signal::SIGKILL) {
                Ok(()) => {
                    let mut state = lock(&self.state);
                    state.hung = state.hung.wrapping_add(1);
                    tracing::warn!(
                        uid,
                        pid,
                        "the broker of a pod {how}, and new connections wait for it: it is killed, \
                         which cuts its connections, and restarted"
                    );
                }
                Err(Errno::ESRCH) => {}
                Err(error) => {
                    tracing::warn!(uid, pid, %error, "the broker of a pod hangs and cannot be killed");
                }
            }
        }
    }

    /// Handles the connection of one supervisor, until it ends.
    async fn meet(self: Arc<Self>, channel: Channel) {
        let Ok(channel) = AsyncChannel::new(channel) else { return };
        let channel = Arc::new(channel);
        let number = {
            let mut state = lock(&self.state);
            state.connected = state.connected.wrapping_add(1);
            state.connected
        };
        let mut introduction = Some(Introduction::default());
        while let Ok(Some((report, descriptors))) = channel.receive::<PlacementReport>().await {
            let heard = match &mut introduction {
                Some(of) => self.learn(of, report, descriptors),
                None => lock(&self.state).hear(number, report),
            };
            match heard {
                ReportEffect::Nothing => {}
                ReportEffect::Kill(uid) => {
                    let brokers = Arc::clone(&self);
                    self.runtime.spawn_blocking(move || brokers.kill_hung(&uid));
                }
                ReportEffect::Complete(began_ms) => {
                    let Introduction { holds, outdated, refused, ending } =
                        introduction.take().unwrap_or_default();
                    tracing::info!(pods = holds.len(), "a supervisor of node proxies is connected");
                    let (told, tells) = mpsc::channel(MAX_TOLD);
                    self.runtime.spawn(Arc::clone(&self).tell(Arc::clone(&channel), tells));
                    let channel = Arc::clone(&channel);
                    let supervisor = Supervisor {
                        number,
                        began_ms,
                        ending,
                        channel,
                        told,
                        holds,
                        successor: None,
                    };
                    lock(&self.state).supervise(supervisor, (&outdated, &refused));
                }
                // The supervisor connects again, and then introduces itself completely.
                ReportEffect::Lost => {
                    channel.shut_down();
                    break;
                }
            }
            self.changed.notify_waiters();
        }
        lock(&self.state).has_left(number);
        self.changed.notify_waiters();
    }

    /// Handles a report of a supervisor that has not got its first order.
    fn learn(
        self: &Arc<Self>,
        of: &mut Introduction,
        report: PlacementReport,
        descriptors: Vec<OwnedFd>,
    ) -> ReportEffect {
        match report {
            PlacementReport::Held { pod, serving } => {
                let uid = pod.uid.clone();
                let Ok([orders]) = <[_; 1]>::try_from(descriptors) else {
                    // If this pod was missing in the introduction, the supervisor would be ordered to release it.
                    tracing::warn!(
                        uid,
                        "the descriptor of a pod's broker was lost on its way from the supervisor: \
                         raise the limit of open files of leno-agent"
                    );
                    return ReportEffect::Lost;
                };
                let mut state = lock(&self.state);
                match self.take_over(&mut state, pod.clone(), orders.into()) {
                    Ok(true) => {
                        let (mut known, broker) = (pod, state.brokers.get(&uid));
                        if broker.is_some_and(|broker| known.follow(&broker.pod)) {
                            of.outdated.push(uid.clone());
                        }
                        let progress =
                            if serving { PodProgress::Serving } else { PodProgress::Joined };
                        of.holds.insert(uid, progress);
                    }
                    Ok(false) => of.refused.push(uid),
                    Err(error) => {
                        tracing::warn!(uid, %error, "the broker of a pod cannot be taken over");
                        return ReportEffect::Lost;
                    }
                }
            }
            PlacementReport::Ending { serves } => of.ending = SupervisorEnding::of(serves),
            PlacementReport::Complete { began_ms } => return ReportEffect::Complete(began_ms),
            // These reports answer orders of an earlier agent. The supervisor reports the present state of its
            // pods with `Held`.
            PlacementReport::Served { .. }
            | PlacementReport::Serving { .. }
            | PlacementReport::BrokerHangs { .. }
            | PlacementReport::Unknown => {}
        }
        ReportEffect::Nothing
    }

    /// Accepts the broker through which a supervisor serves a pod. Returns false if that broker is useless, so
    /// that the supervisor must release the pod. If this agent has already started a broker for the running pod,
    /// that one is ended, because two brokers cannot have the same listeners.
    ///
    /// # Errors
    /// The system's reason. The broker was not accepted.
    fn take_over(
        self: &Arc<Self>,
        state: &mut State,
        pod: PlacedPod,
        orders: Channel,
    ) -> io::Result<bool> {
        let broker = state.brokers.get(&pod.uid);
        if let Some(broker) = broker
            && broker.orders.is_same(&orders)?
        {
            return Ok(true);
        }
        if orders.is_closed()? {
            return Ok(false);
        }
        if let Some(broker) = broker {
            if broker.is_new {
                return Ok(false);
            }
            broker.watch.abort();
            state.supervisors.release_held(&pod.uid);
        }
        self.insert(state, pod, orders, false).map(|()| true)
    }

    /// Sends a supervisor its orders, one after another, until its queue is closed.
    async fn tell(
        self: Arc<Self>,
        channel: Arc<AsyncChannel>,
        mut tells: mpsc::Receiver<SupervisorOrder>,
    ) {
        while let Some(told) = tells.recv().await {
            let (placement, orders) = match &told {
                SupervisorOrder::Release { uid, succeeded } => {
                    (Placement::Release { uid: uid.clone(), succeeded: *succeeded }, None)
                }
                SupervisorOrder::Serve { uid, succeeds } => match self.offered(uid) {
                    Some((pod, orders)) => {
                        (Placement::Serve { pod, succeeds: *succeeds }, Some(orders))
                    }
                    None => continue,
                },
                SupervisorOrder::Change { uid } => match self.offered(uid) {
                    Some((pod, _)) => (Placement::Change { pod }, None),
                    None => continue,
                },
                SupervisorOrder::Successor { is_there } => {
                    (Placement::Successor { is_there: *is_there }, None)
                }
            };
            let descriptors: Vec<_> = orders.iter().map(|orders| orders.as_fd()).collect();
            match channel.send_within(PATIENCE, &placement, &descriptors).await {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    tracing::error!(?told, %error, "a pod cannot be handed to its node proxy");
                }
                Err(error) => {
                    // The supervisor connects again, and then gets all orders.
                    tracing::warn!(%error, "cannot send orders to the supervisor of node proxies");
                    return channel.shut_down();
                }
            }
        }
    }

    /// A pod and the channel to its broker, unless the broker has ended.
    fn offered(&self, uid: &str) -> Option<(PlacedPod, Channel)> {
        let state = lock(&self.state);
        let broker = state.brokers.get(uid)?;
        let orders = broker.orders.try_clone().inspect_err(|error| {
            tracing::warn!(uid, %error, "the broker of a pod cannot be handed to the supervisor");
        });
        Some((broker.pod.clone(), orders.ok()?))
    }
}

impl State {
    fn is_served(&self, uid: &str) -> bool {
        self.brokers.contains_key(uid) && self.supervisors.is_served(uid)
    }

    /// Whether a supervisor serves a pod through the broker that the pod has.
    fn is_held(&self, number: u64, uid: &str) -> bool {
        self.brokers.contains_key(uid) && self.supervisors.holds(number, uid)
    }

    /// Adds a supervisor that has introduced itself. It gets the settings of the pods in `outdated`, and must release
    /// those in `refused`.
    fn supervise(
        &mut self,
        mut supervisor: Supervisor,
        (outdated, refused): (&[String], &[String]),
    ) {
        let number = supervisor.number;
        if supervisor.ending == SupervisorEnding::Finishes {
            supervisor.holds.clear();
        }
        // These pods were released after the supervisor had reported them.
        let is_gone = |uid: &&String| !self.waits.contains_key(*uid);
        let gone: Vec<String> = supervisor.holds.keys().filter(is_gone).cloned().collect();
        self.supervisors.add(supervisor);
        for uid in refused.iter().chain(&gone) {
            self.supervisors.release(number, uid, false);
        }
        outdated.iter().for_each(|uid| self.supervisors.change(uid));
        self.settle_all();
    }

    /// Handles a report of a supervisor that has introduced itself.
    fn hear(&mut self, number: u64, report: PlacementReport) -> ReportEffect {
        match report {
            PlacementReport::Served { uid } => {
                self.supervisors.reach(number, &uid, PodProgress::Joined);
            }
            PlacementReport::Serving { uid } => {
                self.supervisors.reach(number, &uid, PodProgress::Serving);
                if self.brokers.contains_key(&uid) {
                    self.supervisors.settle(&uid);
                }
            }
            PlacementReport::Ending { serves } => {
                self.supervisors.end(number, SupervisorEnding::of(serves));
                self.settle_all();
            }
            // The report is ignored if the pod was released, or if its broker is not the one that this supervisor
            // has.
            PlacementReport::BrokerHangs { uid } if self.is_held(number, &uid) => {
                return ReportEffect::Kill(uid);
            }
            PlacementReport::BrokerHangs { .. } => {}
            // The supervisor introduces itself a second time on the same connection, which is an error.
            PlacementReport::Held { .. } | PlacementReport::Complete { .. } => {
                return ReportEffect::Lost;
            }
            PlacementReport::Unknown => {}
        }
        ReportEffect::Nothing
    }

    /// Removes a supervisor that has disconnected. If another supervisor is connected, it serves the pods.
    fn has_left(&mut self, number: u64) {
        let was_met = self.supervisors.remove(number);
        match self.supervisors.current() {
            Some(_) if was_met => {
                tracing::info!("a supervisor of node proxies has ended; another one has its pods");
            }
            None if was_met => tracing::warn!(
                "the supervisor of node proxies has ended; new connections of its pods wait for \
                 the next one"
            ),
            _ => {}
        }
        // A supervisor that disconnects during its introduction leaves pods that no other supervisor serves.
        self.settle_all();
    }

    /// Assigns the pods to the supervisors again: orders the current one to serve each pod that has a broker, and tells
    /// supervisors that are ending whether another one takes over. Must be called whenever a supervisor was added,
    /// removed, or asked to end.
    fn settle_all(&mut self) {
        self.supervisors.tell_of_successors();
        self.brokers.keys().for_each(|uid| self.supervisors.settle(uid));
    }
}

#[cfg(test)]
pub(crate) mod tests;
