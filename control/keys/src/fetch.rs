//! Fetches a key set, or another JSON document, over HTTP.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, HOST, LOCATION, USER_AGENT};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use leno_resources::{MAX_KEY_SET_BYTES, Origin};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::authorities::WebAuthorities;
use crate::published::PublishedSet;

/// Longest fetch, including all of its redirects. Issuers normally answer within a second.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest attempt to connect to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Most redirects that are followed, all within one origin.
const MAX_REDIRECTS: usize = 3;
/// Most addresses of a host that are tried.
const MAX_ADDRESSES: usize = 4;

/// Fetches key sets, but only from permitted origins.
#[derive(Clone)]
pub(crate) struct Fetcher {
    permitted: Arc<RwLock<Vec<Origin>>>,
    authorities: Arc<WebAuthorities>,
    is_reserved: fn(IpAddr) -> bool,
}

/// Fetches a document within limits. Redirects are only followed within its origin.
pub(crate) struct Transport {
    pub(crate) tls: TlsConnector,
    /// Most bytes of the document.
    pub(crate) max_bytes: usize,
    /// Whether a connection to an address is forbidden, whatever name was resolved to it.
    pub(crate) is_reserved: fn(IpAddr) -> bool,
}

/// Why a document was not fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// The text is not an http or https URL, or it contains a user name.
    #[error("it is not an http or https URL without a user")]
    Url,
    /// The operator has not permitted the origin.
    #[error(
        "{0} is not permitted: add it to the annotation leno.dev/keys-from of the control \
         plane's Namespace"
    )]
    Origin(Origin),
    /// The server redirects to another origin.
    #[error("it redirects to another origin, {0:?}")]
    Redirect(String),
    /// There are too many redirects.
    #[error("it redirects more than {MAX_REDIRECTS} times")]
    Redirects,
    /// The host has no address.
    #[error("the host has no address")]
    Resolve(#[source] std::io::Error),
    /// The host has no address that may be connected to.
    #[error("the host has only addresses of this machine, of its links or of its cloud provider")]
    Address,
    /// The connection or its TLS handshake failed.
    #[error("no connection")]
    Connect(#[source] std::io::Error),
    /// HTTP failed: the connection broke, or the answer is not valid HTTP/1.
    #[error("the exchange failed")]
    Http(#[from] hyper::Error),
    /// The status of the answer is not 200.
    #[error("the answer is {0}")]
    Status(StatusCode),
    /// The answer is too long, or was cut off.
    #[error("the response is larger than {0} bytes, or was cut off")]
    Body(usize),
    /// The answer is not a key set.
    #[error("the answer {0}")]
    Set(String),
    /// The fetch took too long.
    #[error("no response within {TIMEOUT:?}")]
    Timeout,
}

impl Fetcher {
    /// Creates a fetcher for these origins, which can be replaced later. The authorities verify https servers.
    #[must_use]
    pub(crate) fn new(permitted: Vec<Origin>, authorities: Arc<WebAuthorities>) -> Self {
        let permitted = Arc::new(RwLock::new(permitted));
        Self { permitted, authorities, is_reserved: leno_index::is_reserved }
    }

    /// The same fetcher, but with permission to connect to loopback addresses, for the servers of tests.
    #[cfg(test)]
    pub(crate) fn connecting_to_loopback(self) -> Self {
        Self { is_reserved: |_| false, ..self }
    }

    /// Replaces the permitted origins of all clones. Returns whether they have changed.
    pub(crate) fn permit(&self, origins: Vec<Origin>) -> bool {
        // Poisoning is ignored, because the list is only replaced as a whole.
        let mut permitted = self.permitted.write().unwrap_or_else(PoisonError::into_inner);
        let differs = *permitted != origins;
        *permitted = origins;
        differs
    }

    /// The origin of a URL, if it is permitted to fetch keys from it.
    pub(crate) fn permits(&self, url: &str) -> Result<Origin, FetchError> {
        let origin = Origin::of_url(url).ok_or(FetchError::Url)?;
        let permitted = self.permitted.read().unwrap_or_else(PoisonError::into_inner);
        match permitted.contains(&origin) {
            true => Ok(origin),
            false => Err(FetchError::Origin(origin)),
        }
    }

    /// Fetches the key set at a URL.
    ///
    /// # Errors
    /// Why the set could not be fetched.
    pub(crate) async fn fetch(&self, url: &str) -> Result<PublishedSet, FetchError> {
        let origin = self.permits(url)?;
        let url = url.parse().map_err(|_| FetchError::Url)?;
        let transport = Transport {
            tls: self.authorities.connector(),
            max_bytes: MAX_KEY_SET_BYTES,
            is_reserved: self.is_reserved,
        };
        let text = transport.fetch(&origin, url).await?;
        PublishedSet::read(text).map_err(FetchError::Set)
    }
}

impl Transport {
    /// Fetches the document at a URL of an origin.
    ///
    /// # Errors
    /// Why the document could not be fetched.
    pub(crate) async fn fetch(&self, origin: &Origin, url: Uri) -> Result<String, FetchError> {
        let followed = timeout(TIMEOUT, self.follow(origin, url));
        followed.await.map_err(|_| FetchError::Timeout)?
    }

    async fn follow(&self, origin: &Origin, mut url: Uri) -> Result<String, FetchError> {
        for _ in 0..=MAX_REDIRECTS {
            let response = self.request(origin, &url).await?;
            if response.status().is_redirection() {
                url = redirected(origin, &response)?;
                continue;
            }
            if response.status() != StatusCode::OK {
                return Err(FetchError::Status(response.status()));
            }
            let failed = || FetchError::Body(self.max_bytes);
            let body = Limited::new(response.into_body(), self.max_bytes).collect().await;
            let bytes = body.map_err(|_| failed())?.to_bytes();
            return String::from_utf8(bytes.to_vec()).map_err(|_| failed());
        }
        Err(FetchError::Redirects)
    }

    async fn request(
        &self,
        origin: &Origin,
        url: &Uri,
    ) -> Result<Response<hyper::body::Incoming>, FetchError> {
        let stream = self.connect(origin).await?;
        if !origin.is_tls() {
            return exchange(stream, origin, url).await;
        }
        let invalid = |_| FetchError::Connect(std::io::ErrorKind::InvalidInput.into());
        let name = ServerName::try_from(origin.host().to_owned()).map_err(invalid)?;
        let stream = self.tls.connect(name, stream).await.map_err(FetchError::Connect)?;
        exchange(stream, origin, url).await
    }

    async fn connect(&self, origin: &Origin) -> Result<TcpStream, FetchError> {
        let found = lookup_host((origin.host(), origin.port())).await;
        let found = found.map_err(FetchError::Resolve)?;
        let permitted = found.filter(|address| !(self.is_reserved)(address.ip()));
        let mut error = FetchError::Address;
        for address in permitted.take(MAX_ADDRESSES) {
            match timeout(CONNECT_TIMEOUT, TcpStream::connect::<SocketAddr>(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(cause)) => error = FetchError::Connect(cause),
                Err(_) => error = FetchError::Connect(std::io::ErrorKind::TimedOut.into()),
            }
        }
        Err(error)
    }
}

/// The URL to which a response redirects, if it is in the same origin.
fn redirected<B>(origin: &Origin, response: &Response<B>) -> Result<Uri, FetchError> {
    let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
    let location = location.unwrap_or_default();
    let other = || FetchError::Redirect(location.to_owned());
    let url = match location.starts_with('/') && !location.starts_with("//") {
        true => format!("{origin}{location}"),
        false => location.to_owned(),
    };
    let url: Uri = url.parse().map_err(|_| other())?;
    if Origin::of(&url).as_ref() == Some(origin) { Ok(url) } else { Err(other()) }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    origin: &Origin,
    url: &Uri,
) -> Result<Response<hyper::body::Incoming>, FetchError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The task ends once the response has been read or dropped, because only the sender and the body keep the
    // connection open.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection for a fetch ended");
        }
    });
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let host = url.authority().map_or(origin.host(), |authority| authority.as_str());
    let request = Request::get(path)
        .header(HOST, host)
        .header(ACCEPT, "application/json")
        .header(USER_AGENT, "leno-controller")
        .body(Empty::<Bytes>::new());
    let request = request.map_err(|_| FetchError::Url)?;
    Ok(sender.send_request(request).await?)
}

#[cfg(test)]
mod tests;
