//! `leno bench tables`: tables from a file of records, of memory or of earlier versions of `http` and `mesh`.

use std::path::Path;

use anyhow::{Context, Result};
use leno_suite::record::{Latency, Record};
use leno_suite::report::Summary;
use serde::Deserialize;
use serde_json::Value;

use crate::memory;
use crate::suite::report;

/// A measurement, as `http` and `mesh` wrote it before they were runs of the suite.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Earlier {
    scenario: String,
    /// `saturation` or `rate`.
    pace: String,
    proxy: String,
    version: String,
    round: u32,
    connections: usize,
    duration_s: f64,
    requests: u64,
    errors: u64,
    requests_per_s: f64,
    cpu_user_us_per_request: f64,
    cpu_system_us_per_request: f64,
    latency_us: Option<Latency>,
    left_out: Option<String>,
}

pub(crate) fn print(file: &Path) -> Result<bool> {
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    let none = || format!("{} holds no records", file.display());
    let all: Vec<Value> = serde_json::from_str(&text).with_context(none)?;
    let (memory, others): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|one| one["bench"] == "memory");
    let read = |one: Value| Ok(serde_json::from_value::<Earlier>(one)?.into());
    let others: Vec<Record> =
        others.into_iter().map(read).collect::<Result<_>>().with_context(none)?;
    if !others.is_empty() {
        print!("{}", report::tables(&Summary::of(&others)));
    }
    let memory = memory.into_iter().map(serde_json::from_value::<memory::Record>);
    let memory = memory.collect::<Result<Vec<_>, _>>().with_context(none)?;
    if !memory.is_empty() {
        print!("{}", memory::table(&memory));
    }
    Ok(true)
}

impl From<Earlier> for Record {
    fn from(one: Earlier) -> Self {
        Self {
            scenario: format!("{}, {}", one.scenario, one.pace),
            proxies: u32::from(one.proxy != "none"),
            mesh: one.proxy,
            mesh_version: one.version,
            round: one.round,
            connections: one.connections,
            duration_s: one.duration_s,
            requests: one.requests,
            errors: one.errors,
            requests_per_s: one.requests_per_s,
            cpu_user_us_per_request: one.cpu_user_us_per_request,
            cpu_system_us_per_request: one.cpu_system_us_per_request,
            latency_us: one.latency_us.unwrap_or_default(),
            left_out: one.left_out,
            ..Self::default()
        }
    }
}
