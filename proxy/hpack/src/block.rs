//! A field section in memory: one buffer, and the position of each field's name and value.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "spans lie within the block's own bytes, which are fewer than 2^32"
)]

use crate::hash;
use crate::token::Token;

/// A list of fields in order, which a decoder produces and an encoder reads.
///
/// Names and values are bytes that are not interpreted. Pseudo-headers are the fields whose name begins with a colon.
/// [`push`](Block::push) inserts a pseudo-header after those at the front. A decoded section keeps its own order, so
/// that a malformed section can be recognised.
///
/// Edits change only the positions of fields, and copy no bytes: removed bytes stay in the buffer until
/// [`clear`](Block::clear). A block holds less than 4 GiB; methods that add to it panic beyond that.
#[derive(Debug, Default)]
pub struct Block {
    bytes: Vec<u8>,
    spans: Vec<Span>,
    size: usize,
}

/// The number that RFC 7541 section 4.1 adds to the length of a field's name and value.
pub(crate) const FIELD_OVERHEAD: usize = 32;

/// Properties of a field that were already computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hints {
    /// The hash of the name, which is always computed.
    pub(crate) name_hash: u32,
    /// The hash of the whole field; 0 if it was not computed yet.
    pub(crate) field_hash: u32,
    /// The token of the name, which is always looked up.
    pub(crate) token: Token,
}

impl Hints {
    pub(crate) fn of_name(name: &[u8]) -> Self {
        let name_hash = hash::of_name(name);
        Self { name_hash, field_hash: 0, token: Token::of_hashed(name, name_hash) }
    }
}

#[derive(Clone, Copy, Debug)]
struct Span {
    name: u32,
    name_length: u32,
    value: u32,
    value_length: u32,
    hints: Hints,
    sensitive: bool,
}

/// The first fields of a block, which are compared with those of another block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beginning<'a> {
    /// Names and values in the order in which they were written, including removed ones.
    pub(crate) bytes: &'a [u8],
    spans: &'a [Span],
}

/// One field of a [`Block`].
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    name: &'a [u8],
    value: &'a [u8],
    sensitive: bool,
    hints: Hints,
}

impl<'a> Field<'a> {
    /// A field that does not belong to a block, for [`Encoder::encode`](crate::Encoder::encode).
    pub fn new(name: &'a [u8], value: &'a [u8]) -> Self {
        Self { name, value, sensitive: false, hints: Hints::of_name(name) }
    }

    /// The name, unchanged.
    #[inline]
    pub fn name(&self) -> &'a [u8] {
        self.name
    }

    /// The value, unchanged.
    #[inline]
    pub fn value(&self) -> &'a [u8] {
        self.value
    }

    /// The token of the name; [`Token::NONE`] if it is not well known.
    #[inline]
    pub fn token(&self) -> Token {
        self.hints.token
    }

    /// Whether the field was sent as never indexed (RFC 7541 section 6.2.3) and must be forwarded
    /// as such.
    pub fn is_sensitive(&self) -> bool {
        self.sensitive
    }

    /// Whether the name begins with a colon.
    #[inline]
    pub fn is_pseudo(&self) -> bool {
        self.name.first() == Some(&b':')
    }

    /// The size of the field according to RFC 7541 section 4.1: the lengths of name and value, and 32.
    pub fn size(&self) -> usize {
        self.name.len() + self.value.len() + FIELD_OVERHEAD
    }

    pub(crate) fn hints(&self) -> Hints {
        self.hints
    }
}

impl PartialEq for Field<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.value == other.value && self.sensitive == other.sensitive
    }
}

impl Eq for Field<'_> {}

impl Block {
    /// An empty block without a buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of fields.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The sum of the fields' sizes according to RFC 7541 section 4.1, to which
    /// `SETTINGS_MAX_HEADER_LIST_SIZE` applies.
    pub fn size(&self) -> usize {
        self.size
    }

