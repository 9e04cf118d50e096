//! Sections that an encoder has already written. It copies such a section instead of encoding it again.
#![expect(clippy::indexing_slicing, reason = "the hash is reduced to the number of slots")]

use crate::block::{Beginning, Block};
use crate::hash;

/// How many sections are cached. Calls that repeat on one connection have only a few different heads and trailers.
const SLOTS: usize = 8;
/// The largest block whose section is cached, in bytes of its fields. Comparing a block of this size costs less than
/// encoding it.
const MAX_BYTES: usize = 512;

/// The sections of some blocks. An entry is valid as long as the encoder's table does not change.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    slots: Box<[Slot]>,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    /// The hash of the block that last used this slot, whether its section was cached or not.
    hash: u32,
    /// How many entries had been inserted into the table since it was created.
    inserted: u32,
    block: Block,
    /// The section; empty if none is cached.
    section: Vec<u8>,
}

impl Repeats {
    /// The hash of these fields, which determines their slot. `None` if they are too large.
    pub(crate) fn hash(fields: Beginning<'_>) -> Option<u32> {
        (fields.bytes.len() <= MAX_BYTES).then(|| hash::of_name(fields.bytes))
    }

    /// The section of these fields, if it was encoded while the table had the same entries.
    pub(crate) fn find(&self, hash: u32, fields: Beginning<'_>, inserted: u32) -> Option<&[u8]> {
        let slot = self.slots.get(hash as usize % SLOTS)?;
        let same = slot.hash == hash
            && slot.inserted == inserted
            && !slot.section.is_empty()
            && slot.block.whole().is_same(fields);
        same.then_some(&slot.section)
    }

    /// Caches the section of these fields when they use their slot for the second time in a row, because a section that
    /// occurs only once is not worth a copy.
    pub(crate) fn note(
        &mut self,
        hash: u32,
        fields: Beginning<'_>,
        (inserted, section): (u32, &[u8]),
    ) {
        if self.slots.is_empty() {
            self.slots = vec![Slot::default(); SLOTS].into();
        }
        let slot = &mut self.slots[hash as usize % SLOTS];
        if std::mem::replace(&mut slot.hash, hash) != hash {
            slot.section.clear();
            return;
        }
        slot.inserted = inserted;
        slot.block.copy(fields);
        slot.section.clear();
        slot.section.extend_from_slice(section);
    }

    /// Drops all entries and their memory.
    pub(crate) fn clear(&mut self) {
        self.slots = Box::default();
    }
}
