//! Suggestions for misspelt names.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "each row has one element more than `b`, and `i` and `j` are within `a` and `b`"
)]

/// The candidate most similar to `word`, if one is similar enough to be a typing mistake: at most a third of the
/// letters of `word`, and in any case one letter, are replaced, missing, added or swapped with a neighbour. Case is
/// ignored.
#[must_use]
pub fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let letters = |text: &str| text.chars().flat_map(char::to_lowercase).collect::<Vec<char>>();
    let word = letters(word);
    let allowed = (word.len() / 3).max(1);
    let scored = candidates.into_iter().map(|one| (distance(&word, &letters(one)), one));
    let near = scored.filter(|(distance, _)| *distance <= allowed && *distance < word.len());
    near.min_by_key(|(distance, _)| *distance).map(|(_, one)| one)
}

/// The number of insertions, deletions, replacements and swaps of neighbours that turn `a` into
/// `b`.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut rows: [Vec<usize>; 3] = [Vec::new(), Vec::new(), (0..=b.len()).collect()];
    for (i, letter) in a.iter().enumerate() {
        rows.rotate_left(1);
        let mut row = vec![i + 1];
        for (j, other) in b.iter().enumerate() {
            let replaced = rows[1][j] + usize::from(letter != other);
            let mut least = replaced.min(rows[1][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *letter == b[j - 1] && a[i - 1] == *other {
                least = least.min(rows[0][j - 1] + 1);
            }
            row.push(least);
        }
        rows[2] = row;
    }
    rows[2][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_other_words_are_not() {
        let known = ["backendRefs", "matches", "filters", "timeouts", "name"];
        for (word, expected) in [
            ("backendRef", Some("backendRefs")),
            ("backendrefs", Some("backendRefs")),
            ("mathces", Some("matches")),
            ("filter", Some("filters")),
            ("nmae", Some("name")),
            ("timeout", Some("timeouts")),
            ("retries", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), expected, "{word}");
        }
        assert_eq!(nearest("cart", ["card", "cart-next", "carts"]), Some("card"));
    }
}
