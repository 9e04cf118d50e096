//! An instance that a node proxy serves: its broker, and its membership of a group.
//!
//! ```text
//!            Serve                      joins, is served            leaves, finishes what it has
//!  broker ◄──────── its group                  │                          │
//!     └───────────► the group that it goes to ─┘      the one before ◄────┘
//!        listeners
//! ```

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_handover::{AsyncChannel, Channel, CpuUse, ListenersClosed, ServeOrder};
use leno_supervise::{
    Backoff, Loss, MemberEvent, ProcessSharing, Promotion, PromotionRules, RestartRules,
    RunningProcess, StopStage, after, describe, keep_running,
};
use leno_types::MAX_FINISHING;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::proxies::ProxyTurn;
use super::{
    CLOSE_BOUND, DRAIN_BOUND, HANDOVER_BOUND, InstanceResources, InstanceTask, MeshContext,
    ProxySettings, proxy_label,
};
use crate::error::{Attempt, Error, Result};
use crate::isolation::Isolation;
use crate::node::NodeProxyGroup;
use crate::plan::PlannedInstance;
use crate::process::Event;
use crate::program::Program;
use crate::proxy::broker_task;

/// Between a group that could not be entered and the next attempt.
const AGAIN: Duration = Duration::from_secs(1);

/// What happened to the membership of this number.
type MembershipEvent = (u64, MemberEvent);

/// Of which group the instance is a member, and by which broker.
struct Membership<'l> {
    life: &'l InstanceTask,
    place: &'l InstanceResources,
    turn: &'l ProxyTurn,
    events: mpsc::UnboundedSender<MembershipEvent>,
    /// The group whose process serves it; `None` once the instance has left it.
    group: RefCell<Option<Rc<NodeProxyGroup>>>,
    /// The membership that counts.
    current: Cell<u64>,
    /// The last membership whose connections are accepted; 0 without one.
    serving: watch::Sender<u64>,
    /// Takes orders for the newest broker.
    broker: watch::Sender<Option<Rc<Channel>>>,
    /// Groups that finish what they have for the instance.
    left: RefCell<Vec<JoinHandle<()>>>,
    /// Whether it is busy enough for a process of its own.
    promotion: RefCell<Promotion>,
    /// Whether it is to have one, beside what its documents have it share.
    promoted: watch::Sender<bool>,
    /// When it goes back may have changed.
    rules_changed: Notify,
}

