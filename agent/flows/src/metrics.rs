//! The metrics of flows in Prometheus' text format.

use std::collections::BTreeMap;

use leno_bpf::flows::AccountingPrice;
use leno_bpf_abi::flow::{FlowEnd, FlowLevel, FlowState};

use crate::connection::FlowPeer;
use crate::drops::Drops;
use crate::pairs::{self, ConnectionPair, Sums};
use crate::{requests, wire};

/// One family of metrics. `docs/guide/metrics.md` contains the same texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyText {
    /// The name.
    pub name: &'static str,
    /// `counter`, `gauge`, `summary` or `histogram`.
    pub kind: &'static str,
    /// The help text.
    pub help: &'static str,
}

macro_rules! families {
    ($($constant:ident = $name:literal, $kind:literal, $help:literal;)*) => {
        $(pub(crate) const $constant: FamilyText = FamilyText { name: $name, kind: $kind, help: $help };)*

        /// Every family, in the order in which they are written.
        pub const FAMILIES: &[FamilyText] = &[$($constant),*];
    };
}

families! {
    BYTES = "leno_flow_bytes_total", "counter",
        "Payload of TCP connections, each byte once, by direction; where frames are counted, whole frames.";
    SEGMENTS = "leno_flow_segments_total", "counter",
        "TCP segments, with those without payload, or frames, by direction.";
    RETRANSMITS = "leno_flow_retransmits_total", "counter",
        "TCP segments that were sent again.";
    OPENED = "leno_flow_connections_opened_total", "counter",
        "TCP connections that were begun or accepted.";
    CLOSED = "leno_flow_connections_closed_total", "counter",
        "TCP connections that ended, by how and by which side.";
    HANDSHAKE = "leno_flow_handshake_seconds", "summary",
        "Time of TCP handshakes.";
    RTT = "leno_flow_rtt_seconds", "summary",
        "Smoothed round-trip time of TCP connections when they ended.";
    DURATION = "leno_flow_duration_seconds", "summary",
        "Time that TCP connections lasted.";
    EBPF_REQUESTS = "leno_ebpf_requests_total", "counter",
        "Requests as proxies counted them, by class of status; proxies that have ended stay counted.";
    EBPF_GRPC = "leno_ebpf_grpc_responses_total", "counter",
        "gRPC calls as proxies counted them, by grpc-status; proxies that have ended stay counted.";
    EBPF_DURATION = "leno_ebpf_request_duration_seconds", "histogram",
        "Time from a request's head to the end of its response, as proxies counted it.";
    EBPF_FOLDED = "leno_ebpf_pairs_folded", "gauge",
        "Pairs of workloads whose requests are counted as other because of the bound on series.";
    EBPF_LEFT_OUT = "leno_ebpf_rows_left_out", "gauge",
        "Rows of proxies that are not in the table of requests because it is full, or are not of its form.";
    WIRE_REQUESTS = "leno_flow_requests_total", "counter",
        "Requests of plain traffic that were read from frames, by protocol, kind and result.";
    WIRE_DURATION = "leno_flow_request_duration_seconds", "histogram",
        "Time from the first byte of a request that was read from frames to the first byte of its response.";
    WIRE_FOLDED = "leno_flow_requests_folded_total", "counter",
        "Requests that were read from frames and are counted as other because of the bound on series.";
    SAMPLES = "leno_flow_samples_total", "counter",
        "Samples of payload that were taken to read requests.";
    SAMPLES_LOST = "leno_flow_samples_lost_total", "counter",
        "Samples of payload that were lost because their reader was too slow, or because their flow is not in the table.";
    SAMPLES_EVICTED = "leno_flow_samples_evicted_total", "counter",
        "Connections that were read no more because further ones took their places; requests that waited there are unseen.";
    GIVEN_UP = "leno_flow_requests_given_up_total", "counter",
        "Requests that were read from frames and wait for their responses no more, because too many waited; they are unseen.";
    DROPS = "leno_flow_drops_total", "counter",
        "Packets that the kernel dropped in the network namespace of a workload, by the kernel's reason.";
    ENTRIES = "leno_flow_map_entries", "gauge",
        "Flows in the table, by state.";
    CAPACITY = "leno_flow_map_capacity", "gauge",
        "Flows that the table can hold.";
    OVERFLOW = "leno_flow_map_overflow_total", "counter",
        "Flows that are not in the table because it was full; their sums are complete.";
    UNTRACKED = "leno_flow_untracked_total", "counter",
        "TCP connections that are not accounted for because the kernel had no memory.";
    FOLDED = "leno_flow_pairs_folded", "gauge",
        "Pairs of workloads that are counted as other because of the bound on series.";
    LEVEL = "leno_flow_level", "gauge",
        "1 for how much is accounted for: full, packets, sockets, aggregated, or off.";
    BUDGET = "leno_flow_cpu_budget_ratio", "gauge",
        "Most CPU time that the kernel's accounting may take, of that of the machine; 0 without a bound.";
    COST = "leno_flow_cpu_ratio", "gauge",
        "CPU time that the kernel's accounting took when it was measured last, of that of the machine.";
    STEPS = "leno_flow_level_changes_total", "counter",
        "Changes of the level, by direction: down because accounting took more than its budget.";
    REDUCED = "leno_flow_reduced_total", "counter",
        "TCP connections that are not listed (aggregated) or not accounted for (off) because of the level.";
    WORKLOAD_LEVEL = "leno_flow_workload_level", "gauge",
        "1 for how much is accounted for of a workload with a budget of its own.";
    WORKLOAD_BUDGET = "leno_flow_workload_cpu_budget_ratio", "gauge",
        "Most CPU time that the kernel's accounting may take for a workload, of that of the machine.";
    WORKLOAD_COST = "leno_flow_workload_cpu_ratio", "gauge",
        "CPU time that the kernel's accounting took for a workload with a budget of its own, of that of the machine.";
    WORKLOAD_STEPS = "leno_flow_workload_level_changes_total", "counter",
        "Changes of the level of a workload with a budget of its own, by direction.";
    DROPPED = "leno_flow_events_dropped_total", "counter",
        "Events of flows that were dropped because their reader was too slow.";
}

