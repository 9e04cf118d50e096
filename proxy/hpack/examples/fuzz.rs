//! Mutates sections from a seed for some seconds, and keeps inputs that lead to something new:
//!
//! ```text
//! cargo run --release -p leno-hpack --example fuzz -- SECONDS SEED [FOLDER]
//! ```
//!
//! It starts from the inputs in FOLDER, `proxy/hpack/tests/corpus` unless given, and adds to it.
//! An input that fails a check is written there as `failing-...`, and the run ends with its panic.
#![expect(clippy::unwrap_used, reason = "a tool for developers")]

#[path = "../tests/fuzz/checks.rs"]
mod checks;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, panic};

use leno_hpack::{Coding, Encoder, Field};

/// Inputs that are kept in memory to be mutated, and in the folder in all.
const MAX_KEPT: usize = 4096;
const MAX_SAVED: usize = 120;

/// The longest input, in bytes.
const MAX_INPUT: usize = 4096;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 11) as usize % bound.max(1)
    }
}

fn main() {
    let mut arguments = env::args().skip(1);
    let seconds: u64 = arguments.next().map_or(10, |text| text.parse().unwrap());
    let seed: u64 = arguments.next().map_or(1, |text| text.parse().unwrap());
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let folder = arguments.next().map_or(default, PathBuf::from);
    fs::create_dir_all(&folder).unwrap();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut kept: Vec<Vec<u8>> = fs::read_dir(&folder)
        .unwrap()
        .map(|file| fs::read(file.unwrap().path()).unwrap())
        .collect();
    let mut saved = kept.len();
    let mut known: HashSet<u64> = kept.iter().map(|input| checks::sections(input)).collect();
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut runs = 0u64;
    while Instant::now() < end {
        for _ in 0..256 {
            let input = match random.below(8) {
                0 => written(&mut random),
                _ if kept.is_empty() => written(&mut random),
                _ => mutated(&kept, &mut random),
            };
            let result = panic::catch_unwind(|| checks::sections(&input));
            let Ok(kind) = result else {
                fs::write(folder.join(format!("failing-{seed}-{runs}")), &input).unwrap();
                panic!("an input failed: {input:02x?}");
            };
            runs += 1;
            if known.insert(kind) && kept.len() < MAX_KEPT {
                // Early ones and some later ones, so that the corpus has variety.
                if saved < MAX_SAVED && input.len() < 512 && random.below(4) == 0 {
                    fs::write(folder.join(format!("{seed:02}-{saved:04}")), &input).unwrap();
                    saved += 1;
                }
                kept.push(input);
            }
        }
    }
    println!("{runs} inputs, {} kinds of outcome, {} kept, {saved} saved", known.len(), kept.len());
}

/// Sections of an encoder, of fields that repeat.
fn written(random: &mut Random) -> Vec<u8> {
    let names: [&[u8]; 8] =
        [b":method", b":path", b"cookie", b"accept", b"x-a", b"x-b", b"authorization", b"etag"];
    let mut encoder = Encoder::new(4096);
    let mut input = vec![128];
    for _ in 0..=random.below(5) {
        if random.below(4) == 0 {
            encoder.set_coding(Coding::Plain);
        }
        if random.below(4) == 0 {
            encoder.set_max_table(random.below(4097));
        }
        let mut section = Vec::new();
        for _ in 0..random.below(8) {
            let length = random.below(40);
            let letter = random.next() as u8;
            let value = vec![letter; if random.below(20) == 0 { length * 30 } else { length }];
            encoder.encode([Field::new(names[random.below(names.len())], &value)], &mut section);
        }
        input.extend((section.len() as u16).to_be_bytes());
        input.extend(section);
    }
    input
}

fn mutated(kept: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = kept[random.below(kept.len())].clone();
    for _ in 0..=random.below(4) {
        let place = random.below(input.len() + 1);
        match random.below(6) {
            0 => input.insert(place, random.next() as u8),
            1 if place < input.len() => drop(input.remove(place)),
            2 if place < input.len() => input[place] ^= 1 << random.below(8),
            3 => {
                let other = &kept[random.below(kept.len())];
                input.truncate(place);
                input.extend(&other[random.below(other.len() + 1)..]);
            }
            4 => {
                let octets = [0x00, 0x0f, 0x10, 0x1f, 0x20, 0x3f, 0x40, 0x7f, 0x80, 0xbe, 0xff];
                input.insert(place, octets[random.below(octets.len())]);
            }
            _ => {
                let part = input[place..(place + random.below(16)).min(input.len())].to_vec();
                let at = random.below(input.len() + 1);
                input.splice(at..at, part);
            }
        }
    }
    input.truncate(MAX_INPUT);
    input
}
