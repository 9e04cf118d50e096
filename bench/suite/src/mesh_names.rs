//! The baseline, and the names of the meshes of a cluster.

/// The baseline of every round.
pub const NONE: &str = "none";

/// The meshes of a cluster.
pub const CLUSTER: [&str; 5] = [NONE, "leno", "istio", "istio-ambient", "linkerd"];
