//! OpenTelemetry's protocol OTLP: spans of requests, with the names of its semantic conventions for HTTP and for RPC,
//! and records of the access log.

use bytes::Bytes;
use leno_tap::{TappedRequest, TraceSpan};
use prost::Message;

#[expect(unreachable_pub, reason = "generated; the proto file has the comments")]
mod proto {
    include!("generated/opentelemetry.rs");
}

mod logs;

pub use logs::encode_records;

use proto::any_value::Value;

/// The paths of the gRPC call and the HTTP request that export spans.
pub const SPAN_PATHS: ExportPaths = ExportPaths {
    grpc: "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    http: "/v1/traces",
};
/// The paths of the gRPC call and the HTTP request that export log records.
pub const RECORD_PATHS: ExportPaths = ExportPaths {
    grpc: "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    http: "/v1/logs",
};

/// Methods that are reported by name. All others are `_OTHER`, because clients choose them freely.
const METHODS: [&str; 10] =
    ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE", "QUERY"];

const KIND_SERVER: i32 = 2;
const KIND_CLIENT: i32 = 3;
const STATUS_ERROR: i32 = 2;

/// The paths at which a collector accepts exports.
#[derive(Clone, Copy, Debug)]
pub struct ExportPaths {
    /// For a gRPC call.
    pub grpc: &'static str,
    /// For an HTTP request.
    pub http: &'static str,
}

/// The proxy to which the exported spans and records belong.
#[derive(Clone, Copy, Debug)]
pub struct OtlpResource<'a> {
    /// The workload's namespace.
    pub namespace: &'a str,
    /// The workload.
    pub service: &'a str,
    /// The instance of the workload.
    pub instance: &'a str,
}

/// Encodes these spans as a message.
#[must_use]
pub fn encode_spans(resource: OtlpResource<'_>, spans: Vec<TraceSpan>) -> Bytes {
    let spans = spans.into_iter().map(span).collect();
    let request = proto::ExportTraceServiceRequest {
        resource_spans: vec![proto::ResourceSpans {
            resource: Some(resource.message()),
            scope_spans: vec![proto::ScopeSpans { scope: Some(scope()), spans }],
        }],
    };
    request.encode_to_vec().into()
}

/// How many spans or records a collector has rejected, according to its answer. An answer that cannot be read counts as
/// no rejection.
#[must_use]
pub fn rejected(answer: &[u8]) -> u64 {
    let answer = proto::ExportServiceResponse::decode(answer).unwrap_or_default();
    let rejected = answer.partial_success.map_or(0, |partial| partial.rejected);
    u64::try_from(rejected).unwrap_or_default()
}

impl OtlpResource<'_> {
    fn message(self) -> proto::Resource {
        let attributes = vec![
            text("service.name", self.service),
            text("service.namespace", self.namespace),
            text("service.instance.id", format!("{}/{}", self.namespace, self.instance)),
        ];
        proto::Resource { attributes }
    }
}

