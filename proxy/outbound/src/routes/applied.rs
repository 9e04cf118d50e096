//! The changes that a rule makes to one request and its response.
#![expect(
    clippy::indexing_slicing,
    reason = "rules and backends that the routes themselves have chosen"
)]

use std::rc::Rc;
use std::time::Duration;

use leno_http::{Edits, HeaderLine, RequestView};
use leno_policy::{cors, rewrite};
use leno_telemetry::{Registry, RouteCounter};
use leno_types::routes::Mirror;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::prepared::{Lines, Prepared, PreparedBackend, named};
use super::session::{self, RequestSession};
use super::{Head, Routes};
use crate::destination::Destination;
use crate::policy::RequestPolicy;

/// A rule and one of its backends, applied to one request.
#[derive(Debug)]
pub(crate) struct Applied {
    routes: Rc<Routes>,
    rule: usize,
    backend: usize,
    /// The new target, if the rule changes it.
    target: Option<Vec<u8>>,
    /// The headers to set and to add on the response, if some of them depend on the request (CORS).
    response_set: Option<Vec<HeaderLine>>,
    response_add: Option<Vec<HeaderLine>>,
    /// When the whole request must end.
    deadline: Option<Instant>,
    /// The session that the request's cookie names.
    kept: Option<RequestSession>,
    /// The path of the session's cookie: the part of the request's path that the rule matched.
    path: Box<[u8]>,
}

/// The names of headers to remove, in the form that [`Edits`] takes.
pub(crate) type Names<'a> = SmallVec<[&'a str; 8]>;

impl Applied {
    pub(super) fn new(
        routes: &Rc<Routes>,
        (rule, backend): (usize, usize),
        (view, prefix): (RequestView<'_>, Option<usize>),
        kept: Option<RequestSession>,
    ) -> Self {
        let prepared = &routes.rules[rule];
        let of_backend = &prepared.backends[backend];
        let target = target(of_backend, view, prefix);
        let (mut response_set, mut response_add) = (None, None);
        if let Some(cors) = &prepared.cors {
            let (mut set, mut add) =
                (of_backend.response.set.clone(), of_backend.response.add.clone());
            for (name, value) in cors::actual(cors, &Head(view)) {
                let list = if name == "Vary" { &mut add } else { &mut set };
                list.extend(HeaderLine::new(name, &value).ok());
            }
            (response_set, response_add) = (Some(set), Some(add));
        }
        let deadline = prepared.request_timeout.and_then(|time| Instant::now().checked_add(time));
        let path = prefix.and_then(|length| view.path().get(..length)).filter(|p| !p.is_empty());
        let path = match &prepared.session {
            Some(_) => path.unwrap_or(b"/").into(),
            None => Box::default(),
        };
        let routes = Rc::clone(routes);
        Self { routes, rule, backend, target, response_set, response_add, deadline, kept, path }
    }

    /// When an attempt that begins now must end.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let of_try = self.backend_timeout().and_then(|time| Instant::now().checked_add(time));
        [self.deadline, of_try].into_iter().flatten().min()
    }

