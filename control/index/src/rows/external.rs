//! Converts objects about destinations outside of the mesh to rows: DNS names, and TLS origination.

use std::sync::Arc;

use leno_resources::gateway::{AUTHORITIES_KEY, BackendTlsPolicy, SubjectAltNameType};
use leno_resources::{ConfigMap, EndpointSlice};
use leno_types::mesh::SubjectName;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use super::policies::{TargetRow, row};

/// A policy that sets how clients originate TLS to services.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BackendTlsRow {
    /// The creation time of the policy in seconds since 1970, and its name. Of two policies for one service, the
    /// older one takes precedence (GEP-713); of two equally old ones, the first by name.
    pub(crate) precedence: (i64, String),
    pub(crate) namespace: String,
    pub(crate) targets: Vec<TargetRow>,
    pub(crate) hostname: Arc<str>,
    pub(crate) names: Arc<[SubjectName]>,
    /// The `ConfigMap`s with its certificate authorities; if there are none, the machine's authorities are used.
    pub(crate) authorities: Vec<String>,
}

/// Normalises a host name: lower case, and no trailing dot.
pub(crate) fn host(text: &str) -> Arc<str> {
    text.trim_end_matches('.').to_ascii_lowercase().into()
}

/// The host names of the ready endpoints in a slice of type FQDN.
pub(crate) fn names(slice: &EndpointSlice) -> Vec<Arc<str>> {
    if slice.address_type != "FQDN" {
        return Vec::new();
    }
    let ready = slice.endpoints.iter().flatten().filter(|endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions.and_then(|conditions| conditions.ready).unwrap_or(true)
    });
    ready.filter_map(|endpoint| endpoint.addresses.first().map(|name| host(name))).collect()
}

pub(crate) fn backend_tls(policy: &BackendTlsPolicy) -> Option<BackendTlsRow> {
    let namespace = policy.metadata.namespace.as_deref()?;
    let validation = &policy.spec.validation;
    let names = validation.subject_alt_names.iter().flatten().filter_map(|name| match name.kind {
        SubjectAltNameType::Hostname => {
            name.hostname.as_deref().map(|h| SubjectName::Host(host(h)))
        }
        SubjectAltNameType::Uri => name.uri.as_deref().map(|uri| SubjectName::Uri(uri.into())),
    });
    let created = policy.metadata.creation_timestamp.as_ref();
    let age = created.map_or(i64::MAX, |time| time.0.as_second());
    let references = validation.ca_certificate_refs.iter().flatten();
    Some(BackendTlsRow {
        precedence: (age, policy.metadata.name.clone().unwrap_or_default()),
        namespace: namespace.to_owned(),
        targets: policy.spec.target_refs.iter().filter_map(|one| row(one, namespace)).collect(),
        hostname: host(&validation.hostname),
        names: names.collect(),
        authorities: references.map(|reference| reference.name.clone()).collect(),
    })
}

/// The certificates in a `ConfigMap`, in DER, or why it has none.
pub(crate) fn authorities(object: &ConfigMap) -> Result<Vec<Vec<u8>>, &'static str> {
    let pem = object.data.as_ref().and_then(|texts| texts.get(AUTHORITIES_KEY));
    let pem = pem.ok_or("it has no ca.crt")?;
    let certificates = CertificateDer::pem_slice_iter(pem.as_bytes());
    let certificates: Result<Vec<_>, _> =
        certificates.map(|one| one.map(|der| der.to_vec())).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err("its ca.crt is not a certificate in PEM"),
    }
}
