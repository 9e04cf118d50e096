//! Why the parser rejects a text, in the words of documents instead of its own.

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
        // Mistakes of YAML itself have a text of the parser for users.
        error => {
            let text = error.render_with_formatter(&UserMessageFormatter);
            match error.location() {
                Some(place) => {
                    let place = format!(" at line {}, column {}", place.line(), place.column());
                    text.strip_suffix(&place).unwrap_or(&text).to_owned()
                }
                None => text,
            }
        }
    }
}

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
