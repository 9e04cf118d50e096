//! An open-loop load generator for HTTP/1.1, HTTP/2, gRPC and TCP, which can also generate closed loops.
//!
//! Requests are due at fixed moments, whatever the server does. Each goes to a free connection or waits for one, and
//! its latency counts from the moment it was due. So a server that stalls for a second shows a second of bad latencies,
//! not one slow request (no coordinated omission).
//!
//! ```text
//!   clock ── due ──► backlog ── free connection ──► request ── response ──► histogram
//!              └───────────────── latency ───────────────────────┘
//!              └─── lag ───┘ (only if a connection was free: the generator's own delay)
//! ```

pub mod clock;
mod connection;
mod dialler;
mod h2;
mod plan;
mod record;
mod stream;
mod worker;

use std::time::Instant;

use anyhow::{Result, anyhow};

use plan::{ClusterTarget, check, target};
pub use plan::{MAX_CONNECTIONS, MAX_STREAMS, Pace, Plan, Protocol, Stop};
use record::LoadTally;
pub use record::{Bucket, Latency, MAX_BUSY, MAX_LAG_US, MAX_LATENCY_US, Report, value_at};

/// Runs `plan` to its end and reports. Blocks the caller; the load runs on threads of its own.
pub fn run(plan: &Plan) -> Result<Report> {
    run_all(std::slice::from_ref(plan))
}

/// Runs plans concurrently, with interleaved schedules, and merges their results into one report.
/// Blocks the caller; each plan has threads of its own.
pub fn run_all(plans: &[Plan]) -> Result<Report> {
    run_until(plans, &Stop::default())
}

/// Like [`run_all`], but ends early when `stop` is set; the report then covers the time until that moment.
pub fn run_until(plans: &[Plan], stop: &Stop) -> Result<Report> {
    let targets: Vec<ClusterTarget> = plans
        .iter()
        .map(|plan| {
            check(plan)?;
            target(plan)
        })
        .collect::<Result<_>>()?;
    let start = Instant::now();
    let cpu_before = crate::usage::cpu_of_process(std::process::id())?;
    let tallies = std::thread::scope(|scope| {
        let mut running = Vec::new();
        for (nth, (plan, target)) in plans.iter().zip(&targets).enumerate() {
            let threads = plan.threads.min(plan.connections);
            for thread in 0..threads {
                let share = worker::LoadShare::of(plan, (thread, threads), start);
                let share = share.later(nth, plans.len());
                running.push(scope.spawn(move || worker::run(target, share, stop)));
            }
        }
        running
            .into_iter()
            .map(|t| t.join().map_err(|_| anyhow!("a load thread panicked"))?)
            .collect::<Result<Vec<LoadTally>>>()
    })?;
    let cpu = crate::usage::cpu_of_process(std::process::id())? - cpu_before;
    Ok(Report::new(plans, &LoadTally::merge(tallies), cpu))
}
