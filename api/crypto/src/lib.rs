//! Which cryptography the TLS of a process uses: its profile, selected once at the start.
//!
//! ```text
//!  --tls-profile ─► select ─► profile ─┬─► mesh_provider: connections between proxies
//!                     │                └─► metrics, log, `leno identity`
//!                     └─► an error, if `fips` is asked of a program without the module
//! ```
//! With the cargo feature `fips`, aws-lc-rs uses the FIPS module of aws-lc for all cryptography: signatures, digests,
//! random numbers and TLS. The module tests itself when the program starts. The provider of rustls then offers only
//! approved suites and groups, whatever the profile is. This crate does not deal with certificates or peers. Read
//! [`select`] and [`mesh_provider`] first.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider, kx_group};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::server::ResolvesServerCertUsingSni;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedCipherSuite};

/// The key exchanges. The hybrid post-quantum group is first; X25519 is for peers that do not support it.
const KEY_EXCHANGES: &[&dyn SupportedKxGroup] = &[kx_group::X25519MLKEM768, kx_group::X25519];

/// The cipher suites. The first is the fastest on processors with AES instructions, which nearly all of today's
/// processors have.
const CIPHER_SUITES: &[SupportedCipherSuite] = &[
    cipher_suite::TLS13_AES_128_GCM_SHA256,
    cipher_suite::TLS13_AES_256_GCM_SHA384,
    cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
];

/// The key exchanges under the FIPS profile. The hybrid group is first, so that proxies of either profile agree on it.
/// The others are curves of FIPS 186-5, which does not include X25519.
const FIPS_KEY_EXCHANGES: &[&dyn SupportedKxGroup] =
    &[kx_group::X25519MLKEM768, kx_group::SECP256R1, kx_group::SECP384R1];

/// The cipher suites under the FIPS profile. ChaCha20-Poly1305 is not among them, because it is not approved.
const FIPS_CIPHER_SUITES: &[SupportedCipherSuite] =
    &[cipher_suite::TLS13_AES_128_GCM_SHA256, cipher_suite::TLS13_AES_256_GCM_SHA384];

/// The profile of this process. [`TlsProfile::Default`] until one is selected.
static SELECTED: OnceLock<TlsProfile> = OnceLock::new();

/// Which cryptography TLS may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsProfile {
    /// Fast algorithms that are considered safe.
    #[default]
    Default,
    /// Only algorithms that FIPS 140-3 approves, from aws-lc's FIPS module.
    Fips,
}

impl TlsProfile {
    /// The name in options, chart values and labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Fips => "fips",
        }
    }
}

impl fmt::Display for TlsProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is not the name of a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a TLS profile: use default or fips")]
pub struct UnknownProfile(String);

