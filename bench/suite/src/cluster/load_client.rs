//! The pods that generate load: requests to them, and their reports.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use leno_measure::load::{Plan, Report};
use leno_operate::{PodName, Reach};

use super::environment::ClusterEnvironment;
use super::wait::pass;
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
        let (reach, pod) = self.load_server(workload);
        let text = serde_json::to_string(plans)?;
        let begin = Instant::now();
        let id = unique_id();
        let path = format!("/load/{id}");
        loop {
            match reach.send_to(&pod, load_server::PORT, ("POST", &path), &text).await {
                Ok(reply) if reply.status == 202 => {
                    let since = reply.body.parse().map(Duration::from_millis);
                    let since = since.with_context(|| {
                        format!("pod {workload} does not say since when it makes load: is --image another version?")
                    })?;
                    return Ok((id, begun(since)));
                }
                Ok(reply) => bail!("pod {workload} makes no load: {} {}", reply.status, reply.body),
                Err(error) if error.is_forbidden() || begin.elapsed() > LATE => {
                    return Err(error.into());
                }
                Err(_) => pass(Duration::from_secs(1), interrupt).await?,
            }
        }
    }

    /// The report of load that should have ended.
    pub(super) async fn report(&self, of: (&str, &str), interrupt: &Interrupt) -> Result<Report> {
        self.state(of, interrupt, false).await?.context("it is waited for")
    }

    /// The report of load that has ended too early; `None` if it is still running.
    pub(super) async fn ended(
        &self,
        of: (&str, &str),
        interrupt: &Interrupt,
    ) -> Result<Option<Report>> {
        self.state(of, interrupt, true).await
    }

    /// Stops load that has no end of its own, and returns its report.
    pub(super) async fn end(
        &self,
        (workload, id): (&str, &str),
        interrupt: &Interrupt,
    ) -> Result<Report> {
        let (reach, pod) = self.load_server(workload);
        let begin = Instant::now();
        let path = format!("/load/{id}");
        loop {
            match reach.send_to(&pod, load_server::PORT, ("DELETE", &path), "").await {
                // 404: the load has ended already, and the answer to an earlier request was lost.
                Ok(reply) if matches!(reply.status, 202 | 404) => break,
                Ok(reply) => bail!("pod {workload} ends no load: {} {}", reply.status, reply.body),
                Err(error) if begin.elapsed() > LATE => return Err(error.into()),
                Err(_) => pass(Duration::from_millis(500), interrupt).await?,
            }
        }
        self.report((workload, id), interrupt).await
    }

    /// The report of load. If the load still runs, this returns `None` if it `may_run`, and
    /// otherwise waits.
    async fn state(
        &self,
        (workload, id): (&str, &str),
        interrupt: &Interrupt,
        may_run: bool,
    ) -> Result<Option<Report>> {
        let (reach, pod) = self.load_server(workload);
        let begin = Instant::now();
        let path = format!("/load/{id}");
        loop {
            let why = match reach.send_to(&pod, load_server::PORT, ("GET", &path), "").await {
                Ok(reply) => match serde_json::from_str(&reply.body) {
                    Ok(LoadState::Done(report)) => return Ok(Some(*report)),
                    Ok(LoadState::Failed(why)) => bail!("pod {workload} made no load: {why}"),
                    Ok(LoadState::Idle) => bail!("pod {workload} was restarted while it made load"),
                    Ok(LoadState::Running) if may_run => return Ok(None),
                    Ok(LoadState::Running) => "it has not ended".to_owned(),
                    Err(error) => error.to_string(),
                },
                // After a lost connection the request is repeated. The load itself is not affected,
                // so nothing is lost.
                Err(error) => error.said(),
            };
            if begin.elapsed() > LATE {
                bail!(
                    "no report of the load from pod {workload} within {} s: {why}",
                    LATE.as_secs()
                );
            }
            pass(Duration::from_millis(500), interrupt).await?;
        }
    }

    fn load_server(&self, workload: &str) -> (Reach, PodName) {
        let (namespace, name) = (self.ground.namespace.clone(), workload.to_owned());
        (Reach::new(self.ground.client.clone()), PodName { namespace, name })
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
        let begin = Instant::now();
        loop {
            let why = match self.ask_probe("POST", &text).await {
                Ok(probe) if far(&probe) => return Ok(()),
                Ok(probe) => format!("{probe:?}"),
                Err(why) => why,
            };
            if begin.elapsed() > LATE {
                bail!("the client's requests got no further within {} s: {why}", LATE.as_secs());
            }
            pass(Duration::from_millis(200), interrupt).await?;
        }
    }

    /// Stops the probe and returns its state.
    pub(super) async fn end_probe(&self, interrupt: &Interrupt) -> Result<Probe> {
        let begin = Instant::now();
        loop {
            match self.ask_probe("DELETE", "").await {
                Ok(probe) => return Ok(probe),
                Err(why) if begin.elapsed() > LATE => bail!("the client does not end: {why}"),
                Err(_) => pass(Duration::from_millis(500), interrupt).await?,
            }
        }
    }

    async fn ask_probe(&self, method: &str, body: &str) -> Result<Probe, String> {
        let (reach, pod) = self.load_server(CLIENT);
        let reply = reach.send_to(&pod, load_server::PORT, (method, "/probe"), body).await;
        let reply = reply.map_err(|error| error.said())?;
        serde_json::from_str(&reply.body).map_err(|_| format!("{} {}", reply.status, reply.body))
    }
}

/// The time that long ago.
fn begun(since: Duration) -> Instant {
    let now = Instant::now();
    now.checked_sub(since).unwrap_or(now)
}
