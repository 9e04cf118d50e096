//! HTTP/1 heads, line by line.

use leno_hpack::{Block, Field, Token};

use super::Carried;
use crate::head::{HeadError, is_token, text_end};
use crate::writer::{Rendered, Writer};

/// What a head needs besides its fields: first line, `Connection`, framing, `Host`.
const OVERHEAD: usize = 1024;

/// Writes lines. Names come out in the style of `carried`, in lower case without it.
pub(super) struct Lines<'c> {
    out: Writer,
    pub(super) carried: Option<Carried<'c>>,
}

impl<'c> Lines<'c> {
    /// With room for the fields of `block`, whose sizes count 32 bytes each on top, and `more`.
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

    /// A name and the colon behind it.
    pub(super) fn name(&mut self, name: &[u8]) {
        match self.carried {
            None => self.put(name),
            Some(carried) => carried.put_name(name, &mut self.out),
        }
        self.put(b": ");
    }

    /// A whole line.
    pub(super) fn line(&mut self, name: &[u8], value: &[u8]) {
        self.name(name);
        self.put(value);
        self.put(b"\r\n");
    }

    /// A line of a field that came from elsewhere.
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

/// Refuses what would break out of a line of HTTP/1, even if an earlier check has let it through.
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
