//! The identity that the planes use for mTLS between them.

use std::sync::LazyLock;

use leno_tls::{Credentials, Keyring};
use leno_types::Identity;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};

/// The SPIFFE ID of the workload to which both planes belong.
const NAME: &str = "spiffe://cluster.local/ns/shop/sa/web";

/// A certificate with its root and its key. All runs use the same one, because creating keys takes longer than most
/// runs.
struct Issued {
    root: CertificateDer<'static>,
    leaf: CertificateDer<'static>,
    key: Vec<u8>,
}

static ISSUED: LazyLock<Issued> = LazyLock::new(|| issue().expect("the parameters are valid"));

fn issue() -> Result<Issued, rcgen::Error> {
    let root_key = KeyPair::generate()?;
    let mut root = CertificateParams::default();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root_certificate = root.self_signed(&root_key)?.der().clone();
    let issuer = Issuer::new(root, root_key);
    let key = KeyPair::generate()?;
    let mut leaf = CertificateParams::default();
    leaf.subject_alt_names = vec![SanType::URI(NAME.try_into()?)];
    let leaf = leaf.signed_by(&key, &issuer)?.der().clone();
    Ok(Issued { root: root_certificate, leaf, key: key.serialize_der() })
}

/// The identity that discovery reports for an endpoint with a proxy.
pub(super) fn identity() -> Identity {
    NAME.parse().expect("a valid identity")
}

/// Adds the credentials to `keyring`.
pub(super) fn prove(keyring: &Keyring) {
    let key = PrivatePkcs8KeyDer::from(ISSUED.key.clone());
    let (chain, roots) = (vec![ISSUED.leaf.clone()], vec![ISSUED.root.clone()]);
    let credentials = Credentials::from_der(chain, key.into(), roots).expect("they fit together");
    keyring.rotate(credentials).expect("they fit together");
}
