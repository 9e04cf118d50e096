//! The two streams of the Workload API for X.509.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, SystemTime};

use leno_types::{TrustDomain, WorkloadApiAddress};
use leno_wire::spiffe::spiffe_workload_api_client::SpiffeWorkloadApiClient;
use leno_wire::spiffe::{
    SECURITY_HEADER, X509BundlesRequest, X509BundlesResponse, X509svid, X509svidRequest,
    X509svidResponse,
};
use leno_wire::{Bytes, ClientConnection};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::metadata::MetadataValue;
use tonic::{Request, Status, Streaming};

use crate::certificates::{names_alone, not_after, split};

/// How long to wait for a connection. It is short because the server is on this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait for the first response, which a server may have to fetch from another machine.
const FIRST_TIMEOUT: Duration = Duration::from_secs(30);
/// How many certificates one process may have, and how many trust domains there may be. SPIFFE itself sets no limit.
const MAX_ENTRIES: usize = 256;
/// The largest response in bytes. It has room for [`MAX_ENTRIES`] with a few certificates each.
const MAX_RESPONSE: usize = 4 << 20;

/// A certificate with its key, and the roots of its trust domain.
#[derive(Clone, PartialEq, Eq)]
pub struct Svid {
    /// The SPIFFE ID as text, because it need not be an identity of a mesh.
    pub id: String,
    /// The chain in DER, leaf first.
    pub chain_der: Vec<Vec<u8>>,
    /// The private key, PKCS #8 in DER.
    pub key_der: Vec<u8>,
    /// The roots in DER.
    pub roots_der: Vec<Vec<u8>>,
    /// When the leaf expires.
    pub not_after: SystemTime,
}

/// The certificates of this process, and their replacements.
#[derive(Debug)]
pub struct Svids(Responses<X509svidResponse>);

/// The trust bundles that this process may use, and their changes.
#[derive(Debug)]
pub struct Bundles(Responses<X509BundlesResponse>);

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadApiError {
    /// The socket does not exist, its permissions are too narrow, or no process listens.
    #[error("cannot connect to the Workload API at {0}")]
    Connect(WorkloadApiAddress, #[source] io::Error),
    /// The program that listens there does not speak HTTP/2.
    #[error("the server at {0} does not speak gRPC")]
    Http(WorkloadApiAddress, #[source] hyper::Error),
    /// The server refused the request. `PermissionDenied` means that it has no certificate for this process.
    #[error("the Workload API at {0} refused: {message} ({code:?})", message = .1.message(), code = .1.code())]
    Refused(WorkloadApiAddress, Status),
    /// There was no response in time.
    #[error("the Workload API at {0} did not respond within {1:?}")]
    Timeout(WorkloadApiAddress, Duration),
    /// The server has ended the stream.
    #[error("the Workload API at {0} ended the stream")]
    Ended(WorkloadApiAddress),
    /// A response is not usable.
    #[error("the Workload API at {0} sent an unusable {1}: {2}")]
    Unusable(WorkloadApiAddress, &'static str, &'static str),
}

#[derive(Debug)]
struct Responses<T> {
    address: WorkloadApiAddress,
    stream: Streaming<T>,
    is_first: bool,
    /// Kept, because the stream ends with its connection.
    _client: SpiffeWorkloadApiClient<ClientConnection>,
}

impl Svids {
    /// Asks for the certificates of this process.
    ///
    /// # Errors
    /// [`WorkloadApiError`]
    pub async fn open(address: &WorkloadApiAddress) -> Result<Self, WorkloadApiError> {
        let mut client = connect(address).await?;
        let opened = client.fetch_x509svid(request(X509svidRequest {}));
        let opened = within(FIRST_TIMEOUT, address, opened).await?;
        let stream = opened.map_err(|status| refused(address, status))?.into_inner();
        Ok(Self(Responses::new(address, stream, client)))
    }

    /// Waits for the next certificates, which replace the earlier ones. There is at least one.
    ///
    /// # Errors
    /// [`WorkloadApiError`]
    pub async fn next(&mut self) -> Result<Vec<Svid>, WorkloadApiError> {
        let response = self.0.next().await?;
        let unusable = |reason| self.0.unusable("certificate", reason);
        if response.svids.is_empty() || response.svids.len() > MAX_ENTRIES {
            return Err(unusable("none, or more than 256"));
        }
        response.svids.into_iter().map(Svid::read).collect::<Result<_, _>>().map_err(unusable)
    }
}

impl Bundles {
    /// Asks for the trust bundles.
    ///
    /// # Errors
    /// [`WorkloadApiError`]
    pub async fn open(address: &WorkloadApiAddress) -> Result<Self, WorkloadApiError> {
        let mut client = connect(address).await?;
        let opened = client.fetch_x509_bundles(request(X509BundlesRequest {}));
        let opened = within(FIRST_TIMEOUT, address, opened).await?;
        let stream = opened.map_err(|status| refused(address, status))?.into_inner();
        Ok(Self(Responses::new(address, stream, client)))
    }

    /// Waits for the next bundles, which replace the earlier ones: for each trust domain its roots in DER, or why they
    /// are unusable.
    ///
    /// # Errors
    /// [`WorkloadApiError`]
    pub async fn next(
        &mut self,
    ) -> Result<BTreeMap<TrustDomain, Result<Vec<Vec<u8>>, &'static str>>, WorkloadApiError> {
        let response = self.0.next().await?;
        if response.bundles.len() > MAX_ENTRIES {
            return Err(self.0.unusable("trust bundle", "more than 256 trust domains"));
        }
        // A bundle whose name is not a trust domain is skipped.
        let read = |(id, roots): (String, Bytes)| Some((trust_domain(&id)?, split(&roots)));
        Ok(response.bundles.into_iter().filter_map(read).collect())
    }
}

impl Svid {
    fn read(one: X509svid) -> Result<Self, &'static str> {
        let chain_der = split(&one.x509_svid)?;
        let leaf = chain_der.first().map(Vec::as_slice).unwrap_or_default();
        if !names_alone(leaf, &one.spiffe_id) {
            return Err("its certificate does not name its SPIFFE ID, or not that alone");
        }
        let not_after = not_after(leaf);
        Ok(Self {
            id: one.spiffe_id,
            not_after: not_after.ok_or("its end is not a time")?,
            chain_der,
            key_der: one.x509_svid_key.into(),
            roots_der: split(&one.bundle)?,
        })
    }
}

