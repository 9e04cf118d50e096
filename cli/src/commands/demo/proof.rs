//! Judges what the demo proves.

use leno_observe::stat::{EdgeReport, StatReport};
use serde::Serialize;

use super::measure::{Latency, MeasuredRun};

/// The capture method that needs no netfilter rules.
const WITHOUT_RULES: &str = "ebpf";

/// The observations of the shop in the mesh.
#[derive(Debug)]
pub(super) struct MeshEvidence {
    /// How traffic was captured.
    pub(super) capture: String,
    pub(super) report: StatReport,
    /// The number of netfilter rules in the workloads' namespaces; `None` if `nft` is not installed.
    pub(super) netfilter_rules: Option<usize>,
    pub(super) measured: MeasuredRun,
}

/// The outcome of the demo, which `-o json` prints.
#[derive(Debug, Serialize)]
pub(super) struct DemoOutcome {
    /// Whether the demo has succeeded: mTLS on every edge, no failed request in either run, and no netfilter rule if eBPF
    /// captured the traffic. An unknown number of rules is no failure.
    pub(super) holds: bool,
    /// How traffic was captured.
    pub(super) capture: String,
    /// Whether there were edges, and all of them used mTLS.
    pub(super) mtls_on_every_edge: bool,
    /// The number of netfilter rules in the workloads' namespaces; `None` if `nft` is not installed.
    pub(super) netfilter_rules: Option<usize>,
    /// The figures of the shop in the mesh.
    pub(super) meshed: RunSummary,
    /// The figures of the shop without a mesh.
    pub(super) no_mesh: RunSummary,
    /// Which workload called which in the mesh.
    pub(super) edges: Vec<EdgeReport>,
    #[serde(skip)]
    pub(super) report: StatReport,
}

/// One run of the shop under load.
#[derive(Debug, Serialize)]
pub(super) struct RunSummary {
    pub(super) requests: u64,
    pub(super) errors: u64,
    pub(super) latency_us: Latency,
    /// User and system time of the shop's own processes.
    pub(super) shop_cpu_us_per_page: f64,
    /// User and system time of the proxies.
    pub(super) proxies_cpu_us_per_page: f64,
}

impl DemoOutcome {
    pub(super) fn new(meshed: MeshEvidence, bare: MeasuredRun) -> Self {
        let MeshEvidence { capture, report, netfilter_rules, measured } = meshed;
        let encrypted = |edge: &EdgeReport| edge.signals.mtls == Some(true);
        let mut proof = Self {
            holds: false,
            capture,
            mtls_on_every_edge: !report.edges.is_empty() && report.edges.iter().all(encrypted),
            netfilter_rules,
            meshed: RunSummary::new(&measured),
            no_mesh: RunSummary::new(&bare),
            edges: report.edges.clone(),
            report,
        };
        proof.holds = proof.mtls_on_every_edge
            && proof.meshed.good()
            && proof.rules_hold() != Some(false)
            && proof.no_mesh.good();
        proof
    }

    /// Whether eBPF captured the traffic without any netfilter rule; `None` if the number of rules is unknown, or if
    /// netfilter rules captured the traffic.
    pub(super) fn rules_hold(&self) -> Option<bool> {
        let rules = self.netfilter_rules.filter(|_| self.capture == WITHOUT_RULES)?;
        Some(rules == 0)
    }
}

impl RunSummary {
    fn new(measured: &MeasuredRun) -> Self {
        Self {
            requests: measured.load.requests,
            errors: measured.load.errors,
            latency_us: measured.load.latency_us.clone(),
            shop_cpu_us_per_page: measured.per_page(measured.cpu.applications),
            proxies_cpu_us_per_page: measured.per_page(measured.cpu.proxies),
        }
    }

    /// Whether there were requests, and all of them succeeded.
    pub(super) fn good(&self) -> bool {
        self.requests > 0 && self.errors == 0
    }
}
