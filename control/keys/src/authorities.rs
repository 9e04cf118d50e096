//! Loads the certificate authorities with which https servers are verified.
//!
//! By default they are the machine's authorities, or those in `SSL_CERT_FILE` and `SSL_CERT_DIR`. If there are
//! none, as in a minimal image, Mozilla's authorities are used, which are compiled in. The authorities in the
//! operator's file are trusted in addition. That file is read again when it changes.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use leno_program::Family;
use rustls::client::Resumption;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::{self, PemObject as _};
use tokio_rustls::TlsConnector;

/// Largest file of the operator, in bytes. A `ConfigMap` cannot be larger.
const MAX_FILE: u64 = 1 << 20;

/// The certificate authorities with which https servers are verified.
pub struct WebAuthorities {
    /// All authorities except those in the operator's file.
    base: RootCertStore,
    file: Option<PathBuf>,
    current: Mutex<Current>,
    counts: Arc<Counts>,
}

/// The TLS client with all authorities, and the content of the operator's file when it was last read.
struct Current {
    text: Vec<u8>,
    tls: Arc<ClientConfig>,
    /// The last error, which is logged only once.
    said: String,
}

/// How many authorities there are, by their origin.
#[derive(Debug, Default)]
struct Counts {
    machine: AtomicUsize,
    built_in: AtomicUsize,
    file: AtomicUsize,
}

/// Why no authorities can be read from a file.
#[derive(Debug, thiserror::Error)]
pub enum AuthoritiesError {
    /// The file cannot be read.
    #[error("{0} cannot be read")]
    Read(PathBuf, #[source] io::Error),
    /// The file is too long.
    #[error("{0} is larger than {MAX_FILE} bytes")]
    Size(PathBuf),
    /// The file is not PEM.
    #[error("{0} is not PEM")]
    Pem(PathBuf, #[source] pem::Error),
    /// The file contains no usable certificate.
    #[error("{0} has no usable certificate of a certificate authority: add certificates in PEM")]
    Unusable(PathBuf),
}

impl WebAuthorities {
    /// Reads the authorities. `file` contains those of the operator, in PEM.
    ///
    /// # Errors
    /// [`AuthoritiesError`] if the file cannot be used.
    pub fn open(file: Option<&Path>) -> Result<Self, AuthoritiesError> {
        let counts = Arc::<Counts>::default();
        let base = base(&counts);
        let tls = config(base.clone());
        let mut current = Current { text: Vec::new(), tls, said: String::new() };
        if let Some(file) = file {
            let text = read(file)?;
            current.tls = with(&base, (file, &text), &counts)?;
            current.text = text;
        }
        Ok(Self { base, file: file.map(Path::to_owned), current: Mutex::new(current), counts })
    }

    /// A TLS client that trusts these authorities, with the present content of the operator's file. If the file
    /// cannot be read, its last content is used.
    pub(crate) fn connector(&self) -> TlsConnector {
        TlsConnector::from(self.config())
    }

    fn config(&self) -> Arc<ClientConfig> {
        // Poisoning is ignored, because the value is only replaced as a whole.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = &self.file else { return Arc::clone(&current.tls) };
        let next = read(file).and_then(|text| match text == current.text {
            true => Ok(None),
            false => with(&self.base, (file, &text), &self.counts).map(|tls| Some((text, tls))),
        });
        match next {
            Ok(None) => current.said.clear(),
            Ok(Some((text, tls))) => {
                tracing::info!(file = %file.display(), "the authorities for HTTPS servers have changed");
                *current = Current { text, tls, said: String::new() };
            }
            Err(error) => {
                let error = error.to_string();
                if error != current.said {
                    tracing::error!(
                        error,
                        "cannot read the authorities for HTTPS servers; the \
                         last ones stay in effect"
                    );
                    current.said = error;
                }
            }
        }
        Arc::clone(&current.tls)
    }

    /// Returns a function that appends the metrics.
    pub fn render(&self) -> impl Fn(&mut String) + Send + Sync + use<> {
        let counts = Arc::clone(&self.counts);
        move |text| {
            let help = "Authorities by which servers of keys and of trust bundles are authenticated, by where they come from.";
            let mut family = Family::gauge(text, "leno_control_web_authorities", help);
            let all = [
                ("machine", &counts.machine),
                ("built-in", &counts.built_in),
                ("file", &counts.file),
            ];
            for (source, count) in all {
                family.sample(&[("source", source)], count.load(Ordering::Relaxed));
            }
        }
    }
}

impl fmt::Debug for WebAuthorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebAuthorities").field("file", &self.file).finish_non_exhaustive()
    }
}

