//! The paths of all conditions, so that a request is compared only with those that can match.
//!
//! The paths are sorted by segments, so the paths below a path follow it directly, and every path above a request's
//! path sorts before it. A search begins with the last path in this order that is not after the request's path, and
//! follows `parent`: the first path that is equal to the request's path or above it matches, and so do all its parents.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use leno_types::authorization::{SegmentMatch, is_below};

/// The paths of conditions, and the entries that require each.
#[derive(Debug, Default)]
pub(super) struct PathTable {
    rows: Vec<PathRow>,
}

#[derive(Debug)]
struct PathRow {
    text: Arc<str>,
    /// The position of the nearest row above it.
    parent: Option<u32>,
    /// The entries that require exactly this path.
    exact: Vec<u32>,
    /// The entries that require this path or one below it.
    below: Vec<u32>,
}

/// A text that is compared segment by segment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BySegments(Arc<str>);

impl Ord for BySegments {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self.0.as_bytes(), other.0.as_bytes())
    }
}

impl PartialOrd for BySegments {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Compares so that a slash sorts before every other byte.
fn compare(one: &[u8], other: &[u8]) -> Ordering {
    let common = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let key = |text: &[u8]| {
        text.get(common).map(|byte| if *byte == b'/' { 0 } else { 1 + u16::from(*byte) })
    };
    key(one).cmp(&key(other))
}

impl PathTable {
    pub(super) fn new(conditions: &[(SegmentMatch, u32)]) -> Self {
        let mut sorted: BTreeMap<BySegments, (Vec<u32>, Vec<u32>)> = BTreeMap::new();
        for (condition, entry) in conditions {
            let (SegmentMatch::Exact(text) | SegmentMatch::Prefix(text)) = condition;
            let (exact, below) = sorted.entry(BySegments(Arc::clone(text))).or_default();
            let list = if matches!(condition, SegmentMatch::Exact(_)) { exact } else { below };
            if list.last() != Some(entry) {
                list.push(*entry);
            }
        }
        let mut rows: Vec<PathRow> = Vec::with_capacity(sorted.len());
        for (BySegments(text), (exact, below)) in sorted {
            let last = rows.len().checked_sub(1).map(|last| last as u32);
            let parent = above(&rows, last, text.as_bytes());
            rows.push(PathRow { text, parent, exact, below });
        }
        Self { rows }
    }

    /// Calls `see` with the entries that require this path or a path above it. The path `*`, which stands for the whole
    /// server, is also below `/`.
    pub(super) fn each(&self, path: &[u8], mut see: impl FnMut(u32)) {
        if path == b"*"
            && let Some(root) = self.rows.first().filter(|row| row.text.is_empty())
        {
            root.below.iter().for_each(|entry| see(*entry));
        }
        let before = self.rows.partition_point(|row| compare(row.text.as_bytes(), path).is_le());
        let last = before.checked_sub(1).map(|last| last as u32);
        let mut at = above(&self.rows, last, path);
        while let Some(row) = at.and_then(|at| self.rows.get(at as usize)) {
            if row.text.as_bytes() == path {
                row.exact.iter().for_each(|entry| see(*entry));
            }
            row.below.iter().for_each(|entry| see(*entry));
            at = row.parent;
        }
    }
}

/// From a row and the rows above it, the nearest one whose path equals `path` or is above it.
fn above(rows: &[PathRow], mut at: Option<u32>, path: &[u8]) -> Option<u32> {
    while let Some(row) = at.and_then(|at| rows.get(at as usize)) {
        if is_below(row.text.as_bytes(), path) {
            return at;
        }
        at = row.parent;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entries_of_a_path_and_of_those_above_it_are_found() {
        let exact = |text: &str| SegmentMatch::Exact(text.into());
        let conditions = [
            (SegmentMatch::prefix("/"), 0),
            (SegmentMatch::prefix("/a"), 1),
            (exact("/a"), 2),
            (SegmentMatch::prefix("/a-x"), 3),
            (SegmentMatch::prefix("/a/b"), 4),
            (exact("/a/b/c"), 5),
            (SegmentMatch::prefix("/a0"), 6),
            (exact("/"), 7),
            (exact("/a/"), 8),
        ];
        let table = PathTable::new(&conditions);
        for path in [
            "/", "/a", "/a/", "/a/b", "/a/b/c", "/a/b/c/d", "/a-x", "/a-x/y", "/a!", "/a0/z", "/b",
            "*",
        ] {
            let mut found = Vec::new();
            table.each(path.as_bytes(), |entry| found.push(entry));
            found.sort_unstable();
            let expected: Vec<u32> = conditions
                .iter()
                .filter(|(condition, _)| {
                    let is_of_server = path == "*" && *condition == SegmentMatch::prefix("/");
                    is_of_server || condition.matches(path.as_bytes())
                })
                .map(|(_, entry)| *entry)
                .collect();
            assert_eq!(found, expected, "{path}");
        }
    }
}
