//! Node proxies: a process for each group of workloads.
//!
//! ```text
//! workload ── join, leave ──► Group ── keeps running ──► leno-proxy --node      (where its host starts it)
//!                               │                             ▲
//!                               └── a channel each ───────────┤ sockets
//! leno-broker ────────────────────────────────────────────────┘     (the workload's namespace and control group)
//! ```
//! A process that ends is started again at once, and serves all members again: their brokers, and so their listeners,
//! live on. A workload goes from one group to another, or to the next process of its group, without a cut: it joins that
//! one ([`JoiningMember::succeeds`]) when it is its [turn](SuccessionTurns), and leaves the first once it is
//! [served](MemberEvent::Serving).

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
use crate::error::Error;
use crate::heartbeat::Hang;
use crate::keep_running::{LifeEvent, RestartRules, StopStage, keep_running};
use crate::process::{RunningProcess, after, describe};
use crate::turns::{SuccessionTurn, SuccessionTurns};
use crate::watchdog::Watchdog;

/// The longest a process may take to end. It has no members by then.
const END_BOUND: Duration = Duration::from_secs(5);
/// Between an order that could not be given, although process and broker live, and the next attempt.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest time between a thread that stalls and the next one of the same member.
const STALL_PAUSE: Duration = Duration::from_secs(300);
/// Shortest time between two reports of what a member uses: processes report half as often.
const USED: Duration = Duration::from_secs(1);
/// How long the process may finish what it has for a member that joins again while it has its earlier broker. That one
/// has ended, as a rule, and all connections by it.
const REPLACED_BOUND: Duration = Duration::from_secs(60);

/// Where the process of a group runs, and what is printed of it.
pub trait NodeProxyHost: 'static {
    /// Why the process cannot be started.
    type Error: std::error::Error + From<Error> + 'static;

    /// Starts the process, which takes orders from this channel.
    ///
    /// # Errors
    /// It cannot be started; that is tried again.
    fn start(&self, orders: Channel) -> Result<RunningProcess, Self::Error>;

    /// Prints what an operator should see.
    fn say(&self, text: &str);

    /// Counts a process that hangs, and is replaced.
    fn has_hung(&self);
}

/// A group of workloads and the process that serves them. The process ends with [`Group::end`].
#[derive(Debug)]
pub struct Group {
    orders: mpsc::UnboundedSender<MemberOrder>,
    stop: watch::Sender<StopStage>,
    task: JoinHandle<()>,
}

/// What a member learns of the process that serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberEvent {
    /// It was told to serve the member.
    Joined,
    /// It accepts the member's connections.
    Serving,
    /// It does so no more.
    Lost(Loss),
    /// That was so because the member's thread does not come round. Sent after [`Self::Lost`].
    Stalled,
    /// What its threads have used of the CPU. Not sent while that is next to nothing.
    Used(CpuUse),
}

/// Why a process serves a member no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The process has said so, or has ended.
    Released,
    /// The process hung, and was replaced.
    Hung(Hang),
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Released => f.write_str("served it no more"),
            Self::Hung(how) => write!(f, "{how} and was replaced"),
        }
    }
}

/// A member as its group knows it.
#[derive(Debug)]
pub struct JoiningMember {
    /// What its proxy is told.
    pub member: Member,
    /// Takes the orders for its broker.
    pub broker: Channel,
    /// Where it learns what happens to it.
    pub events: mpsc::UnboundedSender<MemberEvent>,
    /// Tells it from an earlier one of the same name.
    pub number: u64,
    /// Another process serves the workload until this one does, so that it waits for its turn.
    pub succeeds: bool,
}

/// A member, and how the process knows it.
#[derive(Debug)]
struct ServedMember {
    joining: JoiningMember,
    /// Its membership of the process that runs, if that was told of it.
    membership: Option<Membership>,
    turn: MemberTurn,
    /// How often its thread has stalled, each time soon after the one before, and when it did last.
    stalls: u32,
    stalled: Option<Instant>,
}

/// The turn of a member to go to another process.
#[derive(Debug)]
enum MemberTurn {
    /// No process is told of it yet.
    Awaited,
    /// It has a turn until the process serves it.
    Taken(#[expect(dead_code, reason = "the turn ends when it is dropped")] SuccessionTurn),
    /// It needs none: it is served, or no other process serves it.
    Over,
}

/// What a process was told of a member.
#[derive(Debug)]
struct Membership {
    /// What the process calls it.
    number: u64,
    /// The process' end of the channel between its broker and the process. Both lose the other when it is shut down.
    link: Channel,
    /// It is reported that it accepts connections, which counts once: a process decides how often it reports.
    serving: bool,
    /// When it was last reported what it uses of the CPU, which counts once a [`USED`].
    used: Option<Instant>,
}

/// A member that leaves.
#[derive(Debug)]
struct LeavingMember {
    joining: JoiningMember,
    link: Channel,
    succeeded: bool,
    /// The process has the order; else that is given again.
    is_told: bool,
    /// For the caller that waits for the end; it is closed once that one waits no more.
    answer: oneshot::Sender<JoiningMember>,
}

/// What members want of their group.
#[derive(Debug)]
enum MemberOrder {
    Join(InstanceName, JoiningMember),
    /// It is the turn of the member that joined with this number, if it is still the same.
    Turn(InstanceName, u64, SuccessionTurn),
    /// Try again for the member that joined with this number, if it is still the same.
    Again(InstanceName, u64),
    /// Tell the process again that this membership leaves.
    LeaveAgain(u64),
    /// A caller waits no more for a member that leaves.
    Revoke,
    /// The answer comes when nothing of the member is under way.
    Leave {
        name: InstanceName,
        /// Of [`JoiningMember`]; one that has joined since stays.
        number: u64,
        succeeded: bool,
        answer: oneshot::Sender<JoiningMember>,
    },
}

impl Group {
    /// Begins a group without members, in a runtime's `LocalSet`. Its process starts for the first member. Members that other
    /// processes serve wait for their turns.
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

