//! Finds matches that no request reaches, because matches of higher precedence match all their requests.
#![expect(clippy::indexing_slicing, reason = "places and rules are of this table")]

use crate::condition::{PathCondition, RuleCondition, TextCondition, ValueCondition};
use crate::table::{RouteTable, TableRule};

/// Into how many cases a match may be split, to find out whether several others together match all of them. It is
/// enough for two or three expressions that each stand for a few texts, such as `v1|v2`.
const MAX_CASES: usize = 256;

/// A match that no request reaches.
#[derive(Clone, Debug)]
pub struct ShadowedMatch<'t> {
    /// The rule of the match.
    pub rule: &'t TableRule,
    /// The position of the match in its rule.
    pub place: usize,
    /// The matches that take precedence and together match all its requests, in the order of precedence: for each its
    /// rule, and its position in the rule.
    pub by: Vec<(&'t TableRule, usize)>,
}

impl RouteTable {
    /// The matches that no request reaches, in the order of precedence. Each match is compared with
    /// every single one that takes precedence. A match whose expressions stand for a few texts
    /// (`v1|v2`) is compared text by text, so that several others together can shadow it. The
    /// overlap of other expressions is not analysed.
    #[must_use]
    pub fn shadowed(&self) -> Vec<ShadowedMatch<'_>> {
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
            found.push(ShadowedMatch {
                rule: &self.rules()[condition.rule],
                place: condition.place(),
                by: by.iter().map(place).collect(),
            });
        }
        found
    }

    /// A match before position `at`, and thus of higher precedence, that matches all requests that `condition` matches.
    fn taken_by(&self, condition: &RuleCondition, at: usize) -> Option<u32> {
        let mut rivals = self.rivals(condition).take_while(|rival| (*rival as usize) < at);
        rivals.find(|rival| covers(&self.conditions[*rival as usize], condition))
    }

    /// Several matches that together match all requests that `condition` matches, if the condition can be split into a
    /// few cases.
    fn taken_together(&self, condition: &RuleCondition, at: usize) -> Option<Vec<u32>> {
        let cases = cases(condition).filter(|cases| cases.len() > 1)?;
        cases.iter().map(|case| self.taken_by(case, at)).collect()
    }

    /// The matches that may match a request that `condition` matches, in the order of precedence: those with the same
    /// path and, if the path is a prefix or comes from an expression that was split, also the regular expressions.
    fn rivals<'t>(&'t self, condition: &'t RuleCondition) -> impl Iterator<Item = u32> {
        let same = self.same_path(condition);
        let listed = match condition.path {
            // An expression that was split has an exact path here, but still ranks after other expressions.
            PathCondition::Prefix(_) | PathCondition::Exact(_) => self.listed(),
            _ => &[],
        };
        let mut all: Vec<u32> = same.iter().chain(listed).copied().collect();
        all.sort_unstable();
        all.into_iter()
    }
}

/// The cases of a match, in which its expressions are replaced by each text for which they stand. `None` if there are
/// too many. Every request of the match belongs to one of the cases.
fn cases(condition: &RuleCondition) -> Option<Vec<RuleCondition>> {
    let mut cases = vec![condition.clone()];
    let mut split = |texts: Option<Vec<Vec<u8>>>, put: &dyn Fn(&mut RuleCondition, Box<[u8]>)| {
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
    let of = |text: &TextCondition| match text {
        TextCondition::Regex(pattern) => pattern.texts(),
        TextCondition::Exact(_) => None,
    };
    let mut fits = true;
    match &condition.path {
        PathCondition::Regex(pattern) => {
            fits &= split(pattern.texts(), &|case, text| case.path = PathCondition::Exact(text));
        }
        PathCondition::Grpc { service, method } => {
            fits &= split(service.as_ref().and_then(of), &|case, text| {
                if let PathCondition::Grpc { service, .. } = &mut case.path {
                    *service = Some(TextCondition::Exact(text));
                }
            });
            fits &= split(method.as_ref().and_then(of), &|case, text| {
                if let PathCondition::Grpc { method, .. } = &mut case.path {
                    *method = Some(TextCondition::Exact(text));
                }
            });
        }
        PathCondition::Exact(_) | PathCondition::Prefix(_) => {}
    }
    for (at, value) in condition.headers.iter().enumerate() {
        fits &= split(of(&value.text), &|case, text| {
            case.headers[at].text = TextCondition::Exact(text)
        });
    }
    for (at, value) in condition.query.iter().enumerate() {
        fits &=
            split(of(&value.text), &|case, text| case.query[at].text = TextCondition::Exact(text));
    }
    fits.then_some(cases)
}

/// Whether `a` matches every request that `b` matches.
fn covers(a: &RuleCondition, b: &RuleCondition) -> bool {
    let all = |a: &[ValueCondition], b: &[ValueCondition], same: fn(&str, &str) -> bool| {
        let fits = |a: &ValueCondition, b: &ValueCondition| {
            same(&a.name, &b.name) && text(&a.text, &b.text)
        };
        a.iter().all(|a| b.iter().any(|b| fits(a, b)))
    };
    path(&a.path, &b.path)
        && (a.method.is_none() || a.method == b.method)
        && all(&a.headers, &b.headers, str::eq_ignore_ascii_case)
        && all(&a.query, &b.query, |a, b| a == b)
}

fn path(a: &PathCondition, b: &PathCondition) -> bool {
    match (a, b) {
        (PathCondition::Exact(a), PathCondition::Exact(b)) => a == b,
        (PathCondition::Regex(a), PathCondition::Exact(b)) => a.matches(b),
        (PathCondition::Prefix(a), PathCondition::Prefix(b)) => {
            b.starts_with(a) && matches!(b.get(a.len()), None | Some(b'/'))
        }
        (PathCondition::Regex(a), PathCondition::Regex(b)) => {
            a.text() == b.text() || a.text() == ".*"
        }
        // The prefix `/` is an empty text here, but every path that it matches begins with a slash.
        (PathCondition::Regex(a), PathCondition::Prefix(b)) => a
            .literal_prefix()
            .is_some_and(|literal| literal == "/" || b.starts_with(literal.as_bytes())),
        (
            PathCondition::Grpc { service: of_a, method: a },
            PathCondition::Grpc { service: of_b, method: b },
        ) => part(of_a.as_ref(), of_b.as_ref()) && part(a.as_ref(), b.as_ref()),
        _ => false,
    }
}

/// Compares one part of a gRPC path. `None` matches every value.
fn part(a: Option<&TextCondition>, b: Option<&TextCondition>) -> bool {
    match (a, b) {
        (None, _) => true,
        (Some(a), Some(b)) => text(a, b),
        (Some(_), None) => false,
    }
}

fn text(a: &TextCondition, b: &TextCondition) -> bool {
    match (a, b) {
        (TextCondition::Exact(a), TextCondition::Exact(b)) => a == b,
        (TextCondition::Regex(a), TextCondition::Exact(b)) => a.matches(b),
        (TextCondition::Regex(a), TextCondition::Regex(b)) => {
            a.text() == b.text() || a.text() == ".*"
        }
        (TextCondition::Exact(_), TextCondition::Regex(_)) => false,
    }
}
