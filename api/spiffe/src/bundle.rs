//! Trust bundles as text: in the format of SPIFFE, which is a set of JSON Web Keys (RFC 7517), or as PEM.

use std::time::Duration;

use data_encoding::{BASE64, BASE64URL_NOPAD};
use leno_wire::MAX_MESSAGE;
use leno_wire::trust::{MAX_FEDERATED, MAX_ROOTS};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde::Deserialize;
use serde_json::{Map, Value};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;

use crate::certificates::{MAX_CERTIFICATES, split};

/// The size of the largest root, in bytes. It is twice the size of a root with an RSA-8192 key.
pub const MAX_ROOT_BYTES: usize = 4 * 1024;
// The bundles of all trust domains together must fit into one message to a proxy.
const _: () = assert!((MAX_FEDERATED + 1) * MAX_ROOTS * MAX_ROOT_BYTES < MAX_MESSAGE);
/// The longest text of a bundle, in bytes.
pub const MAX_BUNDLE_BYTES: usize = 1 << 20;
// Each certificate has three parts in the text: itself and its key's number, both in base64, and the JSON around them.
const _: () =
    assert!(MAX_CERTIFICATES * (2 * 4 * MAX_ROOT_BYTES.div_ceil(3) + 256) < MAX_BUNDLE_BYTES);

/// The use of a key in a bundle: X.509 certificates (SPIFFE Trust Domain and Bundle, section 4.2.2).
const X509: &str = "x509-svid";
/// The algorithm identifier of Ed25519 keys (RFC 8410, section 3).
const ED25519: &str = "1.3.101.112";
/// The curves of keys, by their identifiers (RFC 5480, section 2.1.1.1), and their names in JSON Web Keys.
const CURVES: [(&str, &str); 3] =
    [("1.2.840.10045.3.1.7", "P-256"), ("1.3.132.0.34", "P-384"), ("1.3.132.0.35", "P-521")];
/// The first byte of an uncompressed point (SEC 1, section 2.3.3).
const UNCOMPRESSED: u8 = 4;

/// Why a text is not a trust bundle.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The text begins like JSON, but is not JSON or not a set of keys.
    #[error("it is not JSON with a list of keys")]
    Json(#[source] serde_json::Error),
    /// The text is not PEM either.
    #[error("it is not PEM with certificates")]
    Pem(#[source] rustls_pki_types::pem::Error),
    /// The key at this position is for X.509, but its `x5c` is not exactly one certificate.
    #[error("key {0} (use: x509-svid) is not one certificate in x5c")]
    Key(usize),
    /// There is no root, or there are too many.
    #[error("it has {0} roots: 1 to {MAX_CERTIFICATES} are permitted")]
    Count(usize),
}

/// The key of a root cannot be expressed as a JSON Web Key: it is neither RSA nor Ed25519, P-256, P-384 or P-521.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a root has a key that is neither of RSA nor of Ed25519, P-256, P-384 or P-521")]
pub struct UnwritableRoot;

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Key>,
    spiffe_sequence: Option<u64>,
    spiffe_refresh_hint: Option<u64>,
}

#[derive(Deserialize)]
struct Key {
    #[serde(rename = "use", default)]
    purpose: String,
    #[serde(default)]
    x5c: Vec<String>,
}

/// A trust bundle as trust domains exchange it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    /// The roots in DER.
    pub roots_der: Vec<Vec<u8>>,
    /// A number that increases with each change, if the trust domain counts changes.
    pub sequence: Option<u64>,
    /// How often the bundle should be read again.
    pub refresh_hint: Option<Duration>,
}

impl Bundle {
    /// Reads a bundle in SPIFFE's format, or in PEM. Keys for other uses than X.509 are left out.
    ///
    /// # Errors
    /// [`BundleError`]
    pub fn read(text: &str) -> Result<Self, BundleError> {
        let bundle =
            if text.trim_start().starts_with('{') { of_json(text)? } else { of_pem(text)? };
        match bundle.roots_der.len() {
            1..=MAX_CERTIFICATES => Ok(bundle),
            count => Err(BundleError::Count(count)),
        }
    }

    /// The bundle in SPIFFE's format.
    ///
    /// # Errors
    /// [`UnwritableRoot`]
    pub fn to_json(&self) -> Result<String, UnwritableRoot> {
        let keys: Vec<Value> =
            self.roots_der.iter().map(|root| key(root)).collect::<Result<_, _>>()?;
        let mut set = Map::from_iter([("keys".to_owned(), Value::from(keys))]);
        if let Some(sequence) = self.sequence {
            set.insert("spiffe_sequence".to_owned(), sequence.into());
        }
        if let Some(hint) = self.refresh_hint {
            set.insert("spiffe_refresh_hint".to_owned(), hint.as_secs().into());
        }
        Ok(Value::Object(set).to_string())
    }
}

fn of_json(text: &str) -> Result<Bundle, BundleError> {
    let set: KeySet = serde_json::from_str(text).map_err(BundleError::Json)?;
    let keys = set.keys.iter().enumerate().filter(|(_, key)| key.purpose == X509);
    let roots = keys.map(|(index, key)| key.root().ok_or(BundleError::Key(index)));
    Ok(Bundle {
        roots_der: roots.collect::<Result<_, _>>()?,
        sequence: set.spiffe_sequence,
        refresh_hint: set.spiffe_refresh_hint.map(Duration::from_secs),
    })
}

