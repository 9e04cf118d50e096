//! A YAML document as a tree in which every node has its position.

mod reason;

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, Spanned, from_str_multiple_with_options};

use crate::problem::{Position, Problem};

/// How deep values may be nested in a document. Kubernetes' own types need about 15 levels.
const MAX_DEPTH: usize = 48;
/// The largest number of documents in one file. It is enough for a rendered mesh of thousands of workloads.
const MAX_DOCUMENTS: usize = 50_000;
/// The largest number of nodes (values and keys) in one file. 10,000 endpoints need about 400,000.
const MAX_NODES: usize = 2_000_000;
/// The largest number of parser events in one file. A node causes a little over two.
const MAX_EVENTS: usize = 2 * MAX_NODES + 2 * MAX_DOCUMENTS;
/// How many parser events aliases may cause. Anchors are meant to save typing, not to generate data.
const MAX_ALIASED_EVENTS: usize = 100_000;

/// One value of a document.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TreeNode {
    pub(crate) place: Position,
    pub(crate) value: TreeValue,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TreeValue {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
    List(Vec<TreeNode>),
    Map(Vec<(TreeKey, TreeNode)>),
    /// A value that was removed from its list or map after it was reported, so that the rest can be decoded.
    Reported,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TreeKey {
    pub(crate) place: Position,
    pub(crate) text: String,
}

/// Reads every document of `text`, without empty ones. Mistakes are added to `problems`. A text
/// that is not YAML yields no document; if a key occurs twice, its first value is used.
pub(crate) fn read(file: &str, text: &str, problems: &mut Vec<Problem>) -> Vec<TreeNode> {
    let documents = documents(text, DuplicateKeyPolicy::Error)
        .unwrap_or_else(|error| refused(file, text, &error, problems));
    let filled = |node: &TreeNode| !matches!(node.value, TreeValue::Null);
    documents.into_iter().filter(filled).collect()
}

fn documents(
    text: &str,
    duplicates: DuplicateKeyPolicy,
) -> Result<Vec<TreeNode>, serde_saphyr::Error> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_documents: MAX_DOCUMENTS,
            max_nodes: MAX_NODES,
            max_events: MAX_EVENTS,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_ALIASED_EVENTS,
        },
        strict_booleans: true,
        duplicate_keys: duplicates,
        with_snippet: false,
    };
    from_str_multiple_with_options(text, options)
}

/// Reports why a text is rejected, and reads as much of it as possible.
fn refused(
    file: &str,
    text: &str,
    error: &serde_saphyr::Error,
    problems: &mut Vec<Problem>,
) -> Vec<TreeNode> {
    if matches!(error.without_snippet(), serde_saphyr::Error::DuplicateMappingKey { .. }) {
        // With this policy the parser returns both entries, so that every duplicate can be reported
        // with the position of the first. Of two equal integer keys it returns only one; then the
        // parser's own message has to do.
        let mut nodes = documents(text, DuplicateKeyPolicy::LastWins).unwrap_or_default();
        let before = problems.len();
        nodes.iter_mut().for_each(|node| remove_repeated(file, node, "", problems));
        if problems.len() > before {
            return nodes;
        }
    }
    let mut place = error.location().map_or_else(Position::default, place_of);
    let mut reason = reason::reason(error);
    if let Some(tab) = tab_indent(text, place.line) {
        place = tab;
        reason = "a tab indents this line: YAML takes spaces only".to_owned();
    }
    problems.push(Problem { file: file.into(), place, path: String::new(), reason });
    Vec::new()
}

/// The position of a tab in the indentation of the line at which the parser failed, or of a neighbouring line. For some
/// errors the parser reports a position before the tab, for others one after it.
fn tab_indent(text: &str, line: u64) -> Option<Position> {
    let indent =
        |text: &str| text.chars().take_while(|c| c.is_whitespace()).position(|c| c == '\t');
    let wanted = |number: u64| {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        let column = indent(text.lines().nth(index)?)?;
        Some(Position { line: number, column: column as u64 + 1 })
    };
    wanted(line).or_else(|| wanted(line + 1)).or_else(|| wanted(line.checked_sub(1)?))
}

