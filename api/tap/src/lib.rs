//! A request as a proxy records it for a tap or a trace, and as `leno tap` prints it.
//!
//! The proxy creates a [`TappedRequest`] for each request that a tap's filter matches, and answers a poll with a
//! [`TapPage`]. `leno tap` joins the requests of two proxies that have the same mark, with [`TappedRequest::join`]. For
//! a traced request the proxy exports a [`TraceSpan`], and for a line of its access log an [`AccessRecord`]. This crate
//! does not deal with proxies or commands.

mod body;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

pub use body::{BodyCopies, BodyCopy, MAX_BODY_BYTES, TappedBody};

/// The response of a proxy to a poll of a tap.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct TapPage {
    /// The proxy's workload, `namespace/name`.
    pub workload: String,
    /// The requests since the last poll.
    pub requests: Vec<TappedRequest>,
    /// The number of requests that were queued since the tap was opened.
    pub queued: u64,
    /// The number of requests that were left out since the tap was opened, because they exceeded its rate.
    pub sampled_out: u64,
    /// The number of requests that did not fit into the queue since the tap was opened.
    pub dropped: u64,
}

/// A request that has ended, as a tap shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct TappedRequest {
    /// When the request began, in microseconds of Unix time.
    pub at_unix_us: u64,
    /// `outbound` if the proxy of its client was tapped, otherwise `inbound`.
    pub direction: Cow<'static, str>,
    /// The client, `namespace/name`; if only the server's proxy recorded the request, the service account of the
    /// client's identity.
    pub client: String,
    /// The client's identity.
    pub client_identity: Option<Box<str>>,
    /// The server, `namespace/name`.
    pub server: String,
    /// The server's identity.
    pub server_identity: Option<Box<str>>,
    /// The service that the client called; empty if the client's proxy did not record the request.
    pub service: String,
    /// Whether the connection between client and server is mTLS.
    pub mtls: bool,
    /// The version of HTTP in which the request came.
    pub protocol: Cow<'static, str>,
    /// The method.
    pub method: Box<str>,
    /// The host that the request names.
    pub authority: Box<str>,
    /// The path with its query, without secrets.
    pub target: Box<str>,
    /// The route and the rule that the request followed, `HTTPRoute shop/cart rule 1`.
    pub route: Option<Box<str>>,
    /// How often the request was sent again.
    pub retries: u32,
    /// The status that the client received.
    pub status: u16,
    /// The `grpc-status` of a gRPC call.
    pub grpc_status: Option<u8>,
    /// The number of bytes from the client.
    pub request_bytes: u64,
    /// The number of bytes to the client.
    pub response_bytes: u64,
    /// Why the mesh failed the request.
    pub error: Option<Cow<'static, str>>,
    /// The parts of the request's duration, as far as one proxy knows them, or both proxies once their requests are
    /// joined.
    pub latency: RequestLatency,
    /// Headers without secrets, if the tap wants them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(Box<str>, Box<str>)>,
    /// The decisions of the proxies, in order, if the tap wants them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<ProxyDecision>,
    /// The beginning of the request's body, if the tap wants it and there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_body: Option<TappedBody>,
    /// The beginning of the response's body, if the tap wants it and there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_body: Option<TappedBody>,
    /// The identifier that the proxy has given to this request, in hexadecimal digits, if the tap follows requests. The
    /// application passes it on with the requests that it sends in turn, by which the next proxies recognise them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub followed: Option<Box<str>>,
    /// A number in hexadecimal digits that identifies the request at the client's proxy and at the server's proxy. It
    /// is only used to join the two records of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Box<str>>,
}

/// A decision of a proxy about a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct ProxyDecision {
    /// Which proxy made the decision: `client proxy` or `server proxy`.
    pub by: Cow<'static, str>,
    /// When the decision was made, in microseconds since that proxy received the head of the request.
    pub at_us: u64,
    /// The decision, in one line.
    pub what: Box<str>,
}

/// The parts of a request's time, in microseconds. A part is `None` if the proxy that knows it was not tapped, or the
/// request did not get so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct RequestLatency {
    /// The duration of the whole request.
    pub total_us: u64,
    /// The time in the client's proxy, until the request was sent the last time.
    pub client_proxy_us: Option<u64>,
    /// The time between the two proxies, there and back.
    pub network_us: Option<u64>,
    /// The time in the server's proxy, before the application had the request.
    pub server_proxy_us: Option<u64>,
    /// The time in the application, until its response began.
    pub application_us: Option<u64>,
    /// The time from the beginning of the response to its end.
    pub response_us: Option<u64>,
}

/// A request of a trace, as one proxy has seen it. The client's proxy makes a span whose parent is the application's
/// span. The server's proxy makes a child of that span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSpan {
    /// The identifier of the trace, which is not zero.
    pub trace_id: u128,
    /// The identifier of the span, which is not zero.
    pub span_id: u64,
    /// The span that sent the request. `None` if the trace begins here.
    pub parent: Option<u64>,
    /// Whether the trace is sampled. Spans of other traces are exported only for failed or slow requests.
    pub sampled: bool,
    /// The request.
    pub request: TappedRequest,
}

/// A request's place in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceIds {
    /// The identifier of the trace, which is not zero.
    pub trace_id: u128,
    /// The identifier of the span of the proxy that has seen the request. It is not zero.
    pub span_id: u64,
    /// Whether the trace is sampled.
    pub sampled: bool,
}

/// A line of the access log, as a proxy exports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRecord {
    /// When the request or the connection began, in microseconds of Unix time.
    pub at_unix_us: u64,
    /// The trace to which the request belongs.
    pub trace: Option<TraceIds>,
    /// Whether the mesh or the server failed the request or connection.
    pub is_failed: bool,
    /// Whether the record is about a request, and not about an opaque connection.
    pub is_request: bool,
    /// The names and values of the fields.
    pub attributes: Vec<(String, AccessField)>,
}

