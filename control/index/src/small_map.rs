//! Maps with few entries, mostly one. A `BTreeMap` allocates room for eleven entries with its first one. For 50,000
//! pods that is hundreds of megabytes.

use litemap::LiteMap;

/// Entries in a list, ordered by key.
pub(crate) type SmallMap<K, V> = LiteMap<K, V>;

/// An empty map with room for one entry.
pub(crate) fn one<K, V>() -> SmallMap<K, V> {
    LiteMap::with_capacity(1)
}
