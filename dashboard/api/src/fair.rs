//! Chooses the entries that are dropped from a full list, so that no namespace displaces the entries of others.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// The indexes of the entries to drop so that at most `most` are left. Again and again, the oldest entry of the
/// namespace with the most entries is chosen. `namespaces` contains the namespace of each entry, the oldest first.
pub(crate) fn surplus<'a>(
    namespaces: impl Iterator<Item = &'a str>,
    most: usize,
) -> BTreeSet<usize> {
    let mut of: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut all = 0_usize;
    for (index, namespace) in namespaces.enumerate() {
        of.entry(namespace).or_default().push(index);
        all += 1;
    }
    let mut sizes: BinaryHeap<(usize, &str)> =
        of.iter().map(|(namespace, entries)| (entries.len(), *namespace)).collect();
    let mut dropped = BTreeSet::new();
    while all - dropped.len() > most {
        let Some((size, namespace)) = sizes.pop() else { break };
        let entries = &of[namespace];
        dropped.insert(entries[entries.len() - size]);
        sizes.push((size - 1, namespace));
    }
    dropped
}

/// Drops the entries of a list beyond `most`, which [`surplus`] chooses. Returns how many were dropped.
pub(crate) fn keep_fairly<T>(
    list: &mut Vec<T>,
    most: usize,
    namespace: impl Fn(&T) -> &str,
) -> usize {
    keep_fairly_of(list, most, namespace).into_values().sum()
}

/// Like [`keep_fairly`], but counts the dropped entries by namespace, so that readers can be told how many entries
/// of their own namespaces were dropped.
pub(crate) fn keep_fairly_of<T>(
    list: &mut Vec<T>,
    most: usize,
    namespace: impl Fn(&T) -> &str,
) -> BTreeMap<String, usize> {
    let mut left_out = BTreeMap::new();
    if list.len() <= most {
        return left_out;
    }
    let dropped = surplus(list.iter().map(&namespace), most);
    let mut index = 0;
    list.retain(|one| {
        let is_dropped = dropped.contains(&index);
        index += 1;
        if is_dropped {
            *left_out.entry(namespace(one).to_owned()).or_default() += 1;
        }
        !is_dropped
    });
    left_out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_shortened_to_its_bound() {
        let mut all = vec![("a", 1), ("b", 2), ("a", 3), ("a", 4)];
        assert_eq!(keep_fairly(&mut all, 9, |one| one.0), 0);
        assert_eq!(keep_fairly(&mut all, 2, |one| one.0), 2);
        assert_eq!(all, [("b", 2), ("a", 4)]);
        let left_out = keep_fairly_of(&mut all, 1, |one| one.0);
        assert_eq!(left_out.into_values().sum::<usize>(), 1);
    }

    #[test]
    fn the_largest_namespace_loses_its_oldest() {
        let all = ["a", "b", "a", "a", "b", "c", "a"];
        let left = |most| {
            let dropped = surplus(all.into_iter(), most);
            let kept = all.iter().enumerate().filter(|(index, _)| !dropped.contains(index));
            kept.map(|(index, name)| format!("{name}{index}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(left(9), "a0 b1 a2 a3 b4 c5 a6");
        assert_eq!(left(5), "b1 a3 b4 c5 a6");
        assert_eq!(left(3), "b4 c5 a6");
        assert_eq!(left(0), "");
    }
}
