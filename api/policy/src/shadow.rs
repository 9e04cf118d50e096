//! Finds matches that no request reaches, because matches of higher precedence take all their
//! requests.
#![expect(clippy::indexing_slicing, reason = "places and rules are of this table")]

use crate::condition::{Condition, Path, Text, Value};
use crate::table::{RouteTable, TableRule};

/// How many cases a match is split into, to see whether others together take them all: enough for a
/// handful of versions in two or three places.
const MAX_CASES: usize = 256;

/// A match that no request reaches.
#[derive(Clone, Debug)]
pub struct Shadowed<'t> {
    /// Its rule.
    pub rule: &'t TableRule,
    /// Its position in the rule.
    pub place: usize,
    /// The matches that take precedence and together take all its requests: their rules, and their
    /// positions in them, in the order of precedence.
    pub by: Vec<(&'t TableRule, usize)>,
}

impl RouteTable {
    /// The matches that no request reaches, in the order of precedence. Each match is compared with
    /// every single one that takes precedence. A match whose expressions stand for a few texts
    /// (`v1|v2`) is compared text by text, so that several others together can shadow it. The
    /// overlap of other expressions is not analysed.
    #[must_use]
    pub fn shadowed(&self) -> Vec<Shadowed<'_>> {
        let mut found = Vec::new();
        for (at, condition) in self.conditions.iter().enumerate() {
            let mut by = match self.taken_by(condition, at) {
                Some(one) => vec![one],
                None => self.taken_together(condition, at).unwrap_or_default(),
            };
            by.sort_unstable();
            by.dedup();
            if by.is_empty() {
                continue;
            }
            let place = |place: &u32| {
                let by = &self.conditions[*place as usize];
                (&self.rules()[by.rule], by.place())
            };
            found.push(Shadowed {
                rule: &self.rules()[condition.rule],
                place: condition.place(),
                by: by.iter().map(place).collect(),
            });
        }
        found
    }

    /// One match before `at` that takes all requests of this one.
    fn taken_by(&self, condition: &Condition, at: usize) -> Option<u32> {
        let mut rivals = self.rivals(condition).take_while(|rival| (*rival as usize) < at);
        rivals.find(|rival| covers(&self.conditions[*rival as usize], condition))
    }

    /// Several matches that together take all requests of this one, if it can be split into a few
    /// cases.
    fn taken_together(&self, condition: &Condition, at: usize) -> Option<Vec<u32>> {
        let cases = cases(condition).filter(|cases| cases.len() > 1)?;
        cases.iter().map(|case| self.taken_by(case, at)).collect()
    }

    /// The matches that can take a request before this one, in the order of precedence: those of
    /// the same path, and for prefixes also regular expressions.
    fn rivals<'t>(&'t self, condition: &'t Condition) -> impl Iterator<Item = u32> {
        let same = self.same_path(condition);
        let listed = match condition.path {
            // A split expression has an exact path here, but still ranks after other expressions.
            Path::Prefix(_) | Path::Exact(_) => self.listed(),
            _ => &[],
        };
        let mut all: Vec<u32> = same.iter().chain(listed).copied().collect();
        all.sort_unstable();
        all.into_iter()
    }
}

/// The cases of a match: its expressions replaced by each text that they stand for. `None` if there
/// are too many. Every request of the match belongs to one of the cases.
fn cases(condition: &Condition) -> Option<Vec<Condition>> {
    let mut cases = vec![condition.clone()];
    let mut split = |texts: Option<Vec<Vec<u8>>>, put: &dyn Fn(&mut Condition, Box<[u8]>)| {
        let Some(texts) = texts else { return true };
        let all = cases.iter().flat_map(|case| {
            texts.iter().map(|text| {
                let mut one = case.clone();
                put(&mut one, text.as_slice().into());
                one
            })
        });
        cases = all.take(MAX_CASES + 1).collect();
        cases.len() <= MAX_CASES
    };
    let of = |text: &Text| match text {
        Text::Regex(pattern) => pattern.texts(),
        Text::Exact(_) => None,
    };
    let mut fits = true;
    match &condition.path {
        Path::Regex(pattern) => {
            fits &= split(pattern.texts(), &|case, text| case.path = Path::Exact(text));
        }
        Path::Grpc { service, method } => {
            fits &= split(service.as_ref().and_then(of), &|case, text| {
                if let Path::Grpc { service, .. } = &mut case.path {
                    *service = Some(Text::Exact(text));
                }
            });
            fits &= split(method.as_ref().and_then(of), &|case, text| {
                if let Path::Grpc { method, .. } = &mut case.path {
                    *method = Some(Text::Exact(text));
                }
            });
        }
        Path::Exact(_) | Path::Prefix(_) => {}
    }
    for (at, value) in condition.headers.iter().enumerate() {
        fits &= split(of(&value.text), &|case, text| case.headers[at].text = Text::Exact(text));
    }
    for (at, value) in condition.query.iter().enumerate() {
        fits &= split(of(&value.text), &|case, text| case.query[at].text = Text::Exact(text));
    }
    fits.then_some(cases)
}

/// Whether `a` matches every request that `b` matches.
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
        (Path::Regex(a), Path::Exact(b)) => a.matches(b),
        (Path::Prefix(a), Path::Prefix(b)) => {
            b.starts_with(a) && matches!(b.get(a.len()), None | Some(b'/'))
        }
        (Path::Regex(a), Path::Regex(b)) => a.text() == b.text() || a.text() == ".*",
        // Every path that a prefix matches begins with a slash.
        (Path::Regex(a), Path::Prefix(b)) => a
            .literal_prefix()
            .is_some_and(|literal| literal == "/" || b.starts_with(literal.as_bytes())),
        (Path::Grpc { service: of_a, method: a }, Path::Grpc { service: of_b, method: b }) => {
            part(of_a.as_ref(), of_b.as_ref()) && part(a.as_ref(), b.as_ref())
        }
        _ => false,
    }
}

/// Compares one part of a gRPC path, where `None` matches every value.
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