    /// How many bytes of memory the block has allocated.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity() + self.spans.capacity() * size_of::<Span>()
    }

    /// Removes all fields and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.spans.clear();
        self.size = 0;
    }

    /// The fields in order.
    #[inline]
    pub fn iter(&self) -> Fields<'_> {
        Fields { bytes: &self.bytes, spans: self.spans.iter() }
    }

    /// The field at `index`, which counts from 0.
    pub fn field(&self, index: usize) -> Option<Field<'_>> {
        self.spans.get(index).map(|span| span.field(&self.bytes))
    }

    /// The value of the first field with this name.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        let index = self.position(name)?;
        Some(self.spans[index].value(&self.bytes))
    }

    /// The index of the first field with this name.
    pub fn position(&self, name: &[u8]) -> Option<usize> {
        self.spans.iter().position(|span| span.name(&self.bytes) == name)
    }

    /// The value of the first field with this well-known name. Cheaper than [`get`](Block::get).
    #[inline]
    pub fn find(&self, token: Token) -> Option<&[u8]> {
        let index = self.position_of(token)?;
        Some(self.spans[index].value(&self.bytes))
    }

    /// The values of all fields with this well-known name.
    #[inline]
    pub fn values(&self, token: Token) -> impl Iterator<Item = &[u8]> {
        let named = self.spans.iter().filter(move |span| span.hints.token == token);
        named.map(|span| span.value(&self.bytes))
    }

    /// The index of the first field with this well-known name.
    #[inline]
    pub fn position_of(&self, token: Token) -> Option<usize> {
        self.spans.iter().position(|span| span.hints.token == token)
    }

    /// The number of pseudo-headers at the front.
    pub fn leading_pseudo(&self) -> usize {
        self.spans.iter().take_while(|span| span.name(&self.bytes).starts_with(b":")).count()
    }

    /// Adds a field at the end. A pseudo-header is added after the pseudo-headers at the front.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.finish(start, name.len(), Hints::of_name(name), false);
        self.keep_pseudo_first();
    }

    /// Adds a field of another block, without hashing its name again.
    pub fn push_field(&mut self, field: Field<'_>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(field.name);
        self.bytes.extend_from_slice(field.value);
        self.finish(start, field.name.len(), field.hints, field.sensitive);
        self.keep_pseudo_first();
    }

    /// Removes the field at `index`; the fields after it move up. Panics if there is no such field.
    pub fn remove(&mut self, index: usize) {
        let span = self.spans.remove(index);
        self.size -= span.size();
    }

    /// Removes the last field, and also its bytes if they are the last in the buffer.
    pub fn pop(&mut self) {
        let Some(span) = self.spans.pop() else { return };
        self.size -= span.size();
        if span.is_at_end(&self.bytes) {
            self.bytes.truncate(span.name as usize);
        }
    }

    /// Removes all fields with this name. Returns how many there were.
    pub fn remove_all(&mut self, name: &[u8]) -> usize {
        let before = self.len();
        self.retain(|field| field.name() != name);
        before - self.len()
    }

    /// Removes the fields for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(&Field<'_>) -> bool) {
        let Self { bytes, spans, size } = self;
        spans.retain(|span| {
            let kept = keep(&span.field(bytes));
            if !kept {
                *size -= span.size();
            }
            kept
        });
    }

    /// Replaces the value of the field at `index`. Panics if there is no such field.
    pub fn set_value(&mut self, index: usize, value: &[u8]) {
        let span = &mut self.spans[index];
        self.size = self.size - span.value_length as usize + value.len();
        let start = if value.len() <= span.value_length as usize {
            span.value as usize
        } else {
            self.bytes.resize(self.bytes.len() + value.len(), 0);
            self.bytes.len() - value.len()
        };
        self.bytes[start..start + value.len()].copy_from_slice(value);
        span.value = place(start);
        span.value_length = place(value.len());
        span.hints.field_hash = 0;
    }

    /// Makes this the only field with its name: replaces the first field with this name, or adds the field if there is
    /// none.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        let Some(first) = self.position(name) else { return self.push(name, value) };
        self.set_value(first, value);
        let mut index = 0;
        self.retain(|field| {
            index += 1;
            index <= first + 1 || field.name() != name
        });
    }

    /// If the last field, which was just added, is a pseudo-header, moves it after those at the front.
    #[inline]
    fn keep_pseudo_first(&mut self) {
        let Some((last, others)) = self.spans.split_last() else { return };
        if last.name(&self.bytes).starts_with(b":") {
            let (from, to) = (others.len(), self.leading_pseudo().min(others.len()));
            self.spans[to..=from].rotate_right(1);
        }
    }

    /// All fields of the block.
    pub(crate) fn whole(&self) -> Beginning<'_> {
        Beginning { bytes: &self.bytes, spans: &self.spans }
    }

    /// Separates the last field from the fields before it, if the last field has this well-known name and its bytes are
    /// the last in the buffer. Otherwise returns all fields, and `None`.
    pub(crate) fn split_last(&self, token: Token) -> (Beginning<'_>, Option<Field<'_>>) {
        match self.spans.split_last() {
            Some((last, spans)) if last.hints.token == token && last.is_at_end(&self.bytes) => {
                let bytes = &self.bytes[..last.name as usize];
                (Beginning { bytes, spans }, Some(last.field(&self.bytes)))
            }
            _ => (self.whole(), None),
        }
    }

    /// Turns this block into a copy of these fields. Reuses the allocated memory.
    pub(crate) fn copy(&mut self, fields: Beginning<'_>) {
        self.clear();
        self.bytes.extend_from_slice(fields.bytes);
        self.spans.extend_from_slice(fields.spans);
        self.size = fields.spans.iter().map(Span::size).sum();
    }

    /// The buffer, for a decoder. It appends the bytes of the next field and then calls
    /// [`finish`](Block::finish), or truncates the buffer again.
    pub(crate) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Adds a field made of the bytes from `start` on. The first `name_length` of them are its
    /// name.
    pub(crate) fn finish(&mut self, start: usize, name_length: usize, hints: Hints, never: bool) {
        let value = start + name_length;
        let span = Span {
            name: place(start),
            name_length: place(name_length),
            value: place(value),
            value_length: place(self.bytes.len() - value),
            hints,
            sensitive: never,
        };
        self.size += span.size();
        self.spans.push(span);
    }
}

