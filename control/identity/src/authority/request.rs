//! Certificate requests (PKCS #10): they prove that the sender holds a key, and nothing more.

use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use super::IssueError;
use crate::p256::P256Key;

/// Longest request, in bytes. A request for a P-256 key and a SPIFFE ID has less than 1 KiB.
pub(super) const MAX_REQUEST: usize = 8 * 1024;

/// The public key of a request, after a check that the private key signed it. Names and extensions
/// are ignored.
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
