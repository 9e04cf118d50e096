//! Matches that no request ever reaches, because another one takes all of theirs first.

use crate::condition::{Condition, Path, Text, Value};
use crate::table::{RouteTable, TableRule};

/// A match that is never reached.
#[derive(Clone, Copy, Debug)]
pub struct Shadowed<'t> {
    /// Its rule.
    pub rule: &'t TableRule,
    /// Its place in the rule.
    pub place: usize,
    /// The rule of the match that goes before it and takes every request that it would.
    pub by: &'t TableRule,
    /// That match's place in its rule.
    pub by_place: usize,
}

impl RouteTable {
    /// The matches that are never reached, in the order of precedence. Each is compared with those
    /// that go before it one by one: what several take together only is not found, nor what two
    /// different expressions have in common.
    #[must_use]
    pub fn shadowed(&self) -> Vec<Shadowed<'_>> {
        let place = |place: u32| &self.conditions[place as usize];
        let mut found = Vec::new();
        for (at, condition) in self.conditions.iter().enumerate() {
            let rivals = self.rivals(condition).take_while(|rival| (*rival as usize) < at);
            let by = rivals.map(place).find(|rival| covers(rival, condition));
            found.extend(by.map(|by| Shadowed {
                rule: &self.rules()[condition.rule],
                place: condition.place(),
                by: &self.rules()[by.rule],
                by_place: by.place(),
            }));
        }
        found
    }

    /// The matches that can take a request before this one, in the order of precedence: those of the
    /// same path, and expressions before prefixes.
    fn rivals<'t>(&'t self, condition: &'t Condition) -> impl Iterator<Item = u32> {
        let same = self.same_path(condition);
        let listed = match condition.path {
            Path::Prefix(_) => self.listed(),
            _ => &[],
        };
        let mut all: Vec<u32> = same.iter().chain(listed).copied().collect();
        all.sort_unstable();
        all.into_iter()
    }
}

/// Whether every request that `b` holds for is one that `a` holds for.
fn covers(a: &Condition, b: &Condition) -> bool {
    let all = |a: &[Value], b: &[Value], same: fn(&str, &str) -> bool| {
        let fits = |a: &Value, b: &Value| same(&a.name, &b.name) && text(&a.text, &b.text);
        a.iter().all(|a| b.iter().any(|b| fits(a, b)))
    };
    path(&a.path, &b.path)
        && (a.method.is_none() || a.method == b.method)
        && all(&a.headers, &b.headers, str::eq_ignore_ascii_case)
        && all(&a.query, &b.query, |a, b| a == b)
}

fn path(a: &Path, b: &Path) -> bool {
    match (a, b) {
        (Path::Exact(a), Path::Exact(b)) => a == b,
        (Path::Prefix(a), Path::Prefix(b)) => {
            b.starts_with(a) && matches!(b.get(a.len()), None | Some(b'/'))
        }
        (Path::Regex(a), Path::Regex(b)) => a.text() == b.text() || a.text() == ".*",
        // Every path that a prefix has begins with a slash.
        (Path::Regex(a), Path::Prefix(b)) => a
            .literal_prefix()
            .is_some_and(|literal| literal == "/" || b.starts_with(literal.as_bytes())),
        (Path::Grpc { service: of_a, method: a }, Path::Grpc { service: of_b, method: b }) => {
            part(of_a.as_ref(), of_b.as_ref()) && part(a.as_ref(), b.as_ref())
        }
        _ => false,
    }
}

/// Of a part of a gRPC path, where none means every one.
fn part(a: Option<&Text>, b: Option<&Text>) -> bool {
    match (a, b) {
        (None, _) => true,
        (Some(a), Some(b)) => text(a, b),
        (Some(_), None) => false,
    }
}

fn text(a: &Text, b: &Text) -> bool {
    match (a, b) {
        (Text::Exact(a), Text::Exact(b)) => a == b,
        (Text::Regex(a), Text::Exact(b)) => a.matches(b),
        (Text::Regex(a), Text::Regex(b)) => a.text() == b.text() || a.text() == ".*",
        (Text::Exact(_), Text::Regex(_)) => false,
    }
}