/// Everything on the page except the counters of pairs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Gauges {
    pub(crate) entries: BTreeMap<FlowState, u64>,
    pub(crate) capacity: u64,
    pub(crate) overflow: u64,
    pub(crate) untracked: u64,
    pub(crate) folded: u64,
    pub(crate) events_dropped: u64,
    /// The numbers of payload samples, of lost samples, and of connections and requests that were evicted for
    /// later ones.
    pub(crate) samples: [u64; 4],
    /// How many rows of requests did not fit into the table.
    pub(crate) rows_left_out: u64,
    pub(crate) price: Option<AccountingPrice>,
    /// The workloads that have their own budget.
    pub(crate) caps: Vec<CapRow>,
    /// How many times the common level was lowered and raised.
    pub(crate) steps: [u64; 2],
    /// How many connections are not listed, and how many are not accounted for, because of the level.
    pub(crate) reduced: [u64; 2],
}

/// A workload that has its own budget.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CapRow {
    pub(crate) namespace: String,
    pub(crate) workload: String,
    pub(crate) price: AccountingPrice,
    /// How many times its level was lowered and raised.
    pub(crate) steps: [u64; 2],
}

/// The counters by workload.
pub(crate) struct WorkloadCounts<'a> {
    pub(crate) pairs: &'a pairs::PublishedFlows,
    pub(crate) requests: &'a requests::PublishedRequests,
    pub(crate) wire: &'a wire::PublishedWire,
    pub(crate) drops: &'a Drops,
}