    /// The names of headers to remove, to be passed to [`Applied::request`] and [`Applied::response`], which borrow
    /// them as slices.
    pub(crate) fn removed(&self) -> (Names<'_>, Names<'_>) {
        fn names(lines: &Lines) -> Names<'_> {
            lines.remove.iter().map(|name| &**name).collect()
        }
        (names(&self.backend().request), names(&self.backend().response))
    }

    /// The changes to the request's head.
    pub(crate) fn request<'a>(&'a self, remove: &'a [&'a str]) -> Edits<'a> {
        let lines = &self.backend().request;
        let target = self.target.as_deref();
        Edits { remove, set: &lines.set, add: &lines.add, target, ..Edits::default() }
    }

    /// The changes to the response's head.
    pub(crate) fn response<'a>(&'a self, remove: &'a [&'a str]) -> Edits<'a> {
        let lines = &self.backend().response;
        Edits {
            remove,
            set: self.response_set.as_deref().unwrap_or(&lines.set),
            add: self.response_add.as_deref().unwrap_or(&lines.add),
            ..Edits::default()
        }
    }

    /// The key of the endpoint of the request's session, if the session belongs to this backend.
    pub(crate) fn endpoint(&self) -> Option<u64> {
        let kept = self.kept.filter(|kept| kept.backend == self.backend().id)?;
        Some(kept.endpoint)
    }

    /// The route and its rule, by its name or number: `HTTPRoute shop/cart rule 1`.
    pub(crate) fn rule_name(&self) -> Box<str> {
        let (route, rule) = named(&self.routes.table.rules()[self.rule]);
        format!("{route} rule {rule}").into()
    }

    /// The counter of the rule's requests.
    pub(crate) fn counter(&self, registry: &Registry) -> &Rc<RouteCounter> {
        self.prepared().counted.counter(registry)
    }

    /// Whether the rule relays a CONNECT.
    pub(crate) fn relays_connect(&self) -> bool {
        self.prepared().names_connect && self.backend().keeps_url()
    }

    /// Whether the rule keeps a client's requests on one endpoint.
    pub(crate) fn keeps_sessions(&self) -> bool {
        self.prepared().session.is_some()
    }

    /// The header line that tells the client the endpoint of its session.
    pub(crate) fn session_line(&self, endpoint: u64) -> Option<HeaderLine> {
        let to = (self.backend().id, endpoint, &*self.path);
        session::line(self.prepared().session.as_ref()?, self.kept, to, session::now())
    }

    /// The mirrors that may get copies of the request, each with its destination.
    pub(crate) fn mirrors(&self) -> &[(Mirror, Rc<Destination>)] {
        &self.backend().mirrors
    }

    /// The policy of the rule's requests, if it differs from that of the service.
    pub(crate) fn policy(&self) -> Option<&Rc<RequestPolicy>> {
        self.prepared().policy.as_ref()
    }

    fn backend_timeout(&self) -> Option<Duration> {
        self.prepared().backend_timeout
    }

    fn prepared(&self) -> &Prepared {
        &self.routes.rules[self.rule]
    }

    fn backend(&self) -> &PreparedBackend {
        &self.prepared().backends[self.backend]
    }
}

/// The new target, if the path changes, or if the target is a whole URI whose host would contradict a new `Host`. In
/// other cases a whole URI keeps its host, because servers use it instead of `Host` (RFC 9112 section 3.2.2).
fn target(
    backend: &PreparedBackend,
    view: RequestView<'_>,
    prefix: Option<usize>,
) -> Option<Vec<u8>> {
    let origin = origin(view.target());
    let path = match &backend.path {
        Some(change) => rewrite::target(change, view.path(), view.query(), prefix),
        None if backend.sets_host && origin.is_some() => {
            let query = view.query().map(|query| [b"?", query].concat()).unwrap_or_default();
            [view.path(), &query].concat()
        }
        None => return None,
    };
    match origin {
        Some(origin) if !backend.sets_host => Some([origin, &path].concat()),
        _ => Some(path),
    }
}

/// The scheme and the authority of a target that is a whole URI.
fn origin(target: &[u8]) -> Option<&[u8]> {
    if matches!(target.first(), Some(b'/' | b'*') | None) {
        return None;
    }
    let authority = target.windows(3).position(|window| window == b"://")?.saturating_add(3);
    let mut rest = target.iter().enumerate().skip(authority);
    let end = rest.find(|(_, byte)| matches!(byte, b'/' | b'?')).map_or(target.len(), |(at, _)| at);
    target.get(..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_uris_have_an_origin() {
        for (target, expected) in [
            ("/a?b=http://c/d", None),
            ("*", None),
            ("http://web:80/a/b", Some("http://web:80")),
            ("http://web?q", Some("http://web")),
            ("http://web", Some("http://web")),
            ("web:80", None),
        ] {
            assert_eq!(origin(target.as_bytes()), expected.map(str::as_bytes), "{target}");
        }
    }
}
