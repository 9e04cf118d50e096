//! How many processes of a mesh's proxies and brokers were replaced because they hung.

use leno_supervise::HungProcesses;

/// Counts the processes of a mesh.
#[derive(Debug, Default)]
pub struct HungProxies {
    /// Node proxies.
    pub nodes: HungProcesses,
    /// Proxies of one instance.
    pub sidecars: HungProcesses,
    /// Brokers of instances in node mode.
    pub brokers: HungProcesses,
}

impl HungProxies {
    /// The text of `/metrics`.
    #[must_use]
    pub fn metrics(&self) -> String {
        let mut page = String::new();
        self.nodes.put(&mut page, "leno_node_processes_hung_total", "Node proxies");
        self.sidecars.put(&mut page, "leno_sidecar_processes_hung_total", "Sidecars");
        self.brokers.put_brokers(&mut page, "leno_broker_processes_hung_total");
        page
    }
}
