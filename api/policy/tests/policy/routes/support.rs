//! Short notations for routes and requests in tests.

use std::sync::Arc;

use leno_policy::{Request, RouteTable};
use leno_types::ServiceName;
use leno_types::routes::{
    PathMatch, Route, RouteBackend, RouteKind, RouteMatch, RouteRule, RouteTarget, TextMatch,
    ValueMatch,
};

/// A request: `GET /path?query` and headers.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestRequest {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, String)>,
}

impl Request for TestRequest {
    fn method(&self) -> &str {
        &self.method
    }

    fn path(&self) -> &[u8] {
        self.target.split('?').next().unwrap_or_default().as_bytes()
    }

    fn query(&self) -> Option<&[u8]> {
        self.target.split_once('?').map(|(_, query)| query.as_bytes())
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        let found = self.headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_bytes())
    }
}

/// Parses a request: `GET /path name=value name=value`.
pub(crate) fn sent(text: &str) -> TestRequest {
    let mut words = text.split(' ');
    let mut next = || words.next().unwrap_or_default().to_owned();
    let (method, target) = (next(), next());
    let header = |word: &str| {
        let (name, value) = word.split_once('=').expect("name=value");
        (name.to_owned(), value.to_owned())
    };
    TestRequest { method, target, headers: words.map(header).collect() }
}

/// Parses conditions, all of which must hold: `=/path`, `/prefix`, `~pattern`, `method:GET`, `name=value`,
/// `name~pattern`, `?name=value`, `?name~pattern`.
pub(crate) fn matched(text: &str) -> RouteMatch {
    let mut wanted = RouteMatch::default();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        if let Some(path) = word.strip_prefix('=') {
            wanted.path = PathMatch::Exact(path.into());
        } else if let Some(pattern) = word.strip_prefix('~') {
            wanted.path = PathMatch::Regex(pattern.into());
        } else if word.starts_with('/') {
            wanted.path = PathMatch::Prefix(word.into());
        } else if let Some(method) = word.strip_prefix("method:") {
            wanted.method = Some(method.into());
        } else if let Some(word) = word.strip_prefix('?') {
            wanted.query.push(value(word));
        } else {
            wanted.headers.push(value(word));
        }
    }
    wanted
}

fn value(word: &str) -> ValueMatch {
    let at = word.find(['=', '~']).expect("name=value or name~pattern");
    let text = word[at + 1..].into();
    let exact = word.as_bytes()[at] == b'=';
    let value = if exact { TextMatch::Exact(text) } else { TextMatch::Regex(text) };
    ValueMatch { name: word[..at].into(), value }
}

pub(crate) fn backend(name: &str, weight: u32) -> RouteBackend {
    let name = ServiceName::new("shop", name).expect("a label");
    RouteBackend { target: RouteTarget::Service { name, port: 80 }, weight, filters: Vec::new() }
}

/// A rule whose requests go to one backend.
pub(crate) fn rule(matches: &[&str], to: &str) -> RouteRule {
    RouteRule {
        matches: matches.iter().map(|text| matched(text)).collect(),
        backends: vec![backend(to, 1)],
        ..RouteRule::default()
    }
}

pub(crate) fn route(name: &str, rules: Vec<RouteRule>) -> Route {
    Route {
        kind: RouteKind::Http,
        namespace: "shop".into(),
        name: name.into(),
        created: 0,
        ports: Vec::new(),
        hostnames: Vec::new(),
        rules,
    }
}

pub(crate) fn table(routes: Vec<Route>) -> RouteTable {
    let routes: Vec<_> = routes.into_iter().map(Arc::new).collect();
    RouteTable::compile(&routes, 80).expect("routes for the port")
}

/// The first backend of the rule that a request follows, or `404`. Checks with every call that the
/// table's explanation agrees.
pub(crate) fn goes(table: &RouteTable, request: &str) -> String {
    let request = sent(request);
    let found = table.find(&request);
    let explained = table.explain(&request).found;
    assert_eq!(found.map(|f| (f.place, f.prefix)), explained.map(|f| (f.place, f.prefix)));
    match found.map(|found| &found.rule.rule().backends[0].target) {
        Some(RouteTarget::Service { name, .. }) => name.name.to_string(),
        Some(RouteTarget::Invalid(_)) => "500".to_owned(),
        None => "404".to_owned(),
    }
}