/// The text of all families.
pub(crate) fn text(counted: &WorkloadCounts<'_>, gauges: &Gauges) -> String {
    let WorkloadCounts { pairs, requests, wire, drops } = *counted;
    let pairs: Vec<_> = pairs.sums().map(|(pair, sums)| (labels(pair), sums)).collect();
    let mut text = String::new();
    for family in FAMILIES {
        let FamilyText { name, kind, help } = *family;
        let mut page = leno_program::Family::new(&mut text, (name, kind, help));
        match *family {
            CAPACITY => page.sample(&[], gauges.capacity),
            OVERFLOW => page.sample(&[], gauges.overflow),
            UNTRACKED => page.sample(&[], gauges.untracked),
            FOLDED => page.sample(&[], gauges.folded),
            DROPPED => page.sample(&[], gauges.events_dropped),
            EBPF_FOLDED => page.sample(&[], requests.folded()),
            EBPF_LEFT_OUT => page.sample(&[], gauges.rows_left_out),
            EBPF_REQUESTS | EBPF_GRPC | EBPF_DURATION => {
                requests::add_family(&mut page, *family, requests);
            }
            WIRE_REQUESTS | WIRE_DURATION => wire::add_family(&mut page, *family, wire),
            WIRE_FOLDED => page.sample(&[], wire.folded()),
            SAMPLES => page.sample(&[], gauges.samples[0]),
            SAMPLES_LOST => page.sample(&[], gauges.samples[1]),
            SAMPLES_EVICTED => page.sample(&[], gauges.samples[2]),
            GIVEN_UP => page.sample(&[], gauges.samples[3]),
            DROPS => {
                for ([namespace, workload, reason], count) in drops.rows() {
                    let labels =
                        [("namespace", &**namespace), ("workload", workload), ("reason", reason)];
                    page.sample(&labels, *count);
                }
            }
            WORKLOAD_LEVEL | WORKLOAD_BUDGET | WORKLOAD_COST | WORKLOAD_STEPS => {
                gauges.caps.iter().for_each(|cap| add_cap(&mut page, *family, cap));
            }
            ENTRIES => {
                for state in FlowState::ALL {
                    let count = gauges.entries.get(state).copied().unwrap_or_default();
                    page.sample(&[("state", state.name())], count);
                }
            }
            LEVEL | BUDGET | COST | STEPS | REDUCED => add_price(&mut page, *family, gauges),
            _ => {
                pairs.iter().for_each(|(labels, sums)| add_pair(&mut page, *family, (labels, sums)))
            }
        }
    }
    text
}

/// Adds the cost of accounting, and how much was left out because of it.
fn add_price(page: &mut leno_program::Family<'_>, family: FamilyText, gauges: &Gauges) {
    match (family, &gauges.price) {
        (STEPS, _) => {
            for (direction, steps) in ["down", "up"].into_iter().zip(gauges.steps) {
                page.sample(&[("direction", direction)], steps);
            }
        }
        (REDUCED, _) => {
            let levels = [FlowLevel::Aggregated, FlowLevel::Off];
            for (level, count) in levels.into_iter().zip(gauges.reduced) {
                page.sample(&[("level", level.name())], count);
            }
        }
        (LEVEL, Some(price)) => {
            for level in FlowLevel::ALL {
                page.sample(&[("level", level.name())], u8::from(*level == price.level));
            }
        }
        (BUDGET, Some(price)) => page.sample(&[], f64::from(price.budget_millionths) / 1e6),
        (COST, Some(price)) => page.sample(&[], f64::from(price.cost_millionths) / 1e6),
        _ => {}
    }
}

/// Adds the values of a family for one workload that has its own budget.
fn add_cap(page: &mut leno_program::Family<'_>, family: FamilyText, cap: &CapRow) {
    let labels = [("namespace", &*cap.namespace), ("workload", &*cap.workload)];
    let with = |label, value| [&labels[..], &[(label, value)]].concat();
    match family {
        WORKLOAD_LEVEL => {
            for level in FlowLevel::ALL {
                let value = u8::from(*level == cap.price.level);
                page.sample(&with("level", level.name()), value);
            }
        }
        WORKLOAD_STEPS => {
            for (direction, steps) in ["down", "up"].into_iter().zip(cap.steps) {
                page.sample(&with("direction", direction), steps);
            }
        }
        WORKLOAD_BUDGET => page.sample(&labels, f64::from(cap.price.budget_millionths) / 1e6),
        _ => page.sample(&labels, f64::from(cap.price.cost_millionths) / 1e6),
    }
}

