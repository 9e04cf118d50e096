//! The watchers of a measurement's nodes. They are queried concurrently; this module also decides
//! what happens if one of them does not answer.
//!
//! Before the load, the bench waits for every watcher. During the load, it keeps the answers that
//! arrive, and a watcher that does not answer leads to a mark. After the load, the client has
//! reported and the measurement must not be lost; figures that do not arrive are missing, which
//! also leads to a mark.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::future::join_all;
use leno_kube::Client;
use tokio::time::Instant;

use super::pod_stream::PodStream;
use super::wait::{PollResult, repeated};
use crate::kernel_counters::NodeCounters;
use crate::measurement::usage::{Component, Reading};
use crate::pod_program::counters::CounterQuestion;
use crate::pod_program::{PodTask, RUNS_AGAIN};

/// The time limit of an answer under load and after it; a later answer would describe another moment.
const PROMPT: Duration = Duration::from_secs(5);
/// How long to wait for all watchers before the load. Their pods are ready, so they normally answer at once.
const ANSWERED: Duration = Duration::from_secs(60);
/// How much later than the start of a container's program the answer about this start may be.
const TOLD: Duration = Duration::from_secs(10);

/// The watchers of a measurement, by node.
pub(super) struct Watchers(BTreeMap<String, PodStream>);

#[derive(Clone, Copy)]
pub(super) struct CounterQuery<'a> {
    pub(super) watched: &'a [Component],
    /// The nodes on which the counters of the whole kernel are read, too.
    pub(super) whole: &'a BTreeSet<String>,
}

impl CounterQuery<'_> {
    fn question(&self, node: &str) -> CounterQuestion {
        let here = || self.watched.iter().filter(|one| one.node == node);
        let client = here().find(|one| one.is_client());
        CounterQuestion {
            containers: here().map(|one| one.id.clone()).collect(),
            connections_of: client.map(|one| one.id.clone()),
            whole: self.whole.contains(node),
        }
    }

    fn is_of(&self, node: &str) -> bool {
        self.whole.contains(node) || self.watched.iter().any(|one| one.node == node)
    }
}

#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The counters from the watchers that answered.
    pub(super) reading: Reading,
    /// The nodes whose watchers did not answer, and why.
    pub(super) silent: BTreeMap<String, String>,
}

impl Watchers {
    /// The watchers in these pods, by node.
    pub(super) fn of(client: &Client, namespace: &str, pods: &BTreeMap<String, String>) -> Self {
        let stream =
            |(node, pod): (&String, &String)| (node.clone(), PodStream::of(client, namespace, pod));
        Self(pods.iter().map(stream).collect())
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Before the load: lists the containers and reads their counters, until each of them has a
    /// process.
    ///
    /// # Errors
    /// If this takes longer than 60 s, in which case the error names what is missing; if the
    /// containers cannot be listed.
    pub(super) async fn before(
        &self,
        mut listed: impl AsyncFnMut() -> Result<Vec<Component>>,
        whole: &BTreeSet<String>,
    ) -> Result<(Vec<Component>, Reading)> {
        repeated(("every container is seen", ANSWERED), async || {
            // Listed again for each attempt, because containers that have ended have no process.
            let watched = listed().await?;
            let answers = self.read(CounterQuery { watched: &watched, whole }).await;
            if let Some((node, why)) = answers.silent.iter().next() {
                return Ok(PollResult::NotYet(format!("the watcher of node {node}: {why}")));
            }
            if let Some(Component { name, node, .. }) = answers.reading.lacks(&watched) {
                return Ok(PollResult::NotYet(format!(
                    "no process of {name} is visible on node {node}: pods of runtimes with a \
                     virtual machine (Kata, gVisor) cannot be measured"
                )));
            }
            Ok(PollResult::There((watched, answers.reading)))
        })
        .await
    }

    /// Asks all watchers that have something to read, at the same time; answers that take longer than 5 s are missing.
    pub(super) async fn read(&self, what: CounterQuery<'_>) -> Answers {
        let asked = self.0.iter().filter(|(node, _)| what.is_of(node));
        let asked = asked.map(async |(node, stream)| {
            let (task, begun) = (PodTask::Look(what.question(node)), Instant::now());
            let mut look = stream.ask::<NodeCounters>(task.clone(), PROMPT).await;
            // The stream may have broken since it was last used.
            if look.is_err() && begun.elapsed() < PROMPT / 2 {
                look = stream.ask(task, PROMPT / 2).await;
            }
            (node, look)
        });
        let mut answers = Answers::default();
        for (node, look) in join_all(asked).await {
            match look {
                Ok(look) => answers.reading.add(node, look, what.watched),
                Err(why) => drop(answers.silent.insert(node.clone(), format!("{why:#}"))),
            }
        }
        answers
    }

    /// Kills containers on all their nodes at the same time. If one of the containers has ended meanwhile, its watcher
    /// kills none of them; then the containers of that node are listed with `again`, and the new list is killed.
    ///
    /// # Errors
    /// If a node's watcher has not confirmed within 5 s; containers on other nodes may be killed then.
    pub(super) async fn kill(
        &self,
        doomed: &[Component],
        again: impl AsyncFn() -> Result<Vec<Component>>,
    ) -> Result<()> {
        let nodes: BTreeSet<&str> = doomed.iter().map(|one| &*one.node).collect();
        let killed = nodes.into_iter().map(async |node| {
            let of = |all: &[Component]| -> Vec<String> {
                all.iter().filter(|one| one.node == node).map(|one| one.id.clone()).collect()
            };
            let mut ids = of(doomed);
            let what = format!("the watcher of node {node} confirms the kill");
            repeated((&what, PROMPT), async || {
                let task = PodTask::Kill(ids.clone());
                let Some(missing) = self.on(node)?.ask::<Option<String>>(task, PROMPT).await?
                else {
                    return Ok(PollResult::There(()));
                };
                let now = of(&again().await?);
                if !now.is_empty() {
                    ids = now;
                }
                Ok(PollResult::NotYet(missing))
            })
            .await
            .with_context(|| format!("node {node}"))
        });
        join_all(killed).await.into_iter().collect()
    }

    /// Kills a container. Returns when its program was running again, in nanoseconds of CLOCK_MONOTONIC; `None` if that
    /// took longer than 30 s.
    pub(super) async fn restart(&self, one: &Component) -> Result<Option<u64>> {
        let (task, limit) = (PodTask::Restart(one.id.clone()), RUNS_AGAIN + TOLD);
        let started = self.on(&one.node)?.ask(task, limit).await;
        started.with_context(|| format!("{} on node {} cannot be restarted", one.name, one.node))
    }

    fn on(&self, node: &str) -> Result<&PodStream> {
        self.0.get(node).context("the node has no watcher")
    }
}

#[cfg(test)]
mod tests;
