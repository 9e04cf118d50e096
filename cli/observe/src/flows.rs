//! Reads the kernel's counts of connections from the metrics page of a node's agent or of `leno up`.

use std::collections::BTreeMap;

use crate::metrics::Sample;
use crate::stat::NamespacedName;

/// Most pairs that are read from one page; an agent itself has fewer series.
pub const MAX_PAIRS: usize = 4_096;
/// Most combinations of workload and reason for dropped packets that are read from one page.
const MAX_DROPS: usize = 1_024;
/// Longest label, in bytes.
const MAX_LABEL: usize = 400;

/// The two ends of connections, as seen by the end that counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowEnds {
    /// The workload whose sockets were counted.
    pub own: NamespacedName,
    /// The other end. If its namespace is empty, it is not a workload; its name is then `outside`, `itself` or
    /// `control-plane`.
    pub peer: NamespacedName,
    /// Whether the workload opened the connections (`client`) or accepted them (`server`).
    pub role: String,
    /// Whose sockets were counted: `application`, `proxy`, or `wire` if frames were counted.
    pub socket: String,
}

/// What was counted between two ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowSums {
    /// Bytes sent and received.
    pub bytes: [f64; 2],
    /// Segments sent.
    pub segments: f64,
    /// Segments that were retransmitted.
    pub retransmits: f64,
    /// Connections that were opened or accepted.
    pub opened: f64,
    /// Connections that ended, by the kind of end.
    pub ends: BTreeMap<String, f64>,
    /// Handshakes: the sum of their durations in seconds, and their number.
    pub handshakes: [f64; 2],
    /// Round trips: the sum of their durations in seconds, and their number.
    pub round_trips: [f64; 2],
}

/// The counts on one page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowCounts {
    /// The counts of connections, by their ends.
    pub pairs: BTreeMap<FlowEnds, FlowSums>,
    /// Packets that the kernel dropped, by workload and reason.
    pub drops: BTreeMap<(NamespacedName, String), f64>,
    /// The agent's level of accounting; `None` if the page does not state it, for example because the agent counts
    /// nothing.
    pub level: Option<String>,
    /// How many samples were left out because of the limits.
    pub left_out: u64,
}

impl FlowCounts {
    /// The counts in the samples of a page.
    #[must_use]
    pub fn of(samples: &[Sample]) -> Self {
        let mut counts = Self::default();
        for sample in samples.iter().filter(|one| one.name.starts_with("leno_flow_")) {
            if sample.labels.values().any(|value| value.len() > MAX_LABEL) {
                counts.left_out += 1;
                continue;
            }
            counts.take(sample);
        }
        counts
    }

    fn take(&mut self, sample: &Sample) {
        let label = |name: &str| sample.labels.get(name).cloned().unwrap_or_default();
        let name = sample.name.as_str();
        if name == "leno_flow_level" {
            if sample.value == 1.0 {
                self.level = Some(label("level"));
            }
            return;
        }
        let own = (label("namespace"), label("workload"));
        if name == "leno_flow_drops_total" {
            let key = (own, label("reason"));
            if self.drops.len() >= MAX_DROPS && !self.drops.contains_key(&key) {
                self.left_out += 1;
                return;
            }
            *self.drops.entry(key).or_default() += sample.value;
            return;
        }
        if !FlowSums::has(name) {
            return;
        }
        let peer = (label("peer_namespace"), label("peer_workload"));
        let ends = FlowEnds { own, peer, role: label("role"), socket: label("socket") };
        if self.pairs.len() >= MAX_PAIRS && !self.pairs.contains_key(&ends) {
            self.left_out += 1;
            return;
        }
        self.pairs.entry(ends).or_default().take(sample);
    }

