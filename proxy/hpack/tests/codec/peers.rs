//! Round trips of arbitrary fields. Other implementations decode and encode the same sections:
//! loona-hpack by itself, and the codec of the `h2` crate on an in-memory connection.

mod h2_peer;

use leno_hpack::{Block, Decoder, Encoder, Limits, Outcome};
use proptest::prelude::*;

const WIDE: Limits = Limits { list_bytes: 1 << 24, fields: usize::MAX };

#[derive(Clone, Debug)]
enum Step {
    Section(Vec<(Vec<u8>, Vec<u8>, bool)>),
    PeerLimit(usize),
}

/// A field with one of a few names and short values, so that entries repeat; or an arbitrary field.
fn field() -> impl Strategy<Value = (Vec<u8>, Vec<u8>, bool)> {
    let name = prop_oneof![
        3 => prop::sample::select(vec![
            ":method", ":path", ":status", "accept-encoding", "cookie", "etag", "te", "x-a", "x-b",
        ]).prop_map(|name| name.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..20),
    ];
    let value = prop_oneof![
        2 => prop::sample::select(vec!["", "GET", "/", "200", "404", "gzip, deflate", "a", "b"])
            .prop_map(|value| value.as_bytes().to_vec()),
        1 => "[a-z0-9/=;. -]{0,60}".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..300),
    ];
    (name, value, prop::bool::weighted(0.1))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => prop::collection::vec(field(), 0..12).prop_map(Step::Section),
        1 => (0usize..6000).prop_map(Step::PeerLimit),
    ]
}

fn pairs(block: &Block) -> Vec<(Vec<u8>, Vec<u8>)> {
    block.iter().map(|field| (field.name().to_vec(), field.value().to_vec())).collect()
}

/// Adds a field to the block in the way in which a decoder adds a literal that is never indexed.
fn push_sensitive(block: &mut Block, name: &[u8], value: &[u8]) {
    let mut section = vec![0x10];
    for text in [name, value] {
        // A length with a prefix of seven bits.
        match text.len() {
            length @ 0..127 => section.push(length as u8),
            length => {
                section.push(127);
                section.extend([(length - 127) as u8 | 0x80, ((length - 127) >> 7) as u8]);
            }
        }
        section.extend(text);
    }
    let mut field = Block::new();
    let outcome = Decoder::new(0).decode(&section, &mut field, WIDE);
    assert_eq!(outcome, Ok(Outcome::Complete));
    block.push_field(field.field(0).expect("a field"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_written_is_read(steps in prop::collection::vec(step(), 1..30)) {
        let mut encoder = Encoder::new(5000);
        let mut relay = Encoder::new(300);
        let mut decoder = Decoder::new(4096);
        let mut last = Decoder::new(4096);
        let mut peer = loona_hpack::Decoder::new();
        peer.set_max_allowed_table_size(6000);
        for step in steps {
            let fields = match step {
                Step::Section(fields) => fields,
                Step::PeerLimit(limit) => {
                    encoder.set_max_table(limit);
                    decoder.set_max_table(limit);
                    continue;
                }
            };
            let mut block = Block::new();
            for (name, value, sensitive) in &fields {
                match sensitive {
                    true => push_sensitive(&mut block, name, value),
                    false => block.push(name, value),
                }
            }
            let (mut section, mut read) = (Vec::new(), Block::new());
            encoder.encode(&block, &mut section);
            prop_assert_eq!(decoder.decode(&section, &mut read, WIDE), Ok(Outcome::Complete));
            prop_assert_eq!(pairs(&block), pairs(&read));
            prop_assert_eq!(block.size(), read.size());
            prop_assert_eq!(decoder.table_size(), encoder.table_size());
            // The other decoder rejects a section that contains only an update of the table's size.
            let theirs = peer.decode(&section);
            prop_assert!(block.is_empty() || theirs.unwrap() == pairs(&block));
            for (sent, got) in block.iter().zip(&read) {
                prop_assert!(got.is_sensitive() || !sent.is_sensitive());
            }
            let (mut relayed, mut end) = (Vec::new(), Block::new());
            relay.encode(&read, &mut relayed);
            prop_assert_eq!(last.decode(&relayed, &mut end, WIDE), Ok(Outcome::Complete));
            prop_assert_eq!(pairs(&block), pairs(&end));
        }
    }

    #[test]
    fn what_another_writes_is_read(
        sections in prop::collection::vec(prop::collection::vec(field(), 0..12), 1..20),
    ) {
        let mut peer = loona_hpack::Encoder::new();
        let mut decoder = Decoder::new(4096);
        let mut block = Block::new();
        for fields in sections {
            let section = peer.encode(fields.iter().map(|(name, value, _)| (&name[..], &value[..])));
            prop_assert_eq!(decoder.decode(&section, &mut block, WIDE), Ok(Outcome::Complete));
            let sent: Vec<_> = fields.into_iter().map(|(name, value, _)| (name, value)).collect();
            prop_assert_eq!(pairs(&block), sent);
        }
    }

    #[test]
    fn any_bytes_are_an_answer_or_an_error(section in prop::collection::vec(any::<u8>(), 0..200)) {
        let limits = Limits { list_bytes: 1000, fields: 10 };
        let mut block = Block::new();
        let _ = Decoder::new(4096).decode(&section, &mut block, limits);
        prop_assert!(block.size() <= 1000 && block.len() <= 10);
    }
}
