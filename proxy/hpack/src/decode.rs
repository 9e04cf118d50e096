//! The decoder for one direction of one connection.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "positions are lengths that the sink had before"
)]

use crate::block::{Block, FIELD_OVERHEAD, Hints};
use crate::table::{MAX_TABLE_BYTES, Table};
use crate::token::{STATIC_ENTRIES, static_entry};
use crate::{hash, huffman, integer};

/// The longest section, so that every offset fits 32 bits. HTTP/2 has a far lower limit.
const MAX_SECTION_BYTES: usize = 1 << 24;

/// The limits of one section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest list in bytes, counted as in RFC 9113 section 6.5.2 for `SETTINGS_MAX_HEADER_LIST_SIZE`: for each
    /// field, 32 and the length of name and value.
    pub list_bytes: usize,
    /// The largest number of fields.
    pub fields: usize,
}

/// The result of decoding a section without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// The block contains the whole section.
    Complete,
    /// The section exceeds the limits. The block contains the fields before that point; the rest
    /// was decoded only to update the table. The stream can be refused while the connection
    /// continues.
    TooLarge,
}

/// Why a section cannot be decoded. The table may now differ from the peer's, so the connection
/// must end with `COMPRESSION_ERROR` (RFC 9113 section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The section ends within a field.
    #[error("the section ends within a field")]
    Truncated,
    /// An integer exceeds 32 bits, or has more than five octets after its prefix.
    #[error("an integer is too long")]
    IntegerOverflow,
    /// An index is 0 or beyond the end of the table.
    #[error("an index points to no entry")]
    InvalidIndex,
    /// A Huffman-coded string has wrong padding or contains the symbol EOS.
    #[error("a Huffman-coded string is malformed")]
    InvalidHuffman,
    /// The table's new size exceeds the limit that was set.
    #[error("a table size update is above the limit")]
    SizeUpdateTooLarge,
    /// A table size update is not at the beginning of the section, or is the third one there (RFC
    /// 7541 section 4.2).
    #[error("a table size update is not at the beginning of the section, or the third there")]
    SizeUpdateMisplaced,
    /// The limit was lowered, but the section does not begin with the required update.
    #[error("the table size update is missing that must follow a lower limit")]
    SizeUpdateMissing,
    /// The section exceeds the limits by far, and was made to be expensive to decode.
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

/// The fields of a section that were inserted into the table when it was decoded: a bit for each field, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inserts(u64);

impl Inserts {
    /// Whether no field was inserted, so that the table stays as it is.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Decodes the sections that a peer sends on one connection.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// The largest size that the peer may choose.
    limit: usize,
    /// If the limit was lowered below the table's size, the lowest limit since the last section. The next section must
    /// then begin with an update to at most this size.
    required: Option<usize>,
    /// How often the size or its limit has changed, modulo 2^32.
    changes: u32,
    /// The encoded length in bytes of the last field of the section that was decoded last.
    last_field: usize,
    /// The inserts of the section that was decoded last; `None` if its fields depend on the table.
    inserts: Option<Inserts>,
}

impl Decoder {
    /// A decoder whose table holds at most `max_table_bytes`. This must be 4096 until the peer has
    /// acknowledged our `SETTINGS_HEADER_TABLE_SIZE`; then call
    /// [`set_max_table`](Decoder::set_max_table).
    pub fn new(max_table_bytes: usize) -> Self {
        let limit = max_table_bytes.min(MAX_TABLE_BYTES);
        let table = Table::new(limit);
        Self { table, limit, required: None, changes: 0, last_field: 0, inserts: None }
    }

    /// Changes the limit. To be called when the peer has acknowledged the setting.
    pub fn set_max_table(&mut self, max_table_bytes: usize) {
        self.changes = self.changes.wrapping_add(1);
        self.limit = max_table_bytes.min(MAX_TABLE_BYTES);
        if self.limit < self.table.max_size() {
            let lowest = self.required.map_or(self.limit, |before| before.min(self.limit));
            self.required = Some(lowest);
        }
    }

    /// A number that changes whenever the table or its limit changes. While it stays the same, equal sections decode to
    /// equal fields.
    pub fn version(&self) -> u64 {
        u64::from(self.changes) << 32 | u64::from(self.table.inserted())
    }

    /// The size of the dynamic table in bytes (RFC 7541 section 4.1).
    pub fn table_size(&self) -> usize {
        self.table.size()
    }

    /// The encoded length in bytes of the last field of the section that was decoded last.
    pub fn last_field(&self) -> usize {
        self.last_field
    }

    /// The fields that the section decoded last has inserted into the table. `None` if equal sections may decode to
    /// other fields or must be decoded again: the section refers to the table, begins with a size update, or inserts a
    /// field after the first 64. Only valid after a section that was [complete](Outcome::Complete).
    pub fn inserts(&self) -> Option<Inserts> {
        self.inserts
    }

    /// Repeats the inserts that were made when a section was decoded into `fields`. Returns false if the section must
    /// be decoded instead, because it would have to begin with a table size update.
    pub fn insert_again(&mut self, fields: &Block, inserts: Inserts) -> bool {
        if self.required.is_some() {
            return false;
        }
        let Inserts(mut left) = inserts;
        while left != 0
            && let Some(field) = fields.field(left.trailing_zeros() as usize)
        {
            self.table.insert(field.name(), field.value(), field.hints());
            left &= left - 1;
        }
        true
    }

