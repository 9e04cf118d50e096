//! Measures how long typical heads take, compared with another implementation: `cargo run --release -p leno-hpack
//! --example speed`.
//!
//! Each line is one connection in steady state. In every head the path and an identifier change. The program prints the
//! fastest of several rounds, in nanoseconds per head.

use std::hint::black_box;
use std::time::Instant;

use leno_hpack::{Block, Decoder, Encoder, Limits};

const LIMITS: Limits = Limits { list_bytes: 65_536, fields: 100 };
const HEADS: usize = 512;
const ROUNDS: usize = 60;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn main() {
    println!("{:34} {:>9} {:>9}", "ns a head", "this", "loona");
    for (name, head) in [
        ("browser request, 12 fields", browser as fn(usize) -> Pairs),
        ("gRPC request, 9 fields", grpc),
        ("response, 8 fields", response),
    ] {
        let heads: Vec<Pairs> = (0..HEADS).map(head).collect();
        let this = ours(&heads);
        let other = theirs(&heads);
        for (what, index) in [("decode", 0), ("encode", 1), ("decode and encode again", 2)] {
            let name = format!("{name}: {what}");
            println!("{name:34} {:9.0} {:9.0}", this[index], other[index]);
        }
        println!("{:34} {:9.0} {:9.0}", "  octets a head", this[3], other[3]);
    }
}

/// The times for decoding, for encoding new blocks, and for both together as in a relay; then the number of octets per
/// head.
fn ours(heads: &[Pairs]) -> [f64; 4] {
    let blocks: Vec<Block> = heads.iter().map(|head| head.iter().cloned().collect()).collect();
    let mut encoder = Encoder::new(4096);
    let mut out = Vec::new();
    let mut octets = 0;
    let encode = fastest(|_| {
        octets = 0;
        for block in &blocks {
            out.clear();
            encoder.encode(block, &mut out);
            octets += out.len();
            black_box(&out);
        }
    });
    let mut sender = Encoder::new(4096);
    let rounds = sections(|round| {
        let mut out = Vec::new();
        sender.encode(&blocks[round % HEADS], &mut out);
        out
    });
    let mut decoder = Decoder::new(4096);
    let mut block = Block::new();
    let decode = fastest(|round| {
        for section in &rounds[round] {
            let _ = black_box(decoder.decode(section, &mut block, LIMITS));
        }
    });
    let mut decoder = Decoder::new(4096);
    let relay = fastest(|round| {
        for section in &rounds[round] {
            let _ = black_box(decoder.decode(section, &mut block, LIMITS));
            out.clear();
            encoder.encode(&block, &mut out);
            black_box(&out);
        }
    });
    [decode, encode, relay, octets as f64 / HEADS as f64]
}

fn theirs(heads: &[Pairs]) -> [f64; 4] {
    let mut encoder = loona_hpack::Encoder::new();
    let mut octets = 0;
    let encode = fastest(|_| {
        octets = 0;
        for head in heads {
            let out = encoder.encode(head.iter().map(|(name, value)| (&name[..], &value[..])));
            octets += out.len();
            black_box(&out);
        }
    });
    let mut sender = loona_hpack::Encoder::new();
    let rounds = sections(|round| {
        sender.encode(heads[round % HEADS].iter().map(|(name, value)| (&name[..], &value[..])))
    });
    let mut decoder = loona_hpack::Decoder::new();
    let decode = fastest(|round| {
        for section in &rounds[round] {
            black_box(decoder.decode(section).is_ok());
        }
    });
    let mut decoder = loona_hpack::Decoder::new();
    let relay = fastest(|round| {
        for section in &rounds[round] {
            let Ok(fields) = decoder.decode(section) else { continue };
            let fields = fields.iter().map(|(name, value)| (&name[..], &value[..]));
            black_box(encoder.encode(fields));
        }
    });
    [decode, encode, relay, octets as f64 / HEADS as f64]
}

fn sections(mut one: impl FnMut(usize) -> Vec<u8>) -> Vec<Vec<Vec<u8>>> {
    (0..ROUNDS).map(|_| (0..HEADS).map(&mut one).collect()).collect()
}

fn fastest(mut round: impl FnMut(usize)) -> f64 {
    let mut best = f64::INFINITY;
    for number in 0..ROUNDS {
        let start = Instant::now();
        round(number);
        best = best.min(start.elapsed().as_nanos() as f64 / HEADS as f64);
    }
    best
}

fn pairs(fields: &[(&str, &str)]) -> Pairs {
    fields
        .iter()
        .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect()
}

fn identifier(number: usize) -> String {
    format!("{:016x}", (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn browser(number: usize) -> Pairs {
    pairs(&[
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "shop.example.com"),
        (":path", &format!("/catalog/items/{}?page={number}", identifier(number))),
        ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
        ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
        ("accept-language", "en-GB,en;q=0.5"),
        ("accept-encoding", "gzip, deflate, br, zstd"),
        ("cookie", "session=0a1b2c3d4e5f60718293a4b5c6d7e8f9; theme=dark"),
        ("referer", "https://shop.example.com/catalog"),
        ("sec-fetch-mode", "navigate"),
        ("x-request-id", &identifier(number)),
    ])
}

fn grpc(number: usize) -> Pairs {
    pairs(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/shop.v1.Cart/AddItem"),
        (":authority", "cart.shop.svc.cluster.local:8080"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-go/1.78.0"),
        ("grpc-timeout", &format!("{}u", 900_000 + number * 7)),
        ("traceparent", &format!("00-{0}{0}-{0}-01", identifier(number))),
    ])
}

fn response(number: usize) -> Pairs {
    pairs(&[
        (":status", "200"),
        ("content-type", "application/json; charset=utf-8"),
        ("content-length", &(900 + number).to_string()),
        ("date", "Sat, 21 Nov 2026 08:00:00 GMT"),
        ("server", "nginx"),
        ("cache-control", "no-store"),
        ("vary", "accept-encoding"),
        ("x-request-id", &identifier(number)),
    ])
}
