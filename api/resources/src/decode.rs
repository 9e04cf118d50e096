//! Decodes the tree into typed values, and reports every failure and unknown field with its
//! position.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;

use serde::de::value::{StrDeserializer, StringDeserializer};
use serde::de::{self, DeserializeOwned, Deserializer, IntoDeserializer, Visitor};

use crate::check::did_you_mean;
use crate::problem::Position;
use crate::tree::{TreeKey, TreeNode, TreeValue};

/// The largest number of failures that are reported for one document. The document is decoded again after each failure.
const MAX_FAILURES: usize = 20;

/// The result of decoding a document.
pub(crate) struct Decoded<T> {
    /// The value, without the parts that failed; `None` if it cannot exist without them.
    pub(crate) value: Option<T>,
    /// The parts of the document that do not fit the type, at most [`MAX_FAILURES`].
    pub(crate) failures: Vec<DecodeFailure>,
    /// Fields that the type does not have.
    pub(crate) unknown: Vec<UnknownField>,
}

/// A part of a document that does not fit its type.
#[derive(Clone, Debug)]
pub(crate) struct DecodeFailure {
    /// The position and the path of the part. The innermost node sets it; until then it is `None`.
    pub(crate) at: Option<(Position, String)>,
    pub(crate) reason: String,
    /// The name of the missing field, if the failure is that a field is missing.
    missing: Option<&'static str>,
}

/// A field that the type does not have.
#[derive(Clone, Debug)]
pub(crate) struct UnknownField {
    pub(crate) place: Position,
    pub(crate) path: String,
    /// The field of the type that the user probably meant.
    pub(crate) meant: Option<&'static str>,
}

/// Decodes a document. A part that does not fit is removed and the rest decoded again, so that all
/// mistakes of a document are reported at once.
pub(crate) fn decode<T: DeserializeOwned>(node: &TreeNode) -> Decoded<T> {
    let mut tree = Cow::Borrowed(node);
    let mut decoded = Decoded { value: None, failures: Vec::new(), unknown: Vec::new() };
    let mut left_out = HashSet::new();
    while decoded.failures.len() < MAX_FAILURES {
        let (result, unknown) = once::<T>(&tree);
        for field in unknown {
            if decoded.unknown.iter().all(|one: &UnknownField| one.path != field.path) {
                decoded.unknown.push(field);
            }
        }
        let mut failure = match result {
            Ok(value) => {
                decoded.value = Some(value);
                break;
            }
            Err(failure) => failure,
        };
        let (_, path) = failure.at.get_or_insert_with(|| (node.place, String::new())).clone();
        let lacks = failure.missing.map(|field| joined(&path, field));
        // Do not report a missing field that was misspelt, or removed by an earlier round, because that is reported
        // already.
        let misspelt = |lacked: &String| decoded.unknown.iter().any(|one| one.means(lacked));
        if !lacks.is_some_and(|lacked| left_out.contains(&lacked) || misspelt(&lacked)) {
            decoded.failures.push(failure);
        }
        if path.is_empty() || !leave_out(tree.to_mut(), "", &path) {
            break;
        }
        left_out.insert(path);
    }
    decoded
}

fn once<'de, T: de::Deserialize<'de>>(
    node: &'de TreeNode,
) -> (Result<T, DecodeFailure>, Vec<UnknownField>) {
    let unknown = RefCell::new(Vec::new());
    let result =
        T::deserialize(NodeDeserializer { node, field: None, path: Path::Root, unknown: &unknown });
    (result, unknown.into_inner())
}

/// Appends a field to the path of a map.
fn joined(path: &str, field: &str) -> String {
    if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") }
}

