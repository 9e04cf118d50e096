//! External authorizers: services of the mesh that decide on requests.

use std::sync::Arc;
use std::time::Duration;

use crate::ServiceName;

/// A service that the server's proxy asks whether a request is permitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalAuthorizer {
    /// The service.
    pub service: ServiceName,
    /// Its port.
    pub port: u16,
    /// The protocol of the question.
    pub protocol: AuthorizerProtocol,
    /// How long an answer may take.
    pub timeout: Duration,
    /// Whether a request is permitted if the authorizer does not answer.
    pub permits_on_failure: bool,
    /// The prefix of the path in an HTTP request to the authorizer.
    pub path_prefix: Arc<str>,
    /// The headers of the request that the authorizer is sent, in lower case; `None` means all.
    pub sent: Option<Arc<[Arc<str>]>>,
    /// The headers that the answer may set on the request, in lower case. Headers of clients with these names are
    /// removed.
    pub on_request: Vec<Arc<str>>,
    /// The headers of the answer that are added to the response to a permitted request, in lower case.
    pub on_response: Vec<Arc<str>>,
    /// How much of the body of the request the authorizer is sent; `None` means nothing.
    pub body: Option<AuthorizerBody>,
}

/// How the body of a request is sent to an authorizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthorizerBody {
    /// Most bytes of the body that are sent.
    pub max_bytes: u32,
    /// Whether a longer body is truncated; otherwise its request is denied.
    pub partial: bool,
    /// Whether the body is sent over gRPC as bytes (`raw_body`) and not as text (`body`).
    pub as_bytes: bool,
}

/// Most bytes of a body that an authorizer is sent. The proxy holds them until the answer.
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
    /// By gRPC: `envoy.service.auth.v3.Authorization/Check`.
    Grpc,
    /// By a request of HTTP with the method, the path and headers of the one that it decides on.
    Http,
}
