//! Tests how a block is edited.

use super::*;
use crate::{Decoder, Limits, Outcome};

fn block(fields: &[(&str, &str)]) -> Block {
    fields.iter().copied().collect()
}

fn names(block: &Block) -> Vec<String> {
    block.iter().map(|field| String::from_utf8(field.name().to_vec()).unwrap()).collect()
}

fn sum(block: &Block) -> usize {
    block.iter().map(|field| field.size()).sum()
}

#[test]
fn pseudo_headers_go_to_the_front() {
    let made = block(&[("accept", "*/*"), (":path", "/"), ("x", ""), (":method", "GET")]);
    assert_eq!(names(&made), [":path", ":method", "accept", "x"]);
    assert_eq!(made.leading_pseudo(), 2);
}

#[test]
fn lookup_by_name_and_token() {
    let made = block(&[("a", "1"), ("content-length", "5"), ("a", "2")]);
    assert_eq!(made.get(b"a"), Some(&b"1"[..]));
    assert_eq!(made.get(b"b"), None);
    assert_eq!(made.find(Token::CONTENT_LENGTH), Some(&b"5"[..]));
    assert_eq!(made.position(b"content-length"), Some(1));
    assert_eq!(made.find(Token::HOST), None);
}

#[test]
fn edits_keep_the_size() {
    let mut made = block(&[("a", "1"), ("b", "22"), ("a", "333"), ("c", "")]);
    assert_eq!(made.size(), sum(&made));
    made.set_value(1, b"something longer");
    made.set_value(2, b"3");
    assert_eq!(made.get(b"b"), Some(&b"something longer"[..]));
    assert_eq!(made.size(), sum(&made));
    made.set(b"a", b"only");
    assert_eq!(names(&made), ["a", "b", "c"]);
    assert_eq!(made.get(b"a"), Some(&b"only"[..]));
    made.set(b"d", b"new");
    made.remove(0);
    assert_eq!(names(&made), ["b", "c", "d"]);
    assert_eq!(made.remove_all(b"c"), 1);
    assert_eq!(made.size(), sum(&made));
    made.clear();
    assert_eq!((made.size(), made.len()), (0, 0));
}

#[test]
fn a_changed_value_is_hashed_again() {
    let mut made = block(&[("a", "1")]);
    made.set_value(0, b"2");
    assert_eq!(made, block(&[("a", "2")]));
    assert_eq!(made.field(0).unwrap().hints().field_hash, 0);
}

#[test]
fn a_field_of_another_block() {
    // A literal that is never indexed.
    let section = [&[0x10, 1][..], b"a", &[6], b"secret"].concat();
    let mut from = Block::new();
    let limits = Limits { list_bytes: 100, fields: 1 };
    let outcome = Decoder::new(0).decode(&section, &mut from, limits);
    assert_eq!(outcome, Ok(Outcome::Complete));
    let mut to = Block::new();
    to.push_field(from.field(0).unwrap());
    assert_eq!(from, to);
    assert!(to.field(0).unwrap().is_sensitive());
}