/// Marks the part of `node` that is at `path`, so that it is not decoded. Returns false if there is no such part. `at`
/// is the path of `node` itself.
fn leave_out(node: &mut TreeNode, at: &str, path: &str) -> bool {
    if at == path {
        node.value = TreeValue::Reported;
        return true;
    }
    let below = |at: &str| path.starts_with(at);
    match &mut node.value {
        TreeValue::List(items) => items.iter_mut().enumerate().any(|(index, item)| {
            let at = format!("{at}[{index}]");
            below(&at) && leave_out(item, &at, path)
        }),
        TreeValue::Map(entries) => entries.iter_mut().any(|(key, value)| {
            let at = joined(at, &key.text);
            below(&at) && leave_out(value, &at, path)
        }),
        _ => false,
    }
}

impl UnknownField {
    /// Whether the unknown field is a misspelling of the field at `path`.
    fn means(&self, path: &str) -> bool {
        let parent = self.path.rsplit_once('.').map_or("", |(parent, _)| parent);
        self.meant.is_some_and(|meant| joined(parent, meant) == path)
    }
}

/// A number as a user would write it, without hundreds of digits.
struct Shown(f64);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.abs() < 1e15 {
            true => write!(f, "{}", self.0),
            false => write!(f, "{:e}", self.0),
        }
    }
}

/// The path from the document to a node, as a linked list on the stack.
#[derive(Clone, Copy)]
enum Path<'a> {
    Root,
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

struct NodeDeserializer<'de, 'a> {
    node: &'de TreeNode,
    /// The field whose value this is. If the type does not have the field, it is reported at its
    /// key.
    field: Option<Field<'de>>,
    path: Path<'a>,
    unknown: &'a RefCell<Vec<UnknownField>>,
}

/// A key in the document, and all fields of the type that is being decoded.
#[derive(Clone, Copy)]
struct Field<'de> {
    key: &'de TreeKey,
    known: &'static [&'static str],
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Key(Path::Root, key) => f.write_str(key),
            Self::Key(parent, key) => write!(f, "{parent}.{key}"),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

impl fmt::Display for DecodeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for DecodeFailure {}

impl de::Error for DecodeFailure {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { at: None, reason: message.to_string(), missing: None }
    }

    fn missing_field(field: &'static str) -> Self {
        Self { at: None, reason: format!("{field} is missing"), missing: Some(field) }
    }
}