/// The machine's authorities or, if it has none, those that are compiled in.
fn base(counts: &Counts) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "cannot read the authorities of this machine");
    }
    let (added, _unusable) = roots.add_parsable_certificates(found.certs);
    counts.machine.store(added, Ordering::Relaxed);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        counts.built_in.store(roots.len(), Ordering::Relaxed);
    }
    roots
}

fn read(file: &Path) -> Result<Vec<u8>, AuthoritiesError> {
    let failed = |error| AuthoritiesError::Read(file.to_owned(), error);
    let mut text = Vec::new();
    let opened = File::open(file).map_err(failed)?;
    let bytes = opened.take(MAX_FILE + 1).read_to_end(&mut text).map_err(failed)?;
    match bytes as u64 <= MAX_FILE {
        true => Ok(text),
        false => Err(AuthoritiesError::Size(file.to_owned())),
    }
}

/// `base`, with the authorities in a file added. Unusable certificates are left out.
fn with(
    base: &RootCertStore,
    (file, text): (&Path, &[u8]),
    counts: &Counts,
) -> Result<Arc<ClientConfig>, AuthoritiesError> {
    let mut roots = base.clone();
    let (mut added, mut last) = (0, AuthoritiesError::Unusable(file.to_owned()));
    for (index, one) in CertificateDer::pem_slice_iter(text).enumerate() {
        let taken = match one {
            Ok(one) => roots.add(one).map_err(|error| error.to_string()),
            Err(error) => {
                let text = error.to_string();
                last = AuthoritiesError::Pem(file.to_owned(), error);
                Err(text)
            }
        };
        match taken {
            Ok(()) => added += 1,
            Err(error) => {
                let file = file.display();
                tracing::warn!(%file, index, error, "a certificate of an authority is ignored");
            }
        }
    }
    if added == 0 {
        return Err(last);
    }
    counts.file.store(added, Ordering::Relaxed);
    Ok(config(roots))
}

fn config(roots: RootCertStore) -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has suites of TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    // Each fetch must verify the server's present certificate, which a resumed session would not show.
    tls.resumption = Resumption::disabled();
    Arc::new(tls)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pem() -> String {
        let key = rcgen::KeyPair::generate().unwrap();
        rcgen::CertificateParams::default().self_signed(&key).unwrap().pem()
    }

    fn rendered(authorities: &WebAuthorities) -> String {
        let mut text = String::new();
        authorities.render()(&mut text);
        text
    }

    #[test]
    fn the_file_of_the_operator_counts_besides_and_is_read_again() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("ca.crt");
        let refused = |text: Option<&str>| {
            text.iter().for_each(|text| std::fs::write(&file, text).unwrap());
            WebAuthorities::open(Some(&file)).unwrap_err().to_string()
        };
        assert!(refused(None).contains("cannot be read"));
        assert!(refused(Some("")).contains("has no usable certificate"));
        assert!(refused(Some("-----BEGIN CERTIFICATE-----\n???\n")).contains("is not PEM"));
        let long = " ".repeat(usize::try_from(MAX_FILE).unwrap() + 1);
        assert!(refused(Some(&long)).contains("is larger than"));

        std::fs::write(&file, pem()).unwrap();
        let authorities = WebAuthorities::open(Some(&file)).unwrap();
        assert!(rendered(&authorities).contains("{source=\"file\"} 1\n"));
        let first = authorities.config();
        let same = |other: &Arc<ClientConfig>| Arc::ptr_eq(&first, other);
        assert!(same(&authorities.config()), "nothing has changed");
        std::fs::write(&file, "none").unwrap();
        assert!(same(&authorities.config()), "the last good ones stay");
        std::fs::write(&file, pem() + &pem()).unwrap();
        assert!(!same(&authorities.config()));
        assert!(rendered(&authorities).contains("{source=\"file\"} 2\n"));

        // One invalid certificate does not affect the others, and does not prevent the control plane from
        // starting.
        let odd = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let no_base64 = odd.replace("AAAA", "???");
        assert!(refused(Some(odd)).contains("no usable certificate"));
        std::fs::write(&file, [odd, &pem(), &no_base64, &pem()].concat()).unwrap();
        let started = WebAuthorities::open(Some(&file)).unwrap();
        assert!(rendered(&started).contains("{source=\"file\"} 2\n"));
    }
}
