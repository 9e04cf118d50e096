//! Measures what it costs to account for flows, for each source from which they are read, and compares it with no
//! accounting.
//!
//! ```text
//!   round:  none ─► sockets ─► packets   (the next round begins with another one)
//!             └─ a mesh of its own without proxies: client ─► HTTP server, client ─► Redis
//! ```

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_console::{note, print_text};
use leno_testkit::command::Running;
use leno_testkit::lab::Lab;
use leno_testkit::usage;
use leno_testkit::wait;
use minijinja::context;

use crate::documents::{FLOWS, from_template, mesh};
use crate::rounds::{self, CostFigure, in_turns};

/// How long a server may take to answer.
const LIMIT: Duration = Duration::from_secs(30);
/// The number of redis-benchmark's clients, and of commands that each sends at once: enough to keep one Redis fully
/// busy.
const REDIS_LOAD: [&str; 4] = ["-c", "50", "-P", "1"];

/// The options of the measurement.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Rate of HTTP requests over kept connections, per second
    #[arg(long, default_value_t = 10_000)]
    rate: u32,
    /// Rate of HTTP requests on a new connection each, per second
    #[arg(long, default_value_t = 1_000)]
    connections: u32,
    /// Number of Redis commands in a round
    #[arg(long, default_value_t = 200_000)]
    commands: u32,
    /// Duration of the HTTP load in a round, in seconds
    #[arg(long, default_value_t = 3)]
    seconds: u32,
    /// Number of rounds, from 1 to 1000; each measures the sources in another order. The result is their median
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Another agent to compare with, as NAME=COMMAND. The command runs as root while a mesh without flow metrics is
    /// measured. Can be repeated
    #[arg(long, value_name = "NAME=COMMAND", value_parser = beside)]
    beside: Vec<(String, String)>,
}

fn beside(text: &str) -> Result<(String, String), String> {
    let parts =
        text.split_once('=').filter(|(name, command)| !name.is_empty() && !command.is_empty());
    let (name, command) = parts.ok_or("not an agent: write NAME=COMMAND")?;
    Ok((name.to_owned(), command.to_owned()))
}

/// Who accounts for the flows of one measured mesh: Leno, from one of its sources, or another agent that runs beside a
/// mesh without accounting.
#[derive(Clone, Debug)]
struct Accounting {
    name: String,
    /// The value of the annotation `leno.dev/flow-metrics`.
    source: &'static str,
    command: Option<String>,
}

/// The figures of one measurement; those of Redis are missing if it is not installed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct FlowCost {
    /// CPU of client and server for a request over kept connections, in microseconds.
    kept_cpu_us: f64,
    kept_p99_ms: f64,
    /// CPU of client and server for a request that has a connection of its own, in microseconds.
    new_cpu_us: f64,
    new_p99_ms: f64,
    /// Microseconds for one command when Redis is fully busy, computed from the commands per second.
    redis_us: Option<f64>,
}

/// The columns of the table.
const FIGURES: [CostFigure<FlowCost>; 5] = [
    ("HTTP: CPU of a request, us", |cost| Some(cost.kept_cpu_us)),
    ("p99, ms", |cost| Some(cost.kept_p99_ms)),
    ("new connection: CPU of a request, us", |cost| Some(cost.new_cpu_us)),
    ("p99, ms", |cost| Some(cost.new_p99_ms)),
    ("Redis at saturation: us a command", |cost| cost.redis_us),
];

/// Measures every source in turn, and prints the table.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let of = |name: &str, source| Accounting { name: name.to_owned(), source, command: None };
    let mut all = vec![of("none", "off"), of("sockets", "sockets"), of("packets", "packets")];
    all.extend(
        args.beside.iter().map(|(name, command)| Accounting {
            command: Some(command.clone()),
            ..of(name, "off")
        }),
    );
    let costs = in_turns(all.len(), args.rounds, |nth| {
        let cost = measure(&all[nth], args);
        let cost = cost.with_context(|| format!("accounting by {}", all[nth].name))?;
        note!("{}: {cost:.2?}", all[nth].name);
        Ok(cost)
    })?;
    let rows: Vec<_> =
        all.iter().map(|one| &*one.name).zip(costs.iter().map(|one| &one[..])).collect();
    print_text!("{}", rounds::table("accounting", &FIGURES, &rows));
    Ok(true)
}