/// Adds the values of a family for one pair.
fn add_pair(
    page: &mut leno_program::Family<'_>,
    family: FamilyText,
    (labels, sums): (&Labels<'_>, &Sums),
) {
    let [sent, received, segments_sent, segments_received, retransmits, opened, established, ..] =
        *sums;
    let [handshake_us, rtt_us, rtt_samples, duration_us] = [sums[7], sums[8], sums[9], sums[10]];
    let ended = &sums[11..];
    let mut by = |label: &'static str, value: &'static str, count: u64| {
        page.sample(&[&labels[..], &[(label, value)]].concat(), count);
    };
    let summary = match family {
        BYTES => {
            by("direction", "sent", sent);
            return by("direction", "received", received);
        }
        SEGMENTS => {
            by("direction", "sent", segments_sent);
            return by("direction", "received", segments_received);
        }
        CLOSED => {
            let counts = FlowEnd::ALL.iter().map(|end| (end.name(), ended[*end as usize]));
            return counts
                .filter(|(_, count)| *count > 0)
                .for_each(|(end, count)| by("end", end, count));
        }
        RETRANSMITS => return page.sample(labels, retransmits),
        OPENED => return page.sample(labels, opened),
        HANDSHAKE => (handshake_us, established),
        RTT => (rtt_us, rtt_samples),
        _ => (duration_us, ended.iter().sum()),
    };
    page.part("_sum", labels, summary.0 as f64 / 1e6);
    page.part("_count", labels, summary.1);
}

/// The labels of a pair.
type Labels<'a> = [(&'static str, &'a str); 7];

fn labels(pair: &ConnectionPair) -> Labels<'_> {
    let [namespace, workload, peer_namespace, peer_workload] = peer_labels(pair.of.as_ref());
    [
        namespace,
        workload,
        peer_namespace,
        peer_workload,
        ("role", pair.role.name()),
        ("socket", pair.owner.name()),
        ("protocol", pair.protocol),
    ]
}

/// The labels of both ends; `None` for all pairs beyond the bound.
pub(crate) fn peer_labels(of: Option<&(String, String, FlowPeer)>) -> [(&'static str, &str); 4] {
    let (namespace, workload, peer_namespace, peer_workload) = match of {
        None => ("", "other", "", "other"),
        Some((namespace, workload, peer)) => match peer {
            FlowPeer::Workload { namespace: of, workload: name } => {
                (&**namespace, &**workload, &**of, &**name)
            }
            FlowPeer::Itself => (&**namespace, &**workload, "", "itself"),
            FlowPeer::ControlPlane => (&**namespace, &**workload, "", "control-plane"),
            FlowPeer::Outside => (&**namespace, &**workload, "", "outside"),
        },
    };
    [
        ("namespace", namespace),
        ("workload", workload),
        ("peer_namespace", peer_namespace),
        ("peer_workload", peer_workload),
    ]
}

#[cfg(test)]
mod tests {
    use leno_bpf_abi::flow::{FlowPair, FlowSums};

    use super::*;

    #[test]
    fn a_pair_is_written_with_its_names() {
        let pair = FlowPair { workload: 3, peer: 4, role: 0, owner: 0, protocol: 0, reserved: 0 };
        let mut sums = FlowSums::from_bytes(&[0; size_of::<FlowSums>()]).unwrap();
        (sums.bytes_sent, sums.established, sums.handshake_us) = (7, 2, 1_500_000);
        sums.ended[1] = 3;
        let name = |name: &str| ("shop".to_owned(), name.to_owned());
        let mut pairs = pairs::PublishedFlows::default();
        pairs.take_in(&[(pair, sums)], &[(3, name("client")), (4, name("web"))].into());
        let gauges = Gauges { overflow: 4, ..Gauges::default() };
        let (requests, drops) = (requests::PublishedRequests::default(), Drops::default());
        let wire = wire::PublishedWire::default();
        let counted =
            WorkloadCounts { pairs: &pairs, requests: &requests, wire: &wire, drops: &drops };
        let text = text(&counted, &gauges);
        let labels = "namespace=\"shop\",workload=\"client\",peer_namespace=\"shop\",\
                      peer_workload=\"web\",role=\"client\",socket=\"application\",protocol=\"tcp\"";
        for row in [
            format!("leno_flow_bytes_total{{{labels},direction=\"sent\"}} 7\n"),
            format!("leno_flow_connections_closed_total{{{labels},end=\"closed_local\"}} 3\n"),
            format!("leno_flow_handshake_seconds_sum{{{labels}}} 1.5\n"),
            format!("leno_flow_handshake_seconds_count{{{labels}}} 2\n"),
            "leno_flow_map_overflow_total 4\n".to_owned(),
            "leno_flow_map_entries{state=\"new\"} 0\n".to_owned(),
        ] {
            assert!(text.contains(&row), "{row}\n{text}");
        }
    }

    #[test]
    fn the_guide_has_every_family_with_its_help() {
        let guide = include_str!("../../../docs/guide/metrics.md");
        for FamilyText { name, kind, help } in FAMILIES {
            let row =
                guide.lines().find(|line| line.starts_with(&format!("| `{name}` | {kind} |")));
            let row = row.unwrap_or_else(|| panic!("docs/guide/metrics.md lacks {name}"));
            assert!(row.ends_with(&format!("| {help} |")), "{row}");
        }
    }
}
