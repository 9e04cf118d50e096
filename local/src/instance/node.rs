//! An instance in node mode: its broker, and its membership of a group of instances that share a node proxy.
//!
//! ```text
//!  broker ──listeners──► the process of the present group     serves, then leaves and finishes its open streams
//!     └─────listeners──► the process of the next group        joins, then serves
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
    Backoff, DepartedMember, Hang, Loss, MemberEvent, ProcessSharing, Promotion, PromotionRules,
    RestartRules, RunningProcess, StopStage, Watchdog, after, describe, keep_running,
};
use leno_types::MAX_FINISHING;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::failures::RepeatedFailures;
use super::proxies::ProxyTurn;
use super::{
    CLOSE_BOUND, DRAIN_BOUND, InstanceResources, InstanceTask, MeshContext, ProxySettings,
    proxy_label,
};
use crate::error::{Attempt, Error, Result};
use crate::isolation::Isolation;
use crate::node::NodeProxyGroup;
use crate::plan::PlannedInstance;
use crate::process::Event;
use crate::program::Program;
use crate::proxy::broker_task;

/// The pause before another attempt to join a group.
const AGAIN: Duration = Duration::from_secs(1);

/// An event of the membership with this number.
type MembershipEvent = (u64, MemberEvent);

/// Which group the instance is a member of, and through which broker.
struct Membership<'l> {
    life: &'l InstanceTask,
    place: &'l InstanceResources,
    turn: &'l ProxyTurn,
    events: mpsc::UnboundedSender<MembershipEvent>,
    /// The group whose process serves the instance; `None` once the instance has left it.
    group: RefCell<Option<Rc<NodeProxyGroup>>>,
    /// The number of the current membership.
    current: Cell<u64>,
    /// The number of the last membership whose process accepts connections; 0 if there is none.
    serving: watch::Sender<u64>,
    /// The channel to the newest broker.
    broker: watch::Sender<Option<Rc<Channel>>>,
    /// Decides when a broker that hangs is killed.
    watchdog: RefCell<Watchdog>,
    /// Tasks that each wait for a group that the instance has left and that still finishes its streams.
    left: RefCell<Vec<JoinHandle<()>>>,
    /// Measures whether the instance is busy enough for its own process.
    promotion: RefCell<Promotion>,
    /// Whether the instance should have its own process instead of the shared one that its documents name.
    promoted: watch::Sender<bool>,
    /// Notified when the promotion rules change, because this changes when a promoted instance returns to the
    /// shared process.
    rules_changed: Notify,
}

