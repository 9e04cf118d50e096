//! Figures other than latency and CPU: memory by kind, connections, kernel programs, start-up, the control plane, and events
//! during the load.

use crate::record::{IdleMemory, Record, WebSockets};
use crate::statistics::median;

/// A figure of a record that may have none.
type OfRecord = fn(&Record) -> Option<f64>;

/// The figures: their headings, digits after the point, and values. They are medians over the rounds.
pub(super) const FIGURES: [(&str, usize, OfRecord); 16] = [
    ("PRIVATE MB", 2, |record| idle_mb(record, |one| one.proxies.private_kib)),
    ("PROPORTIONAL MB", 2, |record| idle_mb(record, |one| one.proxies.pss_kib)),
    ("SUPERVISOR MB", 2, |record| idle_mb(record, |one| one.agent.private_kib)),
    // The largest number between the client's side and the services.
    ("CONNECTIONS", 0, |record| any(record.crossing_connections as f64)),
    ("PROGRAMS US/REQ", 2, |record| any(each(record, record.kernel_programs.ms * 1000.0))),
    ("SWITCHES/REQ", 2, |record| {
        let switches = record.context_switches;
        any(each(record, (switches.voluntary + switches.involuntary) as f64))
    }),
    ("START-UP MS", 0, |record| record.start_up_ms),
    ("CONTROL MB", 1, |record| any(record.control_rss_kib.peak as f64 * 1024.0 / 1e6)),
    ("NEIGHBOUR REQ/S", 0, |record| record.neighbour_requests_per_s),
    // In relation to the same load before neighbours began.
    ("P99 / ALONE", 2, |record| {
        let alone = record.alone_latency_us.as_ref()?;
        Some(record.latency_us.p99 as f64 / alone.p99.max(1) as f64)
    }),
    // The most that a proxy accounts for under the load of neighbours.
    ("MOST CHARGED MB", 2, |record| Some(*record.charged_bytes.values().max()? as f64 / 1e6)),
    ("LONGEST MS", 1, |record| any(record.latency_us.max as f64 / 1000.0)),
    ("CUT", 0, |record| of_websockets(record, |one| one.cut)),
    ("LONGEST MESSAGE MS", 2, |record| Some(of_websockets(record, |one| one.longest_us)? / 1000.0)),
    ("REVISIONS", 0, |record| any(record.revisions as f64)),
    ("ARRIVED", 0, |record| Some(record.revisions_arrived? as f64)),
];

/// The figures of one scenario and mesh, in the order of [`FIGURES`], from at least one round.
pub(super) fn of(rounds: &[&Record]) -> Vec<Option<f64>> {
    let of = |(_, _, figure): &(&str, usize, OfRecord)| {
        let values: Vec<f64> = rounds.iter().filter_map(|record| figure(record)).collect();
        (!values.is_empty()).then(|| median(&values))
    };
    FIGURES.iter().map(of).collect()
}

/// A figure that is 0 where it was not measured.
fn any(figure: f64) -> Option<f64> {
    (figure > 0.0).then_some(figure)
}

fn each(record: &Record, sum: f64) -> f64 {
    sum / record.requests.max(1) as f64
}

fn of_websockets(record: &Record, figure: fn(WebSockets) -> u64) -> Option<f64> {
    record.websockets.map(|one| figure(one) as f64)
}

/// Memory before the load of a mesh that has proxies.
fn idle_mb(record: &Record, kib: fn(IdleMemory) -> u64) -> Option<f64> {
    let memory = record.idle_memory.filter(|_| record.proxies > 0)?;
    Some(kib(memory) as f64 * 1024.0 / 1e6)
}

#[cfg(test)]
mod tests {
    use crate::record::KernelPrograms;
    use crate::report::summary::Summary;
    use crate::report::summary::tests::record;
    use crate::report::text::rows_of_other_figures;

    #[test]
    fn only_columns_with_a_figure_are_there() {
        let mut leno = record("leno", 0, 2500);
        leno.requests = 100;
        leno.crossing_connections = 2;
        leno.kernel_programs = KernelPrograms { runs: 400, ms: 0.5 };
        (leno.revisions, leno.revisions_arrived) = (40, Some(38));
        let mut none = record("none", 0, 1000);
        none.crossing_connections = 16;
        let summary = Summary::of(&[none, leno]);
        let (_, cells) = summary.scenarios().remove(0);
        let rows = rows_of_other_figures(&cells);
        assert_eq!(rows[0], ["MESH", "CONNECTIONS", "PROGRAMS US/REQ", "REVISIONS", "ARRIVED"]);
        assert_eq!(rows[1], ["none", "16", "-", "-", "-"]);
        assert_eq!(rows[2], ["leno", "2", "5.00", "40", "38"]);
    }
}
