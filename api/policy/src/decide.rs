//! What becomes of a request, as far as routes say: a proxy does it, an explanation tells it.

use std::fmt;

use leno_types::routes::{Cors, InvalidTarget, Redirect, RouteKind};

use crate::choice::Choice;
use crate::cors;
use crate::request::Request;
use crate::table::{Found, RouteTable, TableRule};

/// What becomes of a request.
#[derive(Clone, Copy, Debug)]
pub enum Decision<'t> {
    /// No rule is for it, and it is refused.
    NoRule,
    /// It asks what requests of another origin may do, and is told so.
    Preflight(Found<'t>, &'t Cors),
    /// It is answered with another place.
    Redirect(Found<'t>, &'t Redirect),
    /// It goes to this backend, by its place in the rule.
    Backend(Found<'t>, usize),
    /// It fails: the backend chosen is none, or there is none to choose.
    Nowhere(Found<'t>, Option<InvalidTarget>),
}

/// An error in the place of a response. Displays as the value of `leno-error`.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'t> {
    /// The status; of gRPC it says what the call's status is made of.
    pub status: u16,
    /// For metrics and logs.
    pub cause: &'static str,
    /// The reason as the Gateway API's conditions have it.
    pub reason: Option<&'static str>,
    /// The rule at fault.
    pub rule: Option<&'t TableRule>,
}

impl RouteTable {
    /// Decides on a request; `random` is asked for where weights decide.
    #[must_use]
    pub fn decide(&self, request: &impl Request, random: impl FnOnce() -> u64) -> Decision<'_> {
        let Some(found) = self.find(request) else { return Decision::NoRule };
        if let Some(cors) = found.rule.cors()
            && cors::is_preflight(request)
        {
            return Decision::Preflight(found, cors);
        }
        if let Some(redirect) = found.rule.redirect() {
            return Decision::Redirect(found, redirect);
        }
        match found.rule.choose(random()) {
            Choice::Backend(place) => Decision::Backend(found, place),
            Choice::Invalid(_, reason) => Decision::Nowhere(found, Some(reason)),
            Choice::NoBackend => Decision::Nowhere(found, None),
        }
    }

    /// How a request is refused that no rule is for: routes replace what would happen without them
    /// (GEP-1294, "Route presence").
    #[must_use]
    pub fn no_rule(&self) -> Refusal<'static> {
        Refusal { status: 404, cause: "no-route-matches", reason: None, rule: None }
    }

    /// How a request is refused whose rule sends it nowhere: 500, and UNAVAILABLE of gRPC, as the
    /// specification has it.
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
