//! Maps with few entries, mostly one. A `BTreeMap` allocates room for eleven entries with the first one, which
//! would take hundreds of megabytes for 50,000 pods.

use litemap::LiteMap;

/// A map that stores its entries in a list, ordered by key.
pub(crate) type SmallMap<K, V> = LiteMap<K, V>;

/// An empty map with room for one entry.
pub(crate) fn one<K, V>() -> SmallMap<K, V> {
    LiteMap::with_capacity(1)
}