fn scope() -> proto::InstrumentationScope {
    proto::InstrumentationScope {
        name: "leno-proxy".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

fn span(span: TraceSpan) -> proto::Span {
    let request = &span.request;
    let is_client = request.is_outbound();
    let start = request.at_unix_us.saturating_mul(1000);
    let call = request.grpc_status.and_then(|_| call(path(&request.target).0));
    let name = match call {
        Some((service, method)) => format!("{service}/{method}"),
        None => method(request).to_owned(),
    };
    proto::Span {
        trace_id: Bytes::copy_from_slice(&span.trace_id.to_be_bytes()),
        span_id: Bytes::copy_from_slice(&span.span_id.to_be_bytes()),
        parent_span_id: span
            .parent
            .map(|parent| Bytes::copy_from_slice(&parent.to_be_bytes()))
            .unwrap_or_default(),
        name,
        kind: if is_client { KIND_CLIENT } else { KIND_SERVER },
        start_time_unix_nano: start,
        end_time_unix_nano: start.saturating_add(request.latency.total_us.saturating_mul(1000)),
        attributes: attributes(request, call),
        status: is_error(request).then(|| proto::Status {
            message: request.error.as_deref().unwrap_or_default().to_owned(),
            code: STATUS_ERROR,
        }),
        flags: u32::from(span.sampled),
    }
}

fn attributes(request: &TappedRequest, call: Option<(&str, &str)>) -> Vec<proto::KeyValue> {
    let (path, query) = path(&request.target);
    let (host, port) = host(&request.authority);
    let mut all = vec![
        text("http.request.method", method(request)),
        text("url.path", path),
        text("url.scheme", "http"),
        text("network.protocol.name", "http"),
        text("network.protocol.version", version(&request.protocol)),
        int("http.request.size", request.request_bytes),
        int("http.response.size", request.response_bytes),
        text("leno.client", &*request.client),
        text("leno.server", &*request.server),
        flag("leno.mtls", request.mtls),
    ];
    if request.status != 0 {
        all.push(int("http.response.status_code", request.status));
    }
    if method(request) != &*request.method {
        all.push(text("http.request.method_original", &*request.method));
    }
    let optional = [
        ("url.query", query),
        ("server.address", Some(host).filter(|host| !host.is_empty())),
        ("error.type", error_type(request).as_deref()),
        ("leno.service", Some(&*request.service).filter(|service| !service.is_empty())),
        ("leno.route", request.route.as_deref()),
        ("leno.client.identity", request.client_identity.as_deref()),
        ("leno.server.identity", request.server_identity.as_deref()),
    ]
    .map(|(key, value)| value.map(|value| text(key, value)));
    all.extend(optional.into_iter().flatten());
    all.extend(port.map(|port| int("server.port", port)));
    if request.retries > 0 {
        all.push(int("http.request.resend_count", request.retries));
    }
    if let (Some((service, method)), Some(status)) = (call, request.grpc_status) {
        all.push(text("rpc.system", "grpc"));
        all.push(text("rpc.service", service));
        all.push(text("rpc.method", method));
        all.push(int("rpc.grpc.status_code", status));
    }
    let latency = &request.latency;
    let parts = [
        ("leno.client_proxy_us", latency.client_proxy_us),
        ("leno.server_proxy_us", latency.server_proxy_us),
        ("leno.application_us", latency.application_us),
        ("leno.response_us", latency.response_us),
    ];
    all.extend(parts.into_iter().filter_map(|(key, us)| Some(int(key, us?))));
    all
}

/// Whether the request is an error in this proxy's span. In the client's span, every status from 400 on and every gRPC
/// status other than OK is an error; in the server's span, only what is the server's or the mesh's fault.
fn is_error(request: &TappedRequest) -> bool {
    let is_refused = match request.grpc_status {
        Some(status) => status != 0,
        None => request.status >= 400,
    };
    request.is_failed() || request.is_outbound() && is_refused
}

fn error_type(request: &TappedRequest) -> Option<String> {
    if !is_error(request) {
        return None;
    }
    Some(match (&request.error, request.grpc_status) {
        (Some(cause), _) => cause.to_string(),
        (None, Some(status)) if status != 0 => status.to_string(),
        _ => request.status.to_string(),
    })
}

fn method(request: &TappedRequest) -> &'static str {
    METHODS.into_iter().find(|one| *one == &*request.method).unwrap_or("_OTHER")
}

/// Splits the target of a request into its path and its query.
fn path(target: &str) -> (&str, Option<&str>) {
    let target = match target.split_once("://") {
        Some((_, rest)) => rest.find('/').and_then(|slash| rest.get(slash..)).unwrap_or("/"),
        None => target,
    };
    match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    }
}

/// Splits an authority into its host and its port.
fn host(authority: &str) -> (&str, Option<u16>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !host.ends_with(':') && !port.ends_with(']') => {
            port.parse().map_or((authority, None), |port| (host, Some(port)))
        }
        _ => (authority, None),
    }
}

/// The service and the method in the path of a gRPC call.
fn call(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix('/')?.rsplit_once('/')
}

/// `1.1` for `HTTP/1.1`, `2` for `HTTP/2`.
fn version(protocol: &str) -> &str {
    protocol.strip_prefix("HTTP/").unwrap_or(protocol)
}

