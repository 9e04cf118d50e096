//! Finds fields and names in an encoder's table by their hash.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "the index is masked by the number of sets, a power of two"
)]

use crate::table::{Entry, Table};

/// The number of entries in a set. A hash belongs to one set, so a search examines at most this many entries.
const WAYS: usize = 4;

/// The initial number of sets: room for the fields of most connections, in 128 bytes.
const FIRST_SETS: usize = 4;

/// A set-associative cache. It finds the newest entry of the table with a certain hash. The cache is not told of
/// evictions: an evicted entry is recognised by its old number. If a set overflows, its oldest entry can no longer be
/// found. The section then gets a few bytes longer, but encoding takes no longer. The cache grows with the entries, so
/// that an idle connection holds no more than it has used.
#[derive(Debug, Default)]
pub(crate) struct Index {
    sets: Box<[Set]>,
    /// How many entries were noted since the sets were created.
    noted: usize,
    /// The largest number of sets.
    most: usize,
}

type Set = [IndexEntry; WAYS];

#[derive(Clone, Copy, Debug, Default)]
struct IndexEntry {
    hash: u32,
    /// The number of entries that had been inserted, including this one, modulo 2^32.
    number: u32,
}

impl Index {
    /// An index for a table of at most `entries` entries.
    pub(crate) fn new(entries: usize) -> Self {
        Self { most: (entries / WAYS).next_power_of_two(), ..Self::default() }
    }

    pub(crate) fn is_unmade(&self) -> bool {
        self.most == 0
    }

    /// The index in the table of an entry with this hash, for which `is` returns true. 0 is the newest entry.
    pub(crate) fn find(
        &self,
        hash: u32,
        table: &Table,
        is: impl Fn(&Entry) -> bool,
    ) -> Option<usize> {
        if self.sets.is_empty() {
            return None;
        }
        let set = &self.sets[hash as usize & (self.sets.len() - 1)];
        set.iter().filter(|entry| entry.hash == hash).find_map(|entry| {
            let age = table.inserted().wrapping_sub(entry.number) as usize;
            table.get(age).is_some_and(&is).then_some(age)
        })
    }

    /// Records the newest entry of the table. It replaces an earlier entry with the same hash, or
    /// the oldest one of the set.
    pub(crate) fn note(&mut self, hash: u32, table: &Table) {
        let is_full = self.noted >= self.sets.len() * WAYS / 2;
        if is_full && self.sets.len() < self.most {
            self.grow();
        }
        self.noted += 1;
        self.put(IndexEntry { hash, number: table.inserted() });
    }

    fn put(&mut self, new: IndexEntry) {
        let last = self.sets.len() - 1;
        let set = &mut self.sets[new.hash as usize & last];
        let age = |entry: &IndexEntry| match entry.hash == new.hash {
            true => u32::MAX,
            false => new.number.wrapping_sub(entry.number),
        };
        if let Some(oldest) = set.iter_mut().max_by_key(|entry| age(entry)) {
            *oldest = new;
        }
    }

    /// Doubles the number of sets, and moves the noted entries, the oldest first.
    #[cold]
    fn grow(&mut self) {
        let sets = (self.sets.len() * 2).clamp(FIRST_SETS.min(self.most), self.most);
        let before = std::mem::replace(&mut self.sets, vec![Set::default(); sets].into());
        let noted = before.iter().flatten().filter(|entry| entry.number != 0);
        let mut noted: Vec<IndexEntry> = noted.copied().collect();
        noted.sort_unstable_by_key(|entry| entry.number);
        self.noted = noted.len();
        noted.into_iter().for_each(|entry| self.put(entry));
    }
}
