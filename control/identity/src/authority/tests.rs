//! Tests certificates from a verifier's point of view.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_types::{Identity, TrustDomain};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256,
    PublicKeyData as _, SanType, SignatureAlgorithm, SigningKey as _,
};
use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use super::{
    Authority, AuthorityState, CLOCK_SKEW, DEFAULT_LIFETIME, IssueError, IssuedCertificate,
    MAX_LIFETIME, MAX_ROOTS, MIN_LIFETIME, OpenError, POD_CLOCK_SKEW, PodKey, RotationError,
    SignerPem, TooManyRoots,
};
use crate::files::FileError;

mod issuer_files;

const HOUR: Duration = Duration::from_hours(1);

fn domain() -> TrustDomain {
    TrustDomain::default()
}

fn web() -> Identity {
    "spiffe://cluster.local/ns/shop/sa/web".parse().unwrap()
}

/// A request without names.
fn plain_request() -> Vec<u8> {
    request(&CertificateParams::default(), &KeyPair::generate().unwrap())
}

fn request(params: &CertificateParams, key: &KeyPair) -> Vec<u8> {
    params.serialize_request(key).unwrap().der().to_vec()
}

fn parse(der: &[u8]) -> X509Certificate<'_> {
    X509Certificate::from_der(der).unwrap().1
}

/// Asserts the names, usages and other fields of a workload's certificate, and that it has no others.
fn assert_names_only(issued: &IssuedCertificate, identity: &str, as_client: bool) {
    assert_eq!(issued.chain_der.len(), 1);
    let certificate = parse(&issued.chain_der[0]);
    let names = certificate.subject_alternative_name().unwrap().unwrap();
    assert_eq!(names.value.general_names, [GeneralName::URI(identity)]);
    assert!(names.critical, "there is no subject, so the name must be critical");
    assert_eq!(certificate.subject().iter().count(), 0);

    let basic = certificate.basic_constraints().unwrap().unwrap();
    assert!(!basic.value.ca && basic.critical);
    let usage = certificate.key_usage().unwrap().unwrap();
    assert!(usage.value.digital_signature() && usage.critical);
    assert_eq!(usage.value.flags.count_ones(), 1, "{}", usage.value);
    let extended = certificate.extended_key_usage().unwrap().unwrap().value;
    assert_eq!((extended.server_auth, extended.client_auth), (true, as_client));
    assert!(!extended.any && !extended.code_signing && !extended.ocsp_signing);
    assert!(extended.other.is_empty());
}

/// The results of verifying a certificate as a server's and as a client's, under the authority's
/// roots.
fn verify(
    authority: &Authority,
    issued: &IssuedCertificate,
    now: SystemTime,
) -> [Result<(), rustls::Error>; 2] {
    let mut roots = RootCertStore::empty();
    for root in authority.trust().roots_der() {
        roots.add(CertificateDer::from(root.as_slice())).unwrap();
    }
    let now = UnixTime::since_unix_epoch(now.duration_since(SystemTime::UNIX_EPOCH).unwrap());
    let leaf = CertificateDer::from(issued.chain_der[0].clone());
    let above: Vec<_> = issued.chain_der[1..].iter().map(|der| der.as_slice().into()).collect();
    let provider = Arc::new(default_provider());
    let algorithms = provider.signature_verification_algorithms.all;
    let parsed = ParsedCertificate::try_from(&leaf).unwrap();
    let as_server =
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &above, now, algorithms);
    let as_client = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .unwrap()
        .verify_client_cert(&leaf, &above, now)
        .map(drop);
    [as_server, as_client]
}

#[test]
fn a_certificate_names_the_identity_and_verifies_both_ways() {
    let authority = Authority::ephemeral(&domain()).unwrap();
    let issued = authority.sign(&plain_request(), &web(), DEFAULT_LIFETIME).unwrap();
    assert_names_only(&issued, "spiffe://cluster.local/ns/shop/sa/web", true);
    assert_eq!(verify(&authority, &issued, SystemTime::now()), [Ok(()), Ok(())]);
}