    /// The number of rows: pairs and drops.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.pairs.len() + self.drops.len()
    }

    /// Keeps at most `most` rows: the pairs with the most bytes, and the workloads with the most dropped packets.
    /// Drops get a quarter of the rows, or more if the pairs need fewer. Returns how many rows were removed; they
    /// are also counted as left out.
    pub fn keep(&mut self, most: usize) -> usize {
        let before = self.rows();
        let drops = most.saturating_sub(self.pairs.len()).max(most / 4);
        keep(&mut self.drops, drops, |count| *count);
        keep(&mut self.pairs, most - self.drops.len(), |sums| sums.bytes[0] + sums.bytes[1]);
        let dropped = before - self.rows();
        self.left_out += dropped as u64;
        dropped
    }

    /// The increase since `before`, an earlier page of the same agent. If a counter is smaller than before, it was
    /// reset.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let none = FlowSums::default();
        let pair = |(ends, now): (&FlowEnds, &FlowSums)| {
            (ends.clone(), now.since(before.pairs.get(ends).unwrap_or(&none)))
        };
        let drops = self.drops.iter().map(|(key, now)| {
            (key.clone(), grown(*now, before.drops.get(key).copied().unwrap_or_default()))
        });
        Self {
            pairs: self.pairs.iter().map(pair).collect(),
            drops: drops.collect(),
            level: self.level.clone(),
            left_out: self.left_out,
        }
    }
}

impl FlowSums {
    fn has(name: &str) -> bool {
        [
            "leno_flow_bytes_total",
            "leno_flow_segments_total",
            "leno_flow_retransmits_total",
            "leno_flow_connections_opened_total",
            "leno_flow_connections_closed_total",
            "leno_flow_handshake_seconds_sum",
            "leno_flow_handshake_seconds_count",
            "leno_flow_rtt_seconds_sum",
            "leno_flow_rtt_seconds_count",
        ]
        .contains(&name)
    }

    fn take(&mut self, sample: &Sample) {
        let label = |name: &str| sample.labels.get(name).map_or("", String::as_str);
        let is_sent = label("direction") == "sent";
        let sum = match sample.name.as_str() {
            "leno_flow_bytes_total" => &mut self.bytes[usize::from(!is_sent)],
            "leno_flow_segments_total" if is_sent => &mut self.segments,
            "leno_flow_retransmits_total" => &mut self.retransmits,
            "leno_flow_connections_opened_total" => &mut self.opened,
            "leno_flow_connections_closed_total" => {
                self.ends.entry(label("end").to_owned()).or_default()
            }
            "leno_flow_handshake_seconds_sum" => &mut self.handshakes[0],
            "leno_flow_handshake_seconds_count" => &mut self.handshakes[1],
            "leno_flow_rtt_seconds_sum" => &mut self.round_trips[0],
            "leno_flow_rtt_seconds_count" => &mut self.round_trips[1],
            _ => return,
        };
        *sum += sample.value;
    }

    /// Adds all counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.join(other, |own, more| own + more);
    }

    fn since(&self, before: &Self) -> Self {
        let mut grown_sums = self.clone();
        grown_sums.join(before, grown);
        grown_sums
    }

    fn join(&mut self, other: &Self, how: impl Fn(f64, f64) -> f64) {
        let own = self.bytes.iter_mut().chain(&mut self.handshakes).chain(&mut self.round_trips);
        let own = own.chain([&mut self.segments, &mut self.retransmits, &mut self.opened]);
        let all = other.bytes.iter().chain(&other.handshakes).chain(&other.round_trips);
        let all = all.chain([&other.segments, &other.retransmits, &other.opened]);
        for (own, more) in own.zip(all) {
            *own = how(*own, *more);
        }
        for (end, more) in &other.ends {
            let own = self.ends.entry(end.clone()).or_default();
            *own = how(*own, *more);
        }
    }

    /// Whether anything was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments == 0.0 && self.opened == 0.0 && self.bytes == [0.0; 2] && self.ends.is_empty()
    }
}

/// Keeps the entries with the largest weights.
fn keep<K: Ord + Clone, V>(all: &mut BTreeMap<K, V>, most: usize, weight: impl Fn(&V) -> f64) {
    if all.len() <= most {
        return;
    }
    let mut weights: Vec<(f64, &K)> = all.iter().map(|(key, value)| (weight(value), key)).collect();
    weights.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let beyond: Vec<K> = weights.drain(most..).map(|(_, key)| key.clone()).collect();
    for key in beyond {
        all.remove(&key);
    }
}

