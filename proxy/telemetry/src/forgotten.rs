//! The counts of edges that were dropped, summed by workload, so that a workload's total never decreases.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::edge::{Edge, EdgeLabels};
use crate::render::workload_of;
use crate::snapshot::EdgeCounts;

/// For how many workloads a worker keeps a sum, which takes 180 KB. If there are more, the sum that was updated least
/// recently is dropped; if requests still go to other instances of that workload, its sum starts from zero.
pub(crate) const MAX_FORGOTTEN: usize = 256;

/// The sums of a worker. The one that was updated last is at the end.
#[derive(Debug, Default)]
pub(crate) struct Forgotten(Vec<(EdgeLabels, EdgeCounts)>);

impl Forgotten {
    /// Adds the counts of an edge.
    pub(crate) fn add(&mut self, edge: &Rc<Edge>) {
        let server = workload_of(&edge.labels().server).into();
        let labels = EdgeLabels { server, ..edge.labels().clone() };
        let known = self.0.iter().position(|(of, _)| *of == labels);
        let mut sum = known.map(|place| self.0.remove(place).1).unwrap_or_default();
        sum.add(&EdgeCounts { live: false, ..EdgeCounts::of(edge) });
        // These sums are only used for the metrics of other meshes, which have neither exemplars, ejections nor native
        // buckets.
        sum.exemplars.clear();
        sum.ejected.clear();
        sum.native = Default::default();
        if self.0.len() >= MAX_FORGOTTEN {
            self.0.remove(0);
        }
        self.0.push((labels, sum));
    }

    /// The sums, by labels whose server is a workload and not an instance.
    pub(crate) fn counts(&self) -> BTreeMap<EdgeLabels, EdgeCounts> {
        self.0.iter().cloned().collect()
    }
}
