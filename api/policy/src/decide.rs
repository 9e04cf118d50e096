//! Decides what happens to a request according to its routes. Proxies apply the decision, and explanations describe it.

use std::fmt;

use leno_types::routes::{Cors, InvalidTarget, Redirect, RouteKind};

use crate::choice::Choice;
use crate::cors;
use crate::request::Request;
use crate::table::{MatchedRule, RouteTable, TableRule};

/// What happens to a request.
#[derive(Clone, Copy, Debug)]
pub enum RouteDecision<'t> {
    /// No rule matches the request; it is refused.
    NoRule,
    /// The request is a CORS preflight, which the proxy answers.
    Preflight(MatchedRule<'t>, &'t Cors),
    /// The proxy answers with a redirection.
    Redirect(MatchedRule<'t>, &'t Redirect),
    /// The request is sent to the backend at this position in the rule.
    Backend(MatchedRule<'t>, usize),
    /// The request fails, because the chosen backend is invalid for this reason, or, if it is `None`, because there is
    /// no backend to choose.
    Nowhere(MatchedRule<'t>, Option<InvalidTarget>),
}

/// Why the routes make a proxy answer a request with an error, or refuse a connection. Its `Display` text is the value
/// of the response header `leno-error`.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'t> {
    /// The status. The status of a gRPC call is derived from it.
    pub status: u16,
    /// The cause, for metrics and logs.
    pub cause: &'static str,
    /// The reason, as in the conditions of the Gateway API.
    pub reason: Option<&'static str>,
    /// The rule that caused it.
    pub rule: Option<&'t TableRule>,
}

impl RouteTable {
    /// Decides about a request. `random` is called only if a backend is to be chosen.
    #[must_use]
    pub fn decide(
        &self,
        request: &impl Request,
        random: impl FnOnce() -> u64,
    ) -> RouteDecision<'_> {
        let Some(found) = self.find(request) else { return RouteDecision::NoRule };
        if let Some(cors) = found.rule.cors()
            && cors::is_preflight(request)
        {
            return RouteDecision::Preflight(found, cors);
        }
        if let Some(redirect) = found.rule.redirect() {
            return RouteDecision::Redirect(found, redirect);
        }
        match found.rule.choose(random()) {
            Choice::Backend(place) => RouteDecision::Backend(found, place),
            Choice::Invalid(_, reason) => RouteDecision::Nowhere(found, Some(reason)),
            Choice::NoBackend => RouteDecision::Nowhere(found, None),
        }
    }

    /// The refusal of a request that no rule matches. If a service has routes, such a request is not sent to the
    /// service's own endpoints, as it would be without routes (GEP-1294, "Route presence").
    #[must_use]
    pub fn no_rule(&self) -> Refusal<'static> {
        Refusal { status: 404, cause: "no-route-matches", reason: None, rule: None }
    }

    /// The refusal of a request whose rule has no valid backend: 500, or UNAVAILABLE for gRPC, as
    /// the specification requires.
    #[must_use]
    pub fn nowhere<'t>(&self, rule: &'t TableRule, why: Option<InvalidTarget>) -> Refusal<'t> {
        let status = match self.kind() {
            RouteKind::Grpc => 503,
            _ => 500,
        };
        let cause = if why.is_some() { "backend-invalid" } else { "no-backend" };
        Refusal { status, cause, reason: why.map(InvalidTarget::as_str), rule: Some(rule) }
    }
}

impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.cause)?;
        if let Some(reason) = self.reason {
            write!(f, "; reason={reason}")?;
        }
        match self.rule {
            Some(rule) => write!(f, "; by=\"{rule}\""),
            None => Ok(()),
        }
    }
}
