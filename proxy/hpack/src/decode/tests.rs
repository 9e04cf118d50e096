//! Tests which sections a decoder rejects, how its table stays equal to the encoder's, and what hostile sections cost.

use super::*;
use crate::{Encoder, Field};

const LIMITS: Limits = Limits { list_bytes: 16_384, fields: 100 };

fn decode(section: &[u8]) -> Result<Outcome, DecodeError> {
    Decoder::new(4096).decode(section, &mut Block::new(), LIMITS)
}

#[test]
fn malformed_sections() {
    use DecodeError::*;
    let table: &[(&[u8], DecodeError)] = &[
        (&[0x80], InvalidIndex),
        (&[0xbe], InvalidIndex),
        (&[0xff, 0x00], InvalidIndex),
        (&[0x7e, 0x01, b'a'], InvalidIndex),
        (&[0x0f, 0x7f, 0x00], InvalidIndex),
        (&[0x1f, 0x7f, 0x00], InvalidIndex),
        (&[0xff], Truncated),
        (&[0xff, 0x80], Truncated),
        (&[0xff, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00], IntegerOverflow),
        (&[0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], IntegerOverflow),
        (&[0x00, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], IntegerOverflow),
        (&[0x40], Truncated),
        (&[0x40, 0x01], Truncated),
        (&[0x40, 0x01, b'a'], Truncated),
        (&[0x40, 0x01, b'a', 0x02, b'b'], Truncated),
        (&[0x40, 0x01, b'a', 0x81], Truncated),
        // The symbol EOS; padding with zeros; eight bits of padding; a byte that is too short for any symbol.
        (&[0x40, 0x01, b'a', 0x84, 0xff, 0xff, 0xff, 0xff], InvalidHuffman),
        (&[0x40, 0x01, b'a', 0x81, 0x00], InvalidHuffman),
        (&[0x40, 0x01, b'a', 0x82, 0x07, 0xff], InvalidHuffman),
        (&[0x40, 0x81, 0xff, 0x00], InvalidHuffman),
        // An update to 4097; an update after a field; a third update.
        (&[0x3f, 0xe2, 0x1f, 0x82], SizeUpdateTooLarge),
        (&[0x82, 0x20], SizeUpdateMisplaced),
        (&[0x82, 0x20, 0x82], SizeUpdateMisplaced),
        (&[0x20, 0x21, 0x22, 0x82], SizeUpdateMisplaced),
    ];
    for (section, error) in table {
        assert_eq!(decode(section), Err(*error), "{section:02x?}");
    }
}

#[test]
fn well_formed_sections_at_the_edges() {
    let table: &[&[u8]] = &[
        &[],
        &[0x20],
        &[0x20, 0x3f, 0xe1, 0x1f, 0x82],
        &[0x00, 0x00, 0x00],
        &[0x40, 0x80, 0x80],
        &[0xbd],
    ];
    for section in table {
        assert_eq!(decode(section), Ok(Outcome::Complete), "{section:02x?}");
    }
}

#[test]
fn a_lower_limit_must_be_followed_by_an_update() {
    let mut decoder = Decoder::new(4096);
    let mut block = Block::new();
    decoder.set_max_table(100);
    decoder.set_max_table(200);
    assert_eq!(decoder.decode(&[0x82], &mut block, LIMITS), Err(DecodeError::SizeUpdateMissing));
    // An update to 150 exceeds the lowest limit, whereas 100 does not, and after 100 an update to 200 is allowed.
    let above = [0x3f, 150 - 31, 0x82];
    let mut other = Decoder::new(4096);
    other.set_max_table(100);
    other.set_max_table(200);
    assert_eq!(other.decode(&above, &mut block, LIMITS), Err(DecodeError::SizeUpdateMissing));
    let both = [0x3f, 100 - 31, 0x3f, 0x80 | (200 - 31 - 128), 0x01, 0x82];
    assert_eq!(other.decode(&both, &mut block, LIMITS), Ok(Outcome::Complete));
    assert_eq!(other.decode(&[0x82], &mut block, LIMITS), Ok(Outcome::Complete));
}

#[test]
fn a_higher_limit_may_be_used_or_not() {
    let mut decoder = Decoder::new(4096);
    let mut block = Block::new();
    decoder.set_max_table(8192);
    assert_eq!(decoder.decode(&[0x82], &mut block, LIMITS), Ok(Outcome::Complete));
    let update = [0x3f, 0xe1, 0x3f, 0x82];
    assert_eq!(decoder.decode(&update, &mut block, LIMITS), Ok(Outcome::Complete));
}

