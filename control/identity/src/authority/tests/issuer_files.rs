//! Tests issuers that an operator provides.

use std::fs;
use std::path::Path;

use rcgen::{CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use tempfile::TempDir;

use super::*;
use crate::authority::read_issuer;

/// A certificate authority with its key, in the format that cert-manager uses.
struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Ca {
    fn root(algorithm: &'static SignatureAlgorithm) -> Self {
        let (params, key) = (Self::params("root"), KeyPair::generate_for(algorithm).unwrap());
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    fn below(&self, name: &str, algorithm: &'static SignatureAlgorithm) -> (Self, String) {
        let (params, key) = (Self::params(name), KeyPair::generate_for(algorithm).unwrap());
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        let private = key.serialize_pem();
        (Self { issuer: Issuer::new(params, key), pem }, private)
    }

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.use_authority_key_identifier_extension = true;
        params
    }
}

fn write(directory: &Path, files: [(&str, &str); 3]) {
    for (name, text) in files {
        fs::write(directory.join(name), text).unwrap();
    }
}

/// A directory for an issuer, and one for the authority.
fn directories() -> (TempDir, TempDir) {
    (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap())
}

#[test]
fn an_issuer_signs_and_its_chain_leads_to_its_root_whatever_their_keys_are() {
    let algorithms: [&'static SignatureAlgorithm; 4] = [
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &PKCS_ECDSA_P384_SHA384,
        &PKCS_RSA_SHA256,
        &rcgen::PKCS_ED25519,
    ];
    for algorithm in algorithms {
        let (given, own) = directories();
        let root = Ca::root(algorithm);
        let (middle, _) = root.below("middle", algorithm);
        let (issuer, key) = middle.below("issuer", algorithm);
        let chain = [issuer.pem.as_str(), &middle.pem].concat();
        write(given.path(), [("tls.crt", &chain), ("tls.key", &key), ("ca.crt", &root.pem)]);

        let authority = Authority::open(own.path(), Some(given.path()), &domain()).unwrap();
        let issued = authority.sign(&plain_request(), &web(), HOUR).unwrap();
        assert_eq!(issued.chain_der.len(), 3, "the root is left out");
        assert_eq!(verify(&authority, &issued, SystemTime::now()), [Ok(()), Ok(())]);
        assert!(!authority.trust().state().to.is_own_root());
        assert_eq!(authority.trust().chain().len(), 3);
        // After a restart the authority has the same issuer, although the issuer's files are gone.
        fs::remove_file(given.path().join("tls.key")).unwrap();
        let again = Authority::open(own.path(), Some(given.path()), &domain()).unwrap();
        assert_eq!(verify(&again, &issued, SystemTime::now()), [Ok(()), Ok(())]);
        assert_eq!(again.trust().issuer(), issued.issuer);
    }
}

#[test]
fn what_verifiers_would_refuse_is_refused_here() {
    let p256 = &rcgen::PKCS_ECDSA_P256_SHA256;
    let (root, other) = (Ca::root(p256), Ca::root(p256));
    let (issuer, key) = root.below("issuer", p256);
    let (_, strange) = root.below("issuer", p256);
    let leaf = KeyPair::generate().unwrap();
    let leaf_pem = CertificateParams::default().signed_by(&leaf, &root.issuer).unwrap().pem();
    let reason = |files: [(&str, &str); 3]| {
        let (given, own) = directories();
        write(given.path(), files);
        let refused = Authority::open(own.path(), Some(given.path()), &domain()).unwrap_err();
        refused.to_string()
    };
    let pem = issuer.pem.as_str();
    let good = [("tls.crt", pem), ("tls.key", key.as_str()), ("ca.crt", root.pem.as_str())];
    let with = |nth: usize, text| {
        let mut files = good;
        files[nth].1 = text;
        reason(files)
    };
    assert!(with(0, "nothing").contains("no chain of 1 to 16 certificates"));
    assert!(with(0, &leaf_pem).contains("is not a certificate authority's"));
    assert!(with(1, "nothing").contains("no usable private key"));
    assert!(with(1, &strange).contains("does not belong to its key"));
    assert!(with(2, "").contains("no list of 1 to 16 roots"));
    assert!(with(2, &other.pem).contains("its roots do not verify"));

    let (given, own) = directories();
    fs::write(given.path().join("tls.crt"), pem).unwrap();
    let missing = Authority::open(own.path(), Some(given.path()), &domain()).unwrap_err();
    assert!(missing.to_string().contains("tls.key is missing"), "{missing}");
    assert!(fs::read_dir(own.path()).unwrap().next().is_none(), "nothing is stored");
}

#[test]
fn a_mesh_with_a_root_of_its_own_takes_an_issuer_by_a_rotation() {
    let (given, own) = directories();
    let before = Authority::open(own.path(), None, &domain()).unwrap();
    let root = Ca::root(&PKCS_ECDSA_P384_SHA384);
    let (issuer, key) = root.below("issuer", &PKCS_ECDSA_P384_SHA384);
    write(given.path(), [("tls.crt", &issuer.pem), ("tls.key", &key), ("ca.crt", &root.pem)]);

    let authority = Authority::open(own.path(), Some(given.path()), &domain()).unwrap();
    assert_eq!(
        authority.trust().roots_der(),
        before.trust().roots_der(),
        "it is not replaced at once"
    );
    let issuer = read_issuer(given.path()).unwrap();
    let mut state = authority.trust().state().with_issuer(&issuer, 1).unwrap();
    let mut seen = Vec::new();
    while state.phase != crate::RotationPhase::Stable {
        authority.apply(own.path(), state.clone()).unwrap();
        let issued = authority.sign(&plain_request(), &web(), HOUR).unwrap();
        assert_eq!(verify(&authority, &issued, SystemTime::now()), [Ok(()), Ok(())]);
        seen.push((authority.trust().roots_der().len(), issued.chain_der.len()));
        state = state.advance(2);
    }
    assert_eq!(seen, [(2, 1), (2, 2), (1, 2)]);
}

#[test]
fn a_rotation_is_continued_by_the_next_process_and_leaves_no_key_behind() {
    let (_, own) = directories();
    let first = Authority::open(own.path(), None, &domain()).unwrap();
    let store = crate::AuthorityDirectory::new(own.path());
    let next = Authority::new_root(&domain()).unwrap();
    let state = first.trust().state().begin(next, 1).unwrap();
    store.save(&state).unwrap();
    assert!(!own.path().join("ca-key.pem").exists(), "the state has it");
    let second = Authority::open(own.path(), None, &domain()).unwrap();
    assert_eq!(second.trust().state(), &state);
    let issued = second.sign(&plain_request(), &web(), HOUR).unwrap();
    assert_eq!(verify(&first, &issued, SystemTime::now()), [Ok(()), Ok(())]);
    assert_eq!(second.webhook_secret(), first.webhook_secret());

    let asked = store.ask(crate::OperatorVerb::Abort).unwrap();
    assert_eq!(store.request().unwrap(), Some(asked));
    store.obeyed().unwrap();
    assert_eq!(store.request().unwrap(), None);
}
