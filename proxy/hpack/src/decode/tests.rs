//! What a decoder takes and refuses.

use super::*;
use crate::{Encoder, Field};

const LIMITS: Limits = Limits { list_bytes: 16_384, fields: 100 };

#[test]
fn round_trip() {
    let mut encoder = Encoder::new(4096);
    let mut decoder = Decoder::new(4096);
    let mut block = Block::new();
    for _ in 0..3 {
        let mut section = Vec::new();
        let fields = [
            Field::new(b":method", b"GET"),
            Field::new(b":path", b"/some/where"),
            Field::new(b"user-agent", b"curl/8"),
            Field::new(b"x-unknown", b"value"),
        ];
        encoder.encode(fields, &mut section);
        assert_eq!(decoder.decode(&section, &mut block, LIMITS), Ok(Outcome::Complete));
        assert!(block.iter().eq(fields));
    }
    assert_eq!(encoder.table_size(), decoder.table_size());
}