fn text(key: &str, value: impl Into<String>) -> proto::KeyValue {
    let value = Some(proto::AnyValue { value: Some(Value::Text(value.into())) });
    proto::KeyValue { key: key.to_owned(), value }
}

fn int(key: &str, value: impl TryInto<i64>) -> proto::KeyValue {
    let value = Value::Number(value.try_into().unwrap_or(i64::MAX));
    proto::KeyValue { key: key.to_owned(), value: Some(proto::AnyValue { value: Some(value) }) }
}

fn flag(key: &str, value: bool) -> proto::KeyValue {
    let value = Some(proto::AnyValue { value: Some(Value::Flag(value)) });
    proto::KeyValue { key: key.to_owned(), value }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(direction: &'static str, status: u16) -> TappedRequest {
        TappedRequest {
            direction: direction.into(),
            protocol: "HTTP/1.1".into(),
            method: "GET".into(),
            authority: "cart.shop:8080".into(),
            target: "http://cart.shop:8080/items?id=1".into(),
            status,
            ..TappedRequest::default()
        }
    }

    /// The span's name, its attributes as `key=value`, and whether it is an error.
    fn made(request: TappedRequest) -> (String, Vec<String>, bool) {
        let span =
            span(TraceSpan { trace_id: 1, span_id: 2, parent: None, sampled: true, request });
        let shown = |value: &proto::KeyValue| {
            let value = value.value.as_ref().and_then(|value| value.value.clone());
            match value {
                Some(Value::Text(text)) => text,
                Some(Value::Number(number)) => number.to_string(),
                other => format!("{other:?}"),
            }
        };
        let attributes = span.attributes.iter().map(|one| format!("{}={}", one.key, shown(one)));
        (span.name.clone(), attributes.collect(), span.status.is_some())
    }

    #[test]
    fn attributes_have_the_names_of_the_conventions() {
        let (name, attributes, is_error) = made(request("outbound", 404));
        assert_eq!((&*name, is_error), ("GET", true));
        for wanted in [
            "http.request.method=GET",
            "http.response.status_code=404",
            "url.path=/items",
            "url.query=id=1",
            "server.address=cart.shop",
            "server.port=8080",
            "network.protocol.version=1.1",
            "error.type=404",
        ] {
            assert!(
                attributes.iter().any(|one| one == wanted),
                "{wanted} is not in {attributes:?}"
            );
        }
        assert!(!made(request("inbound", 404)).2, "a 404 is not an error of the server");
        assert!(made(request("inbound", 500)).2);
    }

    #[test]
    fn a_call_of_grpc_is_named_by_its_method() {
        let call = TappedRequest {
            method: "POST".into(),
            target: "/shop.Cart/Add".into(),
            grpc_status: Some(14),
            ..request("inbound", 200)
        };
        let (name, attributes, is_error) = made(call);
        assert_eq!((&*name, is_error), ("shop.Cart/Add", true));
        for wanted in [
            "rpc.system=grpc",
            "rpc.service=shop.Cart",
            "rpc.method=Add",
            "rpc.grpc.status_code=14",
            "error.type=14",
        ] {
            assert!(
                attributes.iter().any(|one| one == wanted),
                "{wanted} is not in {attributes:?}"
            );
        }
    }

    #[test]
    fn an_unknown_method_is_not_used_as_the_name_of_a_span() {
        let odd = TappedRequest { method: "STEAL".into(), ..request("inbound", 200) };
        let (name, attributes, _) = made(odd);
        assert_eq!(name, "_OTHER");
        assert!(attributes.iter().any(|one| one == "http.request.method_original=STEAL"));
    }

    #[test]
    fn refused_spans_are_counted() {
        let answer = proto::ExportServiceResponse {
            partial_success: Some(proto::ExportPartialSuccess {
                rejected: 3,
                error_message: String::new(),
            }),
        };
        assert_eq!(rejected(&answer.encode_to_vec()), 3);
        assert_eq!((rejected(b""), rejected(b"\xff")), (0, 0));
    }
}
