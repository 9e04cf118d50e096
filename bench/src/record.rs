//! The records: one per measurement, with units in the field names.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use leno_testkit::load::Latency;
use serde::{Deserialize, Serialize};

/// One measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Record {
    /// The bench: `http`, `mesh` or `memory`.
    pub(crate) bench: String,
    /// The scenario, such as `keepalive-1k`.
    pub(crate) scenario: String,
    /// `saturation` (closed loop) or `rate` (open loop); empty for memory.
    pub(crate) pace: String,
    /// The proxy.
    pub(crate) proxy: String,
    /// The version, as the proxy prints it.
    pub(crate) version: String,
    /// The number of the round.
    pub(crate) round: u32,
    /// Connections of the load.
    pub(crate) connections: usize,
    /// Measured seconds.
    pub(crate) duration_s: f64,
    /// Completed requests.
    pub(crate) requests: u64,
    /// Requests that failed.
    pub(crate) errors: u64,
    /// Completed requests a second.
    pub(crate) requests_per_s: f64,
    /// User CPU of the proxy, or of both proxies together.
    pub(crate) cpu_user_us_per_request: f64,
    /// System CPU, likewise.
    pub(crate) cpu_system_us_per_request: f64,
    /// CPU time of the proxy, or of both proxies together, divided by wall time: 1 is one whole
    /// CPU.
    pub(crate) cpu_share: f64,
    /// Open-loop latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency_us: Option<Latency>,
    /// Whether the generator could not keep its schedule.
    pub(crate) generator_limited: bool,
    /// Proxies that run beside each other; figures of memory are those of all together.
    pub(crate) copies: usize,
    /// Resident memory.
    pub(crate) rss_kib: Moments,
    /// Proportional memory: pages of several processes are divided among them.
    pub(crate) pss_kib: Moments,
    /// Memory that no other process shares.
    pub(crate) private_kib: Moments,
    /// Why this was not measured; then all figures above are 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) left_out: Option<String>,
}

/// Memory in KiB at named moments; 0 if it was not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Moments {
    /// Before any connection.
    pub(crate) idle: u64,
    /// With idle connections open.
    pub(crate) connections_open: u64,
    /// After they were closed.
    pub(crate) connections_closed: u64,
}

impl Record {
    /// User and system CPU together.
    pub(crate) fn cpu_us_per_request(&self) -> f64 {
        self.cpu_user_us_per_request + self.cpu_system_us_per_request
    }
}

/// Reads a file of records.
pub(crate) fn read(path: &Path) -> Result<Vec<Record>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} holds no records", path.display()))
}

/// Writes all records; the bench calls it after each measurement, so that an interrupted run is
/// still a result.
pub(crate) fn write(path: &Path, records: &[Record]) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, serde_json::to_string_pretty(records)? + "\n")
        .with_context(|| format!("cannot write {}", path.display()))
}
