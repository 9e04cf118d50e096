//! Edges as a table, for `leno stat` and the demo.

use std::fmt::Write;

use leno_local::stat::{EdgeReport, Report};

/// A line an edge, with a heading.
pub(crate) fn edges(report: &Report) -> String {
    let mut text = format!(
        "{:<12}{:<12}{:>9}{:>12}{:>9}{:>9}{:>9}  {}\n",
        "CLIENT", "SERVER", "SUCCESS", "REQUESTS/S", "P50 MS", "P95 MS", "P99 MS", "MTLS"
    );
    for edge in &report.edges {
        text.push_str(&row(edge));
    }
    text
}

fn row(edge: &EdgeReport) -> String {
    let signals = &edge.signals;
    let success = signals.success_rate.map_or_else(|| "-".to_owned(), percent);
    let mut row = format!("{:<12}{:<12}{success:>9}", edge.client, edge.server);
    let written = if signals.success_rate.is_none() && signals.tcp_open > 0.0 {
        let (open, kib) = (signals.tcp_open, signals.tcp_bytes_per_s / 1024.0);
        write!(row, "   TCP: {open:.0} open, {kib:7.1} KiB/s         ")
    } else {
        let latency = &signals.latency_ms;
        let (p50, p95, p99) = (ms(latency.p50), ms(latency.p95), ms(latency.p99));
        write!(row, "{:>12.1}{p50:>9}{p95:>9}{p99:>9}", signals.requests_per_s)
    };
    written.expect("a string takes every write");
    row.push_str(match signals.mtls {
        Some(true) => "  yes\n",
        Some(false) => "  no\n",
        None => "  -\n",
    });
    row
}

/// A share as percent.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

/// Milliseconds, when there are any.
pub(crate) fn ms(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2}"))
}
