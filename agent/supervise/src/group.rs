//! Runs node proxies: one process for each group of workloads.
//!
//! ```text
//! workload ── join, leave ──► Group ── keeps running ──► leno-proxy --node      (where its host starts it)
//!                               │                             ▲
//!                               └── a channel each ───────────┤ sockets
//! leno-broker ────────────────────────────────────────────────┘     (the workload's namespace and control group)
//! ```
//! A process that ends is restarted at once, and serves all members again, because their brokers, and so their
//! listeners, still exist. A workload moves to another group, or to the next process of its group, without losing
//! connections: it joins the new one ([`JoiningMember::succeeds`]) when it is its [turn](SuccessionTurns), and
//! leaves the earlier one once it is [served](MemberEvent::Serving).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_handover::{AsyncChannel, Channel, CpuUse, Member, MemberReport, MemberState, ServeOrder};
use leno_program::chain;
use leno_types::InstanceName;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::backoff::Backoff;
use crate::deaf::UnreceivedMessages;
use crate::error::Error;
use crate::heartbeat::Hang;
use crate::keep_running::{LifeEvent, RestartRules, StopStage, keep_running};
use crate::process::{RunningProcess, after, describe};
use crate::turns::{SuccessionTurn, SuccessionTurns};
use crate::watchdog::Watchdog;

/// Longest time for a process to end, at which time it has no members.
const END_BOUND: Duration = Duration::from_secs(5);
/// The pause before an order that has failed is repeated, although process and broker are running.
const AGAIN: Duration = Duration::from_secs(1);
/// Longest pause before a member whose thread stalls repeatedly is served again.
const STALL_PAUSE: Duration = Duration::from_secs(300);
/// The shortest interval of reports about a member's CPU use; others are dropped. A process sends them half as
/// often.
const USED: Duration = Duration::from_secs(1);
/// How long the process may finish the open streams of a member that joins again with a new broker. Usually the
/// earlier broker has ended, and all connections through it.
const REPLACED_BOUND: Duration = Duration::from_secs(60);

/// Starts the process of a group, and prints its messages.
pub trait NodeProxyHost: 'static {
    /// Why the process cannot be started.
    type Error: std::error::Error + From<Error> + 'static;

    /// Starts the process, which receives orders through this channel.
    ///
    /// # Errors
    /// If the process cannot be started. The caller tries again.
    fn start(&self, orders: Channel) -> Result<RunningProcess, Self::Error>;

    /// Prints a line for the operator.
    fn say(&self, text: &str);

    /// Counts a hung process, which is replaced.
    fn has_hung(&self);
}

/// A group of workloads, and the process that serves them. [`Group::end`] ends the process.
#[derive(Debug)]
pub struct Group {
    orders: mpsc::UnboundedSender<MemberOrder>,
    stop: watch::Sender<StopStage>,
    task: JoinHandle<()>,
}

/// What has happened to a member. The workload that has joined receives this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberEvent {
    /// The process was ordered to serve the member.
    Joined,
    /// The process accepts the member's connections.
    Serving,
    /// The process no longer serves the member.
    Lost(Loss),
    /// The member was lost because its thread has stalled. This is sent after [`Self::Lost`].
    Stalled,
    /// The CPU time that the member's threads have used. This is not sent while they are idle.
    Used(CpuUse),
    /// The member's broker receives no messages, so new connections wait. This is sent again until the broker is
    /// replaced.
    BrokerHangs,
}

/// Why a process no longer serves a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The process has reported that it no longer serves the member, or it has ended.
    Released,
    /// The process hung, and was replaced.
    Hung(Hang),
    /// The member's broker hung, and was replaced.
    Broker(Hang),
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Released => f.write_str("stopped serving it"),
            Self::Hung(how) => write!(f, "{how} and was replaced"),
            Self::Broker(how) => write!(f, "lost its broker, which {how} and was replaced"),
        }
    }
}

/// A member that has left a group.
#[derive(Debug)]
pub struct DepartedMember {
    /// The channel to its broker, which ends when no handle of the channel is left.
    pub broker: Channel,
    /// Open streams of it were cut: they did not end within the bound of the process, or the process has ended.
    pub cut: bool,
}

