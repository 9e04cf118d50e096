//! The records: one a measurement, units in the names.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use leno_testkit::load::Latency;
use serde::{Deserialize, Serialize};

/// One measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Record {
    /// Which bench: `http`, `mesh` or `memory`.
    pub(crate) bench: String,
    /// Which work, such as `keepalive-1k`.
    pub(crate) scenario: String,
    /// `saturation` (closed loop) or `rate` (open loop); empty for memory.
    pub(crate) pace: String,
    /// Whom.
    pub(crate) proxy: String,
    /// Its own words.
    pub(crate) version: String,
    /// Which round.
    pub(crate) round: u32,
    /// Connections of the load.
    pub(crate) connections: usize,
    /// Measured seconds.
    pub(crate) duration_s: f64,
    /// Requests that ended.
    pub(crate) requests: u64,
    /// Requests that failed.
    pub(crate) errors: u64,
    /// Requests that ended, a second.
    pub(crate) requests_per_s: f64,
    /// User CPU of the proxy, or of both.
    pub(crate) cpu_user_us_per_request: f64,
    /// The same in the kernel.
    pub(crate) cpu_system_us_per_request: f64,
    /// The share of one CPU that the proxy used, or both together: 1 is a whole one.
    pub(crate) cpu_share: f64,
    /// Open-loop latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency_us: Option<Latency>,
    /// Whether the load could not keep its schedule.
    pub(crate) generator_limited: bool,
    /// Resident memory.
    pub(crate) rss_kib: RssKib,
    /// Why this was not measured; everything above that is a figure is 0 then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) left_out: Option<String>,
}

/// Resident memory at named moments; 0 where it was not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RssKib {
    /// Before any connection.
    pub(crate) idle: u64,
    /// The part of that which is the process's own: heap and stacks, no file.
    pub(crate) idle_anonymous: u64,
    /// With idle connections open.
    pub(crate) connections_open: u64,
    /// After they were closed.
    pub(crate) connections_closed: u64,
}

impl Record {
    /// User and system.
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

/// Writes all records; called after each, so that an interrupted run is still a result.
pub(crate) fn write(path: &Path, records: &[Record]) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, serde_json::to_string_pretty(records)? + "\n")
        .with_context(|| format!("cannot write {}", path.display()))
}
