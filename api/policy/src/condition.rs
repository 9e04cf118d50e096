//! A match of a rule in compiled form: its conditions, and its precedence over other matches.
#![expect(clippy::indexing_slicing, reason = "the index is of this list")]

use std::cmp::Reverse;

use leno_types::routes::{PathMatch, Route, RouteMatch, TextMatch, ValueMatch};

use crate::pattern::{Pattern, PatternError};
use crate::request::Request;

/// The first condition of a match that a request does not fulfil.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The path.
    Path,
    /// The method.
    Method,
    /// A header, by its position in the match.
    Header(usize),
    /// A query parameter, by its position in the match.
    Query(usize),
}

/// The precedence of a match. If two match the same request, the smaller value wins. The order is that of HTTPRoute and
/// GRPCRoute. The specification does not say where a regular expression ranks. Here it ranks after exact paths and
/// before prefixes: after prefixes no expression would ever be reached, because every rule without a path is a prefix
/// match of `/`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Precedence {
    /// The type of the match, and the length of its text, the longest first: of the path, or of the service and the
    /// method of gRPC.
    path: [(u8, Reverse<usize>); 2],
    without_method: bool,
    headers: Reverse<usize>,
    query: Reverse<usize>,
    /// When the route was created, in seconds of Unix time.
    created: u64,
    /// The route as `<namespace>/<name>`.
    name: String,
    /// The rule's position in its route; [`RuleCondition::rule`] is the position in the table.
    rule: usize,
    /// The match's position in its rule.
    place: usize,
}

/// A match of a rule.
#[derive(Clone, Debug)]
pub(crate) struct RuleCondition {
    pub(crate) path: PathCondition,
    pub(crate) method: Option<Box<str>>,
    pub(crate) headers: Box<[ValueCondition]>,
    pub(crate) query: Box<[ValueCondition]>,
    /// The rule, by its position in the table.
    pub(crate) rule: usize,
    pub(crate) precedence: Precedence,
}

#[derive(Clone, Debug)]
pub(crate) enum PathCondition {
    Exact(Box<[u8]>),
    /// A prefix, without the slash at its end.
    Prefix(Box<[u8]>),
    Regex(Pattern),
    Grpc {
        service: Option<TextCondition>,
        method: Option<TextCondition>,
    },
}

#[derive(Clone, Debug)]
pub(crate) enum TextCondition {
    Exact(Box<[u8]>),
    Regex(Pattern),
}

#[derive(Clone, Debug)]
pub(crate) struct ValueCondition {
    /// The position of the condition in the match as the route's document has it. Repeated names are left out of the
    /// list, so its own positions may differ.
    place: usize,
    pub(crate) name: Box<str>,
    pub(crate) text: TextCondition,
}

/// Where a match is from.
pub(crate) struct MatchOrigin<'a> {
    pub(crate) route: &'a Route,
    /// The rule's position in the table.
    pub(crate) rule: usize,
    /// The rule's position in the route.
    pub(crate) rule_of_route: usize,
    /// The match's position in the rule.
    pub(crate) place: usize,
}

impl RuleCondition {
    pub(crate) fn new(wanted: &RouteMatch, origin: &MatchOrigin<'_>) -> Result<Self, PatternError> {
        let headers = values(&wanted.headers, |a, b| a.eq_ignore_ascii_case(b))?;
        let query = values(&wanted.query, |a, b| a == b)?;
        let precedence = Precedence {
            path: rank(&wanted.path),
            without_method: wanted.method.is_none(),
            headers: Reverse(headers.len()),
            query: Reverse(query.len()),
            created: origin.route.created,
            name: format!("{}/{}", origin.route.namespace, origin.route.name),
            rule: origin.rule_of_route,
            place: origin.place,
        };
        Ok(Self {
            path: PathCondition::new(&wanted.path)?,
            method: wanted.method.as_deref().map(Into::into),
            headers,
            query,
            rule: origin.rule,
            precedence,
        })
    }

    /// The position of the match in its rule.
    pub(crate) fn place(&self) -> usize {
        self.precedence.place
    }

    /// Checks that a request fulfils every condition.
    pub(crate) fn check(&self, request: &impl Request) -> Result<(), Mismatch> {
        if !self.path.matches(request.path()) {
            return Err(Mismatch::Path);
        }
        self.check_rest(request)
    }

    /// Checks all conditions except the path, which is known to match.
    #[inline]
    pub(crate) fn check_rest(&self, request: &impl Request) -> Result<(), Mismatch> {
        if self.method.as_deref().is_some_and(|method| method != request.method()) {
            return Err(Mismatch::Method);
        }
        for wanted in &self.headers {
            let value = request.header(&wanted.name);
            if !value.is_some_and(|value| wanted.text.matches(value)) {
                return Err(Mismatch::Header(wanted.place));
            }
        }
        for wanted in &self.query {
            let value = request.query().and_then(|query| parameter(query, wanted.name.as_bytes()));
            if !value.is_some_and(|value| wanted.text.matches(value)) {
                return Err(Mismatch::Query(wanted.place));
            }
        }
        Ok(())
    }
}

