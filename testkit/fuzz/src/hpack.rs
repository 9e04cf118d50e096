//! Fuzzes the field sections of one connection. A limit may cut a section short but must change nothing else. When
//! decoded fields are encoded again, Leno's decoder and loona-hpack must decode the result equally.

use leno_hpack::{Block, DecodeError, Decoder, Encoder, Limits, Outcome};

const LIMITS: Limits = Limits { list_bytes: 4096, fields: 40 };
const WIDE: Limits = Limits { list_bytes: 1 << 24, fields: usize::MAX };

/// How many times a section is relayed: one more than the repetitions after which an encoder reuses a section
/// without encoding it again.
const REPEATED: usize = 4;

/// Runs the target. The input consists of the field sections of one connection, each after its length in two
/// octets. The first octet selects the size of the table, and whether each section is relayed repeatedly.
pub(crate) fn run(input: &[u8]) {
    let Some((&first, mut rest)) = input.split_first() else { return };
    let table = usize::from(first) * 32;
    let mut narrow = Decoder::new(table);
    let mut wide = Decoder::new(table);
    let mut peer = loona_hpack::Decoder::new();
    peer.set_max_table_size(table);
    peer.set_max_allowed_table_size(table);
    let mut relay = Relay::new(usize::from(first >> 4) * 100);
    let times = if first.is_multiple_of(2) { 1 } else { REPEATED };
    let (mut block, mut all) = (Block::new(), Block::new());
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*length)).min(after.len());
        let (section, after) = after.split_at(length);
        rest = after;
        let result = wide.decode(section, &mut all, WIDE);
        let limited = narrow.decode(section, &mut block, LIMITS);
        assert!(block.size() <= LIMITS.list_bytes && block.len() <= LIMITS.fields);
        assert!(wide.table_size() <= table);
        match (result, limited) {
            (Ok(_), Ok(outcome)) => {
                assert_eq!(narrow.table_size(), wide.table_size());
                assert!(block.iter().eq(all.iter().take(block.len())), "not a prefix");
                assert_eq!(outcome == Outcome::Complete, block.len() == all.len());
            }
            (Ok(_), Err(DecodeError::Bomb)) => return,
            (Err(error), Err(limited)) => {
                assert!(error == limited || limited == DecodeError::Bomb);
                return;
            }
            other => panic!("the limits changed the result: {other:?}"),
        }
        same(&all, peer.decode(section).ok());
        for _ in 0..times {
            relay.pass(&all);
        }
    }
}

/// Compares both decoders' results. The other implementation rejects a section that consists only of a table size
/// update, but only after applying it.
fn same(block: &Block, theirs: Option<Vec<(Vec<u8>, Vec<u8>)>>) {
    if block.is_empty() {
        return assert!(theirs.is_none_or(|fields| fields.is_empty()));
    }
    let theirs = theirs.expect("what we take, the other takes");
    let ours = block.iter().map(|field| (field.name().to_vec(), field.value().to_vec()));
    assert!(ours.eq(theirs), "another implementation reads other fields");
}

/// Encodes decoded fields, and decodes the result with Leno's decoder and with the other
/// implementation.
struct Relay {
    encoder: Encoder,
    decoder: Decoder,
    peer: loona_hpack::Decoder<'static>,
    passed: usize,
}

impl Relay {
    fn new(table: usize) -> Self {
        let peer = loona_hpack::Decoder::new();
        Self { encoder: Encoder::new(table), decoder: Decoder::new(4096), peer, passed: 0 }
    }

    fn pass(&mut self, block: &Block) {
        self.passed += 1;
        if self.passed.is_multiple_of(5) {
            self.encoder.set_max_table(self.passed * 64 % 4096);
        }
        let mut section = Vec::new();
        self.encoder.encode(block, &mut section);
        let mut back = Block::new();
        assert_eq!(self.decoder.decode(&section, &mut back, WIDE), Ok(Outcome::Complete));
        for (sent, got) in block.iter().zip(&back) {
            assert_eq!((sent.name(), sent.value()), (got.name(), got.value()));
            assert!(got.is_sensitive() || !sent.is_sensitive());
        }
        assert_eq!(block.len(), back.len());
        assert_eq!(self.decoder.table_size(), self.encoder.table_size());
        same(block, self.peer.decode(&section).ok());
    }
}