impl FromStr for TlsProfile {
    type Err = UnknownProfile;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Default, Self::Fips]
            .into_iter()
            .find(|profile| profile.as_str() == text)
            .ok_or_else(|| UnknownProfile(text.to_owned()))
    }
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The program has no FIPS module.
    #[error(
        "this program was built without the FIPS module of aws-lc: use programs of `make release FIPS=1`, or \
         --tls-profile default"
    )]
    NoModule,
    /// The program has the module, but a configuration of rustls would use cryptography from elsewhere.
    #[error(
        "TLS {0} would not be of the FIPS module, which is a mistake in this program: use --tls-profile default"
    )]
    NotApproved(&'static str),
    /// rustls rejects the configuration.
    #[error("the FIPS module cannot be used for TLS {0}")]
    Unusable(&'static str, #[source] rustls::Error),
    /// Another profile was selected before.
    #[error("the TLS of this process is already {0}")]
    Selected(TlsProfile),
}

/// Selects the profile of this process. Must be called before the first TLS configuration is created.
///
/// For [`TlsProfile::Fips`] it verifies that this program has the module, and that configurations for clients and
/// servers, between proxies and with others, are approved as a whole.
///
/// # Errors
/// [`ProfileError`]
pub fn select(profile: TlsProfile) -> Result<(), ProfileError> {
    if profile == TlsProfile::Fips {
        verify()?;
    }
    match *SELECTED.get_or_init(|| profile) {
        selected if selected == profile => Ok(()),
        selected => Err(ProfileError::Selected(selected)),
    }
}

/// The profile of this process.
#[must_use]
pub fn profile() -> TlsProfile {
    SELECTED.get().copied().unwrap_or_default()
}

/// The cryptography for TLS 1.3 between proxies, according to the profile of this process.
#[must_use]
pub fn mesh_provider() -> CryptoProvider {
    of(profile())
}

fn of(profile: TlsProfile) -> CryptoProvider {
    let (suites, groups) = match profile {
        TlsProfile::Default => (CIPHER_SUITES, KEY_EXCHANGES),
        TlsProfile::Fips => (FIPS_CIPHER_SUITES, FIPS_KEY_EXCHANGES),
    };
    let mut kx_groups = groups.to_vec();
    if profile == TlsProfile::Fips {
        // Earlier FIPS modules do not contain ML-KEM.
        kx_groups.retain(|group| group.fips());
    }
    CryptoProvider { cipher_suites: suites.to_vec(), kx_groups, ..default_provider() }
}

/// Verifies that all TLS of this process uses the FIPS module.
fn verify() -> Result<(), ProfileError> {
    // `fips()` is true only if the program contains the FIPS module and the module's self-tests have passed.
    if !default_provider().key_provider.fips() {
        return Err(ProfileError::NoModule);
    }
    for (what, provider) in [
        ("between proxies", of(TlsProfile::Fips)),
        // TLS with servers outside of the mesh, and between the control plane and its clients.
        ("with others", default_provider()),
    ] {
        let provider = Arc::new(provider);
        let unusable = |error| ProfileError::Unusable(what, error);
        if !client(&provider).map_err(unusable)?.fips()
            || !server(&provider).map_err(unusable)?.fips()
        {
            return Err(ProfileError::NotApproved(what));
        }
    }
    Ok(())
}

fn client(provider: &Arc<CryptoProvider>) -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::clone(provider));
    let builder = builder.with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

fn server(provider: &Arc<CryptoProvider>) -> Result<ServerConfig, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(Arc::clone(provider));
    let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
    Ok(builder.with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new())))
}

/// Returns an error if the profile is [`TlsProfile::Fips`] and a finished configuration is not approved. `approved` is
/// the result of its `fips()`.
pub fn check(approved: bool) -> Result<(), rustls::Error> {
    if approved || profile() == TlsProfile::Default {
        return Ok(());
    }
    Err(rustls::Error::General("a configuration of TLS is not approved by FIPS".to_owned()))
}

#[cfg(test)]
mod tests {
    use rustls::NamedGroup;

    use super::*;

    #[test]
    fn names_are_read_back_and_others_are_refused_by_name() {
        for profile in [TlsProfile::Default, TlsProfile::Fips] {
            assert_eq!(profile.to_string().parse(), Ok(profile));
        }
        let refused = "FIPS".parse::<TlsProfile>().unwrap_err().to_string();
        assert_eq!(refused, "\"FIPS\" is not a TLS profile: use default or fips");
    }

    /// Tests in one process share its profile, so this test selects none.
    #[test]
    #[cfg(not(feature = "fips"))]
    fn without_the_module_the_error_names_what_to_build() {
        let refused = select(TlsProfile::Fips).unwrap_err().to_string();
        assert!(refused.contains("make release FIPS=1"), "{refused}");
        assert_eq!(profile(), TlsProfile::Default);
    }

    #[test]
    #[cfg(feature = "fips")]
    fn with_the_module_all_configurations_are_approved() {
        verify().unwrap();
        let groups = of(TlsProfile::Fips).kx_groups;
        assert_eq!(groups.first().unwrap().name(), NamedGroup::X25519MLKEM768);
    }

    #[test]
    fn a_client_of_either_profile_has_the_hybrid_and_a_suite_in_common_with_the_other() {
        let names = |profile| {
            let provider = of(profile);
            let groups = provider.kx_groups.iter().map(|group| group.name());
            let suites = provider.cipher_suites.iter().map(SupportedCipherSuite::suite);
            (groups.collect::<Vec<_>>(), suites.collect::<Vec<_>>())
        };
        let ((groups, suites), (_, approved)) =
            (names(TlsProfile::Default), names(TlsProfile::Fips));
        assert_eq!(groups, [NamedGroup::X25519MLKEM768, NamedGroup::X25519]);
        assert_eq!(approved, suites.iter().copied().take(2).collect::<Vec<_>>());
    }
}
