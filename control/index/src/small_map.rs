//! Maps with few entries, mostly one: a `BTreeMap` has room for eleven as soon as it has one, which for 50,000 pods is
//! hundreds of megabytes.

use litemap::LiteMap;

/// Entries in a list, ordered by key.
pub(crate) type SmallMap<K, V> = LiteMap<K, V>;

/// An empty map with room for one entry.
pub(crate) fn one<K, V>() -> SmallMap<K, V> {
    LiteMap::with_capacity(1)
}
