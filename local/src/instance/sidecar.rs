//! A sidecar proxy of an instance. When proxies are updated (`leno upgrade --proxies`), a new process takes over
//! from the present one.
//!
//! ```text
//! process        ─► serves ──────────► leaves ─► closes its listeners, finishes what it has ─► ends
//! the next one        ─► waits for its certificate ─► serves ─► ...
//! ```
//! The next process listens on the same ports once it can serve. Then the earlier process closes its listeners,
//! and the kernel moves the connections that wait in them to the listeners of the next process
//! (`net.ipv4.tcp_migrate_req`). A process that does not close its listeners in time is killed, because the kernel
//! would continue to give it connections.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use futures_util::StreamExt as _;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use leno_handover::{AsyncChannel, Channel, MemberReport, MemberState, ProxyOrder};
use leno_supervise::{
    Backoff, Hang, Loss, RestartRules, RunningProcess, StopStage, SuccessionTurn, Watchdog, after,
    describe, keep_running,
};
use leno_types::MAX_FINISHING;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::node::grant;
use super::proxies::ProxyTurn;
use super::{CLOSE_BOUND, DRAIN_BOUND, InstanceResources, InstanceTask, proxy_label};
use crate::error::{Attempt, Result};
use crate::finished::FinishingProxy;
use crate::isolation::Isolation;
use crate::process::Event;
use crate::program::Program;
use crate::record;
use crate::status::ProxyProcess;

/// An event of the process with this number.
type ProcessEvent = (u64, SidecarEvent);

enum SidecarEvent {
    /// The process started, ended or failed to start.
    Life(Event),
    /// The process hangs, and is killed for that.
    Hangs(Hang),
    /// The process at the other end of this channel reports that it accepts connections.
    Serves(Rc<AsyncChannel>),
}

/// One process of the sidecar.
struct SidecarProcess {
    number: u64,
    /// The revision of the mesh's proxies when the process was first started. Each upgrade raises the revision.
    revision: u64,
    /// Whether another process serves the instance until this one does.
    succeeds: Rc<Cell<bool>>,
    /// Whether another process has taken over from this one.
    retired: Rc<Cell<bool>>,
    /// Sends orders to the process while it runs.
    orders: Rc<RefCell<Option<Rc<AsyncChannel>>>>,
    stage: watch::Sender<SidecarStage>,
    /// The permission to take over from another process. Held until the process serves.
    succession: RefCell<Option<SuccessionTurn>>,
}

/// How far a process has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum SidecarStage {
    /// The process serves the instance, or will.
    #[default]
    Serves,
    /// The process was ordered to close its listeners.
    Leaves,
    /// The process has closed its listeners.
    Closed,
}

/// What became of the streams that a process finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OpenStreams {
    #[default]
    Ended,
    Cut,
}

/// The processes of an instance's proxy.
struct Sidecar<'l> {
    life: &'l InstanceTask,
    place: &'l InstanceResources,
    events: mpsc::UnboundedSender<ProcessEvent>,
}

/// The state of the process that serves.
#[derive(Default)]
struct ProcessState {
    starts: u32,
    ended: Option<String>,
    alive: bool,
    /// How the process hangs, if it is killed for that.
    hung: Option<Hang>,
}

impl InstanceTask {
    /// Records why the next process does not serve yet, if there is a reason.
    async fn next_waits(&self, turn: &ProxyTurn, why: Option<String>) {
        if why.is_some() {
            self.proxy_waits(turn, why).await;
        }
    }

