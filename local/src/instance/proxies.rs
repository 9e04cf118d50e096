//! What serves an instance: a proxy of its own, or a node proxy. Either takes over from the other while the instance runs, as its
//! documents have it (`leno.dev/mode`).
//!
//! ```text
//! one turn       ─► serves ────────────► leaves, finishes what it has (24 h at most) ─► ends
//! the next one         ─► waits for its certificate ─► serves ─► ...
//! ```
//! Both listen on the same ports once the next one serves. Then the one before closes its listeners, and the kernel gives the next one
//! what waits in them (`net.ipv4.tcp_migrate_req`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use leno_capture::{Backend, Captured};
use leno_supervise::StopStage;
use tokio::sync::watch;

use super::waits::Awaited;
use super::{InstanceChange, InstanceResources, InstanceTask, joined};
use crate::error::{Error, Result};
use crate::node::NodeProxyGroup;
use crate::status::ProxyProcess;

/// Between two attempts to begin with the other mode.
const AGAIN: Duration = Duration::from_secs(1);

/// The turn of a proxy at an instance, as that proxy has it.
pub(super) struct ProxyTurn {
    ready: watch::Sender<bool>,
    /// It is to leave the instance to another one.
    pub(super) leaves: watch::Receiver<bool>,
    /// Another one serves the instance until this one does.
    pub(super) succeeds: Cell<bool>,
    state: Rc<TurnState>,
}

/// A turn, as the instance has it.
struct TurnHandle {
    is_node: bool,
    ready: watch::Receiver<bool>,
    leaves: watch::Sender<bool>,
    state: Rc<TurnState>,
}

/// What became of a turn's proxy. The instance reports the state of one turn, which counts.
#[derive(Default)]
struct TurnState {
    counts: Cell<bool>,
    process: RefCell<Option<ProxyProcess>>,
    restarts: Cell<u32>,
    /// Those of the turns before.
    restarts_before: Cell<u32>,
    ended: RefCell<Option<String>>,
}

impl ProxyTurn {
    fn new(is_node: bool, succeeds: bool) -> (TurnHandle, Self) {
        let (ready, is_ready) = watch::channel(false);
        let (leave, leaves) = watch::channel(false);
        let state = Rc::new(TurnState { counts: Cell::new(!succeeds), ..TurnState::default() });
        let held = TurnHandle { is_node, ready: is_ready, leaves: leave, state: Rc::clone(&state) };
        (held, Self { ready, leaves, succeeds: Cell::new(succeeds), state })
    }

    /// Whether it serves, as far as that was reported.
    pub(super) fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }
}

impl TurnState {
    /// Whether its proxy serves, for the status of the instance.
    fn change(&self, ready: bool) -> InstanceChange {
        let restarts = self.restarts_before.get().saturating_add(self.restarts.get());
        InstanceChange::Proxy { ready, restarts, ended: self.ended.borrow().clone() }
    }

    /// It counts in place of the one before.
    fn succeed(&self, before: &Self) {
        before.counts.set(false);
        self.counts.set(true);
        self.restarts_before
            .set(before.restarts_before.get().saturating_add(before.restarts.get()));
        if self.ended.borrow().is_none() {
            self.ended.replace(before.ended.take());
        }
    }
}

impl InstanceTask {
    /// Has the instance served by what its documents say, until it ends; `ready` follows whether it is.
    pub(super) async fn proxies(&self, place: &InstanceResources, ready: watch::Sender<bool>) {
        let mut wanted = self.proxy.clone();
        let first = place.shared.take();
        let mut turns = FuturesUnordered::new();
        let (mut current, turn) = ProxyTurn::new(first.is_some(), false);
        turns.push(self.turn(place, first, turn));
        let mut next: Option<TurnHandle> = None;
        // Why the other mode has not begun, as far as that was said.
        let mut said = None;
        loop {
            let is_node = wanted.borrow_and_update().group.is_some();
            if let Some(unwanted) = next.take_if(|next| next.is_node != is_node) {
                unwanted.leaves.send_replace(true);
            }
            if is_node == current.is_node {
                said = None;
                self.waits_for(Awaited::ProxyMode, None).await;
            }
            let mut waits = false;
            let ends = *self.stop.borrow() >= StopStage::All;
            if next.is_none() && is_node != current.is_node && !ends {
                match self.prepare(place, is_node).await {
                    Ok(group) => {
                        let (held, turn) = ProxyTurn::new(is_node, true);
                        turns.push(self.turn(place, group, turn));
                        (next, said) = (Some(held), None);
                        let proxy = if is_node { "node proxy" } else { "own proxy" };
                        let why = format!("its {proxy} does not serve it yet");
                        self.waits_for(Awaited::ProxyMode, Some(why)).await;
                    }
                    Err(error) => {
                        let why = error.chain();
                        if said.as_ref() != Some(&why) {
                            self.complain(&error);
                            self.waits_for(Awaited::ProxyMode, Some(why.clone())).await;
                        }
                        (said, waits) = (Some(why), true);
                    }
                }
            }
            tokio::select! {
                ended = turns.next() => match ended {
                    Some(()) => {}
                    None => return,
                },
                // A sender that is gone is the end of the mesh.
                Ok(()) = wanted.changed() => {}
                Ok(()) = current.ready.changed() => {
                    ready.send_replace(*current.ready.borrow_and_update());
                }
                () = until_ready(next.as_mut()) => {
                    if let Some(next) = next.take() {
                        let before = std::mem::replace(&mut current, next);
                        let is_ready = *current.ready.borrow_and_update();
                        self.pass_on(before, (&current, is_ready)).await;
                        ready.send_replace(is_ready);
                    }
                }
                () = tokio::time::sleep(AGAIN), if waits => {}
            }
        }
    }

