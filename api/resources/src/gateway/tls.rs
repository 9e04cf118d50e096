//! `BackendTLSPolicy`: how TLS is begun with a service.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::{Deserialize, Serialize};

use super::ParentRef;
use crate::traffic::PolicyTarget;

/// The key of a `ConfigMap` under which certificates of authorities are, in PEM (GEP-1897).
pub const AUTHORITIES_KEY: &str = "ca.crt";

/// How TLS is begun with the services that it is attached to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendTlsPolicy {
    /// `apiVersion` as written.
    pub api_version: String,
    /// `kind` as written.
    pub kind: String,
    /// Name, namespace, age.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What the user wants.
    pub spec: BackendTlsPolicySpec,
    /// What controllers have made of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<PolicyStatus>,
}

/// What a [`BackendTlsPolicy`] wants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTlsPolicySpec {
    /// Services of the same namespace, or ports of them.
    pub target_refs: Vec<PolicyTarget>,
    /// Whom the server must prove to be.
    pub validation: TlsValidation,
    /// What other implementations read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<BTreeMap<String, String>>,
}

/// Whom a server must prove to be: either authorities of one's own, or well-known ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsValidation {
    /// Where certificates of authorities are.
    #[serde(rename = "caCertificateRefs", skip_serializing_if = "Option::is_none")]
    pub ca_certificate_refs: Option<Vec<AuthorityRef>>,
    /// `System`: those that the machine trusts.
    #[serde(rename = "wellKnownCACertificates", skip_serializing_if = "Option::is_none")]
    pub well_known_ca_certificates: Option<String>,
    /// The server that is asked for and, without other names, whom the certificate must be for.
    pub hostname: String,
    /// Whom the certificate must be for instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject_alt_names: Option<Vec<SubjectAltName>>,
}

/// An object with certificates of authorities: a `ConfigMap`.
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
    /// Which of the two.
    #[serde(rename = "type")]
    pub kind: SubjectAltNameType,
    /// A host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// A URI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
}

/// Kinds of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SubjectAltNameType {
    /// `hostname`.
    Hostname,
    /// `uri`.
    #[serde(rename = "URI")]
    Uri,
}

/// What controllers have made of a policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyStatus {
    /// By what it is attached to.
    pub ancestors: Vec<PolicyAncestorStatus>,
}

/// What one controller has made of a policy for one thing that it is attached to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyAncestorStatus {
    /// What it is attached to.
    pub ancestor_ref: ParentRef,
    /// Which controller.
    pub controller_name: String,
    /// Whether it is accepted, and why not.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

/// Of a `ConfigMap` nothing but certificates is of the mesh, and nothing else is kept.
pub fn only_authorities(object: &mut ConfigMap) {
    object.binary_data = None;
    if let Some(texts) = &mut object.data {
        texts.retain(|key, _| key == AUTHORITIES_KEY);
    }
}
