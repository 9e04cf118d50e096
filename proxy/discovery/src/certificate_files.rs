//! A certificate that a kubelet requests, renews and writes to files (`podCertificate` of a projected volume).
//!
//! ```text
//!   read the files ─┬─ usable ──► in use, until the files change, its last eighth begins, another key signs,
//!        ▲          │             it is revoked, or the control plane refuses it twice ─────────────────────┐
//!        │          └─ not ─────► one that is requested and renewed with the token, until the files are     │
//!        │                        usable ───────────────────────────────────────────────────────────────────┤
//!        └──────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//! The kubelet decides when it renews. If a certificate must be replaced sooner, after a rotation of the root or a
//! revocation, the proxy requests one with its token and uses that until the files have a newer one.

use std::convert::Infallible;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use leno_types::{Identity, Revocations};
use leno_wire::trust::FederatedRoots;
use rcgen::{KeyPair, PublicKeyData as _};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::time::{Instant, sleep};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

use crate::certificate::Certificate;
use crate::identity::IdentityClient;

/// How often the files are read. A kubelet replaces them hours before the certificate expires.
const POLL: Duration = Duration::from_secs(2);
/// The longest file in bytes.
const MAX_FILE: u64 = 256 * 1024;
/// The largest number of certificates in a file.
const MAX_CERTIFICATES: usize = 100;
/// In the last eighth of its life, the certificate of the files is replaced by one that is requested with the token.
/// The kubelet should have renewed it long before.
const LAST_PART: u32 = 8;

/// After this many refusals by the control plane the certificate is not used. A single refusal may only mean that the
/// control plane ended, which breaks its connections.
const REFUSALS: usize = 2;
/// How long a refused certificate is not used.
const REFUSED: Duration = Duration::from_mins(5);

/// The files of a certificate, and the identity that it must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The private key (PKCS #8), then the chain from the certificate up to the root, in PEM.
    pub credentials: PathBuf,
    /// The mesh's roots, in PEM.
    pub roots: PathBuf,
    /// The identity that the certificate must contain.
    pub identity: Identity,
}

/// Why the certificate of the files is not used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("cannot read {0}")]
    File(PathBuf, #[source] io::Error),
    #[error("{0} {1}")]
    Content(PathBuf, &'static str),
    #[error("the certificate in {0} does not belong to {1}")]
    Identity(PathBuf, Identity),
    #[error(
        "the certificate in {0} has expired or expires soon, and the kubelet has not renewed it"
    )]
    Ends(PathBuf),
    #[error("the certificate in {0} is signed by a replaced key, or is revoked")]
    Outdated(PathBuf),
    #[error("the control plane does not accept the certificate in {0}")]
    Refused(PathBuf),
}

/// Keeps a certificate in use: that of the files if it is usable, else one that is requested with the token. Runs for
/// as long as the future is polled.
pub(crate) async fn follow(client: &IdentityClient, files: &CertificateFiles) -> Infallible {
    let mut refusals = Refusals::default();
    loop {
        match usable(client, files, &refusals) {
            Ok(certificate) => {
                let remaining = certificate.not_after.duration_since(SystemTime::now());
                let remaining_s = remaining.unwrap_or_default().as_secs();
                tracing::info!(remaining_s, "certificate taken from the kubelet's files");
                // A refusal of an earlier certificate does not apply to this one.
                client.forget_refusal().await;
                client.take(certificate.clone());
                tokio::select! {
                    () = replaced(client, files, &certificate) => {}
                    () = client.outdated(&certificate) => {}
                    () = refusals.are_many(client) => refusals.note(&certificate),
                }
            }
            Err(reason) => {
                tracing::warn!(
                    reason = crate::chain(&reason),
                    "requesting a certificate by the token"
                );
                tokio::select! {
                    never = client.renew_by_token() => match never {},
                    () = becomes_usable(client, files, &refusals) => {}
                }
            }
        }
    }
}

/// Whether the control plane refuses the files' certificate. A broken connection looks like a refusal, and may only
/// mean that the control plane has ended. So one refusal is ignored; after several, the certificate is not used for a
/// while.
#[derive(Default)]
struct Refusals {
    /// The chain that was refused last, and when.
    last: Option<(Vec<Vec<u8>>, Instant)>,
}

impl Refusals {
    /// Returns when the control plane has twice refused the certificate in use.
    async fn are_many(&self, client: &IdentityClient) {
        for _ in 0..REFUSALS {
            client.refused().await;
        }
    }

    fn note(&mut self, certificate: &Certificate) {
        self.last = Some((certificate.chain_der.clone(), Instant::now()));
    }

    fn hold(&self, certificate: &Certificate) -> bool {
        let last = self.last.as_ref().filter(|(chain, _)| *chain == certificate.chain_der);
        last.is_some_and(|(_, time)| time.elapsed() < REFUSED)
    }
}

/// Returns when the files contain another certificate, or other roots that count because the control plane has sent
/// none, or when the last part of `current`'s life begins.
async fn replaced(client: &IdentityClient, files: &CertificateFiles, current: &Certificate) {
    loop {
        sleep(POLL).await;
        let now = SystemTime::now();
        let leaf = current.chain_der.first().and_then(|leaf| X509Certificate::from_der(leaf).ok());
        if leaf.is_none_or(|(_, leaf)| validity(&leaf).ends_soon(now)) {
            return;
        }
        match read(files, now, client.has_bundle()) {
            Ok(next) if next.chain_der == current.chain_der => {
                // Once the control plane has sent its roots, those of the files are ignored.
                if !client.has_bundle() && next.published_der != current.published_der {
                    return;
                }
            }
            Ok(_) => return,
            // An unusable file changes nothing: the last certificate stays in use until it ends soon.
            Err(_) => {}
        }
    }
}