#[test]
fn a_request_gets_its_own_identity_whatever_it_asks_for() {
    let mut params = CertificateParams::new(["api.shop.svc".to_owned()]).unwrap();
    let other = "spiffe://cluster.local/ns/bank/sa/vault".try_into().unwrap();
    params.subject_alt_names.push(SanType::URI(other));
    params.distinguished_name.push(DnType::CommonName, "root");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::CodeSigning, ExtendedKeyUsagePurpose::Any];
    let key = KeyPair::generate().unwrap();

    let authority = Authority::ephemeral(&domain()).unwrap();
    let issued = authority.sign(&request(&params, &key), &web(), HOUR).unwrap();
    assert_names_only(&issued, "spiffe://cluster.local/ns/shop/sa/web", true);
    let certified = parse(&issued.chain_der[0]);
    assert_eq!(certified.public_key().subject_public_key.data.as_ref(), key.public_key_raw());
}

#[test]
fn a_request_that_its_key_did_not_sign_is_refused() {
    let authority = Authority::ephemeral(&domain()).unwrap();
    let key = KeyPair::generate().unwrap();
    let genuine = request(&CertificateParams::default(), &key);
    let point = genuine.windows(65).position(|bytes| bytes == key.public_key_raw()).unwrap();

    // Another key in place of the one that has signed the request.
    let mut swapped = genuine.clone();
    swapped[point..point + 65].copy_from_slice(KeyPair::generate().unwrap().public_key_raw());
    // A point that is not on the curve.
    let mut off_curve = genuine.clone();
    off_curve[point + 64] ^= 1;
    // The last byte is part of the signature.
    let mut resigned = genuine.clone();
    *resigned.last_mut().unwrap() ^= 1;
    for tampered in [swapped, off_curve, resigned] {
        let refused = authority.sign(&tampered, &web(), HOUR).unwrap_err();
        assert!(matches!(refused, IssueError::Signature), "{refused}");
        assert!(refused.is_bad_request());
    }
}

#[test]
fn a_cut_or_changed_request_never_certifies_another_key() {
    let authority = Authority::ephemeral(&domain()).unwrap();
    let key = KeyPair::generate().unwrap();
    let genuine = request(&CertificateParams::default(), &key);
    for place in 0..genuine.len() {
        assert!(authority.sign(&genuine[..place], &web(), HOUR).is_err(), "cut to {place}");
        let mut changed = genuine.clone();
        changed[place] ^= 0x55;
        // The parser accepts a wrong tag outside of the signed part. Then the certificate must be the same
        // nevertheless.
        if let Ok(issued) = authority.sign(&changed, &web(), HOUR) {
            let certified = parse(&issued.chain_der[0]);
            let point = &certified.public_key().subject_public_key.data;
            assert_eq!(point.as_ref(), key.public_key_raw(), "changed at {place}");
        }
    }
    let trailing = [genuine.as_slice(), &[0]].concat();
    assert!(matches!(authority.sign(&trailing, &web(), HOUR), Err(IssueError::Request)));
    let huge = vec![0x30; 9000];
    assert!(matches!(authority.sign(&huge, &web(), HOUR), Err(IssueError::RequestSize(9000))));
}

