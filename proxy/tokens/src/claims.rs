//! The claims of a token that was verified.

use std::time::Duration;

use leno_types::tokens::ClaimMatch;
use serde_json::{Map, Value};

/// The claims of a verified token.
#[derive(Clone, Debug, PartialEq)]
pub struct Claims {
    values: Map<String, Value>,
    /// The values of `exp` and `nbf` since the beginning of 1970. The issuer's permitted clock skew was added and
    /// subtracted.
    pub(crate) until: Duration,
    pub(crate) from: Duration,
    /// The position of the token's issuer among those that it was verified for.
    issuer: usize,
}

impl Claims {
    pub(crate) fn new(
        values: Map<String, Value>,
        issuer: usize,
        (from, until): (Duration, Duration),
    ) -> Self {
        Self { values, until, from, issuer }
    }

    /// The position of the issuer in the list with which the token was verified.
    #[must_use]
    pub const fn issuer(&self) -> usize {
        self.issuer
    }

    /// A claim as the value of a header; the elements of a list are separated by commas. `None` if there is no such
    /// claim, or if a header cannot express it: a text with spaces around it, or a list with an element that is empty
    /// or contains a comma.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<String> {
        match find(&self.values, name)? {
            Value::Array(elements) => {
                let is_one = |text: &String| !text.is_empty() && !text.contains(',');
                let texts: Option<Vec<String>> =
                    elements.iter().map(|one| line(one).filter(is_one)).collect();
                texts.map(|texts| texts.join(","))
            }
            value => line(value),
        }
    }

    /// Until when the token is valid, counted from the beginning of 1970, including the skew that is tolerated.
    #[must_use]
    pub const fn until(&self) -> Duration {
        self.until
    }

    /// Whether the token has all of these claims.
    #[must_use]
    pub fn fulfil(&self, wanted: &[ClaimMatch]) -> bool {
        wanted.iter().all(|one| {
            let found = find(&self.values, &one.name);
            found.is_some_and(|value| one.values.is_empty() || has(&one.name, value, &one.values))
        })
    }
}

/// The claim with this name, or else the claim at the end of a path with dots.
fn find<'v>(values: &'v Map<String, Value>, name: &str) -> Option<&'v Value> {
    if let Some(value) = values.get(name) {
        return Some(value);
    }
    let (first, rest) = name.split_once('.')?;
    find(values.get(first)?.as_object()?, rest)
}

/// A value that is not a list or an object, as the text of a header line; `None` if a header cannot express it.
fn line(value: &Value) -> Option<String> {
    scalar(value).filter(|text| text.trim_ascii() == text)
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Whether a claim, or an element of it, is one of `wanted`. `scope` is a list that is separated by spaces (RFC 8693
/// section 4.2).
fn has(name: &str, value: &Value, wanted: &[std::sync::Arc<str>]) -> bool {
    let is = |text: &str| wanted.iter().any(|one| **one == *text);
    match value {
        Value::String(text) if name == "scope" => is(text) || text.split(' ').any(is),
        Value::String(text) => is(text),
        Value::Bool(truth) => is(if *truth { "true" } else { "false" }),
        Value::Number(number) => is(&number.to_string()),
        Value::Array(elements) => {
            elements.iter().any(|one| !one.is_array() && has("", one, wanted))
        }
        Value::Null | Value::Object(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_is_one_line_or_none() {
        let values = json!({
            "sub": "ann", "level": 3, "admin": true, "groups": ["dev", "ops", 7],
            "forged": ["dev", "ops,admin"], "nested": {"groups": ["a"]}, "deep": [["a"]], "no": null,
        });
        let Value::Object(values) = values else { panic!() };
        let claims = Claims::new(values, 0, (Duration::ZERO, Duration::ZERO));
        for (name, expected) in [
            ("sub", Some("ann")),
            ("level", Some("3")),
            ("admin", Some("true")),
            ("groups", Some("dev,ops,7")),
            ("nested.groups", Some("a")),
            // If this were passed on, the application would find a group that the token does not have.
            ("forged", None),
            ("nested", None),
            ("deep", None),
            ("no", None),
            ("missing", None),
        ] {
            assert_eq!(claims.text(name).as_deref(), expected, "{name}");
        }
    }
}
