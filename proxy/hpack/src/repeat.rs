//! Sections that an encoder has written before and can copy.

use crate::block::Block;
use crate::hash;

/// Sections that are cached: calls that repeat on one connection have only a handful of different
/// heads and trailers.
const PLACES: usize = 8;
/// Largest cached block, in bytes of its fields. Comparing a block of this size costs less than
/// encoding it.
const MAX_BYTES: usize = 512;

/// Sections of some blocks. An entry is valid as long as the encoder's table does not change.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    places: Box<[Place]>,
}

#[derive(Clone, Debug, Default)]
struct Place {
    /// Hash of the block that was seen last in this slot, whether it is cached or not.
    hash: u32,
    /// Number of entries that the table had ever received.
    inserted: u32,
    block: Block,
    /// Empty if nothing is cached.
    section: Vec<u8>,
}

impl Repeats {
    /// The hash of a block, which determines its slot. `None` if the block is too large.
    pub(crate) fn hash(block: &Block) -> Option<u32> {
        (block.bytes().len() <= MAX_BYTES).then(|| hash::of_name(block.bytes()))
    }

    /// The section of this block, if it was encoded while the table was the same.
    pub(crate) fn find(&self, hash: u32, block: &Block, inserted: u32) -> Option<&[u8]> {
        let place = self.places.get(hash as usize % PLACES)?;
        let same = place.hash == hash
            && place.inserted == inserted
            && !place.section.is_empty()
            && place.block.is_same(block);
        same.then_some(&place.section)
    }

    /// Caches the section of a block when the block arrives the second time in a row for its slot:
    /// a block that comes once is not worth a copy.
    pub(crate) fn note(&mut self, hash: u32, block: &Block, (inserted, section): (u32, &[u8])) {
        if self.places.is_empty() {
            self.places = vec![Place::default(); PLACES].into();
        }
        let place = &mut self.places[hash as usize % PLACES];
        if std::mem::replace(&mut place.hash, hash) != hash {
            place.section.clear();
            return;
        }
        place.inserted = inserted;
        place.block.clone_from(block);
        place.section.clear();
        place.section.extend_from_slice(section);
    }

    /// Drops all entries and their memory.
    pub(crate) fn clear(&mut self) {
        self.places = Box::default();
    }
}
