//! Trust bundles as text: in the format of SPIFFE, which is a set of JSON Web Keys, or as PEM.

use data_encoding::BASE64;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde::Deserialize;

use crate::certificates::{MAX_CERTIFICATES, split};

/// What a key of a bundle is for: X.509 certificates (SPIFFE Trust Domain and Bundle, section 4.2.2).
const X509: &str = "x509-svid";

/// Why a text is no trust bundle.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// It begins as JSON and is none, or no set of keys.
    #[error("it is no JSON with a list of keys")]
    Json(#[source] serde_json::Error),
    /// It is not PEM either.
    #[error("it is no PEM with certificates")]
    Pem(#[source] rustls_pki_types::pem::Error),
    /// A key for X.509 has not exactly one certificate.
    #[error("key {0} (use: x509-svid) is not one certificate in x5c")]
    Key(usize),
    /// There is no root, or there are too many.
    #[error("it has {0} roots: 1 to {MAX_CERTIFICATES} are read")]
    Count(usize),
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Key>,
}

#[derive(Deserialize)]
struct Key {
    #[serde(rename = "use", default)]
    purpose: String,
    #[serde(default)]
    x5c: Vec<String>,
}

/// The roots of a trust bundle, in DER. Keys for anything but X.509 are left out.
///
/// # Errors
/// [`BundleError`]
pub fn roots_of_bundle(text: &str) -> Result<Vec<Vec<u8>>, BundleError> {
    let roots = if text.trim_start().starts_with('{') { of_json(text)? } else { of_pem(text)? };
    match roots.len() {
        1..=MAX_CERTIFICATES => Ok(roots),
        count => Err(BundleError::Count(count)),
    }
}

fn of_json(text: &str) -> Result<Vec<Vec<u8>>, BundleError> {
    let set: KeySet = serde_json::from_str(text).map_err(BundleError::Json)?;
    let keys = set.keys.iter().enumerate().filter(|(_, key)| key.purpose == X509);
    keys.map(|(index, key)| key.root().ok_or(BundleError::Key(index))).collect()
}

impl Key {
    /// Its only certificate.
    fn root(&self) -> Option<Vec<u8>> {
        let [text] = &*self.x5c else { return None };
        let der = BASE64.decode(text.as_bytes()).ok()?;
        let [root] = <[_; 1]>::try_from(split(&der).ok()?).ok()?;
        Some(root)
    }
}

fn of_pem(text: &str) -> Result<Vec<Vec<u8>>, BundleError> {
    let all = CertificateDer::pem_slice_iter(text.as_bytes());
    all.map(|one| Ok(one.map_err(BundleError::Pem)?.to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn root() -> rcgen::Certificate {
        CertificateParams::default().self_signed(&KeyPair::generate().unwrap()).unwrap()
    }

    #[test]
    fn a_bundle_is_json_of_spiffe_or_pem() {
        let (one, two) = (root(), root());
        let ders = vec![one.der().to_vec(), two.der().to_vec()];
        assert_eq!(roots_of_bundle(&(one.pem() + &two.pem())).unwrap(), ders);
        let key = |purpose: &str, x5c: &str| format!(r#"{{"use":"{purpose}","x5c":[{x5c}]}}"#);
        let quoted = |root: &rcgen::Certificate| format!("{:?}", BASE64.encode(root.der()));
        let set =
            |keys: &[String]| format!(r#"{{"spiffe_sequence":1,"keys":[{}]}}"#, keys.join(","));
        let (first, second) = (key(X509, &quoted(&one)), key(X509, &quoted(&two)));
        let token = key("jwt-svid", "");
        assert_eq!(roots_of_bundle(&set(&[first.clone(), token.clone(), second])).unwrap(), ders);
        let refused = |text: &str| roots_of_bundle(text).unwrap_err().to_string();
        assert!(refused(&set(&[token])).contains("0 roots"));
        assert!(refused(&set(&[first.clone(), key(X509, "")])).contains("key 1"));
        let both = format!("{},{}", quoted(&one), quoted(&two));
        assert!(refused(&set(&[key(X509, &both)])).contains("key 0"));
        assert!(refused(&set(&[key(X509, "\"AAAA\"")])).contains("key 0"));
        assert!(refused("{}").contains("no JSON"));
        assert!(refused("").contains("0 roots"));
        assert!(refused(&set(&vec![first; MAX_CERTIFICATES + 1])).contains("33 roots"));
    }
}
