//! External authorizers: services of the mesh that decide about requests.

use std::sync::Arc;
use std::time::Duration;

use crate::ServiceName;

/// A service that the server's proxy asks whether a request is permitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalAuthorizer {
    /// The authorizer's service.
    pub service: ServiceName,
    /// The port of the service.
    pub port: u16,
    /// The protocol of the question.
    pub protocol: AuthorizerProtocol,
    /// How long an answer may take.
    pub timeout: Duration,
    /// Whether a request is permitted if the authorizer does not answer.
    pub permits_on_failure: bool,
    /// The prefix of the path in an HTTP request to the authorizer.
    pub path_prefix: Arc<str>,
    /// The headers of the request that are sent to the authorizer, in lower case; `None` means all.
    pub sent: Option<Arc<[Arc<str>]>>,
    /// The headers that the answer may set on the request, in lower case. Headers of clients with these names are
    /// removed.
    pub on_request: Vec<Arc<str>>,
    /// The headers of the answer that are added to the response to a permitted request, in lower case.
    pub on_response: Vec<Arc<str>>,
    /// How the body of the request is sent to the authorizer; `None` means that it is not sent.
    pub body: Option<AuthorizerBody>,
}

/// How the body of a request is sent to an authorizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthorizerBody {
    /// The largest number of bytes of the body that are sent.
    pub max_bytes: u32,
    /// Whether a longer body is truncated; otherwise its request is denied.
    pub partial: bool,
    /// Whether the body is sent over gRPC as bytes (`raw_body`) and not as text (`body`).
    pub as_bytes: bool,
}

/// How many bytes of a body are sent to an authorizer. The proxy holds them until the answer.
pub const MAX_AUTHORIZER_BODY: u32 = 64 * 1024;

impl ExternalAuthorizer {
    /// A placeholder for an authorizer that a document names incorrectly. It never answers, so requests are denied.
    #[must_use]
    pub fn none() -> Self {
        Self {
            service: ServiceName { namespace: "none".into(), name: "none".into() },
            port: 1,
            protocol: AuthorizerProtocol::Grpc,
            timeout: Duration::ZERO,
            permits_on_failure: false,
            path_prefix: "".into(),
            sent: None,
            on_request: Vec::new(),
            on_response: Vec::new(),
            body: None,
        }
    }
}

/// The protocol of an authorizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorizerProtocol {
    /// Over gRPC: `envoy.service.auth.v3.Authorization/Check`.
    Grpc,
    /// Over HTTP, with a request that has the method, the path and headers of the request about which it decides.
    Http,
}