#[test]
fn keys_of_another_kind_are_refused() {
    let authority = Authority::ephemeral(&domain()).unwrap();
    let others: [&'static SignatureAlgorithm; 3] =
        [&PKCS_ECDSA_P384_SHA384, &PKCS_RSA_SHA256, &rcgen::PKCS_ED25519];
    for algorithm in others {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let asked = request(&CertificateParams::default(), &key);
        let refused = authority.sign(&asked, &web(), HOUR).unwrap_err();
        assert!(matches!(refused, IssueError::Key), "{algorithm:?}: {refused}");
    }
}

#[test]
fn a_certificate_ends_when_it_says() {
    let authority = Authority::ephemeral(&domain()).unwrap();
    let before = SystemTime::now();
    let issued = authority.sign(&plain_request(), &web(), HOUR).unwrap();
    let validity = parse(&issued.chain_der[0]).validity().clone();
    let end = issued.not_after.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    assert_eq!(u64::try_from(validity.not_after.timestamp()).unwrap(), end);
    assert!(issued.not_after > before + HOUR - Duration::from_secs(1));
    let life = validity.not_after.timestamp() - validity.not_before.timestamp();
    assert_eq!(u64::try_from(life).unwrap(), (HOUR + CLOCK_SKEW).as_secs());

    let second = Duration::from_secs(1);
    assert_eq!(verify(&authority, &issued, issued.not_after), [Ok(()), Ok(())]);
    for found in verify(&authority, &issued, issued.not_after + second) {
        assert!(found.unwrap_err().to_string().contains("expired"));
    }
}

#[test]
fn a_short_certificate_begins_no_further_back_than_it_lasts() {
    let authority = Authority::ephemeral(&domain()).unwrap();
    let issued = authority.sign(&plain_request(), &web(), MIN_LIFETIME).unwrap();
    let validity = parse(&issued.chain_der[0]).validity().clone();
    let life = validity.not_after.timestamp() - validity.not_before.timestamp();
    assert_eq!(u64::try_from(life).unwrap(), 2 * MIN_LIFETIME.as_secs());
}

#[test]
fn a_certificate_for_a_pod_fits_into_what_kubernetes_accepts() {
    let authority = Authority::ephemeral(&domain()).unwrap();
    let day = 24 * HOUR;
    let minute = Duration::from_mins(1);
    for (lifetime, longest, expected) in [
        (day, 91 * day, day + POD_CLOCK_SKEW),
        (day, day, day),
        (MAX_LIFETIME, HOUR, HOUR),
        (MIN_LIFETIME, day, HOUR + POD_CLOCK_SKEW),
    ] {
        let now = SystemTime::now();
        let issued = authority
            .sign_for_pod(PodKey::Request(&plain_request()), &web(), (lifetime, longest))
            .unwrap();
        let life = issued.not_after.duration_since(issued.not_before).unwrap();
        let slack = Duration::from_secs(1);
        assert!(life + slack >= expected && life <= expected + slack, "{life:?} {expected:?}");
        assert!(life <= longest && now < issued.not_before + 4 * minute);
        let validity = parse(&issued.chain_der[0]).validity().clone();
        let seconds = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let both = [validity.not_before.timestamp(), validity.not_after.timestamp()];
        let said = [issued.not_before, issued.not_after].map(|time| seconds(time).as_secs());
        assert_eq!(both.map(|time| u64::try_from(time).unwrap()), said);
        assert_eq!(verify(&authority, &issued, now), [Ok(()), Ok(())]);
    }
    let refused = authority
        .sign_for_pod(PodKey::Request(&plain_request()), &web(), (day, HOUR / 2))
        .unwrap_err();
    assert!(matches!(refused, IssueError::AuthorityEnds), "{refused}");
}

/// API servers before Kubernetes 1.37 use this format.
#[test]
fn a_key_that_has_signed_the_uid_of_its_pod_is_proven() {
    let authority = Authority::ephemeral(&domain()).unwrap();
    let day = 24 * HOUR;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let spki = key.subject_public_key_info();
    let proof = key.sign(b"uid-of-web-0").unwrap();
    let sign = |spki: &[u8], pod_uid: &str, proof: &[u8]| {
        authority.sign_for_pod(PodKey::Signed { spki, pod_uid, proof }, &web(), (day, day))
    };
    let issued = sign(&spki, "uid-of-web-0", &proof).unwrap();
    assert_eq!(parse(&issued.chain_der[0]).public_key().raw, spki);
    assert_eq!(verify(&authority, &issued, SystemTime::now()), [Ok(()), Ok(())]);
    let other = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let p384 = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
    let of_p384 = p384.sign(b"uid-of-web-0").unwrap();
    type Expected = fn(&IssueError) -> bool;
    let cases: [(Vec<u8>, &str, &[u8], Expected); 5] = [
        (spki.clone(), "uid-of-web-1", &proof, |error| matches!(error, IssueError::Signature)),
        (other.subject_public_key_info(), "uid-of-web-0", &proof, |error| {
            matches!(error, IssueError::Signature)
        }),
        (p384.subject_public_key_info(), "uid-of-web-0", &of_p384, |error| {
            matches!(error, IssueError::Key)
        }),
        ([&spki[..], &[0]].concat(), "uid-of-web-0", &proof, |error| {
            matches!(error, IssueError::Request)
        }),
        (vec![0; 9000], "uid-of-web-0", &proof, |error| {
            matches!(error, IssueError::RequestSize(9000))
        }),
    ];
    for (spki, uid, proof, expected) in cases {
        let error = sign(&spki, uid, proof).unwrap_err();
        assert!(expected(&error) && error.is_bad_request(), "{error}");
    }
}

/// A revocation covers the certificates whose validity began up to a certain time. Certificates for pods are backdated
/// by less than others (`POD_CLOCK_SKEW`), so both kinds are tested.
#[test]
fn a_revocation_covers_certificates_of_both_kinds_and_none_that_follow() {
    let authority = Authority::ephemeral(&domain()).unwrap();
    let day = 24 * HOUR;
    let begin = |issued: &IssuedCertificate| {
        issued.not_before.duration_since(SystemTime::UNIX_EPOCH).unwrap()
    };
    let both = || {
        let pod =
            authority.sign_for_pod(PodKey::Request(&plain_request()), &web(), (day, day)).unwrap();
        [authority.sign(&plain_request(), &web(), day).unwrap(), pod]
    };
    let before = both();
    let last = authority.newest_begin(day, SystemTime::now());
    assert!(before.iter().all(|issued| begin(issued).as_secs() <= last));
    let state = authority.trust().state().revoke(&web(), last, last).unwrap();
    authority.apply(Path::new("test"), state).unwrap();
    assert!(both().iter().all(|issued| begin(issued).as_secs() > last));
}

#[test]
fn lifetimes_and_trust_domains_out_of_bounds_are_refused() {
    let authority = Authority::ephemeral(&domain()).unwrap();
    let second = Duration::from_secs(1);
    for lifetime in [Duration::ZERO, MIN_LIFETIME - second, MAX_LIFETIME + second, Duration::MAX] {
        let refused = authority.sign(&plain_request(), &web(), lifetime).unwrap_err();
        assert!(matches!(refused, IssueError::Lifetime(_)), "{refused}");
        assert!(!refused.is_bad_request());
    }
    let stranger = "spiffe://elsewhere.test/ns/shop/sa/web".parse().unwrap();
    let refused = authority.sign(&plain_request(), &stranger, HOUR).unwrap_err();
    assert!(matches!(refused, IssueError::TrustDomain { .. }), "{refused}");
}

#[test]
fn nothing_outlives_the_root() {
    let authority = Authority::ephemeral(&domain()).unwrap();
    let key = KeyPair::generate().unwrap();
    let end = authority.trust().not_after();
    let issued = authority.certify(&key, &web(), MAX_LIFETIME, end - HOUR).unwrap();
    assert_eq!(issued.not_after, end);
    let too_late = end - MIN_LIFETIME + Duration::from_secs(1);
    let refused = authority.certify(&key, &web(), HOUR, too_late).unwrap_err();
    assert!(matches!(refused, IssueError::AuthorityEnds), "{refused}");
}

#[test]
fn serial_numbers_differ_for_the_same_key() {
    let authority = Authority::ephemeral(&domain()).unwrap();
    let asked = plain_request();
    let [one, two] = [0, 1].map(|_| authority.sign(&asked, &web(), HOUR).unwrap().chain_der);
    let (one, two) = (parse(&one[0]), parse(&two[0]));
    assert_ne!(one.raw_serial(), two.raw_serial());
    assert_eq!(one.raw_serial().len(), 16);
}

#[test]
fn the_control_plane_has_a_certificate_of_its_own() {
    let authority = Authority::ephemeral(&domain()).unwrap();
    let own = authority.server_certificate(HOUR).unwrap();
    assert_names_only(&own.issued, "spiffe://cluster.local/leno/control-plane", false);
    let [as_server, as_client] = verify(&authority, &own.issued, SystemTime::now());
    assert_eq!(as_server, Ok(()));
    assert!(as_client.is_err(), "it is no client of anything");
    let key = KeyPair::try_from(&own.key).unwrap();
    let certified = parse(&own.issued.chain_der[0]);
    assert_eq!(certified.public_key().subject_public_key.data.as_ref(), key.public_key_raw());
}

#[test]
fn the_root_vouches_for_its_trust_domain_and_signs_no_authority() {
    let authority = Authority::ephemeral(&domain()).unwrap();
    let trust = authority.trust();
    let root = parse(&trust.roots_der()[0]);
    let names = root.subject_alternative_name().unwrap().unwrap().value;
    assert_eq!(names.general_names, [GeneralName::URI("spiffe://cluster.local")]);
    let basic = root.basic_constraints().unwrap().unwrap().value;
    assert_eq!((basic.ca, basic.path_len_constraint), (true, Some(0)));
    let days = (root.validity().not_after.timestamp() - root.validity().not_before.timestamp())
        / (24 * 3600);
    assert_eq!(days, 3652);
}

#[test]
fn two_authorities_do_not_vouch_for_each_other() {
    let [ours, theirs] = [0, 1].map(|_| Authority::ephemeral(&domain()).unwrap());
    let issued = theirs.sign(&plain_request(), &web(), HOUR).unwrap();
    assert!(verify(&ours, &issued, SystemTime::now()).iter().all(Result::is_err));
    assert_ne!(
        parse(&ours.trust().roots_der()[0]).subject(),
        parse(&theirs.trust().roots_der()[0]).subject()
    );
}

#[test]
fn an_authority_comes_back_with_the_same_root() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = temporary.path().join("ca");
    let first = Authority::open(&directory, None, &domain()).unwrap();
    let issued = first.sign(&plain_request(), &web(), HOUR).unwrap();
    let second = Authority::open(&directory, None, &domain()).unwrap();
    assert_eq!(first.trust().roots_pem(), second.trust().roots_pem());
    assert_eq!(first.trust().roots_der(), second.trust().roots_der());
    assert_eq!(first.trust().not_after(), second.trust().not_after());
    assert_eq!(verify(&second, &issued, SystemTime::now()), [Ok(()), Ok(())]);
    let later = second.sign(&plain_request(), &web(), HOUR).unwrap();
    assert_eq!(verify(&first, &later, SystemTime::now()), [Ok(()), Ok(())]);

    let mode = |name: &str| fs::metadata(directory.join(name)).unwrap().mode() & 0o777;
    assert_eq!((mode("."), mode("ca.pem"), mode("ca-key.pem")), (0o700, 0o600, 0o600));
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 2, "nothing else is left behind");
}

