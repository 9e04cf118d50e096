//! The answer to the question what happens to a request: text for people, and fields that programs may rely on.

use leno_types::Protocol;
use leno_types::mesh::{Endpoint, Service, ServicePort, Topology, Workload};
use leno_types::routes::HeaderChanges;
use serde::Serialize;

use super::policies::PolicyAnswer;
use super::question::ExplainQuestion;
use crate::authz::AuthorizationAnswer;
use crate::mesh::OutsideReach;
use crate::sender::Sender;

/// What happens to one request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The workload that sends it.
    pub client: ClientAnswer,
    /// The method of the request.
    pub method: String,
    /// The host and port as the client names them.
    pub authority: String,
    /// Path and query.
    pub target: String,
    /// The service or workload at the address that the client connects to.
    pub destination: DestinationAnswer,
    /// The rule that the request follows; `None` if it follows no route.
    pub rule: Option<RuleAnswer>,
    /// Whether the request is forwarded, answered by the mesh, or fails.
    pub outcome: OutcomeAnswer,
    /// The backends that the request can go to, each with its share of such requests.
    pub backends: Vec<BackendAnswer>,
    /// The timeouts that apply to the request.
    pub timeouts: TimeoutsAnswer,
    /// What policies set, part by part, and which parts apply.
    pub policies: Vec<PolicyAnswer>,
    /// How the servers' policies decide about the request; empty if they permit everything.
    pub authorization: Vec<AuthorizationAnswer>,
    /// Every match of the service's routes, in the order of precedence.
    pub considered: Vec<ConsideredMatch>,
    /// Routes that name the service but do not apply to this request, each with its reason.
    pub ignored: Vec<String>,
    /// Further remarks.
    pub notes: Vec<String>,
}

/// The workload that sends a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClientAnswer {
    /// The namespace, which decides which routes apply.
    pub namespace: String,
    /// The name of the workload, or of the object that owns it, such as a Deployment.
    pub workload: String,
    /// Whether it has a proxy.
    pub meshed: bool,
}

/// The service or workload at an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DestinationAnswer {
    /// `service`, `workload` or `outside`.
    pub kind: &'static str,
    /// `<namespace>/<name>`; empty if the mesh does not know the address.
    pub name: String,
    /// The port that the client connects to.
    pub port: u16,
    /// The port's protocol: `http1`, `http2`, `opaque`, or `detect` if no document declares one.
    pub protocol: &'static str,
    /// Its addresses.
    pub addresses: Vec<String>,
}

/// The rule that a request follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleAnswer {
    /// `HTTPRoute` and the like.
    pub kind: &'static str,
    /// The route's namespace.
    pub namespace: String,
    /// The route's name.
    pub route: String,
    /// The rule's position in the route.
    pub index: usize,
    /// The rule's name, if it has one.
    pub name: Option<String>,
}

/// What happens to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OutcomeAnswer {
    /// `forwarded`, `relayed` (as bytes), `answered` (by the mesh), `failed`, `outside` (forwarded
    /// unchanged) or `unmeshed`.
    pub kind: &'static str,
    /// The status, if the mesh itself answers or every backend fails.
    pub status: Option<u16>,
    /// The `leno-error` header of the mesh's own answer.
    pub leno_error: Option<String>,
    /// Further headers of the mesh's own answer.
    pub headers: Vec<(String, String)>,
    /// The outcome in words.
    pub text: String,
}

