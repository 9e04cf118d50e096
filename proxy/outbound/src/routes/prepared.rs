//! Rules in a form in which only the work that depends on a request is left to do.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_balance::hash;
use leno_http::{HeaderLine, RequestView};
use leno_policy::{MergedFilters, TableRule};
use leno_telemetry::{CountedRule, RouteLabels};
use leno_types::ServiceName;
use leno_types::routes::{
    Cors, HeaderChanges, Mirror, PathChange, RouteBackend, RouteRule, RouteTarget, SessionAffinity,
};

use super::session::{self, RequestSession};
use crate::Worker;
use crate::destination::Destination;
use crate::policy::RequestPolicy;

/// A rule, ready to be applied.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) cors: Option<Cors>,
    pub(super) backends: Vec<PreparedBackend>,
    /// Whether a match of the rule names the method CONNECT.
    pub(super) names_connect: bool,
    pub(super) request_timeout: Option<Duration>,
    pub(super) backend_timeout: Option<Duration>,
    /// How the rule keeps a client's requests on one endpoint.
    pub(super) session: Option<SessionAffinity>,
    /// The policy of the rule's requests; `None` if the rule has no policy of its own.
    pub(super) policy: Option<Rc<RequestPolicy>>,
    /// Counts the rule's requests.
    pub(super) counted: CountedRule,
}

/// A backend of a rule, with the merged filters of both.
#[derive(Debug)]
pub(super) struct PreparedBackend {
    /// The destination to which the reference leads; `None` if the reference is invalid.
    pub(super) target: Option<Rc<Destination>>,
    /// Identifies the backend in sessions.
    pub(super) id: u32,
    pub(super) request: Lines,
    pub(super) response: Lines,
    pub(super) path: Option<PathChange>,
    /// Whether `request` sets another host.
    pub(super) sets_host: bool,
    pub(super) mirrors: Vec<(Mirror, Rc<Destination>)>,
}

/// Changes of headers, as complete header lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pub(super) remove: Vec<Arc<str>>,
    pub(super) set: Vec<HeaderLine>,
    pub(super) add: Vec<HeaderLine>,
}

impl Prepared {
    pub(super) fn new(shared: &Rc<Worker>, service: &ServiceName, of_table: &TableRule) -> Self {
        let rule = of_table.rule();
        let backend = |backend| PreparedBackend::new(shared, rule, backend);
        Self {
            cors: of_table.cors().cloned(),
            backends: rule.backends.iter().map(backend).collect(),
            names_connect: rule.matches.iter().any(|of| of.method.as_deref() == Some("CONNECT")),
            request_timeout: rule.timeouts.request,
            backend_timeout: rule.timeouts.backend_request,
            session: rule.session.clone(),
            policy: None,
            counted: CountedRule::new(labels(service, named(of_table))),
        }
    }

    /// The session to which a request belongs.
    pub(super) fn kept(&self, view: RequestView<'_>) -> Option<RequestSession> {
        self.session.as_ref().and_then(|session| session::read(session, view, session::now()))
    }

    /// The index of a session's backend, even if the backend's weight has changed.
    pub(super) fn place_of(&self, kept: RequestSession) -> Option<usize> {
        let same =
            |backend: &PreparedBackend| backend.target.is_some() && backend.id == kept.backend;
        self.backends.iter().position(same)
    }

    /// All destinations of requests and of their copies.
    pub(super) fn targets(&self) -> impl Iterator<Item = &Rc<Destination>> {
        self.backends.iter().flat_map(|backend| {
            let mirrors = backend.mirrors.iter().map(|(_, target)| target);
            backend.target.iter().chain(mirrors)
        })
    }
}

impl PreparedBackend {
    fn new(shared: &Rc<Worker>, rule: &RouteRule, backend: &RouteBackend) -> Self {
        let MergedFilters { mut request, response, rewrite, mirrors } =
            MergedFilters::new(rule, backend);
        let mirrors = mirrors.into_iter().filter_map(|mirror| {
            let target = target(shared, &mirror.target)?;
            Some((mirror, target))
        });
        let mirrors = mirrors.collect();
        let sets_host = rewrite.hostname.is_some();
        if let Some(hostname) = rewrite.hostname {
            request.set.push(("Host".into(), hostname));
        }
        Self {
            target: target(shared, &backend.target),
            id: id(&backend.target),
            request: Lines::new(&request),
            response: Lines::new(&response),
            path: rewrite.path,
            sets_host,
            mirrors,
        }
    }

    /// Whether requests keep the host and the path with which they came.
    pub(super) fn keeps_url(&self) -> bool {
        self.path.is_none() && !self.sets_host
    }
}

/// The rule's route, such as `HTTPRoute shop/cart`, and the rule's name or its index in the route.
pub(super) fn named(of_table: &TableRule) -> (String, String) {
    let (route, rule) = (of_table.route(), of_table.rule());
    let name = match &rule.name {
        Some(name) => name.to_string(),
        None => of_table.index().to_string(),
    };
    (format!("{} {}/{}", route.kind.as_str(), route.namespace, route.name), name)
}

/// The labels for requests to this service that follow this rule of a route.
pub(super) fn labels(service: &ServiceName, (route, rule): (String, String)) -> RouteLabels {
    RouteLabels {
        service: Arc::clone(&service.name),
        service_namespace: Arc::clone(&service.namespace),
        route: route.into(),
        rule: rule.into(),
    }
}

/// The number that identifies a backend. It depends on the backend's name and not on its index.
fn id(target: &RouteTarget) -> u32 {
    match target {
        RouteTarget::Service { name, port } => hash(format!("{name}:{port}").as_bytes()) as u32,
        RouteTarget::Invalid(_) => 0,
    }
}

/// The destination of a reference; `None` if the reference is invalid.
fn target(shared: &Rc<Worker>, target: &RouteTarget) -> Option<Rc<Destination>> {
    match target {
        RouteTarget::Service { name, port } => Some(shared.targets.get(shared, name, *port)),
        RouteTarget::Invalid(_) => None,
    }
}

impl Lines {
    fn new(changes: &HeaderChanges) -> Self {
        let lines = |list: &[(Arc<str>, Arc<str>)]| {
            // Headers that cannot be set were already refused when the route was read.
            let line =
                |(name, value): &(Arc<str>, Arc<str>)| HeaderLine::new(name, value.as_bytes()).ok();
            list.iter().filter_map(line).collect()
        };
        Self { remove: changes.remove.clone(), set: lines(&changes.set), add: lines(&changes.add) }
    }
}