    /// Keeps the sidecar running for its turn.
    pub(super) async fn sidecar(&self, place: &InstanceResources, turn: ProxyTurn) {
        let Some(succession) = self.succession(&turn).await else { return };
        let (events, mut happened) = mpsc::unbounded_channel();
        let sidecar = Sidecar { life: self, place, events };
        let (mut wanted, mut leaves) = (self.proxy.clone(), turn.leaves.clone());
        let mut running = FuturesUnordered::new();
        let revision = wanted.borrow().revision;
        let mut current = SidecarProcess::new(place.next_number(), revision, turn.succeeds.get());
        current.succession = RefCell::new(succession);
        running.push(sidecar.keep(&current));
        self.proxy_runs(&turn, self.sidecar_process(place, current.revision)).await;
        let (mut next, mut known, mut has_left) =
            (None::<SidecarProcess>, ProcessState::default(), false);
        loop {
            let revision = wanted.borrow_and_update().revision;
            // If the next process was of an earlier revision, it is replaced. It may never serve, for example
            // because its program is broken.
            if let Some(outdated) = next.take_if(|next| next.revision < revision) {
                outdated.retire();
            }
            let is_due = next.is_none() && revision > current.revision && !has_left;
            let asks = known.alive && !turn.is_ready() && !current.succeeds.get() && !has_left;
            let (number, event) = tokio::select! {
                Some(event) = happened.recv() => event,
                ended = running.next() => match ended {
                    Some(()) => continue,
                    None => return,
                },
                // If the sender is dropped, the mesh has ended.
                Ok(()) = wanted.changed() => continue,
                succession = self.mesh.successions.turn(), if is_due => {
                    let process =
                        SidecarProcess::new(place.next_number(), revision, true).within(succession);
                    running.push(sidecar.keep(&process));
                    next = Some(process);
                    self.next_waits(&turn, Some("its new process does not serve yet".into())).await;
                    continue;
                }
                _ = leaves.wait_for(|leaves| *leaves), if !has_left => {
                    has_left = true;
                    [Some(&current), next.as_ref()].into_iter().flatten().for_each(SidecarProcess::retire);
                    continue;
                }
                () = self.until_ready(place), if asks => {
                    self.proxy_serves(&turn, true, (known.starts, known.ended.clone())).await;
                    continue;
                }
            };
            let is_next = next.as_ref().is_some_and(|next| next.number == number);
            match event {
                SidecarEvent::Hangs(how) if number == current.number => known.hung = Some(how),
                SidecarEvent::Life(event) if number == current.number && !has_left => {
                    self.take_in(event, &mut known, &turn).await;
                }
                SidecarEvent::Life(event) => {
                    self.tell_of(&event);
                    let why = why_not(&event).filter(|_| is_next);
                    self.next_waits(&turn, why).await;
                }
                // Up to this report, the process of an earlier turn served the instance.
                SidecarEvent::Serves(of) if number == current.number && current.is_run_by(&of) => {
                    current.serves();
                }
                SidecarEvent::Serves(of) if is_next && !has_left => {
                    let Some(process) = next.take_if(|next| next.is_run_by(&of)) else { continue };
                    process.serves();
                    std::mem::replace(&mut current, process).retire();
                    known.alive = true;
                    self.next_serves(&turn, self.sidecar_process(place, current.revision)).await;
                }
                // The report is outdated: its process has ended or was ordered to leave. Or a process that does
                // not serve hangs.
                SidecarEvent::Serves(_) | SidecarEvent::Hangs(_) => {}
            }
        }
    }

    /// Waits for permission to take over, if this turn replaces a node proxy. `None` if the turn has ended
    /// meanwhile.
    async fn succession(&self, turn: &ProxyTurn) -> Option<Option<SuccessionTurn>> {
        if !turn.succeeds.get() {
            return Some(None);
        }
        let (mut leaves, mut stop) = (turn.leaves.clone(), self.stop.clone());
        tokio::select! {
            succession = self.mesh.successions.turn() => Some(Some(succession)),
            _ = leaves.wait_for(|leaves| *leaves) => None,
            // If the sender is dropped, the mesh has ended.
            _ = stop.wait_for(|stop| *stop >= StopStage::All) => None,
        }
    }

    /// Records that the next process serves.
    async fn next_serves(&self, turn: &ProxyTurn, process: ProxyProcess) {
        let label = &self.instance.label;
        self.say(&format!("the new proxy process of {label} serves now"));
        self.proxy_runs(turn, process).await;
        self.proxy_waits(turn, None).await;
    }

    /// Describes the process of a sidecar, for the status.
    fn sidecar_process(&self, place: &InstanceResources, revision: u64) -> ProxyProcess {
        let cgroup = place.proxy.path().to_owned();
        ProxyProcess { group: None, cgroup, promoted: false, revision }
    }

    /// Updates the state of the process that serves after an event.
    async fn take_in(&self, event: Event, known: &mut ProcessState, turn: &ProxyTurn) {
        known.alive = matches!(event, Event::Started(_));
        match &event {
            Event::Started(_) => known.starts += 1,
            Event::Ended(status, wait) => {
                let (how, when, label) = (describe(*status), after(*wait), &self.instance.label);
                self.say(&format!("the proxy of {label} {how}; restarting it {when}"));
                let hung = known.hung.take().map(|how| Loss::Hung(how).to_string());
                known.ended = Some(hung.unwrap_or(how));
            }
            Event::Failed(error, _) => self.complain(error),
            Event::Over(_) | Event::Stopping | Event::Stopped => {}
        }
        if !known.alive {
            self.proxy_serves(turn, false, (known.starts, known.ended.clone())).await;
        }
    }