    fn turn<'l>(
        &'l self,
        place: &'l InstanceResources,
        group: Option<Rc<NodeProxyGroup>>,
        turn: ProxyTurn,
    ) -> LocalBoxFuture<'l, ()> {
        Box::pin(async move {
            match group {
                Some(group) => self.node_proxy(place, group, turn).await,
                None => self.sidecar(place, turn).await,
            }
        })
    }

    /// Another turn serves: the one before leaves.
    async fn pass_on(&self, before: TurnHandle, (next, is_ready): (&TurnHandle, bool)) {
        next.state.succeed(&before.state);
        before.leaves.send_replace(true);
        self.waits_for(Awaited::Process, None).await;
        let label = &self.instance.label;
        self.say(&match next.is_node {
            true => format!("{label} is in node mode now"),
            false => format!("{label} has a proxy of its own now"),
        });
        let process = next.state.process.borrow().clone();
        if let Some(process) = process {
            self.report(InstanceChange::ProxyRuns(process)).await;
        }
        // The one before may have ended, and this one may have since it served.
        self.report(next.state.change(is_ready)).await;
    }

    /// What the other mode needs; the group that it is to be in, in node mode.
    async fn prepare(
        &self,
        place: &InstanceResources,
        is_node: bool,
    ) -> Result<Option<Rc<NodeProxyGroup>>> {
        let Some(name) = self.proxy.borrow().group.clone().filter(|_| is_node) else {
            return Ok(None);
        };
        let captured = match place.proxy_by_user.get() {
            true => None,
            false => place.captured.take(),
        };
        if let Some(mut captured) = captured {
            let is_by_programs = captured.backend() == Backend::Ebpf;
            let workload = self.workload(place, true);
            let upgrade = move || -> Result<(Captured, Option<Error>)> {
                let upgraded = match is_by_programs {
                    true => captured.upgrade(&workload),
                    // Rules know the proxy by its user already.
                    false => Ok(()),
                };
                Ok((captured, upgraded.err().map(Error::from)))
            };
            let (captured, failed) = joined(tokio::task::spawn_blocking(upgrade).await)?;
            place.captured.replace(Some(captured));
            if let Some(error) = failed {
                return Err(error);
            }
            place.proxy_by_user.set(true);
        }
        NodeProxyGroup::enter(&self.mesh, &name, &self.instance.name).map(Some)
    }

    /// Takes in whether a proxy serves, how often it was started, and how it ended the last time.
    pub(super) async fn proxy_serves(
        &self,
        turn: &ProxyTurn,
        serves: bool,
        (starts, ended): (u32, Option<String>),
    ) {
        let state = &turn.state;
        state.restarts.set(starts.saturating_sub(1));
        if ended.is_some() {
            state.ended.replace(ended);
        }
        let was = turn.ready.send_replace(serves);
        if state.counts.get() && (serves || was) {
            self.report(state.change(serves)).await;
        }
    }

    /// Takes in why the next process of a proxy does not serve yet; `None`: it does, or there is none.
    pub(super) async fn proxy_waits(&self, turn: &ProxyTurn, why: Option<String>) {
        if turn.state.counts.get() {
            self.waits_for(Awaited::Process, why).await;
        }
    }

    /// Takes in where a proxy runs.
    pub(super) async fn proxy_runs(&self, turn: &ProxyTurn, process: ProxyProcess) {
        turn.state.process.replace(Some(process.clone()));
        if turn.state.counts.get() {
            self.report(InstanceChange::ProxyRuns(process)).await;
        }
    }
}

async fn until_ready(next: Option<&mut TurnHandle>) {
    if let Some(next) = next
        && next.ready.wait_for(|ready| *ready).await.is_ok()
    {
        return;
    }
    // None is under way, or it has ended with the instance.
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(change: InstanceChange) -> (bool, u32, Option<String>) {
        let InstanceChange::Proxy { ready, restarts, ended } = change else { panic!("{change:?}") };
        (ready, restarts, ended)
    }

    /// The proxy before had ended, and its instance was taken for one without a proxy although the next one served.
    #[test]
    fn a_turn_that_takes_over_reports_itself_and_what_became_of_those_before() {
        let (before, _turn) = ProxyTurn::new(false, false);
        before.state.restarts.set(2);
        before.state.ended.replace(Some("was ended by SIGKILL".to_owned()));
        let (next, _turn) = ProxyTurn::new(true, true);
        assert!(before.state.counts.get() && !next.state.counts.get());
        next.state.restarts.set(1);
        next.state.succeed(&before.state);
        assert!(!before.state.counts.get() && next.state.counts.get());
        let ended = Some("was ended by SIGKILL".to_owned());
        assert_eq!(reported(next.state.change(true)), (true, 3, ended));
    }
}
