//! From the tree to typed values: every failure and every unknown field with its place.

use std::cell::RefCell;
use std::fmt;

use serde::de::value::{StrDeserializer, StringDeserializer};
use serde::de::{self, Deserializer, IntoDeserializer, Visitor};

use crate::problem::Place;
use crate::tree::{Key, Node, Value};

/// Why a document does not fit its type.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// Where, once known: the innermost node fills it in.
    pub(crate) at: Option<(Place, String)>,
    pub(crate) reason: String,
}

/// A field that the type does not have.
#[derive(Clone, Debug)]
pub(crate) struct UnknownField {
    pub(crate) place: Place,
    pub(crate) path: String,
    /// The field that may have been meant.
    pub(crate) meant: Option<&'static str>,
}

/// Decodes a document. The second value lists the fields that `T` does not know.
pub(crate) fn decode<'de, T: de::Deserialize<'de>>(
    node: &'de Node,
) -> (Result<T, Failure>, Vec<UnknownField>) {
    let unknown = RefCell::new(Vec::new());
    let result =
        T::deserialize(NodeDeserializer { node, field: None, path: Path::Root, unknown: &unknown });
    (result, unknown.into_inner())
}

/// The way from the document to a node, as a list on the stack.
#[derive(Clone, Copy)]
enum Path<'a> {
    Root,
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

struct NodeDeserializer<'de, 'a> {
    node: &'de Node,
    /// The field this is the value of: an unknown one is reported there.
    field: Option<Field<'de>>,
    path: Path<'a>,
    unknown: &'a RefCell<Vec<UnknownField>>,
}

/// A key, and the fields of the type that is asked for it.
#[derive(Clone, Copy)]
struct Field<'de> {
    key: &'de Key,
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

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Failure {}

impl de::Error for Failure {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { at: None, reason: message.to_string() }
    }

    fn missing_field(field: &'static str) -> Self {
        de::Error::custom(format_args!("{field} is missing"))
    }
}

impl<'de> NodeDeserializer<'de, '_> {
    /// Decodes the node; what its type itself finds wrong is placed here, too.
    fn seed<T: de::DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Failure> {
        let (node, path) = (self.node, self.path);
        seed.deserialize(self).map_err(|mut failure| {
            failure.at.get_or_insert_with(|| (node.place, path.to_string()));
            failure
        })
    }

    fn placed<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        result.map_err(|mut failure| {
            failure.at.get_or_insert_with(|| (self.node.place, self.path.to_string()));
            failure
        })
    }

    fn mismatch<T>(&self, expected: &str) -> Result<T, Failure> {
        let found = match &self.node.value {
            Value::Null => "nothing".to_owned(),
            Value::Bool(value) => format!("the truth value {value}"),
            Value::Unsigned(value) => format!("the number {value}"),
            Value::Signed(value) => format!("the number {value}"),
            Value::Float(value) => format!("the number {value}"),
            Value::Text(value) => format!("the text {value:?}"),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        };
        let scalar = !matches!(self.node.value, Value::Null | Value::List(_) | Value::Map(_));
        let advice = if expected == "a text" && scalar { ": put it in quotes" } else { "" };
        self.placed(Err(de::Error::custom(format_args!(
            "should be {expected} but is {found}{advice}"
        ))))
    }

    fn list<V: Visitor<'de>>(self, items: &'de [Node], visitor: V) -> Result<V::Value, Failure> {
        let result = visitor.visit_seq(ListAccess {
            items: items.iter().enumerate(),
            path: &self.path,
            unknown: self.unknown,
        });
        self.placed(result)
    }

    fn map<V: Visitor<'de>>(
        self,
        entries: &'de [(Key, Node)],
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
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

/// Numbers and truth values: what the text says, or a mismatch that names what was expected.
macro_rules! scalars {
    ($($method:ident $expected:literal,)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
            match self.node.value {
                Value::Text(_) | Value::Null | Value::List(_) | Value::Map(_) => {
                    self.mismatch($expected)
                }
                _ => self.deserialize_any(visitor),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for NodeDeserializer<'de, '_> {
    type Error = Failure;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        let result = match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Unsigned(value) => visitor.visit_u64(*value),
            Value::Signed(value) => visitor.visit_i64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Text(value) => visitor.visit_borrowed_str(value),
            Value::List(items) => return self.list(items, visitor),
            Value::Map(entries) => return self.map(entries, &[], visitor),
        };
        self.placed(result)
    }

    scalars! {
        deserialize_bool "true or false",
        deserialize_i8 "a number", deserialize_i16 "a number", deserialize_i32 "a number",
        deserialize_i64 "a number", deserialize_u8 "a number", deserialize_u16 "a number",
        deserialize_u32 "a number", deserialize_u64 "a number", deserialize_f32 "a number",
        deserialize_f64 "a number",
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match &self.node.value {
            Value::Text(text) => self.placed(visitor.visit_borrowed_str(text)),
            _ => self.mismatch("a text"),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match self.node.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match &self.node.value {
            Value::List(items) => self.list(items, visitor),
            _ => self.mismatch("a list"),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match &self.node.value {
            Value::Map(entries) => self.map(entries, &[], visitor),
            _ => self.mismatch("a map"),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        match &self.node.value {
            Value::Map(entries) => self.map(entries, fields, visitor),
            _ => self.mismatch("a map"),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        match &self.node.value {
            Value::Text(text) => {
                let name: StrDeserializer<'_, Failure> = text.as_str().into_deserializer();
                self.placed(visitor.visit_enum(name))
            }
            _ => self.mismatch("a text"),
        }
    }

    /// Types ask for this where they meet a field they do not have.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
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
    items: std::iter::Enumerate<std::slice::Iter<'de, Node>>,
    path: &'a Path<'a>,
    unknown: &'a RefCell<Vec<UnknownField>>,
}

impl<'de> de::SeqAccess<'de> for ListAccess<'de, '_> {
    type Error = Failure;

    fn next_element_seed<T: de::DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Failure> {
        let Some((index, node)) = self.items.next() else {
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

struct EntryAccess<'de, 'a> {
    entries: std::slice::Iter<'de, (Key, Node)>,
    /// The fields of the type that asks.
    known: &'static [&'static str],
    value: Option<&'de (Key, Node)>,
    path: &'a Path<'a>,
    unknown: &'a RefCell<Vec<UnknownField>>,
}

impl<'de> de::MapAccess<'de> for EntryAccess<'de, '_> {
    type Error = Failure;

    fn next_key_seed<T: de::DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Failure> {
        let Some(entry) = self.entries.next() else {
            return Ok(None);
        };
        self.value = Some(entry);
        let key: StringDeserializer<Failure> = entry.0.text.clone().into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<T: de::DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<T::Value, Failure> {
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
