//! Decoding and encoding in steady state allocates nothing.

use leno_hpack::{Block, Decoder, Encoder, Field, Limits, Outcome};

#[path = "../../../testkit/counting.rs"]
mod counting;

use counting::ALLOCATIONS;

const LIMITS: Limits = Limits { list_bytes: 16_384, fields: 100 };

/// Fields pass from an application's encoder through a relay's decoder and encoder to a server's decoder. Some values
/// occur once, some repeat, and some evict others from the tables.
#[test]
fn a_relay_in_steady_state() {
    let mut client = Encoder::new(4096);
    let (mut relay_in, mut relay_out) = (Decoder::new(4096), Encoder::new(4096));
    let mut server = Decoder::new(4096);
    let (mut block, mut last) = (Block::new(), Block::new());
    let (mut section, mut relayed) = (Vec::new(), Vec::new());
    let mut text = *b"/orders/00000000?page=0000000000";
    let mut before = 0;
    for round in 0..6000u32 {
        if round == 3000 {
            before = ALLOCATIONS.get();
        }
        text[8..16].copy_from_slice(&digits(round % 97));
        let mut id = *b"00000000-deadbeef";
        id[..8].copy_from_slice(&digits(round));
        let fields = [
            Field::new(b":method", b"GET"),
            Field::new(b":scheme", b"http"),
            Field::new(b":path", &text),
            Field::new(b":authority", b"orders.shop.svc.cluster.local"),
            Field::new(b"user-agent", &text[..16]),
            Field::new(b"authorization", b"Bearer 0123456789abcdef"),
            Field::new(b"x-request-id", &id),
        ];
        section.clear();
        client.encode(fields, &mut section);
        assert_eq!(relay_in.decode(&section, &mut block, LIMITS), Ok(Outcome::Complete));
        block.set(b"x-forwarded-proto", b"http");
        block.remove_all(b"user-agent");
        relayed.clear();
        relay_out.encode(&block, &mut relayed);
        assert_eq!(server.decode(&relayed, &mut last, LIMITS), Ok(Outcome::Complete));
        assert!(block.iter().map(|field| field.name()).eq(last.iter().map(|field| field.name())));
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
}

fn digits(number: u32) -> [u8; 8] {
    let mut digits = [b'0'; 8];
    let mut rest = number;
    for digit in digits.iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    digits
}