impl DepartedMember {
    /// Whether no open stream of a member that has left was cut; `None` if the workload was no member.
    #[must_use]
    pub fn is_whole(left: Option<&Self>) -> bool {
        left.is_none_or(|member| !member.cut)
    }
}

/// A member that joins a group.
#[derive(Debug)]
pub struct JoiningMember {
    /// The description of the member for the proxy.
    pub member: Member,
    /// The channel for orders to its broker.
    pub broker: Channel,
    /// Receives the events of the member.
    pub events: mpsc::UnboundedSender<MemberEvent>,
    /// Distinguishes it from an earlier member with the same name.
    pub number: u64,
    /// Whether another process serves the workload until this one does, so that it must wait for its turn.
    pub succeeds: bool,
}

/// A member and its state in the process.
#[derive(Debug)]
struct ServedMember {
    joining: JoiningMember,
    /// Its membership in the running process, if the process has got the order to serve it.
    membership: Option<Membership>,
    /// Checks whether its broker receives messages.
    unreceived: UnreceivedMessages,
    turn: MemberTurn,
    /// How many times its thread has stalled, each time soon after the last, and when it last did.
    stalls: u32,
    stalled: Option<Instant>,
}

/// Whether it is a member's turn to move to another process.
#[derive(Debug)]
enum MemberTurn {
    /// It is not the member's turn yet, and no process has the order to serve it.
    Awaited,
    /// It is the member's turn, until the process serves it.
    Taken(#[expect(dead_code, reason = "the turn ends when it is dropped")] SuccessionTurn),
    /// The member needs no turn, because it is served, or because no other process serves it.
    Over,
}

/// A membership that a process was ordered to serve.
#[derive(Debug)]
struct Membership {
    /// The number of the membership in the process.
    number: u64,
    /// The process' end of the channel between the broker and the process. Shutting it down disconnects both.
    link: Channel,
    /// Whether the process has reported that it accepts connections. Repeated reports are ignored.
    serving: bool,
    /// When the CPU use was last reported. See [`USED`].
    used: Option<Instant>,
}

/// A member that is leaving.
#[derive(Debug)]
struct LeavingMember {
    joining: JoiningMember,
    link: Channel,
    succeeded: bool,
    /// Whether the process has got the order to leave. If not, the order is repeated.
    is_told: bool,
    /// The process has cut its open streams.
    cut: bool,
    /// Informs the caller that waits for the end; it is closed if that caller stops waiting.
    answer: oneshot::Sender<DepartedMember>,
}

impl LeavingMember {
    /// Its process has ended, and its open streams with that.
    fn has_lost_process(self) {
        Self { cut: true, ..self }.has_left();
    }

    fn has_left(self) {
        has_left(self.joining, self.cut, self.answer);
    }
}

/// An order to the task of a group.
#[derive(Debug)]
enum MemberOrder {
    Join(InstanceName, JoiningMember),
    /// It is the turn of the member that has joined with this number, if it is still the same member.
    Turn(InstanceName, u64, SuccessionTurn),
    /// Try again to serve the member that has joined with this number, if it is still the same member.
    Again(InstanceName, u64),
    /// Repeat the order to leave for this membership.
    LeaveAgain(u64),
    /// A caller has stopped waiting for a member that leaves.
    Revoke,
    /// A member leaves. The answer is sent when none of its streams is left.
    Leave {
        name: InstanceName,
        /// The member's [`JoiningMember::number`]. A member of the same name that has joined since stays.
        number: u64,
        succeeded: bool,
        answer: oneshot::Sender<DepartedMember>,
    },
}

impl Group {
    /// Creates a group without members, in a runtime's `LocalSet`. Its process is started for the first member.
    /// Members that another process serves wait for their turns.
    #[must_use]
    pub fn start<H: NodeProxyHost>(name: &str, host: H, turns: SuccessionTurns) -> Self {
        let (orders, received) = mpsc::unbounded_channel();
        let (stop, stopped) = watch::channel(StopStage::No);
        let task = NodeProxyTask {
            host: Rc::new(host),
            name: name.to_owned(),
            orders: orders.clone(),
            turns,
            wanted: Rc::default(),
            members: BTreeMap::new(),
            leaving: BTreeMap::new(),
            told: 0,
            process: None,
            watchdog: Watchdog::default(),
        };
        let task = tokio::task::spawn_local(task.run(received, stopped));
        Self { orders, stop, task }
    }