    /// Appends a field that follows a section, if it is a literal without indexing (RFC 7541 section 6.2.2), not one
    /// that is never indexed, and within the limits. If this returns false, the block may have changed, and the section
    /// with this field must be decoded as a whole.
    pub fn append(&self, field: &[u8], block: &mut Block, limits: Limits) -> bool {
        let Some((&first @ ..0x10, mut rest)) = field.split_first() else { return false };
        let mut sink = Sink::new(block, limits);
        let literal = Literal::new(first, 4);
        let Ok(text) = self.text(&literal, &mut rest, &mut sink) else { return false };
        rest.is_empty() && sink.finish(text, literal.never)
    }

    /// Decodes a whole section (HEADERS and all its CONTINUATION frames) into `block`, which is
    /// cleared first.
    ///
    /// # Errors
    /// The section is malformed or a bomb, and the connection must end. The contents of `block` are
    /// unspecified.
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
        self.inserts = None;
        self.size_updates(&mut rest)?;
        let mut sink = Sink::new(block, limits);
        sink.needs_table = rest.len() < section.len();
        self.last_field = 0;
        while let Some((&first, after)) = rest.split_first() {
            self.last_field = rest.len();
            rest = after;
            match first {
                0x80.. => self.indexed(integer::decode(first, 7, &mut rest)?, &mut sink)?,
                0x40.. => self.literal(Literal::new(first, 6), &mut rest, &mut sink)?,
                0x20.. => return Err(DecodeError::SizeUpdateMisplaced),
                _ => self.literal(Literal::new(first, 4), &mut rest, &mut sink)?,
            }
        }
        self.inserts = (!sink.needs_table).then_some(sink.inserts);
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
        sink.needs_table = true;
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
        let mut text = self.text(&literal, rest, sink)?;
        if literal.indexed {
            let (name, value) = sink.block.bytes_mut()[text.start..].split_at(text.name_length);
            text.hints.field_hash = hash::of_field(text.hints.name_hash, value);
            self.table.insert(name, value, text.hints);
            sink.note_insert();
        }
        sink.finish(text, literal.never);
        Ok(())
    }

    /// Appends the name and the value of a literal to the block's buffer.
    fn text(
        &self,
        literal: &Literal,
        rest: &mut &[u8],
        sink: &mut Sink<'_>,
    ) -> Result<Text, DecodeError> {
        let index = integer::decode(literal.first, literal.bits, rest)?;
        let start = sink.block.bytes_mut().len();
        let hints = self.name(index, rest, sink)?;
        let name_length = sink.block.bytes_mut().len() - start;
        string(rest, sink.block.bytes_mut())?;
        Ok(Text { start, name_length, hints })
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
        sink.needs_table = true;
        let entry = self.table.get(index - STATIC_ENTRIES - 1).ok_or(DecodeError::InvalidIndex)?;
        let name = self.table.name(entry);
        bytes.extend_from_slice(name);
        if sink.full {
            sink.spare = sink.spare.checked_sub(name.len()).ok_or(DecodeError::Bomb)?;
        }
        Ok(Hints { field_hash: 0, ..entry.hints })
    }
}

/// The first octet of a literal.
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

/// A name and a value at the end of the block's buffer.
struct Text {
    start: usize,
    name_length: usize,
    hints: Hints,
}

/// The block that is being built, and the rest of its limits.
struct Sink<'a> {
    block: &'a mut Block,
    list_bytes: usize,
    fields: usize,
    /// Whether a field did not fit, so that no further field is added.
    full: bool,
    /// How many bytes of names may still be copied from the table after `full` is set. A reference to a name costs the
    /// peer one byte and this side the length of the name. No other part of a section can cost this much without
    /// another limit.
    spare: usize,
    /// The fields that were inserted into the table.
    inserts: Inserts,
    /// Whether a field depends on the table, or there are more fields than [`Inserts`] has bits.
    needs_table: bool,
}

impl<'a> Sink<'a> {
    fn new(block: &'a mut Block, limits: Limits) -> Self {
        let list_bytes = limits.list_bytes.min(MAX_SECTION_BYTES);
        Self {
            block,
            list_bytes,
            fields: limits.fields,
            full: false,
            spare: list_bytes,
            inserts: Inserts::default(),
            needs_table: false,
        }
    }

    /// Notes that the next field of the block was inserted into the table.
    fn note_insert(&mut self) {
        match 1u64.checked_shl(self.block.len() as u32) {
            Some(bit) => self.inserts.0 |= bit,
            None => self.needs_table = true,
        }
    }

    /// Makes `text` a field of the block, if it still fits; otherwise removes it from the buffer. Returns whether it
    /// fits.
    fn finish(&mut self, text: Text, never: bool) -> bool {
        let length = self.block.bytes_mut().len() - text.start;
        let admitted = self.admits(length);
        if admitted {
            self.block.finish(text.start, text.name_length, text.hints, never);
        } else {
            self.block.bytes_mut().truncate(text.start);
        }
        admitted
    }

    /// Whether a field whose name and value have `length` bytes in total still fits.
    fn admits(&mut self, length: usize) -> bool {
        let size = self.block.size() + length + FIELD_OVERHEAD;
        self.full |= size > self.list_bytes || self.block.len() >= self.fields;
        !self.full
    }
}

/// Appends the string at the start of `rest` to `out` (RFC 7541 section 5.2).
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
