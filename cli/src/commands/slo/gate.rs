//! `leno slo gate`: waits during a step of a rollout, and fails as soon as an objective fails.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use leno_console::{duration, within};
use leno_dashboard::hub::TICK;
use leno_dashboard::objective::ObjectiveState;

use super::ObjectiveFilter;
use super::report::Report;
use crate::commands::{block_on, print};

/// Waits for a time, and fails as soon as the error budget of an objective is used up or is spent too fast
///
/// For a step of a rollout. Exits 0 if every objective was met for the time of --until; 1 as soon as one fails, or at
/// the end if one had no requests; 2 if the objectives cannot be read.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sudo leno slo gate --until 5m\n  \
                        sudo leno slo gate cart checkout -n shop --until 10m && ./promote")]
pub(crate) struct Gate {
    /// Names of the objectives to check [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    wanted: ObjectiveFilter,

    /// How long every objective must be met, from 5s to 24h
    #[arg(long, value_name = "DURATION", value_parser = until)]
    until: Duration,

    /// Treats an objective without requests as met
    #[arg(long)]
    allow_idle: bool,
}

fn until(text: &str) -> Result<Duration, String> {
    within(duration(text)?, (TICK, Duration::from_hours(24)))
}

pub(super) fn run(gate: &Gate) -> Result<bool> {
    let layout = gate.wanted.layout()?;
    let end = Instant::now() + gate.until;
    block_on(async {
        loop {
            // The objectives are looked up in each round, because a rollout changes which workloads belong to a
            // Service.
            let objectives = gate.wanted.find(&layout, &gate.names)?;
            if objectives.is_empty() {
                bail!(
                    "there is no ServiceLevelObjective to check, so the gate would always pass: \
                     add one to the files of the mesh, or correct -n"
                );
            }
            let reports = Report::of_all(&layout, &objectives).await?;
            let failed: Vec<&Report> = reports.iter().filter(|one| one.fails()).collect();
            if !failed.is_empty() {
                return closed(&failed);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let is_idle =
                    |one: &&Report| one.standing == ObjectiveState::Idle && !gate.allow_idle;
                let idle: Vec<&Report> = reports.iter().filter(is_idle).collect();
                if !idle.is_empty() {
                    return closed(&idle);
                }
                print(&format!("passed: {} objectives were met\n", reports.len()))?;
                return Ok(true);
            }
            tokio::time::sleep(left.min(TICK)).await;
        }
    })
}

fn closed(failed: &[&Report]) -> Result<bool> {
    let lines = failed.iter().map(|one| format!("failed: {}: {}\n", one.title(), one.verdict()));
    print(&lines.collect::<String>())?;
    Ok(false)
}
