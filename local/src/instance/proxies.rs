//! The proxy of an instance is a sidecar, which serves this instance only, or a node proxy. When `leno.dev/mode`
//! changes in the instance's documents, a proxy of the other mode takes over while the instance runs.
//!
//! ```text
//! one turn       ─► serves ────────────► leaves, finishes its open streams (24 h at most) ─► ends
//! the next turn        ─► waits for its certificate ─► serves ─► ...
//! ```
//! Both listen on the same ports once the next one serves. Then the earlier one closes its listeners, and the
//! kernel moves the connections that wait in them to the listeners of the next one (`net.ipv4.tcp_migrate_req`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use leno_capture::{Backend, Captured};
use leno_supervise::StopStage;
use tokio::sync::watch;

use super::failures::RepeatedFailures;
use super::waits::Awaited;
use super::{InstanceChange, InstanceResources, InstanceTask, joined};
use crate::error::{Error, Result};
use crate::node::NodeProxyGroup;
use crate::status::ProxyProcess;

/// The pause before another attempt to start a proxy of the other mode.
const AGAIN: Duration = Duration::from_secs(1);

/// The turn of one proxy to serve an instance, as the proxy's code uses it.
pub(super) struct ProxyTurn {
    ready: watch::Sender<bool>,
    /// Becomes true when another proxy has taken over and this one must leave.
    pub(super) leaves: watch::Receiver<bool>,
    /// Whether another proxy serves the instance until this one does.
    pub(super) succeeds: Cell<bool>,
    state: Rc<TurnState>,
}

/// A turn, as the instance's code uses it.
struct TurnHandle {
    is_node: bool,
    ready: watch::Receiver<bool>,
    leaves: watch::Sender<bool>,
    state: Rc<TurnState>,
}

/// The state of a turn's proxy. The instance reports the state of only one turn: the one whose `counts` is true.
#[derive(Default)]
struct TurnState {
    counts: Cell<bool>,
    process: RefCell<Option<ProxyProcess>>,
    restarts: Cell<u32>,
    /// How many times proxies were restarted in all turns before this one.
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

    /// Whether the last report about the proxy was that it serves.
    pub(super) fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }
}

impl TurnState {
    /// A report for the instance's status on whether the proxy serves.
    fn change(&self, ready: bool) -> InstanceChange {
        let restarts = self.restarts_before.get().saturating_add(self.restarts.get());
        InstanceChange::Proxy { ready, restarts, ended: self.ended.borrow().clone() }
    }

    /// Makes this turn the reported one, in place of `before`.
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
    /// Keeps a proxy of the wanted mode serving the instance until the instance ends. `ready` becomes true while a
    /// proxy serves.
    pub(super) async fn proxies(&self, place: &InstanceResources, ready: watch::Sender<bool>) {
        let mut wanted = self.proxy.clone();
        let first = place.shared.take();
        let mut turns = FuturesUnordered::new();
        let (mut current, turn) = ProxyTurn::new(first.is_some(), false);
        turns.push(self.turn(place, first, turn));
        let mut next: Option<TurnHandle> = None;
        // Counts failed attempts to start a proxy of the other mode.
        let mut failures = RepeatedFailures::default();
        loop {
            let is_node = wanted.borrow_and_update().group.is_some();
            if let Some(unwanted) = next.take_if(|next| next.is_node != is_node) {
                unwanted.leaves.send_replace(true);
            }
            if is_node == current.is_node {
                failures.clear();
                self.waits_for(Awaited::ProxyMode, None).await;
            }
            let mut waits = false;
            let ends = *self.stop.borrow() >= StopStage::All;
            if next.is_none() && is_node != current.is_node && !ends {
                match self.prepare(place, is_node).await {
                    Ok(group) => {
                        let (held, turn) = ProxyTurn::new(is_node, true);
                        turns.push(self.turn(place, group, turn));
                        next = Some(held);
                        failures.clear();
                        let proxy = if is_node { "node proxy" } else { "own proxy" };
                        let why = format!("its {proxy} does not serve it yet");
                        self.waits_for(Awaited::ProxyMode, Some(why)).await;
                    }
                    Err(error) => {
                        if let Some(why) = self.complain_again(&mut failures, &error) {
                            self.waits_for(Awaited::ProxyMode, Some(why)).await;
                        }
                        waits = true;
                    }
                }
            }
            tokio::select! {
                ended = turns.next() => match ended {
                    Some(()) => {}
                    None => return,
                },
                // If the sender is dropped, the mesh has ended.
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

    /// Completes a handover: the next turn serves, so the turn before must leave.
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
        // Reported now, because changes before this turn counted were not reported.
        self.report(next.state.change(is_ready)).await;
    }

    /// Prepares a proxy of the other mode. Returns the group to join if that is node mode.
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
                    // Firewall rules recognise the proxy by its user in both modes.
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

    /// Records whether a proxy serves, how many times it was started, and how it ended the last time.
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

    /// Records why the next process of a proxy does not serve yet; `None` if it does, or if there is none.
    pub(super) async fn proxy_waits(&self, turn: &ProxyTurn, why: Option<String>) {
        if turn.state.counts.get() {
            self.waits_for(Awaited::Process, why).await;
        }
    }

    /// Records the process of a proxy.
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
    // There is no next turn, or the next turn has ended with the instance.
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(change: InstanceChange) -> (bool, u32, Option<String>) {
        let InstanceChange::Proxy { ready, restarts, ended } = change else { panic!("{change:?}") };
        (ready, restarts, ended)
    }

    /// Regression: an instance whose earlier proxy had ended was reported as having no proxy, although the next one
    /// served.
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
