//! Expands tables of cases. Each line is a template, into which sets of alternatives are inserted.
//!
//! ```text
//! # a comment
//! set size 5 | +5 | 0x5               a set of alternatives; its elements may use sets before it
//! = POST / HTTP/1.1~{H}~~             a case that must be served
//! ! POST / HTTP/1.1~{size}~~          a case of which no server may receive anything
//! ? GET / HTTP/1.1~{H}~~              a case that may be served or refused
//! ```
//! `{name}` makes one case for each element of the set, `{x*9}` repeats `x`, `~` is CRLF, and `\s \t \r \0 \xNN` are
//! bytes. `{id}` is a marker of the case, by which it is found in the application's records.

use std::collections::BTreeMap;

/// The required outcome of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Served,
    Refused,
    Either,
}

/// A case of a table.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) verdict: Verdict,
    /// The text, which contains markers and escapes.
    pub(crate) text: String,
}

impl Case {
    /// The bytes of the case, with this marker.
    pub(crate) fn bytes(&self, marker: &str) -> Vec<u8> {
        unescape(&self.text.replace("{id}", marker))
    }
}

/// The cases of a table.
pub(crate) fn cases(table: &str) -> Vec<Case> {
    let mut sets: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut cases = Vec::new();
    for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(set) = line.strip_prefix("set ") {
            let (name, elements) = set.trim_start().split_once(' ').expect("a name and elements");
            let elements = elements.split(" | ").map(|element| element.trim_matches(' '));
            let expanded = elements.flat_map(|element| expand(element, &sets)).collect();
            sets.insert(name, expanded);
            continue;
        }
        let verdict = match line.split_at(2) {
            ("= ", _) => Verdict::Served,
            ("! ", _) => Verdict::Refused,
            ("? ", _) => Verdict::Either,
            _ => panic!("no verdict: {line}"),
        };
        let texts = expand(&line[2..], &sets);
        cases.extend(texts.into_iter().map(|text| Case { verdict, text }));
    }
    cases
}

/// All texts that result from a template and its sets.
fn expand(template: &str, sets: &BTreeMap<&str, Vec<String>>) -> Vec<String> {
    for (at, _) in template.match_indices('{') {
        let end = at + template[at..].find('}').expect("a closing brace");
        let Some(elements) = sets.get(&template[at + 1..end]) else { continue };
        let (before, after) = (&template[..at], &template[end + 1..]);
        let rest = expand(after, sets);
        let all = elements.iter().flat_map(|one| rest.iter().map(move |rest| (one, rest)));
        return all.map(|(one, rest)| format!("{before}{one}{rest}")).collect();
    }
    vec![template.to_owned()]
}

/// Replaces escapes by the bytes that they mean.
pub(crate) fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let mut used = first.len_utf8();
        match first {
            '~' => bytes.extend(b"\r\n"),
            '{' => {
                let (body, times, length) = repetition(rest);
                (0..times).for_each(|_| bytes.extend(unescape(body)));
                used = length;
            }
            '\\' => {
                used += 1;
                match rest.as_bytes().get(1) {
                    Some(b's') => bytes.push(b' '),
                    Some(b't') => bytes.push(b'\t'),
                    Some(b'n') => bytes.push(b'\n'),
                    Some(b'r') => bytes.push(b'\r'),
                    Some(b'0') => bytes.push(0),
                    Some(b'x') => {
                        bytes.push(u8::from_str_radix(&rest[2..4], 16).expect("two digits"));
                        used += 2;
                    }
                    other => bytes.extend(other),
                }
            }
            _ => bytes.extend(&rest.as_bytes()[..used]),
        }
        rest = &rest[used..];
    }
    bytes
}

/// The text and the number in `{x*9}`, and the length of the whole.
fn repetition(text: &str) -> (&str, usize, usize) {
    let end = text.find('}').unwrap_or_else(|| panic!("no end: {text}"));
    let (body, times) = text[1..end].rsplit_once('*').unwrap_or_else(|| panic!("no set: {text}"));
    (body, times.parse().expect("a number"), end + 1)
}

#[test]
fn a_table_is_expanded_and_unescaped() {
    let table = "# all\nset a x | y\\s\nset b {a}1 | z\n= {b}~{a}{id}{q*3}\n";
    let cases = cases(table);
    let bytes: Vec<_> = cases.iter().map(|case| case.bytes("7")).collect();
    let text: Vec<_> = bytes.iter().map(|bytes| String::from_utf8_lossy(bytes)).collect();
    let all = ["x1", "y 1", "z"].map(|b| ["x", "y "].map(|a| format!("{b}\r\n{a}7qqq")));
    assert_eq!(text, all.concat());
}
