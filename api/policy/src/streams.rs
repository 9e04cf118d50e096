//! The routes of connections to one port of a service, compiled.

use std::collections::HashMap;
use std::sync::Arc;

use leno_types::routes::{InvalidTarget, Route, RouteKind};

use crate::choice::Choice;
use crate::decide::Refusal;
use crate::table::TableRule;

/// What connections to one port of a service are matched against, where they are relayed as bytes.
///
/// The name of the server that a TLS client asks for decides: the exact one, then the longest `*.`
/// above it. What has no such name, or another one, follows the `TCPRoute`. Of two routes for the same
/// the older one holds, then the first by `namespace/name`.
#[derive(Clone, Debug)]
pub struct StreamTable {
    rules: Vec<TableRule>,
    /// Rules by server name.
    exact: HashMap<Box<str>, usize>,
    /// Rules by what follows the `*`.
    below: HashMap<Box<str>, usize>,
    /// The rule for everything else.
    rest: Option<usize>,
    shadowed: Vec<StreamShadowed>,
}

/// A route, or a host name of one, that no connection follows.
#[derive(Clone, Debug)]
pub struct StreamShadowed {
    /// The route.
    pub route: Arc<Route>,
    /// The name's place among its host names; none for a `TCPRoute`.
    pub hostname: Option<usize>,
    /// The route that holds instead.
    pub by: Arc<Route>,
}

/// What becomes of a connection.
#[derive(Clone, Copy, Debug)]
pub enum StreamDecision<'t> {
    /// No route is for it, and it is refused.
    NoRule,
    /// It goes to this backend: the rule's place in [`StreamTable::rules`], the backend's in the rule.
    Backend(usize, usize),
    /// It is refused: the backend chosen is none, or there is none to choose.
    Nowhere(&'t TableRule, Option<InvalidTarget>),
}

impl StreamTable {
    /// Compiles the routes that attach to a port; none where none does.
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

    /// The rules, one for each route.
    #[must_use]
    pub fn rules(&self) -> &[TableRule] {
        &self.rules
    }

    /// What no connection follows.
    #[must_use]
    pub fn shadowed(&self) -> &[StreamShadowed] {
        &self.shadowed
    }

    /// Whether it matters which server a client asks for, so that its first bytes have to be waited
    /// for.
    #[must_use]
    pub fn asks_for_names(&self) -> bool {
        !self.exact.is_empty() || !self.below.is_empty()
    }

    /// Decides on a connection by the server that its client asks for; none where it speaks no TLS, or
    /// does not say.
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
            // Something has to stand for the `*`.
            dots.filter(|at| *at > 0).find_map(|at| self.below.get(&name[at..]))
        };
        self.exact.get(name).or_else(above).copied()
    }

    fn add(&mut self, route: &Arc<Route>) {
        // One rule a route: nothing could tell two of them apart.
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
    /// Why a connection is refused; none where it is not.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal<'t>> {
        // A connection has no status; a request in its place would have this one.
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
