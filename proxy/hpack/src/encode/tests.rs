//! Tests which fields an encoder keeps in its table, and which updates of the table's size it sends.

use super::*;
use crate::{Block, Decoder, Limits, Outcome};

const LIMITS: Limits = Limits { list_bytes: 65_536, fields: 100 };

fn encoded(encoder: &mut Encoder, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    let fields = fields.iter().map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes()));
    encoder.encode(fields, &mut out);
    out
}

fn pairs(block: &Block) -> Vec<(&[u8], &[u8])> {
    block.iter().map(|field| (field.name(), field.value())).collect()
}

#[test]
fn secrets_are_never_indexed() {
    let secrets = [
        ("authorization", "Basic YTpi"),
        ("proxy-authorization", "Basic YTpi"),
        ("set-cookie", "id=1234567890123456789012345"),
        ("cookie", "id=1"),
    ];
    let mut encoder = Encoder::new(4096);
    for _ in 0..3 {
        for secret in secrets {
            let section = encoded(&mut encoder, &[secret]);
            assert_eq!(section[0] & 0xf0, 0x10, "{secret:?}");
        }
    }
    assert_eq!(encoder.table_size(), 0);
}

#[test]
fn a_field_received_as_never_indexed_is_sent_as_never_indexed() {
    let section = [0x10, 1, b'a', 1, b'b', 0x12, 3, b'G', b'E', b'T'];
    let mut block = Block::new();
    let outcome = Decoder::new(4096).decode(&section, &mut block, LIMITS);
    assert_eq!(outcome, Ok(Outcome::Complete));
    let mut out = Vec::new();
    let mut encoder = Encoder::new(4096);
    encoder.encode(&block, &mut out);
    assert_eq!(out, section);
}

#[test]
fn a_volatile_value_is_kept_when_it_comes_again() {
    let mut encoder = Encoder::new(4096);
    encoded(&mut encoder, &[(":path", "/a")]);
    encoded(&mut encoder, &[(":path", "/b")]);
    assert_eq!(encoder.table_size(), 0);
    encoded(&mut encoder, &[(":path", "/a")]);
    assert_eq!(encoder.table_size(), 32 + 5 + 2);
    assert_eq!(encoded(&mut encoder, &[(":path", "/a")]), [0xbe]);
}

#[test]
fn an_unknown_name_is_kept_once() {
    let mut encoder = Encoder::new(4096);
    encoded(&mut encoder, &[("x-id", "1")]);
    let size = encoder.table_size();
    for id in 2..50 {
        let section = encoded(&mut encoder, &[("x-id", &id.to_string())]);
        assert_eq!(section[..2], [0x0f, 62 - 15], "a literal with the name's index");
    }
    assert_eq!(encoder.table_size(), size);
}

#[test]
fn a_large_field_is_not_kept() {
    let mut encoder = Encoder::new(4096);
    let value = "v".repeat(3000);
    for _ in 0..3 {
        encoded(&mut encoder, &[("server", &value)]);
    }
    assert_eq!(encoder.table_size(), 0);
}

#[test]
fn size_updates() {
    let get = [(":method", "GET")];
    let mut small = Encoder::new(100);
    assert_eq!(encoded(&mut small, &get), [0x3f, 100 - 31, 0x82]);
    let mut encoder = Encoder::new(8192);
    assert_eq!(encoded(&mut encoder, &get), [0x82]);
    encoder.set_max_table(0);
    encoder.set_max_table(4096);
    assert_eq!(encoded(&mut encoder, &get), [0x20, 0x3f, 0xe1, 0x1f, 0x82]);
    assert_eq!(encoded(&mut encoder, &get), [0x82]);
    encoder.set_max_table(1 << 30);
    assert_eq!(encoded(&mut encoder, &get), [0x3f, 0xe1, 0x3f, 0x82], "our own limit, 8192");
    encoder.set_max_table(0);
    assert_eq!(encoded(&mut encoder, &get), [0x20, 0x82]);
    encoded(&mut encoder, &[("server", "x"), ("server", "x")]);
    assert_eq!(encoder.table_size(), 0);
}

#[test]
fn static_fields_are_found_by_value() {
    for (field, index) in [((":status", "404"), 13), ((":scheme", "https"), 7)] {
        assert_eq!(encoded(&mut Encoder::new(4096), &[field]), [0x80 | index]);
    }
}

#[test]
fn a_repeated_block_is_written_as_if_it_were_encoded_again() {
    let (mut encoder, mut plain) = (Encoder::new(4096), Encoder::new(4096));
    let mut decoder = Decoder::new(4096);
    let call: Block =
        [(":method", "POST"), (":path", "/a.B/C"), ("x-id", "1")].into_iter().collect();
    let other: Block = [(":method", "GET"), ("x-new", "2")].into_iter().collect();
    let secret: Block = [("authorization", "Basic YTpi")].into_iter().collect();
    for round in 0..40 {
        let block = match round % 8 {
            3 => &secret,
            // New entries change the indices of earlier ones.
            7 => &[("x-round", round.to_string())].into_iter().collect(),
            5 => &other,
            _ => &call,
        };
        if round == 20 {
            encoder.set_max_table(100);
            plain.set_max_table(100);
        }
        let (mut out, mut expected) = (Vec::new(), Vec::new());
        encoder.encode_block(block, &mut out);
        plain.encode(block, &mut expected);
        assert_eq!(out, expected, "{round}");
        let mut decoded = Block::new();
        assert_eq!(decoder.decode(&out, &mut decoded, LIMITS), Ok(Outcome::Complete));
        // Compare only names and values, because the decoder also marks the fields that must not enter a table.
        assert_eq!(pairs(&decoded), pairs(block), "{round}");
    }
}

#[test]
fn a_repeated_block_may_end_with_another_traceparent() {
    let (mut encoder, mut plain) = (Encoder::new(4096), Encoder::new(4096));
    let mut decoder = Decoder::new(4096);
    let call = [(":method", "GET"), (":path", "/a"), ("x-id", "1")];
    let mut lengths = Vec::new();
    for round in 0..40 {
        let value = format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{round:02}");
        let mut block: Block = call.into_iter().collect();
        if round % 9 == 8 {
            block.push(b"x-round", value.as_bytes());
        }
        block.push(b"traceparent", value.as_bytes());
        if round == 20 {
            // From now on neither end keeps a field in its table.
            encoder.set_max_table(0);
            plain.set_max_table(0);
        }
        let (mut out, mut expected) = (Vec::new(), Vec::new());
        encoder.encode_block(&block, &mut out);
        plain.encode(&block, &mut expected);
        assert_eq!(out, expected, "{round}");
        let mut decoded = Block::new();
        assert_eq!(decoder.decode(&out, &mut decoded, LIMITS), Ok(Outcome::Complete));
        assert_eq!(pairs(&decoded), pairs(&block), "{round}");
        lengths.push(out.len());
    }
    assert_eq!(lengths[2..8], [3 + 2 + 1 + 55; 6], "its value is not coded");
}
