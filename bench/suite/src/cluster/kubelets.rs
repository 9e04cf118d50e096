//! The kubelets that a measurement asks: all of them together, and what is to be done where one says nothing.
//!
//! A kubelet of a loaded node answers late, or not at all. Before and after the load its figures are waited for;
//! during it what the others said is kept, and who said nothing is for a mark.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use futures_util::future::join_all;
use kube::Client;
use leno_operate::Error;

use super::meter::{Reading, Roles, Summary};
use super::wait::{Seen, Wait, pass};
use crate::interrupt::Interrupt;

/// How long a kubelet may take for its figures.
const ANSWER: Duration = Duration::from_secs(20);
/// How long it may under load: what it says later is of a time after the load.
const ANSWER_UNDER_LOAD: Duration = Duration::from_secs(5);
/// How long the kubelets may take to look at every container again: they do so every 10 to 20 s.
const LOOKED: Duration = Duration::from_secs(90);

/// The kubelets of a measurement.
pub(super) struct Kubelets<'a> {
    pub(super) client: &'a Client,
    pub(super) roles: Roles,
}

/// What the kubelets said to one question.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Of those that answered.
    pub(super) reading: Reading,
    /// The nodes whose kubelets said nothing, and why.
    pub(super) silent: BTreeMap<String, String>,
}

impl Kubelets<'_> {
    /// Asks all of them while load is made: what does not come within 5 s is missing.
    ///
    /// # Errors
    /// When they may not be asked.
    pub(super) async fn under_load(&self) -> Result<Answers> {
        self.ask(ANSWER_UNDER_LOAD).await
    }

    async fn ask(&self, limit: Duration) -> Result<Answers> {
        let asked =
            self.roles.nodes.iter().map(async |node| (node, self.summary(node, limit).await));
        let mut answers = Answers::default();
        for (node, summary) in join_all(asked).await {
            match summary {
                Ok(summary) => self.roles.add(&summary, &mut answers.reading),
                Err(error @ (Error::Forbidden { .. } | Error::Unknown(_))) => {
                    return Err(error.into());
                }
                Err(error) => drop(answers.silent.insert(node.clone(), error.said())),
            }
        }
        Ok(answers)
    }

    async fn summary(&self, node: &str, limit: Duration) -> Result<Summary, Error> {
        let what = format!("ask the kubelet of node {node} for its figures");
        let request = http::Request::get(format!("/api/v1/nodes/{node}/proxy/stats/summary"));
        let request = request.body(Vec::new()).expect("a node's name is part of a path");
        match tokio::time::timeout(limit, self.client.request::<Summary>(request)).await {
            Ok(answer) => answer.map_err(Error::api(what)),
            Err(_) => Err(Error::Late(what, limit.as_secs())),
        }
    }

    /// A reading, and a later one of which every look is later than this call, with those of what is `counted`, as
    /// `workload/container`.
    ///
    /// # Errors
    /// When there is none within 90 s, which says what is missing; when they may not be asked; when somebody
    /// interrupts.
    pub(super) async fn looked_again(
        &self,
        counted: &[String],
        interrupt: &Interrupt,
        say: &mut dyn FnMut(&str),
    ) -> Result<(Reading, Reading)> {
        let mut earlier = None;
        let what = "the kubelets look at every container";
        let wait = Wait { what, limit: LOOKED, interrupt, say };
        wait.until(async || {
            let Answers { reading: now, silent } = self.ask(ANSWER).await?;
            if let Some(why) = silent.values().next() {
                return Ok(Seen::NotYet(why.clone()));
            }
            let Some(earlier) = &earlier else {
                earlier = Some(now);
                return Ok(Seen::NotYet("the first look is taken".to_owned()));
            };
            // Each answer is a list of everything on a node.
            pass(Duration::from_secs(1), interrupt).await?;
            let lacks = now.lacks(counted);
            if !lacks.is_empty() {
                return Ok(Seen::NotYet(format!("there are no figures of {}", lacks.join(", "))));
            }
            let stale = now.stale(earlier);
            if let Some(one) = stale.first() {
                let count = stale.len();
                return Ok(Seen::NotYet(format!("{count} not looked at yet, such as {one}")));
            }
            Ok(Seen::There((earlier.clone(), now)))
        })
        .await
    }
}

#[cfg(test)]
mod tests;
