//! What is answered, in words and numbers that programs may rely on.

use leno_types::Protocol;
use leno_types::mesh::{Endpoint, Place, Service, ServicePort, Workload};
use leno_types::routes::HeaderChanges;
use serde::Serialize;

use super::policies::PolicyAnswer;
use super::question::Question;
use crate::sender::Sender;

/// What becomes of one request, and why of nothing else.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// Who sends it.
    pub client: Client,
    /// The method.
    pub method: String,
    /// The host and port as the client names them.
    pub authority: String,
    /// Path and query.
    pub target: String,
    /// What stands at the address dialled.
    pub destination: Destination,
    /// The rule that it follows; none where no route does.
    pub rule: Option<RuleAnswer>,
    /// What becomes of it.
    pub outcome: Outcome,
    /// Where it can go, each with its part.
    pub backends: Vec<BackendAnswer>,
    /// How long it may take.
    pub timeouts: TimeoutsAnswer,
    /// What policies say, part by part, and which of them hold.
    pub policies: Vec<PolicyAnswer>,
    /// Every match of the routes here, in the order of precedence.
    pub considered: Vec<ConsideredMatch>,
    /// Routes that name the service and count for nothing for this request, each with its reason.
    pub ignored: Vec<String>,
    /// Anything else that is worth knowing.
    pub notes: Vec<String>,
}

/// Who sends a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Client {
    /// The namespace: with it it is decided which routes hold.
    pub namespace: String,
    /// The workload.
    pub workload: String,
    /// Whether it has a proxy.
    pub meshed: bool,
}

/// What stands at an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Destination {
    /// `service`, `workload` or `outside`.
    pub kind: &'static str,
    /// `<namespace>/<name>`; empty for what the mesh does not know.
    pub name: String,
    /// The port dialled.
    pub port: u16,
    /// What the port carries: `http1`, `http2`, `opaque`, or `detect` where nobody says.
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
    /// The rule's place in the route.
    pub index: usize,
    /// The rule's name, where it has one.
    pub name: Option<String>,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// `forwarded`, `relayed` (as bytes), `answered` (by the mesh), `failed`, `outside` (as it is) or
    /// `unmeshed`.
    pub kind: &'static str,
    /// The status where the mesh answers, and where every backend fails.
    pub status: Option<u16>,
    /// The `leno-error` header of the answer.
    pub leno_error: Option<String>,
    /// Headers of the answer.
    pub headers: Vec<(String, String)>,
    /// The same for people.
    pub text: String,
}

/// One place that requests go to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BackendAnswer {
    /// `<namespace>/<name>`: a service or, called by its own address, a workload.
    pub service: String,
    /// The port.
    pub port: u16,
    /// Its part of the requests, 0 to 1.
    pub share: f64,
    /// Why it takes no requests, where it takes none.
    pub invalid: Option<&'static str>,
    /// The `leno-error` of its part, where that fails.
    pub leno_error: Option<String>,
    /// The host that the application is called by, where it is another one.
    pub host: Option<String>,
    /// Path and query as the application sees them.
    pub target: Option<String>,
    /// Changes of the request's headers.
    pub request_headers: HeaderEdits,
    /// Changes of the response's headers.
    pub response_headers: HeaderEdits,
    /// Where copies go.
    pub mirrors: Vec<MirrorAnswer>,
    /// Who can serve it.
    pub endpoints: Vec<EndpointAnswer>,
}

/// Changes of headers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeaderEdits {
    /// In place of all of the same name.
    pub set: Vec<(String, String)>,
    /// To those of the same name.
    pub add: Vec<(String, String)>,
    /// Left out.
    pub remove: Vec<String>,
}

/// Where copies of requests go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MirrorAnswer {
    /// `<namespace>/<name>:<port>`, or why there is none.
    pub to: String,
    /// So many requests
    pub numerator: u32,
    /// of so many.
    pub denominator: u32,
}