impl InstanceTask {
    /// Keeps the instance a member of the group that it is to be in, for the turn of node mode.
    pub(super) async fn node_proxy(
        &self,
        place: &InstanceResources,
        group: Rc<NodeProxyGroup>,
        turn: ProxyTurn,
    ) {
        self.proxy_runs(&turn, group.process()).await;
        let Self { mesh, instance, .. } = self;
        let name = format!("{} broker", instance.name);
        let origin = mesh.output.origin(&proxy_label(instance), &name, &instance.workload);
        let (events, happened) = mpsc::unbounded_channel();
        let membership = Membership::new(self, place, (&turn, group), events.clone());
        let start = || -> Result<RunningProcess> {
            let what = || "cannot make a socket for orders".to_owned();
            let (near, far) = Channel::pair().attempt(what)?;
            let program = Program::prepare(&mesh.layout, "leno-broker")?;
            let files = [place.files.as_slice(), &[program.file()]].concat();
            let isolation =
                Isolation::new(&place.proxy, &place.netns, &files, &instance.name.name)?;
            let orders = (far, turn.succeeds.get());
            let running = broker_task(&program, isolation, orders).start(&mesh.output, &origin)?;
            near.set_nonblocking().attempt(what)?;
            membership.has_broker(near)?;
            Ok(running)
        };
        let mut run = place.processes.run(&place.proxy);
        let report = |event: Event| {
            run.follow(&event);
            match event {
                Event::Ended(status, wait) => {
                    // The receiver ends with the instance.
                    let _ending =
                        events.send((membership.current.get(), MemberEvent::Lost(Loss::Released)));
                    let (label, how) = (&instance.label, describe(status));
                    let when = after(wait);
                    self.say(&format!("the broker of {label} {how}; starting it again {when}"));
                }
                Event::Failed(error, _) => self.complain(&error),
                Event::Started(_) | Event::Over(_) | Event::Stopping | Event::Stopped => {}
            }
        };
        let (stop_broker, stopped) = watch::channel(StopStage::No);
        let rules = RestartRules::always(Backoff::eager(Instant::now()), DRAIN_BOUND);
        let retired = Rc::clone(&rules.retired);
        let broker = keep_running(start, rules, (stopped, StopStage::All), report);
        // Connections out of the namespace need the broker, until what is under way has ended.
        let leaving = async {
            if membership.follow().await {
                // The next one would listen.
                retired.set(true);
                if !membership.pass_on().await {
                    stop_broker.send_replace(StopStage::Now);
                    return;
                }
            } else {
                membership.end().await;
            }
            stop_broker.send_replace((*self.stop.borrow()).max(StopStage::All));
        };
        tokio::select! {
            _ = async { tokio::join!(broker, leaving) } => {}
            // It has an end of its own where nothing can happen any more.
            () = self.watch_node(&membership, happened) => {}
        }
        membership.until_left().await;
        let group = membership.group.take();
        if let Some(group) = group {
            let stop = *self.stop.borrow();
            group.release(stop).await;
        }
    }

    async fn watch_node(
        &self,
        membership: &Membership<'_>,
        mut happened: mpsc::UnboundedReceiver<MembershipEvent>,
    ) {
        // The memberships that the processes of their groups were told of.
        let (mut joins, mut joined) = (0_u32, BTreeSet::new());
        let mut ended = None;
        loop {
            let turn = membership.turn;
            // Until it serves another one may answer there.
            let asks = joined.contains(&membership.current.get())
                && !turn.is_ready()
                && !turn.succeeds.get();
            let event = tokio::select! {
                event = happened.recv() => event,
                () = self.until_ready(membership.place), if asks => {
                    self.proxy_serves(turn, true, (joins, ended.clone())).await;
                    continue;
                }
                () = membership.rules_changed.notified() => continue,
                () = membership.until_quiet() => {
                    membership.goes_back();
                    continue;
                }
            };
            let Some((number, event)) = event else { return };
            membership.learn(number, event);
            match event {
                MemberEvent::Serving | MemberEvent::Stalled | MemberEvent::Used(_) => {}
                MemberEvent::Joined => drop(joined.insert(number)),
                MemberEvent::Lost(_) => drop(joined.remove(&number)),
            }
            let current = membership.current.get();
            joined.retain(|joined| *joined >= current);
            if number != current {
                continue;
            }
            match event {
                MemberEvent::Serving => {
                    turn.succeeds.set(false);
                    membership.promotion.borrow_mut().has_joined(Instant::now());
                }
                MemberEvent::Used(used) => membership.has_used(used),
                MemberEvent::Stalled => membership.has_stalled(),
                MemberEvent::Joined => joins += 1,
                MemberEvent::Lost(why) => {
                    ended = Some(why.to_string());
                    self.proxy_serves(turn, false, (joins, ended.clone())).await;
                }
            }
        }
    }
}

