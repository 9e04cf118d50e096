//! The bundle endpoint, from which other trust domains fetch the trust bundle of this one (SPIFFE Federation, section
//! 5).
//!
//! ```text
//!  GET / ──► TLS, by the control plane's SPIFFE ID or by a certificate of the operator ──► the bundle of the Authority
//! ```
//! Any client may fetch the bundle, because it is public.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Context as _;
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use leno_identity::Authority;
use leno_program::content::{JSON, TEXT};
use leno_program::{AdminResponse, Family, Shares, listen, refuse_method, respond, serve_stream};
use leno_serve::ServerCredentials;
use leno_spiffe::Bundle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

use crate::admin::Render;
use crate::config::BundleEndpoint;

/// Most connections in total, and from one address. A partner fetches now and then, on one connection.
const MAX_CONNECTIONS: usize = 64;
const MAX_OF_ADDRESS: usize = 8;
/// Longest wait for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the certificate files are checked for changes.
const LOOK: Duration = Duration::from_secs(5);

/// What all connections share to answer requests.
struct ServedBundle {
    authority: Arc<Authority>,
    /// How often other trust domains should fetch the bundle.
    refresh: Duration,
    requests: AtomicU64,
}

/// Serves the bundle until the process ends. Returns a function that appends the metrics.
pub(crate) async fn serve(
    endpoint: &BundleEndpoint,
    authority: &Arc<Authority>,
    lifetime: Duration,
) -> anyhow::Result<Render> {
    let acceptor = TlsAcceptor::from(Arc::new(tls(endpoint, authority, lifetime)?));
    let address = endpoint.address;
    let listener = listen(address).await;
    let listener =
        listener.with_context(|| format!("cannot listen on {address} for the bundle endpoint"))?;
    tracing::info!(address = %listener.local_addr()?, "serving the trust bundle");
    let (authority, refresh) = (Arc::clone(authority), endpoint.refresh);
    let served = Arc::new(ServedBundle { authority, refresh, requests: AtomicU64::default() });
    let of_metrics = Arc::clone(&served);
    let shares = Shares::new(MAX_CONNECTIONS, MAX_OF_ADDRESS);
    tokio::spawn(async move {
        loop {
            let (stream, client, share) = shares.accept(&listener).await;
            let (acceptor, served) = (acceptor.clone(), Arc::clone(&served));
            tokio::spawn(share.hold(async move {
                match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => {
                        let answer = |request| std::future::ready(served.answer(&request));
                        serve_stream(stream, client, answer).await;
                    }
                    Ok(Err(error)) => {
                        tracing::debug!(%client, %error, "no TLS connection for the trust bundle")
                    }
                    Err(_late) => {
                        tracing::debug!(%client, "no TLS handshake in time for the trust bundle")
                    }
                }
            }));
        }
    });
    Ok(Box::new(move |text| render(of_metrics.requests.load(Ordering::Relaxed), text)))
}

fn tls(
    endpoint: &BundleEndpoint,
    authority: &Arc<Authority>,
    lifetime: Duration,
) -> anyhow::Result<ServerConfig> {
    if let Some(directory) = &endpoint.certificate {
        let files = Arc::new(CertificateFiles::open(directory)?);
        tokio::spawn(Arc::clone(&files).follow());
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(files);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        return Ok(config);
    }
    let credentials = ServerCredentials::new(Arc::clone(authority), lifetime);
    let credentials = Arc::new(credentials.context("the certificate of the bundle endpoint")?);
    let config = credentials.open_config()?;
    tokio::spawn(async move { credentials.keep_fresh().await });
    Ok(config)
}

impl ServedBundle {
    fn answer(&self, request: &Request<Incoming>) -> AdminResponse {
        if let Some(refused) = refuse_method(request.method(), &Method::GET) {
            return refused;
        }
        if request.uri().path() != "/" {
            return respond(StatusCode::NOT_FOUND, TEXT, "the trust bundle is at /\n");
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        // The bundle has no sequence number, because replicas share no counter that increases with each change of the
        // bundle. Without a number, clients treat the bundle that they fetched last as the newest.
        let roots_der = self.authority.trust().bundle_der();
        let bundle = Bundle { roots_der, sequence: None, refresh_hint: Some(self.refresh) };
        match bundle.to_json() {
            Ok(json) => respond(StatusCode::OK, JSON, json),
            Err(error) => {
                tracing::error!(%error, "the trust bundle cannot be served");
                respond(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n"))
            }
        }
    }
}

/// Appends the number of answered requests, as Prometheus text.
pub(crate) fn render(requests: u64, text: &mut String) {
    let help = "Requests for the trust bundle of this mesh by other trust domains.";
    Family::counter(text, "leno_control_bundle_requests_total", help).sample(&[], requests);
}

/// The files `tls.crt` and `tls.key` in a directory, as in a mounted Secret.
struct CertificateFiles {
    directory: PathBuf,
    /// The bytes of both files, and the certificate and key that they contain.
    current: RwLock<(Vec<u8>, Arc<CertifiedKey>)>,
}

impl CertificateFiles {
    fn open(directory: &Path) -> anyhow::Result<Self> {
        let (text, key) = read_pair(directory, &[])?.context("the certificate is empty")?;
        Ok(Self { directory: directory.to_owned(), current: RwLock::new((text, key)) })
    }

    /// Loads the files when they change. If they are invalid, the present certificate stays in use.
    async fn follow(self: Arc<Self>) {
        let mut said = String::new();
        loop {
            tokio::time::sleep(LOOK).await;
            let known = self.current.read().unwrap_or_else(PoisonError::into_inner).0.clone();
            match read_pair(&self.directory, &known) {
                Ok(None) => said.clear(),
                Ok(Some(next)) => {
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = next;
                    tracing::info!("the certificate of the bundle endpoint was replaced");
                    said.clear();
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    if error != said {
                        tracing::error!(
                            error,
                            "the new certificate of the bundle endpoint cannot \
                             be used; the last one stays in effect"
                        );
                        said = error;
                    }
                }
            }
        }
    }
}

impl ResolvesServerCert for CertificateFiles {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).1))
    }
}

impl fmt::Debug for CertificateFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateFiles")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

/// Reads both files. Returns their bytes, and the certificate and key that they contain; `None` if the bytes equal
/// `known`.
fn read_pair(
    directory: &Path,
    known: &[u8],
) -> anyhow::Result<Option<(Vec<u8>, Arc<CertifiedKey>)>> {
    let read = |name: &str| {
        let file = directory.join(name);
        std::fs::read(&file).with_context(|| format!("reading {}", file.display()))
    };
    let (certificate, key) = (read("tls.crt")?, read("tls.key")?);
    let text = [certificate.as_slice(), key.as_slice()].concat();
    if text == known {
        return Ok(None);
    }
    let unusable = || format!("{} has no certificate that belongs to its key", directory.display());
    let chain = CertificateDer::pem_slice_iter(&certificate).collect::<Result<_, _>>();
    let key = PrivateKeyDer::from_pem_slice(&key).with_context(unusable)?;
    let pair = CertifiedKey::from_der(chain.with_context(unusable)?, key, &default_provider());
    Ok(Some((text, Arc::new(pair.with_context(unusable)?))))
}
