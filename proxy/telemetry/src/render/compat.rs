//! The same counts under the names and labels of other meshes, so that dashboards made for these meshes continue to
//! work.
//!
//! Nothing more is counted for this: the page is rendered from the snapshot that has the proxy's own metrics. Edges
//! that have the same labels in the other mesh are added up. Such a sum includes edges that are no longer shown, as
//! long as one of them is shown: if it fell, Prometheus would take that for a restart of the counter. Istio's metrics
//! are by workload, so their sums also include the counts of dropped edges.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::str::FromStr;

use super::{Measured, Page, Value};
use crate::edge::{Direction, EdgeLabels};
use crate::snapshot::{EdgeCounts, Snapshot};

mod istio;
mod linkerd;

/// The meshes with whose names metrics are served in addition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetricsCompat {
    linkerd: bool,
    istio: bool,
}

impl FromStr for MetricsCompat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut compat = Self::default();
        if text == "off" {
            return Ok(compat);
        }
        for name in text.split(',').map(str::trim) {
            match name {
                "linkerd" => compat.linkerd = true,
                "istio" => compat.istio = true,
                _ => {
                    return Err(format!(
                        "{name:?} is not a mesh whose metric names are supported: use linkerd, \
                         istio, both separated by a comma, or off"
                    ));
                }
            }
        }
        Ok(compat)
    }
}

/// The labels of the proxy's own workload in the metrics of other meshes.
#[derive(Clone, Debug, Default)]
pub struct OwnWorkload {
    /// The workload's namespace.
    pub namespace: String,
    /// The instance.
    pub instance: String,
    /// The workload to which the instance belongs.
    pub workload: String,
    /// The workload's identity, once there is one.
    pub identity: Option<String>,
    /// The trust domain of that identity.
    pub trust_domain: String,
}

impl MetricsCompat {
    /// Whether the metrics of any other mesh are served.
    #[must_use]
    pub fn is_any(self) -> bool {
        self.linkerd || self.istio
    }

    /// Writes the metrics of the meshes that are enabled.
    pub(super) fn render(
        self,
        page: &mut Page,
        own: &OwnWorkload,
        (snapshot, measured): (&Snapshot, &[Measured]),
    ) {
        if self.linkerd {
            linkerd::render(page, own, snapshot, measured);
        }
        if self.istio {
            istio::render(page, own, snapshot);
        }
    }
}

impl OwnWorkload {
    /// The SPIFFE ID of a client whose service account is known.
    fn identity_of(&self, labels: &EdgeLabels) -> String {
        let EdgeLabels { client, client_namespace, client_trust_domain, .. } = labels;
        let domain = match &**client_trust_domain {
            "" => &*self.trust_domain,
            other => other,
        };
        format!("spiffe://{domain}/ns/{client_namespace}/sa/{client}")
    }
}

/// Edges by the labels that they have in another mesh.
type Grouped = BTreeMap<String, EdgeCounts>;

/// The counts of edges, summed by these labels. Sums without an edge that is still shown are left out.
fn grouped(snapshot: &Snapshot, labels: impl Fn(&EdgeLabels) -> String) -> Grouped {
    let mut groups = Grouped::new();
    for (edge, counts) in &snapshot.edges {
        groups.entry(labels(edge)).or_default().add(counts);
    }
    groups.retain(|_, counts| counts.live);
    groups
}

/// Like [`grouped`], but `labels` also gets the server's workload, and the sums include the counts of dropped edges.
fn grouped_by_workload(
    snapshot: &Snapshot,
    labels: impl Fn(&EdgeLabels, &str) -> String,
) -> Grouped {
    let mut groups = Grouped::new();
    let edges =
        snapshot.edges.iter().map(|(edge, counts)| (edge, workload_of(&edge.server), counts));
    let forgotten = snapshot.forgotten.iter().map(|(edge, counts)| (edge, &*edge.server, counts));
    for (edge, workload, counts) in edges.chain(forgotten) {
        groups.entry(labels(edge, workload)).or_default().add(counts);
    }
    groups.retain(|_, counts| counts.live);
    groups
}