    /// Has the process serve a workload, in place of an earlier one of the same name.
    pub fn join(&self, name: &InstanceName, joining: JoiningMember) {
        // The task ends after the last member.
        let _ended = self.orders.send(MemberOrder::Join(name.clone(), joining));
    }

    /// Has the process finish what is under way for a workload that joined with this number; the future waits for that, for hours where another process
    /// serves the workload (`succeeded`). It yields the channel to its broker, which ends with it. The order is given at
    /// once, so that a later [`Self::join`] of this name stays. Should the future be dropped before, the process loses
    /// the broker: one that does not obey gets no more sockets of the workload. It has those that it was handed.
    pub fn leave(
        &self,
        name: &InstanceName,
        (number, succeeded): (u64, bool),
    ) -> impl Future<Output = Option<Channel>> + use<> {
        let (answer, answered) = oneshot::channel();
        let order = MemberOrder::Leave { name: name.clone(), number, succeeded, answer };
        let _ended = self.orders.send(order);
        let revoke = RevokeOnDrop(self.orders.clone());
        async move {
            // A sender that is dropped is an answer, too: it was no member.
            let left = answered.await.ok().map(|joining| joining.broker);
            // Without effect: what has left is not waited for.
            drop(revoke);
            left
        }
    }

    /// Ends the process, and waits for that.
    pub async fn end(self, stop: StopStage) {
        self.stop.send_replace(stop.max(StopStage::All));
        // A panic is printed by the runtime.
        let _ended = self.task.await;
    }
}

/// Revokes what callers wait for no more.
struct RevokeOnDrop(mpsc::UnboundedSender<MemberOrder>);

impl Drop for RevokeOnDrop {
    fn drop(&mut self) {
        // The task has ended with its process.
        let _ended = self.0.send(MemberOrder::Revoke);
    }
}

/// The task of a group.
struct NodeProxyTask<H> {
    host: Rc<H>,
    name: String,
    orders: mpsc::UnboundedSender<MemberOrder>,
    turns: SuccessionTurns,
    /// Starts the process, once there is a member for it.
    wanted: Rc<Notify>,
    members: BTreeMap<InstanceName, ServedMember>,
    /// Members until what is under way for them has ended, by the numbers of their memberships: connections out of their
    /// namespaces still need brokers.
    leaving: BTreeMap<u64, LeavingMember>,
    /// Memberships that processes were told of.
    told: u64,
    /// Takes orders while the process runs.
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
            let what = || "cannot make a socket for orders".to_owned();
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
            // The receiver is polled beside the process and ends after it.
            let report = |event| drop(events.send(event));
            tokio::select! {
                () = wanted.notified() => {
                    keep_running(start, rules, (stop, StopStage::All), report).await;
                }
                // A sender that is gone is the end of the mesh.
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

    /// Has a process that hangs killed: what is under way in it waits for nothing.
    fn look(&mut self) {
        let Some((pid, how)) = self.watchdog.look() else { return };
        self.host.has_hung();
        let (group, members) = (&self.name, self.members.len());
        self.host.say(&format!(
            "the proxy of group {group} ({members} served), process {pid}, {how}: it is killed, and started again"
        ));
    }

    /// A new process serves all members.
    fn serve_all(&mut self, process: Option<Rc<AsyncChannel>>) {
        self.process = process;
        let members: Vec<InstanceName> = self.members.keys().cloned().collect();
        members.iter().for_each(|name| self.serve(name));
    }

    /// Connects a member's broker to the process, if that runs, and it is the member's turn.
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
                // The workload has an end of its own.
                let _ending = served.joining.events.send(MemberEvent::Joined);
            }
            // So many joined at once that the process has yet to read of them.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let again = MemberOrder::Again(name.clone(), served.joining.number);
                self.again(again);
            }
            Err(error) => {
                self.host.say(&format!("the proxy of {name} cannot be connected: {error}"));
                // Else either the process or the broker has ended, and is started again.
                if !matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) {
                    let again = MemberOrder::Again(name.clone(), served.joining.number);
                    self.again(again);
                }
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
                let served =
                    ServedMember { joining, membership: None, turn, stalls: 0, stalled: None };
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
                // Another process may serve it by now.
                let waits = |member: &ServedMember| {
                    member.joining.number == number && member.membership.is_none()
                };
                if self.members.get(&name).is_some_and(waits) {
                    self.serve(&name);
                }
            }
            MemberOrder::Leave { name, number, succeeded, answer } => {
                // The one that has joined in its place has had it leave.
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

    /// Has the process finish what it has for a member. The answer comes at once if it has nothing.
    fn leave(
        &mut self,
        member: ServedMember,
        succeeded: bool,
        answer: oneshot::Sender<JoiningMember>,
    ) {
        let ServedMember { joining, membership, .. } = member;
        let (Some(Membership { number, link, .. }), Some(_)) = (membership, &self.process) else {
            return has_left(joining, answer);
        };
        self.leaving
            .insert(number, LeavingMember { joining, link, succeeded, is_told: false, answer });
        self.tell_to_leave(number);
    }

    /// Gives the process the order to leave, unless it has it.
    fn tell_to_leave(&mut self, number: u64) {
        let Some(member) = self.leaving.get_mut(&number).filter(|member| !member.is_told) else {
            return;
        };
        let order = leno_handover::ProxyOrder::Leave { number, succeeded: member.succeeded };
        match self.process.as_ref().map(|process| process.send(&order, &[])) {
            Some(Ok(())) => member.is_told = true,
            // It has yet to read other orders, and accepts connections until then.
            Some(Err(error)) if error.kind() == ErrorKind::WouldBlock => {
                self.again(MemberOrder::LeaveAgain(number));
            }
            // It has ended, or does so now, and nothing is under way in it.
            _ => {
                if let Some(LeavingMember { joining, answer, .. }) = self.leaving.remove(&number) {
                    has_left(joining, answer);
                }
            }
        }
    }

    /// What has become of a membership; `None`: the process cannot be heard.
    fn heard(&mut self, report: Option<MemberReport>) {
        let Some(MemberReport { number, state }) = report else {
            // It has ended, or does so now.
            self.process = None;
            return;
        };
        self.watchdog.heard(state);
        // One that stalls may go on with what it has, but is not waited for.
        if matches!(state, MemberState::Released | MemberState::Stalled)
            && let Some(LeavingMember { joining, answer, .. }) = self.leaving.remove(&number)
        {
            return has_left(joining, answer);
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
                // Should the process end, the next one succeeds none.
                member.joining.succeeds = false;
                member.turn = MemberTurn::Over;
                MemberEvent::Serving
            }
            MemberState::Released | MemberState::Stalled => MemberEvent::Lost(Loss::Released),
            // It has no listeners of its own, and what is of the whole process was taken in before.
            MemberState::Closed | MemberState::Alive => return,
            MemberState::Used(used) => {
                let Some(of) = member.membership.as_mut() else { return };
                let now = Instant::now();
                // A process decides how often it reports.
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
                "the thread of {name} in the proxy of group {} does not come round; another one takes its new connections",
                self.name
            ));
            // Its connections wait, and the process can serve it.
            let Some(pause) = pause else { return self.serve(&name) };
            return self.again_after(MemberOrder::Again(name, number), pause);
        }
        self.again(MemberOrder::Again(name, number));
    }

    /// Has a member wait for its turn, which is an order to this task.
    fn turn(&self, name: &InstanceName, number: u64) -> MemberTurn {
        let (turns, orders, name) = (self.turns.clone(), self.orders.clone(), name.clone());
        tokio::task::spawn_local(async move {
            let turn = turns.turn().await;
            // Without a receiver it is the next one's.
            let _ended = orders.send(MemberOrder::Turn(name, number, turn));
        });
        MemberTurn::Awaited
    }

    /// Gives an order to this task in a while.
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
        for LeavingMember { joining, answer, .. } in std::mem::take(&mut self.leaving).into_values()
        {
            has_left(joining, answer);
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
                    "the proxy of group {group} ({members} served) {how}; starting it again {when}"
                ));
            }
            LifeEvent::Failed(error, wait) => {
                let (why, when, group) = (chain(error), after(*wait), &self.name);
                self.host.say(&format!("the proxy of group {group}: {why}; trying again {when}"));
            }
            LifeEvent::Started(_)
            | LifeEvent::Over(_)
            | LifeEvent::Stopping
            | LifeEvent::Stopped => {}
        }
    }
}

fn has_left(member: JoiningMember, answer: oneshot::Sender<JoiningMember>) {
    // The workload may have waited long enough.
    let _left = answer.send(member);
}

/// How long a member whose thread stalls waits for the next one, after so many stalls before: each may take a CPU, and what
/// made it stall is tried again by its clients.
fn pause(stalls: u32) -> Option<Duration> {
    let times = 1_u32.checked_shl(stalls.checked_sub(1)?).unwrap_or(u32::MAX);
    Some(AGAIN.saturating_mul(times).min(STALL_PAUSE))
}

/// What the process reports next; `None` if it reports nothing any more. Waits for ever without a process. What a process of
/// a later version says beside, is nothing to this one.
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