/// One backend that the request can go to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BackendAnswer {
    /// `<namespace>/<name>` of a service or, if the client calls its address directly, of a
    /// workload.
    pub service: String,
    /// The port of the service or workload.
    pub port: u16,
    /// Its share of such requests, 0 to 1.
    pub share: f64,
    /// Why it takes no requests; `None` if it takes some.
    pub invalid: Option<&'static str>,
    /// The `leno-error` header of answers to its share of the requests, if these fail.
    pub leno_error: Option<String>,
    /// The host that the application receives, if a filter rewrites it.
    pub host: Option<String>,
    /// Path and query that the application receives.
    pub target: Option<String>,
    /// Changes of the request's headers.
    pub request_headers: HeaderEdits,
    /// Changes of the response's headers.
    pub response_headers: HeaderEdits,
    /// Where copies of the request are sent.
    pub mirrors: Vec<MirrorAnswer>,
    /// The endpoints that can serve it.
    pub endpoints: Vec<EndpointAnswer>,
}

/// Changes of headers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeaderEdits {
    /// Headers that replace all headers of the same name.
    pub set: Vec<(String, String)>,
    /// Headers that are added to those of the same name.
    pub add: Vec<(String, String)>,
    /// Names of the headers that are removed.
    pub remove: Vec<String>,
}

/// A destination of copies of requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MirrorAnswer {
    /// `<namespace>/<name>:<port>`, or why there is none.
    pub to: String,
    /// How many requests are copied, out of [`denominator`](Self::denominator).
    pub numerator: u32,
    /// The number of requests of which `numerator` are copied.
    pub denominator: u32,
}

/// An endpoint that can serve a backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EndpointAnswer {
    /// The instance, if it belongs to the mesh.
    pub workload: Option<String>,
    /// Its address with the port; for an endpoint outside of the mesh its host name, if known by
    /// name.
    pub address: String,
    /// The identity that the proxy expects over mTLS; `None` for plaintext, and for TLS with a server outside of
    /// the mesh.
    pub identity: Option<String>,
    /// The server name that the proxy requests over TLS, and the policy that sets it; `None` if the proxy
    /// originates no TLS.
    pub tls: Option<String>,
    /// Why the client's proxy does not use the endpoint at present, if known: `unreachable` or `failing`.
    pub ejected: Option<String>,
}

/// How long a request may take; `None` stands for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TimeoutsAnswer {
    /// For the whole request, in milliseconds.
    pub request_ms: Option<u64>,
    /// For each attempt, in milliseconds.
    pub backend_request_ms: Option<u64>,
}

/// One match of a route, and whether the request satisfies it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConsideredMatch {
    /// Its rule, in the notation of `leno-error`.
    pub rule: String,
    /// Its position in the rule.
    pub index: usize,
    /// Whether the request satisfies all its conditions.
    pub holds: bool,
    /// Whether the proxy evaluates it. Matches after the first one that holds are not evaluated.
    pub reached: bool,
    /// The condition that the request fails, or why the match does not get the request.
    pub reason: String,
}

impl Explanation {
    pub(super) fn new(sender: &Sender, question: &ExplainQuestion) -> Self {
        Self {
            client: ClientAnswer::of(sender),
            method: question.method.clone(),
            authority: question.authority().to_owned(),
            target: question.target.clone(),
            destination: DestinationAnswer::outside(question.port),
            rule: None,
            outcome: OutcomeAnswer::outside(OutsideReach::Open),
            backends: Vec::new(),
            timeouts: TimeoutsAnswer::default(),
            policies: Vec::new(),
            authorization: Vec::new(),
            considered: Vec::new(),
            ignored: Vec::new(),
            notes: Vec::new(),
        }
    }
}

impl ClientAnswer {
    pub(crate) fn of(sender: &Sender) -> Self {
        Self {
            namespace: sender.namespace.clone(),
            workload: sender.workload.clone(),
            meshed: sender.meshed,
        }
    }
}

impl Explanation {
    /// Records that a proxy of the client has ejected an instance behind a service. If `service` is empty, the
    /// client calls the instance by its own address.
    pub fn eject(&mut self, (namespace, service): (&str, &str), instance: &str, reason: &str) {
        let workload = format!("{namespace}/{instance}");
        let wanted = format!("{namespace}/{service}");
        for backend in &mut self.backends {
            if backend.service != wanted && !(service.is_empty() && backend.service == workload) {
                continue;
            }
            for endpoint in &mut backend.endpoints {
                if endpoint.workload.as_deref() == Some(&*workload) {
                    endpoint.ejected = Some(reason.to_owned());
                }
            }
        }
    }
}

