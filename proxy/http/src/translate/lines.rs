//! Writes HTTP/1 heads line by line.

use leno_hpack::{Block, Field, Token};

use super::Carried;
use crate::head::{HeadError, is_token, text_end};
use crate::writer::{Rendered, Writer};

/// How many bytes a head needs besides its fields: for the first line, `Connection`, framing and `Host`.
const OVERHEAD: usize = 1024;

/// Writes lines. Names are written in the case that `carried` has for them; if that is `None`, in lower case.
pub(super) struct Lines<'c> {
    out: Writer,
    pub(super) carried: Option<Carried<'c>>,
}

impl<'c> Lines<'c> {
    /// With room for the fields of `block`, whose size includes 32 bytes for each field, and for `more` bytes.
    pub(super) fn new(block: &Block, more: usize, carried: Option<Carried<'c>>) -> Self {
        let needed = block.size().saturating_add(more).saturating_add(OVERHEAD);
        Self { out: Writer::with_room(needed), carried }
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.out.put(bytes);
    }

    pub(super) fn put_number(&mut self, number: u64) {
        self.out.put_number(number);
    }

    /// Writes a name and the colon after it.
    pub(super) fn name(&mut self, name: &[u8]) {
        match self.carried {
            None => self.put(name),
            Some(carried) => carried.put_name(name, &mut self.out),
        }
        self.put(b": ");
    }

    /// Writes a complete line.
    pub(super) fn line(&mut self, name: &[u8], value: &[u8]) {
        self.name(name);
        self.put(value);
        self.put(b"\r\n");
    }

    /// Writes the line of a field that was received.
    pub(super) fn field(&mut self, field: &Field<'_>) -> Result<(), HeadError> {
        check(field)?;
        match self.carried {
            None => self.put(field.name()),
            Some(carried) => carried.put_name_of(field, &mut self.out),
        }
        self.put(b": ");
        self.put(field.value());
        self.put(b"\r\n");
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Rendered, HeadError> {
        self.put(b"\r\n");
        self.out.finish()
    }
}

/// Refuses bytes that would end a line of HTTP/1 too early, even if an earlier check has accepted them.
pub(super) fn check(field: &Field<'_>) -> Result<(), HeadError> {
    let is_known = field.token() != Token::NONE && !field.is_pseudo();
    if !is_known && !is_token(field.name()) {
        return Err(HeadError::Name);
    }
    if text_end(field.value(), 0) != field.value().len() {
        return Err(HeadError::Control);
    }
    Ok(())
}