    /// Makes the process serve a workload. The workload replaces an earlier member with the same name.
    pub fn join(&self, name: &InstanceName, joining: JoiningMember) {
        // Sending cannot fail: the task ends after the last member.
        let _ended = self.orders.send(MemberOrder::Join(name.clone(), joining));
    }

    /// Has the process finish the open streams of the workload that joined with this number, and returns when they have
    /// ended; `None` if it was no member. That may take hours if another process serves the workload (`succeeded`). The
    /// order is given at once, so a later [`Self::join`] with this name is not affected. If the future is dropped
    /// early, the process is disconnected from the broker, so a process that does not obey gets no more sockets of the
    /// workload. It keeps the sockets that it has.
    pub fn leave(
        &self,
        name: &InstanceName,
        (number, succeeded): (u64, bool),
    ) -> impl Future<Output = Option<DepartedMember>> + use<> {
        let (answer, answered) = oneshot::channel();
        let order = MemberOrder::Leave { name: name.clone(), number, succeeded, answer };
        let _ended = self.orders.send(order);
        let revoke = RevokeOnDrop(self.orders.clone());
        async move {
            // If the sender is dropped, the workload was not a member.
            let left = answered.await.ok();
            // The member has left, so this revocation has no effect.
            drop(revoke);
            left
        }
    }

    /// Ends the process, and waits until it has ended.
    pub async fn end(self, stop: StopStage) {
        self.stop.send_replace(stop.max(StopStage::All));
        // The runtime prints a panic.
        let _ended = self.task.await;
    }
}

/// Informs the task of a group, when dropped, that a caller has stopped waiting.
struct RevokeOnDrop(mpsc::UnboundedSender<MemberOrder>);

impl Drop for RevokeOnDrop {
    fn drop(&mut self) {
        // Fails if the task has ended, together with its process.
        let _ended = self.0.send(MemberOrder::Revoke);
    }
}

/// The task of a group.
struct NodeProxyTask<H> {
    host: Rc<H>,
    name: String,
    orders: mpsc::UnboundedSender<MemberOrder>,
    turns: SuccessionTurns,
    /// Notified when there is a member, so that the process is started.
    wanted: Rc<Notify>,
    members: BTreeMap<InstanceName, ServedMember>,
    /// The members whose open streams have not ended, by the numbers of their memberships. Their brokers are kept,
    /// because outbound connections need them.
    leaving: BTreeMap<u64, LeavingMember>,
    /// The number of the last membership.
    told: u64,
    /// The channel to the process, while the process runs.
    process: Option<Rc<AsyncChannel>>,
    watchdog: Watchdog,
}

impl<H: NodeProxyHost> NodeProxyTask<H> {
    async fn run(
        mut self,
        mut received: mpsc::UnboundedReceiver<MemberOrder>,
        stop: watch::Receiver<StopStage>,
    ) {
        let host = Rc::clone(&self.host);
        let newest = RefCell::new(None);
        let start = || -> Result<RunningProcess, H::Error> {
            let what = || "cannot create a socket for orders".to_owned();
            let (near, far) = Channel::pair().map_err(Error::os(what))?;
            let running = host.start(far)?;
            let near = AsyncChannel::new(near).map_err(Error::os(what))?;
            *newest.borrow_mut() = Some(Rc::new(near));
            Ok(running)
        };
        let (events, mut happened) = mpsc::unbounded_channel();
        let mut rules = RestartRules::always(Backoff::eager(Instant::now()), END_BOUND);
        rules.condemned = self.watchdog.condemned();
        let mut looks = Watchdog::looks();
        let (wanted, mut ends) = (Rc::clone(&self.wanted), stop.clone());
        let process = async {
            // The receiver is polled together with the process, and is dropped after it.
            let report = |event| drop(events.send(event));
            tokio::select! {
                () = wanted.notified() => {
                    keep_running(start, rules, (stop, StopStage::All), report).await;
                }
                // If the sender is dropped, the mesh has ended.
                _ = ends.wait_for(|stop| *stop >= StopStage::All) => {}
            }
            drop(events);
        };
        let work = async {
            loop {
                let process = self.process.clone();
                tokio::select! {
                    event = happened.recv() => match event {
                        Some(LifeEvent::Started(pid)) => {
                            self.watchdog.started(pid);
                            self.serve_all(newest.borrow_mut().take());
                        }
                        Some(event) => self.has_ended(&event),
                        None => break,
                    },
                    Some(order) = received.recv() => self.obey(order),
                    report = hear(process.as_deref()) => self.heard(report),
                    _ = looks.tick() => self.look(),
                }
            }
        };
        tokio::join!(process, work);
    }

