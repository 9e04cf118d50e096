//! The compiled routes of one port of a service.
#![expect(
    clippy::indexing_slicing,
    reason = "places are of this table and of its routes, and ends are within the path"
)]

use std::collections::HashMap;
use std::sync::Arc;

use leno_types::routes::{
    Cors, Filter, PathMatch, Redirect, Route, RouteKind, RouteMatch, RouteRule,
};

use crate::choice::Weights;
use crate::condition::{MatchOrigin, PathCondition, RuleCondition};
use crate::list::MatchList;
use crate::pattern::PatternError;
use crate::request::Request;

/// The routes for requests to one port of a service.
///
/// A lookup hashes the path once, each prefix of the path down to the deepest prefix of any rule once, and one header
/// value for each header name that rules of that path require. Regular expressions and query conditions are tried one
/// by one. The total number of rules does not matter.
#[derive(Clone, Debug)]
pub struct RouteTable {
    kind: RouteKind,
    rules: Vec<TableRule>,
    /// All conditions, in the order of precedence.
    pub(crate) conditions: Vec<RuleCondition>,
    ignored: Vec<IgnoredRoute>,
    /// The conditions with an exact path, by this path. All lists are in the order of precedence.
    exact: HashMap<Box<[u8]>, MatchList>,
    /// The conditions with a path prefix, by the prefix without the slash at its end; for gRPC, by service.
    prefixes: HashMap<Box<[u8]>, MatchList>,
    /// The other conditions, whose paths are tried one by one.
    listed: Vec<u32>,
    /// The largest number of slashes in a key of `prefixes`.
    depth: usize,
}

/// One rule of one route.
#[derive(Clone, Debug)]
pub struct TableRule {
    route: Arc<Route>,
    index: usize,
    weights: Weights,
    /// The position of its redirection among the rule's filters, if it has one.
    redirect: Option<usize>,
    /// The position of its CORS settings among the rule's filters, if it has any.
    cors: Option<usize>,
}

/// The rule that a request follows, and how it matched.
#[derive(Clone, Copy, Debug)]
pub struct MatchedRule<'t> {
    /// The rule.
    pub rule: &'t TableRule,
    /// The rule's position in [`RouteTable::rules`].
    pub place: usize,
    /// How many bytes of the path the rule's prefix match has matched; `None` if the match is of another type.
    pub prefix: Option<usize>,
}

/// A route, or a match of a route, that has no effect.
#[derive(Clone, Debug)]
pub enum IgnoredRoute {
    /// A route of a more specific kind applies to this port instead (GEP-1294, "Route types").
    Kind(Arc<Route>),
    /// A match has an expression that cannot be used.
    Pattern(Arc<Route>, PatternError),
}

impl TableRule {
    /// A rule of a route.
    pub(crate) fn new(route: &Arc<Route>, index: usize) -> Self {
        let rule = &route.rules[index];
        let filter = |is: fn(&Filter) -> bool| rule.filters.iter().position(is);
        Self {
            route: Arc::clone(route),
            index,
            weights: Weights::new(rule.backends.iter().map(|backend| backend.weight)),
            redirect: filter(|filter| matches!(filter, Filter::Redirect(_))),
            cors: filter(|filter| matches!(filter, Filter::Cors(_))),
        }
    }

    /// The rule's route.
    #[must_use]
    pub fn route(&self) -> &Arc<Route> {
        &self.route
    }

    /// The rule's position in its route.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The rule's conditions, filters and backends.
    #[must_use]
    pub fn rule(&self) -> &RouteRule {
        &self.route.rules[self.index]
    }

    /// The weights of the rule's backends.
    #[must_use]
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// The rule's redirection, if it has one.
    #[must_use]
    pub fn redirect(&self) -> Option<&Redirect> {
        match &self.rule().filters[self.redirect?] {
            Filter::Redirect(redirect) => Some(redirect),
            _ => None,
        }
    }

    /// The rule's CORS settings, if it has any.
    #[must_use]
    pub fn cors(&self) -> Option<&Cors> {
        match &self.rule().filters[self.cors?] {
            Filter::Cors(cors) => Some(cors),
            _ => None,
        }
    }
}

impl RouteTable {
    /// Compiles the routes for requests that attach to a port. `None` if no such route attaches: requests then go to
    /// the service's own endpoints.
    #[must_use]
    pub fn compile(routes: &[Arc<Route>], port: u16) -> Option<Self> {
        let here = |route: &&Arc<Route>| {
            route.kind.is_of_requests() && (route.ports.is_empty() || route.ports.contains(&port))
        };
        let kind = routes.iter().filter(here).map(|route| route.kind).max()?;
        let mut table = Self {
            kind,
            rules: Vec::new(),
            conditions: Vec::new(),
            ignored: Vec::new(),
            exact: HashMap::new(),
            prefixes: HashMap::new(),
            listed: Vec::new(),
            depth: 0,
        };
        for route in routes.iter().filter(here) {
            if route.kind == kind {
                table.add(route);
            } else {
                table.ignored.push(IgnoredRoute::Kind(Arc::clone(route)));
            }
        }
        table.conditions.sort_by(|a, b| a.precedence.cmp(&b.precedence));
        table.index();
        Some(table)
    }