#[test]
fn processes_that_open_a_new_directory_at_once_agree() {
    let temporary = tempfile::tempdir().unwrap();
    let open = || {
        Authority::open(temporary.path(), None, &domain()).unwrap().trust().roots_pem().to_owned()
    };
    let roots: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(roots.iter().all(|root| *root == roots[0]));
}

#[test]
fn half_a_pair_is_refused_and_left_alone() {
    for (gone, kept) in [("ca.pem", "ca-key.pem"), ("ca-key.pem", "ca.pem")] {
        let temporary = tempfile::tempdir().unwrap();
        Authority::open(temporary.path(), None, &domain()).unwrap();
        let before = fs::read(temporary.path().join(kept)).unwrap();
        fs::remove_file(temporary.path().join(gone)).unwrap();
        let refused = Authority::open(temporary.path(), None, &domain()).unwrap_err();
        assert!(matches!(refused, OpenError::Half { .. }), "{refused}");
        assert!(refused.to_string().contains(gone) && refused.to_string().contains(kept));
        assert_eq!(fs::read(temporary.path().join(kept)).unwrap(), before);
        assert!(!temporary.path().join(gone).exists());
    }
}

#[test]
fn a_foreign_or_damaged_pair_is_refused() {
    let [ours, theirs] = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let path = |name: &str| ours.path().join(name);
    Authority::open(ours.path(), None, &domain()).unwrap();
    Authority::open(theirs.path(), None, &domain()).unwrap();
    let own = fs::read(path("ca.pem")).unwrap();

    let elsewhere = TrustDomain::new("elsewhere.test").unwrap();
    let refused = Authority::open(ours.path(), None, &elsewhere).unwrap_err();
    assert!(matches!(refused, OpenError::Foreign { .. }), "{refused}");

    let reason = |content: &[u8]| {
        fs::write(path("ca.pem"), content).unwrap();
        Authority::open(ours.path(), None, &domain()).unwrap_err().to_string()
    };
    let foreign = fs::read(theirs.path().join("ca.pem")).unwrap();
    assert!(reason(&foreign).contains("does not belong to the key"));
    assert!(reason(&[own.as_slice(), &foreign].concat()).contains("exactly one certificate"));
    assert!(reason(&own[..own.len() / 2]).contains("exactly one certificate"));
    assert!(reason(&[0x2d; 20_000]).contains("at most 16384 bytes"));

    let key = KeyPair::from_pem(&fs::read_to_string(path("ca-key.pem")).unwrap()).unwrap();
    let leaf = CertificateParams::default().self_signed(&key).unwrap().pem();
    assert!(reason(leaf.as_bytes()).contains("is not a certificate authority's"));

    fs::write(path("ca.pem"), &own).unwrap();
    Authority::open(ours.path(), None, &domain()).unwrap();
    let other = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap().serialize_pem();
    fs::write(path("ca-key.pem"), other).unwrap();
    let refused = Authority::open(ours.path(), None, &domain()).unwrap_err();
    assert!(matches!(refused, OpenError::Key { .. }), "{refused}");
}