impl<'de> NodeDeserializer<'de, '_> {
    /// Decodes the node. Errors of the type itself get this node's position.
    fn seed<T: de::DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, DecodeFailure> {
        let (node, path) = (self.node, self.path);
        seed.deserialize(self).map_err(|mut failure| {
            failure.at.get_or_insert_with(|| (node.place, path.to_string()));
            failure
        })
    }

    fn placed<T>(&self, result: Result<T, DecodeFailure>) -> Result<T, DecodeFailure> {
        result.map_err(|mut failure| {
            failure.at.get_or_insert_with(|| (self.node.place, self.path.to_string()));
            failure
        })
    }

    fn mismatch<T>(&self, expected: &str) -> Result<T, DecodeFailure> {
        let found = match &self.node.value {
            TreeValue::Null | TreeValue::Reported => "nothing".to_owned(),
            TreeValue::Bool(value) => format!("the truth value {value}"),
            TreeValue::Unsigned(value) => format!("the number {value}"),
            TreeValue::Signed(value) => format!("the number {value}"),
            TreeValue::Float(value) => format!("the number {}", Shown(*value)),
            TreeValue::Text(value) => format!("the text {value:?}"),
            TreeValue::List(_) => "a list".to_owned(),
            TreeValue::Map(_) => "a map".to_owned(),
        };
        let advice = self.advice(expected);
        self.placed(Err(de::Error::custom(format_args!(
            "should be {expected} but is {found}{advice}"
        ))))
    }

    /// Advice on how to write a value in the expected form; empty if that is not obvious.
    fn advice(&self, expected: &str) -> String {
        match (expected, &self.node.value) {
            ("a text", TreeValue::Null | TreeValue::List(_) | TreeValue::Map(_)) => String::new(),
            ("a text", _) => ": put it in quotes".to_owned(),
            ("a number", TreeValue::Text(text)) if text.parse::<f64>().is_ok() => {
                ": remove the quotes".to_owned()
            }
            ("a list", TreeValue::Text(text)) if is_plain_words(text) => {
                format!(": write [{}]", text.split(' ').collect::<Vec<_>>().join(", "))
            }
            ("a map", TreeValue::List(_)) => ": write KEY: VALUE, without '-'".to_owned(),
            _ => String::new(),
        }
    }

    /// Decodes a whole number within the bounds of its type.
    fn integer<V: Visitor<'de>>(
        self,
        bounds: std::ops::RangeInclusive<i128>,
        visitor: V,
    ) -> Result<V::Value, DecodeFailure> {
        let number = match self.node.value {
            TreeValue::Unsigned(number) => i128::from(number),
            TreeValue::Signed(number) => i128::from(number),
            TreeValue::Float(number) => {
                let reason = format_args!("{} is not a whole number", Shown(number));
                return self.placed(Err(de::Error::custom(reason)));
            }
            _ => return self.mismatch("a number"),
        };
        if bounds.contains(&number) {
            return self.deserialize_any(visitor);
        }
        let (least, most) = bounds.into_inner();
        let reason = format_args!("{number} is not from {least} to {most}");
        self.placed(Err(de::Error::custom(reason)))
    }

    fn list<V: Visitor<'de>>(
        self,
        items: &'de [TreeNode],
        visitor: V,
    ) -> Result<V::Value, DecodeFailure> {
        let result = visitor.visit_seq(ListAccess {
            items: items.iter().enumerate(),
            path: &self.path,
            unknown: self.unknown,
        });
        self.placed(result)
    }

    fn map<V: Visitor<'de>>(
        self,
        entries: &'de [(TreeKey, TreeNode)],
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeFailure> {
        let result = visitor.visit_map(EntryAccess {
            entries: entries.iter(),
            known,
            value: None,
            path: &self.path,
            unknown: self.unknown,
        });
        self.placed(result)
    }
}

/// Implements decoding of whole numbers, each within the bounds of its type.
macro_rules! integers {
    ($($method:ident $type:ty,)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFailure> {
            self.integer(i128::from(<$type>::MIN)..=i128::from(<$type>::MAX), visitor)
        }
    )*};
}

impl<'de> Deserializer<'de> for NodeDeserializer<'de, '_> {
    type Error = DecodeFailure;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFailure> {
        let result = match &self.node.value {
            TreeValue::Null | TreeValue::Reported => visitor.visit_unit(),
            TreeValue::Bool(value) => visitor.visit_bool(*value),
            TreeValue::Unsigned(value) => visitor.visit_u64(*value),
            TreeValue::Signed(value) => visitor.visit_i64(*value),
            TreeValue::Float(value) => visitor.visit_f64(*value),
            TreeValue::Text(value) => visitor.visit_borrowed_str(value),
            TreeValue::List(items) => return self.list(items, visitor),
            TreeValue::Map(entries) => return self.map(entries, &[], visitor),
        };
        self.placed(result)
    }

