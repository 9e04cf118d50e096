//! Prints the demo's texts.

use anyhow::Result;
use leno_observe::stat::StatReport;

use super::proof::{DemoOutcome, RunSummary};
use crate::commands::table::{edges, percent};
use crate::commands::{escaped, print, print_raw};

/// Moves the cursor up and clears the rest of the screen, so that the next output replaces the last one.
const UP_AND_CLEAR: &str = "\x1b[{}A\x1b[J";

/// The text at the beginning.
pub(super) const OPENING: &str = "\
Leno demo: a shop of six services over Redis, as ordinary processes on this machine.
Each runs in its own network namespace; none knows of the mesh.

";

/// The live table. On a terminal it is redrawn in place; otherwise one line is printed each second.
pub(super) struct LiveTable {
    kind: OutputMode,
    lines: usize,
}

enum OutputMode {
    Live,
    Lines,
    None,
}

impl LiveTable {
    pub(super) fn new(live: bool) -> Self {
        Self { kind: if live { OutputMode::Live } else { OutputMode::Lines }, lines: 0 }
    }

    /// A table that prints nothing.
    pub(super) fn none() -> Self {
        Self { kind: OutputMode::None, lines: 0 }
    }

    pub(super) fn show(&mut self, report: &StatReport) -> Result<()> {
        match self.kind {
            OutputMode::None => Ok(()),
            OutputMode::Lines => print(&(summary(report) + "\n")),
            OutputMode::Live => {
                let up = match self.lines {
                    0 => String::new(),
                    lines => UP_AND_CLEAR.replace("{}", &lines.to_string()),
                };
                let table = edges(report);
                self.lines = table.lines().count();
                print_raw(&(up + &escaped(&table)))
            }
        }
    }
}

fn summary(report: &StatReport) -> String {
    let requests: f64 = report.edges.iter().map(|edge| edge.signals.requests_per_s).sum();
    let encrypted = report.edges.iter().filter(|edge| edge.signals.mtls == Some(true)).count();
    let worst =
        report.edges.iter().filter_map(|edge| edge.signals.success_rate).fold(1.0, f64::min);
    format!(
        "{requests:7.0} requests/s over {} edges, {encrypted} of them mTLS, lowest success {}",
        report.edges.len(),
        percent(worst)
    )
}

/// The text about what was proved.
pub(super) fn proof(proof: &DemoOutcome) -> String {
    let mut text = format!("\n{}\n", edges(&proof.report));
    let count = proof.edges.len();
    text += &line(proof.mtls_on_every_edge, &format!("mTLS on every edge ({count} of them)"));
    let RunSummary { requests, errors, .. } = proof.meshed;
    text += &line(proof.meshed.good(), &format!("{requests} pages, {errors} failed"));
    text += &match (proof.netfilter_rules, proof.rules_hold()) {
        (Some(rules), Some(holds)) => {
            line(holds, &format!("{rules} netfilter rules in the workloads' namespaces"))
        }
        (Some(rules), None) => {
            format!("  -   {rules} netfilter rules: traffic is captured by {}\n", proof.capture)
        }
        (None, _) => "  -   netfilter rules not counted: there is no nft to ask\n".to_owned(),
    };
    if proof.no_mesh.good() {
        return text + &comparison(&proof.meshed, &proof.no_mesh);
    }
    let RunSummary { requests, errors, .. } = proof.no_mesh;
    text + &line(false, &format!("compared: with no mesh {errors} of {requests} pages failed"))
}

fn line(holds: bool, what: &str) -> String {
    format!("  {} {what}\n", if holds { "ok " } else { "NOT" })
}

fn comparison(meshed: &RunSummary, bare: &RunSummary) -> String {
    let mut text = format!("\n{:<34}{:>12}{:>12}{:>12}\n", "", "no mesh", "Leno", "added");
    // `without` and `with` are in microseconds; milliseconds are printed.
    let mut row = |what: &str, without: f64, with: f64| {
        let (without, with) = (without / 1000.0, with / 1000.0);
        text += &format!("{what:<34}{without:>12.2}{with:>12.2}{:>12.2}\n", with - without);
    };
    let of = |pages: &RunSummary| (pages.latency_us.p50 as f64, pages.latency_us.p99 as f64);
    let ((bare_p50, bare_p99), (p50, p99)) = (of(bare), of(meshed));
    row("page latency p50, ms", bare_p50, p50);
    row("page latency p99, ms", bare_p99, p99);
    row("CPU of the shop, ms a page", bare.shop_cpu_us_per_page, meshed.shop_cpu_us_per_page);
    row("CPU of the proxies, ms a page", 0.0, meshed.proxies_cpu_us_per_page);
    text
}
