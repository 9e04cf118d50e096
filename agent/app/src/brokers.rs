//! Brokers of the pods in node mode, and the supervisor that they are handed to.
//!
//! ```text
//!  keeper ── serve, release ──► Brokers ── fork ──► leno-proxy --broker     (the pod's namespace and control group)
//!                                  │  ▲ orders                 ▲
//!             Serve, Release       │  │ Held, Served           │ orders
//!                                  ▼  │                        │
//!                               supervisor (DaemonSet leno-node) ──► leno-proxy --node
//! ```
//! A broker ends once no process holds the channel of its orders. This agent and the supervisor both hold it, so the
//! pod's listeners outlive an update of either, and end with the pod.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::AsFd as _;
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

/// The supervisor's socket, below the agent's folder. The folder holds nothing else, so that the supervisor's pod mounts
/// it and reaches no other socket.
pub(crate) const SOCKET: &str = "node/supervisor.sock";
/// Longest wait of a starting pod for the supervisor, which may be replaced at that time.
const SERVED_LIMIT: Duration = Duration::from_secs(10);
/// The pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_secs(1);
/// How long running pods wait, after the start of this agent, for a supervisor that may hold their brokers already.
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
    log: String,
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
    supervisor: Option<Supervisor>,
    /// A supervisor has said which brokers it holds.
    met: bool,
    brokers: BTreeMap<String, Broker>,
    /// By uid, the waits of brokers that ended by themselves. A pod has one until it is released.
    waits: BTreeMap<String, Backoff>,
    started: u64,
    ended: u64,
}

#[derive(Debug)]
struct Supervisor {
    channel: Arc<AsyncChannel>,
    told: mpsc::Sender<Told>,
}

/// What a supervisor is told next of a pod.
#[derive(Debug)]
enum Told {
    Serve(String),
    Release(String),
}

#[derive(Debug)]
struct Broker {
    pod: PlacedPod,
    orders: Channel,
    /// Tells it from an earlier one of the same pod.
    number: u64,
    served: bool,
    /// Made for a new sandbox of the pod, so that an earlier one of the pod is of no use.
    is_new: bool,
    watch: AbortHandle,
}

/// The network namespace and the control groups of a pod.
#[derive(Debug)]
pub(crate) struct PodPlace<'a> {
    pub(crate) netns: &'a Path,
    /// Of version 2; `None` if the node has none.
    pub(crate) cgroup: Option<PathBuf>,
    /// Of version 1, by which the runtime and the kubelet find processes of the pod.
    pub(crate) others: Vec<PathBuf>,
    /// The pod's sandbox was just made, so that no supervisor holds a broker for it.
    pub(crate) is_new: bool,
}

