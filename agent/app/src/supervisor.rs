//! The supervisor of node proxies (`leno-agent supervise`, DaemonSet `leno-node`): groups the pods that the agent hands
//! over, and keeps a process running for each group (`leno_supervise::Group`).
//!
//! The supervisor runs in a separate pod beside the agent's, so an update of the agent ends no proxy. The proxy
//! processes are its children, and end with it. It handles no traffic and has no permissions in the cluster. Its
//! pod contains the token for requesting certificates for the node's pods, which only the proxies read.
//!
//! An update starts the next supervisor beside this one. The next supervisor serves each pod with its own
//! processes, from the same listeners. Then the agent orders this supervisor to release the pod, and its process
//! finishes the pod's open streams.
//!
//! ```text
//!  serves ── SIGTERM ──► serves until another one does ── no pod is left, or no other one comes ──► finishes ──► ends
//! ```
//! While it finishes, it stays connected to the agent, so that when a pod ends, the pod's streams here are closed
//! as well.

#![expect(unsafe_code, reason = "pre_exec runs between fork and exec")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use leno_handover::{
    AsyncChannel, Channel, MAX_MEMBERS, Member, PlacedPod, Placement, PlacementReport,
};
use leno_supervise::{
    Error, Group, JoiningMember, MemberEvent, NodeProxyHost, ProcessCredentials, Promotion,
    PromotionRules, RunningProcess, SuccessionTurns, Tether, group_key,
};
use leno_types::InstanceName;
use leno_types::ports::PROXY_UID;
use nix::time::{ClockId, clock_gettime};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};
use tokio::task::LocalSet;

use crate::config::SuperviseFlags;

mod leaving;
mod page;
mod promotion;

use leaving::{LeavingPod, leave};
use page::SupervisorCounts;
use promotion::NextGroup;

/// The pause before the next attempt to connect to the agent's socket.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest wait for an agent that does not read reports.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the open requests of a pod that has ended may be finished. The pod's application has ended by then.
/// The bound also applies to pods that this supervisor still serves when it ends.
const LEAVE_BOUND: Duration = Duration::from_secs(5);
/// How long this supervisor continues to serve after it was asked to end, if there is no other supervisor. The
/// DaemonSet normally starts the next one at once. If there is another supervisor, this one waits for it as long
/// as the grace period permits, because the other one cannot get certificates while the controller is unavailable.
const SUCCESSOR_WAIT: Duration = Duration::from_secs(30);
/// As [`SUCCESSOR_WAIT`], but while no agent is connected. Only the agent can report another supervisor, and the
/// agent may be updated at the same time.
const AGENT_WAIT: Duration = Duration::from_secs(120);
/// As [`AGENT_WAIT`], but while the socket of an agent does not exist. An agent that ends leaves its socket, and the
/// next one replaces it at once. Only `leno-agent cleanup` removes it, together with everything that brings connections
/// to this node's proxies.
const REMOVED_WAIT: Duration = Duration::from_secs(2);
/// How long open streams may go on once the mesh was removed from the node.
const REMOVED_BOUND: Duration = Duration::from_secs(30);
/// A proxy process has a bound of its own for finishing streams. If it exceeds that by this much, the streams are cut.
const SLACK: Duration = Duration::from_secs(60);
/// Longest wait until the agent has read that this supervisor is ending. This time is missing from the grace
/// period.
const ENDING_PATIENCE: Duration = Duration::from_secs(2);
/// How long a supervisor with a new pod that is not served yet counts as not ready. This is bounded, so that a pod
/// that gets no certificate cannot block an update.
const SERVING_PATIENCE: Duration = Duration::from_secs(30);
/// Variables with this prefix are the proxies' settings.
const PREFIX: &str = "LENO_";