    /// Prints an event of a process that does not serve yet, or no longer serves.
    fn tell_of(&self, event: &Event) {
        let label = &self.instance.label;
        match event {
            Event::Ended(status, wait) => {
                let (how, when) = (describe(*status), after(*wait));
                self.say(&format!("the new proxy process of {label} {how}; restarting it {when}"));
            }
            Event::Failed(error, _) => self.complain(error),
            // A process that was leaving has failed while it still had open streams.
            Event::Over(status) if !status.success() => {
                let how = describe(*status);
                self.say(&format!(
                    "an old proxy process of {label} {how}: its open streams are cut"
                ));
            }
            Event::Over(_) | Event::Started(_) | Event::Stopping | Event::Stopped => {}
        }
    }
}

/// Why the next process does not serve yet, if the event shows the reason.
fn why_not(event: &Event) -> Option<String> {
    match event {
        Event::Ended(status, _) => {
            Some(format!("its new process {}, and is restarted", describe(*status)))
        }
        Event::Failed(error, _) => Some(error.chain()),
        Event::Over(_) | Event::Started(_) | Event::Stopping | Event::Stopped => None,
    }
}

impl SidecarProcess {
    fn new(number: u64, revision: u64, succeeds: bool) -> Self {
        let (succeeds, retired, orders) =
            (Rc::new(Cell::new(succeeds)), Rc::default(), Rc::default());
        let stage = watch::Sender::default();
        let succession = RefCell::default();
        Self { number, revision, succeeds, retired, orders, stage, succession }
    }

    /// Records that this process serves: no other process does, and its handover is complete.
    fn serves(&self) {
        self.succeeds.set(false);
        self.succession.take();
    }

    /// Holds this permission to take over until the process serves.
    fn within(self, turn: SuccessionTurn) -> Self {
        Self { succession: RefCell::new(Some(turn)), ..self }
    }

    /// Whether the process that runs now has this channel. A process that has sent a report may have been replaced
    /// since then.
    fn is_run_by(&self, channel: &Rc<AsyncChannel>) -> bool {
        self.orders.borrow().as_ref().is_some_and(|orders| Rc::ptr_eq(orders, channel))
    }

    /// Orders the process to leave and finish its open streams, because another process serves.
    fn retire(&self) {
        if self.retired.replace(true) {
            return;
        }
        let orders = self.orders.borrow();
        if let Some(orders) = &*orders {
            // If the order cannot be sent, the process is ending. A process that ignores the order is killed by
            // `overdue`.
            let _gone = orders.send(&ProxyOrder::Leave { number: 0, succeeded: true }, &[]);
        }
        self.succession.take();
        self.stage.send_replace(SidecarStage::Leaves);
    }
}

