//! Checks of `BackendTLSPolicy`.

use std::net::IpAddr;

use leno_types::check_subdomain;

use super::most;
use crate::check::kubernetes::metadata;
use crate::check::{Check, Cursor, Name};
use crate::gateway::{BackendTlsPolicy, SubjectAltName, SubjectAltNameType, TlsValidation};

/// The largest number of targets of one policy, as in the Gateway API.
const MAX_TARGETS: usize = 16;
/// The largest number of references to certificate authorities, as in the Gateway API.
const MAX_REFERENCES: usize = 8;
/// The largest number of alternative names that a certificate may have, as in the Gateway API.
const MAX_NAMES: usize = 5;

pub(in crate::check) fn backend_tls_policy(
    check: &mut Check<'_>,
    at: &Cursor<'_>,
    policy: &BackendTlsPolicy,
) {
    metadata(check, at, &policy.metadata, Name::Subdomain);
    let spec = at.key("spec");
    let targets = spec.key("targetRefs");
    if policy.spec.target_refs.is_empty() {
        check.fail(&targets, "is empty, so the policy has no effect: name at least one target");
    }
    most(check, &targets, policy.spec.target_refs.len(), MAX_TARGETS);
    for (index, target) in policy.spec.target_refs.iter().enumerate() {
        let at = targets.index(index);
        check.name(&at.key("name"), &target.name, Name::Subdomain);
        if !target.group.is_empty() || target.kind != "Service" {
            let (kind, group) = (&target.kind, &target.group);
            let reason =
                format!("{kind} of group {group:?} cannot be a target: use Service of group \"\"");
            check.fail(&at.key("kind"), reason);
        }
        if policy.spec.target_refs[..index].contains(target) {
            check.fail(&at, "is the same as an earlier one");
        }
    }
    validation(check, &spec.key("validation"), &policy.spec.validation);
}

fn validation(check: &mut Check<'_>, at: &Cursor<'_>, wanted: &TlsValidation) {
    let references = wanted.ca_certificate_refs.as_deref().unwrap_or_default();
    match (references.is_empty(), &wanted.well_known_ca_certificates) {
        (true, None) => check.fail(
            at,
            "trusts no authority: set caCertificateRefs, or wellKnownCACertificates: System",
        ),
        (false, Some(_)) => check.fail(
            &at.key("wellKnownCACertificates"),
            "contradicts caCertificateRefs: set one of the two only",
        ),
        _ => {}
    }
    if wanted.well_known_ca_certificates.as_deref().is_some_and(|text| text != "System") {
        check.fail(&at.key("wellKnownCACertificates"), "is not System, the only value");
    }
    let list = at.key("caCertificateRefs");
    most(check, &list, references.len(), MAX_REFERENCES);
    for (index, reference) in references.iter().enumerate() {
        let at = list.index(index);
        check.name(&at.key("name"), &reference.name, Name::Subdomain);
        if !reference.group.is_empty() || reference.kind != "ConfigMap" {
            check.fail(
                &at.key("kind"),
                "is not a ConfigMap of group \"\" (with the authorities in ca.crt)",
            );
        }
    }
    host(check, &at.key("hostname"), &wanted.hostname);
    let names = at.key("subjectAltNames");
    let given = wanted.subject_alt_names.as_deref().unwrap_or_default();
    most(check, &names, given.len(), MAX_NAMES);
    for (index, name) in given.iter().enumerate() {
        subject_name(check, &names.index(index), name);
    }
}

fn subject_name(check: &mut Check<'_>, at: &Cursor<'_>, name: &SubjectAltName) {
    match (name.kind, &name.hostname, &name.uri) {
        (SubjectAltNameType::Hostname, Some(hostname), None) => {
            if hostname.starts_with("*.") {
                check.fail(&at.key("hostname"), "is a pattern: name the hosts one by one");
            } else {
                host(check, &at.key("hostname"), hostname);
            }
        }
        (SubjectAltNameType::Uri, None, Some(uri)) => {
            let has_scheme = uri.split_once(':').is_some_and(|(scheme, rest)| {
                !rest.is_empty() && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            });
            if !has_scheme {
                check.fail(&at.key("uri"), format!("{uri:?} is not a URI"));
            }
        }
        (SubjectAltNameType::Hostname, ..) => check.fail(at, "needs hostname, and no uri"),
        (SubjectAltNameType::Uri, ..) => check.fail(at, "needs uri, and no hostname"),
    }
}

fn host(check: &mut Check<'_>, at: &Cursor<'_>, text: &str) {
    if text.is_empty() {
        check.fail(at, "is missing: set the host name of the server");
    } else if text.parse::<IpAddr>().is_ok() {
        check.fail(at, "is an address: TLS needs a host name (RFC 6066 section 3)");
    } else if let Err(error) = check_subdomain("host name", text) {
        check.fail(at, error.to_string());
    }
}
