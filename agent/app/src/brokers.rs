//! Brokers of the pods in node mode, and the supervisor that they are handed to.
//!
//! ```text
//!  keeper ── serve, release ──► Brokers ── fork ──► leno-broker             (the pod's namespace and control group)
//!                                  │  ▲ orders                 ▲
//!             Serve, Release       │  │ Held, Served           │ orders
//!                                  ▼  │                        │
//!                               supervisor (DaemonSet leno-node) ──► leno-proxy --node
//! ```
//! A broker ends once no process holds the channel of its orders. This agent and the supervisor both hold it, so the
//! pod's listeners outlive an update of either, and end with the pod.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leno_handover::{
    AsyncChannel, Channel, ChannelListener, PlacedPod, Placement, PlacementReport,
};
use leno_supervise::Backoff;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

use crate::metrics::lock;

mod spawn;
mod supervisors;

use supervisors::{PodProgress, Supervisor, SupervisorEnding, SupervisorOrder, Supervisors};

/// The supervisor's socket, below the agent's folder. The folder holds nothing else, so that the supervisor's pod mounts
/// it and reaches no other socket.
pub(crate) const SOCKET: &str = "node/supervisor.sock";
/// Longest wait of a starting pod for the supervisor, which may be replaced at that time.
const SERVED_LIMIT: Duration = Duration::from_secs(10);
/// The pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_secs(1);
/// How long running pods wait, after the start of this agent, for the supervisors that may hold their brokers already. There
/// may be two, and the one that connects first may not have been told of all pods.
const HELD_LIMIT: Duration = Duration::from_secs(3);
/// Messages that wait for a supervisor: two for each pod of a node, which has some hundreds at most. One that falls
/// behind is to connect again.
const MAX_TOLD: usize = 4096;
/// Longest wait for a supervisor that does not read what it is told.
const PATIENCE: Duration = Duration::from_secs(30);
/// Ends of brokers that wait to be handled. One that does not fit is found in the next round.
pub(crate) const MAX_ENDED: usize = 64;

const UNSERVED: &str = "no supervisor of node proxies on this node serves it: look at the DaemonSet leno-node, or \
                        set leno.dev/mode: sidecar";

/// See the module.
#[derive(Debug)]
pub(crate) struct Brokers {
    program: PathBuf,
    runtime: Handle,
    state: Mutex<State>,
    /// Notified when a pod is served, and when it no longer is one of node mode.
    changed: Notify,
    started: Instant,
    /// The uids of pods whose broker has ended, and may be started again.
    ended: mpsc::Sender<String>,
}

#[derive(Debug, Default)]
struct State {
    supervisors: Supervisors,
    /// Supervisors that have connected.
    connected: u64,
    brokers: BTreeMap<String, Broker>,
    /// By uid, the waits of brokers that ended by themselves. A pod has one until it is released.
    waits: BTreeMap<String, Backoff>,
    started: u64,
    ended: u64,
}

#[derive(Debug)]
struct Broker {
    pod: PlacedPod,
    orders: Channel,
    /// Tells it from an earlier one of the same pod.
    number: u64,
    /// Made for a new sandbox of the pod, so that an earlier one of the pod is of no use.
    is_new: bool,
    watch: AbortHandle,
}

/// What a supervisor has reported before it is told anything.
#[derive(Debug, Default)]
struct Introduction {
    /// The pods that it serves by the brokers that are used.
    holds: BTreeMap<String, PodProgress>,
    /// Those that it serves by others.
    refused: Vec<String>,
    ending: SupervisorEnding,
}

/// What follows from a report.
enum ReportEffect {
    Nothing,
    /// The supervisor is to be told; it began then.
    Complete(u64),
    /// The connection is of no use.
    Lost,
}

/// The network namespace and the control groups of a pod.
#[derive(Debug)]
pub(crate) struct PodSandbox<'a> {
    pub(crate) netns: &'a Path,
    /// Of version 2; `None` if the node has none.
    pub(crate) cgroup: Option<PathBuf>,
    /// Of version 1, by which the runtime and the kubelet find processes of the pod. They are made if they do not exist.
    pub(crate) others: Vec<PathBuf>,
    /// The pod's sandbox was just made, so that no supervisor holds a broker for it.
    pub(crate) is_new: bool,
}

impl Brokers {
    /// Starts brokers by this program. The receiver learns which pods need another one.
    pub(crate) fn new(program: PathBuf, runtime: Handle) -> (Arc<Self>, mpsc::Receiver<String>) {
        let (ended, has_ended) = mpsc::channel(MAX_ENDED);
        let state = Mutex::default();
        let (changed, started) = (Notify::new(), Instant::now());
        let own = Self { program, runtime, state, changed, started, ended };
        (Arc::new(own), has_ended)
    }

    /// Listens for the supervisor, on a thread that ends with the process.
    ///
    /// # Errors
    /// The socket cannot be made.
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

    /// Whether a pod has a broker.
    pub(crate) fn has(&self, uid: &str) -> bool {
        lock(&self.state).brokers.contains_key(uid)
    }

