//! Finds documents of other meshes. Leno does not read them, so it allows traffic that they forbid.

use leno_resources::{IgnoredDocument, Located};

use super::finding::{Findings, Mistake};

/// The API groups of other meshes, and the mesh that each belongs to.
const GROUPS: [(&str, &str); 10] = [
    ("security.istio.io", "Istio"),
    ("networking.istio.io", "Istio"),
    ("telemetry.istio.io", "Istio"),
    ("extensions.istio.io", "Istio"),
    ("policy.linkerd.io", "Linkerd"),
    ("linkerd.io", "Linkerd"),
    ("consul.hashicorp.com", "Consul"),
    ("kuma.io", "Kuma"),
    ("cilium.io", "Cilium"),
    ("access.smi-spec.io", "SMI"),
];

/// Kinds that restrict which calls or clients are allowed. If Leno ignores such a document, it permits what the
/// document forbids.
const PROTECTING: [&str; 19] = [
    "AuthorizationPolicy",
    "CiliumClusterwideNetworkPolicy",
    "CiliumNetworkPolicy",
    "EgressNetwork",
    "HTTPLocalRateLimitPolicy",
    "MeshPassthrough",
    "MeshTLS",
    "MeshTLSAuthentication",
    "MeshTrafficPermission",
    "NetworkAuthentication",
    "PeerAuthentication",
    "RequestAuthentication",
    "Server",
    "ServerAuthorization",
    "ServiceIntentions",
    "Sidecar",
    "TrafficPermission",
    "TrafficTarget",
    "JWTProvider",
];

pub(super) fn foreign(findings: &mut Findings<'_>) {
    for located in &findings.documents.ignored {
        if let Some(wrong) = of_other_mesh(located) {
            findings.push_ignored(located, wrong);
        }
    }
}

fn of_other_mesh(located: &Located<IgnoredDocument>) -> Option<Mistake> {
    let IgnoredDocument { api_version, kind } = &located.value;
    let (group, _) = api_version.split_once('/')?;
    if (group, kind.as_str()) == ("networking.k8s.io", "NetworkPolicy") {
        let reason = "only the network of a cluster enforces it, so what it forbids is allowed in \
                      leno up";
        let remedy = "write an AuthorizationPolicy of leno.dev for what must be forbidden here too";
        return Some(Mistake::warning("network-policy", reason.to_owned(), remedy.to_owned()));
    }
    let (_, mesh) = GROUPS.into_iter().find(|(known, _)| *known == group)?;
    Some(if PROTECTING.contains(&kind.as_str()) {
        let reason = format!("Leno ignores {kind} of {mesh}, so what it forbids is allowed here");
        let remedy = match kind.as_str() {
            "PeerAuthentication" => "annotate the namespace with leno.dev/mtls: strict",
            "HTTPLocalRateLimitPolicy" => "write a RateLimitPolicy of leno.dev/v1alpha1",
            _ => "rewrite it as a policy of leno.dev, then remove it from these files",
        };
        Mistake::error("policy-of-another-mesh", reason, remedy.to_owned())
    } else {
        let reason = format!("Leno ignores {kind} of {mesh}, so it has no effect here");
        let remedy = "rewrite it as a document of the Gateway API or of leno.dev".to_owned();
        Mistake::warning("document-of-another-mesh", reason, remedy)
    })
}
