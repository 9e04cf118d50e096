//! The names of all meshes, each with one line about it.

/// The baseline of every round.
pub const NONE: &str = "none";

/// The meshes of the lab of one machine.
pub const LAB: &[(&str, &str)] = &[
    ("none", "no proxy: the baseline, part of every round"),
    ("leno", "Leno, with the capture it would choose itself"),
    ("leno-ebpf", "Leno, captured by kernel programs"),
    ("leno-nftables", "Leno, captured by nftables rules"),
    ("leno-iptables", "Leno, captured by iptables rules"),
    ("leno-access-log", "Leno with an access log, which is thrown away"),
    ("leno-traces-1", "Leno with spans of 1 % of the requests, sent to the server"),
    ("leno-traces-100", "Leno with spans of all requests, as far as its bounds go"),
    ("leno-tap", "Leno while a tap shows as many requests as one may"),
    ("leno-node", "Leno in node mode, all workloads in one process (share: node)"),
    ("leno-shared", "Leno in node mode, a process for each service account (its default share)"),
    (
        "leno-proxy",
        "Leno's proxy beside each workload, configured by a file, without a control plane",
    ),
    ("before", "an earlier build of Leno's proxy in the same place, named with --before"),
    ("envoy", "Istio's proxy beside each workload, mTLS between them"),
    ("haproxy", "HAProxy beside each workload, mTLS between them"),
    ("nginx", "nginx beside each workload, mTLS between them"),
    ("linkerd2-proxy", "Linkerd's proxy beside each workload, a stand-in for its control plane"),
    ("ztunnel", "Istio's proxy for layer 4 beside each workload, HBONE between them"),
];

/// The meshes of a cluster.
pub const CLUSTER: [(&str, &str); 5] = [
    (NONE, "no proxy: the baseline, part of every round"),
    ("leno", "Leno, strict mTLS, a proxy in each pod"),
    ("istio", "Istio, a sidecar in each pod (profile minimal)"),
    ("istio-ambient", "Istio, a proxy for layer 4 on each node (profile ambient)"),
    ("linkerd", "Linkerd, a sidecar in each pod"),
];
