//! What the demo prints.

use leno_local::stat::Report;

use super::measure::Measured;
use crate::commands::table::{edges, percent};

/// Moves the cursor up and clears from there: the next picture takes the place of the last.
const UP_AND_CLEAR: &str = "\x1b[{}A\x1b[J";

pub(super) fn opening() {
    println!(
        "Leno demo: a shop of six services over Redis, as ordinary processes on this machine."
    );
    println!("Each runs in its own network namespace; none knows of the mesh.\n");
}

/// The live table: in place on a terminal, otherwise a line a second.
pub(super) struct Pictures {
    live: bool,
    lines: usize,
}

impl Pictures {
    pub(super) fn new(live: bool) -> Self {
        Self { live, lines: 0 }
    }

    pub(super) fn show(&mut self, report: &Report) {
        if !self.live {
            println!("{}", summary(report));
            return;
        }
        if self.lines > 0 {
            print!("{}", UP_AND_CLEAR.replace("{}", &self.lines.to_string()));
        }
        let table = edges(report);
        self.lines = table.lines().count();
        print!("{table}");
    }
}

fn summary(report: &Report) -> String {
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

/// Prints what was shown to hold; false when something did not.
pub(super) fn proof(
    report: &Report,
    rules: Option<usize>,
    meshed: &Measured,
    bare: &Measured,
) -> bool {
    println!("\n{}", edges(report));
    let encrypted = report.edges.iter().all(|edge| edge.signals.mtls == Some(true));
    let failed = meshed.load.requests - meshed.succeeded();
    let answered = meshed.load.requests > 0 && failed == 0;
    let rules_hold = rules.is_none_or(|rules| rules == 0);
    let count = report.edges.len();
    check(count > 0 && encrypted, &format!("mTLS on every edge ({count} of them)"));
    check(answered, &format!("{} pages, {failed} failed", meshed.load.requests));
    match rules {
        Some(rules) => {
            check(rules_hold, &format!("{rules} netfilter rules in the workloads' namespaces"))
        }
        None => println!("  -   netfilter rules not counted: there is no nft to ask"),
    }
    let comparable = bare.load.errors == 0 && bare.load.requests > 0;
    if comparable {
        comparison(meshed, bare);
    } else {
        let (requests, errors) = (bare.load.requests, bare.load.errors);
        println!("  NOT compared: with no mesh {errors} pages failed, {requests} were answered");
    }
    count > 0 && encrypted && answered && rules_hold && comparable
}

fn check(holds: bool, what: &str) {
    println!("  {} {what}", if holds { "ok " } else { "NOT" });
}

fn comparison(meshed: &Measured, bare: &Measured) {
    let ms = |us: u64| us as f64 / 1000.0;
    println!("\n{:<34}{:>12}{:>12}{:>12}", "", "no mesh", "Leno", "added");
    let line = |what: &str, without: f64, with: f64| {
        println!("{what:<34}{without:>12.2}{with:>12.2}{:>12.2}", with - without);
    };
    line("page latency p50, ms", ms(bare.load.latency_us.p50), ms(meshed.load.latency_us.p50));
    line("page latency p99, ms", ms(bare.load.latency_us.p99), ms(meshed.load.latency_us.p99));
    let (without, with) =
        (bare.per_page(bare.cpu.applications), meshed.per_page(meshed.cpu.applications));
    line("CPU of the shop, ms a page", without / 1000.0, with / 1000.0);
    line("CPU of the proxies, ms a page", 0.0, meshed.per_page(meshed.cpu.proxies) / 1000.0);
}