    /// The kind of all routes in the table.
    #[must_use]
    pub fn kind(&self) -> RouteKind {
        self.kind
    }

    /// Every rule, route by route.
    #[must_use]
    pub fn rules(&self) -> &[TableRule] {
        &self.rules
    }

    /// Routes and matches that have no effect, with the reason.
    #[must_use]
    pub fn ignored(&self) -> &[IgnoredRoute] {
        &self.ignored
    }

    /// The rule that a request follows. `None` means that the request is refused with 404; it is not sent to the
    /// service's own endpoints, as it would be if the service had no routes (GEP-1294, "Route presence").
    #[must_use]
    pub fn find(&self, request: &impl Request) -> Option<MatchedRule<'_>> {
        let path = request.path();
        let first = |list: &MatchList| {
            list.first(&self.conditions, request, |one| one.check_rest(request).is_ok())
        };
        let exact = || first(self.exact.get(path)?);
        let listed = || {
            let conditions = self.listed.iter().map(|place| &self.conditions[*place as usize]);
            conditions.into_iter().find(|one| one.check(request).is_ok())
        };
        let prefixed = || self.prefixes_of(path).find_map(first);
        let found = match self.kind {
            // For gRPC, the listed conditions are those that do not name a service exactly.
            RouteKind::Grpc => exact().or_else(|| self.of_service(request)).or_else(listed),
            _ => exact().or_else(listed).or_else(prefixed),
        };
        found.map(|condition| self.found(condition))
    }

    /// The matches with the same exact path, prefix or service as `condition`, in the order of precedence. If
    /// `condition` has none of these, all matches that have none of them.
    pub(crate) fn same_path(&self, condition: &RuleCondition) -> &[u32] {
        let list = match (&condition.path, condition.path.exact()) {
            (_, Some(path)) => self.exact.get(&path),
            (path, None) => match path.prefix() {
                Some(prefix) => self.prefixes.get(&prefix),
                None => return &self.listed,
            },
        };
        list.map_or(&[], MatchList::places)
    }

    /// The matches whose paths are tried one by one, in the order of precedence.
    pub(crate) fn listed(&self) -> &[u32] {
        &self.listed
    }

    pub(crate) fn found(&self, condition: &RuleCondition) -> MatchedRule<'_> {
        let prefix = match &condition.path {
            PathCondition::Prefix(prefix) => Some(prefix.len()),
            _ => None,
        };
        MatchedRule { rule: &self.rules[condition.rule], place: condition.rule, prefix }
    }

    fn add(&mut self, route: &Arc<Route>) {
        for (index, rule) in route.rules.iter().enumerate() {
            let place = self.rules.len();
            self.rules.push(TableRule::new(route, index));
            let everything = [self.everything()];
            let matches = if rule.matches.is_empty() { &everything[..] } else { &rule.matches };
            for (of_rule, wanted) in matches.iter().enumerate() {
                let origin =
                    MatchOrigin { route, rule: place, rule_of_route: index, place: of_rule };
                match RuleCondition::new(wanted, &origin) {
                    Ok(condition) => self.conditions.push(condition),
                    Err(error) => {
                        self.ignored.push(IgnoredRoute::Pattern(Arc::clone(route), error));
                    }
                }
            }
        }
    }

    /// The match for a rule without matches. It matches all requests.
    fn everything(&self) -> RouteMatch {
        let path = match self.kind {
            RouteKind::Grpc => PathMatch::Grpc { service: None, method: None },
            _ => PathMatch::default(),
        };
        RouteMatch { path, ..RouteMatch::default() }
    }

    /// Fills the lists. `conditions` is sorted by precedence.
    fn index(&mut self) {
        for (place, condition) in self.conditions.iter().enumerate() {
            let place = u32::try_from(place).expect("a table of 2^32 matches fits in no memory");
            if let Some(path) = condition.path.exact() {
                self.exact.entry(path).or_default().push(place);
                continue;
            }
            let Some(prefix) = condition.path.prefix() else {
                self.listed.push(place);
                continue;
            };
            let slashes = prefix.iter().filter(|byte| **byte == b'/').count();
            self.depth = self.depth.max(slashes);
            self.prefixes.entry(prefix).or_default().push(place);
        }
        let lists = self.exact.values_mut().chain(self.prefixes.values_mut());
        lists.for_each(|list| list.finish(&self.conditions));
    }

    /// The lists of all prefixes of a path, the longest first.
    fn prefixes_of<'t>(&'t self, path: &'t [u8]) -> impl Iterator<Item = &'t MatchList> {
        // No key has more slashes than `depth`, so a prefix with more slashes need not be looked up, even if a client
        // sends a path with many slashes.
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let mut next = slashes.map(|(at, _)| at).nth(self.depth).or(Some(path.len()));
        let ends = std::iter::from_fn(move || {
            let end = next?;
            next = path[..end].iter().rposition(|byte| *byte == b'/');
            Some(end)
        });
        ends.filter_map(|end| self.prefixes.get(&path[..end]))
    }

    fn of_service(&self, request: &impl Request) -> Option<&RuleCondition> {
        let path = request.path();
        let slash = path.iter().rposition(|byte| *byte == b'/')?;
        let list = self.prefixes.get(&path[..slash])?;
        list.first(&self.conditions, request, |one| one.check(request).is_ok())
    }
}
