//! The dynamic table (RFC 7541 sections 2.3.2 and 4): newest entry first, limited in bytes.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "entries lie within the ring, and their sizes add up to the table's"
)]

use std::collections::VecDeque;

use crate::block::{FIELD_OVERHEAD, Hints};

/// The dynamic table. Entries are stored one after the other in one buffer. Evicting an entry only drops its position.
/// When the buffer is full, the remaining entries are moved to its front. Since the buffer may grow to twice the
/// table's size, each byte is moved at most once.
#[derive(Debug, Default)]
pub(crate) struct Table {
    bytes: Vec<u8>,
    entries: VecDeque<Entry>,
    size: usize,
    max_size: usize,
    /// How many entries were inserted since the table was created, modulo 2^32.
    inserted: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    start: u32,
    name_length: u32,
    value_length: u32,
    pub(crate) hints: Hints,
}

impl Entry {
    fn size(&self) -> usize {
        (self.name_length + self.value_length) as usize + FIELD_OVERHEAD
    }

    fn length(&self) -> usize {
        (self.name_length + self.value_length) as usize
    }

    pub(crate) fn name_length(&self) -> usize {
        self.name_length as usize
    }
}

/// The largest size of a table, even if the settings allow more. All offsets easily fit into 32 bits.
pub(crate) const MAX_TABLE_BYTES: usize = 1 << 24;

impl Table {
    pub(crate) fn new(max_size: usize) -> Self {
        Self { max_size: max_size.min(MAX_TABLE_BYTES), ..Self::default() }
    }

    pub(crate) fn max_size(&self) -> usize {
        self.max_size
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn inserted(&self) -> u32 {
        self.inserted
    }

    /// Changes the maximum size and evicts entries that no longer fit.
    pub(crate) fn set_max_size(&mut self, max_size: usize) {
        self.max_size = max_size.min(MAX_TABLE_BYTES);
        self.evict(0);
        if self.entries.is_empty() {
            self.bytes = Vec::new();
            self.entries = VecDeque::new();
        }
    }

    /// The entry at `index`. 0 is the newest.
    pub(crate) fn get(&self, index: usize) -> Option<&Entry> {
        let place = self.entries.len().checked_sub(index + 1)?;
        self.entries.get(place)
    }

    /// Name and value of an entry, one after the other.
    pub(crate) fn text(&self, entry: &Entry) -> &[u8] {
        &self.bytes[entry.start as usize..][..entry.length()]
    }

    /// Whether an entry equals this field.
    pub(crate) fn is(&self, entry: &Entry, name: &[u8], value: &[u8]) -> bool {
        let text = self.text(entry).split_at(entry.name_length());
        text == (name, value)
    }

    pub(crate) fn name(&self, entry: &Entry) -> &[u8] {
        &self.bytes[entry.start as usize..][..entry.name_length()]
    }

    /// Inserts an entry. An entry larger than the table empties the table and is not kept.
    pub(crate) fn insert(&mut self, name: &[u8], value: &[u8], hints: Hints) {
        let size = name.len() + value.len() + FIELD_OVERHEAD;
        self.evict(size);
        if size > self.max_size {
            return;
        }
        self.make_room(name.len() + value.len());
        let entry = Entry {
            start: self.bytes.len() as u32,
            name_length: name.len() as u32,
            value_length: value.len() as u32,
            hints,
        };
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.entries.push_back(entry);
        self.size += size;
        self.inserted = self.inserted.wrapping_add(1);
    }

    /// Evicts the oldest entries until `room` bytes are free or the table is empty.
    fn evict(&mut self, room: usize) {
        while self.size + room > self.max_size {
            let Some(entry) = self.entries.pop_front() else { break };
            self.size -= entry.size();
        }
        if self.entries.is_empty() {
            self.bytes.clear();
        }
    }

    /// Makes room for `length` more bytes in the buffer. Moves the entries to the front if that frees half of the
    /// buffer. Otherwise allocates a larger buffer, of at most twice the table's size.
    fn make_room(&mut self, length: usize) {
        let needed = self.bytes.len() + length;
        if needed <= self.bytes.capacity() {
            return;
        }
        let dead = self.entries.front().map_or(self.bytes.len(), |entry| entry.start as usize);
        if dead * 2 < self.bytes.len() {
            let capacity = (self.bytes.capacity() * 2).clamp(needed, needed.max(self.max_size * 2));
            return self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.copy_within(dead.., 0);
        self.bytes.truncate(self.bytes.len() - dead);
        for entry in &mut self.entries {
            entry.start -= dead as u32;
        }
    }
}