    integers! {
        deserialize_i8 i8, deserialize_i16 i16, deserialize_i32 i32, deserialize_i64 i64,
        deserialize_u8 u8, deserialize_u16 u16, deserialize_u32 u32, deserialize_u64 u64,
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFailure> {
        match self.node.value {
            TreeValue::Bool(_) => self.deserialize_any(visitor),
            _ => self.mismatch("true or false"),
        }
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFailure> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFailure> {
        match self.node.value {
            TreeValue::Unsigned(_) | TreeValue::Signed(_) | TreeValue::Float(_) => {
                self.deserialize_any(visitor)
            }
            _ => self.mismatch("a number"),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFailure> {
        match &self.node.value {
            TreeValue::Text(text) => self.placed(visitor.visit_borrowed_str(text)),
            _ => self.mismatch("a text"),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFailure> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFailure> {
        match self.node.value {
            TreeValue::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeFailure> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFailure> {
        match &self.node.value {
            TreeValue::List(items) => self.list(items, visitor),
            _ => self.mismatch("a list"),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFailure> {
        match &self.node.value {
            TreeValue::Map(entries) => self.map(entries, &[], visitor),
            _ => self.mismatch("a map"),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeFailure> {
        match &self.node.value {
            TreeValue::Map(entries) => self.map(entries, fields, visitor),
            _ => self.mismatch("a map"),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeFailure> {
        match &self.node.value {
            TreeValue::Text(text) if !variants.contains(&text.as_str()) => {
                let meant = did_you_mean(text, variants.iter().copied());
                self.placed(Err(de::Error::custom(format_args!(
                    "{text:?} is not one of {}{meant}",
                    variants.join(", ")
                ))))
            }
            TreeValue::Text(text) => {
                let name: StrDeserializer<'_, DecodeFailure> = text.as_str().into_deserializer();
                self.placed(visitor.visit_enum(name))
            }
            _ => self.mismatch("a text"),
        }
    }

    /// Types call this for a field that they do not have.
    fn deserialize_ignored_any<V: Visitor<'de>>(
        self,
        visitor: V,
    ) -> Result<V::Value, DecodeFailure> {
        let known = self.field.map_or(&[][..], |field| field.known).iter().copied();
        self.unknown.borrow_mut().push(UnknownField {
            place: self.field.map_or(self.node.place, |field| field.key.place),
            path: self.path.to_string(),
            meant: self.field.and_then(|field| leno_types::nearest(&field.key.text, known)),
        });
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        i128 u128 char bytes byte_buf unit unit_struct tuple tuple_struct identifier
    }
}

struct ListAccess<'de, 'a> {
    items: std::iter::Enumerate<std::slice::Iter<'de, TreeNode>>,
    path: &'a Path<'a>,
    unknown: &'a RefCell<Vec<UnknownField>>,
}

impl<'de> de::SeqAccess<'de> for ListAccess<'de, '_> {
    type Error = DecodeFailure;

    fn next_element_seed<T: de::DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeFailure> {
        let kept = |(_, node): &(usize, &TreeNode)| node.value != TreeValue::Reported;
        let Some((index, node)) = self.items.find(kept) else {
            return Ok(None);
        };
        let deserializer = NodeDeserializer {
            node,
            field: None,
            path: Path::Index(self.path, index),
            unknown: self.unknown,
        };
        deserializer.seed(seed).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

/// Whether a text consists of words that need no quotes in a list.
fn is_plain_words(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./ ".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '.' || c == '/')
        && !text.contains("  ")
        && !text.ends_with(' ')
        && text.chars().all(plain)
}

struct EntryAccess<'de, 'a> {
    entries: std::slice::Iter<'de, (TreeKey, TreeNode)>,
    /// The fields of the type that is being decoded.
    known: &'static [&'static str],
    value: Option<&'de (TreeKey, TreeNode)>,
    path: &'a Path<'a>,
    unknown: &'a RefCell<Vec<UnknownField>>,
}

impl<'de> de::MapAccess<'de> for EntryAccess<'de, '_> {
    type Error = DecodeFailure;

    fn next_key_seed<T: de::DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeFailure> {
        let Some(entry) = self.entries.find(|(_, node)| node.value != TreeValue::Reported) else {
            return Ok(None);
        };
        self.value = Some(entry);
        let key: StringDeserializer<DecodeFailure> = entry.0.text.clone().into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<T: de::DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<T::Value, DecodeFailure> {
        let (key, node) = self.value.take().expect("a key was asked for before its value");
        let deserializer = NodeDeserializer {
            node,
            field: Some(Field { key, known: self.known }),
            path: Path::Key(self.path, &key.text),
            unknown: self.unknown,
        };
        deserializer.seed(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.entries.len())
    }
}
