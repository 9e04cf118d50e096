//! The watchers of a measurement's nodes. They are queried concurrently; this module also decides
//! what happens if one of them does not answer.
//!
//! Before the load, the bench waits for every watcher. During the load, it keeps the answers that
//! arrive, and a watcher that does not answer leads to a mark. After the load, the client has
//! reported and the measurement must not be lost; figures that do not arrive are missing, which
//! also leads to a mark.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use futures_util::future::join_all;
use leno_operate::{PodName, Reach};
use tokio::time::{Instant, timeout};

use super::wait::{PollResult, pass, repeated};
use crate::interrupt::{Interrupt, Interrupted};
use crate::kernel_counters::NodeCounters;
use crate::measurement::usage::{Component, Reading};
use crate::node_watcher::PORT;
use crate::node_watcher::container_start::Start;
use crate::node_watcher::counters::Question;

/// The time limit of a watcher's answer under load; a later answer would describe another moment.
const ANSWER_UNDER_LOAD: Duration = Duration::from_secs(5);
/// How long to wait for a watcher before the load and after it. Its pod is ready, so it normally
/// answers at once.
const ANSWERED: Duration = Duration::from_secs(60);
/// The pause before a watcher that did not answer is queried again.
const AGAIN: Duration = Duration::from_millis(500);

/// How requests reach the watcher pods.
pub(super) trait WatcherTransport {
    /// Sends a request with a method, a path and a body. Returns the status and the body of the
    /// answer.
    async fn ask(
        &self,
        pod: &PodName,
        what: (&str, &str),
        body: &str,
    ) -> Result<(u16, String), String>;
}

impl WatcherTransport for Reach {
    async fn ask(
        &self,
        pod: &PodName,
        what: (&str, &str),
        body: &str,
    ) -> Result<(u16, String), String> {
        let reply = self.send_to(pod, PORT, what, body).await.map_err(|error| error.said())?;
        Ok((reply.status, reply.body))
    }
}

/// The watchers of a measurement.
pub(super) struct Watchers<W = Reach> {
    pub(super) reach: W,
    pub(super) namespace: String,
    /// The watcher pod of each node.
    pub(super) pods: BTreeMap<String, String>,
}

/// The counters to read.
#[derive(Clone, Copy)]
pub(super) struct CounterQuery<'a> {
    pub(super) watched: &'a [Component],
    /// The nodes whose whole kernels are read as well.
    pub(super) whole: &'a BTreeSet<String>,
}

impl CounterQuery<'_> {
    /// The question to a node's watcher.
    fn question(&self, node: &str) -> Question {
        let here = || self.watched.iter().filter(|one| one.node == node);
        let client = here().find(|one| one.is_client());
        Question {
            containers: here().map(|one| one.id.clone()).collect(),
            connections_of: client.map(|one| one.id.clone()),
            whole: self.whole.contains(node),
        }
    }

    fn is_of(&self, node: &str) -> bool {
        self.whole.contains(node) || self.watched.iter().any(|one| one.node == node)
    }
}

/// The answers of the watchers to one question.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The counters from the watchers that answered.
    pub(super) reading: Reading,
    /// The nodes whose watchers did not answer, and why.
    pub(super) silent: BTreeMap<String, String>,
    /// When each answer arrived.
    pub(super) came: BTreeMap<String, Instant>,
}

impl Answers {
    /// Adds later answers.
    pub(super) fn extend(&mut self, later: Self) {
        self.reading.extend(later.reading);
        self.silent.extend(later.silent);
        self.came.extend(later.came);
    }
}

/// Why a watcher has not carried out a request.
#[derive(Debug)]
struct WatcherRefusal {
    /// Whether one of the containers has no process; then the watcher has done nothing.
    is_missing: bool,
    why: String,
}

