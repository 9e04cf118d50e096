//! Finds route matches on header values that no request can have.

use leno_resources::Object;
use leno_resources::gateway::{HeaderMatch, MatchType};

use super::finding::{Findings, Mistake};

/// White space at the ends of a value is not part of it (RFC 9110 section 5.5).
const WHITE_SPACE: [char; 2] = [' ', '\t'];

/// The matches of a rule, each with its conditions on headers.
type HeadersOfRule<'d> = Vec<&'d [HeaderMatch]>;

pub(super) fn headers(findings: &mut Findings<'_>) {
    for (at, object) in findings.objects() {
        for (rule, matches) in of_rules(object).iter().enumerate() {
            for (nth, conditions) in matches.iter().enumerate() {
                for (index, condition) in conditions.iter().enumerate() {
                    if let Some(wrong) = unmatched(condition) {
                        let path =
                            format!("spec.rules[{rule}].matches[{nth}].headers[{index}].value");
                        findings.push(at, &path, wrong);
                    }
                }
            }
        }
    }
}

fn of_rules(object: &Object) -> Vec<HeadersOfRule<'_>> {
    match object {
        Object::HttpRoute(route) => {
            let rules = route.spec.rules.iter().flatten().map(|rule| {
                let matches = rule.matches.iter().flatten();
                matches.map(|one| one.headers.as_deref().unwrap_or_default()).collect()
            });
            rules.collect()
        }
        Object::GrpcRoute(route) => {
            let rules = route.spec.rules.iter().flatten().map(|rule| {
                let matches = rule.matches.iter().flatten();
                matches.map(|one| one.headers.as_deref().unwrap_or_default()).collect()
            });
            rules.collect()
        }
        _ => Vec::new(),
    }
}

fn unmatched(condition: &HeaderMatch) -> Option<Mistake> {
    let trimmed = condition.value.trim_matches(WHITE_SPACE);
    if condition.kind == Some(MatchType::RegularExpression) || trimmed == condition.value {
        return None;
    }
    let reason = format!(
        "no request matches, because white space at the ends of a header value, as in {:?}, is not \
         part of it",
        condition.value
    );
    Some(Mistake::warning("header-unmatched", reason, format!("write {trimmed:?}")))
}