    /// Reports brokers that hang, and makes the process be killed if it hangs.
    fn look(&mut self) {
        for ServedMember { joining, membership, unreceived, .. } in self.members.values_mut() {
            let link = membership.as_ref().map(|membership| &membership.link);
            if unreceived.look([&joining.broker].into_iter().chain(link)) {
                // The workload may have dropped its receiver.
                let _ending = joining.events.send(MemberEvent::BrokerHangs);
            }
        }
        let Some((pid, how)) = self.watchdog.look() else { return };
        self.host.has_hung();
        let (group, members) = (&self.name, self.members.len());
        self.host.say(&format!(
            "the proxy of group {group} ({members} served), process {pid}, {how}: it is killed and \
             restarted"
        ));
    }

    /// Orders a new process to serve all members.
    fn serve_all(&mut self, process: Option<Rc<AsyncChannel>>) {
        self.process = process;
        let members: Vec<InstanceName> = self.members.keys().cloned().collect();
        members.iter().for_each(|name| self.serve(name));
    }

    /// Connects a member's broker to the process, if the process runs and it is the member's turn.
    fn serve(&mut self, name: &InstanceName) {
        let Some(served) = self.members.get_mut(name) else { return };
        if matches!(served.turn, MemberTurn::Awaited) {
            return;
        }
        self.wanted.notify_one();
        let Some(process) = &self.process else { return };
        self.told = self.told.wrapping_add(1);
        let (number, joining) = (self.told, &served.joining);
        let (succeeds, member) = (joining.succeeds, joining.member.clone());
        let order = leno_handover::ProxyOrder::Join { number, succeeds, member, reports: true };
        let connect = || {
            let (near, far) = Channel::pair()?;
            joining.broker.send(&ServeOrder::default(), &[near.as_fd()])?;
            process.send(&order, &[far.as_fd()])?;
            Ok(far)
        };
        let connected: io::Result<Channel> = connect();
        match connected {
            Ok(link) => {
                served.membership = Some(Membership { number, link, serving: false, used: None });
                // The workload may have dropped its receiver.
                let _ending = served.joining.events.send(MemberEvent::Joined);
            }
            // The queue of the process is full, because many members have joined at once.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let again = MemberOrder::Again(name.clone(), served.joining.number);
                self.again(again);
            }
            // The process or the broker has ended, which is reported where it is restarted. The member is served
            // then.
            Err(error)
                if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
            Err(error) => {
                self.host.say(&format!("the proxy of {name} cannot be connected: {error}"));
                let again = MemberOrder::Again(name.clone(), served.joining.number);
                self.again(again);
            }
        }
    }

    fn obey(&mut self, order: MemberOrder) {
        match order {
            MemberOrder::Join(name, joining) => {
                let turn = match joining.succeeds {
                    true => self.turn(&name, joining.number),
                    false => MemberTurn::Over,
                };
                let served = ServedMember {
                    joining,
                    membership: None,
                    unreceived: UnreceivedMessages::default(),
                    turn,
                    stalls: 0,
                    stalled: None,
                };
                if let Some(earlier) = self.members.insert(name.clone(), served) {
                    let (answer, left) = oneshot::channel();
                    self.leave(earlier, true, answer);
                    let revoke = RevokeOnDrop(self.orders.clone());
                    tokio::task::spawn_local(async move {
                        let _late = tokio::time::timeout(REPLACED_BOUND, left).await;
                        drop(revoke);
                    });
                }
                self.serve(&name);
            }
            MemberOrder::Turn(name, number, turn) => {
                if let Some(member) = self.members.get_mut(&name)
                    && member.joining.number == number
                    && matches!(member.turn, MemberTurn::Awaited)
                {
                    member.turn = MemberTurn::Taken(turn);
                    self.serve(&name);
                }
            }
            MemberOrder::Again(name, number) => {
                // The member may already be served.
                let waits = |member: &ServedMember| {
                    member.joining.number == number && member.membership.is_none()
                };
                if self.members.get(&name).is_some_and(waits) {
                    self.serve(&name);
                }
            }
            MemberOrder::Leave { name, number, succeeded, answer } => {
                // A later member with the same name has already replaced this one.
                let is_same = |member: &ServedMember| member.joining.number == number;
                if !self.members.get(&name).is_some_and(is_same) {
                    return;
                }
                let Some(member) = self.members.remove(&name) else { return };
                self.leave(member, succeeded, answer);
            }
            MemberOrder::LeaveAgain(number) => self.tell_to_leave(number),
            MemberOrder::Revoke => self.leaving.retain(|_, member| {
                let waited_for = !member.answer.is_closed();
                if !waited_for {
                    member.link.shut_down();
                }
                waited_for
            }),
        }
    }

