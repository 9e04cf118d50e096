//! Load generators: Leno's own, and others whose figures its figures can be checked against.

mod external;
pub(crate) mod name;

use std::io::{self, BufRead};

use anyhow::{Context, Result, bail};
use leno_measure::load::{self, Pace, Plan, Protocol, Report, Stop};

use crate::interrupt::Interrupt;
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

    /// Why the generator cannot make this load; `None` if it can.
    pub fn unable(self, plan: &Plan) -> Option<&'static str> {
        let external = External::named(self.name())?;
        if !plan.paths.is_empty() {
            return Some("only leno's own generator asks for several paths in turn");
        }
        external.unable(plan)
    }

    /// The program that is established for the load of a scenario at a step. Closed loops of others are faster than
    /// Leno's own; only its own keeps a rate without coordinated omission.
    pub fn established(scenario: &Scenario, step: Option<f64>) -> Self {
        let closed = step.is_none() && scenario.pace == scenario::Pace::Saturate;
        match scenario.protocol {
            Protocol::Http1 if closed => Self::Wrk,
            Protocol::Http2 | Protocol::Grpc if closed => Self::H2load,
            _ => Self::Leno,
        }
    }

    /// Whether the generator can make this load at a fixed rate. If it cannot, its highest rate is
    /// not searched: the rate it reaches in a closed loop is the result.
    pub fn keeps_rates(self, plan: &Plan) -> bool {
        self.unable(&Plan { pace: Pace::Rate(1.0), ..plan.clone() }).is_none()
    }

    /// Makes the load, with one plan per service.
    pub fn run(self, client: Client<'_>, plans: &[Plan], interrupt: &Interrupt) -> Result<Report> {
        match External::named(self.name()) {
            None => own(client, plans, interrupt),
            Some(external) => side_by_side(plans, |plan| external.run(client, plan, interrupt)),
        }
    }
}

/// The command `leno-bench generate`: reads plans and returns a report, both as JSON.
pub fn generate(plans: &str) -> Result<String> {
    let plans: Vec<Plan> = serde_json::from_str(plans).context("these are no plans of load")?;
    Ok(serde_json::to_string(&load::run_all(&plans)?)?)
}

/// The command `leno-bench generate --until-closed`: as [`generate`], but reads the plans from the
/// first line of the input and stops the load at the end of the input.
pub fn generate_until_closed(mut input: impl BufRead + Send + 'static) -> Result<String> {
    let mut plans = String::new();
    input.read_line(&mut plans).context("reading standard input")?;
    let plans: Vec<Plan> = serde_json::from_str(&plans).context("these are no plans of load")?;
    let stop = Stop::default();
    let ends = stop.clone();
    // The thread ends with the input or with the program.
    std::thread::spawn(move || {
        // A read error counts as the end of the input.
        let _ = io::copy(&mut input, &mut io::sink());
        ends.stop();
    });
    Ok(serde_json::to_string(&load::run_until(&plans, &stop)?)?)
}

/// Starts the neighbour's load, which does not yield to any other load, and runs until it is ended.
pub(crate) fn flood(neighbour: Client<'_>, plan: &Plan) -> Result<Running> {
    let mut command = neighbour(&process::own_program()?)?;
    command.args(["generate", "--until-closed"]);
    Running::start(&mut command, &(serde_json::to_string(&[plan])? + "\n"))
}

/// Ends a flood and returns its report.
pub(crate) fn end_flood(flood: Running, interrupt: &Interrupt) -> Result<Report> {
    serde_json::from_slice(&flood.end(interrupt)?).context("the neighbour did not report")
}

fn own(client: Client<'_>, plans: &[Plan], interrupt: &Interrupt) -> Result<Report> {
    let mut command = client(&process::own_program()?)?;
    command.arg("generate");
    let said = process::run(&mut command, &serde_json::to_string(plans)?, interrupt)?;
    serde_json::from_slice(&said).context("the generator did not report")
}

/// Runs one generator per service concurrently and adds up their counts.
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
    fn load_ends_with_its_input_and_is_reported_as_far_as_it_came() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        // One hour of load: the test only ends if the load is stopped early.
        let hour = Duration::from_hours(1);
        let plan =
            Plan { pace: Pace::Saturate, ..Plan::new(format!("http://{closed}/"), 1.0, hour) };
        let input = serde_json::to_string(&[plan]).unwrap() + "\n";
        let said = generate_until_closed(io::Cursor::new(input)).unwrap();
        let report: Report = serde_json::from_str(&said).unwrap();
        assert!(report.duration_s < 3600.0, "{report:?}");
        generate_until_closed(io::Cursor::new("[1]\n")).unwrap_err();
    }

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
