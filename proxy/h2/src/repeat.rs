//! Field sections that were received before and need not be decoded and checked again.
#![expect(clippy::indexing_slicing, reason = "the hash is reduced to the number of slots")]

use leno_hpack::{Block, Inserts};

use crate::head::{Facts, Head};

/// How many sections are cached. Calls that repeat on one connection have only a few different heads and trailers.
const SLOTS: usize = 8;
/// The longest section that is cached. A section that consists of indices is shorter than 32 bytes. Most responses of a
/// server that does not refer to its table, such as nginx, are shorter than this.
const MAX_BYTES: usize = 256;
/// The largest block that is cached. A connection with streams needs at most 10 KiB for all blocks and their sections.
const MAX_BLOCK_BYTES: usize = 1024;

/// The kind of a section, which decides how it is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Request,
    Response,
    Trailers,
}

/// The length of a `traceparent` in the form in which a proxy of the mesh sends it: a literal without indexing, with
/// two bytes for the index of its name in the dynamic table, one byte for its length, and the value.
const TRACE_BYTES: usize = 58;

/// A request's section, split before a `traceparent` that is its last field. The value of that field is different in
/// each request, while the other fields of a client's requests are often the same.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Split<'s> {
    pub(crate) section: &'s [u8],
    /// Bytes that look like a `traceparent`. Only a decoder can tell whether a field begins there.
    pub(crate) trace: Option<&'s [u8]>,
}

impl<'s> Split<'s> {
    pub(crate) fn of(section: &'s [u8], kind: Kind) -> Self {
        let parts = || {
            let (before, trace) =
                section.split_at_checked(section.len().checked_sub(TRACE_BYTES)?)?;
            let is_trace = matches!(trace, [0x0f, 0..=0x7f, 55, ..]) && before.len() <= MAX_BYTES;
            is_trace.then_some(Self { section: before, trace: Some(trace) })
        };
        let split = if kind == Kind::Request { parts() } else { None };
        split.unwrap_or(Self { section, trace: None })
    }
}

/// How a cached section depends on the decoder's table, or how it changes the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    /// The section has these fields as long as the decoder has this [version](leno_hpack::Decoder::version). Nothing is
    /// inserted into the table.
    Version(u64),
    /// The fields do not depend on the table. Each time, these insertions are made.
    Inserts(Inserts),
}

/// Decoded and valid sections of one connection, by their bytes.
#[derive(Default)]
pub(crate) struct Repeats {
    slots: Box<[Slot]>,
}

#[derive(Clone, Default)]
struct Slot {
    /// The hash of the section that last used this slot, whether it was cached or not.
    hash: u64,
    known: Option<Section>,
}

#[derive(Clone)]
struct Section {
    section: Vec<u8>,
    table: Table,
    kind: Kind,
    fields: Block,
    facts: Facts,
}

impl Repeats {
    /// If the section is cached, fills `fields` with its decoded fields. The caller must make the insertions into the
    /// table.
    pub(crate) fn find(
        &self,
        section: &[u8],
        (version, kind): (u64, Kind),
        fields: &mut Head,
    ) -> Option<(Facts, Inserts)> {
        let hash = hash(section)?;
        let slot = self.slots.get(hash as usize % SLOTS).filter(|slot| slot.hash == hash)?;
        let known = slot.known.as_ref()?;
        let inserts = match known.table {
            Table::Version(known) if known != version => return None,
            Table::Version(_) => Inserts::default(),
            Table::Inserts(inserts) => inserts,
        };
        if known.kind != kind || known.section != section {
            return None;
        }
        (**fields).clone_from(&known.fields);
        Some((known.facts, inserts))
    }