    /// Has a captured pod served: starts its broker if there is none, and offers it to the supervisor. Just after the
    /// start of this agent a running pod waits for the broker that a supervisor may hold.
    ///
    /// # Errors
    /// The broker cannot be started.
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
        // What they have of the pod is of an earlier broker.
        state.supervisors.lose(&uid);
        state.supervisors.settle(&uid);
        Ok(())
    }

    /// Whether a supervisor serves the pod.
    ///
    /// # Errors
    /// Why it does not.
    pub(crate) fn check_served(&self, uid: &str) -> Result<(), String> {
        match lock(&self.state).is_served(uid) {
            true => Ok(()),
            false => Err(UNSERVED.to_owned()),
        }
    }

    /// Waits until a supervisor serves the pod.
    ///
    /// # Errors
    /// Why it does not.
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

    /// Ends the broker of a pod, and its service. The supervisor may know a pod whose broker has ended.
    pub(crate) fn release(&self, uid: &str) {
        let mut state = lock(&self.state);
        state.waits.remove(uid);
        if let Some(broker) = state.brokers.remove(uid) {
            broker.watch.abort();
        }
        state.supervisors.release_everywhere(uid);
        self.changed.notify_waiters();
    }

    /// The uids of all pods with a broker, and of those whose broker has ended and is to be started again.
    pub(crate) fn uids(&self) -> Vec<String> {
        lock(&self.state).waits.keys().cloned().collect()
    }

    /// Appends what was counted, as Prometheus text.
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
        ];
        for (name, kind, help, value) in rows {
            text.push_str(&format!(
                "# HELP leno_agent_{name} {help}\n# TYPE leno_agent_{name} {kind}\nleno_agent_{name} {value}\n"
            ));
        }
    }

    /// Adds a broker, and watches it.
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
            // A broker sends nothing, so that whatever is received is its end.
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
        tracing::warn!(uid, "the broker of a pod has ended; it is started again");
        tokio::time::sleep(wait).await;
        // The next round finds it, too.
        let _full = self.ended.try_send(uid);
    }

    /// A connection of a supervisor, until it ends.
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
                ReportEffect::Complete(began_ms) => {
                    let Introduction { holds, refused, ending } =
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
                    lock(&self.state).supervise(supervisor, &refused);
                }
                // It connects again, and then names everything.
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

    /// Takes in what a supervisor reports before it is told anything.
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
                    // Without this pod it would be told to release it.
                    tracing::warn!(
                        uid,
                        "the broker of a pod was lost on its way from the supervisor: raise the limit of open files of \
                         leno-agent"
                    );
                    return ReportEffect::Lost;
                };
                match self.take_over(&mut lock(&self.state), pod, orders.into()) {
                    Ok(true) => {
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
            // Of what it was told by an earlier agent; its pods are named with what has become of them.
            PlacementReport::Served { .. }
            | PlacementReport::Serving { .. }
            | PlacementReport::Unknown => {}
        }
        ReportEffect::Nothing
    }

    /// Takes the broker that a supervisor serves a pod by; false if that is of no use, so that the supervisor is to release
    /// the pod. One that this agent has started for a running pod ends: two cannot have the same listeners.
    ///
    /// # Errors
    /// The system's reason: the broker is not held.
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

    /// Tells a supervisor what it is to do, in order, until there is another one.
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
                    // It connects again, and then gets everything.
                    tracing::warn!(%error, "the supervisor of node proxies cannot be told");
                    return channel.shut_down();
                }
            }
        }
    }

    /// A pod and the orders for its broker, unless that has ended by now.
    fn offered(&self, uid: &str) -> Option<(PlacedPod, Channel)> {
        let state = lock(&self.state);
        let broker = state.brokers.get(uid)?;
        let orders = broker.orders.try_clone().inspect_err(|error| {
            tracing::warn!(uid, %error, "the broker of a pod cannot be offered");
        });
        Some((broker.pod.clone(), orders.ok()?))
    }
}

impl State {
    fn is_served(&self, uid: &str) -> bool {
        self.brokers.contains_key(uid) && self.supervisors.is_served(uid)
    }

    /// A supervisor has reported which brokers it holds; those that it is to release are `refused`.
    fn supervise(&mut self, mut supervisor: Supervisor, refused: &[String]) {
        let number = supervisor.number;
        if supervisor.ending == SupervisorEnding::Finishes {
            supervisor.holds.clear();
        }
        // Released since it was named.
        let is_gone = |uid: &&String| !self.waits.contains_key(*uid);
        let gone: Vec<String> = supervisor.holds.keys().filter(is_gone).cloned().collect();
        self.supervisors.add(supervisor);
        for uid in refused.iter().chain(&gone) {
            self.supervisors.release(number, uid, false);
        }
        self.settle_all();
    }

    /// A supervisor that is told reports something.
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
            // It has begun again on the same connection.
            PlacementReport::Held { .. } | PlacementReport::Complete { .. } => {
                return ReportEffect::Lost;
            }
            PlacementReport::Unknown => {}
        }
        ReportEffect::Nothing
    }

    /// A supervisor has ended. Another one that is there serves its pods.
    fn has_left(&mut self, number: u64) {
        let was_met = self.supervisors.remove(number);
        match self.supervisors.current() {
            Some(_) if was_met => {
                tracing::info!("a supervisor of node proxies has ended; another one has its pods");
            }
            None if was_met => tracing::warn!(
                "the supervisor of node proxies has ended; its pods wait for the next one"
            ),
            _ => {}
        }
        // One that has ended before it had named all of its pods has left those that it named.
        self.settle_all();
    }

    /// After supervisors have come, gone, or been asked to end.
    fn settle_all(&mut self) {
        self.supervisors.tell_of_successors();
        self.brokers.keys().for_each(|uid| self.supervisors.settle(uid));
    }
}

#[cfg(test)]
pub(crate) mod tests;
