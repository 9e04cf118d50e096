//! A certificate authority that issues any certificate, including false ones, and a clock that tests can set.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leno_types::Identity;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SanType, date_time_ymd,
};
use rustls::time_provider::TimeProvider;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};

use crate::{Credentials, TlsConfigs};

pub(super) const WEB: &str = "spiffe://cluster.local/ns/shop/sa/web";
pub(super) const CART: &str = "spiffe://cluster.local/ns/shop/sa/cart";

/// The time of the tests, 2030-06-15. Certificates are valid in 2030.
const NOW_S: u64 = 1_907_712_000;

/// A clock that advances only when a test says so.
#[derive(Clone, Debug)]
pub(super) struct Clock(Arc<AtomicU64>);

impl Clock {
    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(NOW_S)))
    }

    pub(super) fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_secs(), Ordering::Relaxed);
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let since = Duration::from_secs(self.0.load(Ordering::Relaxed));
        Some(UnixTime::since_unix_epoch(since))
    }
}

/// The contents of a certificate.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub(super) uris: Vec<&'static str>,
    pub(super) years: (i32, i32),
    pub(super) purposes: Vec<ExtendedKeyUsagePurpose>,
    pub(super) is_ca: bool,
}

impl Leaf {
    pub(super) fn of(uri: &'static str) -> Self {
        let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        Self { uris: vec![uri], years: (2030, 2031), purposes: both.into(), is_ca: false }
    }
}

/// A root certificate with its key.
pub(super) struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pub(super) root: CertificateDer<'static>,
}

impl Ca {
    pub(super) fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap().der().clone();
        Self { issuer: Issuer::new(params, key), root }
    }

    pub(super) fn issue(
        &self,
        leaf: &Leaf,
    ) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        let uri = |uri: &&str| SanType::URI((*uri).try_into().unwrap());
        params.subject_alt_names = leaf.uris.iter().map(uri).collect();
        params.not_before = date_time_ymd(leaf.years.0, 1, 1);
        params.not_after = date_time_ymd(leaf.years.1, 1, 1);
        params.extended_key_usages.clone_from(&leaf.purposes);
        if leaf.is_ca {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        (vec![certificate.der().clone()], key.into())
    }

    pub(super) fn credentials(&self, uri: &'static str) -> Credentials {
        let (chain, key) = self.issue(&Leaf::of(uri));
        Credentials::from_der(chain, key, vec![self.root.clone()]).unwrap()
    }

    pub(super) fn configs(&self, uri: &'static str, clock: &Clock) -> TlsConfigs {
        TlsConfigs::with_clock(self.credentials(uri), Arc::new(clock.clone())).unwrap()
    }
}

pub(super) fn identity(uri: &str) -> Identity {
    uri.parse().unwrap()
}