impl<'l> Sidecar<'l> {
    /// Keeps a process running until another one has taken over from it and it has ended, or the instance ends.
    fn keep(&'l self, process: &SidecarProcess) -> LocalBoxFuture<'l, ()> {
        let number = process.number;
        let (succeeds, orders) = (Rc::clone(&process.succeeds), Rc::clone(&process.orders));
        let (watchdog, stage) = (Rc::<RefCell<Watchdog>>::default(), process.stage.clone());
        let backoff = Backoff::eager(Instant::now());
        let retired = Rc::clone(&process.retired);
        let rules = RestartRules {
            retired: Rc::clone(&retired),
            condemned: watchdog.borrow().condemned(),
            ..RestartRules::always(backoff, DRAIN_BOUND)
        };
        let (finishing, streams) =
            (RefCell::<Option<FinishingProxy>>::default(), Rc::<Cell<OpenStreams>>::default());
        let heard = RefCell::<Option<JoinHandle<()>>>::default();
        Box::pin(async move {
            let start = || {
                let (running, near) = self.start(number, succeeds.get())?;
                *orders.borrow_mut() = Some(Rc::clone(&near));
                let progress = (stage.clone(), Rc::clone(&streams));
                *heard.borrow_mut() =
                    Some(self.hear((number, Rc::clone(&watchdog)), near, progress));
                Ok(running)
            };
            let mut run = self.place.processes.run(&self.place.proxy);
            let report = |event| {
                run.follow(&event);
                match &event {
                    Event::Started(pid) => watchdog.borrow_mut().started(*pid),
                    Event::Stopping => {}
                    Event::Ended(..) | Event::Over(_) | Event::Failed(..) | Event::Stopped => {
                        watchdog.borrow_mut().ended();
                    }
                }
                if matches!(&event, Event::Over(status) if !status.success()) {
                    streams.set(OpenStreams::Cut);
                }
                if !matches!(event, Event::Started(_) | Event::Stopping) {
                    orders.borrow_mut().take();
                }
                // The receiver is polled together with this future.
                drop(self.events.send((number, SidecarEvent::Life(event))));
            };
            tokio::select! {
                _ = keep_running(start, rules, (self.life.stop.clone(), StopStage::All), report) => {
                    orders.borrow_mut().take();
                    // Its last report may be unread. The channel is closed, because the process has ended.
                    if let Some(heard) = heard.take() {
                        // The runtime prints a panic.
                        let _ended = heard.await;
                    }
                }
                // Dropping the other future kills the process.
                () = self.overdue(number, (&orders, &finishing), stage.subscribe()) => {
                    streams.set(OpenStreams::Cut);
                }
                () = self.watch(number, &watchdog, &retired) => {}
            }
            orders.borrow_mut().take();
            if let Some(finishing) = finishing.take()
                && streams.get() == OpenStreams::Ended
            {
                finishing.has_ended();
            }
            self.forget(number);
        })
    }

    /// Has the process killed if it hangs, and reports that, as long as this future is polled.
    async fn watch(&self, number: u64, watchdog: &RefCell<Watchdog>, retired: &Cell<bool>) {
        let InstanceTask { mesh, instance, .. } = self.life;
        let mut looks = Watchdog::looks();
        loop {
            looks.tick().await;
            let hung = watchdog.borrow_mut().look();
            let Some((pid, how)) = hung else { continue };
            mesh.hung.sidecars.count();
            let (label, again) =
                (&instance.label, if retired.get() { "" } else { ", and restarted" });
            self.life
                .say(&format!("the proxy of {label}, process {pid}, {how}: it is killed{again}"));
            // The receiver is polled beside this.
            drop(self.events.send((number, SidecarEvent::Hangs(how))));
        }
    }

    /// Returns when a process that leaves has not closed its listeners in time, or has used up the time for its
    /// open streams. Prints that, if the process still runs.
    async fn overdue(
        &self,
        number: u64,
        (orders, finishing): (&RefCell<Option<Rc<AsyncChannel>>>, &RefCell<Option<FinishingProxy>>),
        mut stage: watch::Receiver<SidecarStage>,
    ) {
        // The sender lives as long as the process.
        drop(stage.wait_for(|stage| *stage >= SidecarStage::Leaves).await);
        finishing.replace(Some(self.life.mesh.finishing.begin()));
        let closes = async { drop(stage.wait_for(|stage| *stage >= SidecarStage::Closed).await) };
        let why = match timeout(CLOSE_BOUND, closes).await {
            Err(_elapsed) => "does not close its listeners".to_owned(),
            Ok(()) => tokio::select! {
                () = self.place.finishing.is_first_of_too_many(number) => {
                    format!("is the oldest of more than {MAX_FINISHING} that finish their open \
                             streams")
                }
                () = tokio::time::sleep(self.life.mesh.handover_bound()) => {
                    "has reached the time limit for finishing open streams".to_owned()
                }
            },
        };
        if orders.borrow().is_some() {
            let label = &self.life.instance.label;
            self.life.say(&format!("an old proxy process of {label} {why}: it is killed"));
        }
    }

    fn start(&self, number: u64, succeeds: bool) -> Result<(RunningProcess, Rc<AsyncChannel>)> {
        let InstanceTask { mesh, instance, .. } = self.life;
        let label = proxy_label(instance);
        let name = format!("{} proxy", instance.name);
        let origin = mesh.output.origin(&label, &name, &instance.workload);
        let what = || "cannot create a socket for orders".to_owned();
        let (near, far) = Channel::pair().attempt(what)?;
        let token = mesh.layout.token();
        let folder = self.folder(number)?;
        grant(mesh, instance, &self.place.tokens)?;
        let laid = token.parent().unwrap_or(&token).to_owned();
        let program = Program::prepare(&mesh.layout, "leno-proxy")?;
        let files = [self.place.files.as_slice(), &[program.file(), (folder, laid)]].concat();
        let isolation =
            Isolation::new(&self.place.proxy, &self.place.netns, &files, &instance.name.name)?;
        let task = mesh.proxy.task(instance, (&program, &token), isolation, (far, succeeds));
        // A proxy prints only its access log to standard output.
        let access = mesh.access_log.as_ref().unwrap_or(&mesh.output);
        let running = task.start_with(access, &mesh.output, &origin)?;
        Ok((running, Rc::new(AsyncChannel::new(near).attempt(what)?)))
    }

    /// Reads the reports of a process until it ends.
    fn hear(
        &self,
        (number, watchdog): (u64, Rc<RefCell<Watchdog>>),
        reports: Rc<AsyncChannel>,
        (stage, streams): (watch::Sender<SidecarStage>, Rc<Cell<OpenStreams>>),
    ) -> JoinHandle<()> {
        let events = self.events.clone();
        let (output, label) = (self.life.mesh.output.clone(), self.life.instance.label.clone());
        tokio::task::spawn_local(async move {
            loop {
                let report = reports.receive::<MemberReport>().await;
                if let Ok(Some((report, _))) = &report {
                    watchdog.borrow_mut().heard(report.state);
                }
                match report {
                    Ok(Some((MemberReport { state: MemberState::Serving, .. }, _))) => {
                        // Sending fails only if the instance has been removed and its receiver dropped.
                        let serves = SidecarEvent::Serves(Rc::clone(&reports));
                        let _ending = events.send((number, serves));
                    }
                    Ok(Some((MemberReport { state: MemberState::Closed, .. }, _))) => {
                        stage.send_replace(SidecarStage::Closed);
                    }
                    Ok(Some((MemberReport { state: MemberState::Cut, .. }, _))) => {
                        streams.set(OpenStreams::Cut);
                        if *stage.borrow() >= SidecarStage::Leaves {
                            output.say(&format!(
                                "an old proxy process of {label} has reached the time limit for \
                                 finishing open streams: they are cut"
                            ));
                        }
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => return,
                    // A proxy of a later version may send other reports.
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                    Err(error) => {
                        return output
                            .say(&format!("{label}: cannot read what its proxy reports: {error}"));
                    }
                }
            }
        })
    }

    /// Creates the folder from which a process reads its token.
    fn folder(&self, number: u64) -> Result<PathBuf> {
        let InstanceTask { mesh, instance, .. } = self.life;
        let folder = mesh.layout.instance(&instance.name).join(format!("token-{number}"));
        record::make_directory(&folder, 0o755)?;
        record::make_place(&mesh.layout.token())?;
        self.place.tokens.borrow_mut().insert(number, folder.join("token"));
        Ok(folder)
    }

    /// Cleans up after a process that has ended for good. Issues a new token, because that process has read the
    /// present one.
    fn forget(&self, number: u64) {
        let InstanceTask { mesh, instance, .. } = self.life;
        let token = self.place.tokens.borrow_mut().remove(&number);
        // The token and all folders are removed with the instance.
        if *self.life.stop.borrow() >= StopStage::All {
            return;
        }
        let folder = token.as_deref().and_then(Path::parent);
        let removed = folder.map_or(Ok(()), |folder| {
            let what = || format!("cannot remove {}", folder.display());
            std::fs::remove_dir_all(folder).attempt(what)
        });
        for ended in [removed, grant(mesh, instance, &self.place.tokens)] {
            if let Err(error) = ended {
                self.life.complain(&error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a process that got the order to leave twice took the second order as one to end at once, with
    /// its streams open.
    #[tokio::test]
    async fn a_process_gets_the_order_to_leave_once_and_is_recognised_by_its_channel() {
        let process = SidecarProcess::new(1, 0, false);
        process.retire();
        let pair = || Channel::pair().unwrap();
        let ((near, far), (other, _)) = (pair(), pair());
        let process = SidecarProcess::new(2, 0, true);
        let [near, other] = [near, other].map(|one| Rc::new(AsyncChannel::new(one).unwrap()));
        process.orders.replace(Some(Rc::clone(&near)));
        assert!(process.is_run_by(&near) && !process.is_run_by(&other));
        process.retire();
        process.retire();
        let far = AsyncChannel::new(far).unwrap();
        let order = far.receive::<ProxyOrder>().await.unwrap().map(|(order, _)| order);
        assert_eq!(order, Some(ProxyOrder::Leave { number: 0, succeeded: true }));
        drop((process, near));
        assert!(far.receive::<ProxyOrder>().await.unwrap().is_none(), "it got a second order");
    }
}