fn measure(accounting: &Accounting, args: &Args) -> Result<FlowCost> {
    let has_redis = ["redis-server", "redis-benchmark"].iter().all(|program| {
        let found = Command::new(program).arg("--version").stdout(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    });
    let documents = from_template(FLOWS, context! { source => accounting.source, has_redis });
    let lab = mesh(&documents)?;
    lab.explain(measure_in(&lab, accounting, args, has_redis))
}

fn measure_in(
    lab: &Lab,
    accounting: &Accounting,
    args: &Args,
    has_redis: bool,
) -> Result<FlowCost> {
    lab.reach("client", "web:8080")?;
    let _beside = accounting.command.as_deref().map(start).transpose()?;
    let (kept_cpu_us, kept_p99_ms) = http(lab, args.rate, args.seconds, &[])?;
    let (new_cpu_us, new_p99_ms) =
        http(lab, args.connections, args.seconds, &["--new-connection"])?;
    let redis_us = if has_redis { Some(redis(lab, args.commands)?) } else { None };
    Ok(FlowCost { kept_cpu_us, kept_p99_ms, new_cpu_us, new_p99_ms, redis_us })
}

/// Sends HTTP requests to the server. Returns the CPU microseconds of client and server for each request, and the p99
/// in milliseconds.
fn http(lab: &Lab, rate: u32, seconds: u32, more: &[&str]) -> Result<(f64, f64)> {
    let (rate, duration) = (rate.to_string(), format!("{seconds}s"));
    let load = ["--url", "http://web:8080/", "--rate", &rate, "--duration", &duration];
    let before = cpu_us(lab)?;
    let report = lab.load("client", &[&load[..], more].concat())?.finish()?;
    let took = cpu_us(lab)? - before;
    ensure!(report.errors == 0, "requests failed: {:?}", report.errors_by_kind);
    Ok((took / report.requests.max(1) as f64, report.latency_us.p99 as f64 / 1000.0))
}

/// Returns the microseconds of one command while Redis is fully busy.
fn redis(lab: &Lab, commands: u32) -> Result<f64> {
    let ping = ["redis-cli", "-h", "redis", "ping"];
    wait::until("Redis", LIMIT, || {
        let output = lab.exec("client", &ping)?;
        Ok(output.stdout.starts_with(b"PONG").then_some(()))
    })?;
    let commands = commands.to_string();
    let bench = ["redis-benchmark", "-h", "redis", "-t", "get", "-n", &commands, "--csv"];
    let text = lab.text("client", &[&bench[..], &REDIS_LOAD].concat())?;
    rate_of(&text)
        .map(|rate| 1e6 / rate)
        .with_context(|| format!("redis-benchmark printed no rate: {text}"))
}

/// The commands per second in the row of GET.
fn rate_of(csv: &str) -> Option<f64> {
    let row = csv.lines().find(|line| line.starts_with("\"GET\""))?;
    row.split(',').nth(1)?.trim_matches('"').parse().ok().filter(|rate| *rate > 0.0)
}

/// Returns the CPU microseconds that the control groups of the client and of the server have used so far, including the
/// kernel's work for them.
fn cpu_us(lab: &Lab) -> Result<f64> {
    let status = lab.status()?;
    let mut sum = 0;
    for instance in ["client", "web"] {
        sum += usage::cpu_of_cgroup(&status.instance(instance)?.surroundings.cgroup)?.total_us();
    }
    Ok(sum as f64)
}

/// Starts another agent, which is stopped when the value is dropped.
fn start(command: &str) -> Result<Running> {
    let script = format!("exec >/dev/null 2>&1; exec {command}");
    Running::start(Command::new("sh").args(["-c", &script]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_redis_is_read_from_its_table() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"50000.00\",\"0.5\"\n";
        assert_eq!(rate_of(csv), Some(50_000.0));
        assert_eq!(rate_of("nothing"), None);
        assert!(beside("agent=/usr/bin/agent --x").is_ok() && beside("agent").is_err());
    }
}