#[test]
fn too_many_fields_or_bytes_keep_the_table_in_step() {
    for limits in [Limits { list_bytes: 100, fields: 9 }, Limits { list_bytes: 9999, fields: 2 }] {
        let mut decoder = Decoder::new(4096);
        let mut block = Block::new();
        let mut section = vec![0x82, 0x84];
        section.extend([0x40, 1, b'a', 1, b'1', 0x40, 1, b'b', 1, b'2']);
        assert_eq!(decoder.decode(&section, &mut block, limits), Ok(Outcome::TooLarge));
        assert_eq!(block.len(), 2);
        assert!(block.size() <= limits.list_bytes);
        assert_eq!(decoder.decode(&[0xbe, 0xbf], &mut block, LIMITS), Ok(Outcome::Complete));
        let fields = [Field::new(b"b", b"2"), Field::new(b"a", b"1")];
        assert!(block.iter().eq(fields));
    }
}

#[test]
fn an_entry_larger_than_the_table_empties_it() {
    let mut decoder = Decoder::new(64);
    let mut block = Block::new();
    let _ = decoder.decode(&[0x40, 1, b'a', 1, b'1'], &mut block, LIMITS).unwrap();
    assert_eq!(decoder.table_size(), 34);
    let mut large = vec![0x40, 1, b'b', 32];
    large.extend([b'x'; 32]);
    assert_eq!(decoder.decode(&large, &mut block, LIMITS), Ok(Outcome::Complete));
    assert_eq!((decoder.table_size(), block.len()), (0, 1));
}

#[test]
fn a_name_may_come_from_the_entry_that_its_field_pushes_out() {
    let mut decoder = Decoder::new(64);
    let mut block = Block::new();
    let name = [0x40, 4, b'n', b'a', b'm', b'e', 0];
    assert_eq!(decoder.decode(&name, &mut block, LIMITS), Ok(Outcome::Complete));
    let section = [0x7e, 10, b'0', b'1', b'2', b'3', b'4', b'5', b'6', b'7', b'8', b'9', 0xbe];
    assert_eq!(decoder.decode(&section, &mut block, LIMITS), Ok(Outcome::Complete));
    let expected = Field::new(b"name", b"0123456789");
    assert!(block.iter().eq([expected, expected]));
}

/// A section that refers to one large entry again and again: its 16 KiB would decode to 64 MiB of fields.
#[test]
fn a_bomb_of_indexed_fields_costs_its_own_length() {
    let mut decoder = Decoder::new(4096);
    let mut block = Block::new();
    let mut large = vec![0x40, 1, b'a'];
    integer::encode(0, 7, 4000, &mut large);
    large.extend([b'x'; 4000]);
    assert_eq!(decoder.decode(&large, &mut block, LIMITS), Ok(Outcome::Complete));
    let bomb = vec![0xbe; 16_384];
    assert_eq!(decoder.decode(&bomb, &mut block, LIMITS), Ok(Outcome::TooLarge));
    assert!(block.size() <= LIMITS.list_bytes);
    assert!(block.capacity() < 4 * LIMITS.list_bytes, "{}", block.capacity());
}

/// A section that refers to an entry's name again and again, with fields that all enter the table.
#[test]
fn a_bomb_of_names_ends_the_connection() {
    let mut decoder = Decoder::new(4096);
    let mut block = Block::new();
    let mut large = vec![0x40];
    integer::encode(0, 7, 4000, &mut large);
    large.extend([b'n'; 4000]);
    large.push(0);
    assert_eq!(decoder.decode(&large, &mut block, LIMITS), Ok(Outcome::Complete));
    let bomb: Vec<u8> = [0x7e, 0x00].repeat(8192);
    assert_eq!(decoder.decode(&bomb, &mut block, LIMITS), Err(DecodeError::Bomb));
}

#[test]
fn hints_are_those_of_the_bytes() {
    let mut decoder = Decoder::new(4096);
    let mut block = Block::new();
    let mut encoder = Encoder::new(4096);
    for _ in 0..3 {
        let fields = [
            Field::new(b":method", b"GET"),
            Field::new(b"te", b"trailers"),
            Field::new(b"etag", b"abc"),
            Field::new(b"x-unknown", b"value"),
        ];
        let mut section = Vec::new();
        encoder.encode(fields, &mut section);
        assert_eq!(decoder.decode(&section, &mut block, LIMITS), Ok(Outcome::Complete));
        assert!(block.iter().eq(fields));
        for field in &block {
            let hints = field.hints();
            assert_eq!(hints.name_hash, hash::of_name(field.name()));
            assert_eq!(hints.token, crate::Token::of(field.name()));
            let whole = hash::of_field(hints.name_hash, field.value());
            assert!([0, whole].contains(&hints.field_hash));
        }
    }
    assert_eq!(encoder.table_size(), decoder.table_size());
}

