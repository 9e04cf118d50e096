//! Combines changes of headers.

use std::sync::Arc;

use leno_types::routes::HeaderChanges;

/// A set of changes that has the same effect as `first` followed by `second`.
#[must_use]
pub fn combined(first: &HeaderChanges, second: &HeaderChanges) -> HeaderChanges {
    let touched = |name: &str| {
        second.set.iter().any(|(other, _)| other.eq_ignore_ascii_case(name))
            || second.remove.iter().any(|other| other.eq_ignore_ascii_case(name))
    };
    let kept = |list: &[(Arc<str>, Arc<str>)]| {
        list.iter().filter(|(name, _)| !touched(name)).cloned().collect::<Vec<_>>()
    };
    // `second` adds to the headers that `first` sets, so both lines are sent.
    HeaderChanges {
        set: kept(&first.set).into_iter().chain(second.set.iter().cloned()).collect(),
        add: kept(&first.add).into_iter().chain(second.add.iter().cloned()).collect(),
        remove: first.remove.iter().chain(&second.remove).cloned().collect(),
    }
}

/// Whether a text is a valid header name (RFC 9110 section 5.1).
#[must_use]
pub fn is_field_name(text: &str) -> bool {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !text.is_empty() && text.len() <= MAX_NAME && text.bytes().all(token)
}

/// The longest header name in a route, in bytes, as in the Gateway API.
const MAX_NAME: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(set: &[(&str, &str)], add: &[(&str, &str)], remove: &[&str]) -> HeaderChanges {
        let list = |list: &[(&str, &str)]| {
            list.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
        };
        let remove = remove.iter().map(|name| (*name).into()).collect();
        HeaderChanges { set: list(set), add: list(add), remove }
    }

    /// The reference implementation: applies changes to headers one after the other.
    fn apply(changes: &HeaderChanges, mut headers: Vec<(String, String)>) -> Vec<(String, String)> {
        let gone = |name: &str| {
            changes.remove.iter().any(|other| other.eq_ignore_ascii_case(name))
                || changes.set.iter().any(|(other, _)| other.eq_ignore_ascii_case(name))
        };
        headers.retain(|(name, _)| !gone(name));
        let new = changes.set.iter().chain(&changes.add);
        headers.extend(new.map(|(name, value)| (name.to_lowercase(), value.to_string())));
        headers.sort();
        headers
    }

    #[test]
    fn two_changes_become_one() {
        let headers: Vec<_> = ["a", "b", "c", "d"].map(|n| (n.to_owned(), "old".to_owned())).into();
        let lists: [&[(&str, &str)]; 4] =
            [&[], &[("A", "1")], &[("b", "2"), ("a", "3")], &[("c", "4")]];
        let removes: [&[&str]; 3] = [&[], &["a"], &["B", "d"]];
        let mut all = Vec::new();
        for set in lists {
            for add in lists {
                all.extend(removes.map(|remove| changes(set, add, remove)));
            }
        }
        for first in &all {
            for second in &all {
                let expected = apply(second, apply(first, headers.clone()));
                let found = apply(&combined(first, second), headers.clone());
                assert_eq!(found, expected, "{first:?}\n{second:?}");
            }
        }
    }

    #[test]
    fn names_are_tokens() {
        assert!(is_field_name("X-Version") && is_field_name("grpc-timeout"));
        for text in ["", "a b", "a:", ":path", "ä", "a\n", &"a".repeat(257)] {
            assert!(!is_field_name(text), "{text}");
        }
    }
}
