//! The pods that generate load: requests to them, and their reports.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use leno_measure::load::{Plan, Report};
use leno_operate::{PodName, Reach};

use super::environment::ClusterEnvironment;
use super::wait::{PollResult, pass, repeated};
use super::watcher_client::unique_id;
use crate::interrupt::Interrupt;
use crate::load_server::{self, LoadState, Probe};
use crate::scenario::CLIENT;

/// How late a report may be: the generator waits for its last answers, and the request goes through
/// the API server.
const LATE: Duration = Duration::from_secs(60);

impl ClusterEnvironment<'_> {
    /// Lets a workload generate load, and waits for the report.
    pub(super) async fn load(
        &self,
        workload: &str,
        plans: &[Plan],
        interrupt: &Interrupt,
    ) -> Result<Report> {
        let (id, _) = self.begin(workload, plans, interrupt).await?;
        let longest = plans.iter().map(|plan| plan.warm_up + plan.duration).max();
        pass(longest.unwrap_or_default(), interrupt).await?;
        self.report((workload, &id), interrupt).await
    }

    /// Starts load in a workload. Returns the ID for requesting the report, and the start time. A
    /// new server may not listen yet, and an answer may be lost, so the request is repeated; the
    /// load is made only once, and the time is that of the first request.
    pub(super) async fn begin(
        &self,
        workload: &str,
        plans: &[Plan],
        interrupt: &Interrupt,
    ) -> Result<(String, Instant)> {
        let text = serde_json::to_string(plans)?;
        let id = unique_id();
        let ((reach, pod), path) = (self.load_server(workload), load(&id));
        let begun = repeated(("load begins", LATE), interrupt, async || {
            Ok(match reach.send_to(&pod, load_server::PORT, ("POST", &path), &text).await {
                Ok(reply) if reply.status == 202 => {
                    let since = reply.body.parse().map(Duration::from_millis);
                    PollResult::There(begun(since.with_context(|| {
                        format!("pod {workload} does not say since when it makes load: is --image another version?")
                    })?))
                }
                Ok(reply) => bail!("pod {workload} makes no load: {} {}", reply.status, reply.body),
                Err(error) if error.is_forbidden() => return Err(error.into()),
                Err(error) => PollResult::NotYet(error.said()),
            })
        });
        let begun = begun.await?;
        Ok((id, begun))
    }

    /// The report of load that should have ended.
    pub(super) async fn report(
        &self,
        (workload, id): (&str, &str),
        interrupt: &Interrupt,
    ) -> Result<Report> {
        let what = format!("pod {workload} reports its load");
        repeated((&what, LATE), interrupt, async || {
            let state = self.state((workload, id)).await?;
            Ok(state.map_or_else(PollResult::NotYet, |done| match done {
                Some(report) => PollResult::There(report),
                None => PollResult::NotYet("it has not ended".to_owned()),
            }))
        })
        .await
    }

    /// The report of load that has ended too early; `None` if it is still running.
    pub(super) async fn ended(
        &self,
        (workload, id): (&str, &str),
        interrupt: &Interrupt,
    ) -> Result<Option<Report>> {
        let what = format!("pod {workload} says whether it makes load");
        repeated((&what, LATE), interrupt, async || {
            let state = self.state((workload, id)).await?;
            Ok(state.map_or_else(PollResult::NotYet, PollResult::There))
        })
        .await
    }

    /// Stops load that has no end of its own, and returns its report.
    pub(super) async fn end(
        &self,
        (workload, id): (&str, &str),
        interrupt: &Interrupt,
    ) -> Result<Report> {
        let ((reach, pod), path) = (self.load_server(workload), load(id));
        let stopped = repeated(("load ends", LATE), interrupt, async || {
            Ok(match reach.send_to(&pod, load_server::PORT, ("DELETE", &path), "").await {
                // 404: the load has ended already, and the answer to an earlier request was lost.
                Ok(reply) if matches!(reply.status, 202 | 404) => PollResult::There(()),
                Ok(reply) => bail!("pod {workload} ends no load: {} {}", reply.status, reply.body),
                Err(error) => PollResult::NotYet(error.said()),
            })
        });
        stopped.await?;
        self.report((workload, id), interrupt).await
    }

    /// The report of load, `None` if it still runs; the inner error is why there was no answer. Then the request is
    /// repeated: a lost connection does not affect the load.
    async fn state(&self, (workload, id): (&str, &str)) -> Result<Result<Option<Report>, String>> {
        let (reach, pod) = self.load_server(workload);
        let reply = match reach.send_to(&pod, load_server::PORT, ("GET", &load(id)), "").await {
            Ok(reply) => reply,
            Err(error) => return Ok(Err(error.said())),
        };
        Ok(match serde_json::from_str(&reply.body) {
            Ok(LoadState::Done(report)) => Ok(Some(*report)),
            Ok(LoadState::Running) => Ok(None),
            Ok(LoadState::Failed(why)) => bail!("pod {workload} made no load: {why}"),
            Ok(LoadState::Idle) => bail!("pod {workload} was restarted while it made load"),
            Err(error) => Err(error.to_string()),
        })
    }

    /// Starts a probe of the client, and waits until it has come `far` enough. The probe continues
    /// after that.
    pub(super) async fn probe(
        &self,
        plan: &Plan,
        far: impl Fn(&Probe) -> bool,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let text = serde_json::to_string(plan)?;
        repeated(("the client's requests are answered", LATE), interrupt, async || {
            Ok(match self.ask_probe("POST", &text).await {
                Ok(probe) if far(&probe) => PollResult::There(()),
                Ok(probe) => PollResult::NotYet(format!("{probe:?}")),
                Err(why) => PollResult::NotYet(why),
            })
        })
        .await
    }

    /// Stops the probe and returns its state.
    pub(super) async fn end_probe(&self, interrupt: &Interrupt) -> Result<Probe> {
        repeated(("the client's probe ends", LATE), interrupt, async || {
            let probe = self.ask_probe("DELETE", "").await;
            Ok(probe.map_or_else(PollResult::NotYet, PollResult::There))
        })
        .await
    }

    async fn ask_probe(&self, method: &str, body: &str) -> Result<Probe, String> {
        let (reach, pod) = self.load_server(CLIENT);
        let reply = reach.send_to(&pod, load_server::PORT, (method, "/probe"), body).await;
        let reply = reply.map_err(|error| error.said())?;
        serde_json::from_str(&reply.body).map_err(|_| format!("{} {}", reply.status, reply.body))
    }

    fn load_server(&self, workload: &str) -> (Reach, PodName) {
        let (namespace, name) = (self.ground.namespace.clone(), workload.to_owned());
        (Reach::new(self.ground.client.clone()), PodName { namespace, name })
    }
}

/// The path of load.
fn load(id: &str) -> String {
    format!("/load/{id}")
}

/// The time that long ago.
fn begun(since: Duration) -> Instant {
    let now = Instant::now();
    now.checked_sub(since).unwrap_or(now)
}
