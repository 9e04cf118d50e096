//! A table with a limited number of flows. If it is full, a flow that was not used recently is removed for a new one.
//!
//! The flow is chosen by the clock algorithm, which operating systems use to replace memory pages. A hand moves over
//! the flows in a circle; a flow that was used since the hand last passed it is kept for another round. So a datagram
//! only sets a flag, and a new flow costs a few steps of the hand.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// A table of values by key, with a limited number of entries.
#[derive(Debug)]
pub(crate) struct FlowTable<K, V> {
    most: usize,
    next: u64,
    flows: HashMap<K, Entry<V>>,
    /// The keys in the order in which the hand passes them, with the numbers of their entries, which may no longer
    /// exist.
    order: VecDeque<(K, u64)>,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    /// Distinguishes entries, because keys may be used again.
    number: u64,
    used_at: Cell<Instant>,
    /// Whether the entry was used since the hand last passed it.
    has_chance: Cell<bool>,
}

impl<K: Clone + Eq + Hash, V> FlowTable<K, V> {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, next: 0, flows: HashMap::new(), order: VecDeque::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    /// The value of a key, which is marked as used.
    pub(crate) fn get(&self, key: &K, now: Instant) -> Option<&V> {
        let entry = self.flows.get(key)?;
        entry.used_at.set(now);
        entry.has_chance.set(true);
        Some(&entry.value)
    }

    /// Adds a value under a key that is not in the table. Returns the number of the new entry, and the value that was
    /// removed for it.
    pub(crate) fn insert(&mut self, key: K, value: V, now: Instant) -> (u64, Option<V>) {
        let evicted = if self.flows.len() >= self.most { self.evict() } else { None };
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let (used_at, has_chance) = (Cell::new(now), Cell::new(false));
        self.flows.insert(key.clone(), Entry { value, number, used_at, has_chance });
        // Remove the keys of entries that no longer exist.
        if self.order.len() >= self.most.saturating_mul(2) {
            self.order.retain(|(key, number)| {
                self.flows.get(key).is_some_and(|entry| entry.number == *number)
            });
        }
        self.order.push_back((key, number));
        (number, evicted)
    }

    /// Removes the entry with this number, if it still exists.
    pub(crate) fn remove(&mut self, key: &K, number: u64) -> Option<V> {
        self.flows.get(key).filter(|entry| entry.number == number)?;
        self.flows.remove(key).map(|entry| entry.value)
    }

    /// Removes the values that were not used for longer than `idle`.
    pub(crate) fn expire(&mut self, now: Instant, idle: Duration) -> Vec<V> {
        let over = |_: &K, entry: &mut Entry<V>| {
            now.saturating_duration_since(entry.used_at.get()) >= idle
        };
        self.flows.extract_if(over).map(|(_, entry)| entry.value).collect()
    }

    /// Removes the values for which `is_over` returns true.
    pub(crate) fn take_if(&mut self, is_over: impl Fn(&V) -> bool) -> Vec<V> {
        let over = |_: &K, entry: &mut Entry<V>| is_over(&entry.value);
        self.flows.extract_if(over).map(|(_, entry)| entry.value).collect()
    }

    /// Removes all values, and returns them.
    pub(crate) fn clear(&mut self) -> Vec<V> {
        self.order.clear();
        self.flows.drain().map(|(_, entry)| entry.value).collect()
    }

    fn evict(&mut self) -> Option<V> {
        while let Some((key, number)) = self.order.pop_front() {
            let Some(entry) = self.flows.get(&key).filter(|entry| entry.number == number) else {
                continue;
            };
            if entry.has_chance.take() {
                self.order.push_back((key, number));
                continue;
            }
            return self.flows.remove(&key).map(|entry| entry.value);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_flow_in_use_outlives_a_flood() {
        let (mut table, now) = (FlowTable::new(8), Instant::now());
        table.insert(0_u32, "in use", now);
        for key in 1..1_000 {
            assert_eq!(table.get(&0, now), Some(&"in use"), "{key}");
            table.insert(key, "once", now);
            assert!(table.len() <= 8 && table.order.len() <= 16);
        }
    }

    #[test]
    fn the_least_recently_used_makes_room() {
        let (mut table, now) = (FlowTable::new(2), Instant::now());
        table.insert('a', 1, now);
        table.insert('b', 2, now);
        assert_eq!(table.get(&'a', now), Some(&1));
        assert_eq!(table.insert('c', 3, now).1, Some(2));
        // All were used since the hand last passed them, so it makes a whole round.
        assert!(table.get(&'a', now).is_some() && table.get(&'c', now).is_some());
        assert!(table.insert('d', 4, now).1.is_some());
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn flows_without_datagrams_expire() {
        let (mut table, start) = (FlowTable::new(8), Instant::now());
        table.insert('a', 1, start);
        table.insert('b', 2, start);
        assert!(table.get(&'b', start + SECOND).is_some());
        assert_eq!(table.expire(start + 2 * SECOND, 2 * SECOND), [1]);
        assert_eq!(table.expire(start + 3 * SECOND, 2 * SECOND), [2]);
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn a_number_removes_its_own_entry_alone() {
        let (mut table, now) = (FlowTable::new(8), Instant::now());
        let (first, _) = table.insert('a', 1, now);
        assert_eq!(table.remove(&'a', first), Some(1));
        let (second, _) = table.insert('a', 2, now);
        assert_eq!(table.remove(&'a', first), None);
        assert_eq!(table.remove(&'a', second), Some(2));
    }

    #[test]
    fn entries_that_have_gone_take_no_room() {
        let (mut table, now) = (FlowTable::new(4), Instant::now());
        for key in 0..1_000 {
            let (number, evicted) = table.insert(key, (), now);
            assert_eq!(evicted, None);
            table.remove(&key, number);
        }
        assert!(table.order.len() <= 8, "{}", table.order.len());
    }
}
