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
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_handover::{Channel, CpuUse};
use leno_supervise::{
    Backoff, Happened, Promotion, Rules, Running, Share, Stop, after, describe, keep_running,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::{Change, DRAIN_BOUND, InstanceResources, Life, Mesh, proxy_label};
use crate::error::{Attempt, Error, Result};
use crate::isolation::Isolation;
use crate::node::Group;
use crate::plan::Instance;
use crate::process::Event;
use crate::program::Program;

/// How the proxy of an instance in node mode ends.
const LOST: &str = "its process served it no more";
/// Between a group that could not be entered and the next attempt.
const AGAIN: Duration = Duration::from_secs(1);

/// How long a group that the instance has left may finish what it has: a proxy's own bound (`--handover-timeout-s`), and a
/// minute.
const HANDOVER_BOUND: Duration = Duration::from_secs(24 * 3600 + 60);

/// What happened to the membership of this number.
type MembershipEvent = (u64, Happened);

/// Of which group the instance is a member, and by which broker.
struct Membership<'l> {
    life: &'l Life,
    place: &'l InstanceResources,
    events: mpsc::UnboundedSender<MembershipEvent>,
    /// The last number.
    number: Cell<u64>,
    /// The membership that counts.
    current: Cell<u64>,
    /// The last membership whose connections are accepted; 0 without one.
    serving: watch::Sender<u64>,
    /// Takes orders for the newest broker.
    broker: watch::Sender<Option<Rc<Channel>>>,
    /// Groups that finish what they have for the instance.
    left: RefCell<Vec<JoinHandle<()>>>,
    /// The files with its token, by memberships. A new token is written to all of them, as it voids the one before: the group
    /// that serves needs a valid one until the next group does, and a group that finishes something needs it, too.
    tokens: Rc<RefCell<BTreeMap<u64, PathBuf>>>,
    /// Whether it is busy enough for a process of its own.
    promotion: RefCell<Promotion>,
    /// Whether it is to have one, beside what its documents have it share.
    promoted: watch::Sender<bool>,
}

impl Life {
    /// Keeps the instance a member of the group that it is to be in; `ready` follows whether it is served.
    pub(super) async fn node_proxy(&self, place: &InstanceResources, ready: watch::Sender<bool>) {
        let Self { mesh, instance, .. } = self;
        let label = proxy_label(instance);
        let name = format!("{} broker", instance.name);
        let origin = mesh.output.origin(&label, &name, &instance.workload);
        let (events, happened) = mpsc::unbounded_channel();
        let membership = Membership {
            life: self,
            place,
            events: events.clone(),
            number: Cell::new(0),
            current: Cell::new(0),
            serving: watch::Sender::new(0),
            broker: watch::Sender::new(None),
            left: RefCell::default(),
            tokens: Rc::default(),
            promotion: RefCell::new(Promotion::new(mesh.promotion)),
            promoted: watch::Sender::new(false),
        };
        let start = || -> Result<Running> {
            let what = || "cannot make a socket for orders".to_owned();
            let (near, far) = Channel::pair().attempt(what)?;
            let program = Program::prepare(&mesh.layout, "leno-proxy")?;
            let files = [place.files.as_slice(), &[program.file()]].concat();
            let isolation =
                Isolation::new(&place.proxy, &place.netns, &files, &instance.name.name)?;
            let running =
                mesh.proxy.broker_task(&program, isolation, far).start(&mesh.output, &origin)?;
            near.set_nonblocking().attempt(what)?;
            membership.has_broker(near)?;
            Ok(running)
        };
        let report = |event: Event| match event {
            Event::Ended(status, wait) => {
                // The receiver ends with the instance.
                let _ending = events.send((membership.current.get(), Happened::Lost));
                let (label, how) = (&instance.label, describe(status));
                let when = after(wait);
                self.say(&format!("the broker of {label} {how}; starting it again {when}"));
            }
            Event::Failed(error, _) => self.complain(&error),
            Event::Started(_) | Event::Over(_) | Event::Stopping | Event::Stopped => {}
        };
        let (stop_broker, stopped) = watch::channel(Stop::No);
        let rules = Rules::always(Backoff::eager(Instant::now()), DRAIN_BOUND);
        let broker = keep_running(start, rules, (stopped, Stop::All), report);
        // Connections out of the namespace need the broker, until what is under way has ended.
        let leaving = async {
            membership.follow().await;
            membership.end().await;
            stop_broker.send_replace((*self.stop.borrow()).max(Stop::All));
        };
        tokio::select! {
            _ = async { tokio::join!(broker, leaving) } => {}
            // It has an end of its own where nothing can happen any more.
            () = self.watch_node(&membership, ready, happened) => {}
        }
        membership.until_left().await;
    }

