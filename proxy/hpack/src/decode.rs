//! The decoder of one direction of one connection.

use crate::block::{Block, FIELD_OVERHEAD, Hints};
use crate::table::{MAX_TABLE_BYTES, Table};
use crate::token::{STATIC_ENTRIES, static_entry};
use crate::{hash, huffman, integer};

/// No section is longer, so that every offset fits 32 bits; HTTP/2 bounds it far below.
const MAX_SECTION_BYTES: usize = 1 << 24;

/// What one section may put into a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The size of the list in bytes as RFC 9113 section 6.5.2 counts it for
    /// `SETTINGS_MAX_HEADER_LIST_SIZE`: 32 and the length of name and value for each field.
    pub list_bytes: usize,
    /// The number of fields.
    pub fields: usize,
}

/// How a section was decoded that had no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// The block is the section.
    Complete,
    /// The section goes beyond the limits: the block has the fields before that point, and the
    /// rest was read for the sake of the table only. The stream can be refused and the
    /// connection go on.
    TooLarge,
}

/// Why a section cannot be decoded. The table is out of step with the peer's afterwards, so the
/// connection must end with `COMPRESSION_ERROR` (RFC 9113 section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The section ends within a field.
    #[error("the section ends within a field")]
    Truncated,
    /// An integer is larger than 32 bits, or written with more octets than that takes.
    #[error("an integer is too long")]
    IntegerOverflow,
    /// An index is 0 or beyond the table's end.
    #[error("an index points to no entry")]
    InvalidIndex,
    /// A Huffman-coded string has wrong padding, or the symbol EOS in it.
    #[error("a Huffman-coded string is malformed")]
    InvalidHuffman,
    /// The table's new size is above the limit that was set.
    #[error("a table size update is above the limit")]
    SizeUpdateTooLarge,
    /// The table's size changes elsewhere than at the beginning of the section, or more than
    /// twice (RFC 7541 section 4.2).
    #[error("a table size update is not at the beginning of the section, or the third there")]
    SizeUpdateMisplaced,
    /// The limit was lowered, and the section does not begin with the update that must follow.
    #[error("the table size update is missing that must follow a lower limit")]
    SizeUpdateMissing,
    /// The section is far beyond the limits and made to be expensive.
    #[error("the section expands to far more than is allowed")]
    Bomb,
}

impl DecodeError {
    /// A short name for a metric's label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::IntegerOverflow => "integer_overflow",
            Self::InvalidIndex => "invalid_index",
            Self::InvalidHuffman => "invalid_huffman",
            Self::SizeUpdateTooLarge => "size_update_too_large",
            Self::SizeUpdateMisplaced => "size_update_misplaced",
            Self::SizeUpdateMissing => "size_update_missing",
            Self::Bomb => "bomb",
        }
    }
}

/// Decodes the sections that one peer sends on one connection.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// The largest size that the peer may choose.
    limit: usize,
    /// Set when the limit went below the table's size: the lowest limit since the last section.
    /// The next section must begin with an update to that or less.
    required: Option<usize>,
    /// How often the size or its limit was changed, modulo 2^32.
    changes: u32,
}

impl Decoder {
    /// A decoder whose table has `max_table_bytes` at most. Until the peer has acknowledged a
    /// `SETTINGS_HEADER_TABLE_SIZE` of ours it must be 4096; then
    /// [`set_max_table`](Decoder::set_max_table).
    pub fn new(max_table_bytes: usize) -> Self {
        let limit = max_table_bytes.min(MAX_TABLE_BYTES);
        Self { table: Table::new(limit), limit, required: None, changes: 0 }
    }

    /// Changes the limit, when the peer has acknowledged the setting.
    pub fn set_max_table(&mut self, max_table_bytes: usize) {
        self.changes = self.changes.wrapping_add(1);
        self.limit = max_table_bytes.min(MAX_TABLE_BYTES);
        if self.limit < self.table.max_size() {
            let lowest = self.required.map_or(self.limit, |before| before.min(self.limit));
            self.required = Some(lowest);
        }
    }

    /// A number that changes whenever the table, or its limit, does: the same section means the same
    /// fields as long as this is the same.
    pub fn version(&self) -> u64 {
        u64::from(self.changes) << 32 | u64::from(self.table.inserted())
    }

    /// The size of the dynamic table in bytes (RFC 7541 section 4.1).
    pub fn table_size(&self) -> usize {
        self.table.size()
    }

    /// Decodes a whole section (HEADERS and all its CONTINUATION frames) into `block`, which is
    /// cleared first.
    ///
    /// # Errors
    /// The section is malformed or a bomb, and the connection must end; `block` is undefined.
    pub fn decode(
        &mut self,
        section: &[u8],
        block: &mut Block,
        limits: Limits,
    ) -> Result<Outcome, DecodeError> {
        block.clear();
        if section.len() > MAX_SECTION_BYTES {
            return Err(DecodeError::Bomb);
        }
        let mut rest = section;
        self.size_updates(&mut rest)?;
        let list_bytes = limits.list_bytes.min(MAX_SECTION_BYTES);
        let mut sink =
            Sink { block, list_bytes, fields: limits.fields, full: false, spare: list_bytes };
        while let Some((&first, after)) = rest.split_first() {
            rest = after;
            match first {
                0x80.. => self.indexed(integer::decode(first, 7, &mut rest)?, &mut sink)?,
                0x40.. => self.literal(Literal::new(first, 6), &mut rest, &mut sink)?,
                0x20.. => return Err(DecodeError::SizeUpdateMisplaced),
                _ => self.literal(Literal::new(first, 4), &mut rest, &mut sink)?,
            }
        }
        Ok(if sink.full { Outcome::TooLarge } else { Outcome::Complete })
    }