/// Responses with one status.
struct Responses {
    status: u16,
    /// The gRPC status, if the responses belong to gRPC calls.
    grpc: Option<u8>,
    count: u64,
}

impl Responses {
    /// The responses of an edge. gRPC calls are counted by both statuses. For clients their HTTP status is 200, even if
    /// the mesh has failed the call.
    fn of(counts: &EdgeCounts) -> Vec<Self> {
        let answers = &counts.answers;
        let calls: u64 = answers.grpc.values().sum();
        let failed: u64 = answers.failed_calls.values().sum();
        let of_http = answers.statuses.iter().map(|(status, count)| {
            let of_calls = match status {
                200 => calls.saturating_sub(failed),
                other => answers.failed_calls.get(other).copied().unwrap_or_default(),
            };
            Self { status: *status, grpc: None, count: count.saturating_sub(of_calls) }
        });
        let of_grpc = answers.grpc.iter().map(|(grpc, count)| Self {
            status: 200,
            grpc: Some(*grpc),
            count: *count,
        });
        of_http.chain(of_grpc).filter(|responses| responses.count > 0).collect()
    }

    fn is_failed(&self) -> bool {
        self.status >= 500 || self.grpc.is_some_and(leno_tap::is_failed_call)
    }
}

/// Appends labels, `key="value",...`, as between the braces of the text format. Labels without a value are left out.
fn write_labels(to: &mut String, labels: &[(&str, &str)]) {
    for (key, value) in labels.iter().filter(|(_, value)| !value.is_empty()) {
        let between = if to.is_empty() { "" } else { "," };
        write!(to, "{between}{key}=\"{}\"", Value(value)).expect("a string takes every write");
    }
}

/// A histogram of milliseconds.
fn histogram_ms(page: &mut Page, (name, help): (&str, &str), groups: &Grouped) {
    page.family(name, "histogram", help);
    for (labels, counts) in groups {
        let durations = &counts.durations;
        if durations.count() == 0 {
            continue;
        }
        for (bound, count) in durations.cumulated() {
            // The bounds are multiples of 10 microseconds.
            let bound = match bound.is_finite() {
                true => ((bound * 1e5).round() / 1e2).to_string(),
                false => "+Inf".to_owned(),
            };
            page.line(format_args!("{name}_bucket{{{labels},le=\"{bound}\"}} {count}"));
        }
        page.line(format_args!("{name}_sum{{{labels}}} {}", durations.sum_s() * 1000.0));
        page.line(format_args!("{name}_count{{{labels}}} {}", durations.count()));
    }
}

/// A counter with one value for each group. Values of 0 are left out.
fn counter(
    page: &mut Page,
    (name, help): (&str, &str),
    groups: &Grouped,
    read: fn(&EdgeCounts) -> u64,
) {
    page.counter(name, help);
    for (labels, counts) in groups {
        let count = read(counts);
        if count > 0 {
            page.line(format_args!("{name}_total{{{labels}}} {count}"));
        }
    }
}

/// The name of the workload to which an instance belongs: `web` for `web-0`, `web-7d9c6b5f4-x2x4k` and `web-x2x4k`.
pub(crate) fn workload_of(instance: &str) -> &str {
    /// The letters and digits with which Kubernetes makes generated names unique.
    const RANDOM: &str = "bcdfghjklmnpqrstvwxz2456789";
    let is_random = |text: &str| text.chars().all(|one| RANDOM.contains(one));
    let Some((rest, end)) = instance.rsplit_once('-') else { return instance };
    if !end.is_empty() && end.bytes().all(|byte| byte.is_ascii_digit()) && end.len() < 5 {
        return rest;
    }
    if end.len() != 5 || !is_random(end) {
        return instance;
    }
    match rest.rsplit_once('-') {
        Some((name, hash)) if (6..=10).contains(&hash.len()) && is_random(hash) => name,
        _ => rest,
    }
}

/// Whether the client's proxy counted this edge.
fn is_outbound(labels: &EdgeLabels) -> bool {
    labels.direction == Direction::Outbound
}

#[cfg(test)]
mod tests;
