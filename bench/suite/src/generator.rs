//! Load generators: Leno's own generator, and others with which its figures can be compared.

mod external;
pub(crate) mod name;

use anyhow::{Context, Result, anyhow, bail};
use leno_measure::load::{Pace, Plan, Protocol, Report};

use crate::interrupt::Interrupt;
use crate::pod_program::{POD, PodAnswer, PodRequest, PodTask};
use crate::process::{self, Running};
use crate::scenario::{self, Scenario};
use crate::tools::Missing;

use external::External;

pub use name::{Client, Generator};

impl Generator {
    /// Looks for the generator's program.
    ///
    /// # Errors
    /// What is missing, and the command that installs it.
    pub fn find(self) -> Result<(), Missing> {
        External::named(self.name()).map_or(Ok(()), |one| one.find().map(drop))
    }

    /// Why the generator cannot generate this load; `None` if it can.
    pub fn unable(self, plan: &Plan) -> Option<&'static str> {
        let external = External::named(self.name())?;
        if !plan.paths.is_empty() {
            return Some("only leno's own generator asks for several paths in turn");
        }
        external.unable(plan)
    }

    /// Returns the generator that is usually used for a scenario at a step. In closed loops, wrk and h2load are faster
    /// than Leno's own generator; but only Leno's keeps a rate without coordinated omission.
    pub fn established(scenario: &Scenario, step: Option<f64>) -> Self {
        let closed = step.is_none() && scenario.pace == scenario::Pace::Saturate;
        match scenario.protocol {
            Protocol::Http1 if closed => Self::Wrk,
            Protocol::Http2 | Protocol::Grpc if closed => Self::H2load,
            _ => Self::Leno,
        }
    }

    /// Whether the generator can generate this load at a fixed rate. If it cannot, there is no search for its highest
    /// rate: the result is the rate that it reaches in a closed loop.
    pub fn keeps_rates(self, plan: &Plan) -> bool {
        self.unable(&Plan { pace: Pace::Rate(1.0), ..plan.clone() }).is_none()
    }

    /// Generates the load, with one plan per service.
    pub fn run(self, client: Client<'_>, plans: &[Plan], interrupt: &Interrupt) -> Result<Report> {
        match External::named(self.name()) {
            None => report(start(client, plans)?, interrupt),
            Some(external) => side_by_side(plans, |plan| external.run(client, plan, interrupt)),
        }
    }
}

/// Starts Leno's own generator where the client runs. It ends when its plans end, or when [`end`] stops it.
pub(crate) fn start(client: Client<'_>, plans: &[Plan]) -> Result<Running> {
    let mut command = client(&process::own_program()?)?;
    Running::start(command.arg(POD), &PodRequest::line(1, PodTask::Load(plans.to_vec()))?)
}

/// Ends Leno's own generator before its plans end, and returns its report.
pub(crate) fn end(mut generator: Running, interrupt: &Interrupt) -> Result<Report> {
    generator.say(&PodRequest::line(0, PodTask::Greet)?);
    report(generator, interrupt)
}

/// Waits until Leno's own generator ends. Its output is one line when the load begins, and its report at the end.
fn report(generator: Running, interrupt: &Interrupt) -> Result<Report> {
    let said = generator.end(interrupt)?;
    let answers = serde_json::Deserializer::from_slice(&said).into_iter::<PodAnswer>();
    let mut answers = answers.collect::<Result<Vec<_>, _>>()?.into_iter();
    let last = answers.rfind(|one| one.number == 1).context("the generator did not report")?;
    Ok(serde_json::from_value(last.answer.map_err(|why| anyhow!("{why}"))?)?)
}

/// Runs one generator per service at the same time and adds up their counts.
fn side_by_side(plans: &[Plan], one: impl Fn(&Plan) -> Result<Report> + Sync) -> Result<Report> {
    let reports = std::thread::scope(|scope| {
        let one = &one;
        let running: Vec<_> = plans.iter().map(|plan| scope.spawn(move || one(plan))).collect();
        let ended = running.into_iter().map(|thread| thread.join());
        ended
            .map(|one| one.unwrap_or_else(|_| bail!("a thread panicked")))
            .collect::<Result<Vec<_>>>()
    })?;
    Ok(add(reports))
}

fn add(reports: Vec<Report>) -> Report {
    let mut sum = Report::default();
    for report in reports {
        sum.url = [sum.url, report.url].join(" ").trim().to_owned();
        sum.rate_per_s = match (sum.rate_per_s, report.rate_per_s) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
        sum.connections += report.connections;
        sum.duration_s = sum.duration_s.max(report.duration_s);
        sum.requests += report.requests;
        sum.errors += report.errors;
        for (kind, count) in report.errors_by_kind {
            *sum.errors_by_kind.entry(kind).or_default() += count;
        }
        sum.requests_per_s += report.requests_per_s;
        sum.generator_limited |= report.generator_limited;
        sum.body_bytes += report.body_bytes;
        sum.connections_opened += report.connections_opened;
        sum.buckets.extend(report.buckets);
    }
    sum.buckets.sort_by_key(|bucket| bucket.us);
    sum
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_generator_refuses_plans_that_it_cannot_carry_out() {
        let mut plan = Plan::new("http://127.0.0.1/", 100.0, Duration::from_secs(1));
        let keep = |plan: &Plan| Generator::ALL.map(|one| one.keeps_rates(plan));
        assert_eq!(keep(&plan), [true, true, false, false], "HTTP/1.1 at a rate");
        plan.protocol = Protocol::Grpc;
        assert_eq!(keep(&plan), [true, false, true, false]);
        plan.protocol = Protocol::Http1;
        plan.pace = Pace::Saturate;
        assert_eq!(Generator::Wrk.unable(&plan), None);
        assert!(!Generator::Wrk.keeps_rates(&plan), "able to saturate, and to nothing else");
        plan.paths = vec!["/".into()];
        assert!(Generator::Wrk.unable(&plan).is_some_and(|why| why.contains("in turn")));
        assert_eq!(Generator::Leno.unable(&plan), None);
    }
}
