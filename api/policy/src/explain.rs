//! Explains a routing decision: all matches in the order of precedence, each with the condition that is not fulfilled.
#![expect(clippy::indexing_slicing, reason = "the condition is of these rules")]

use std::fmt;

use leno_types::routes::{PathMatch, RouteMatch, TextMatch, ValueMatch};

use crate::condition::{Mismatch, RuleCondition};
use crate::request::Request;
use crate::table::{MatchedRule, RouteTable, TableRule};

/// What happens to a request, and why.
#[derive(Clone, Debug)]
pub struct RouteExplanation<'t> {
    /// The rule that the request follows. It is the result of [`RouteTable::find`].
    pub found: Option<MatchedRule<'t>>,
    /// The matches that were evaluated, in the order of precedence. The last of them is the match that the request
    /// fulfils, if there is one.
    pub considered: Vec<MatchResult<'t>>,
    /// The matches of lower precedence, which a proxy does not evaluate, with the conditions that are not fulfilled.
    pub outranked: Vec<MatchResult<'t>>,
}

/// One match of a rule, and the result for a request.
#[derive(Clone, Copy, Debug)]
pub struct MatchResult<'t> {
    /// The rule of the match.
    pub rule: &'t TableRule,
    /// The position of the match in its rule.
    pub place: usize,
    /// The first condition that is not fulfilled; `None` if all are.
    pub mismatch: Option<Mismatch>,
}

impl RouteTable {
    /// Explains what happens to a request.
    #[must_use]
    pub fn explain(&self, request: &impl Request) -> RouteExplanation<'_> {
        let mut explanation =
            RouteExplanation { found: None, considered: Vec::new(), outranked: Vec::new() };
        for condition in &self.conditions {
            let mismatch = condition.check(request).err();
            let considered = self.considered(condition, mismatch);
            if explanation.found.is_some() {
                explanation.outranked.push(considered);
                continue;
            }
            explanation.considered.push(considered);
            if mismatch.is_none() {
                explanation.found = Some(self.found(condition));
            }
        }
        explanation
    }

    fn considered(&self, condition: &RuleCondition, mismatch: Option<Mismatch>) -> MatchResult<'_> {
        let rule = &self.rules()[condition.rule];
        MatchResult { rule, place: condition.place(), mismatch }
    }
}

impl MatchResult<'_> {
    /// In words: the condition that is not fulfilled, or `holds` if all are.
    #[must_use]
    pub fn reason(&self) -> String {
        Reason(self).to_string()
    }
}

struct Reason<'a>(&'a MatchResult<'a>);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(one) = self;
        match (one.mismatch, one.rule.rule().matches.get(one.place)) {
            (None, _) => f.write_str("holds"),
            (Some(mismatch), Some(wanted)) => describe(f, mismatch, wanted),
            (Some(_), None) => f.write_str("the path is not one of gRPC"),
        }
    }
}

impl fmt::Display for MatchResult<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} match {}: {}", self.rule, self.place, Reason(self))
    }
}

impl fmt::Display for TableRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let route = self.route();
        write!(f, "{} {}/{} ", route.kind.as_str(), route.namespace, route.name)?;
        match &self.rule().name {
            Some(name) => write!(f, "rule {name}"),
            None => write!(f, "rule {}", self.index()),
        }
    }
}

fn describe(f: &mut fmt::Formatter<'_>, mismatch: Mismatch, wanted: &RouteMatch) -> fmt::Result {
    let value = |f: &mut fmt::Formatter<'_>, what, list: &[ValueMatch], index| {
        let Some(wanted): Option<&ValueMatch> = list.get(index) else { return Ok(()) };
        write!(f, "the {what} {} is not {}", wanted.name, DisplayedMatch(&wanted.value))
    };
    match mismatch {
        Mismatch::Path => match &wanted.path {
            PathMatch::Exact(path) => write!(f, "the path is not {path}"),
            PathMatch::Prefix(path) => write!(f, "the path does not begin with {path}"),
            PathMatch::Regex(pattern) => write!(f, "the path does not match {pattern}"),
            PathMatch::Grpc { service, method } => {
                f.write_str("the call is not of")?;
                for (what, text) in [("service", service), ("method", method)] {
                    if let Some(text) = text {
                        write!(f, " {what} {}", DisplayedMatch(text))?;
                    }
                }
                Ok(())
            }
        },
        Mismatch::Method => {
            write!(f, "the method is not {}", wanted.method.as_deref().unwrap_or_default())
        }
        Mismatch::Header(index) => value(f, "header", &wanted.headers, index),
        Mismatch::Query(index) => value(f, "query parameter", &wanted.query, index),
    }
}

struct DisplayedMatch<'a>(&'a TextMatch);

impl fmt::Display for DisplayedMatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            TextMatch::Exact(text) => write!(f, "{text:?}"),
            TextMatch::Regex(pattern) => write!(f, "of the form {pattern}"),
        }
    }
}