impl<W: WatcherTransport> Watchers<W> {
    /// Queries all watchers under load; answers that take longer than 5 s are missing.
    pub(super) async fn under_load(&self, watched: &[Component]) -> Answers {
        let what = CounterQuery { watched, whole: &BTreeSet::new() };
        self.ask(what, self.pods.keys(), ANSWER_UNDER_LOAD).await
    }

    /// Before the load: lists the containers and reads their counters, until each of them has a
    /// process.
    ///
    /// # Errors
    /// If that takes longer than 60 s, in which case the error names what is missing; if the
    /// containers cannot be listed; after an interrupt.
    pub(super) async fn before(
        &self,
        (mut listed, whole): (impl AsyncFnMut() -> Result<Vec<Component>>, &BTreeSet<String>),
        interrupt: &Interrupt,
    ) -> Result<(Vec<Component>, Reading)> {
        repeated(("every container is seen", ANSWERED), interrupt, async || {
            // Listed again for each attempt, because containers that have ended have no process.
            let watched = listed().await?;
            let what = CounterQuery { watched: &watched, whole };
            let answers = self.ask(what, self.pods.keys(), ANSWERED).await;
            if let Some((node, why)) = answers.silent.iter().next() {
                return Ok(PollResult::NotYet(format!("the watcher of node {node}: {why}")));
            }
            if let Some(Component { name, node, .. }) = answers.reading.lacks(&watched) {
                return Ok(PollResult::NotYet(format!(
                    "no process of {name} is seen on node {node}: those of runtimes in a virtual machine (Kata, \
                     gVisor) are not, and such pods cannot be measured"
                )));
            }
            Ok(PollResult::There((watched, answers.reading)))
        })
        .await
    }

    /// After the load: the first answer of each watcher with something to read, within 60 s.
    pub(super) async fn after(
        &self,
        what: CounterQuery<'_>,
        interrupt: &Interrupt,
    ) -> Result<Answers> {
        let begin = Instant::now();
        let nodes = self.pods.keys().filter(|node| what.is_of(node));
        let mut answers = self.ask(what, nodes, ANSWERED).await;
        while !answers.silent.is_empty() && begin.elapsed() < ANSWERED {
            pass(AGAIN, interrupt).await?;
            let more = self.ask(what, answers.silent.keys(), ANSWERED).await;
            answers.silent.clear();
            answers.extend(more);
        }
        Ok(answers)
    }