#[test]
fn a_literal_behind_a_section_is_appended() {
    let mut decoder = Decoder::new(4096);
    let mut block = Block::new();
    let named = [0x82, 0x40, 1, b'n', 1, b'v'];
    assert_eq!(decoder.decode(&named, &mut block, LIMITS), Ok(Outcome::Complete));
    assert_eq!(decoder.last_field(), 5);
    let (version, field) = (decoder.version(), [0x0f, 62 - 15, 2, b'w', b'w']);
    assert_eq!(decoder.decode(&[0x82], &mut block, LIMITS), Ok(Outcome::Complete));
    assert_eq!(decoder.last_field(), 1);
    assert!(decoder.append(&field, &mut block, LIMITS));
    assert!(block.iter().eq([Field::new(b":method", b"GET"), Field::new(b"n", b"ww")]));
    block.pop();
    assert!(block.iter().eq([Field::new(b":method", b"GET")]));
    assert_eq!(block, [(":method", "GET")].into_iter().collect());

    let refused: [&[u8]; 6] = [
        &[],
        &[0x82],
        // A field that enters the table, a field that must never enter it, a field that is cut off, and two fields.
        &[0x40, 1, b'n', 1, b'v'],
        &[0x10, 1, b'n', 1, b'v'],
        &field[..4],
        &[&field[..], &field].concat(),
    ];
    for field in refused {
        assert!(!decoder.append(field, &mut Block::new(), LIMITS), "{field:02x?}");
    }
    for limits in [Limits { list_bytes: 76, ..LIMITS }, Limits { fields: 1, ..LIMITS }] {
        assert!(!decoder.append(&field, &mut block, limits), "{limits:?}");
    }
    assert_eq!(decoder.version(), version);
}

#[test]
fn a_section_that_needs_no_table_is_repeated_by_what_it_inserts() {
    // `:status: 200` and `c: d` do not enter the table, whereas `a: b` and `content-length: 7` do. The table has room
    // for two entries.
    let section = b"\x88\x40\x01a\x01b\x5c\x017\x00\x01c\x01d";
    let (mut decoding, mut repeating) = (Decoder::new(100), Decoder::new(100));
    let (mut fields, mut other) = (Block::new(), Block::new());
    assert_eq!(decoding.decode(section, &mut other, LIMITS), Ok(Outcome::Complete));
    assert_eq!(repeating.decode(section, &mut fields, LIMITS), Ok(Outcome::Complete));
    let inserts = repeating.inserts().unwrap();
    assert!(!inserts.is_empty());
    for _ in 0..3 {
        assert_eq!(decoding.decode(section, &mut other, LIMITS), Ok(Outcome::Complete));
        assert!(repeating.insert_again(&fields, inserts));
        assert_eq!(repeating.version(), decoding.version());
        let mut entry = Block::new();
        for index in 0xbe..0xc2 {
            let same = decoding.decode(&[index], &mut other, LIMITS);
            assert_eq!(repeating.decode(&[index], &mut entry, LIMITS), same, "{index:#x}");
            assert_eq!(same.is_ok(), index < 0xc0);
            assert!(same.is_err() || entry.iter().eq(other.iter()), "{index:#x}");
        }
    }
    repeating.set_max_table(10);
    assert!(!repeating.insert_again(&fields, inserts), "a size update is missing");
}

#[test]
fn sections_that_need_the_table_are_not_repeated_without_it() {
    let mut decoder = Decoder::new(4096);
    let mut inserts = |section: &[u8]| {
        let outcome = decoder.decode(section, &mut Block::new(), LIMITS);
        assert_eq!(outcome, Ok(Outcome::Complete), "{section:02x?}");
        decoder.inserts()
    };
    assert!(inserts(b"\x40\x01a\x01b").is_some_and(|inserts| !inserts.is_empty()));
    assert!(inserts(b"\x88\x00\x01c\x01d").is_some_and(Inserts::is_empty));
    // A field from the table, a name from the table, a new size of the table.
    for section in [&b"\xbe"[..], b"\x7e\x01b", b"\x0f\x2f\x01b", b"\x20\x88"] {
        assert_eq!(inserts(section), None, "{section:02x?}");
    }
    assert!(inserts(&b"\x40\x01a\x01b".repeat(64)).is_some());
    assert_eq!(inserts(&b"\x40\x01a\x01b".repeat(65)), None, "more than there are marks for");
}
