//! The parts of a measurement that are the same in the lab of one machine and in a cluster: its options, the load, the
//! figures with their marks, and the records.

pub(crate) mod figures;
pub(crate) mod flood;
pub mod options;
pub(crate) mod plans;
pub(crate) mod probe;
pub(crate) mod records;
pub(crate) mod search;
pub(crate) mod usage;
