//! Sections that an encoder has written before, to be written again as they are.

use crate::block::Block;
use crate::hash;

/// Sections remembered: the heads, responses and trailers of the calls that come again and again on
/// one connection are a handful.
const PLACES: usize = 8;
/// Bytes of the fields of a block that is remembered, so that to compare one costs less than to
/// encode it.
const MAX_BYTES: usize = 512;

/// What was written for some blocks. True as long as the encoder's table stays as it was.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    places: Box<[Place]>,
}

#[derive(Clone, Debug, Default)]
struct Place {
    /// Of the block that was seen here last, whether it is remembered or not.
    hash: u32,
    /// How many entries the table had ever got.
    inserted: u32,
    block: Block,
    /// Empty: nothing is remembered.
    section: Vec<u8>,
}

impl Repeats {
    /// Where this block has its place; none if it is too large for one.
    pub(crate) fn hash(block: &Block) -> Option<u32> {
        (block.bytes().len() <= MAX_BYTES).then(|| hash::of_name(block.bytes()))
    }

    /// What was written for this block while the table was the same.
    pub(crate) fn find(&self, hash: u32, block: &Block, inserted: u32) -> Option<&[u8]> {
        let place = self.places.get(hash as usize % PLACES)?;
        let same = place.hash == hash
            && place.inserted == inserted
            && !place.section.is_empty()
            && place.block.is_same(block);
        same.then_some(&place.section)
    }

    /// Remembers what was written for a block, if that is not its first time here: heads that come
    /// once are not worth a copy.
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

    /// Forgets everything, with its memory.
    pub(crate) fn clear(&mut self) {
        self.places = Box::default();
    }
}
