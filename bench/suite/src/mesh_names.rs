//! The names of the baseline and of the meshes of a cluster.

/// The name of the baseline, which every round measures.
pub const NONE: &str = "none";

/// The meshes of a cluster.
pub const CLUSTER: [&str; 7] =
    [NONE, "leno", "leno-node", "leno-shared", "istio", "istio-ambient", "linkerd"];