/// The key of a root as a JSON Web Key (RFC 7517, RFC 8037), with its certificate.
fn key(root: &[u8]) -> Result<Value, UnwritableRoot> {
    let (_, certificate) = X509Certificate::from_der(root).map_err(|_| UnwritableRoot)?;
    let info = certificate.public_key();
    let parameters = match (info.algorithm.algorithm.to_id_string().as_str(), info.parsed()) {
        (ED25519, _) => {
            vec![
                ("kty", "OKP".to_owned()),
                ("crv", "Ed25519".to_owned()),
                ("x", number(&info.subject_public_key.data)),
            ]
        }
        (_, Ok(PublicKey::RSA(key))) => {
            let first = key.modulus.iter().position(|byte| *byte != 0).ok_or(UnwritableRoot)?;
            let (_, modulus) = key.modulus.split_at(first);
            vec![("kty", "RSA".to_owned()), ("n", number(modulus)), ("e", number(key.exponent))]
        }
        (_, Ok(PublicKey::EC(point))) => {
            let curve = info.algorithm.parameters.as_ref().and_then(|any| any.as_oid().ok());
            let curve = curve.map(|oid| oid.to_id_string()).unwrap_or_default();
            let named = CURVES.iter().find(|(oid, _)| *oid == curve);
            let (_, curve) = named.ok_or(UnwritableRoot)?;
            let coordinates = point.data().strip_prefix(&[UNCOMPRESSED]);
            let coordinates = coordinates.ok_or(UnwritableRoot)?;
            let (x, y) = coordinates.split_at(coordinates.len() / 2);
            vec![
                ("kty", "EC".to_owned()),
                ("crv", (*curve).to_owned()),
                ("x", number(x)),
                ("y", number(y)),
            ]
        }
        _ => return Err(UnwritableRoot),
    };
    let parameters = parameters.into_iter();
    let mut key: Map<String, Value> =
        parameters.map(|(name, value)| (name.to_owned(), value.into())).collect();
    key.insert("use".to_owned(), X509.into());
    key.insert("x5c".to_owned(), vec![BASE64.encode(root)].into());
    Ok(Value::Object(key))
}

fn number(bytes: &[u8]) -> String {
    BASE64URL_NOPAD.encode(bytes)
}

impl Key {
    /// The key's only certificate.
    fn root(&self) -> Option<Vec<u8>> {
        let [text] = &*self.x5c else { return None };
        let der = BASE64.decode(text.as_bytes()).ok()?;
        let [root] = <[_; 1]>::try_from(split(&der).ok()?).ok()?;
        Some(root)
    }
}

fn of_pem(text: &str) -> Result<Bundle, BundleError> {
    let all = CertificateDer::pem_slice_iter(text.as_bytes());
    let roots = all.map(|one| Ok(one.map_err(BundleError::Pem)?.to_vec()));
    Ok(Bundle { roots_der: roots.collect::<Result<_, _>>()?, ..Bundle::default() })
}

#[cfg(test)]
mod tests {
    use rcgen::{
        CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519,
        PKCS_RSA_SHA256,
    };

    use super::*;

    fn root() -> rcgen::Certificate {
        CertificateParams::default().self_signed(&KeyPair::generate().unwrap()).unwrap()
    }

    fn roots_of_bundle(text: &str) -> Result<Vec<Vec<u8>>, BundleError> {
        Bundle::read(text).map(|bundle| bundle.roots_der)
    }

    #[test]
    fn what_is_written_is_read_with_each_kind_of_key() {
        let kinds = [
            (&PKCS_ECDSA_P256_SHA256, r#""crv":"P-256""#),
            (&PKCS_ECDSA_P384_SHA384, r#""crv":"P-384""#),
            (&PKCS_ED25519, r#""crv":"Ed25519""#),
            (&PKCS_RSA_SHA256, r#""e":"AQAB""#),
        ];
        let root = |kind| {
            let key = KeyPair::generate_for(kind).unwrap();
            CertificateParams::default().self_signed(&key).unwrap().der().to_vec()
        };
        let written = Bundle {
            roots_der: kinds.iter().map(|(kind, _)| root(*kind)).collect(),
            sequence: Some(7),
            refresh_hint: Some(Duration::from_mins(5)),
        };
        let json = written.to_json().unwrap();
        assert_eq!(Bundle::read(&json).unwrap(), written);
        assert!(kinds.iter().all(|(_, part)| json.contains(part)), "{json}");
        let bare = Bundle { sequence: None, refresh_hint: None, ..written };
        assert_eq!(Bundle::read(&bare.to_json().unwrap()).unwrap(), bare);
        let none = Bundle { roots_der: vec![b"none".to_vec()], ..Bundle::default() };
        assert_eq!(none.to_json(), Err(UnwritableRoot));
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
        assert!(refused("{}").contains("it is not JSON"));
        assert!(refused("").contains("0 roots"));
        assert!(refused(&set(&vec![first; MAX_CERTIFICATES + 1])).contains("33 roots"));
    }
}