    async fn watch_node(
        &self,
        membership: &Membership<'_>,
        ready: watch::Sender<bool>,
        mut happened: mpsc::UnboundedReceiver<MembershipEvent>,
    ) {
        // The memberships that the processes of their groups were told of.
        let (mut joins, mut joined) = (0_u32, BTreeSet::new());
        loop {
            let event = tokio::select! {
                event = happened.recv() => event,
                () = self.until_ready(membership.place), if joined.contains(&membership.current.get()) && !*ready.borrow() => {
                    self.proxy_serves(true, joins, Some(LOST.to_owned())).await;
                    ready.send_replace(true);
                    continue;
                }
                () = membership.until_quiet() => {
                    membership.goes_back();
                    continue;
                }
            };
            let Some((number, event)) = event else { return };
            membership.learn(number, event);
            match event {
                Happened::Serving | Happened::Stalled | Happened::Used(_) => {}
                Happened::Joined => drop(joined.insert(number)),
                Happened::Lost => drop(joined.remove(&number)),
            }
            let current = membership.current.get();
            joined.retain(|joined| *joined >= current);
            if number != current {
                continue;
            }
            match event {
                Happened::Serving => membership.promotion.borrow_mut().has_joined(Instant::now()),
                Happened::Used(used) => membership.has_used(used),
                Happened::Stalled => membership.has_stalled(),
                Happened::Joined => joins += 1,
                Happened::Lost => {
                    if ready.send_replace(false) {
                        self.proxy_serves(false, joins, Some(LOST.to_owned())).await;
                    }
                }
            }
        }
    }
}

