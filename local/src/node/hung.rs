//! How many processes of node proxies were replaced because they hung.

use std::sync::atomic::{AtomicU64, Ordering};

/// The series of [`HungProcesses`].
pub const HUNG_PROCESSES: &str = "leno_node_processes_hung_total";

/// Counts the processes of a mesh.
#[derive(Debug, Default)]
pub struct HungProcesses(AtomicU64);

impl HungProcesses {
    pub(super) fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The text of `/metrics`.
    #[must_use]
    pub fn metrics(&self) -> String {
        let mut page = String::new();
        let help = "Node proxies that were replaced because a signal had stopped them, or they reported nothing.";
        let count = self.0.load(Ordering::Relaxed);
        leno_program::Family::counter(&mut page, HUNG_PROCESSES, help).sample(&[], count);
        page
    }
}