/// The pods that are served, and their groups.
struct ServedPodTable {
    program: PathBuf,
    token: PathBuf,
    /// How long streams may continue in processes of this supervisor after another one serves their pods.
    handover: Duration,
    promotion: PromotionRules,
    pods: BTreeMap<String, ServedPod>,
    /// The groups by their keys, each with its number of members.
    groups: BTreeMap<String, (Rc<Group>, u16)>,
    /// Decides which pods may move from another process to one of this supervisor now.
    successions: SuccessionTurns,
    agent: Option<Rc<AsyncChannel>>,
    /// There is no socket of an agent: the mesh was removed from this node.
    is_removed: bool,
    joined: u64,
    /// Pods that have left their group and still have streams here.
    leaving: BTreeMap<u64, LeavingPod>,
    ending: OwnEnding,
    /// Whether the connected agent has reported another supervisor, which will take over.
    has_successor: bool,
    /// Whether this supervisor has been ready once, so that an update may continue with the next node.
    was_ready: bool,
    counts: Rc<SupervisorCounts>,
    /// Notified when a pod leaves its group, and when its last stream has ended.
    changed: Rc<Notify>,
}

struct ServedPod {
    pod: PlacedPod,
    name: InstanceName,
    /// The key of its group.
    group: String,
    /// The channel to its broker, which is handed to the next agent.
    orders: Rc<Channel>,
    /// Distinguishes this membership, which is the time from the order to serve the pod until it leaves its group, from
    /// an earlier one of the same pod.
    number: u64,
    joined: Instant,
    /// Whether a process accepts the pod's connections.
    serving: bool,
    promotion: Promotion,
    /// The group to which the pod is moving.
    next: Option<NextGroup>,
}

/// Whether this supervisor was asked to end, and what it does until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnEnding {
    No,
    /// The supervisor still serves its pods until another supervisor does.
    Serves,
    /// The supervisor finishes its open streams.
    Finishes,
}

/// Whether another supervisor will take over the pods of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Successor {
    /// The agent has reported one.
    Connected,
    /// The agent has reported none yet.
    Awaited,
    /// No agent is connected that could report one.
    Unknown,
    /// The mesh was removed from the node.
    Impossible,
}

/// Starts the processes of a group.
struct SupervisorHost {
    program: PathBuf,
    counts: Rc<SupervisorCounts>,
}

type SharedPods = Rc<RefCell<ServedPodTable>>;

/// Runs until SIGTERM or SIGINT, and then until [`finish`] returns or a second signal arrives. Its proxy processes end
/// with it.
pub(crate) fn run(flags: SuperviseFlags) -> anyhow::Result<()> {
    let promotion = flags.promotion();
    let program = match flags.proxy_binary {
        Some(program) => program,
        None => std::env::current_exe()?.with_file_name("leno-proxy"),
    };
    let handover = Duration::from_secs(flags.handover_timeout_s);
    let served = ServedPodTable::new(program, flags.token, (handover, promotion));
    let served = Rc::new(RefCell::new(served));
    // The runtime has one thread, because the proxy processes end with the thread that has started them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let mut terminate = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("waiting for SIGINT")?;
        let listener = leno_program::listen(flags.admin).await;
        let listener = listener
            .with_context(|| format!("listening on {} for /metrics and /ready", flags.admin))?;
        tokio::task::spawn_local(page::serve(listener, Rc::clone(&served)));
        let began = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME)?);
        let began_ms = u64::try_from(began.as_millis()).unwrap_or(u64::MAX);
        let end = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tokio::select! {
                () = finish(&served) => {}
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        tokio::select! {
            () = follow(&served, &flags.socket, began_ms) => {}
            () = end => {}
        }
        Ok(())
    })
}

/// Waits until another supervisor has taken over the pods, then until open streams have ended, for as long as the grace
/// period permits. The brokers keep the listeners.
async fn finish(served: &SharedPods) {
    tracing::info!(pods = served.borrow().pods.len(), "received a signal to end");
    announce(served, OwnEnding::Serves).await;
    let longest = served.borrow().longest_handover();
    let latest = tokio::time::Instant::now() + longest;
    tokio::select! {
        // A pod that is not served yet has no streams here.
        () = until(served, |served| !served.pods.values().any(|pod| pod.serving)) => {}
        () = until_alone(served) => {}
        () = tokio::time::sleep_until(latest) => {}
    }
    announce(served, OwnEnding::Finishes).await;
    let left: Vec<String> = served.borrow().pods.keys().cloned().collect();
    let is_removed = served.borrow().is_removed;
    if !left.is_empty() && !is_removed {
        tracing::warn!(
            pods = left.len(),
            "no other supervisor has taken pods over: streams are cut"
        );
    }
    for uid in &left {
        // New connections to the pod wait for the next supervisor, or bypass the proxies of a mesh that was removed.
        release(served, uid, true);
        if !is_removed {
            served.borrow().hurry(uid);
        }
    }
    tokio::select! {
        () = until(served, |served| served.leaving.is_empty()) => {}
        () = finish_removed(served, latest) => {}
    }
}