    /// Makes the process finish the open streams of a member. The answer is sent at once if the process does not
    /// serve the member.
    fn leave(
        &mut self,
        member: ServedMember,
        succeeded: bool,
        answer: oneshot::Sender<DepartedMember>,
    ) {
        let ServedMember { joining, membership, .. } = member;
        let (Some(Membership { number, link, .. }), Some(_)) = (membership, &self.process) else {
            return has_left(joining, false, answer);
        };
        let leaving =
            LeavingMember { joining, link, succeeded, is_told: false, cut: false, answer };
        self.leaving.insert(number, leaving);
        self.tell_to_leave(number);
    }

    /// Sends the order to leave to the process, unless the process has already got it.
    fn tell_to_leave(&mut self, number: u64) {
        let Some(member) = self.leaving.get_mut(&number).filter(|member| !member.is_told) else {
            return;
        };
        let order = leno_handover::ProxyOrder::Leave { number, succeeded: member.succeeded };
        match self.process.as_ref().map(|process| process.send(&order, &[])) {
            Some(Ok(())) => member.is_told = true,
            // The queue of the process is full. It accepts connections of the member until it reads the order.
            Some(Err(error)) if error.kind() == ErrorKind::WouldBlock => {
                self.again(MemberOrder::LeaveAgain(number));
            }
            // The process has ended or is ending, and so have all streams.
            _ => {
                if let Some(leaving) = self.leaving.remove(&number) {
                    leaving.has_lost_process();
                }
            }
        }
    }

    /// Handles a report about a membership. `None` means that there will be no more reports.
    fn heard(&mut self, report: Option<MemberReport>) {
        let Some(MemberReport { number, state }) = report else {
            // The process has ended, or is ending.
            self.process = None;
            return;
        };
        self.watchdog.heard(state);
        // A process that stalls may still finish open streams, but this does not wait for it.
        if matches!(state, MemberState::Released | MemberState::Stalled)
            && let Some(leaving) = self.leaving.remove(&number)
        {
            return leaving.has_left();
        }
        if state == MemberState::Cut
            && let Some(leaving) = self.leaving.get_mut(&number)
        {
            leaving.cut = true;
            return;
        }
        let is_of = |member: &ServedMember| member.membership.as_ref().map(|of| of.number);
        let mut members = self.members.iter_mut();
        let found = members.find(|(_, member)| is_of(member) == Some(number));
        let Some((name, member)) = found else { return };
        let event = match state {
            MemberState::Serving => {
                let known =
                    member.membership.as_mut().map(|of| std::mem::replace(&mut of.serving, true));
                if known == Some(true) {
                    return;
                }
                // From here on, a process that is restarted takes over from no other process.
                member.joining.succeeds = false;
                member.turn = MemberTurn::Over;
                MemberEvent::Serving
            }
            MemberState::Released | MemberState::Stalled => MemberEvent::Lost(Loss::Released),
            // A node proxy does not report `Closed`, because it has no listeners of its own. `Alive` was handled
            // before, and what a member that serves has cut, the loss that follows shows.
            MemberState::Closed | MemberState::Cut | MemberState::Alive => return,
            MemberState::Used(used) => {
                let Some(of) = member.membership.as_mut() else { return };
                let now = Instant::now();
                // A process could report more often than it should.
                if of.used.is_some_and(|last| now.duration_since(last) < USED) {
                    return;
                }
                of.used = Some(now);
                MemberEvent::Used(used)
            }
        };
        let _ending = member.joining.events.send(event);
        if !matches!(event, MemberEvent::Lost(_)) {
            return;
        }
        member.membership = None;
        let (name, number) = (name.clone(), member.joining.number);
        if state == MemberState::Stalled {
            let _ending = member.joining.events.send(MemberEvent::Stalled);
            let now = Instant::now();
            let is_soon = |last: Instant| now.duration_since(last) < 2 * STALL_PAUSE;
            if !member.stalled.replace(now).is_some_and(is_soon) {
                member.stalls = 0;
            }
            let pause = pause(member.stalls);
            member.stalls = member.stalls.saturating_add(1);
            self.host.say(&format!(
                "the thread of {name} in the proxy of group {} has stalled; another thread accepts \
                 its new connections",
                self.name
            ));
            // The process can serve the member with another thread, because new connections are waiting.
            let Some(pause) = pause else { return self.serve(&name) };
            return self.again_after(MemberOrder::Again(name, number), pause);
        }
        self.again(MemberOrder::Again(name, number));
    }