#[test]
fn a_root_that_has_ended_is_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let root = Authority::open(temporary.path(), None, &domain()).unwrap();
    let end = root.trust().not_after();
    super::root::Root::open(temporary.path(), &domain(), end - HOUR).unwrap();
    let refused = super::root::Root::open(temporary.path(), &domain(), end).err().unwrap();
    assert!(refused.to_string().contains("has expired"), "{refused}");
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let temporary = tempfile::tempdir().unwrap();
    Authority::open(temporary.path(), None, &domain()).unwrap();
    let key = temporary.path().join("ca-key.pem");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let refused = Authority::open(temporary.path(), None, &domain()).unwrap_err();
    assert!(matches!(refused, OpenError::File(FileError::Exposed { .. })), "{refused}");
}

#[test]
fn a_debug_print_shows_no_key() {
    let authority = Authority::ephemeral(&domain()).unwrap();
    let own = authority.server_certificate(HOUR).unwrap();
    assert!(format!("{authority:?}").len() < 200, "{authority:?}");
    let secret = format!("{:?}", own.key.secret_pkcs8_der());
    assert!(!format!("{own:?}").contains(&secret[1..secret.len() - 1]));
}

#[test]
fn a_state_that_is_kept_elsewhere_is_the_same_authority_again() {
    let pem = Authority::new_root(&domain()).unwrap();
    let kept = std::path::Path::new("Secret leno-system/leno-ca");
    let load = |pem: &SignerPem, domain: &TrustDomain| {
        Authority::from_state(kept, AuthorityState::stable(pem.clone(), 0), domain)
    };
    let (made, again) = (load(&pem, &domain()).unwrap(), load(&pem, &domain()).unwrap());
    assert_eq!(again.trust().roots_der(), made.trust().roots_der());
    assert_eq!(again.webhook_secret(), made.webhook_secret());
    assert!(!format!("{pem:?}").contains("PRIVATE"), "{pem:?}");

    let other = Authority::new_root(&domain()).unwrap();
    let mixed = SignerPem { key: other.key, ..pem.clone() };
    let error = load(&mixed, &domain()).unwrap_err();
    assert!(error.to_string().contains("Secret leno-system/leno-ca has a certificate that does"));
    let broken = SignerPem { key: String::new(), ..pem.clone() };
    let error = load(&broken, &domain()).unwrap_err();
    assert!(error.to_string().contains("no usable private key"), "{error}");
    let foreign = TrustDomain::new("example.com").unwrap();
    let error = load(&pem, &foreign).unwrap_err();
    assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
}