fn grown(now: f64, before: f64) -> f64 {
    if now < before { now } else { now - before }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics;

    fn page(sent: u32, closed: u32, drops: u32) -> FlowCounts {
        let pair = "namespace=\"shop\",workload=\"web\",peer_namespace=\"shop\",peer_workload=\"db\",\
                    role=\"client\",socket=\"proxy\"";
        FlowCounts::of(&metrics::parse(&format!(
            "leno_flow_level{{level=\"full\"}} 0\nleno_flow_level{{level=\"sockets\"}} 1\n\
             leno_flow_bytes_total{{{pair},protocol=\"tcp\",direction=\"sent\"}} {sent}\n\
             leno_flow_bytes_total{{{pair},protocol=\"tcp\",direction=\"received\"}} 9\n\
             leno_flow_connections_closed_total{{{pair},protocol=\"tcp\",end=\"reset_peer\"}} {closed}\n\
             leno_flow_rtt_seconds_sum{{{pair},protocol=\"tcp\"}} 0.5\n\
             leno_flow_rtt_seconds_count{{{pair},protocol=\"tcp\"}} 5\n\
             leno_flow_drops_total{{namespace=\"shop\",workload=\"web\",reason=\"NO_SOCKET\"}} {drops}\n"
        )))
    }

    #[test]
    fn a_pair_is_what_grew_between_two_pages() {
        let grown = page(30, 5, 7).since(&page(10, 3, 7));
        let [(ends, sums)] = grown.pairs.iter().collect::<Vec<_>>()[..] else { panic!() };
        assert_eq!(
            (&*ends.own.1, &*ends.peer.1, &*ends.role, &*ends.socket),
            ("web", "db", "client", "proxy")
        );
        assert_eq!((sums.bytes, sums.ends["reset_peer"]), ([20.0, 0.0], 2.0));
        assert_eq!(grown.drops.values().copied().collect::<Vec<_>>(), [0.0]);
        assert_eq!(grown.level.as_deref(), Some("sockets"));
        // The agent was restarted.
        let again = page(4, 1, 1).since(&page(10, 3, 7));
        assert_eq!(again.pairs.values().next().unwrap().bytes[0], 4.0);
        let mut sum = page(1, 0, 0).pairs.into_values().next().unwrap();
        sum.add(&page(2, 1, 0).pairs.into_values().next().unwrap());
        assert_eq!(
            (sum.bytes, sum.round_trips, sum.ends["reset_peer"]),
            ([3.0, 18.0], [1.0, 10.0], 1.0)
        );
        assert!(!sum.is_empty() && FlowSums::default().is_empty());
    }

    #[test]
    fn a_page_keeps_the_pairs_with_the_most_bytes() {
        let text: String = (0..10)
            .map(|nth| format!("leno_flow_bytes_total{{workload=\"{nth}\"}} {nth}\nleno_flow_drops_total{{workload=\"{nth}\"}} {nth}\n"))
            .collect();
        let mut counts = FlowCounts::of(&metrics::parse(&text));
        assert_eq!((counts.keep(20), counts.left_out), (0, 0));
        assert_eq!((counts.keep(8), counts.left_out), (12, 12));
        let pairs: Vec<&str> = counts.pairs.keys().map(|ends| &*ends.own.1).collect();
        let drops: Vec<&str> = counts.drops.keys().map(|(own, _)| &*own.1).collect();
        assert_eq!((pairs, drops), (vec!["4", "5", "6", "7", "8", "9"], vec!["8", "9"]));
        counts.pairs.clear();
        assert_eq!((counts.keep(1), counts.drops.len()), (1, 1), "drops have what pairs leave");
        assert_eq!((counts.keep(0), counts.rows()), (1, 0));
    }

    #[test]
    fn a_page_without_end_is_bounded() {
        let text: String = (0..MAX_PAIRS + 10)
            .map(|nth| format!("leno_flow_retransmits_total{{workload=\"{nth}\"}} 1\nleno_flow_drops_total{{workload=\"{nth}\"}} 1\n"))
            .collect();
        let counts = FlowCounts::of(&metrics::parse(&text));
        assert_eq!((counts.pairs.len(), counts.drops.len()), (MAX_PAIRS, MAX_DROPS));
        assert_eq!(counts.left_out, (10 + MAX_PAIRS + 10 - MAX_DROPS) as u64);
    }
}
