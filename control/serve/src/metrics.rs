//! The metrics of the control plane, as Prometheus text.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leno_program::Family;

use crate::delays::Delays;

/// A number that any task may change. A counter only grows; a gauge may also shrink.
#[derive(Debug, Default)]
pub(crate) struct AtomicNumber(AtomicU64);

impl AtomicNumber {
    pub(crate) fn increment(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn decrement(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Raises a gauge by one until it is dropped.
pub(crate) struct GaugeGuard {
    metrics: Arc<Metrics>,
    gauge: fn(&Metrics) -> &AtomicNumber,
}

impl GaugeGuard {
    pub(crate) fn new(metrics: &Arc<Metrics>, gauge: fn(&Metrics) -> &AtomicNumber) -> Self {
        gauge(metrics).increment();
        Self { metrics: Arc::clone(metrics), gauge }
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        (self.gauge)(&self.metrics).decrement();
    }
}

/// All metrics of one control plane.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) connections: AtomicNumber,
    pub(crate) connections_refused: AtomicNumber,
    pub(crate) handshakes_failed: AtomicNumber,
    pub(crate) streams: AtomicNumber,
    pub(crate) streams_refused: AtomicNumber,
    pub(crate) requests: AtomicNumber,
    pub(crate) requests_refused: AtomicNumber,
    pub(crate) responses: AtomicNumber,
    pub(crate) wakeups: AtomicNumber,
    pub(crate) encodings: AtomicNumber,
    pub(crate) sent_bytes: AtomicNumber,
    pub(crate) resources_sent: AtomicNumber,
    pub(crate) resources_too_large: AtomicNumber,
    pub(crate) removals_sent: AtomicNumber,
    pub(crate) nacks: AtomicNumber,
    pub(crate) subscriptions: AtomicNumber,
    pub(crate) subscriptions_refused: AtomicNumber,
    pub(crate) prefetch_cut: AtomicNumber,
    pub(crate) certificates: AtomicNumber,
    pub(crate) certificates_refused: AtomicNumber,
    pub(crate) lease_streams: AtomicNumber,
    pub(crate) lease_streams_refused: AtomicNumber,
    pub(crate) lease_asks: AtomicNumber,
    pub(crate) leased_tokens: AtomicNumber,
    pub(crate) index_version: AtomicNumber,
    pub(crate) cached_resources: AtomicNumber,
    pub(crate) removal: AtomicNumber,
    pub(crate) authorization_not_enforced: AtomicNumber,
    pub(crate) unenforced_workloads: AtomicNumber,
    pub(crate) workload_api_connections: AtomicNumber,
    pub(crate) workload_api_refused: AtomicNumber,
    pub(crate) workload_api_svids: AtomicNumber,
    pub(crate) push_delays: Delays,
}

/// The histogram of [`Metrics::push_delays`].
const PUSH_DELAYS: (&str, &str) = (
    "leno_control_push_delay_seconds",
    "Time from an update of the index to the push that carries it to a stream.",
);

impl Metrics {
    /// Appends all metrics as Prometheus text.
    pub(crate) fn render(&self, text: &mut String) {
        for (name, kind, help, number) in self.rows() {
            let name = format!("leno_control_{name}");
            Family::new(text, (&name, kind, help)).sample(&[], number.get());
        }
        self.push_delays.render(PUSH_DELAYS, text);
    }

    #[rustfmt::skip]
    fn rows(&self) -> [(&'static str, &'static str, &'static str, &AtomicNumber); 32] {
        [
            ("connections", "gauge", "Open connections.", &self.connections),
            ("connections_refused_total", "counter", "Connections closed because the limit on their number was reached.", &self.connections_refused),
            ("handshake_failures_total", "counter", "TLS handshakes that failed or took too long.", &self.handshakes_failed),
            ("streams", "gauge", "Open discovery streams.", &self.streams),
            ("streams_refused_total", "counter", "Discovery streams refused: no certificate, another's name, or too many.", &self.streams_refused),
            ("requests_total", "counter", "Discovery requests received.", &self.requests),
            ("requests_refused_total", "counter", "Requests of streams refused: not whole in time, or too many large ones at once.", &self.requests_refused),
            ("responses_total", "counter", "Discovery responses sent.", &self.responses),
            ("wakeups_total", "counter", "Times that a change woke a discovery stream that is subscribed to it.", &self.wakeups),
            ("encodings_total", "counter", "Times that a resource was encoded.", &self.encodings),
            ("sent_bytes_total", "counter", "Bytes of HTTP/2 written to connections, before TLS.", &self.sent_bytes),
            ("resources_sent_total", "counter", "Resources sent in responses.", &self.resources_sent),
            ("resources_too_large_total", "counter", "Times that a resource was not sent because it is larger than a message may be.", &self.resources_too_large),
            ("removals_sent_total", "counter", "Removed or unknown names sent in responses.", &self.removals_sent),
            ("nacks_total", "counter", "Responses that a proxy could not use.", &self.nacks),
            ("subscriptions", "gauge", "Names that all streams have subscribed to.", &self.subscriptions),
            ("subscriptions_refused_total", "counter", "Names not subscribed to because the limit of a stream, or the share of a namespace, was reached.", &self.subscriptions_refused),
            ("prefetch_cut_total", "counter", "Times that the use of a service was not recorded for prefetching because the limit on their number was reached.", &self.prefetch_cut),
            ("certificates_issued_total", "counter", "Workload certificates signed.", &self.certificates),
            ("certificates_refused_total", "counter", "Certificate requests refused.", &self.certificates_refused),
            ("lease_streams", "gauge", "Open streams of proxies that share rate limits.", &self.lease_streams),
            ("lease_streams_refused_total", "counter", "Streams for leases refused: no certificate, another's name, or too many.", &self.lease_streams_refused),
            ("lease_questions_total", "counter", "Requests for tokens of shared rate limits.", &self.lease_asks),
            ("leased_tokens_total", "counter", "Tokens of shared rate limits that were leased.", &self.leased_tokens),
            ("index_version", "gauge", "Changes applied to the index since the start.", &self.index_version),
            ("cached_resources", "gauge", "Encoded resources in the cache.", &self.cached_resources),
            ("authorization_not_enforced_total", "counter", "Authorization policies sent to a proxy of an earlier release, which does not enforce them.", &self.authorization_not_enforced),
            ("unenforced_workloads", "gauge", "Connected workloads whose proxies are of an earlier release and do not enforce all policies for them.", &self.unenforced_workloads),
            ("workload_api_connections", "gauge", "Open connections of the SPIFFE Workload API.", &self.workload_api_connections),
            ("workload_api_connections_refused_total", "counter", "Connections of the SPIFFE Workload API closed because the limit on their number was reached.", &self.workload_api_refused),
            ("workload_api_svids_total", "counter", "Certificates that the SPIFFE Workload API has issued.", &self.workload_api_svids),
            ("removal", "gauge", "Step of the mesh's removal: 0 none, 1 plaintext is accepted, 2 plaintext is sent, 3 connections are closed.", &self.removal),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_falls_when_its_guard_is_dropped() {
        let metrics = Arc::new(Metrics::default());
        let held = GaugeGuard::new(&metrics, |metrics| &metrics.streams);
        let render = || {
            let mut text = String::new();
            metrics.render(&mut text);
            text
        };
        assert!(render().contains("\nleno_control_streams 1\n"));
        drop(held);
        assert!(render().contains("\nleno_control_streams 0\n"));
    }
}