/// Waits until the mesh was removed from the node, and then for open streams, within a bound.
async fn finish_removed(served: &SharedPods, latest: tokio::time::Instant) {
    let removed = || until(served, |served| served.is_removed);
    removed().await;
    while tokio::time::timeout(REMOVED_WAIT, until(served, |served| !served.is_removed))
        .await
        .is_ok()
    {
        removed().await;
    }
    tokio::time::sleep_until(latest.min(tokio::time::Instant::now() + REMOVED_BOUND)).await;
    tracing::warn!(pods = served.borrow().leaving.len(), "the mesh was removed: streams are cut");
    served.borrow().leaving.values().for_each(|leaving| leaving.hurry.notify_one());
    until(served, |served| served.leaving.is_empty()).await;
}

/// Waits until no other supervisor can be expected to take over.
async fn until_alone(served: &SharedPods) {
    loop {
        let successor = served.borrow().successor();
        let changes = until(served, |served| served.successor() != successor);
        let Some(wait) = served.borrow().patience(successor) else {
            changes.await;
            continue;
        };
        if tokio::time::timeout(wait, changes).await.is_err() {
            return;
        }
    }
}

/// Informs the agent that this supervisor is ending. If that fails, the next connection informs it.
async fn announce(served: &SharedPods, ending: OwnEnding) {
    served.borrow_mut().ending = ending;
    let agent = served.borrow().agent.clone();
    if let (Some(agent), Some(report)) = (agent, ending.report())
        && agent.send_within(ENDING_PATIENCE, &report, &[]).await.is_err()
    {
        agent.shut_down();
    }
}

async fn until(served: &SharedPods, holds: impl Fn(&ServedPodTable) -> bool) {
    let changed = Rc::clone(&served.borrow().changed);
    loop {
        let notified = changed.notified();
        if holds(&served.borrow()) {
            return;
        }
        notified.await;
    }
}

