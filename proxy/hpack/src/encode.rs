//! The encoder for one direction of one connection.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "positions are lengths that the buffer had before"
)]

use crate::block::{Beginning, Block, FIELD_OVERHEAD, Field, Hints};
use crate::index::Index;
use crate::repeat::Repeats;
use crate::table::{Entry, Table};
use crate::token::{STATIC_ENTRIES, Token, static_field};
use crate::{hash, huffman, integer};

/// The size of a table before any setting (RFC 9113 section 6.5.2), in bytes.
const INITIAL_TABLE_BYTES: usize = 4096;

/// A cookie that is shorter than this never enters the table, because an attacker could guess it byte by byte.
const SHORT_COOKIE: usize = 20;

/// A field does not enter the table if it is larger than the table's size divided by this, because it would evict many
/// small fields.
const LARGE_SHARE: usize = 2;

/// The number of remembered hashes of fields that did not enter the table: those of some dozens of requests, in a
/// quarter of a kilobyte.
const SEEN: usize = 128;

/// The longest string whose length is encoded in one octet.
const ONE_OCTET: usize = 126;

/// How a literal begins: the bits above the prefix, and the length of the prefix.
struct Form {
    pattern: u8,
    bits: u32,
}

/// The forms of RFC 7541 sections 6.2.1, 6.2.2 and 6.2.3.
const KEPT: Form = Form { pattern: 0x40, bits: 6 };
const NOT_KEPT: Form = Form { pattern: 0x00, bits: 4 };
const NEVER_INDEXED: Form = Form { pattern: 0x10, bits: 4 };

/// Encodes the sections that go to a peer on one connection.
///
/// The table keeps fields that are likely to repeat. Fields that are marked as sensitive, `authorization`,
/// `proxy-authorization`, `set-cookie` and short cookies are encoded in a form that forbids every later table to keep
/// them (RFC 7541 section 7.1.3).
#[derive(Debug)]
pub struct Encoder {
    table: Table,
    /// The fields in the table by their hash.
    fields: Index,
    /// The names in the table that are not in the static table, by their hash.
    names: Index,
    /// For fields that were seen and not kept, the upper half of the hash, at the position that the lower half
    /// determines.
    seen: Box<[u16]>,
    /// Our own limit on the table, in bytes.
    own_limit: usize,
    /// The lowest size since the last section, and whether an update must be sent.
    lowest: usize,
    update_due: bool,
    /// Whether a literal was encoded since this was last set to false.
    literal: bool,
    repeats: Repeats,
}

impl Encoder {
    /// An encoder whose table holds at most `max_table_bytes`, even if the peer allows more. The
    /// peer allows 4096 until [`set_max_table`](Encoder::set_max_table) is called.
    pub fn new(max_table_bytes: usize) -> Self {
        let size = INITIAL_TABLE_BYTES.min(max_table_bytes);
        Self {
            table: Table::new(size),
            fields: Index::default(),
            names: Index::default(),
            seen: Box::default(),
            own_limit: max_table_bytes,
            lowest: size,
            update_due: size < INITIAL_TABLE_BYTES,
            literal: false,
            repeats: Repeats::default(),
        }
    }

    /// Applies the peer's `SETTINGS_HEADER_TABLE_SIZE`, in bytes. The next section begins with the
    /// update.
    pub fn set_max_table(&mut self, peer_limit: usize) {
        let size = peer_limit.min(self.own_limit);
        if size != self.table.max_size() {
            self.lowest = if self.update_due { self.lowest.min(size) } else { size };
            self.update_due = true;
            self.table.set_max_size(size);
            self.repeats.clear();
            // The indexes start empty for the new size. Entries that stay in the table cannot be found any more until
            // they are evicted.
            (self.fields, self.names) = Default::default();
        }
    }

    /// The size of the dynamic table in bytes (RFC 7541 section 4.1).
    pub fn table_size(&self) -> usize {
        self.table.size()
    }