impl PathCondition {
    fn new(wanted: &PathMatch) -> Result<Self, PatternError> {
        let text = |wanted: &Option<TextMatch>| wanted.as_ref().map(TextCondition::new).transpose();
        Ok(match wanted {
            PathMatch::Exact(path) => Self::Exact(path.as_bytes().into()),
            PathMatch::Prefix(path) => Self::Prefix(path.trim_end_matches('/').as_bytes().into()),
            PathMatch::Regex(pattern) => Self::Regex(Pattern::new(pattern)?),
            PathMatch::Grpc { service, method } => {
                Self::Grpc { service: text(service)?, method: text(method)? }
            }
        })
    }

    fn matches(&self, path: &[u8]) -> bool {
        match self {
            Self::Exact(wanted) => **wanted == *path,
            Self::Prefix(wanted) => {
                path.starts_with(wanted) && matches!(path.get(wanted.len()), None | Some(b'/'))
            }
            Self::Regex(pattern) => pattern.matches(path),
            Self::Grpc { service: None, method: None } => true,
            Self::Grpc { service, method } => {
                let fits = |wanted: &Option<TextCondition>, text: &[u8]| {
                    wanted.as_ref().is_none_or(|wanted| wanted.matches(text))
                };
                grpc_parts(path).is_some_and(|(of, call)| fits(service, of) && fits(method, call))
            }
        }
    }

    /// If only one path matches, that path.
    pub(crate) fn exact(&self) -> Option<Box<[u8]>> {
        match self {
            Self::Exact(path) => Some(path.clone()),
            Self::Grpc {
                service: Some(TextCondition::Exact(of)),
                method: Some(TextCondition::Exact(call)),
            } => Some([b"/", &**of, b"/", &**call].concat().into()),
            _ => None,
        }
    }
}

impl PathCondition {
    /// The literal prefix by which the match can be indexed, if it has one. For gRPC it is `/<service>`.
    pub(crate) fn prefix(&self) -> Option<Box<[u8]>> {
        match self {
            Self::Prefix(prefix) => Some(prefix.clone()),
            Self::Grpc { service: Some(TextCondition::Exact(service)), .. } => {
                Some([b"/", &**service].concat().into())
            }
            _ => None,
        }
    }
}

impl TextCondition {
    fn new(wanted: &TextMatch) -> Result<Self, PatternError> {
        Ok(match wanted {
            TextMatch::Exact(text) => Self::Exact(text.as_bytes().into()),
            TextMatch::Regex(pattern) => Self::Regex(Pattern::new(pattern)?),
        })
    }

    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        match self {
            Self::Exact(wanted) => **wanted == *text,
            Self::Regex(pattern) => pattern.matches(text),
        }
    }
}

/// Splits `/<service>/<method>` (gRPC over HTTP/2, "Requests").
fn grpc_parts(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = path.strip_prefix(b"/")?;
    let mut parts = rest.split(|byte| *byte == b'/');
    let (service, method) = (parts.next()?, parts.next()?);
    parts.next().is_none().then_some((service, method))
}

/// The value, as sent, of the first parameter with this name.
fn parameter<'q>(query: &'q [u8], name: &[u8]) -> Option<&'q [u8]> {
    query.split(|byte| *byte == b'&').find_map(|pair| match pair.strip_prefix(name)? {
        [] => Some(&b""[..]),
        [b'=', value @ ..] => Some(value),
        _ => None,
    })
}

/// The conditions on values. If several are for the same name, the first is used, as the specification requires.
fn values(
    wanted: &[ValueMatch],
    same: impl Fn(&str, &str) -> bool,
) -> Result<Box<[ValueCondition]>, PatternError> {
    let first = |(index, one): &(usize, &ValueMatch)| {
        !wanted[..*index].iter().any(|earlier| same(&earlier.name, &one.name))
    };
    let value = |(place, one): (usize, &ValueMatch)| {
        Ok(ValueCondition {
            place,
            name: (*one.name).into(),
            text: TextCondition::new(&one.value)?,
        })
    };
    wanted.iter().enumerate().filter(first).map(value).collect()
}

fn rank(path: &PathMatch) -> [(u8, Reverse<usize>); 2] {
    const NOTHING: (u8, Reverse<usize>) = (0, Reverse(0));
    let text = |wanted: &Option<TextMatch>| match wanted {
        Some(TextMatch::Exact(text)) => (0, Reverse(text.len())),
        Some(TextMatch::Regex(pattern)) => (1, Reverse(pattern.len())),
        None => (2, Reverse(0)),
    };
    match path {
        PathMatch::Exact(path) => [(0, Reverse(path.len())), NOTHING],
        PathMatch::Regex(pattern) => [(1, Reverse(pattern.len())), NOTHING],
        PathMatch::Prefix(path) => [(2, Reverse(path.trim_end_matches('/').len())), NOTHING],
        PathMatch::Grpc { service, method } => [text(service), text(method)],
    }
}