impl DestinationAnswer {
    fn outside(port: u16) -> Self {
        let protocol = Protocol::Detect.as_str();
        Self { kind: "outside", name: String::new(), port, protocol, addresses: Vec::new() }
    }

    pub(super) fn service(service: &Service, port: u16) -> Self {
        let protocol = service.port(port).map_or(Protocol::Detect, |port| port.protocol);
        Self {
            kind: "service",
            name: service.name.to_string(),
            port,
            protocol: protocol.as_str(),
            addresses: service.vips.iter().map(ToString::to_string).collect(),
        }
    }

    pub(super) fn workload(workload: &Workload, port: u16, protocol: Protocol) -> Self {
        Self {
            kind: "workload",
            name: workload.name.to_string(),
            port,
            protocol: protocol.as_str(),
            addresses: workload.addresses.iter().map(ToString::to_string).collect(),
        }
    }
}

impl OutcomeAnswer {
    fn new(kind: &'static str, text: &str) -> Self {
        let (status, leno_error, headers) = (None, None, Vec::new());
        Self { kind, status, leno_error, headers, text: text.to_owned() }
    }

    pub(super) fn outside(way_out: OutsideReach) -> Self {
        match way_out {
            OutsideReach::Open => Self::new(
                "outside",
                "goes there unchanged, because the address is outside of the \
                 mesh",
            ),
            OutsideReach::WithUplink => Self::new(
                "outside",
                "goes there unchanged if `leno up` has --uplink, and is refused otherwise, because \
                 the address is outside of the mesh",
            ),
            OutsideReach::None => Self::new(
                "failed",
                "is refused, because the address is outside of the mesh, and `leno up` runs \
                 without --uplink",
            ),
        }
    }

    /// Refused because the destination is not in the mesh. `bytes` is whether the client sends something else than
    /// HTTP requests.
    pub(super) fn egress_denied(bytes: bool) -> Self {
        if bytes {
            return Self::closed(
                "the connection is reset, because the address is outside of the mesh, and the \
                 client has leno.dev/egress: deny",
            );
        }
        let text = "gets 403, because the address is outside of the mesh, and the client has \
                    leno.dev/egress: deny";
        let (status, leno_error) = (Some(403), Some("egress-denied".to_owned()));
        Self { status, leno_error, ..Self::new("answered", text) }
    }

    pub(super) fn unmeshed() -> Self {
        Self::new("unmeshed", "the client has no proxy, so no route and no client policy applies")
    }

    /// A connection that is refused or reset.
    pub(super) fn closed(text: &str) -> Self {
        Self::new("failed", text)
    }

    pub(super) fn no_such_port() -> Self {
        Self::new("failed", "the connection is refused, because the Service has no such port")
    }

    /// Relayed as bytes. `asked` is whether the question was about bytes; otherwise the port is declared opaque.
    pub(super) fn relayed(asked: bool) -> Self {
        let text = match asked {
            true => "is relayed as opaque bytes to one endpoint",
            false => {
                "is relayed as opaque bytes to one endpoint: the port is not of HTTP, so no HTTP \
                 route holds"
            }
        };
        Self::new("relayed", text)
    }

    /// The request is forwarded to one of these backends; the outcome is an error if none of them has an endpoint.
    pub(super) fn forwarded(backends: &[BackendAnswer]) -> Self {
        let served =
            |backend: &&BackendAnswer| backend.share > 0.0 && !backend.endpoints.is_empty();
        let invalid = backends.iter().find(|one| one.share > 0.0 && one.invalid.is_some());
        if backends.iter().any(|backend| served(&backend)) {
            let text = match (backends.len(), invalid) {
                (_, Some(_)) => "goes to one of the backends, or fails, by weight",
                (1, None) => "goes to one endpoint of the backend",
                _ => "goes to one of the backends, by weight",
            };
            return Self::new("forwarded", text);
        }
        Self {
            status: Some(503),
            leno_error: Some("no-endpoints".to_owned()),
            ..Self::new("failed", "no endpoint of the backend is ready")
        }
    }