/// Removes every repeated key from `node` and from all nodes in it, and reports each.
fn remove_repeated(file: &str, node: &mut TreeNode, path: &str, problems: &mut Vec<Problem>) {
    match &mut node.value {
        TreeValue::List(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                remove_repeated(file, item, &format!("{path}[{index}]"), problems);
            }
        }
        TreeValue::Map(entries) => {
            let below = |key: &TreeKey| match path {
                "" => key.text.clone(),
                path => format!("{path}.{}", key.text),
            };
            let mut lines: HashMap<String, u64> = HashMap::new();
            entries.retain(|(key, _)| {
                let Some(first) = lines.get(&key.text) else {
                    lines.insert(key.text.clone(), key.place.line);
                    return true;
                };
                let reason = format!("is given twice (first on line {first})");
                let (file, place, path) = (file.into(), key.place, below(key));
                problems.push(Problem { file, place, path, reason });
                false
            });
            for (key, value) in entries.iter_mut() {
                remove_repeated(file, value, &below(key), problems);
            }
        }
        _ => {}
    }
}

fn place_of(location: serde_saphyr::Location) -> Position {
    Position { line: location.line(), column: location.column() }
}

impl TreeNode {
    /// The value of a key; `None` if this is not a map or does not have the key.
    pub(crate) fn get(&self, key: &str) -> Option<&TreeNode> {
        match &self.value {
            TreeValue::Map(entries) => entries.iter().find(|(k, _)| k.text == key).map(|(_, n)| n),
            _ => None,
        }
    }

    /// Removes a key, and returns its value.
    pub(crate) fn take(&mut self, key: &str) -> Option<TreeNode> {
        let TreeValue::Map(entries) = &mut self.value else { return None };
        let at = entries.iter().position(|(k, _)| k.text == key)?;
        Some(entries.swap_remove(at).1)
    }

    /// An element; `None` if this is not a list or is shorter.
    pub(crate) fn at(&self, index: usize) -> Option<&TreeNode> {
        match &self.value {
            TreeValue::List(items) => items.get(index),
            _ => None,
        }
    }

    /// The node at a path such as `spec.rules[0].backendRefs[1].name`, or the innermost node on the
    /// path that the document has.
    pub(crate) fn find(&self, path: &str) -> &TreeNode {
        let mut node = self;
        for step in path.split(['.', '[']).filter(|step| !step.is_empty()) {
            let next = match step.strip_suffix(']') {
                Some(index) => index.parse().ok().and_then(|index| node.at(index)),
                None => node.get(step),
            };
            let Some(next) = next else { break };
            node = next;
        }
        node
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            TreeValue::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for TreeNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<TreeValue>::deserialize(deserializer)?;
        Ok(Self { place: place_of(spanned.referenced), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for TreeKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<String>::deserialize(deserializer)?;
        Ok(Self { place: place_of(spanned.referenced), text: spanned.value })
    }
}

impl<'de> Deserialize<'de> for TreeValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = TreeValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E: Error>(self) -> Result<TreeValue, E> {
        Ok(TreeValue::Null)
    }

    fn visit_none<E: Error>(self) -> Result<TreeValue, E> {
        Ok(TreeValue::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<TreeValue, D::Error> {
        TreeValue::deserialize(deserializer)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<TreeValue, E> {
        Ok(TreeValue::Bool(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<TreeValue, E> {
        Ok(TreeValue::Unsigned(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<TreeValue, E> {
        Ok(u64::try_from(value).map_or(TreeValue::Signed(value), TreeValue::Unsigned))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<TreeValue, E> {
        Ok(TreeValue::Float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<TreeValue, E> {
        Ok(TreeValue::Text(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<TreeValue, E> {
        Ok(TreeValue::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<TreeValue, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(TreeValue::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<TreeValue, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(TreeValue::Map(entries))
    }
}