    /// Queries the watchers of some nodes concurrently; answers that do not arrive in time are
    /// missing.
    async fn ask<'n>(
        &self,
        what: CounterQuery<'_>,
        nodes: impl Iterator<Item = &'n String>,
        time: Duration,
    ) -> Answers {
        let mut answers = Answers::default();
        let asked = nodes.map(async |node| {
            let look = timeout(time, self.look(node, what)).await;
            let late = || format!("no answer within {} s", time.as_secs());
            (node, look.unwrap_or_else(|_| Err(late())), Instant::now())
        });
        for (node, look, at) in join_all(asked).await {
            match look {
                Ok(look) => {
                    answers.reading.add(node, look, what.watched);
                    answers.came.insert(node.clone(), at);
                }
                Err(why) => drop(answers.silent.insert(node.clone(), why)),
            }
        }
        answers
    }

    async fn look(&self, node: &str, what: CounterQuery<'_>) -> Result<NodeCounters, String> {
        let text =
            serde_json::to_string(&what.question(node)).map_err(|error| error.to_string())?;
        let body = self.send(node, ("POST", "/look"), &text).await.map_err(|one| one.why)?;
        serde_json::from_str(&body).map_err(|error| format!("its answer is no look: {error}"))
    }

    /// Kills containers on all their nodes concurrently. If one of them has ended meanwhile, its
    /// watcher kills none; then the containers of that node are listed `again` and the new list is
    /// killed.
    ///
    /// # Errors
    /// If a node's watcher has not confirmed within 5 s; containers on other nodes may be killed
    /// then. Also after an interrupt.
    pub(super) async fn kill(
        &self,
        doomed: &[Component],
        again: impl AsyncFn() -> Result<Vec<Component>>,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let nodes: BTreeSet<&str> = doomed.iter().map(|one| &*one.node).collect();
        let told = nodes.into_iter().map(|node| self.kill_on(node, doomed, &again, interrupt));
        join_all(told).await.into_iter().collect()
    }

    async fn kill_on(
        &self,
        node: &str,
        doomed: &[Component],
        again: &impl AsyncFn() -> Result<Vec<Component>>,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let ids = |all: &[Component]| -> Vec<String> {
            all.iter().filter(|one| one.node == node).map(|one| one.id.clone()).collect()
        };
        let what = format!("the watcher of node {node} confirms the kill");
        let (mut doomed, mut path) = (ids(doomed), format!("/kill/{}", unique_id()));
        repeated((&what, ANSWER_UNDER_LOAD), interrupt, async || {
            let body = serde_json::to_string(&doomed)?;
            Ok(match self.send(node, ("POST", &path), &body).await {
                Ok(_) => PollResult::There(()),
                Err(refusal) if refusal.is_missing => match again().await {
                    Err(error) if error.is::<Interrupted>() => return Err(error),
                    Err(error) => PollResult::NotYet(format!("{}; {error:#}", refusal.why)),
                    Ok(now_there) => {
                        let now_there = ids(&now_there);
                        if !now_there.is_empty() {
                            (doomed, path) = (now_there, format!("/kill/{}", unique_id()));
                        }
                        PollResult::NotYet(refusal.why)
                    }
                },
                Err(refusal) => PollResult::NotYet(refusal.why),
            })
        })
        .await
    }

    /// Kills a container and returns the path for querying when its program ran again.
    pub(super) async fn restart(&self, one: &Component, interrupt: &Interrupt) -> Result<String> {
        let (node, path) = (&one.node, format!("/start/{}", unique_id()));
        let body = serde_json::to_string(&one.id)?;
        let what = format!("the watcher of node {node} confirms the kill");
        // The request has an ID, so repeating it does not repeat the kill.
        repeated((&what, ANSWER_UNDER_LOAD), interrupt, async || {
            let confirmed = self.send(node, ("POST", &path), &body).await;
            Ok(confirmed
                .map_or_else(|refusal| PollResult::NotYet(refusal.why), |_| PollResult::There(())))
        })
        .await?;
        Ok(path)
    }

    /// The state of a restart.
    pub(super) async fn started(
        &self,
        (node, path): (&str, &str),
        interrupt: &Interrupt,
    ) -> Result<Start> {
        let what = format!("the watcher of node {node} reports when a proxy ran again");
        repeated((&what, ANSWERED), interrupt, async || {
            let body = self.send(node, ("GET", path), "").await.map_err(|one| one.why);
            let state =
                body.and_then(|body| serde_json::from_str(&body).map_err(|e| e.to_string()));
            Ok(match state {
                Ok(Start::Waiting) => PollResult::NotYet("it does not run again yet".to_owned()),
                Ok(state) => PollResult::There(state),
                Err(why) => PollResult::NotYet(why),
            })
        })
        .await
    }

    async fn send(
        &self,
        node: &str,
        what: (&str, &str),
        body: &str,
    ) -> Result<String, WatcherRefusal> {
        let other = |why| WatcherRefusal { is_missing: false, why };
        let name =
            self.pods.get(node).ok_or_else(|| other("the node has no watcher".to_owned()))?;
        let pod = PodName { namespace: self.namespace.clone(), name: name.clone() };
        match self.reach.ask(&pod, what, body).await.map_err(other)? {
            (200 | 202, body) => Ok(body),
            (status, body) => {
                Err(WatcherRefusal { is_missing: status == 404, why: format!("{status} {body}") })
            }
        }
    }
}

/// A unique ID for a request.
pub(super) fn unique_id() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or_default().as_nanos().to_string()
}

#[cfg(test)]
mod tests;