impl Membership<'_> {
    /// The instance has another broker: the current group goes on by that.
    fn has_broker(&self, near: Channel) -> Result<()> {
        let near = Rc::new(near);
        let group = self.place.shared.borrow().clone();
        if let Some(group) = group {
            let number = self.join(&group, &near, false)?;
            let before = self.current.replace(number);
            self.tokens.borrow_mut().remove(&before);
        }
        self.broker.send_replace(Some(near));
        Ok(())
    }

    /// Has the groups finish what they have for the instance, which ends, each within the same bound.
    async fn end(&self) {
        let mut now = self.life.stop.clone();
        let group = self.place.shared.borrow().clone();
        // Its broker ends when this is dropped, and when it is told to.
        let _orders = match group {
            Some(group) => tokio::select! {
                left = group.leave(&self.life.instance.name, (self.current.get(), false)) => left,
                () = tokio::time::sleep(DRAIN_BOUND) => None,
                _ = now.wait_for(|stop| *stop >= Stop::Now) => None,
            },
            None => None,
        };
        self.forget_current();
        self.until_left().await;
    }

    /// Joins a group by this broker; returns the number of the membership.
    fn join(&self, group: &Rc<Group>, broker: &Channel, succeeds: bool) -> Result<u64> {
        let Life { mesh, instance, .. } = self.life;
        let broker = broker.try_clone().attempt(|| "cannot hold a broker".to_owned())?;
        let number = self.number.get() + 1;
        self.number.set(number);
        self.tokens.borrow_mut().insert(number, group.token(&instance.name));
        if let Err(error) = grant(mesh, instance, &self.tokens) {
            self.tokens.borrow_mut().remove(&number);
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

    /// Goes to the group that is wanted, each time that it changes, until the instance ends.
    async fn follow(&self) {
        let (mut stop, mut wanted) = (self.life.stop.clone(), self.life.group.clone());
        let (mut broker, mut promoted) = (self.broker.subscribe(), self.promoted.subscribe());
        loop {
            broker.borrow_and_update();
            let declared = wanted.borrow_and_update().clone();
            let name = match *promoted.borrow_and_update() {
                true => Some(self.own_group()),
                false => declared,
            };
            let next = match self.enter(name.as_deref()).await {
                Ok(next) => next,
                Err(error) => {
                    self.life.complain(&error);
                    tokio::select! {
                        () = tokio::time::sleep(AGAIN) => continue,
                        _ = stop.wait_for(|stop| *stop >= Stop::All) => return,
                    }
                }
            };
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
                _ = stop.wait_for(|stop| *stop >= Stop::All) => true,
                // Another broker: what it was told by the one before is of no use, that it is served included.
                _ = broker.changed() => false,
                () = is_served => {
                    if let Some((group, number)) = next {
                        self.change(group, number).await;
                    }
                    continue;
                }
                // Another edit.
                _ = wanted.changed() => false,
                // It is busy, or is quiet again.
                _ = promoted.changed() => false,
            };
            // The listeners are those of the current group, too.
            if let Some((group, number)) = next {
                self.leave(group, number);
            }
            if ends {
                return;
            }
        }
    }

    /// Joins a group that is not the current one, while that serves on. `None`: it is the current one, or there is no
    /// broker yet.
    async fn enter(&self, name: Option<&str>) -> Result<Option<(Rc<Group>, u64)>, Error> {
        let current = self.place.shared.borrow().clone();
        let broker = self.broker.borrow().clone();
        let (Some(name), Some(current), Some(broker)) = (name, current, broker) else {
            return Ok(None);
        };
        if current.share() == name {
            return Ok(None);
        }
        let group = Group::enter(&self.life.mesh, name, &self.life.instance.name)?;
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
    fn learn(&self, number: u64, event: Happened) {
        self.serving.send_if_modified(|serving| {
            let next = next_serving(*serving, number, event);
            std::mem::replace(serving, next) != next
        });
    }

    /// The instance is served by another group: the one before finishes what it has.
    async fn change(&self, group: Rc<Group>, number: u64) {
        let instance = &self.life.instance;
        self.life.say(&format!("{} is served by node proxy {} now", instance.label, group.name()));
        let mut process = group.process();
        process.promoted = *self.promoted.borrow();
        let number_before = self.current.replace(number);
        // What it did before it was the current one counts from here.
        let _ending = self.events.send((number, Happened::Serving));
        if let Some(before) = self.place.shared.replace(Some(group)) {
            self.leave(before, number_before);
        }
        self.life.report(Change::ProxyRuns(process)).await;
    }

    /// The group that a busy instance has for itself.
    fn own_group(&self) -> String {
        let instance = &self.life.instance;
        Share::Workload.group(&instance.name, &instance.launch.service_account)
    }

    /// What its proxy has used of the CPU. An instance that has its process for itself is not promoted, however busy.
    fn has_used(&self, used: CpuUse) {
        let is_shared = self.place.shared.borrow().as_ref().is_some_and(|group| group.is_shared());
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
        let is_shared = self.place.shared.borrow().as_ref().is_some_and(|group| group.is_shared());
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
        self.promotion.borrow_mut().goes_back(Instant::now());
        self.life
            .say(&format!("{} is quiet: it shares a node proxy again", self.life.instance.label));
        self.promoted.send_replace(false);
    }

    /// Has a group finish what it has for the instance, which another one serves.
    fn leave(&self, group: Rc<Group>, number: u64) {
        let Life { mesh, instance, .. } = self.life;
        let (mesh, instance, tokens) = (mesh.clone(), instance.clone(), Rc::clone(&self.tokens));
        let (name, mut stop) = (instance.name.clone(), self.life.stop.clone());
        let left = group.leave(&name, (number, true));
        let finish = async move {
            // The end of the instance is that of what is under way for it, within the bound of the current group.
            let instance_ends = async {
                // A sender that is gone is the end of the mesh.
                drop(stop.wait_for(|stop| *stop >= Stop::All).await);
                tokio::select! {
                    () = tokio::time::sleep(DRAIN_BOUND) => {}
                    _ = stop.wait_for(|stop| *stop >= Stop::Now) => {}
                }
            };
            tokio::select! {
                _ = left => {}
                () = instance_ends => {}
                // Its process has ended it before, unless that does not obey: it loses the broker with this future.
                () = tokio::time::sleep(HANDOVER_BOUND) => {}
            }
            let stop = *stop.borrow();
            group.forget(&name, number);
            tokens.borrow_mut().remove(&number);
            // What that process has read is void.
            if stop < Stop::All
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
        if let Some(group) = &*self.place.shared.borrow() {
            group.forget(&self.life.instance.name, self.current.get());
        }
    }
}

/// Gives the processes that have an instance a token, the same for all.
fn grant(mesh: &Mesh, instance: &Instance, tokens: &RefCell<BTreeMap<u64, PathBuf>>) -> Result<()> {
    // A process may have two memberships of it.
    let paths: BTreeSet<PathBuf> = tokens.borrow().values().cloned().collect();
    let paths: Vec<PathBuf> = paths.into_iter().collect();
    if paths.is_empty() {
        return Ok(());
    }
    mesh.proxy.tokens.issue_at(instance, &paths)
}

/// The last membership that serves, after an event of one.
fn next_serving(serving: u64, number: u64, event: Happened) -> u64 {
    match event {
        Happened::Serving => serving.max(number),
        Happened::Lost if serving == number => 0,
        Happened::Lost | Happened::Joined | Happened::Stalled | Happened::Used(_) => serving,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_membership_that_serves_is_not_hidden_by_an_earlier_one_and_serves_until_it_is_lost() {
        use Happened::{Joined, Lost, Serving};
        let after = |events: &[(u64, Happened)]| {
            events.iter().fold(0, |serving, (number, event)| next_serving(serving, *number, *event))
        };
        // The process of the group before starts again meanwhile.
        assert_eq!(after(&[(1, Serving), (2, Joined), (2, Serving), (1, Lost), (1, Serving)]), 2);
        assert_eq!(after(&[(1, Serving), (2, Joined), (2, Serving), (2, Lost)]), 0);
        assert_eq!(after(&[(2, Serving), (2, Lost), (2, Serving)]), 2);
    }
}