    fn size_updates(&mut self, rest: &mut &[u8]) -> Result<(), DecodeError> {
        let mut updates = 0;
        while let Some((&first, after)) = rest.split_first()
            && first & 0xe0 == 0x20
        {
            *rest = after;
            let size = integer::decode(first, 5, rest)?;
            updates += 1;
            if updates > 2 {
                return Err(DecodeError::SizeUpdateMisplaced);
            }
            if size > self.limit {
                return Err(DecodeError::SizeUpdateTooLarge);
            }
            if self.required.is_some_and(|lowest| size <= lowest) {
                self.required = None;
            }
            self.table.set_max_size(size);
            self.changes = self.changes.wrapping_add(1);
        }
        if self.required.is_some() { Err(DecodeError::SizeUpdateMissing) } else { Ok(()) }
    }

    fn indexed(&self, index: usize, sink: &mut Sink<'_>) -> Result<(), DecodeError> {
        if index == 0 {
            return Err(DecodeError::InvalidIndex);
        }
        if index <= STATIC_ENTRIES {
            let entry = static_entry(index);
            let hints = Hints {
                name_hash: entry.name_hash,
                field_hash: entry.field_hash,
                token: entry.token,
            };
            if sink.admits(entry.name.len() + entry.value.len()) {
                let start = sink.block.bytes_mut().len();
                sink.block.bytes_mut().extend_from_slice(entry.name.as_bytes());
                sink.block.bytes_mut().extend_from_slice(entry.value.as_bytes());
                sink.block.finish(start, entry.name.len(), hints, false);
            }
            return Ok(());
        }
        let entry = self.table.get(index - STATIC_ENTRIES - 1).ok_or(DecodeError::InvalidIndex)?;
        let text = self.table.text(entry);
        if sink.admits(text.len()) {
            let start = sink.block.bytes_mut().len();
            sink.block.bytes_mut().extend_from_slice(text);
            sink.block.finish(start, entry.name_length(), entry.hints, false);
        }
        Ok(())
    }

    fn literal(
        &mut self,
        literal: Literal,
        rest: &mut &[u8],
        sink: &mut Sink<'_>,
    ) -> Result<(), DecodeError> {
        let index = integer::decode(literal.first, literal.bits, rest)?;
        let start = sink.block.bytes_mut().len();
        let mut hints = self.name(index, rest, sink)?;
        let name_length = sink.block.bytes_mut().len() - start;
        string(rest, sink.block.bytes_mut())?;
        let text = &sink.block.bytes_mut()[start..];
        if literal.indexed {
            hints.field_hash = hash::of_field(hints.name_hash, &text[name_length..]);
            let (name, value) = text.split_at(name_length);
            self.table.insert(name, value, hints);
        }
        let length = text.len();
        if sink.admits(length) {
            sink.block.finish(start, name_length, hints, literal.never);
        } else {
            sink.block.bytes_mut().truncate(start);
        }
        Ok(())
    }

    /// Appends the name of a literal to the block's buffer.
    fn name(
        &self,
        index: usize,
        rest: &mut &[u8],
        sink: &mut Sink<'_>,
    ) -> Result<Hints, DecodeError> {
        let bytes = sink.block.bytes_mut();
        if index == 0 {
            let start = bytes.len();
            string(rest, bytes)?;
            return Ok(Hints::of_name(&bytes[start..]));
        }
        if index <= STATIC_ENTRIES {
            let entry = static_entry(index);
            bytes.extend_from_slice(entry.name.as_bytes());
            return Ok(Hints { name_hash: entry.name_hash, field_hash: 0, token: entry.token });
        }
        let entry = self.table.get(index - STATIC_ENTRIES - 1).ok_or(DecodeError::InvalidIndex)?;
        let name = self.table.name(entry);
        bytes.extend_from_slice(name);
        if sink.full {
            sink.spare = sink.spare.checked_sub(name.len()).ok_or(DecodeError::Bomb)?;
        }
        Ok(Hints { field_hash: 0, ..entry.hints })
    }
}

/// What the first octet of a literal says.
struct Literal {
    first: u8,
    bits: u32,
    indexed: bool,
    never: bool,
}

impl Literal {
    fn new(first: u8, bits: u32) -> Self {
        Self { first, bits, indexed: first & 0x40 != 0, never: first & 0xf0 == 0x10 }
    }
}

/// The block being made, and how much it may still take.
struct Sink<'a> {
    block: &'a mut Block,
    list_bytes: usize,
    fields: usize,
    /// A field did not fit: no other is taken.
    full: bool,
    /// Bytes of names that may still be copied out of the table once the sink is full. A name
    /// there costs the peer a byte and this side its length, so it is the one thing that a
    /// section could make expensive without end.
    spare: usize,
}

impl Sink<'_> {
    /// Whether a field whose name and value have `length` bytes still fits.
    fn admits(&mut self, length: usize) -> bool {
        let size = self.block.size() + length + FIELD_OVERHEAD;
        self.full |= size > self.list_bytes || self.block.len() >= self.fields;
        !self.full
    }
}

/// Appends the string at the front of `rest` to `out` (RFC 7541 section 5.2).
fn string(rest: &mut &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
    let (&first, after) = rest.split_first().ok_or(DecodeError::Truncated)?;
    *rest = after;
    let length = integer::decode(first, 7, rest)?;
    let (text, after) = rest.split_at_checked(length).ok_or(DecodeError::Truncated)?;
    *rest = after;
    if first & 0x80 == 0 {
        out.extend_from_slice(text);
        Ok(())
    } else {
        huffman::decode(text, out).map_err(|_| DecodeError::InvalidHuffman)
    }
}

#[cfg(test)]
mod tests;