impl InstanceTask {
    /// Keeps the instance a member of the wanted group, until the instance leaves node mode or ends.
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
            let what = || "cannot create a socket for orders".to_owned();
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
            let hung = membership.hung(&event);
            match event {
                Event::Ended(status, wait) => {
                    let loss = MemberEvent::Lost(hung.map_or(Loss::Released, Loss::Broker));
                    // Sending fails only if the instance has been removed and its receiver dropped.
                    let _ending = events.send((membership.current.get(), loss));
                    let (label, how) = (&instance.label, describe(status));
                    let when = after(wait);
                    self.say(&format!("the broker of {label} {how}; restarting it {when}"));
                }
                Event::Failed(error, _) => self.complain(&error),
                Event::Started(_) | Event::Over(_) | Event::Stopping | Event::Stopped => {}
            }
        };
        let (stop_broker, stopped) = watch::channel(StopStage::No);
        let mut rules = RestartRules::always(Backoff::eager(Instant::now()), DRAIN_BOUND);
        rules.condemned = membership.watchdog.borrow().condemned();
        let retired = Rc::clone(&rules.retired);
        let broker = keep_running(start, rules, (stopped, StopStage::All), report);
        // The broker runs until all streams have ended, because outbound connections need its sockets.
        let leaving = async {
            if membership.follow().await {
                // From here on the broker is not restarted, because a new broker would listen again.
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
            // `watch_node` never returns first: it holds a sender of the channel that it reads.
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
        // The memberships for which a proxy process has got an order to join.
        let (mut joins, mut joined) = (0_u32, BTreeSet::new());
        let (mut ended, mut hung) = (None, None);
        loop {
            let turn = membership.turn;
            // During a handover, the admin server at this address may be that of the other proxy.
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
                MemberEvent::Serving
                | MemberEvent::Stalled
                | MemberEvent::Used(_)
                | MemberEvent::BrokerHangs => {}
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
                    hung = None;
                    turn.succeeds.set(false);
                    membership.promotion.borrow_mut().has_joined(Instant::now());
                }
                MemberEvent::Used(used) => membership.has_used(used),
                MemberEvent::Stalled => membership.has_stalled(),
                MemberEvent::Joined => joins += 1,
                MemberEvent::BrokerHangs => hung = membership.broker_hangs().or(hung),
                MemberEvent::Lost(why) => {
                    // A process releases a workload whose broker has ended. If the broker was killed because it
                    // hung, that is the real reason.
                    let why = hung.filter(|_| why == Loss::Released).map_or(why, Loss::Broker);
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
            watchdog: RefCell::default(),
            left: RefCell::default(),
            promotion: RefCell::new(Promotion::new(life.proxy.borrow().promotion)),
            promoted: watch::Sender::new(false),
            rules_changed: Notify::new(),
        }
    }

    /// Passes an event of the broker to the watchdog. Returns how the broker hung, if it was killed for that.
    fn hung(&self, event: &Event) -> Option<Hang> {
        match event {
            Event::Started(pid) => {
                self.watchdog.borrow_mut().started(*pid);
                None
            }
            Event::Stopping => None,
            _ => self.watchdog.borrow_mut().ended(),
        }
    }

    /// The broker was started or restarted: makes the current group use it.
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

    /// Hands the instance over to the proxy that now serves it: the broker closes its listeners, and the groups
    /// finish the open streams. Returns false if the listeners cannot be closed. The caller must then kill the
    /// broker, because connections would wait in them without an answer.
    async fn pass_on(&self) -> bool {
        let mut stop = self.life.stop.clone();
        let broker = self.broker.borrow().clone();
        let closed = match &broker {
            // The process continues to accept connections until the listeners are closed.
            Some(broker) => tokio::select! {
                closed = close(broker) => closed,
                _ = stop.wait_for(|stop| *stop >= StopStage::Now) => Ok(()),
            },
            None => Ok(()),
        };
        let group = self.group.take();
        if let Some(group) = group {
            self.leave(group, self.current.get(), true);
        }
        if let Err(error) = closed {
            let label = &self.life.instance.label;
            self.life.say(&format!(
                "the broker of {label} does not close its listeners ({error}): it is killed, which \
                 cuts its connections"
            ));
            return false;
        }
        self.until_left().await;
        true
    }

    /// Ends the membership with the instance: all groups finish its open streams, within one common bound.
    async fn end(&self) {
        let mut now = self.life.stop.clone();
        let group = self.group.borrow().clone();
        // The broker ends when it is ordered to, and when this handle is dropped.
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

    /// Joins a group, and passes on this broker; returns the number of the membership.
    fn join(&self, group: &Rc<NodeProxyGroup>, broker: &Channel, succeeds: bool) -> Result<u64> {
        let InstanceTask { mesh, instance, .. } = self.life;
        let broker = broker
            .try_clone()
            .attempt(|| "cannot duplicate the descriptor of a broker".to_owned())?;
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
        // The task ends with the membership.
        tokio::task::spawn_local(async move {
            while let Some(event) = happened.recv().await {
                // Sending fails only if the instance has been removed and its receiver dropped.
                let _ending = all.send((number, event));
            }
        });
        Ok(number)
    }

    /// Moves the instance to the wanted group whenever that changes. Returns false when the instance ends, and
    /// true when a proxy of the other mode has taken over.
    async fn follow(&self) -> bool {
        let mut leaves = self.turn.leaves.clone();
        let (mut stop, mut wanted) = (self.life.stop.clone(), self.life.proxy.clone());
        let (mut broker, mut promoted) = (self.broker.subscribe(), self.promoted.subscribe());
        let mut failures = RepeatedFailures::default();
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
                Ok(next) => {
                    failures.clear();
                    next
                }
                Err(error) => {
                    if let Some(why) = self.life.complain_again(&mut failures, &error) {
                        self.life.proxy_waits(self.turn, Some(why)).await;
                    }
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
                    // `self` holds the sender, so the wait cannot fail.
                    Some((_, number)) => drop(serving.wait_for(|serving| serving == number).await),
                    None => std::future::pending().await,
                }
            };
            let ends = tokio::select! {
                biased;
                // If the sender is dropped, the mesh has ended.
                _ = stop.wait_for(|stop| *stop >= StopStage::All) => Some(false),
                _ = leaves.wait_for(|leaves| *leaves) => Some(true),
                // The broker was replaced. The next group has joined with the earlier broker, so it must join
                // again.
                _ = broker.changed() => None,
                () = is_served => {
                    if let Some((group, number)) = next {
                        self.change(group, number).await;
                    }
                    continue;
                }
                // The documents have changed the wanted group.
                _ = wanted.changed() => None,
                // The instance was promoted, or returns to the shared process.
                _ = promoted.changed() => None,
                never = self.report_waits(waits) => match never {},
            };
            // The next group holds the same listeners as the current group.
            if let Some((group, number)) = next {
                // A process that has never served the instance has no streams to finish.
                let is_served = *self.serving.borrow() == number;
                self.leave(group, number, is_served);
            }
            if let Some(is_passed_on) = ends {
                return is_passed_on;
            }
        }
    }

    /// Reports why the next group does not serve the instance yet, or that there is no next group.
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

    /// Joins the wanted group, or the next process of the current group, while the current process continues to
    /// serve. `None` if the current process is the wanted one, or if there is no broker yet.
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

    /// Records an event of a membership. An event of an earlier membership does not affect a later one that
    /// serves.
    fn learn(&self, number: u64, event: MemberEvent) {
        self.serving.send_if_modified(|serving| {
            let next = next_serving(*serving, number, event);
            std::mem::replace(serving, next) != next
        });
    }

    /// Makes the next group the current one, because it serves the instance. The group before finishes its open
    /// streams.
    async fn change(&self, group: Rc<NodeProxyGroup>, number: u64) {
        let instance = &self.life.instance;
        self.life.say(&format!("{} is served by node proxy {} now", instance.label, group.name()));
        let mut process = group.process();
        process.promoted = *self.promoted.borrow();
        let number_before = self.current.replace(number);
        // This event of the new membership was ignored while it was not the current one, so it is sent again.
        let _ending = self.events.send((number, MemberEvent::Serving));
        if let Some(before) = self.group.replace(Some(group)) {
            self.leave(before, number_before, true);
        }
        self.life.proxy_runs(self.turn, process).await;
    }

    /// Applies changed promotion rules.
    fn follow_promotion(&self, rules: PromotionRules) {
        self.rules_changed.notify_one();
        if self.promotion.borrow_mut().follow(rules, Instant::now()) {
            let label = &self.life.instance.label;
            self.life
                .say(&format!("{label} shares a node proxy again, because its documents changed"));
            self.promoted.send_replace(false);
        }
    }

    /// The group that the instance has for itself while it is promoted.
    fn own_group(&self) -> String {
        let instance = &self.life.instance;
        ProcessSharing::Workload.group(&instance.name, &instance.launch.service_account)
    }

    /// Records the CPU time that the proxy has used for the instance. An instance whose process has no other
    /// members is not promoted, however busy it is.
    fn has_used(&self, used: CpuUse) {
        let is_shared = self.group.borrow().as_ref().is_some_and(|group| group.is_shared());
        let mut promotion = self.promotion.borrow_mut();
        if !promotion.is_promoted() && !is_shared {
            // CPU time from before must not count once other instances share the process.
            promotion.has_joined(Instant::now());
            return;
        }
        if !promotion.used(Instant::now(), used) {
            return;
        }
        let (label, percent) = (&self.life.instance.label, used.percent());
        self.life.say(&format!(
            "{label} uses {percent} % of a CPU in its node proxy: it gets a node proxy of its own \
             until it uses less"
        ));
        self.promoted.send_replace(true);
    }

    /// Records that the proxy's thread for this instance has stalled. An instance that causes stalls repeatedly
    /// gets its own process.
    fn has_stalled(&self) {
        let is_shared = self.group.borrow().as_ref().is_some_and(|group| group.is_shared());
        if is_shared && self.promotion.borrow_mut().has_stalled(Instant::now()) {
            let label = &self.life.instance.label;
            self.life.say(&format!(
                "the proxy thread of {label} stalls again: it gets a node proxy of its own until \
                 it no longer does"
            ));
            self.promoted.send_replace(true);
        }
    }

    /// Has a broker killed if it receives no messages. Returns how it hangs, if it is killed for that.
    fn broker_hangs(&self) -> Option<Hang> {
        let (pid, how) = self.watchdog.borrow_mut().is_deaf()?;
        let InstanceTask { mesh, instance, .. } = self.life;
        mesh.hung.brokers.count();
        let label = &instance.label;
        self.life.say(&format!(
            "the broker of {label}, process {pid}, {how}, and new connections wait for it: it is \
             killed, which cuts its connections, and restarted"
        ));
        Some(how)
    }

    /// Returns when a promoted instance has been quiet for long enough. Cancel safe.
    async fn until_quiet(&self) {
        let at = self.promotion.borrow().goes_back_at();
        match at {
            Some(at) => tokio::time::sleep_until(at.into()).await,
            None => std::future::pending().await,
        }
    }

    fn goes_back(&self) {
        let now = Instant::now();
        // The rules may have changed since.
        if self.promotion.borrow().goes_back_at().is_none_or(|at| at > now) {
            return;
        }
        self.promotion.borrow_mut().goes_back(now);
        self.life.say(&format!(
            "{} uses little CPU: it shares a node proxy again",
            self.life.instance.label
        ));
        self.promoted.send_replace(false);
    }

    /// Leaves a group, because another one serves the instance. The group finishes the instance's open streams within a
    /// bound. `has_served`: the instance may have open streams there.
    fn leave(&self, group: Rc<NodeProxyGroup>, number: u64, has_served: bool) {
        let InstanceTask { mesh, instance, .. } = self.life;
        let (mesh, instance, tokens) =
            (mesh.clone(), instance.clone(), Rc::clone(&self.place.tokens));
        let (name, mut stop) = (instance.name.clone(), self.life.stop.clone());
        let left = group.leave(&name, (number, true));
        let bound = if has_served { mesh.handover_bound() } else { CLOSE_BOUND };
        let counted = has_served.then(|| mesh.finishing.begin());
        let finishing = Rc::clone(&self.place.finishing);
        let finish = async move {
            // When the instance ends, these streams get the same bound as those of its current group.
            let instance_ends = async {
                // If the sender is dropped, the mesh has ended.
                drop(stop.wait_for(|stop| *stop >= StopStage::All).await);
                tokio::select! {
                    () = tokio::time::sleep(DRAIN_BOUND) => {}
                    _ = stop.wait_for(|stop| *stop >= StopStage::Now) => {}
                }
            };
            tokio::select! {
                left = left => {
                    if DepartedMember::is_whole(left.as_ref()) {
                        if let Some(counted) = counted {
                            counted.has_ended();
                        }
                    } else {
                        let label = &instance.label;
                        mesh.output.say(&format!("an old node proxy of {label} has cut its open streams"));
                    }
                }
                () = instance_ends => {}
                () = finishing.is_first_of_too_many(number) => mesh.output.say(&format!(
                    "more than {MAX_FINISHING} old proxies still finish streams of {}: the oldest \
                     is ended, which cuts its streams",
                    instance.label
                )),
                // A process that works properly has finished by then. For any other process, dropping this future
                // ends its broker, which ends the streams.
                () = tokio::time::sleep(bound) => {}
            }
            let stop = *stop.borrow();
            group.forget(&name, number);
            tokens.borrow_mut().remove(&number);
            // Issues a new token, because the process that has left has read the present one.
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

    /// Waits until all groups that the instance has left have finished its streams.
    async fn until_left(&self) {
        for left in self.left.take() {
            // The runtime prints a panic.
            let _ended = left.await;
        }
    }

    /// Removes the instance's token from the group that served it last.
    fn forget_current(&self) {
        if let Some(group) = &*self.group.borrow() {
            group.forget(&self.life.instance.name, self.current.get());
        }
    }
}

/// Writes one new token to the files of all processes that serve an instance.
pub(super) fn grant(
    mesh: &MeshContext,
    instance: &PlannedInstance,
    tokens: &RefCell<BTreeMap<u64, PathBuf>>,
) -> Result<()> {
    // One process may have two memberships of the instance, with the same path.
    let paths: BTreeSet<PathBuf> = tokens.borrow().values().cloned().collect();
    let paths: Vec<PathBuf> = paths.into_iter().collect();
    if paths.is_empty() {
        return Ok(());
    }
    mesh.proxy.tokens.issue_at(instance, &paths)
}

/// Makes a broker close its listeners in all processes that hold them, and waits for that. Also succeeds if the
/// broker has ended, because that closes its listeners as well.
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

/// The number of the membership that serves last, after `event` of the membership `number`.
fn next_serving(serving: u64, number: u64, event: MemberEvent) -> u64 {
    match event {
        MemberEvent::Serving => serving.max(number),
        MemberEvent::Lost(_) if serving == number => 0,
        MemberEvent::Lost(_)
        | MemberEvent::Joined
        | MemberEvent::Stalled
        | MemberEvent::Used(_)
        | MemberEvent::BrokerHangs => serving,
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
        // The process of the earlier group restarts later.
        assert_eq!(after(&[(1, Serving), (2, Joined), (2, Serving), (1, LOST), (1, Serving)]), 2);
        assert_eq!(after(&[(1, Serving), (2, Joined), (2, Serving), (2, LOST)]), 0);
        assert_eq!(after(&[(2, Serving), (2, LOST), (2, Serving)]), 2);
    }
}
