//! Explains why the parser rejects a text, in words about the document instead of the parser's own.

use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{Error, UserMessageFormatter};

use super::{MAX_ALIASED_EVENTS, MAX_DEPTH, MAX_DOCUMENTS, MAX_NODES};

/// The reason, without the position.
pub(super) fn reason(error: &Error) -> String {
    match error.without_snippet() {
        Error::AliasError { error, .. } => reason(error),
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("{key:?} is given twice"),
        Error::DuplicateMappingKey { .. } => "a key is given twice".to_owned(),
        Error::NonFiniteFloat { value, .. } => {
            format!("{value} is not a finite number: put it in quotes if it is a text")
        }
        Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. }
        | Error::AliasReplayCounterOverflow { .. } => {
            format!("aliases repeat more than {MAX_ALIASED_EVENTS} values: write some of them out")
        }
        Error::RecursiveReferencesRequireWeakTypes { .. } => {
            "an alias is inside of the value that it repeats: remove it".to_owned()
        }
        Error::UnknownAnchor { .. } => {
            "an alias has no anchor before it: write &name at the value that *name repeats"
                .to_owned()
        }
        Error::Budget { breach, .. } => breached(breach),
        // For mistakes in YAML syntax, the parser has a text for users.
        error => {
            let text = error.render_with_formatter(&UserMessageFormatter);
            let place = error.location().map_or_else(String::new, |place| {
                format!(" at line {}, column {}", place.line(), place.column())
            });
            let text = text.strip_suffix(&place).unwrap_or(&text);
            plainer(text).map_or_else(|| text.to_owned(), str::to_owned)
        }
    }
}

/// The parser's text in plainer words for the author of the document. `None` if it is plain enough.
fn plainer(text: &str) -> Option<&'static str> {
    let (_, plain) = PLAINER.iter().find(|(part, _)| text.contains(part))?;
    Some(plain)
}

/// Parts of the parser's texts, and the words that replace them.
const PLAINER: [(&str, &str); 6] = [
    (
        "did not find expected key",
        "this line fits no map above it: keys of one map begin in the same column, and only items \
         of a list begin with '-'",
    ),
    (
        "mapping values are not allowed",
        "a ':' where no key can be: put a text with ': ' in it in quotes, and begin the keys of one \
         map in the same column",
    ),
    ("simple key expected ':'", "a ':' is missing after the key"),
    ("expected string scalar", "a key should be a text: put a text that begins with '{' in quotes"),
    (
        "illegal placement of ':'",
        "a ':' where no key can be: is a '[' or '{' before it not closed?",
    ),
    ("misplaced bracket", "this bracket closes nothing: remove it, or open one before it"),
];

fn breached(breach: &BudgetBreach) -> String {
    match breach {
        BudgetBreach::Depth { .. } => format!("is nested deeper than {MAX_DEPTH} levels"),
        BudgetBreach::Documents { .. } => {
            format!("has more than {MAX_DOCUMENTS} documents: split it into several files")
        }
        BudgetBreach::Nodes { .. } | BudgetBreach::Events { .. } => {
            format!("has more than {MAX_NODES} values: split it into several files")
        }
        _ => "has more than fits into one file: split it into several files".to_owned(),
    }
}