/// The trust domain of a bundle.
fn trust_domain(id: &str) -> Option<TrustDomain> {
    // The specification requires a SPIFFE ID; some servers omit the scheme.
    TrustDomain::new(id.strip_prefix("spiffe://").unwrap_or(id)).ok()
}

impl<T> Responses<T> {
    fn new(
        address: &WorkloadApiAddress,
        stream: Streaming<T>,
        client: SpiffeWorkloadApiClient<ClientConnection>,
    ) -> Self {
        Self { address: address.clone(), stream, is_first: true, _client: client }
    }

    async fn next(&mut self) -> Result<T, WorkloadApiError> {
        let response = match std::mem::take(&mut self.is_first) {
            true => within(FIRST_TIMEOUT, &self.address, self.stream.message()).await?,
            // The next response arrives only when a certificate or a root is replaced, so there is no time limit.
            false => self.stream.message().await,
        };
        let response = response.map_err(|status| refused(&self.address, status))?;
        response.ok_or_else(|| WorkloadApiError::Ended(self.address.clone()))
    }

    fn unusable(&self, what: &'static str, reason: &'static str) -> WorkloadApiError {
        WorkloadApiError::Unusable(self.address.clone(), what, reason)
    }
}

async fn connect(
    address: &WorkloadApiAddress,
) -> Result<SpiffeWorkloadApiClient<ClientConnection>, WorkloadApiError> {
    let failed = |error| WorkloadApiError::Connect(address.clone(), error);
    let connected = async {
        let stream = UnixStream::connect(address.path()).await.map_err(failed)?;
        // The kernel reports the end of a server on this machine, so no probes are needed.
        let opened = ClientConnection::open(stream, None).await;
        opened.map_err(|error| WorkloadApiError::Http(address.clone(), error))
    };
    let connection = within(CONNECT_TIMEOUT, address, connected).await??;
    let origin = http::Uri::from_static("http://localhost");
    let client = SpiffeWorkloadApiClient::with_origin(connection, origin);
    Ok(client.max_decoding_message_size(MAX_RESPONSE))
}

async fn within<T>(
    limit: Duration,
    address: &WorkloadApiAddress,
    work: impl Future<Output = T>,
) -> Result<T, WorkloadApiError> {
    timeout(limit, work).await.map_err(|_| WorkloadApiError::Timeout(address.clone(), limit))
}

fn refused(address: &WorkloadApiAddress, status: Status) -> WorkloadApiError {
    WorkloadApiError::Refused(address.clone(), status)
}

fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(SECURITY_HEADER, MetadataValue::from_static("true"));
    request
}

impl std::fmt::Debug for Svid {
    /// Omits the private key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Svid")
            .field("id", &self.id)
            .field("chain", &self.chain_der.len())
            .field("roots", &self.roots_der.len())
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}