async fn becomes_usable(client: &IdentityClient, files: &CertificateFiles, refusals: &Refusals) {
    loop {
        sleep(POLL).await;
        if usable(client, files, refusals).is_ok() {
            return;
        }
    }
}

/// The certificate of the files, if it is valid and the control plane accepts it.
fn usable(
    client: &IdentityClient,
    files: &CertificateFiles,
    refusals: &Refusals,
) -> Result<Certificate, Unusable> {
    let certificate = read(files, SystemTime::now(), client.has_bundle())?;
    if client.is_outdated(&certificate) {
        return Err(Unusable::Outdated(files.credentials.clone()));
    }
    if refusals.hold(&certificate) {
        return Err(Unusable::Refused(files.credentials.clone()));
    }
    Ok(certificate)
}

/// Reads the files. The file of roots is only read if the control plane has not sent its own.
fn read(
    files: &CertificateFiles,
    now: SystemTime,
    has_bundle: bool,
) -> Result<Certificate, Unusable> {
    let credentials = text(&files.credentials)?;
    let bad = |reason| Unusable::Content(files.credentials.clone(), reason);
    let chain_der = certificates(&credentials)
        .ok_or_else(|| bad("has no certificates in PEM, or more than a hundred"))?;
    let key = PrivatePkcs8KeyDer::from_pem_slice(&credentials)
        .map_err(|_| bad("has no private key (PKCS #8) in PEM"))?;
    let leaf = chain_der.first().and_then(|leaf| X509Certificate::from_der(leaf).ok());
    let (_, leaf) = leaf.ok_or_else(|| bad("does not begin with an X.509 certificate"))?;
    let own = KeyPair::try_from(&key).map_err(|_| bad("has a private key that cannot be used"))?;
    if leaf.public_key().raw != own.subject_public_key_info() {
        return Err(bad("has a certificate that does not belong to its key"));
    }
    if !names_alone(&leaf, &files.identity) {
        return Err(Unusable::Identity(files.credentials.clone(), files.identity.clone()));
    }
    let validity = validity(&leaf);
    if validity.ends_soon(now) {
        return Err(Unusable::Ends(files.credentials.clone()));
    }
    let issuer = issuer(&leaf)
        .ok_or_else(|| bad("has a certificate that does not name its issuer's key"))?;
    let published_der = if has_bundle { Vec::new() } else { roots(&files.roots)? };
    Ok(Certificate {
        key_der: key.secret_pkcs8_der().to_vec(),
        chain_der,
        published_der,
        lasting_der: Vec::new(),
        not_after: validity.end,
        issuer,
        revoked: Revocations::default(),
        federated: FederatedRoots::new(),
    })
}

fn roots(file: &Path) -> Result<Vec<Vec<u8>>, Unusable> {
    let reason = "has no certificates in PEM, or more than a hundred";
    certificates(&text(file)?).ok_or_else(|| Unusable::Content(file.to_owned(), reason))
}

/// The period in which a certificate is valid.
struct Validity {
    begin: SystemTime,
    end: SystemTime,
}

impl Validity {
    /// Whether the last part of this period has begun.
    fn ends_soon(&self, now: SystemTime) -> bool {
        let life = self.end.duration_since(self.begin).unwrap_or_default();
        self.end.duration_since(now).unwrap_or_default() <= life / LAST_PART
    }
}

fn validity(leaf: &X509Certificate<'_>) -> Validity {
    let [begin, end] = [leaf.validity().not_before, leaf.validity().not_after]
        .map(|time| u64::try_from(time.timestamp()).unwrap_or_default())
        .map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    Validity { begin, end }
}

fn text(path: &Path) -> Result<Vec<u8>, Unusable> {
    let failed = |error| Unusable::File(path.to_owned(), error);
    let mut text = Vec::new();
    let file = fs::File::open(path).map_err(failed)?;
    let length = file.take(MAX_FILE + 1).read_to_end(&mut text).map_err(failed)?;
    if u64::try_from(length).is_ok_and(|length| length <= MAX_FILE) {
        return Ok(text);
    }
    Err(failed(io::Error::other("it is longer than 256 KiB")))
}

fn certificates(pem: &[u8]) -> Option<Vec<Vec<u8>>> {
    let read = CertificateDer::pem_slice_iter(pem).take(MAX_CERTIFICATES + 1);
    let read: Vec<Vec<u8>> =
        read.map(|one| one.map(|der| der.to_vec())).collect::<Result<_, _>>().ok()?;
    (1..=MAX_CERTIFICATES).contains(&read.len()).then_some(read)
}

/// Whether a certificate contains this identity as its only URI.
fn names_alone(leaf: &X509Certificate<'_>, identity: &Identity) -> bool {
    let Ok(Some(names)) = leaf.subject_alternative_name() else { return false };
    let mut uris = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(uri.parse::<Identity>()),
        _ => None,
    });
    uris.next().is_some_and(|one| one.is_ok_and(|one| one == *identity)) && uris.next().is_none()
}

/// The control plane's name for the key that has signed a certificate.
fn issuer(leaf: &X509Certificate<'_>) -> Option<String> {
    leaf.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(id) => {
            let id = id.key_identifier.as_ref()?;
            Some(id.0.iter().map(|byte| format!("{byte:02x}")).collect())
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests;
