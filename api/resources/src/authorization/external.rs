//! External authorizers as policies name them.

use std::sync::Arc;

use leno_types::ServiceName;
use leno_types::authorizer::{AuthorizerBody, AuthorizerProtocol, ExternalAuthorizer};
use serde::{Deserialize, Serialize};

use crate::duration::Duration;

/// The default time limit for an answer.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);

/// A service of the mesh that decides on requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ExternalSpec {
    /// The port of the Service that decides. The proxy calls it with the identity of the workload to which the policy
    /// applies, so the policies of that Service must permit this client.
    pub backend_ref: AuthorizerRef,
    /// The protocol between proxy and service. `Grpc`, the default: Envoy's `envoy.service.auth.v3.Authorization`.
    /// `Http`: a request with the method, path and headers of the original; a status 2xx permits, 3xx and 4xx deny.
    pub protocol: AuthorizerProtocolSpec,
    /// How long the service may take to decide. Then `onFailure` applies. The default is 1s; from 1ms to 10s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// What happens to a request if the service does not decide, because it cannot be reached, fails or takes too
    /// long. `Deny`, the default: the client gets 503. `Allow`: the request is permitted.
    pub on_failure: OnFailure,
    /// The text before the path of requests to the service, such as `/check`. It begins with a slash, does not end
    /// with one, and has at most 256 characters. By default there is none. Only with the protocol Http.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path_prefix: String,
    /// The headers that the service gets, and those of its answer that are used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<AuthorizerHeadersSpec>,
    /// How much of the request body the service gets. By default it gets none of it, and the body is not delayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<AuthorizerBodySpec>,
}

/// How much of the request body an authorizer gets. The request is delayed until that much has arrived, for at most a
/// minute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AuthorizerBodySpec {
    /// How many bytes of the body the service gets at most, from 1 to 65536. The request is delayed until the body or
    /// that much of it has arrived; if that takes longer than a minute, the client gets 408.
    pub max_bytes: u32,
    /// What happens to a request whose body is longer than `maxBytes`. `Deny`, the default: the client gets 413.
    /// `Truncate`: the service gets the beginning of the body.
    pub on_larger: OnLarger,
    /// Whether the body is sent as `raw_body`, which may contain any bytes, instead of `body`, which must be UTF-8.
    /// The default is false: a request whose body is not UTF-8 is denied. Only with the protocol Grpc.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pack_as_bytes: bool,
}

/// What happens to a request whose body is longer than the authorizer gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum OnLarger {
    /// The client gets 413.
    #[default]
    Deny,
    /// The authorizer gets the beginning of the body.
    Truncate,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AuthorizerRef {
    /// The name of the Service. Required.
    pub name: String,
    /// The namespace of the Service. The default is the policy's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The port of the Service, from 1 to 65535. Required.
    pub port: u16,
}

/// The protocol between proxy and authorizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum AuthorizerProtocolSpec {
    /// A gRPC call.
    #[default]
    Grpc,
    /// An HTTP request.
    Http,
}

/// What happens to a request on which the authorizer does not decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum OnFailure {
    /// The client gets 503.
    #[default]
    Deny,
    /// The request is permitted.
    Allow,
}

/// The headers that an authorizer gets, and those of its answer that are used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AuthorizerHeadersSpec {
    /// The request headers that the service gets, at most 64. By default it gets all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<Vec<String>>,
    /// The headers of the service's answer that are set on a permitted request, at most 64. The proxy removes headers
    /// of these names that clients send. By default none are set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub on_request: Vec<String>,
    /// The headers of the service's answer that are added to the response to a permitted request, at most 64. By
    /// default none are added.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub on_response: Vec<String>,
}

impl ExternalSpec {
    /// The authorizer that this means in a policy of `namespace`; `None` if it names no service.
    pub(crate) fn authorizer(&self, namespace: &str) -> Option<ExternalAuthorizer> {
        let AuthorizerRef { name, namespace: given, port } = &self.backend_ref;
        let service = ServiceName::new(given.as_deref().unwrap_or(namespace), name).ok()?;
        let lower = |name: &String| -> Arc<str> { name.to_ascii_lowercase().into() };
        let headers = self.headers.clone().unwrap_or_default();
        Some(ExternalAuthorizer {
            service,
            port: (*port > 0).then_some(*port)?,
            protocol: match self.protocol {
                AuthorizerProtocolSpec::Grpc => AuthorizerProtocol::Grpc,
                AuthorizerProtocolSpec::Http => AuthorizerProtocol::Http,
            },
            timeout: self.timeout.map_or(TIMEOUT, |timeout| timeout.0),
            permits_on_failure: self.on_failure == OnFailure::Allow,
            path_prefix: self.path_prefix.as_str().into(),
            sent: headers.sent.map(|names| names.iter().map(lower).collect()),
            on_request: headers.on_request.iter().map(lower).collect(),
            on_response: headers.on_response.iter().map(lower).collect(),
            body: self.body.as_ref().map(|body| AuthorizerBody {
                max_bytes: body.max_bytes,
                partial: body.on_larger == OnLarger::Truncate,
                as_bytes: body.pack_as_bytes,
            }),
        })
    }
}
