//! A JSON value that keeps the order of its fields.

use std::fmt;

use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, SerializeSeq, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::Number;

/// A JSON value. Maps with the same fields are equal, whatever their order.
#[derive(Clone, Debug)]
pub enum JsonValue {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<JsonValue>),
    /// A map, in the order of its text.
    Map(Vec<(String, JsonValue)>),
}

impl JsonValue {
    /// An empty map.
    pub(crate) fn map() -> Self {
        Self::Map(Vec::new())
    }

    /// A list of texts.
    pub(crate) fn texts<const N: usize>(texts: [&str; N]) -> Self {
        Self::List(texts.map(Self::from).into())
    }

    /// The field of a map; `None` if it is missing or null.
    #[must_use]
    pub fn get(&self, field: &str) -> Option<&Self> {
        let Self::Map(fields) = self else { return None };
        let found = fields.iter().find(|(name, _)| name == field).map(|(_, value)| value);
        found.filter(|value| !matches!(value, Self::Null))
    }

    /// A mutable reference to the field of a map.
    pub fn get_mut(&mut self, field: &str) -> Option<&mut Self> {
        let Self::Map(fields) = self else { return None };
        let found = fields.iter_mut().find(|(name, _)| name == field).map(|(_, value)| value);
        found.filter(|value| !matches!(value, Self::Null))
    }

    /// The field at the end of a path of field names.
    #[must_use]
    pub fn at(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |value, field| value.get(field))
    }

    /// The text, if the value is one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The text in the field `name`. Containers, volumes, ports and variables have one.
    pub(crate) fn name(&self) -> Option<&str> {
        self.get("name")?.text()
    }

    /// The integer, if the value is one.
    pub(crate) fn number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => number.as_i64(),
            _ => None,
        }
    }

    /// The items of a list; empty for other values.
    #[must_use]
    pub fn items(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }

    /// The items of the list in this field; empty if the field is not a list.
    #[must_use]
    pub fn list(&self, field: &str) -> &[Self] {
        self.get(field).map_or(&[], Self::items)
    }

    /// The containers in a pod's spec; init containers come first.
    pub(crate) fn containers(&self) -> impl Iterator<Item = &Self> {
        self.list("initContainers").iter().chain(self.list("containers"))
    }

    /// The fields of a map; empty for other values.
    #[must_use]
    pub fn fields(&self) -> &[(String, Self)] {
        match self {
            Self::Map(fields) => fields,
            _ => &[],
        }
    }

    /// Sets a field of a map; a new field is added at the end.
    pub(crate) fn set(&mut self, field: &str, value: impl Into<Self>) {
        let Self::Map(fields) = self else { return };
        match fields.iter_mut().find(|(name, _)| name == field) {
            Some((_, found)) => *found = value.into(),
            None => fields.push((field.to_owned(), value.into())),
        }
    }

    /// Removes a field from a map.
    pub(crate) fn remove(&mut self, field: &str) -> Option<Self> {
        let Self::Map(fields) = self else { return None };
        let at = fields.iter().position(|(name, _)| name == field)?;
        Some(fields.remove(at).1)
    }

    /// The list in a field of a map, and whether the list was added because it was missing.
    pub(crate) fn list_in(&mut self, field: &str) -> (&mut Vec<Self>, bool) {
        let made = self.get(field).is_none();
        if made {
            self.set(field, Self::List(Vec::new()));
        }
        match self.get_mut(field) {
            Some(Self::List(items)) => (items, made),
            _ => unreachable!("checked before: {field} is a list or absent"),
        }
    }
}

impl PartialEq for JsonValue {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Number(a), Self::Number(b)) => a == b,
            (Self::Text(a), Self::Text(b)) => a == b,
            (Self::List(a), Self::List(b)) => a == b,
            (Self::Map(a), Self::Map(b)) => {
                let same = |(name, value): &(String, Self)| {
                    b.iter().any(|(other, theirs)| other == name && theirs == value)
                };
                a.len() == b.len() && a.iter().all(same)
            }
            _ => false,
        }
    }
}

impl From<&str> for JsonValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for JsonValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for JsonValue {
    fn from(given: bool) -> Self {
        Self::Bool(given)
    }
}

impl From<u32> for JsonValue {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl<const N: usize> From<[(&str, JsonValue); N]> for JsonValue {
    fn from(fields: [(&str, JsonValue); N]) -> Self {
        Self::Map(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }
}

impl<const N: usize> From<[JsonValue; N]> for JsonValue {
    fn from(items: [JsonValue; N]) -> Self {
        Self::List(items.into())
    }
}

impl Serialize for JsonValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(given) => serializer.serialize_bool(*given),
            Self::Number(number) => number.serialize(serializer),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                items.iter().try_for_each(|item| list.serialize_element(item))?;
                list.end()
            }
            Self::Map(fields) => {
                let mut map = serializer.serialize_map(Some(fields.len()))?;
                fields.iter().try_for_each(|(name, value)| map.serialize_entry(name, value))?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for JsonValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = JsonValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<JsonValue, E> {
        Ok(JsonValue::Null)
    }

    fn visit_none<E: Error>(self) -> Result<JsonValue, E> {
        Ok(JsonValue::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<JsonValue, D::Error> {
        JsonValue::deserialize(deserializer)
    }

    fn visit_bool<E: Error>(self, given: bool) -> Result<JsonValue, E> {
        Ok(JsonValue::Bool(given))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<JsonValue, E> {
        Ok(JsonValue::Number(number.into()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<JsonValue, E> {
        Ok(JsonValue::Number(number.into()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<JsonValue, E> {
        let number = Number::from_f64(number);
        number.map(JsonValue::Number).ok_or_else(|| E::custom("a number of JSON is finite"))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<JsonValue, E> {
        Ok(JsonValue::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<JsonValue, E> {
        Ok(JsonValue::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<JsonValue, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(JsonValue::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<JsonValue, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = access.next_entry()? {
            fields.push(field);
        }
        Ok(JsonValue::Map(fields))
    }
}