fn roots(count: usize) -> Vec<String> {
    let root = |_| Authority::new_root(&domain()).unwrap().roots;
    (0..count).map(root).collect()
}

fn der(pem: &[String]) -> Vec<Vec<u8>> {
    let read = |one: &String| super::signer::certificates(one).unwrap()[0].to_vec();
    pem.iter().map(read).collect()
}

/// Regression: each list of roots was within the bound, but both together were larger than a proxy accepts, so
/// proxies kept their last bundle for ever.
#[test]
fn the_roots_of_a_rotation_and_of_others_fit_into_one_bundle_or_are_refused() {
    let place = std::path::Path::new("memory");
    let authority = Authority::ephemeral(&domain()).unwrap();
    let most = der(&roots(MAX_ROOTS));
    let (all_but_one, all_but_two) = (most[1..].to_vec(), most[2..].to_vec());
    let refused = |own, others| Err(TooManyRoots { own, others });
    assert_eq!(authority.trust_others(most), refused(1, MAX_ROOTS));
    assert_eq!(authority.trust().others_der().len(), 0);
    assert_eq!(authority.trust_others(all_but_one.clone()), Ok(()));
    assert_eq!(authority.trust().bundle_der().len(), MAX_ROOTS);

    let trust = authority.trust();
    let next = trust.state().begin(Authority::new_root(&domain()).unwrap(), 0).unwrap();
    assert_eq!(trust.check_room(&next), refused(2, MAX_ROOTS - 1));
    let said = RotationError::from(trust.check_room(&next).unwrap_err()).to_string();
    assert!(
        said.contains("at most 32 roots") && said.contains("another authority has 31"),
        "{said}"
    );
    assert_eq!(authority.trust_others(all_but_two), Ok(()));
    assert_eq!(authority.trust().check_room(&next), Ok(()));
    authority.apply(place, next.clone()).unwrap();
    // An abort would trust both roots again, so there must be room for them in the last phase as well.
    authority.apply(place, next.advance(0).advance(0)).unwrap();
    assert_eq!(authority.trust().bundle_der().len(), MAX_ROOTS - 1);
    assert_eq!(authority.trust_others(all_but_one), refused(2, MAX_ROOTS - 1));
}

/// Regression: a bundle of both lists was parsed with the bound of one list, which resulted in no roots at all.
#[test]
fn a_rotation_between_two_long_lists_of_roots_trusts_all_of_them() {
    let long = |signer: SignerPem| {
        let roots = [vec![signer.roots.clone()], roots(9)].concat().concat();
        SignerPem { roots, ..signer }
    };
    let [from, to] = [(), ()].map(|()| long(Authority::new_root(&domain()).unwrap()));
    let state = AuthorityState::stable(from, 0).begin(to, 0).unwrap();
    let place = std::path::Path::new("memory");
    let authority = Authority::from_state(place, state.clone(), &domain()).unwrap();
    assert_eq!(authority.trust().roots_der().len(), 20);
    authority.apply(place, state.advance(0).advance(0)).unwrap();
    assert_eq!(authority.trust().roots_der().len(), 10);
}
