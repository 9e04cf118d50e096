//! Keeps the objects that a watch has reported, or values derived from them.

use std::collections::{BTreeMap, BTreeSet};

use crate::Event;

/// A value for each object of a watch, by key. While the objects are listed again, the earlier values are kept. At
/// the end of the list, the values of objects that it did not contain are removed.
#[derive(Clone, Debug)]
pub struct Reflection<K, V> {
    values: BTreeMap<K, V>,
    /// During a list, the keys that it has contained so far.
    listed: Option<BTreeSet<K>>,
    complete: bool,
}

impl<K, V> Default for Reflection<K, V> {
    fn default() -> Self {
        Self { values: BTreeMap::new(), listed: None, complete: false }
    }
}

impl<K: Ord + Clone, V> Reflection<K, V> {
    /// Applies an event. `reduce` converts an object to its key and the value to keep; with `None`, nothing is
    /// kept for the object.
    pub fn take<O>(&mut self, event: Event<O>, reduce: impl FnOnce(O) -> (K, Option<V>)) {
        match event {
            Event::Init => self.listed = Some(BTreeSet::new()),
            Event::InitApply(object) => {
                let (key, value) = reduce(object);
                self.listed.get_or_insert_default().insert(key.clone());
                self.put(key, value);
            }
            Event::InitDone => {
                let listed = self.listed.take().unwrap_or_default();
                self.values.retain(|key, _| listed.contains(key));
                self.complete = true;
            }
            Event::Apply(object) => {
                let (key, value) = reduce(object);
                self.put(key, value);
            }
            Event::Delete(object) => {
                self.values.remove(&reduce(object).0);
            }
        }
    }

    /// The values by key.
    pub fn values(&self) -> &BTreeMap<K, V> {
        &self.values
    }

    /// Sets the value of an object before the watch reports it, for example after a write.
    pub fn insert(&mut self, key: K, value: V) {
        self.values.insert(key, value);
    }

    /// Whether all objects have been listed once. Then an object without a value does not exist.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    fn put(&mut self, key: K, value: Option<V>) {
        match value {
            Some(value) => drop(self.values.insert(key, value)),
            None => drop(self.values.remove(&key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_list_removes_what_is_not_in_it_and_only_at_its_end() {
        let mut reflection = Reflection::default();
        let mut take = |event| {
            reflection.take(event, |(key, value): (&str, Option<u8>)| (key, value));
            (reflection.is_complete(), reflection.values().clone().into_iter().collect::<Vec<_>>())
        };
        take(Event::Init);
        take(Event::InitApply(("a", Some(1))));
        assert_eq!(take(Event::InitApply(("b", Some(2)))), (false, vec![("a", 1), ("b", 2)]));
        assert_eq!(take(Event::InitDone), (true, vec![("a", 1), ("b", 2)]));
        assert_eq!(take(Event::Apply(("a", Some(3)))).1, [("a", 3), ("b", 2)]);
        assert_eq!(take(Event::Init).1, [("a", 3), ("b", 2)]);
        assert_eq!(take(Event::InitApply(("a", Some(3)))).1, [("a", 3), ("b", 2)]);
        assert_eq!(take(Event::InitDone), (true, vec![("a", 3)]));
        assert_eq!(take(Event::Apply(("a", None))).1, []);
        assert_eq!(take(Event::Apply(("c", Some(4)))).1, [("c", 4)]);
        assert_eq!(take(Event::Delete(("c", None))).1, []);
    }
}