    /// Appends the section with these fields (a `&Block`, or any list of [`Field`]) to `out`.
    pub fn encode<'a>(&mut self, fields: impl IntoIterator<Item = Field<'a>>, out: &mut Vec<u8>) {
        if self.update_due {
            self.size_update(out);
        }
        for field in fields {
            self.field(&field, out);
        }
    }

    /// Appends the section of a block. A cached section is copied instead of encoded, if the same block was encoded
    /// before with nothing but indices of whole fields, and the table has not changed since. A `traceparent` at the end
    /// may differ.
    pub fn encode_block(&mut self, block: &Block, out: &mut Vec<u8>) {
        let (fields, trace) = block.split_last(Token::TRACEPARENT);
        self.encode_repeated(fields, out);
        if let Some(trace) = trace {
            self.field(&trace, out);
        }
    }

    fn encode_repeated(&mut self, fields: Beginning<'_>, out: &mut Vec<u8>) {
        let Some(hash) = Repeats::hash(fields).filter(|_| !self.update_due) else {
            return self.encode(fields.iter(), out);
        };
        let inserted = self.table.inserted();
        if let Some(section) = self.repeats.find(hash, fields, inserted) {
            return out.extend_from_slice(section);
        }
        let start = out.len();
        self.literal = false;
        self.encode(fields.iter(), out);
        // A field that was encoded as a literal may enter the table next time. If there was no literal, the table has
        // not changed.
        if !self.literal {
            self.repeats.note(hash, fields, (inserted, &out[start..]));
        }
    }

    /// Frees the cached sections. To be called when a connection has become idle.
    pub fn forget_repeats(&mut self) {
        self.repeats.clear();
    }

    #[cold]
    fn size_update(&mut self, out: &mut Vec<u8>) {
        if self.lowest < self.table.max_size() {
            integer::encode(0x20, 5, self.lowest, out);
        }
        integer::encode(0x20, 5, self.table.max_size(), out);
        self.update_due = false;
    }

    fn field(&mut self, field: &Field<'_>, out: &mut Vec<u8>) {
        let Hints { token, name_hash, mut field_hash } = field.hints();
        if field.is_sensitive() || is_secret(token, field.value()) {
            let name = self.name_index(field);
            return self.literal(NEVER_INDEXED, name, field, out);
        }
        if token == Token::TRACEPARENT && self.changing(field, out) {
            return;
        }
        if let Some(index) = static_field(token, field.value()) {
            return out.push(0x80 | index as u8);
        }
        if field_hash == 0 {
            field_hash = hash::of_field(name_hash, field.value());
        }
        let is = |entry: &Entry| self.table.is(entry, field.name(), field.value());
        if let Some(age) = self.fields.find(field_hash, &self.table, is) {
            return integer::encode(0x80, 7, STATIC_ENTRIES + 1 + age, out);
        }
        let name = self.name_index(field);
        if self.worth_keeping(field, name, field_hash) {
            self.literal(KEPT, name, field, out);
            self.keep(field, field_hash);
        } else {
            self.literal(NOT_KEPT, name, field, out);
        }
    }

    /// Appends a field whose value differs in every message, if a table has its name. The value is neither looked up in
    /// the table nor Huffman-coded. The coding would save a quarter of its bytes, but the work at both ends would cost
    /// more than that.
    fn changing(&mut self, field: &Field<'_>, out: &mut Vec<u8>) -> bool {
        let name = self.name_index(field);
        if name == 0 {
            return false;
        }
        self.literal = true;
        integer::encode(NOT_KEPT.pattern, NOT_KEPT.bits, name, out);
        plain(field.value(), out);
        true
    }

    /// The index of the field's name; 0 if no table has the name.
    fn name_index(&self, field: &Field<'_>) -> usize {
        let Hints { token, name_hash, .. } = field.hints();
        token.static_index().unwrap_or_else(|| {
            let is = |entry: &Entry| self.table.name(entry) == field.name();
            let age = self.names.find(name_hash, &self.table, is);
            age.map_or(0, |age| STATIC_ENTRIES + 1 + age)
        })
    }

    /// Whether to add this field to the table. If its name usually has a stable value or is in no table, the field is
    /// added at once. Otherwise it is added only when it repeats within a while, so that values that change with every
    /// request evict nothing.
    fn worth_keeping(&mut self, field: &Field<'_>, name_index: usize, field_hash: u32) -> bool {
        if field.size() * LARGE_SHARE > self.table.max_size() {
            return false;
        }
        if name_index == 0 || is_stable(field.token()) {
            return true;
        }
        if self.seen.is_empty() {
            self.seen = vec![0; SEEN].into();
        }
        let half = (field_hash >> 16) as u16;
        let last = &mut self.seen[field_hash as usize % SEEN];
        std::mem::replace(last, half) == half
    }

    fn keep(&mut self, field: &Field<'_>, field_hash: u32) {
        let hints = Hints { field_hash, ..field.hints() };
        self.table.insert(field.name(), field.value(), hints);
        if self.fields.is_unmade() {
            let entries = self.table.max_size() / FIELD_OVERHEAD;
            self.fields = Index::new(entries);
            self.names = Index::new(entries);
        }
        self.fields.note(field_hash, &self.table);
        if hints.token.static_index().is_none() {
            self.names.note(hints.name_hash, &self.table);
        }
    }

    fn literal(&mut self, form: Form, name_index: usize, field: &Field<'_>, out: &mut Vec<u8>) {
        self.literal = true;
        integer::encode(form.pattern, form.bits, name_index, out);
        if name_index == 0 {
            string(field.name(), out);
        }
        string(field.value(), out);
    }
}

