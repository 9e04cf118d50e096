//! Certificates in DER, one directly after the other, as the Workload API has them.

use std::time::{Duration, SystemTime};

use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// The most certificates that a chain or a bundle may have. While a CA's root is replaced, a bundle has the old and the
/// new one; this is enough for several replacements at once.
pub(crate) const MAX_CERTIFICATES: usize = 32;

/// Splits certificates in DER that follow each other directly. There must be at least one.
pub(crate) fn split(der: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
    let (mut all, mut rest) = (Vec::new(), der);
    while !rest.is_empty() {
        if all.len() == MAX_CERTIFICATES {
            return Err("more than 32 certificates");
        }
        let (next, _) = X509Certificate::from_der(rest).map_err(|_| "no X.509 in DER")?;
        let (one, _) = rest.split_at(rest.len().saturating_sub(next.len()));
        all.push(one.to_vec());
        rest = next;
    }
    if all.is_empty() { Err("no certificate") } else { Ok(all) }
}

/// When a certificate expires.
pub(crate) fn not_after(der: &[u8]) -> Option<SystemTime> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let seconds = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// Whether `id` is the only URI among a certificate's subject alternative names, as SPIFFE requires.
pub(crate) fn names_alone(der: &[u8], id: &str) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else { return false };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return false };
    let mut uris = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    uris.next() == Some(id) && uris.next().is_none()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    #[test]
    fn certificates_are_taken_apart_and_what_is_none_is_refused() {
        let one = || {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec!["a".to_owned()]).unwrap();
            params.self_signed(&key).unwrap().der().to_vec()
        };
        let (first, second) = (one(), one());
        let both = [first.clone(), second.clone()].concat();
        assert_eq!(split(&both), Ok(vec![first.clone(), second]));
        assert!(not_after(&first).unwrap() > SystemTime::now());
        assert_eq!(split(&[]), Err("no certificate"));
        assert!(split(&first[1..]).is_err());
        assert!(split(&[first.as_slice(), b"x"].concat()).is_err());
        assert!(split(&both[..both.len() - 1]).is_err());
        assert_eq!(split(&first.repeat(MAX_CERTIFICATES)).unwrap().len(), MAX_CERTIFICATES);
        assert!(split(&first.repeat(MAX_CERTIFICATES + 1)).is_err());
    }
}