/// Connects to the agent of the node. When an agent ends, connects to the next one.
async fn follow(served: &SharedPods, socket: &Path, began_ms: u64) {
    let mut failing = false;
    loop {
        let met = async { meet(served, Channel::connect(socket)?, began_ms).await };
        match met.await {
            Ok(()) => failing = false,
            Err(error) => {
                served.borrow_mut().is_removed = error.kind() == io::ErrorKind::NotFound;
                if !failing {
                    failing = true;
                    tracing::warn!(%error, socket = %socket.display(), "cannot reach the agent; retrying");
                }
            }
        }
        served.borrow_mut().connect(None);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Carries out the orders of one agent, until the connection ends.
async fn meet(served: &SharedPods, channel: Channel, began_ms: u64) -> io::Result<()> {
    let agent = Rc::new(AsyncChannel::new(channel)?);
    // The two values match, because other tasks change the table only at an `await`.
    let (held, ending) = (served.borrow().held()?, served.borrow().ending);
    for (report, orders) in &held {
        agent.send_within(PATIENCE, report, &[orders.as_fd()]).await?;
    }
    if let Some(report) = ending.report() {
        agent.send_within(PATIENCE, &report, &[]).await?;
    }
    agent.send_within(PATIENCE, &PlacementReport::Complete { began_ms }, &[]).await?;
    served.borrow_mut().connect(Some(Rc::clone(&agent)));
    tracing::info!(pods = held.len(), "connected to the agent");
    // From here on, other tasks report all changes. Changes between the reading of the table and this point are
    // reported now.
    let changes = served.borrow().changes_since(&held, ending);
    for report in changes {
        agent.send_within(PATIENCE, &report, &[]).await?;
    }
    drop(held);
    while let Some((placement, descriptors)) = agent.receive::<Placement>().await? {
        match placement {
            Placement::Serve { pod, succeeds } => {
                let Ok([orders]) = <[OwnedFd; 1]>::try_from(descriptors) else {
                    return Err(io::Error::other("the agent hands over no broker"));
                };
                serve(served, pod, orders.into(), succeeds);
            }
            Placement::Change { pod } => change(served, &pod),
            Placement::Release { uid, succeeded } => release(served, &uid, succeeded),
            Placement::Successor { is_there } => {
                served.borrow_mut().has_successor = is_there;
                served.borrow().changed.notify_waiters();
            }
            Placement::Unknown => {}
        }
    }
    Ok(())
}

/// Makes a proxy process serve a pod. `succeeds` is whether the process of another supervisor serves the pod until
/// then.
fn serve(served: &SharedPods, pod: PlacedPod, orders: Channel, succeeds: bool) {
    if served.borrow().ending == OwnEnding::Finishes {
        // The agent will give the pod to another supervisor once it is informed that this one no longer serves.
        return;
    }
    let name = match InstanceName::new(&pod.namespace, &pod.name) {
        Ok(name) => name,
        Err(error) => {
            tracing::error!(?pod, %error, "the name of a pod is invalid");
            return;
        }
    };
    let held = match orders.try_clone() {
        Ok(held) => Rc::new(held),
        Err(error) => {
            tracing::error!(%name, %error, "cannot be served");
            return;
        }
    };
    // When a StatefulSet creates a pod again, it has the same name as its predecessor.
    let same_name = |held: &&ServedPod| held.name == name && held.pod.uid != pod.uid;
    let earlier = served.borrow().pods.values().find(same_name).map(|held| held.pod.uid.clone());
    if let Some(uid) = earlier {
        release(served, &uid, false);
    }
    promotion::stay(served, &pod.uid);
    let uid = pod.uid.clone();
    let key = {
        let mut served = served.borrow_mut();
        served.joined = served.joined.wrapping_add(1);
        let before = served.pods.remove(&pod.uid);
        let rules = promotion::rules(served.promotion, &pod);
        let (key, promotion) = match before {
            Some(mut before) => {
                // Whether the pod is promoted is set by `settle` below.
                before.promotion.follow(rules, Instant::now());
                (before.group, before.promotion)
            }
            None => (served.enter(&pod.group), Promotion::new(rules)),
        };
        let mut served_pod = ServedPod {
            pod,
            name,
            group: key.clone(),
            orders: held,
            number: served.joined,
            joined: Instant::now(),
            serving: false,
            promotion,
            next: None,
        };
        served_pod.settle();
        served.pods.insert(uid.clone(), served_pod);
        key
    };
    let number = served.borrow().joined;
    join(served, &uid, (&key, orders), (number, succeeds));
    // Its group may have changed with its broker.
    promotion::go(served, &uid);
}

/// Applies changed settings of a pod that is served. If it belongs to another group now, it moves there.
fn change(served: &SharedPods, now: &PlacedPod) {
    {
        let mut served = served.borrow_mut();
        let rules = promotion::rules(served.promotion, now);
        let Some(held) = served.pods.get_mut(&now.uid) else { return };
        held.pod.follow(now);
        held.promotion.follow(rules, Instant::now());
    }
    promotion::go(served, &now.uid);
}

/// Makes the process of a group serve a pod through this broker.
fn join(
    served: &SharedPods,
    uid: &str,
    (key, broker): (&str, Channel),
    (number, succeeds): (u64, bool),
) {
    let (events, happened) = mpsc::unbounded_channel();
    let name = {
        let served = served.borrow();
        let (Some((group, _)), Some(of)) = (served.groups.get(key), served.pods.get(uid)) else {
            return;
        };
        let pod = of.pod.clone();
        let member = Member {
            namespace: pod.namespace,
            name: pod.name,
            token: served.token.join("token"),
            workload: pod.workload,
            pod_uid: Some(pod.uid),
            kubelet: pod.kubelet,
            datagrams: pod.datagrams,
        };
        group.join(&of.name, JoiningMember { member, broker, events, number, succeeds });
        of.name.clone()
    };
    tokio::task::spawn_local(report(Rc::clone(served), (uid.to_owned(), number), name, happened));
}

/// Reports to the agent what happens to the membership `number` of a pod. Returns when the group has dropped the
/// sender of the events.
async fn report(
    served: SharedPods,
    (uid, number): (String, u64),
    name: InstanceName,
    mut happened: mpsc::UnboundedReceiver<MemberEvent>,
) {
    loop {
        let event = tokio::select! {
            event = happened.recv() => event,
            () = promotion::until_quiet(&served, (&uid, number)) => {
                promotion::goes_back(&served, (&uid, number));
                continue;
            }
        };
        let Some(happened) = event else { return };
        if let MemberEvent::Used(used) = happened {
            promotion::has_used(&served, (&uid, number), used);
            continue;
        }
        tracing::info!(%name, ?happened, "node proxy");
        if happened == MemberEvent::Stalled {
            promotion::has_stalled(&served, (&uid, number));
            continue;
        }
        if happened == MemberEvent::BrokerHangs {
            tell_agent(&served, &PlacementReport::BrokerHangs { uid: uid.clone() }).await;
            continue;
        }
        let was_serving = served.borrow().pods.get(&uid).is_some_and(|pod| pod.serving);
        if happened == MemberEvent::Serving
            && promotion::arrives(&served, &uid, number)
            && was_serving
        {
            continue;
        }
        {
            let mut served = served.borrow_mut();
            if matches!(happened, MemberEvent::Lost(_)) {
                served.counts.lost();
            }
            // The pod may have left since then, or may have another broker.
            let this = served.pods.get_mut(&uid).filter(|pod| pod.number == number);
            let Some(pod) = this else { continue };
            pod.serving = happened == MemberEvent::Serving;
            if pod.serving {
                pod.promotion.has_joined(Instant::now());
            }
            served.changed.notify_waiters();
        }
        let report = match happened {
            MemberEvent::Joined => PlacementReport::Served { uid: uid.clone() },
            MemberEvent::Serving => PlacementReport::Serving { uid: uid.clone() },
            MemberEvent::Lost(_)
            | MemberEvent::Stalled
            | MemberEvent::Used(_)
            | MemberEvent::BrokerHangs => continue,
        };
        tell_agent(&served, &report).await;
    }
}

/// Sends a report to the agent, if it is connected.
async fn tell_agent(served: &SharedPods, report: &PlacementReport) {
    let agent = served.borrow().agent.clone();
    if let Some(agent) = agent
        && agent.send_within(PATIENCE, report, &[]).await.is_err()
    {
        // The next connection will report the new state.
        agent.shut_down();
    }
}

/// Stops serving a pod, and finishes its open streams within a bound. If `succeeded`, another process serves the
/// pod. Otherwise the pod has ended, and streams that earlier processes still finish for it must end soon as well.
fn release(served: &SharedPods, uid: &str, succeeded: bool) {
    if !succeeded {
        served.borrow().hurry(uid);
    }
    promotion::stay(served, uid);
    let Some(pod) = served.borrow_mut().pods.remove(uid) else { return };
    served.borrow().changed.notify_waiters();
    let ServedPod { name, group, orders, number, .. } = pod;
    leave(served, (uid, name), (group, number), orders, succeeded);
}

impl OwnEnding {
    /// The report to the agent about this supervisor's end, if any.
    fn report(self) -> Option<PlacementReport> {
        match self {
            Self::No => None,
            Self::Serves => Some(PlacementReport::Ending { serves: true }),
            Self::Finishes => Some(PlacementReport::Ending { serves: false }),
        }
    }
}

impl ServedPodTable {
    fn new(
        program: PathBuf,
        token: PathBuf,
        (handover, promotion): (Duration, PromotionRules),
    ) -> Self {
        Self {
            program,
            token,
            handover,
            promotion,
            pods: BTreeMap::new(),
            groups: BTreeMap::new(),
            successions: SuccessionTurns::default(),
            agent: None,
            is_removed: false,
            joined: 0,
            leaving: BTreeMap::new(),
            ending: OwnEnding::No,
            has_successor: false,
            was_ready: false,
            counts: Rc::default(),
            changed: Rc::default(),
        }
    }

    /// Sets the connected agent. A new agent reports whether there is another supervisor once it was informed that
    /// this one is ending.
    fn connect(&mut self, agent: Option<Rc<AsyncChannel>>) {
        self.is_removed &= agent.is_none();
        self.agent = agent;
        self.has_successor = false;
        self.changed.notify_waiters();
    }

    fn successor(&self) -> Successor {
        match self.agent {
            Some(_) if self.has_successor => Successor::Connected,
            Some(_) => Successor::Awaited,
            None if self.is_removed => Successor::Impossible,
            None => Successor::Unknown,
        }
    }

    /// How long to wait for a change of [`successor`](Self::successor) before this supervisor stops serving; `None`:
    /// without a bound.
    fn patience(&self, successor: Successor) -> Option<Duration> {
        let wait = match successor {
            Successor::Connected => return None,
            Successor::Awaited => SUCCESSOR_WAIT,
            Successor::Unknown => AGENT_WAIT,
            Successor::Impossible => REMOVED_WAIT,
        };
        Some(wait.min(self.longest_handover()))
    }

    /// How long this supervisor may still serve its pods after it was asked to end, so that it ends within its
    /// grace period.
    fn longest_handover(&self) -> Duration {
        let rest = self.handover.saturating_sub(LEAVE_BOUND);
        rest.saturating_sub(LEAVE_BOUND).max(rest.checked_div(2).unwrap_or_default())
    }

    /// The report of each pod for a new agent, with the channel to its broker.
    fn held(&self) -> io::Result<Vec<(PlacementReport, Channel)>> {
        let report = |held: &ServedPod| {
            let (pod, serving) = (held.pod.clone(), held.serving);
            Ok((PlacementReport::Held { pod, serving }, held.orders.try_clone()?))
        };
        self.pods.values().map(report).collect()
    }

    /// The reports about changes since an agent was sent `held` and `ending`.
    fn changes_since(
        &self,
        held: &[(PlacementReport, Channel)],
        ending: OwnEnding,
    ) -> Vec<PlacementReport> {
        let mut changes = Vec::new();
        if self.ending != ending {
            changes.extend(self.ending.report());
        }
        for (report, _) in held {
            if let PlacementReport::Held { pod, serving: false } = report
                && self.pods.get(&pod.uid).is_some_and(|pod| pod.serving)
            {
                changes.push(PlacementReport::Serving { uid: pod.uid.clone() });
            }
        }
        changes
    }

    /// Counts one member less in a group. When the last member has left, the key is free for a new group.
    fn give_back(&mut self, key: &str) -> Option<Rc<Group>> {
        let (group, members) = self.groups.get_mut(key)?;
        let group = Rc::clone(group);
        *members = members.saturating_sub(1);
        if *members == 0 {
            self.groups.remove(key);
        }
        Some(group)
    }

    /// The key of the group that a pod joins, given the group's name. A process serves a bounded number of
    /// members, so several groups may have the same name.
    fn enter(&mut self, name: &str) -> String {
        let mut number = 0_u32;
        loop {
            let key = group_key(name, number);
            match self.groups.get_mut(&key) {
                Some((_, members)) if *members >= MAX_MEMBERS => number = number.saturating_add(1),
                Some((_, members)) => {
                    *members += 1;
                    return key;
                }
                None => {
                    let (program, counts) = (self.program.clone(), Rc::clone(&self.counts));
                    let host = SupervisorHost { program, counts };
                    let group = Group::start(&key, host, self.successions.clone());
                    self.groups.insert(key.clone(), (Rc::new(group), 1));
                    return key;
                }
            }
        }
    }
}

impl NodeProxyHost for SupervisorHost {
    type Error = Error;

    fn start(&self, orders: Channel) -> Result<RunningProcess, Error> {
        let settings = std::env::vars_os().filter(|(name, _)| is_setting(name));
        let mut command = Command::new(&self.program);
        command
            .arg("--node")
            .env_clear()
            .envs(settings)
            .stdin(Stdio::from(OwnedFd::from(orders)))
            .current_dir("/");
        let (credentials, tether) =
            (ProcessCredentials::confined(PROXY_UID), Tether::to_this_process());
        let prepare = move || {
            credentials.assume()?;
            tether.tie()
        };
        self.counts.started();
        // SAFETY: between fork and exec, `prepare` only makes system calls with numbers. It neither allocates nor
        // takes a lock.
        let started = unsafe { RunningProcess::spawn(command, prepare) };
        started.map_err(|source| {
            let what = format!("cannot start {}", self.program.display());
            Error::Os { what, source }
        })
    }

    fn say(&self, text: &str) {
        tracing::warn!("{text}");
    }

    fn has_hung(&self) {
        self.counts.hung();
    }
}

fn is_setting(name: &OsString) -> bool {
    name.to_str().is_some_and(|name| name.starts_with(PREFIX))
}

#[cfg(test)]
mod tests;
