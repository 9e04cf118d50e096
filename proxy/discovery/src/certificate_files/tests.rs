use std::fs;
use std::sync::Arc;

use leno_identity::{Authority, CertificateWithKey};
use leno_types::TrustDomain;
use leno_wire::Bytes;
use leno_wire::trust::TrustBundle;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::timeout;

use super::*;
use crate::settings::{CertificateSource, Settings};

const DAY: Duration = Duration::from_hours(24);
/// Longer than every wait of the code under test. The clock is paused, so this takes no time.
const LIMIT: Duration = Duration::from_secs(60);

fn identity(account: &str) -> Identity {
    Identity::new(TrustDomain::default(), "shop", account).unwrap()
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = data_encoding::BASE64.encode(der);
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

/// A bundle with these roots and with the signing key, as the control plane sends it.
fn bundle(roots_der: Vec<Vec<u8>>, issuer: &Authority) -> Arc<TrustBundle> {
    Arc::new(TrustBundle {
        roots: roots_der.into_iter().map(Bytes::from).collect(),
        issuer: issuer.trust().issuer().to_owned(),
        revoked: Revocations::default(),
        federated: FederatedRoots::new(),
    })
}

/// The content of the certificate file, as a kubelet writes it.
fn credentials(one: &CertificateWithKey) -> String {
    let chain = one.issued.chain_der.iter().map(|der| pem("CERTIFICATE", der));
    pem("PRIVATE KEY", one.key.secret_pkcs8_der()) + &chain.collect::<String>()
}

/// The volume in which a kubelet writes certificates for a pod of the service account `web`.
struct Volume {
    folder: TempDir,
    authority: Authority,
}

impl Volume {
    fn new() -> Self {
        let authority = Authority::ephemeral(&TrustDomain::default()).unwrap();
        let volume = Self { folder: tempfile::tempdir().unwrap(), authority };
        fs::write(&volume.files().roots, volume.authority.trust().roots_pem()).unwrap();
        volume
    }

    fn files(&self) -> CertificateFiles {
        let path = |name: &str| self.folder.path().join(name);
        let (credentials, roots) = (path("credentials.pem"), path("roots.pem"));
        CertificateFiles { credentials, roots, identity: identity("web") }
    }

    fn issue(&self, account: &str) -> CertificateWithKey {
        self.authority.workload_certificate(&identity(account), DAY).unwrap()
    }

    /// Replaces the file atomically, as a kubelet does.
    fn put(&self, text: &str) {
        let next = self.folder.path().join("next");
        fs::write(&next, text).unwrap();
        fs::rename(next, self.files().credentials).unwrap();
    }

    /// Replaces the file with a new certificate, which is returned.
    fn renew(&self) -> Vec<u8> {
        let one = self.issue("web");
        self.put(&credentials(&one));
        one.issued.chain_der[0].clone()
    }

    /// A client that follows the files. It has neither a token nor a control plane.
    fn client(&self) -> IdentityClient {
        let token = self.folder.path().join("token");
        let settings = Settings {
            control: "127.0.0.1:1".to_owned(),
            roots: self.files().roots,
            certificates: CertificateSource::Files(self.files(), token),
            instance: "shop/web-0".parse().unwrap(),
            pod_uid: None,
            trust_domain: TrustDomain::default(),
        };
        IdentityClient::new(Arc::new(settings))
    }

    fn read(&self) -> Result<Certificate, String> {
        read(&self.files(), SystemTime::now(), false).map_err(|error| error.to_string())
    }
}

async fn uses(certificates: &mut watch::Receiver<Option<Arc<Certificate>>>, leaf: &[u8]) {
    let is =
        |one: &Option<Arc<Certificate>>| one.as_ref().is_some_and(|one| one.chain_der[0] == leaf);
    drop(timeout(LIMIT, certificates.wait_for(is)).await.expect("in time").unwrap());
}

#[test]
fn the_certificate_of_the_files_is_the_workloads_own_or_none() {
    let volume = Volume::new();
    assert!(volume.read().unwrap_err().starts_with("cannot read"));
    let one = volume.issue("web");
    volume.put(&credentials(&one));
    let read = volume.read().unwrap();
    assert_eq!(read.chain_der, one.issued.chain_der);
    assert_eq!(read.key_der, one.key.secret_pkcs8_der());
    assert_eq!((read.not_after, &read.issuer), (one.issued.not_after, &one.issued.issuer));
    assert_eq!(read.published_der, volume.authority.trust().bundle_der());

    volume.put(&credentials(&volume.issue("other")));
    assert!(
        volume
            .read()
            .unwrap_err()
            .contains("does not belong to spiffe://cluster.local/ns/shop/sa/web")
    );
    let mixed = CertificateWithKey { issued: one.issued.clone(), key: volume.issue("web").key };
    volume.put(&credentials(&mixed));
    assert!(volume.read().unwrap_err().contains("does not belong to its key"));
    for (text, part) in [
        (String::new(), "has no certificates in PEM"),
        (pem("CERTIFICATE", &one.issued.chain_der[0]), "has no private key"),
        (pem("CERTIFICATE", b"x") + &credentials(&one), "does not begin with an X.509 certificate"),
        (pem("CERTIFICATE", &one.issued.chain_der[0]).repeat(101), "more than a hundred"),
    ] {
        volume.put(&text);
        let error = volume.read().unwrap_err();
        assert!(error.contains(part), "{part}: {error}");
    }

    // A certificate that the kubelet has not renewed in time is no longer used, even before it ends.
    volume.put(&credentials(&one));
    let late = one.issued.not_after - DAY / 10;
    let error = super::read(&volume.files(), late, false).unwrap_err().to_string();
    assert!(error.contains("has not renewed it"), "{error}");
    fs::write(volume.files().roots, "").unwrap();
    assert!(volume.read().unwrap_err().contains("roots.pem has no certificates"));
    // The control plane has sent its own roots, so the file of roots is not needed.
    super::read(&volume.files(), SystemTime::now(), true).unwrap();
    volume.put(&"x".repeat(300 * 1024));
    assert!(volume.read().unwrap_err().contains("cannot read"));
}

#[tokio::test(start_paused = true)]
async fn files_are_used_without_a_control_plane_and_again_when_they_change() {
    let volume = Volume::new();
    let client = volume.client();
    let mut certificates = client.certificates();
    let running = tokio::spawn(client.run());
    // There are neither files nor a token yet.
    tokio::time::sleep(LIMIT).await;
    assert!(certificates.borrow().is_none());
    let first = volume.renew();
    uses(&mut certificates, &first).await;
    let second = volume.renew();
    uses(&mut certificates, &second).await;
    // A broken file changes nothing.
    volume.put("");
    tokio::time::sleep(LIMIT).await;
    uses(&mut certificates, &second).await;
    let third = volume.renew();
    uses(&mut certificates, &third).await;
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn files_of_a_key_that_signs_no_more_wait_for_their_renewal() {
    let volume = Volume::new();
    let first = volume.renew();
    let client = volume.client();
    let mut certificates = client.certificates();
    let running = tokio::spawn(client.clone().run());
    uses(&mut certificates, &first).await;

    let next = Authority::ephemeral(&TrustDomain::default()).unwrap();
    let roots = [&volume.authority, &next].map(|one| one.trust().bundle_der()).concat();
    client.trust(&bundle(roots, &next));
    // The certificate stays in use while one is requested with the token. A renewal by the same outdated key is not
    // used.
    let same_key = volume.renew();
    tokio::time::sleep(LIMIT).await;
    uses(&mut certificates, &first).await;
    assert_ne!(certificates.borrow().as_ref().unwrap().chain_der[0], same_key);
    let of_next = Volume { folder: volume.folder, authority: next };
    let renewed = of_next.renew();
    uses(&mut certificates, &renewed).await;
    let used = certificates.borrow().clone().unwrap();
    assert_eq!(used.roots_der().len(), 2, "the control plane's roots count");
    running.abort();
}

/// Regression: a renewed certificate was ignored while the file of roots beside it was missing, and the one in use
/// expired.
#[tokio::test(start_paused = true)]
async fn a_renewed_certificate_needs_no_roots_once_the_control_plane_has_sent_some() {
    let volume = Volume::new();
    let first = volume.renew();
    let client = volume.client();
    let mut certificates = client.certificates();
    let running = tokio::spawn(client.clone().run());
    uses(&mut certificates, &first).await;
    let roots = volume.authority.trust().bundle_der();
    client.trust(&bundle(roots.clone(), &volume.authority));
    fs::write(volume.files().roots, "").unwrap();
    let second = volume.renew();
    uses(&mut certificates, &second).await;
    assert_eq!(certificates.borrow().as_ref().unwrap().roots_der(), roots);
    running.abort();
}

/// Regression: when a control plane ended and one connection broke, the proxy did not use the certificate until the
/// kubelet renewed it.
#[tokio::test(start_paused = true)]
async fn a_certificate_is_refused_after_two_refusals_and_for_a_while() {
    let volume = Volume::new();
    let client = volume.client();
    let mut refusals = Refusals::default();
    volume.renew();
    let certificate = volume.read().unwrap();
    // A refusal of an earlier certificate.
    client.renew();
    client.forget_refusal().await;
    client.forget_refusal().await;
    let one = timeout(LIMIT, refusals.are_many(&client));
    client.renew();
    assert!(one.await.is_err(), "one refusal counts for nothing");
    let two = async {
        client.renew();
        tokio::time::sleep(POLL).await;
        client.renew();
    };
    tokio::join!(refusals.are_many(&client), two);
    refusals.note(&certificate);
    assert!(matches!(usable(&client, &volume.files(), &refusals), Err(Unusable::Refused(_))));
    tokio::time::advance(REFUSED).await;
    assert_eq!(usable(&client, &volume.files(), &refusals).unwrap(), certificate);
    refusals.note(&certificate);
    volume.renew();
    assert_ne!(usable(&client, &volume.files(), &refusals).unwrap(), certificate);
}
