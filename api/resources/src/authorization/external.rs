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
    /// The service. Its proxies see the workload that the policy is for as their client.
    pub backend_ref: AuthorizerRef,
    /// How it is asked: Grpc, by Envoy's protocol (`envoy.service.auth.v3.Authorization`), or Http, by a request with
    /// the method, the path and headers of the one that it decides on. The default is Grpc.
    pub protocol: AuthorizerProtocolSpec,
    /// How long an answer may take, 10s at most. The default is 1s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// What becomes of requests if there is no answer. The default is Deny.
    pub on_failure: OnFailure,
    /// What precedes the path in a request of Http, such as /check.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path_prefix: String,
    /// Which headers go to the authorizer and come from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<AuthorizerHeadersSpec>,
    /// How much of the body of requests goes to the authorizer. By default nothing does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<AuthorizerBodySpec>,
}

/// How much of the body of requests goes to an authorizer. The request waits until that much has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AuthorizerBodySpec {
    /// Most bytes of it, 65536 at most.
    pub max_bytes: u32,
    /// What becomes of requests with a longer body. The default is Deny: they are answered 413.
    pub on_larger: OnLarger,
    /// With Grpc: the body is `raw_body`, so that it need not be a text.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pack_as_bytes: bool,
}

/// What becomes of requests with a body that is longer than an authorizer gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum OnLarger {
    /// They are answered 413.
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
    /// The name of the Service.
    pub name: String,
    /// Its namespace. The default is the one of the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The port.
    pub port: u16,
}

/// How an authorizer is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum AuthorizerProtocolSpec {
    /// A call of gRPC.
    #[default]
    Grpc,
    /// A request of HTTP.
    Http,
}

/// What becomes of requests that an authorizer does not decide on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum OnFailure {
    /// They are answered 503.
    #[default]
    Deny,
    /// They are permitted.
    Allow,
}

/// Which headers go to an authorizer and come from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AuthorizerHeadersSpec {
    /// The headers of the request that the authorizer is sent. By default all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<Vec<String>>,
    /// The headers of its answer that are set on a permitted request. What clients send under these names never reaches
    /// the application. By default none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub on_request: Vec<String>,
    /// The headers of its answer that are added to the response to a permitted request. By default none.
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