impl Brokers {
    /// Starts brokers by this program. The receiver learns which pods need another one.
    pub(crate) fn new(
        program: PathBuf,
        log: String,
        runtime: Handle,
    ) -> (Arc<Self>, mpsc::Receiver<String>) {
        let (ended, has_ended) = mpsc::channel(MAX_ENDED);
        let state = Mutex::default();
        let (changed, started) = (Notify::new(), Instant::now());
        let own = Self { program, log, runtime, state, changed, started, ended };
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
    pub(crate) fn serve(self: &Arc<Self>, pod: PlacedPod, place: &PodPlace<'_>) -> io::Result<()> {
        let mut state = lock(&self.state);
        let waits = !place.is_new && !state.met && self.started.elapsed() < HELD_LIMIT;
        if waits || state.brokers.contains_key(&pod.uid) {
            return Ok(());
        }
        let _context = self.runtime.enter();
        let orders = spawn::broker(&self.program, &self.log, place)?;
        let uid = pod.uid.clone();
        self.insert(&mut state, pod, orders, (false, place.is_new))?;
        state.offer(&uid);
        Ok(())
    }

    /// Whether a supervisor serves the pod.
    ///
    /// # Errors
    /// Why it does not.
    pub(crate) fn check_served(&self, uid: &str) -> Result<(), String> {
        match lock(&self.state).brokers.get(uid) {
            Some(broker) if broker.served => Ok(()),
            _ => Err(UNSERVED.to_owned()),
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
                if lock(&self.state).brokers.get(uid).is_none_or(|broker| broker.served) {
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
        state.tell(Told::Release(uid.to_owned()));
        self.changed.notify_waiters();
    }

    /// The uids of all pods with a broker, and of those whose broker has ended and is to be started again.
    pub(crate) fn uids(&self) -> Vec<String> {
        lock(&self.state).waits.keys().cloned().collect()
    }

    /// Appends what was counted, as Prometheus text.
    pub(crate) fn render(&self, text: &mut String) {
        let state = lock(&self.state);
        let served = state.brokers.values().filter(|broker| broker.served).count();
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
                u64::from(state.supervisor.is_some()),
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
        (served, is_new): (bool, bool),
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
        state.brokers.insert(uid, Broker { pod, orders, number, served, is_new, watch });
        Ok(())
    }

    async fn has_ended(self: Arc<Self>, uid: String, number: u64) {
        let wait = {
            let mut state = lock(&self.state);
            if state.brokers.get(&uid).is_none_or(|broker| broker.number != number) {
                return;
            }
            state.brokers.remove(&uid);
            state.ended = state.ended.wrapping_add(1);
            let now = Instant::now();
            state.waits.get_mut(&uid).map_or(Duration::ZERO, |backoff| backoff.ended(now))
        };
        tracing::warn!(uid, "the broker of a pod has ended; it is started again");
        tokio::time::sleep(wait).await;
        // The next round finds it, too.
        let _full = self.ended.try_send(uid);
    }

    /// A connection of the supervisor, until it ends.
    async fn meet(self: Arc<Self>, channel: Channel) {
        let Ok(channel) = AsyncChannel::new(channel) else { return };
        let channel = Arc::new(channel);
        let mut held = BTreeSet::new();
        while let Ok(Some((report, descriptors))) = channel.receive::<PlacementReport>().await {
            let mut state = lock(&self.state);
            match report {
                PlacementReport::Held(pod) => {
                    let uid = pod.uid.clone();
                    let Ok([orders]) = <[_; 1]>::try_from(descriptors) else {
                        // It connects again, and then names everything. Without this pod it would be told to release it.
                        tracing::warn!(
                            uid,
                            "the broker of a pod was lost on its way from the supervisor: raise the limit of open files \
                             of leno-agent"
                        );
                        channel.shut_down();
                        break;
                    };
                    if self.take_over(&mut state, pod, orders.into()) {
                        held.insert(uid);
                    }
                }
                PlacementReport::Complete => {
                    tracing::info!("the supervisor of node proxies is connected");
                    self.supervise(&mut state, &channel, &held);
                }
                PlacementReport::Served { uid } => {
                    if let Some(broker) = state.brokers.get_mut(&uid) {
                        broker.served = true;
                    }
                }
            }
            drop(state);
            self.changed.notify_waiters();
        }
        let mut state = lock(&self.state);
        let current = state.supervisor.as_ref().map(|supervisor| &supervisor.channel);
        if current.is_some_and(|current| Arc::ptr_eq(current, &channel)) {
            state.supervisor = None;
            state.brokers.values_mut().for_each(|broker| broker.served = false);
            tracing::warn!(
                "the supervisor of node proxies has ended; its pods wait for the next one"
            );
        }
    }

    /// Takes the broker that a supervisor serves a pod by; false if that is of no use, so that the supervisor needs
    /// another one. One that this agent has started for a running pod ends: two cannot have the same listeners.
    fn take_over(self: &Arc<Self>, state: &mut State, pod: PlacedPod, orders: Channel) -> bool {
        let uid = pod.uid.clone();
        if let Some(broker) = state.brokers.get_mut(&uid) {
            if broker.orders.is_same(&orders).unwrap_or(false) {
                broker.served = true;
                return true;
            }
            if broker.is_new || orders.is_closed().unwrap_or(true) {
                return false;
            }
            broker.watch.abort();
        }
        let inserted = self.insert(state, pod, orders, (true, false));
        inserted
            .inspect_err(|error| {
                tracing::warn!(uid, %error, "the broker of a pod cannot be taken over");
            })
            .is_ok()
    }

    /// A supervisor that serves the pods `held` gets all others.
    fn supervise(
        self: &Arc<Self>,
        state: &mut State,
        channel: &Arc<AsyncChannel>,
        held: &BTreeSet<String>,
    ) {
        let (told, tells) = mpsc::channel(MAX_TOLD);
        self.runtime.spawn(Arc::clone(self).tell(Arc::clone(channel), tells));
        state.supervisor = Some(Supervisor { channel: Arc::clone(channel), told });
        state.met = true;
        // Released since it was named.
        let gone = held.iter().filter(|uid| !state.waits.contains_key(*uid));
        let waiting = state.brokers.keys().filter(|uid| !held.contains(*uid));
        let waiting: Vec<String> = waiting.cloned().collect();
        // In an update of the DaemonSet the earlier supervisor is still there.
        let released: Vec<String> = gone.chain(&waiting).cloned().collect();
        released.into_iter().for_each(|uid| state.tell(Told::Release(uid)));
        waiting.iter().for_each(|uid| state.offer(uid));
    }

    /// Tells a supervisor what it is to do, in order, until there is another one.
    async fn tell(self: Arc<Self>, channel: Arc<AsyncChannel>, mut tells: mpsc::Receiver<Told>) {
        while let Some(told) = tells.recv().await {
            let (uid, placement, orders) = match told {
                Told::Release(uid) => (uid.clone(), Placement::Release { uid }, None),
                Told::Serve(uid) => match self.offered(&uid) {
                    Some((pod, orders)) => (uid, Placement::Serve(pod), Some(orders)),
                    None => continue,
                },
            };
            let descriptors: Vec<_> = orders.iter().map(|orders| orders.as_fd()).collect();
            match channel.send_within(PATIENCE, &placement, &descriptors).await {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    tracing::error!(uid, %error, "a pod cannot be handed to its node proxy");
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
    /// Offers the broker of a pod to the supervisor, if there is one; the next one gets all of them.
    fn offer(&mut self, uid: &str) {
        if let Some(broker) = self.brokers.get_mut(uid) {
            broker.served = false;
            self.tell(Told::Serve(uid.to_owned()));
        }
    }

    fn tell(&mut self, told: Told) {
        if let Some(supervisor) = &self.supervisor
            && supervisor.told.try_send(told).is_err()
        {
            // It connects again, and then gets everything.
            supervisor.channel.shut_down();
        }
    }
}

#[cfg(test)]
mod tests;
