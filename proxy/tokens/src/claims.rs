//! The claims of a token that was verified.

use std::time::Duration;

use leno_types::tokens::ClaimMatch;
use serde_json::{Map, Value};

/// What a verified token says.
#[derive(Clone, Debug, PartialEq)]
pub struct Claims {
    values: Map<String, Value>,
    /// `exp` and `nbf`, from the beginning of 1970, with the skew that is tolerated.
    pub(crate) until: Duration,
    pub(crate) from: Duration,
}

impl Claims {
    pub(crate) fn new(values: Map<String, Value>, (from, until): (Duration, Duration)) -> Self {
        Self { values, until, from }
    }

    /// Until when the token is valid, from the beginning of 1970, with the skew that is tolerated.
    #[must_use]
    pub const fn until(&self) -> Duration {
        self.until
    }

    /// Whether the token has all of these.
    #[must_use]
    pub fn fulfil(&self, wanted: &[ClaimMatch]) -> bool {
        wanted.iter().all(|one| {
            let found = find(&self.values, &one.name);
            found.is_some_and(|value| one.values.is_empty() || has(&one.name, value, &one.values))
        })
    }
}

/// The claim of this name; otherwise the one at the end of a path with dots.
fn find<'v>(values: &'v Map<String, Value>, name: &str) -> Option<&'v Value> {
    if let Some(value) = values.get(name) {
        return Some(value);
    }
    let (first, rest) = name.split_once('.')?;
    find(values.get(first)?.as_object()?, rest)
}

/// Whether a claim, or an element of it, is one of these. `scope` is a list with spaces (RFC 8693 section 4.2).
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
