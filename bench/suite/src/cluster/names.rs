//! The names that objects of the bench have in a cluster.

/// The empty namespace that exists while a run is active in the cluster.
pub(super) const RUN: &str = "leno-bench";
/// The field manager with which objects are applied.
pub(super) const MANAGER: &str = "leno-bench";
/// The label of all objects that the suite creates, by which the objects of an interrupted run are found.
pub(super) const MANAGED: (&str, &str) = ("app.kubernetes.io/managed-by", "leno-bench");
/// The annotation that says where the run's records are, for users who find its namespace.
pub(super) const RECORDS: &str = "leno.dev/bench-records";
/// The suite's own container in each pod.
pub(super) const CONTAINER: &str = "bench";
/// The name of the port of each service.
pub(super) const PORT_NAME: &str = "bench";
