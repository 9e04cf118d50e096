//! Finds policies whose keys for verifying tokens the control plane may not fetch.

use leno_resources::{AuthorizationPolicy, KEYS_FROM_ANNOTATION, Object, Origin, keys_from};

use super::finding::{Findings, Mistake, Severity};
use crate::mesh::MeshModel;

/// The code of a finding about a URL of keys whose origin the control plane's Namespace does not permit. The check
/// needs that Namespace.
pub const KEYS_NOT_PERMITTED: &str = "keys-not-permitted";

pub(super) fn keys(
    mesh: &MeshModel,
    findings: &mut Findings<'_>,
    at: usize,
    policy: &AuthorizationPolicy,
) {
    for (index, issuer) in policy.spec.tokens.iter().enumerate() {
        let Some(origin) = issuer.jwks_url.as_deref().and_then(Origin::of_url) else { continue };
        let permitted = mesh.key_origins();
        if permitted.as_ref().is_some_and(|permitted| permitted.contains(&origin)) {
            continue;
        }
        // If the control plane's Namespace is not among the objects, this is only a warning: the files may be meant for
        // a cluster, where an administrator manages that Namespace.
        let severity = if permitted.is_some() { Severity::Error } else { Severity::Warning };
        let reason = format!(
            "the control plane is not permitted to fetch keys from {origin}, so no token of {:?} \
             is valid",
            issuer.issuer
        );
        let remedy = format!(
            "add {origin} to the annotation {KEYS_FROM_ANNOTATION} of the Namespace {}",
            mesh.index.system_namespace()
        );
        let wrong = Mistake { severity, code: KEYS_NOT_PERMITTED, reason, remedy };
        findings.push(at, &format!("spec.tokens[{index}].jwksUrl"), wrong);
    }
}

impl MeshModel {
    /// The origins that the control plane's Namespace permits; `None` if it is not among the objects.
    fn key_origins(&self) -> Option<Vec<Origin>> {
        let metadata = self.objects.iter().find_map(|object| match object {
            Object::Namespace(one) if self.index.is_of_mesh(&object.key().name) => {
                Some(&one.metadata)
            }
            _ => None,
        })?;
        let value = metadata.annotations.as_ref().and_then(|all| all.get(KEYS_FROM_ANNOTATION));
        let origins = value.into_iter().flat_map(|value| keys_from(value));
        Some(origins.filter_map(|one| one.parse().ok()).collect())
    }
}
