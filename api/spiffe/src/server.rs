//! The Workload API as Leno serves it: X.509-SVIDs and bundles, no tokens. The [`AnswerSource`] decides who a caller
//! is, and when it is answered.

use leno_wire::Bytes;
use leno_wire::spiffe::spiffe_workload_api_server::SpiffeWorkloadApi;
use leno_wire::spiffe::{
    JwtBundlesRequest, JwtBundlesResponse, JwtsvidRequest, JwtsvidResponse, SECURITY_HEADER,
    ValidateJwtsvidRequest, ValidateJwtsvidResponse, X509BundlesRequest, X509BundlesResponse,
    X509svidRequest, X509svidResponse,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Extensions, Request, Response, Status};

/// The largest number of calls on one connection: one for certificates, one for bundles, and one more of each while a
/// client starts over.
pub const MAX_CALLS: u32 = 4;
/// The largest number of answers that wait for the client to read them.
pub const OUTSTANDING: usize = 1;
/// How many bytes of requests are read ahead. Few are enough, because requests are empty.
pub const WINDOW: u32 = 16 << 10;

/// The answers to one call, now and whenever they change.
pub type AnswerStream<T> = ReceiverStream<Result<T, Status>>;

/// The source of the answers to calls. `of` describes the connection of a call.
pub trait AnswerSource: Send + Sync + 'static {
    /// The certificates of the caller, with their keys.
    ///
    /// # Errors
    /// The caller gets none.
    fn svids(&self, of: &Extensions) -> Result<AnswerStream<X509svidResponse>, Status>;

    /// The trust bundles.
    ///
    /// # Errors
    /// The caller gets none.
    fn bundles(&self, of: &Extensions) -> Result<AnswerStream<X509BundlesResponse>, Status>;
}

/// Answers the calls of a connection from a source.
#[derive(Clone, Debug)]
pub struct WorkloadApi<S>(pub S);

#[tonic::async_trait]
impl<S: AnswerSource> SpiffeWorkloadApi for WorkloadApi<S> {
    type FetchX509SVIDStream = AnswerStream<X509svidResponse>;
    type FetchX509BundlesStream = AnswerStream<X509BundlesResponse>;
    type FetchJWTBundlesStream = AnswerStream<JwtBundlesResponse>;

    async fn fetch_x509svid(
        &self,
        request: Request<X509svidRequest>,
    ) -> Result<Response<Self::FetchX509SVIDStream>, Status> {
        is_meant(&request)?;
        self.0.svids(request.extensions()).map(Response::new)
    }

    async fn fetch_x509_bundles(
        &self,
        request: Request<X509BundlesRequest>,
    ) -> Result<Response<Self::FetchX509BundlesStream>, Status> {
        is_meant(&request)?;
        self.0.bundles(request.extensions()).map(Response::new)
    }

    async fn fetch_jwtsvid(
        &self,
        _: Request<JwtsvidRequest>,
    ) -> Result<Response<JwtsvidResponse>, Status> {
        Err(without_tokens())
    }

    async fn fetch_jwt_bundles(
        &self,
        _: Request<JwtBundlesRequest>,
    ) -> Result<Response<Self::FetchJWTBundlesStream>, Status> {
        Err(without_tokens())
    }

    async fn validate_jwtsvid(
        &self,
        _: Request<ValidateJwtsvidRequest>,
    ) -> Result<Response<ValidateJwtsvidResponse>, Status> {
        Err(without_tokens())
    }
}

/// Refuses a call without the header that SPIFFE prescribes. A program that was tricked into sending a request, such as
/// a browser, cannot set this header.
fn is_meant<T>(request: &Request<T>) -> Result<(), Status> {
    let header = request.metadata().get(SECURITY_HEADER);
    if header.is_some_and(|value| value == "true") {
        return Ok(());
    }
    Err(Status::invalid_argument(format!("the header {SECURITY_HEADER}: true is missing")))
}

fn without_tokens() -> Status {
    Status::unimplemented("Leno issues no JWT-SVIDs: use X.509-SVIDs (FetchX509SVID)")
}

/// The bundle of a trust domain in the form that answers have: its SPIFFE ID, and its roots.
pub fn bundle(domain: &str, roots: Vec<u8>) -> (String, Bytes) {
    (format!("spiffe://{domain}"), roots.into())
}