    /// Makes a member wait for its turn, which is an order to this task.
    fn turn(&self, name: &InstanceName, number: u64) -> MemberTurn {
        let (turns, orders, name) = (self.turns.clone(), self.orders.clone(), name.clone());
        tokio::task::spawn_local(async move {
            let turn = turns.turn().await;
            // If the receiver is gone, dropping the turn gives it to the next member.
            let _ended = orders.send(MemberOrder::Turn(name, number, turn));
        });
        MemberTurn::Awaited
    }

    /// Gives an order to this task after a while.
    fn again(&self, order: MemberOrder) {
        self.again_after(order, AGAIN);
    }

    fn again_after(&self, order: MemberOrder, pause: Duration) {
        let orders = self.orders.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(pause).await;
            let _ended = orders.send(order);
        });
    }

    fn has_ended(&mut self, event: &LifeEvent<H::Error>) {
        self.process = None;
        let loss = self.watchdog.ended().map_or(Loss::Released, Loss::Hung);
        // Nothing is under way any more.
        for leaving in std::mem::take(&mut self.leaving).into_values() {
            leaving.has_lost_process();
        }
        for member in self.members.values_mut() {
            member.membership = None;
            let _ending = member.joining.events.send(MemberEvent::Lost(loss));
        }
        match event {
            LifeEvent::Ended(status, wait) => {
                let (how, when) = (describe(*status), after(*wait));
                let (group, members) = (&self.name, self.members.len());
                self.host.say(&format!(
                    "the proxy of group {group} ({members} served) {how}; restarting it {when}"
                ));
            }
            LifeEvent::Failed(error, wait) => {
                let (why, when, group) = (chain(error), after(*wait), &self.name);
                self.host.say(&format!("the proxy of group {group}: {why}; retrying {when}"));
            }
            LifeEvent::Started(_)
            | LifeEvent::Over(_)
            | LifeEvent::Stopping
            | LifeEvent::Stopped => {}
        }
    }
}

fn has_left(member: JoiningMember, cut: bool, answer: oneshot::Sender<DepartedMember>) {
    // The caller may have stopped waiting.
    let _left = answer.send(DepartedMember { broker: member.broker, cut });
}

/// How long a member waits after this many stalls until it is served again. Each stalled thread may use a whole
/// CPU, and clients will probably repeat the requests that have caused the stall.
fn pause(stalls: u32) -> Option<Duration> {
    let times = 1_u32.checked_shl(stalls.checked_sub(1)?).unwrap_or(u32::MAX);
    Some(AGAIN.saturating_mul(times).min(STALL_PAUSE))
}

/// The next report of the process; `None` if there will be no more. Without a process this waits forever. Reports
/// that only later versions send are skipped.
async fn hear(process: Option<&AsyncChannel>) -> Option<MemberReport> {
    let Some(process) = process else { return std::future::pending().await };
    loop {
        match process.receive().await {
            Err(error) if error.kind() == ErrorKind::InvalidData => {}
            heard => return heard.ok().flatten().map(|(report, _)| report),
        }
    }
}

#[cfg(test)]
mod tests;