/// A field of an [`AccessRecord`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessField {
    /// A text.
    Text(String),
    /// A number.
    Number(u64),
    /// Yes or no.
    Flag(bool),
}

/// Whether gRPC counts a status as a fault of the server: UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL,
/// UNAVAILABLE, DATA_LOSS.
#[must_use]
pub const fn is_failed_call(grpc_status: u8) -> bool {
    matches!(grpc_status, 2 | 4 | 12 | 13 | 14 | 15)
}

/// The approximate size of a span or a record without its texts.
const FIXED_BYTES: usize = 256;

impl TraceSpan {
    /// The approximate number of bytes that the span takes, in memory and in a message.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let request = &self.request;
        let texts = [
            request.client.len(),
            request.server.len(),
            request.service.len(),
            request.method.len(),
            request.authority.len(),
            request.target.len(),
        ];
        let optional = [&request.client_identity, &request.server_identity, &request.route];
        let optional = optional.into_iter().flatten().map(|text| text.len());
        texts.into_iter().chain(optional).fold(2 * FIXED_BYTES, usize::saturating_add)
    }
}

impl AccessRecord {
    /// The approximate number of bytes that the record takes, in memory and in a message.
    #[must_use]
    pub fn bytes(&self) -> usize {
        /// The tags and lengths of a key and a value in a message; in memory, key and value take more.
        const ATTRIBUTE: usize = 32;
        let of = |(key, value): &(String, AccessField)| {
            let text = if let AccessField::Text(text) = value { text.len() } else { 0 };
            key.len().saturating_add(text).saturating_add(ATTRIBUTE)
        };
        self.attributes.iter().map(of).fold(FIXED_BYTES, usize::saturating_add)
    }
}

impl TappedRequest {
    /// Whether the client's proxy has recorded the request.
    #[must_use]
    pub fn is_outbound(&self) -> bool {
        self.direction == "outbound"
    }

    /// Whether the request failed: because of the mesh, with a status of 500 or more, or with a gRPC status that means
    /// a fault of the server.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.status >= 500 || self.error.is_some() || self.grpc_status.is_some_and(is_failed_call)
    }

    /// Adds what the server's proxy knows to the request of the client's proxy, and removes the mark.
    #[must_use]
    pub fn join(mut self, server: &Self) -> Self {
        self.decisions.extend(server.decisions.iter().cloned());
        self.server_identity = self.server_identity.or_else(|| server.server_identity.clone());
        // A proxy that only forwards the frames between two HTTP/2 streams does not see the bodies. Then only the other
        // proxy has them.
        self.request_body = self.request_body.or_else(|| server.request_body.clone());
        self.response_body = self.response_body.or_else(|| server.response_body.clone());
        let waited = self.latency.first_byte_us().zip(self.latency.client_proxy_us);
        let network_us = waited
            .zip(server.latency.first_byte_us())
            .map(|((byte, sent), server)| byte.saturating_sub(sent).saturating_sub(server));
        let latency = RequestLatency {
            network_us,
            server_proxy_us: server.latency.server_proxy_us,
            application_us: server.latency.application_us,
            ..self.latency
        };
        Self { latency, mark: None, ..self }
    }
}

impl RequestLatency {
    /// The times that the client's proxy knows: when the request was sent, and when its response began.
    #[must_use]
    pub fn of_client(total_us: u64, sent_us: Option<u64>, first_byte_us: Option<u64>) -> Self {
        let response_us = first_byte_us.map(|byte| total_us.saturating_sub(byte));
        Self { total_us, client_proxy_us: sent_us, response_us, ..Self::default() }
    }

    /// The times that the server's proxy knows.
    #[must_use]
    pub fn of_server(total_us: u64, sent_us: Option<u64>, first_byte_us: Option<u64>) -> Self {
        let waited = first_byte_us.zip(sent_us).map(|(byte, sent)| byte.saturating_sub(sent));
        Self {
            server_proxy_us: sent_us,
            application_us: waited,
            client_proxy_us: None,
            ..Self::of_client(total_us, None, first_byte_us)
        }
    }

    /// The time from the beginning of the request to the beginning of its response.
    fn first_byte_us(&self) -> Option<u64> {
        self.response_us.map(|response| self.total_us.saturating_sub(response))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_is_what_neither_proxy_has() {
        let client = TappedRequest {
            latency: RequestLatency::of_client(1200, Some(100), Some(1100)),
            mark: Some("7".into()),
            ..TappedRequest::default()
        };
        let server = TappedRequest {
            latency: RequestLatency::of_server(900, Some(50), Some(850)),
            ..TappedRequest::default()
        };
        let joined = client.join(&server);
        let wanted = RequestLatency {
            total_us: 1200,
            client_proxy_us: Some(100),
            network_us: Some(150),
            server_proxy_us: Some(50),
            application_us: Some(800),
            response_us: Some(100),
        };
        assert_eq!((joined.latency, joined.mark), (wanted, None));
    }

    #[test]
    fn what_a_proxy_writes_is_what_the_command_reads() {
        let request = TappedRequest {
            direction: "outbound".into(),
            mark: Some("00ab".into()),
            error: Some("failfast".into()),
            headers: vec![("accept".into(), "*/*".into())],
            ..TappedRequest::default()
        };
        let page = TapPage { requests: vec![request.clone()], ..TapPage::default() };
        let text = serde_json::to_string(&page).unwrap();
        let read: TapPage = serde_json::from_str(&text).unwrap();
        assert_eq!(read.requests, [request]);
    }
}
