//! The compiled connection routes of one port of a service.
#![expect(clippy::indexing_slicing, reason = "places are of these rules")]

use std::collections::HashMap;
use std::sync::Arc;

use leno_types::routes::{InvalidTarget, Route, RouteKind};

use crate::choice::Choice;
use crate::decide::Refusal;
use crate::table::TableRule;

/// The routes for connections to one port of a service that are relayed as bytes.
///
/// The server name in the client's TLS hello decides: first an exact name, then the longest `*.` wildcard above it. A
/// connection without a server name, or with a name that no route has, follows the `TCPRoute`, and is refused if there
/// is none. If two routes have the same server name, the older route wins, then the first by `namespace/name`.
#[derive(Clone, Debug)]
pub struct StreamTable {
    rules: Vec<TableRule>,
    /// The rules with an exact server name, by this name.
    exact: HashMap<Box<str>, usize>,
    /// The rules with a wildcard, by the part after the `*`.
    below: HashMap<Box<str>, usize>,
    /// The rule for all other connections.
    rest: Option<usize>,
    shadowed: Vec<StreamShadowed>,
}

/// A route that no connection follows, or a host name of a route that no connection matches.
#[derive(Clone, Debug)]
pub struct StreamShadowed {
    /// The route.
    pub route: Arc<Route>,
    /// The name's position among the route's host names; `None` for a `TCPRoute`.
    pub hostname: Option<usize>,
    /// The route that matches its connections instead.
    pub by: Arc<Route>,
}

/// What happens to a connection.
#[derive(Clone, Copy, Debug)]
pub enum StreamDecision<'t> {
    /// No route matches, so the connection is refused.
    NoRule,
    /// The connection is sent to this backend. The numbers are the position of the rule in [`StreamTable::rules`] and
    /// the position of the backend in the rule.
    Backend(usize, usize),
    /// The connection is refused, because the chosen backend is invalid or there is no backend to choose.
    Nowhere(&'t TableRule, Option<InvalidTarget>),
}

impl StreamTable {
    /// Compiles the routes that attach to a port; `None` if no route attaches.
    #[must_use]
    pub fn compile(routes: &[Arc<Route>], port: u16) -> Option<Self> {
        let here = |route: &&Arc<Route>| {
            !route.kind.is_of_requests() && (route.ports.is_empty() || route.ports.contains(&port))
        };
        let mut here: Vec<&Arc<Route>> = routes.iter().filter(here).collect();
        here.sort_by_key(|route| (route.created, &route.namespace, &route.name));
        let mut table = Self {
            rules: Vec::new(),
            exact: HashMap::new(),
            below: HashMap::new(),
            rest: None,
            shadowed: Vec::new(),
        };
        for route in here {
            table.add(route);
        }
        (!table.rules.is_empty()).then_some(table)
    }

    /// The rules, one per route.
    #[must_use]
    pub fn rules(&self) -> &[TableRule] {
        &self.rules
    }

    /// Routes and host names that no connection follows.
    #[must_use]
    pub fn shadowed(&self) -> &[StreamShadowed] {
        &self.shadowed
    }

    /// Whether the server name decides, so that the proxy must wait for the client's first bytes.
    #[must_use]
    pub fn asks_for_names(&self) -> bool {
        !self.exact.is_empty() || !self.below.is_empty()
    }

    /// Decides about a connection by the server name in its TLS hello; `None` if there is no hello or no name in it.
    #[must_use]
    pub fn decide(&self, server_name: Option<&str>, random: u64) -> StreamDecision<'_> {
        let named = server_name.and_then(|name| self.named(&name.to_ascii_lowercase()));
        let Some(place) = named.or(self.rest) else { return StreamDecision::NoRule };
        let rule = &self.rules[place];
        match rule.choose(random) {
            Choice::Backend(backend) => StreamDecision::Backend(place, backend),
            Choice::Invalid(_, reason) => StreamDecision::Nowhere(rule, Some(reason)),
            Choice::NoBackend => StreamDecision::Nowhere(rule, None),
        }
    }

    fn named(&self, name: &str) -> Option<usize> {
        let above = || {
            let dots = name.match_indices('.').map(|(at, _)| at);
            // The `*` stands for at least one character.
            dots.filter(|at| *at > 0).find_map(|at| self.below.get(&name[at..]))
        };
        self.exact.get(name).or_else(above).copied()
    }

    fn add(&mut self, route: &Arc<Route>) {
        // Only the first rule of a route is used, because rules have no conditions that could distinguish them.
        if route.rules.is_empty() {
            return;
        }
        let place = self.rules.len();
        self.rules.push(TableRule::new(route, 0));
        if route.kind == RouteKind::Tcp {
            match self.rest {
                Some(holder) => self.shadow(route, None, holder),
                None => self.rest = Some(place),
            }
            return;
        }
        for (index, name) in route.hostnames.iter().enumerate() {
            let (names, name) = match name.strip_prefix('*') {
                Some(below) => (&mut self.below, below),
                None => (&mut self.exact, &**name),
            };
            match names.get(name) {
                Some(holder) => {
                    let holder = *holder;
                    self.shadow(route, Some(index), holder);
                }
                None => {
                    names.insert(name.into(), place);
                }
            }
        }
    }

    fn shadow(&mut self, route: &Arc<Route>, hostname: Option<usize>, holder: usize) {
        let by = Arc::clone(self.rules[holder].route());
        self.shadowed.push(StreamShadowed { route: Arc::clone(route), hostname, by });
    }
}

impl<'t> StreamDecision<'t> {
    /// Why the connection is refused; `None` if it is not refused.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal<'t>> {
        // A connection has no status, so this is the status that a request would get.
        let refusal = |status, cause, reason: Option<InvalidTarget>, rule| Refusal {
            status,
            cause,
            reason: reason.map(InvalidTarget::as_str),
            rule,
        };
        match *self {
            Self::NoRule => Some(refusal(404, "no-route-matches", None, None)),
            Self::Backend(..) => None,
            Self::Nowhere(rule, Some(reason)) => {
                Some(refusal(500, "backend-invalid", Some(reason), Some(rule)))
            }
            Self::Nowhere(rule, None) => Some(refusal(500, "no-backend", None, Some(rule))),
        }
    }
}
