//! A map with few entries, mostly one: a `BTreeMap` has room for eleven as soon as it has one, which for 50,000 pods is
//! hundreds of megabytes.

/// Entries in a list, ordered by key. It has no room that it does not use.
#[derive(Clone, Debug)]
pub(crate) struct SmallMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> SmallMap<K, V> {
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.place(key).ok().map(|at| &self.0[at].1)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.place(key).ok().map(|at| &mut self.0[at].1)
    }

    /// Sets the value of a key; returns the one before.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.place(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.0.reserve_exact(1);
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.place(key).ok().map(|at| self.0.remove(at).1)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first entry by key.
    pub(crate) fn first(&self) -> Option<(&K, &V)> {
        self.iter().next()
    }

    /// The entries, ordered by key.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.iter().map(|(key, _)| key)
    }

    fn place(&self, key: &K) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| other.cmp(key))
    }
}

impl<K: Ord + Clone, V: Default> SmallMap<K, V> {
    /// The value of a key; one that is not there is made.
    pub(crate) fn get_or_default(&mut self, key: &K) -> &mut V {
        let at = self.place(key).unwrap_or_else(|at| {
            self.0.reserve_exact(1);
            self.0.insert(at, (key.clone(), V::default()));
            at
        });
        &mut self.0[at].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_ordered_and_have_no_room_beside_them() {
        let mut map = SmallMap::default();
        for key in [3, 1, 2] {
            assert_eq!(map.insert(key, key * 10), None);
            assert_eq!(map.0.capacity(), map.0.len());
        }
        assert_eq!(map.insert(2, 21), Some(20));
        assert_eq!(map.iter().collect::<Vec<_>>(), [(&1, &10), (&2, &21), (&3, &30)]);
        assert_eq!((map.first(), map.get(&3), map.get(&4)), (Some((&1, &10)), Some(&30), None));
        *map.get_or_default(&0) += 5;
        *map.get_mut(&0).unwrap() += 1;
        assert_eq!(map.remove(&0), Some(6));
        assert_eq!(map.remove(&0), None);
        assert_eq!(map.keys().collect::<Vec<_>>(), [&1, &2, &3]);
        for key in 1..4 {
            map.remove(&key);
        }
        assert!(map.is_empty());
    }
}
