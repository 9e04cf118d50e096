//! The baseline, and the names of the meshes of a cluster, each with one line about it.

/// The baseline of every round.
pub const NONE: &str = "none";

/// The meshes of a cluster.
pub const CLUSTER: [(&str, &str); 5] = [
    (NONE, "no proxy: the baseline, part of every round"),
    ("leno", "Leno, strict mTLS, a proxy in each pod"),
    ("istio", "Istio, a sidecar in each pod (profile minimal)"),
    ("istio-ambient", "Istio, a proxy for layer 4 on each node (profile ambient)"),
    ("linkerd", "Linkerd, a sidecar in each pod"),
];
