//! Trust bundles of other trust domains, fetched from the endpoints that these serve (SPIFFE Federation, section 5).
//!
//! The operator names an endpoint, so that any address may be connected to; redirects are followed within its origin.

use std::fmt;
use std::sync::Arc;

use hyper::Uri;
use leno_spiffe::{Bundle, BundleError, ServerIdVerifier};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::fetch::{FetchError, Transport, web_pki};
use crate::origin::Origin;

/// Where a trust domain publishes its bundle.
#[derive(Clone)]
pub struct BundleEndpoint {
    origin: Origin,
    url: Uri,
    web_pki: TlsConnector,
}

/// How the server of an endpoint is authenticated: the profile of the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointServer<'a> {
    /// By its name and the authorities of this machine (`https_web`).
    Named,
    /// By its SPIFFE ID under these roots of the ID's trust domain, in DER (`https_spiffe`).
    Identified {
        /// The SPIFFE ID.
        id: &'a str,
        /// The roots.
        roots_der: &'a [Vec<u8>],
    },
}

/// Why a bundle was not fetched.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// It is no URL of https, or has a user.
    #[error("it is no URL of https without a user")]
    Url,
    /// A root cannot be used.
    #[error("the roots for the endpoint's server are not usable")]
    Roots(#[from] rustls::Error),
    /// The exchange failed.
    #[error(transparent)]
    Fetch(#[from] FetchFailure),
    /// What the server sent is no trust bundle.
    #[error("the answer is no trust bundle")]
    Bundle(#[from] BundleError),
}

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct FetchFailure(FetchError);

impl BundleEndpoint {
    /// The endpoint at a URL.
    ///
    /// # Errors
    /// [`EndpointError::Url`]
    pub fn new(url: &str) -> Result<Self, EndpointError> {
        let url: Uri = url.parse().map_err(|_| EndpointError::Url)?;
        let origin = Origin::of(&url).filter(Origin::is_tls).ok_or(EndpointError::Url)?;
        Ok(Self { origin, url, web_pki: web_pki() })
    }

    /// Fetches the bundle from this server.
    ///
    /// # Errors
    /// [`EndpointError`]
    pub async fn fetch(&self, server: EndpointServer<'_>) -> Result<Bundle, EndpointError> {
        let tls = match server {
            EndpointServer::Named => self.web_pki.clone(),
            EndpointServer::Identified { id, roots_der } => identified(id, roots_der)?,
        };
        let fetched = Transport::unrestricted(tls).fetch(&self.origin, self.url.clone()).await;
        Ok(Bundle::read(&fetched.map_err(FetchFailure)?)?)
    }
}

impl fmt::Debug for BundleEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BundleEndpoint").field("url", &self.url).finish_non_exhaustive()
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
