//! `BackendTLSPolicy`: how proxies connect to a service with TLS that the mesh does not provide.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::PolicyStatus;
use crate::authorization::{KEY_SET_KEY, MAX_KEY_SET_BYTES};
use crate::traffic::PolicyTarget;

/// The key in a `ConfigMap` under which the authorities' certificates are stored, in PEM (GEP-1897).
pub const AUTHORITIES_KEY: &str = "ca.crt";

/// How proxies use TLS on connections to the services to which the policy is attached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendTlsPolicy {
    /// `apiVersion` as written in the document.
    pub api_version: String,
    /// `kind` as written in the document.
    pub kind: String,
    /// The name, the namespace and the creation time.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What the user declares.
    pub spec: BackendTlsPolicySpec,
    /// What controllers report about the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<PolicyStatus>,
}

/// The declaration in a [`BackendTlsPolicy`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTlsPolicySpec {
    /// Services in the namespace of the policy, or ports of such services.
    pub target_refs: Vec<PolicyTarget>,
    /// How the server's certificate is verified.
    pub validation: TlsValidation,
    /// Options for other implementations. Leno ignores them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<BTreeMap<String, String>>,
}

/// With which authorities a server's certificate is verified: those that the policy names, or well-known ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsValidation {
    /// Objects that hold the authorities' certificates.
    #[serde(rename = "caCertificateRefs", skip_serializing_if = "Option::is_none")]
    pub ca_certificate_refs: Option<Vec<AuthorityRef>>,
    /// `System`: the authorities that the proxy's operating system trusts.
    #[serde(rename = "wellKnownCACertificates", skip_serializing_if = "Option::is_none")]
    pub well_known_ca_certificates: Option<String>,
    /// The server name that the proxy requests. If `subject_alt_names` is not set, the certificate must be for this
    /// name.
    pub hostname: String,
    /// If set, the certificate must be for one of these names instead of `hostname`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject_alt_names: Option<Vec<SubjectAltName>>,
}

/// A `ConfigMap` that holds certificates of authorities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthorityRef {
    /// The API group; `""` is the core group, which is the only valid one.
    #[serde(default)]
    pub group: String,
    /// The kind. Only `ConfigMap` is valid.
    pub kind: String,
    /// The name of the `ConfigMap`, which is in the namespace of the policy.
    pub name: String,
}

/// A name that a certificate is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubjectAltName {
    /// Which of the other fields is set.
    #[serde(rename = "type")]
    pub kind: SubjectAltNameType,
    /// A host name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// A URI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
}

/// The types of names in certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SubjectAltNameType {
    /// A host name.
    Hostname,
    /// A URI.
    #[serde(rename = "URI")]
    Uri,
}

/// Removes everything but certificates of authorities and keys of tokens from a `ConfigMap`.
pub fn only_used(object: &mut ConfigMap) {
    object.binary_data = None;
    if let Some(texts) = &mut object.data {
        texts.retain(|key, text| {
            key == AUTHORITIES_KEY || key == KEY_SET_KEY && text.len() <= MAX_KEY_SET_BYTES
        });
    }
}
