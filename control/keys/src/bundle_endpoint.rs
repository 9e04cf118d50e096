//! Fetches the trust bundles of other trust domains from their bundle endpoints (SPIFFE Federation, section 5).
//!
//! Unlike the URL of a key set, an endpoint may have a loopback, private or link-local address, because the operator
//! has configured it. A redirect is only followed if it stays within the endpoint's origin.

use std::sync::Arc;

use hyper::Uri;
use leno_resources::Origin;
use leno_spiffe::{Bundle, BundleError, MAX_BUNDLE_BYTES, ServerIdVerifier};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::authorities::WebAuthorities;
use crate::fetch::{FetchError, Transport};

/// The endpoint at which a trust domain publishes its bundle.
#[derive(Clone, Debug)]
pub struct BundleEndpoint {
    origin: Origin,
    url: Uri,
}

/// How the server of an endpoint is verified: the endpoint's profile in SPIFFE Federation.
#[derive(Clone, Copy, Debug)]
pub enum EndpointServer<'a> {
    /// By its DNS name and these authorities (`https_web`).
    Named(&'a WebAuthorities),
    /// By its SPIFFE ID (`https_spiffe`).
    Identified {
        /// The SPIFFE ID that the server must prove.
        id: &'a str,
        /// The root certificates of that ID's trust domain, in DER.
        roots_der: &'a [Vec<u8>],
    },
}

/// Why a bundle was not fetched.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The text is not an https URL, or it contains a user name.
    #[error("it is not an https URL without a user")]
    Url,
    /// A root cannot be used.
    #[error("the roots for the endpoint's server are not usable")]
    Roots(#[from] rustls::Error),
    /// The document could not be fetched from the endpoint.
    #[error(transparent)]
    Fetch(#[from] FetchFailure),
    /// The server's answer is not a trust bundle.
    #[error("the response is not a trust bundle")]
    Bundle(#[from] BundleError),
}

/// Why the document could not be fetched. Wraps the error so that the crate's own error type stays private.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct FetchFailure(FetchError);

impl BundleEndpoint {
    /// An endpoint at this URL.
    ///
    /// # Errors
    /// [`EndpointError::Url`]
    pub fn new(url: &str) -> Result<Self, EndpointError> {
        let url: Uri = url.parse().map_err(|_| EndpointError::Url)?;
        let origin = Origin::of(&url).filter(Origin::is_tls).ok_or(EndpointError::Url)?;
        Ok(Self { origin, url })
    }

    /// Fetches the bundle. `server` is how the endpoint's server is verified.
    ///
    /// # Errors
    /// [`EndpointError`]
    pub async fn fetch(&self, server: EndpointServer<'_>) -> Result<Bundle, EndpointError> {
        let tls = match server {
            EndpointServer::Named(authorities) => authorities.connector(),
            EndpointServer::Identified { id, roots_der } => identified(id, roots_der)?,
        };
        let transport = Transport { tls, max_bytes: MAX_BUNDLE_BYTES, is_reserved: |_| false };
        let fetched = transport.fetch(&self.origin, self.url.clone()).await;
        Ok(Bundle::read(&fetched.map_err(FetchFailure)?)?)
    }
}

fn identified(id: &str, roots_der: &[Vec<u8>]) -> Result<TlsConnector, rustls::Error> {
    let mut roots = RootCertStore::empty();
    for root in roots_der {
        roots.add(root.as_slice().into())?;
    }
    let provider = Arc::new(default_provider());
    let verifier = ServerIdVerifier::new(roots, id.to_owned(), &provider);
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PKCS_RSA_SHA256, RsaKeySize,
        SanType,
    };
    use rustls::ServerConfig;
    use rustls_pki_types::PrivatePkcs8KeyDer;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    const ID: &str = "spiffe://far.example/server";
    /// The most roots that a bundle may have: `MAX_CERTIFICATES` of leno-spiffe.
    const MOST: usize = 32;

    /// Serves this document on one connection after another, with the SPIFFE ID `ID`. Returns the URL and the
    /// root.
    async fn serve(document: String) -> (String, Vec<u8>) {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap().der().to_vec();
        let issuer = Issuer::new(params, key);
        let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::default());
        params.subject_alt_names = vec![SanType::URI(ID.try_into().unwrap())];
        let leaf = params.signed_by(&key, &issuer).unwrap().der().clone();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf], PrivatePkcs8KeyDer::from(key.serialize_der()).into())
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/", listener.local_addr().unwrap());
        let acceptor = TlsAcceptor::from(Arc::new(config));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let mut stream = acceptor.accept(stream).await.unwrap();
                let read = stream.read(&mut [0; 4096]).await.unwrap();
                assert!(read > 0, "a request");
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", document.len());
                // The write fails if the client has read enough and closed the connection.
                let _closed = stream.write_all((head + &document).as_bytes()).await;
                let _closed = stream.shutdown().await;
            }
        });
        (url, root)
    }

    async fn fetched(document: String) -> Result<Bundle, EndpointError> {
        let (url, root) = serve(document).await;
        let server = EndpointServer::Identified { id: ID, roots_der: &[root] };
        BundleEndpoint::new(&url).unwrap().fetch(server).await
    }

    #[tokio::test]
    async fn a_bundle_of_as_many_roots_as_are_read_is_fetched_and_a_longer_one_is_not() {
        let key = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_4096).unwrap();
        let root = |_| CertificateParams::default().self_signed(&key).unwrap().der().to_vec();
        let bundle = Bundle { roots_der: (0..MOST).map(root).collect(), ..Bundle::default() };
        let json = bundle.to_json().unwrap();
        assert!(json.len() > 64 * 1024, "more than a set of keys may have: {}", json.len());
        assert_eq!(fetched(json.clone()).await.unwrap(), bundle);
        let padded = |bytes: usize| json.clone() + &" ".repeat(bytes - json.len());
        assert_eq!(fetched(padded(MAX_BUNDLE_BYTES)).await.unwrap(), bundle);
        let refused = fetched(padded(MAX_BUNDLE_BYTES + 1)).await.unwrap_err().to_string();
        assert!(refused.contains("is larger than 1048576 bytes"), "{refused}");
    }
}
