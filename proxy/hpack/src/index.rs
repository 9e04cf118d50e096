//! Where in an encoder's table a field or a name is.

use crate::table::{Entry, Table};

/// Places in a set: a hash belongs to one set, and no more than these are looked at.
const WAYS: usize = 4;

/// A set-associative cache from a hash to the number of the entry that was inserted last with
/// it. It is never told of evictions: the number of a dropped entry is too old to be believed.
/// If a set overflows, the oldest of its entries cannot be found any more, which costs the
/// reader of the section a few bytes and nobody any time.
#[derive(Debug, Default)]
pub(crate) struct Index {
    sets: Box<[Set]>,
}

type Set = [Place; WAYS];

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    hash: u32,
    /// How many entries had been inserted, this one counted, modulo 2^32.
    number: u32,
}

impl Index {
    /// An index for a table that never has more than `entries`.
    pub(crate) fn new(entries: usize) -> Self {
        let sets = (entries / WAYS).next_power_of_two();
        Self { sets: vec![Set::default(); sets].into() }
    }

    pub(crate) fn is_unmade(&self) -> bool {
        self.sets.is_empty()
    }

    /// The index in the table, 0 for the newest, of an entry with this hash for which `is` holds.
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
        set.iter().filter(|place| place.hash == hash).find_map(|place| {
            let age = table.inserted().wrapping_sub(place.number) as usize;
            table.get(age).is_some_and(&is).then_some(age)
        })
    }

    /// Notes the newest entry of the table, in the place of an earlier one with the same hash
    /// or of the oldest.
    pub(crate) fn note(&mut self, hash: u32, table: &Table) {
        let number = table.inserted();
        let last = self.sets.len() - 1;
        let set = &mut self.sets[hash as usize & last];
        let age = |place: &Place| match place.hash == hash {
            true => u32::MAX,
            false => number.wrapping_sub(place.number),
        };
        if let Some(oldest) = set.iter_mut().max_by_key(|place| age(place)) {
            *oldest = Place { hash, number };
        }
    }
}