/// Who can serve a backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EndpointAnswer {
    /// The instance, where it is one of the mesh.
    pub workload: Option<String>,
    /// Its address, or its name outside of the mesh, with the port.
    pub address: String,
    /// Whom the proxy expects over mTLS; none means plaintext, or TLS with a server outside.
    pub identity: Option<String>,
    /// Whom the proxy asks for over TLS, and who says so; none means that it begins none.
    pub tls: Option<String>,
}

/// How long a request may take; none means without end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TimeoutsAnswer {
    /// In all, in milliseconds.
    pub request_ms: Option<u64>,
    /// Each time that it is sent, in milliseconds.
    pub backend_request_ms: Option<u64>,
}

/// One match, and how the request stands to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConsideredMatch {
    /// Its rule, as `leno-error` names it.
    pub rule: String,
    /// Its place in the rule.
    pub index: usize,
    /// Whether the request has all that it asks for.
    pub holds: bool,
    /// Whether a proxy comes to it: not after the first that holds.
    pub reached: bool,
    /// What the request lacks, or why the match does not get it.
    pub reason: String,
}

impl Explanation {
    pub(super) fn new(sender: &Sender, question: &Question) -> Self {
        Self {
            client: Client {
                namespace: sender.namespace.clone(),
                workload: sender.workload.clone(),
                meshed: sender.meshed,
            },
            method: question.method.clone(),
            authority: question.authority().to_owned(),
            target: question.target.clone(),
            destination: Destination::outside(question.port),
            rule: None,
            outcome: Outcome::outside(),
            backends: Vec::new(),
            timeouts: TimeoutsAnswer::default(),
            policies: Vec::new(),
            considered: Vec::new(),
            ignored: Vec::new(),
            notes: Vec::new(),
        }
    }
}

impl Destination {
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

impl Outcome {
    fn new(kind: &'static str, text: &str) -> Self {
        let (status, leno_error, headers) = (None, None, Vec::new());
        Self { kind, status, leno_error, headers, text: text.to_owned() }
    }

    pub(super) fn outside() -> Self {
        Self::new("outside", "goes there as it is: the mesh knows nothing of that address")
    }

    pub(super) fn egress_denied() -> Self {
        let text = "is answered 403: the mesh knows nothing of that address, and leno.dev/egress of the \
                    client says deny; what is not of HTTP is reset";
        let (status, leno_error) = (Some(403), Some("egress-denied".to_owned()));
        Self { status, leno_error, ..Self::new("answered", text) }
    }

    pub(super) fn unmeshed() -> Self {
        Self::new(
            "unmeshed",
            "the client has no proxy: no route and no policy of clients holds for it",
        )
    }

    /// Of a connection that a route refuses.
    pub(super) fn closed(text: &str) -> Self {
        Self::new("failed", text)
    }

    pub(super) fn no_such_port() -> Self {
        Self::new("failed", "the connection is refused: the Service has no such port")
    }

    /// `asked` says that bytes were asked about, and not that the port is declared so.
    pub(super) fn relayed(asked: bool) -> Self {
        let text = match asked {
            true => "is relayed as bytes to one endpoint",
            false => {
                "is relayed as bytes to one endpoint: the port is not of HTTP, so no HTTP route holds"
            }
        };
        Self::new("relayed", text)
    }

    /// Goes to one of these; what fails where nobody is there.
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
            ..Self::new("failed", "nothing behind the backend takes traffic")
        }
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
            place: Place::default(),
        };
        let endpoints = EndpointAnswer::of(&endpoint).into_iter().collect();
        Self { endpoints, ..Self::empty(workload.name.to_string(), port, 1.0) }
    }
}

impl EndpointAnswer {
    /// Nothing where it has no address at all.
    fn of(endpoint: &Endpoint) -> Option<Self> {
        let address = std::net::SocketAddr::new(*endpoint.addresses.first()?, endpoint.port);
        Some(Self {
            workload: endpoint.workload.as_ref().map(ToString::to_string),
            address: address.to_string(),
            identity: endpoint.identity.as_ref().map(ToString::to_string),
            tls: None,
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
    /// Whether nothing is changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.add.is_empty() && self.remove.is_empty()
    }
}
