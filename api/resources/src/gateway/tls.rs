//! `BackendTLSPolicy`: how proxies originate TLS to a service.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::PolicyStatus;
use crate::authorization::{KEY_SET_KEY, MAX_KEY_SET_BYTES};
use crate::traffic::PolicyTarget;

/// The key in a `ConfigMap` that holds the authorities' certificates, in PEM (GEP-1897).
pub const AUTHORITIES_KEY: &str = "ca.crt";

/// How proxies originate TLS to the services that the policy is attached to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendTlsPolicy {
    /// `apiVersion` as written.
    pub api_version: String,
    /// `kind` as written.
    pub kind: String,
    /// Name, namespace, creation time.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What the user declares.
    pub spec: BackendTlsPolicySpec,
    /// What controllers report about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<PolicyStatus>,
}

/// The declaration in a [`BackendTlsPolicy`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTlsPolicySpec {
    /// Services of the same namespace, or ports of them.
    pub target_refs: Vec<PolicyTarget>,
    /// How the server's certificate is verified.
    pub validation: TlsValidation,
    /// Options of other implementations; Leno ignores them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<BTreeMap<String, String>>,
}

/// How a server's certificate is verified: by the policy's own authorities, or by well-known ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsValidation {
    /// Objects that hold the authorities' certificates.
    #[serde(rename = "caCertificateRefs", skip_serializing_if = "Option::is_none")]
    pub ca_certificate_refs: Option<Vec<AuthorityRef>>,
    /// `System`: the authorities that the proxy's machine trusts.
    #[serde(rename = "wellKnownCACertificates", skip_serializing_if = "Option::is_none")]
    pub well_known_ca_certificates: Option<String>,
    /// The server name that the proxy requests. Unless there are alternative names, the certificate
    /// must be for it.
    pub hostname: String,
    /// Alternative names: if set, the certificate must be for one of these instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject_alt_names: Option<Vec<SubjectAltName>>,
}

/// An object that holds certificates of authorities: a `ConfigMap`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthorityRef {
    /// The API group: `""`.
    #[serde(default)]
    pub group: String,
    /// The kind: `ConfigMap`.
    pub kind: String,
    /// The name, in the namespace of the policy.
    pub name: String,
}

/// A name in a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubjectAltName {
    /// The type of name.
    #[serde(rename = "type")]
    pub kind: SubjectAltNameType,
    /// A host name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// A URI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
}

/// The types of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SubjectAltNameType {
    /// `hostname`.
    Hostname,
    /// `uri`.
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
