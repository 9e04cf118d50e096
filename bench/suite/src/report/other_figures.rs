//! Figures other than latency and CPU: connections, kernel programs, start-up, the control plane,
//! and events during the load.

use crate::record::{IdleMemory, Record, WebSockets};
use crate::statistics::median;

/// These figures for one scenario and mesh.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OtherFigures {
    /// The largest number of connections between the client's side and the services.
    pub connections: f64,
    /// Run time of kernel programs per request, in microseconds.
    pub programs_us: f64,
    /// Context switches of the proxies per request.
    pub switches: f64,
    /// Peak memory of the control plane in MB.
    pub control_mb: f64,
    /// Rate at which the neighbour was answered.
    pub neighbour_requests_per_s: Option<f64>,
    /// The 99th percentile divided by that of the same load before neighbours began.
    pub p99_to_alone: Option<f64>,
    /// The most memory that a proxy accounts for under the load of neighbours, in MB.
    pub charged_mb: Option<f64>,
    /// The longest latency of a request, in milliseconds.
    pub longest_ms: f64,
    /// WebSockets that were cut in a round, and the longest time of a message in milliseconds.
    pub websockets: Option<[f64; 2]>,
    /// Memory of all proxies before the load in MB: private, and proportional; private memory of their supervisor.
    pub idle_mb: Option<[f64; 3]>,
    /// Configurations that the proxies received in a round.
    pub revisions: f64,
    /// Those of them that took effect.
    pub arrived: Option<f64>,
}

impl OtherFigures {
    /// Medians over the rounds, at least one.
    pub(super) fn of(rounds: &[&Record]) -> Self {
        let one = rounds[0];
        let of = |figure: &dyn Fn(&Record) -> f64| {
            median(&rounds.iter().map(|record| figure(record)).collect::<Vec<_>>())
        };
        let each = |record: &Record, sum: f64| sum / record.requests.max(1) as f64;
        Self {
            connections: of(&|record| record.crossing_connections as f64),
            programs_us: of(&|record| each(record, record.kernel_programs.ms * 1000.0)),
            switches: of(&|record| {
                let switches = record.context_switches;
                each(record, (switches.voluntary + switches.involuntary) as f64)
            }),
            control_mb: of(&|record| record.control_rss_kib.peak as f64 * 1024.0 / 1e6),
            neighbour_requests_per_s: one
                .neighbour_requests_per_s
                .map(|_| of(&|record| record.neighbour_requests_per_s.unwrap_or_default())),
            p99_to_alone: one.alone_latency_us.as_ref().map(|_| {
                of(&|record| {
                    let alone = record.alone_latency_us.as_ref().map_or(0, |alone| alone.p99);
                    record.latency_us.p99 as f64 / alone.max(1) as f64
                })
            }),
            charged_mb: one.charged_bytes.values().max().map(|_| {
                of(&|record| {
                    record.charged_bytes.values().max().map_or(0.0, |most| *most as f64 / 1e6)
                })
            }),
            longest_ms: of(&|record| record.latency_us.max as f64 / 1000.0),
            websockets: one.websockets.map(|_| {
                let all = |figure: fn(WebSockets) -> u64| {
                    of(&|record| figure(record.websockets.unwrap_or_default()) as f64)
                };
                [all(|one| one.cut), all(|one| one.longest_us) / 1000.0]
            }),
            idle_mb: one.idle_memory.filter(|_| one.proxies > 0).map(|_| {
                let all = |kib: fn(IdleMemory) -> u64| {
                    of(&|record| kib(record.idle_memory.unwrap_or_default()) as f64 * 1024.0 / 1e6)
                };
                [
                    all(|one| one.proxies.private_kib),
                    all(|one| one.proxies.pss_kib),
                    all(|one| one.agent.private_kib),
                ]
            }),
            revisions: of(&|record| record.revisions as f64),
            arrived: one
                .revisions_arrived
                .map(|_| of(&|record| record.revisions_arrived.unwrap_or_default() as f64)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        for record in [&mut none, &mut leno] {
            record.start_up_ms = None;
        }
        let summary = Summary::of(&[none, leno]);
        let (_, cells) = summary.scenarios().remove(0);
        let rows = rows_of_other_figures(&cells);
        assert_eq!(rows[0], ["MESH", "CONNECTIONS", "PROGRAMS US/REQ", "REVISIONS", "ARRIVED"]);
        assert_eq!(rows[1], ["none", "16", "-", "-", "-"]);
        assert_eq!(rows[2], ["leno", "2", "5.00", "40", "38"]);
        assert_eq!(OtherFigures::default().arrived, None);
    }
}