impl<'l> Membership<'l> {
    fn new(
        life: &'l InstanceTask,
        place: &'l InstanceResources,
        (turn, group): (&'l ProxyTurn, Rc<NodeProxyGroup>),
        events: mpsc::UnboundedSender<MembershipEvent>,
    ) -> Self {
        Self {
            life,
            place,
            turn,
            events,
            group: RefCell::new(Some(group)),
            current: Cell::new(0),
            serving: watch::Sender::new(0),
            broker: watch::Sender::new(None),
            left: RefCell::default(),
            promotion: RefCell::new(Promotion::new(life.proxy.borrow().promotion)),
            promoted: watch::Sender::new(false),
            rules_changed: Notify::new(),
        }
    }

    /// The instance has another broker: the current group goes on by that.
    fn has_broker(&self, near: Channel) -> Result<()> {
        let near = Rc::new(near);
        let group = self.group.borrow().clone();
        if let Some(group) = group {
            let number = self.join(&group, &near, self.turn.succeeds.get())?;
            let before = self.current.replace(number);
            self.place.tokens.borrow_mut().remove(&before);
        }
        self.broker.send_replace(Some(near));
        Ok(())
    }

    /// Has the groups finish what they have for the instance, which another proxy serves. False if its broker is to be killed,
    /// as connections would wait in its listeners.
    async fn pass_on(&self) -> bool {
        let mut stop = self.life.stop.clone();
        let broker = self.broker.borrow().clone();
        let closed = match &broker {
            // The process accepts until then.
            Some(broker) => tokio::select! {
                closed = close(broker) => closed,
                _ = stop.wait_for(|stop| *stop >= StopStage::Now) => Ok(()),
            },
            None => Ok(()),
        };
        let group = self.group.take();
        if let Some(group) = group {
            self.leave(group, self.current.get(), HANDOVER_BOUND);
        }
        if let Err(error) = closed {
            let label = &self.life.instance.label;
            self.life.say(&format!(
                "the broker of {label} does not close its listeners ({error}): it is killed, with what goes through it"
            ));
            return false;
        }
        self.until_left().await;
        true
    }

    /// Has the groups finish what they have for the instance, which ends, each within the same bound.
    async fn end(&self) {
        let mut now = self.life.stop.clone();
        let group = self.group.borrow().clone();
        // Its broker ends when this is dropped, and when it is told to.
        let _orders = match group {
            Some(group) => tokio::select! {
                left = group.leave(&self.life.instance.name, (self.current.get(), false)) => left,
                () = tokio::time::sleep(DRAIN_BOUND) => None,
                _ = now.wait_for(|stop| *stop >= StopStage::Now) => None,
            },
            None => None,
        };
        self.forget_current();
        self.until_left().await;
    }

    /// Joins a group by this broker; returns the number of the membership.
    fn join(&self, group: &Rc<NodeProxyGroup>, broker: &Channel, succeeds: bool) -> Result<u64> {
        let InstanceTask { mesh, instance, .. } = self.life;
        let broker = broker.try_clone().attempt(|| "cannot hold a broker".to_owned())?;
        let number = self.place.next_number();
        let tokens = &self.place.tokens;
        tokens.borrow_mut().insert(number, group.token(&instance.name));
        if let Err(error) = grant(mesh, instance, tokens) {
            tokens.borrow_mut().remove(&number);
            return Err(error);
        }
        let (events, mut happened) = mpsc::unbounded_channel();
        group.join(instance, broker, events, (number, succeeds));
        let all = self.events.clone();
        // Ends with the membership.
        tokio::task::spawn_local(async move {
            while let Some(event) = happened.recv().await {
                // The receiver ends with the instance.
                let _ending = all.send((number, event));
            }
        });
        Ok(number)
    }

    /// Goes to the group that is wanted, each time that it changes, until the instance ends, or another proxy is to serve it: true
    /// then.
    async fn follow(&self) -> bool {
        let mut leaves = self.turn.leaves.clone();
        let (mut stop, mut wanted) = (self.life.stop.clone(), self.life.proxy.clone());
        let (mut broker, mut promoted) = (self.broker.subscribe(), self.promoted.subscribe());
        loop {
            broker.borrow_and_update();
            let settings = wanted.borrow_and_update().clone();
            let ProxySettings { group: declared, promotion, revision } = settings;
            self.follow_promotion(promotion);
            let name = match *promoted.borrow_and_update() {
                true => Some(self.own_group()),
                false => declared,
            };
            let next = match self.enter((name.as_deref(), revision)).await {
                Ok(next) => next,
                Err(error) => {
                    self.life.complain(&error);
                    tokio::select! {
                        () = tokio::time::sleep(AGAIN) => continue,
                        _ = stop.wait_for(|stop| *stop >= StopStage::All) => return false,
                        _ = leaves.wait_for(|leaves| *leaves) => return true,
                    }
                }
            };
            let waits = next.as_ref().map(|(group, _)| group.waits());
            let mut serving = self.serving.subscribe();
            let is_served = async {
                match &next {
                    // The sender is this one's own.
                    Some((_, number)) => drop(serving.wait_for(|serving| serving == number).await),
                    None => std::future::pending().await,
                }
            };
            let ends = tokio::select! {
                biased;
                // A sender that is gone is the end of the mesh.
                _ = stop.wait_for(|stop| *stop >= StopStage::All) => Some(false),
                _ = leaves.wait_for(|leaves| *leaves) => Some(true),
                // Another broker: what it was told by the one before is of no use, that it is served included.
                _ = broker.changed() => None,
                () = is_served => {
                    if let Some((group, number)) = next {
                        self.change(group, number).await;
                    }
                    continue;
                }
                // Another edit.
                _ = wanted.changed() => None,
                // It is busy, or is quiet again.
                _ = promoted.changed() => None,
                never = self.report_waits(waits) => match never {},
            };
            // The listeners are those of the current group, too.
            if let Some((group, number)) = next {
                // A process that has never served it has nothing to finish.
                let is_served = *self.serving.borrow() == number;
                self.leave(group, number, if is_served { HANDOVER_BOUND } else { CLOSE_BOUND });
            }
            if let Some(is_passed_on) = ends {
                return is_passed_on;
            }
        }
    }

    /// Reports why the group that the instance goes to does not serve it yet, if it goes to one.
    async fn report_waits(&self, group: Option<watch::Receiver<String>>) -> Infallible {
        let Some(mut group) = group else {
            self.life.proxy_waits(self.turn, None).await;
            return std::future::pending().await;
        };
        loop {
            let why = group.borrow_and_update().clone();
            self.life.proxy_waits(self.turn, Some(why)).await;
            if group.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Joins a group that is not the current one, or the next process of that, while the current one serves on. `None`: it is
    /// the current one, or there is no broker yet.
    async fn enter(
        &self,
        (name, revision): (Option<&str>, u64),
    ) -> Result<Option<(Rc<NodeProxyGroup>, u64)>, Error> {
        let current = self.group.borrow().clone();
        let broker = self.broker.borrow().clone();
        let (Some(name), Some(current), Some(broker)) = (name, current, broker) else {
            return Ok(None);
        };
        if current.share() == name && current.revision() >= revision {
            return Ok(None);
        }
        let group = NodeProxyGroup::enter(&self.life.mesh, name, &self.life.instance.name)?;
        match self.join(&group, &broker, true) {
            Ok(number) => Ok(Some((group, number))),
            Err(error) => {
                let stop = *self.life.stop.borrow();
                group.exit(&self.life.instance.name, stop).await;
                Err(error)
            }
        }
    }

    /// What has happened to a membership. Events of an earlier one hide no later one that serves.
    fn learn(&self, number: u64, event: MemberEvent) {
        self.serving.send_if_modified(|serving| {
            let next = next_serving(*serving, number, event);
            std::mem::replace(serving, next) != next
        });
    }

    /// The instance is served by another group: the one before finishes what it has.
    async fn change(&self, group: Rc<NodeProxyGroup>, number: u64) {
        let instance = &self.life.instance;
        self.life.say(&format!("{} is served by node proxy {} now", instance.label, group.name()));
        let mut process = group.process();
        process.promoted = *self.promoted.borrow();
        let number_before = self.current.replace(number);
        // What it did before it was the current one counts from here.
        let _ending = self.events.send((number, MemberEvent::Serving));
        if let Some(before) = self.group.replace(Some(group)) {
            self.leave(before, number_before, HANDOVER_BOUND);
        }
        self.life.proxy_runs(self.turn, process).await;
    }

    /// Other rules say when it is promoted, and how long it is quiet before it goes back.
    fn follow_promotion(&self, rules: PromotionRules) {
        self.rules_changed.notify_one();
        if self.promotion.borrow_mut().follow(rules, Instant::now()) {
            let label = &self.life.instance.label;
            self.life.say(&format!(
                "{label} is promoted no more, as its documents say: it shares a node proxy again"
            ));
            self.promoted.send_replace(false);
        }
    }

    /// The group that a busy instance has for itself.
    fn own_group(&self) -> String {
        let instance = &self.life.instance;
        ProcessSharing::Workload.group(&instance.name, &instance.launch.service_account)
    }

    /// What its proxy has used of the CPU. An instance that has its process for itself is not promoted, however busy.
    fn has_used(&self, used: CpuUse) {
        let is_shared = self.group.borrow().as_ref().is_some_and(|group| group.is_shared());
        let mut promotion = self.promotion.borrow_mut();
        if !promotion.is_promoted() && !is_shared {
            // What was before does not count once others share it.
            promotion.has_joined(Instant::now());
            return;
        }
        if !promotion.used(Instant::now(), used) {
            return;
        }
        let (label, percent) = (&self.life.instance.label, used.percent());
        self.life.say(&format!(
            "{label} keeps its node proxy busy, with {percent} % of a CPU: it gets one of its own until it is quiet"
        ));
        self.promoted.send_replace(true);
    }

    /// Its thread does not come round. An instance that makes that happen again is not left beside others.
    fn has_stalled(&self) {
        let is_shared = self.group.borrow().as_ref().is_some_and(|group| group.is_shared());
        if is_shared && self.promotion.borrow_mut().has_stalled(Instant::now()) {
            let label = &self.life.instance.label;
            self.life.say(&format!(
                "the thread of {label} stalls again: it gets a node proxy of its own until it is quiet"
            ));
            self.promoted.send_replace(true);
        }
    }

    /// Comes back when an instance that is promoted has been quiet for long. Cancel safe.
    async fn until_quiet(&self) {
        let at = self.promotion.borrow().goes_back_at();
        match at {
            Some(at) => tokio::time::sleep_until(at.into()).await,
            None => std::future::pending().await,
        }
    }

    fn goes_back(&self) {
        let now = Instant::now();
        // Other rules may hold for it since.
        if self.promotion.borrow().goes_back_at().is_none_or(|at| at > now) {
            return;
        }
        self.promotion.borrow_mut().goes_back(now);
        self.life
            .say(&format!("{} is quiet: it shares a node proxy again", self.life.instance.label));
        self.promoted.send_replace(false);
    }

    /// Has a group finish what it has for the instance, which another one serves, within a bound.
    fn leave(&self, group: Rc<NodeProxyGroup>, number: u64, bound: Duration) {
        let InstanceTask { mesh, instance, .. } = self.life;
        let (mesh, instance, tokens) =
            (mesh.clone(), instance.clone(), Rc::clone(&self.place.tokens));
        let (name, mut stop) = (instance.name.clone(), self.life.stop.clone());
        let left = group.leave(&name, (number, true));
        let finishing = Rc::clone(&self.place.finishing);
        let finish = async move {
            // The end of the instance is that of what is under way for it, within the bound of the current group.
            let instance_ends = async {
                // A sender that is gone is the end of the mesh.
                drop(stop.wait_for(|stop| *stop >= StopStage::All).await);
                tokio::select! {
                    () = tokio::time::sleep(DRAIN_BOUND) => {}
                    _ = stop.wait_for(|stop| *stop >= StopStage::Now) => {}
                }
            };
            tokio::select! {
                _ = left => {}
                () = instance_ends => {}
                () = finishing.is_first_of_too_many(number) => mesh.output.say(&format!(
                    "more than {MAX_FINISHING} proxies finish what they have for {}: the first of them ends with it",
                    instance.label
                )),
                // Its process has ended it before, unless that does not obey: it loses the broker with this future.
                () = tokio::time::sleep(bound) => {}
            }
            let stop = *stop.borrow();
            group.forget(&name, number);
            tokens.borrow_mut().remove(&number);
            // What that process has read is void.
            if stop < StopStage::All
                && let Err(error) = grant(&mesh, &instance, &tokens)
            {
                mesh.output.say(&format!("{}: {}", instance.label, error.chain()));
            }
            group.release(stop).await;
        };
        let mut all = self.left.borrow_mut();
        all.retain(|task| !task.is_finished());
        all.push(tokio::task::spawn_local(finish));
    }

    /// Waits until no group that the instance has left finishes anything for it.
    async fn until_left(&self) {
        for left in self.left.take() {
            // A panic is printed by the runtime.
            let _ended = left.await;
        }
    }

    /// The group that serves the instance last has its token no more.
    fn forget_current(&self) {
        if let Some(group) = &*self.group.borrow() {
            group.forget(&self.life.instance.name, self.current.get());
        }
    }
}

/// Gives the processes that have an instance a token, the same for all.
pub(super) fn grant(
    mesh: &MeshContext,
    instance: &PlannedInstance,
    tokens: &RefCell<BTreeMap<u64, PathBuf>>,
) -> Result<()> {
    // A process may have two memberships of it.
    let paths: BTreeSet<PathBuf> = tokens.borrow().values().cloned().collect();
    let paths: Vec<PathBuf> = paths.into_iter().collect();
    if paths.is_empty() {
        return Ok(());
    }
    mesh.proxy.tokens.issue_at(instance, &paths)
}

/// Has a broker close its listeners, for all that have them, and waits for that. One that has ended has none.
async fn close(broker: &Channel) -> io::Result<()> {
    let broker = AsyncChannel::new(broker.try_clone()?)?;
    let closes = async {
        broker.send_within(CLOSE_BOUND, &ServeOrder { closes: true }, &[]).await?;
        broker.receive::<ListenersClosed>().await.map(|_| ())
    };
    match timeout(CLOSE_BOUND, closes).await.unwrap_or_else(|late| Err(late.into())) {
        Err(error)
            if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) =>
        {
            Ok(())
        }
        closed => closed,
    }
}

/// The last membership that serves, after an event of one.
fn next_serving(serving: u64, number: u64, event: MemberEvent) -> u64 {
    match event {
        MemberEvent::Serving => serving.max(number),
        MemberEvent::Lost(_) if serving == number => 0,
        MemberEvent::Lost(_)
        | MemberEvent::Joined
        | MemberEvent::Stalled
        | MemberEvent::Used(_) => serving,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_membership_that_serves_is_not_hidden_by_an_earlier_one_and_serves_until_it_is_lost() {
        use MemberEvent::{Joined, Serving};
        const LOST: MemberEvent = MemberEvent::Lost(Loss::Released);
        let after = |events: &[(u64, MemberEvent)]| {
            events.iter().fold(0, |serving, (number, event)| next_serving(serving, *number, *event))
        };
        // The process of the group before starts again meanwhile.
        assert_eq!(after(&[(1, Serving), (2, Joined), (2, Serving), (1, LOST), (1, Serving)]), 2);
        assert_eq!(after(&[(1, Serving), (2, Joined), (2, Serving), (2, LOST)]), 0);
        assert_eq!(after(&[(2, Serving), (2, LOST), (2, Serving)]), 2);
    }
}
