//! Measures the CPU time and latency of the shop, with and without a mesh.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::mesh::ShopMesh;

/// The part of the load generator's report that is needed.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Load {
    pub(super) requests: u64,
    pub(super) errors: u64,
    pub(super) latency_us: Latency,
}

/// Percentiles in microseconds.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Latency {
    pub(super) p50: u64,
    pub(super) p99: u64,
}

/// CPU time in microseconds, for user and system together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cpu {
    pub(super) applications: u64,
    pub(super) proxies: u64,
}

/// One run of the shop under load.
#[derive(Clone, Debug)]
pub(super) struct MeasuredRun {
    pub(super) load: Load,
    pub(super) cpu: Cpu,
}

impl MeasuredRun {
    pub(super) fn new(load: Load, before: Cpu, after: Cpu) -> Self {
        let cpu = Cpu {
            applications: after.applications.saturating_sub(before.applications),
            proxies: after.proxies.saturating_sub(before.proxies),
        };
        Self { load, cpu }
    }

    /// CPU time per page, in microseconds.
    pub(super) fn per_page(&self, cpu: u64) -> f64 {
        cpu as f64 / self.load.requests.max(1) as f64
    }
}

/// The CPU time that the shop has used so far: its applications without the customer, and its proxies.
pub(super) fn cpu(mesh: &ShopMesh) -> Result<Cpu> {
    let mut sum = Cpu::default();
    for instance in mesh.status()?.instances {
        let application = &instance.surroundings.cgroup;
        if instance.workload != "customer" {
            sum.applications += of_cgroup(application)?;
        }
        if instance.meshed {
            let proxy = application.parent().context("a control group has a parent")?.join("proxy");
            sum.proxies += of_cgroup(&proxy)?;
        }
    }
    Ok(sum)
}

/// The CPU time of a control group. The kernel accounts for it in every group of cgroup version 2, even if the CPU
/// controller is disabled.
fn of_cgroup(directory: &Path) -> Result<u64> {
    let path = directory.join("cpu.stat");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
    usage.and_then(|value| value.parse().ok()).with_context(|| format!("{}", path.display()))
}