    /// Caches a section when it uses its slot for the second time in a row, because a section that occurs only once is
    /// not worth a copy. `apart` says how many of the last `fields` do not belong to the section.
    pub(crate) fn note(
        &mut self,
        section: &[u8],
        (table, kind): (Table, Kind),
        (fields, facts): (&Head, Facts),
        apart: usize,
    ) {
        let Some(hash) = hash(section) else { return };
        if self.slots.is_empty() {
            self.slots = vec![Slot::default(); SLOTS].into();
        }
        let slot = &mut self.slots[hash as usize % SLOTS];
        if std::mem::replace(&mut slot.hash, hash) != hash {
            slot.known = None;
        } else if fields.size() <= MAX_BLOCK_BYTES {
            let section = section.to_vec();
            let mut fields = (**fields).clone();
            (0..apart).for_each(|_| fields.pop());
            slot.known = Some(Section { section, table, kind, fields, facts });
        }
    }

    /// Drops all entries and their memory.
    pub(crate) fn clear(&mut self) {
        self.slots = Box::default();
    }
}

/// The hash of a section; `None` if it is empty or too long.
fn hash(section: &[u8]) -> Option<u64> {
    /// A factor that spreads bits: 2^64 divided by the golden ratio.
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    if section.is_empty() || section.len() > MAX_BYTES {
        return None;
    }
    let mut state = section.len() as u64;
    for part in section.chunks(8) {
        let mut bytes = [0; 8];
        bytes[..part.len()].copy_from_slice(part);
        state = (state ^ u64::from_le_bytes(bytes)).wrapping_mul(STEP);
        state ^= state >> 29;
    }
    Some(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts =
        Facts { content_length: Some(7), length_repeated: false, is_head: false, status: 200 };

    fn found(repeats: &Repeats, section: &[u8], of: (u64, Kind)) -> Option<(Head, Facts)> {
        let mut head = Head::new();
        let (facts, inserts) = repeats.find(section, of, &mut head)?;
        assert!(inserts.is_empty());
        Some((head, facts))
    }

    #[test]
    fn what_came_twice_is_known_while_the_table_is_the_same() {
        let mut repeats = Repeats::default();
        let fields: Head = [(":status", "200"), ("content-length", "7")].into_iter().collect();
        let of = (1, Kind::Response);
        let while_it_is = (Table::Version(1), Kind::Response);
        repeats.note(b"\x88\xbe", while_it_is, (&fields, FACTS), 0);
        assert!(found(&repeats, b"\x88\xbe", of).is_none(), "once is not enough");
        repeats.note(b"\x88\xbe", while_it_is, (&fields, FACTS), 0);
        assert_eq!(found(&repeats, b"\x88\xbe", of), Some((fields.clone(), FACTS)));
        assert!(found(&repeats, b"\x88\xbe", (2, Kind::Response)).is_none(), "another table");
        assert!(found(&repeats, b"\x88\xbe", (1, Kind::Trailers)).is_none(), "not checked as such");
        assert!(found(&repeats, b"\x88\xbf", of).is_none(), "another section");
        repeats.clear();
        assert!(found(&repeats, b"\x88\xbe", of).is_none());
    }

    #[test]
    fn what_does_not_depend_on_the_table_is_known_whatever_is_in_it() {
        let mut repeats = Repeats::default();
        let fields: Head = [(":status", "200")].into_iter().collect();
        let of = (Table::Inserts(Inserts::default()), Kind::Response);
        (0..2).for_each(|_| repeats.note(b"\x88", of, (&fields, FACTS), 0));
        for version in 0..3 {
            let expected = Some((fields.clone(), FACTS));
            assert_eq!(found(&repeats, b"\x88", (version, Kind::Response)), expected);
            assert!(found(&repeats, b"\x88", (version, Kind::Trailers)).is_none());
        }
    }

    #[test]
    fn long_sections_and_large_fields_are_not_kept() {
        let mut repeats = Repeats::default();
        let fields: Head = [("a", "x".repeat(MAX_BLOCK_BYTES))].into_iter().collect();
        for _ in 0..3 {
            let of = (Table::Version(0), Kind::Trailers);
            repeats.note(b"\xbe", of, (&fields, FACTS), 0);
            repeats.note(&[0xbe; MAX_BYTES + 1], of, (&Head::new(), FACTS), 0);
        }
        assert!(found(&repeats, b"\xbe", (0, Kind::Trailers)).is_none());
        assert!(found(&repeats, &[0xbe; MAX_BYTES + 1], (0, Kind::Trailers)).is_none());
    }
}
