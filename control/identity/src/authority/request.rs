//! Parses certificate requests. A request only proves that its sender has a key.

use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::IssueError;
use crate::p256::P256Key;

/// Longest request, in bytes. A request for a P-256 key and a SPIFFE ID has less than 1 KiB.
pub(super) const MAX_REQUEST: usize = 8 * 1024;

/// The key in Kubernetes' `PodCertificateRequest`, with the proof that the sender has the private key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodKey<'a> {
    /// A PKCS #10 request, in DER.
    Request(&'a [u8]),
    /// The format of API servers before Kubernetes 1.37.
    Signed {
        /// The public key, a `SubjectPublicKeyInfo` in DER.
        spki: &'a [u8],
        /// The UID of the pod.
        pod_uid: &'a str,
        /// The UID, signed with the private key.
        proof: &'a [u8],
    },
}

impl PodKey<'_> {
    /// Verifies the proof, and returns the key.
    pub(super) fn proven(self) -> Result<P256Key, IssueError> {
        let (spki, pod_uid, proof) = match self {
            Self::Request(der) => return proven_key(der),
            Self::Signed { spki, pod_uid, proof } => (spki, pod_uid, proof),
        };
        if spki.len() > MAX_REQUEST {
            return Err(IssueError::RequestSize(spki.len()));
        }
        let Ok(([], spki)) = SubjectPublicKeyInfo::from_der(spki) else {
            return Err(IssueError::Request);
        };
        let key = P256Key::from_spki(&spki).ok_or(IssueError::Key)?;
        if key.has_signed(pod_uid.as_bytes(), proof) { Ok(key) } else { Err(IssueError::Signature) }
    }
}

/// The public key of a request, after verifying that the request is signed with its private key. Names and
/// extensions are ignored.
pub(super) fn proven_key(der: &[u8]) -> Result<P256Key, IssueError> {
    if der.len() > MAX_REQUEST {
        return Err(IssueError::RequestSize(der.len()));
    }
    let Ok(([], request)) = X509CertificationRequest::from_der(der) else {
        return Err(IssueError::Request);
    };
    let body = &request.certification_request_info;
    let key = P256Key::from_spki(&body.subject_pki).ok_or(IssueError::Key)?;
    if key.verify(&request.signature_algorithm, body.raw, &request.signature_value) {
        Ok(key)
    } else {
        Err(IssueError::Signature)
    }
}