impl<'a> Beginning<'a> {
    /// The fields in order.
    pub(crate) fn iter(self) -> Fields<'a> {
        Fields { bytes: self.bytes, spans: self.spans.iter() }
    }

    /// Whether both have the same fields at the same positions in their buffers. This is cheaper than comparing the
    /// fields for equality.
    pub(crate) fn is_same(self, other: Self) -> bool {
        let same = |(a, b): (&Span, &Span)| a.place() == b.place();
        self.bytes == other.bytes
            && self.spans.len() == other.spans.len()
            && self.spans.iter().zip(other.spans).all(same)
    }
}

impl Span {
    /// The positions of the field, without the hints, which are derived from the bytes.
    fn place(&self) -> (u32, u32, u32, u32, bool) {
        (self.name, self.name_length, self.value, self.value_length, self.sensitive)
    }

    #[inline]
    fn name<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.name as usize..][..self.name_length as usize]
    }

    #[inline]
    fn value<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.value as usize..][..self.value_length as usize]
    }

    fn size(&self) -> usize {
        self.name_length as usize + self.value_length as usize + FIELD_OVERHEAD
    }

    /// Whether the last of these bytes are the field's name and, directly after it, its value. A value that was
    /// replaced is elsewhere in the buffer.
    fn is_at_end(&self, bytes: &[u8]) -> bool {
        self.value == self.name + self.name_length
            && self.value as usize + self.value_length as usize == bytes.len()
    }

    #[inline]
    fn field<'a>(&self, bytes: &'a [u8]) -> Field<'a> {
        Field {
            name: self.name(bytes),
            value: self.value(bytes),
            sensitive: self.sensitive,
            hints: self.hints,
        }
    }
}

fn place(length: usize) -> u32 {
    u32::try_from(length).expect("a block holds less than 4 GiB")
}

/// The fields of a [`Block`], in order.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    bytes: &'a [u8],
    spans: std::slice::Iter<'a, Span>,
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    #[inline]
    fn next(&mut self) -> Option<Field<'a>> {
        self.spans.next().map(|span| span.field(self.bytes))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.spans.size_hint()
    }
}

impl ExactSizeIterator for Fields<'_> {}

impl DoubleEndedIterator for Fields<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.spans.next_back().map(|span| span.field(self.bytes))
    }
}

impl<'a> IntoIterator for &'a Block {
    type Item = Field<'a>;
    type IntoIter = Fields<'a>;

    fn into_iter(self) -> Fields<'a> {
        self.iter()
    }
}

impl Clone for Block {
    fn clone(&self) -> Self {
        Self { bytes: self.bytes.clone(), spans: self.spans.clone(), size: self.size }
    }

    /// Reuses the allocated memory.
    fn clone_from(&mut self, other: &Self) {
        self.bytes.clone_from(&other.bytes);
        self.spans.clone_from(&other.spans);
        self.size = other.size;
    }
}

/// Blocks are equal if they have equal fields in the same order.
impl PartialEq for Block {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Block {}

impl<N: AsRef<[u8]>, V: AsRef<[u8]>> FromIterator<(N, V)> for Block {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(fields: I) -> Self {
        let mut block = Block::new();
        for (name, value) in fields {
            block.push(name.as_ref(), value.as_ref());
        }
        block
    }
}

#[cfg(test)]
mod tests;