    /// Denied by the policies of every server.
    pub(crate) fn denied(is_http: bool, reason: &str) -> Self {
        if is_http {
            let text = format!("every endpoint denies it: {reason}");
            return Self::refused(403, "authorization-denied".to_owned(), &text);
        }
        Self::new("failed", &format!("the connection is reset: {reason}"))
    }

    pub(super) fn answered(status: u16, headers: Vec<(String, String)>, text: &str) -> Self {
        Self { status: Some(status), headers, ..Self::new("answered", text) }
    }

    pub(super) fn refused(status: u16, leno_error: String, text: &str) -> Self {
        let (status, leno_error) = (Some(status), Some(leno_error));
        Self { status, leno_error, ..Self::new("failed", text) }
    }
}

impl BackendAnswer {
    pub(super) fn empty(service: String, port: u16, share: f64) -> Self {
        Self {
            service,
            port,
            share,
            invalid: None,
            leno_error: None,
            host: None,
            target: None,
            request_headers: HeaderEdits::default(),
            response_headers: HeaderEdits::default(),
            mirrors: Vec::new(),
            endpoints: Vec::new(),
        }
    }

    pub(super) fn of_port(service: &Service, port: &ServicePort, share: f64) -> Self {
        let mut endpoints: Vec<_> = port.endpoints.iter().flat_map(EndpointAnswer::of).collect();
        if let Some(external) = &port.external {
            endpoints.extend(external.names.iter().map(|name| EndpointAnswer {
                workload: None,
                address: format!("{}:{}", name.host, name.port),
                identity: None,
                tls: None,
                ejected: None,
            }));
            let tls = external.tls.as_ref();
            let tls = tls.map(|tls| format!("{}, by {}", tls.hostname, tls.source));
            for endpoint in endpoints.iter_mut().filter(|endpoint| endpoint.identity.is_none()) {
                endpoint.tls.clone_from(&tls);
            }
        }
        Self { endpoints, ..Self::empty(service.name.to_string(), port.port, share) }
    }

    pub(super) fn of_workload(workload: &Workload, port: u16) -> Self {
        let endpoint = Endpoint {
            workload: Some(workload.name.clone()),
            addresses: workload.addresses.clone(),
            port,
            identity: workload.identity.clone(),
            place: Topology::default(),
            wire: workload.wire,
        };
        let endpoints = EndpointAnswer::of(&endpoint).into_iter().collect();
        Self { endpoints, ..Self::empty(workload.name.to_string(), port, 1.0) }
    }
}

impl EndpointAnswer {
    /// The answer for an endpoint; `None` if the endpoint has no address.
    fn of(endpoint: &Endpoint) -> Option<Self> {
        let address = std::net::SocketAddr::new(*endpoint.addresses.first()?, endpoint.port);
        Some(Self {
            workload: endpoint.workload.as_ref().map(ToString::to_string),
            address: address.to_string(),
            identity: endpoint.identity.as_ref().map(ToString::to_string),
            tls: None,
            ejected: None,
        })
    }
}

impl From<&HeaderChanges> for HeaderEdits {
    fn from(changes: &HeaderChanges) -> Self {
        let list = |list: &[(std::sync::Arc<str>, std::sync::Arc<str>)]| {
            list.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
        };
        let remove = changes.remove.iter().map(ToString::to_string).collect();
        Self { set: list(&changes.set), add: list(&changes.add), remove }
    }
}

impl HeaderEdits {
    /// Whether no header is changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.add.is_empty() && self.remove.is_empty()
    }
}
