//! Counts the proxies and brokers of a mesh that were replaced because they hung.

use leno_supervise::HungProcesses;

/// Replaced processes of a mesh, by their kind.
#[derive(Debug, Default)]
pub struct HungProxies {
    /// Node proxies.
    pub nodes: HungProcesses,
    /// Sidecars: proxies that serve one instance.
    pub sidecars: HungProcesses,
    /// Brokers of instances in node mode.
    pub brokers: HungProcesses,
}

impl HungProxies {
    /// The counters in the text format of Prometheus.
    #[must_use]
    pub fn metrics(&self) -> String {
        let mut page = String::new();
        self.nodes.put(&mut page, "leno_node_processes_hung_total", "Node proxies");
        self.sidecars.put(&mut page, "leno_sidecar_processes_hung_total", "Sidecars");
        self.brokers.put_brokers(&mut page, "leno_broker_processes_hung_total");
        page
    }
}