/// Appends a string, Huffman-coded if that is shorter.
fn string(text: &[u8], out: &mut Vec<u8>) {
    if !coded(text, out) {
        plain(text, out);
    }
}

fn plain(text: &[u8], out: &mut Vec<u8>) {
    integer::encode(0x00, 7, text.len(), out);
    out.extend_from_slice(text);
}

/// Appends the Huffman-coded string. Returns `false` and appends nothing if that is not shorter.
fn coded(text: &[u8], out: &mut Vec<u8>) -> bool {
    if text.len() <= ONE_OCTET {
        // Reserve one octet for the length, which is filled in later. No length here takes more than one octet.
        let start = out.len();
        out.push(0);
        huffman::encode(text, out);
        let length = out.len() - start - 1;
        if length >= text.len() {
            out.truncate(start);
            return false;
        }
        out[start] = 0x80 | length as u8;
        return true;
    }
    let length = huffman::encoded_length(text);
    let shorter = length < text.len();
    if shorter {
        integer::encode(0x80, 7, length, out);
        huffman::encode(text, out);
    }
    shorter
}

/// Whether fields with this name usually have the same value in most messages of a connection.
fn is_stable(token: Token) -> bool {
    matches!(
        token,
        Token::AUTHORITY
            | Token::METHOD
            | Token::SCHEME
            | Token::STATUS
            | Token::PROTOCOL
            | Token::ACCEPT
            | Token::ACCEPT_CHARSET
            | Token::ACCEPT_ENCODING
            | Token::ACCEPT_LANGUAGE
            | Token::ACCEPT_RANGES
            | Token::ACCESS_CONTROL_ALLOW_ORIGIN
            | Token::ALLOW
            | Token::CACHE_CONTROL
            | Token::CONTENT_ENCODING
            | Token::CONTENT_LANGUAGE
            | Token::CONTENT_TYPE
            | Token::SERVER
            | Token::STRICT_TRANSPORT_SECURITY
            | Token::USER_AGENT
            | Token::VARY
            | Token::VIA
    )
}

/// Whether no table may keep this value (RFC 7541 section 7.1.3).
fn is_secret(token: Token, value: &[u8]) -> bool {
    match token {
        Token::AUTHORIZATION | Token::PROXY_AUTHORIZATION | Token::SET_COOKIE => true,
        Token::COOKIE => value.len() < SHORT_COOKIE,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
