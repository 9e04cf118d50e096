//! The names that objects of the bench have in a cluster.

/// The empty namespace that represents the active run of a cluster.
pub(super) const RUN: &str = "leno-bench";
/// The field manager that applies objects.
pub(super) const MANAGER: &str = "leno-bench";
/// The label of all objects that the suite creates, by which an interrupted run is found.
pub(super) const MANAGED: (&str, &str) = ("app.kubernetes.io/managed-by", "leno-bench");
/// The annotation that names the place of the run's records, for users who find its namespace.
pub(super) const RECORDS: &str = "leno.dev/bench-records";
/// The suite's own container in each pod.
pub(super) const CONTAINER: &str = "bench";
/// The name of the port of each service.
pub(super) const PORT_NAME: &str = "bench";
