//! Reads an issuer that the operator provides, in files that are named like the keys of cert-manager's Secrets.

use std::path::Path;

use super::OpenError;
use super::signer::SignerPem;
use crate::files;

/// The file with the issuer's certificate, followed by those between it and a root.
const CERTIFICATES: &str = "tls.crt";
/// The file with the issuer's key.
const KEY: &str = "tls.key";
/// The file with the roots.
const ROOTS: &str = "ca.crt";

/// Longest file, in bytes. A chain of RSA certificates is shorter.
const MAX_PEM: u64 = 64 * 1024;

/// Reads `tls.crt`, `tls.key` and `ca.crt` in a directory. The files may be symbolic links, as in a mounted Secret.
///
/// # Errors
/// [`OpenError`] if one of them is missing or cannot be read. Their content is not checked.
pub fn read_issuer(directory: &Path) -> Result<SignerPem, OpenError> {
    let read = |name: &str| -> Result<String, OpenError> {
        let path = directory.join(name);
        let bytes = files::read_linked(&path, MAX_PEM)?;
        let bytes = bytes.ok_or_else(|| OpenError::Missing { path: path.clone() })?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(SignerPem { certificates: read(CERTIFICATES)?, key: read(KEY)?, roots: read(ROOTS)? })
}
