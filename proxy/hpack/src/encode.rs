//! The encoder of one direction of one connection.

use crate::block::{Field, Hints};
use crate::table::Table;
use crate::token::{STATIC_ENTRIES, Token, static_field};
use crate::{hash, huffman, integer};

/// The size of a table before any setting (RFC 9113 section 6.5.2), in bytes.
const INITIAL_TABLE_BYTES: usize = 4096;

/// A cookie shorter than this could be guessed byte by byte if it were in the table.
const SHORT_COOKIE: usize = 20;

/// How strings are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coding {
    /// Huffman-coded where that is shorter.
    #[default]
    Smaller,
    /// As they are: more bytes, less work on both sides.
    Plain,
}

/// Encodes the sections that go to one peer on one connection.
#[derive(Debug)]
pub struct Encoder {
    table: Table,
    /// What this side allows itself, in bytes.
    own_limit: usize,
    /// The lowest size since the last section, and whether an update is due.
    lowest: usize,
    update_due: bool,
    coding: Coding,
}

impl Encoder {
    /// An encoder whose table takes `max_table_bytes` at most, whatever the peer allows. Until
    /// [`set_max_table`](Encoder::set_max_table) the peer allows 4096.
    pub fn new(max_table_bytes: usize) -> Self {
        let size = INITIAL_TABLE_BYTES.min(max_table_bytes);
        Self {
            table: Table::new(size),
            own_limit: max_table_bytes,
            lowest: size,
            update_due: size < INITIAL_TABLE_BYTES,
            coding: Coding::default(),
        }
    }

    /// Chooses how strings are written from here on.
    pub fn set_coding(&mut self, coding: Coding) {
        self.coding = coding;
    }

    /// Takes the peer's `SETTINGS_HEADER_TABLE_SIZE`, in bytes. The next section says so.
    pub fn set_max_table(&mut self, peer_limit: usize) {
        let size = peer_limit.min(self.own_limit);
        if size != self.table.max_size() {
            let before = if self.update_due { self.lowest } else { self.table.max_size() };
            self.lowest = before.min(size);
            self.update_due = true;
            self.table.set_max_size(size);
        }
    }

    /// The size of the dynamic table in bytes (RFC 7541 section 4.1).
    pub fn table_size(&self) -> usize {
        self.table.size()
    }

    /// Appends the section of these fields (a `&Block`, or any list of [`Field`]) to `out`.
    pub fn encode<'a>(&mut self, fields: impl IntoIterator<Item = Field<'a>>, out: &mut Vec<u8>) {
        if self.update_due {
            self.size_update(out);
        }
        for field in fields {
            self.field(&field, out);
        }
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
        if !field.is_sensitive()
            && let Some(index) = static_field(token, field.value())
        {
            return integer::encode(0x80, 7, index, out);
        }
        let never = field.is_sensitive() || is_secret(token, field.value());
        let mut name_index = token.static_index();
        if field_hash == 0 {
            field_hash = hash::of_field(name_hash, field.value());
        }
        for index in 0..self.table.len() {
            let Some(entry) = self.table.get(index) else { break };
            if entry.hints.name_hash != name_hash || self.table.name(entry) != field.name() {
                continue;
            }
            let text = self.table.text(entry);
            if !never && &text[entry.name_length()..] == field.value() {
                return integer::encode(0x80, 7, STATIC_ENTRIES + 1 + index, out);
            }
            name_index.get_or_insert(STATIC_ENTRIES + 1 + index);
        }
        let (pattern, bits) = if never {
            (0x10, 4)
        } else if token == Token::PATH || token == Token::CONTENT_LENGTH {
            (0x00, 4)
        } else {
            let mut text = field.name().to_vec();
            text.extend_from_slice(field.value());
            self.table.insert(&text, field.name().len(), Hints { token, name_hash, field_hash });
            (0x40, 6)
        };
        integer::encode(pattern, bits, name_index.unwrap_or(0), out);
        if name_index.is_none() {
            self.string(field.name(), out);
        }
        self.string(field.value(), out);
    }

    fn string(&self, text: &[u8], out: &mut Vec<u8>) {
        if self.coding == Coding::Smaller {
            let length = huffman::encoded_length(text);
            if length < text.len() {
                integer::encode(0x80, 7, length, out);
                return huffman::encode(text, out);
            }
        }
        integer::encode(0x00, 7, text.len(), out);
        out.extend_from_slice(text);
    }
}

/// Whether no table may keep this value (RFC 7541 section 7.1.3).
fn is_secret(token: Token, value: &[u8]) -> bool {
    match token {
        Token::AUTHORIZATION | Token::PROXY_AUTHORIZATION | Token::SET_COOKIE => true,
        Token::COOKIE => value.len() < SHORT_COOKIE,
        _ => false,
    }
}
