//! The load that a pod generates, from its start to its report.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use leno_measure::load::{Plan, Report};
use tokio::time::timeout;

use super::environment::ClusterEnvironment;
use super::pod_stream::{PodCall, PodStream};
use super::wait::{PollResult, repeated, within};
use crate::pod_program::PodTask;
use crate::scenario::CLIENT;

/// By how much a pod's answer may be late, because the generator waits for its last responses.
const LATE: Duration = Duration::from_secs(60);
/// How long a probe runs. It is longer than the 10 s that a kubelet waits before it restarts a container for the second
/// time.
const PROBE: Duration = Duration::from_secs(60);
/// How long it may take to read a report that has already been sent.
const AT_ONCE: Duration = Duration::from_millis(100);

/// Load that a pod generates. It ends with its plans, or earlier.
pub(super) struct RunningLoad<'a> {
    call: PodCall<'a>,
    pub(super) begun: Instant,
    lasts: Duration,
}

impl ClusterEnvironment<'_> {
    /// Tells the client to generate load, and waits for the report.
    pub(super) async fn load(&self, plans: &[Plan]) -> Result<Report> {
        self.begin(CLIENT, plans).await?.report().await
    }

    pub(super) async fn begin(&self, workload: &str, plans: &[Plan]) -> Result<RunningLoad<'_>> {
        let call = self.begun(workload, PodTask::Load(plans.to_vec())).await?;
        let lasts = plans.iter().map(|plan| plan.warm_up + plan.duration).max();
        Ok(RunningLoad { call, begun: Instant::now(), lasts: lasts.unwrap_or_default() })
    }

    /// Starts a probe of the client, and waits until a request has succeeded. The probe then continues.
    pub(super) async fn probe(&self, plan: &Plan) -> Result<PodCall<'_>> {
        self.begun(CLIENT, PodTask::Probe(plan.clone(), PROBE)).await
    }

    /// Sends a task to a generator, and waits for its first answer.
    async fn begun(&self, workload: &str, task: PodTask) -> Result<PodCall<'_>> {
        let stream: &PodStream =
            self.generators.get(workload).with_context(|| format!("{workload} makes no load"))?;
        let what = format!("pod {workload} is reached");
        let mut call = repeated((&what, LATE), async || {
            Ok(match stream.call(task.clone()).await {
                Ok(call) => PollResult::There(call),
                Err(error) if is_forbidden(&error) => return Err(error),
                Err(error) => PollResult::NotYet(format!("{error:#}")),
            })
        })
        .await?;
        // If the task is a probe, this answer is the time of its first success.
        within(LATE, call.next::<serde_json::Value>()).await?;
        Ok(call)
    }
}

impl RunningLoad<'_> {
    pub(super) async fn report(mut self) -> Result<Report> {
        let left = (self.lasts + LATE).saturating_sub(self.begun.elapsed());
        within(left, self.call.next()).await
    }

    /// The report of load that has ended too early; `None` if the load is still running.
    pub(super) async fn early_report(&mut self) -> Result<Option<Report>> {
        match timeout(AT_ONCE, self.call.next()).await {
            Ok(report) => report.map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Ends load that would not end by itself, and returns its report.
    pub(super) async fn end(mut self) -> Result<Report> {
        let ended = async {
            self.call.end().await?;
            self.call.next().await
        };
        within(LATE, ended).await
    }
}

fn is_forbidden(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref::<leno_operate::Error>();
    refused.is_some_and(leno_operate::Error::is_forbidden)
}
