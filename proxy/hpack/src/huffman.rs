//! The Huffman code of HPACK (RFC 7541 section 5.2 and appendix B), decoded several bits at a time.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "tables have an entry for each value of their index, and output has room for the shortest code"
)]

mod code;

use code::{EOS, FAST, FAST_BITS, FIRST_CODE, FIRST_RANK, LIMIT, MAX_LENGTH, PACKED, SYMBOLS};

/// A malformed Huffman-coded string: it contains EOS, or its padding is longer than seven bits or
/// is not a prefix of EOS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The number of lookups between two refills of the bits: a refill makes 56 bits valid.
const LOOKUPS: u32 = 56 / FAST_BITS;

/// The length of the shortest code in bits. It limits the number of symbols in a string.
const MIN_LENGTH: usize = 5;

/// Appends the decoded string to `out`. On an error `out` may have grown.
pub(crate) fn decode(coded: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    let start = out.len();
    // A lookup always writes two symbols, even if it found only one.
    out.resize(start + coded.len() * 8 / MIN_LENGTH + 2, 0);
    let written = Window::new(coded).decode(&mut out[start..])?;
    out.truncate(start + written);
    Ok(())
}

/// Reads bits. After the end of the string it returns ones, which are also the bits of the padding.
struct Window<'a> {
    rest: &'a [u8],
    /// The next bits; the first is the most significant one.
    bits: u64,
    /// How many bits in `bits` are known to be valid. The bits below them may be valid, too.
    held: u32,
    /// How many bits of the string were not decoded yet.
    left: usize,
}

/// Results that a lookup in [`FAST`] cannot give.
enum Rare {
    /// One symbol, whose code may be longer than a lookup.
    Symbol(u8),
    /// More bits must be read first.
    Refill,
    /// The string ends here correctly.
    End,
}

impl<'a> Window<'a> {
    fn new(coded: &'a [u8]) -> Self {
        Self { rest: coded, bits: 0, held: 0, left: coded.len() * 8 }
    }

    fn decode(mut self, out: &mut [u8]) -> Result<usize, Malformed> {
        let mut written = 0;
        loop {
            self.refill();
            for _ in 0..LOOKUPS {
                let entry = FAST[(self.bits >> (64 - FAST_BITS)) as usize];
                // The condition also holds if the length is 0, which stands for a code that is too long for the table.
                if usize::from(entry.length).wrapping_sub(1) >= self.left {
                    match self.rare(entry)? {
                        Rare::Symbol(symbol) => {
                            out[written] = symbol;
                            written += 1;
                            break;
                        }
                        Rare::Refill => break,
                        Rare::End => return Ok(written),
                    }
                }
                out[written..written + 2].copy_from_slice(&entry.symbols);
                written += 1 + usize::from(entry.length > entry.first_length);
                self.take(u32::from(entry.length));
            }
        }
    }

    /// Makes at least 56 bits valid. Valid bits are read again and do not change.
    fn refill(&mut self) {
        let next = self.rest.first_chunk::<8>().copied().unwrap_or_else(|| {
            let mut padded = [0xff; 8];
            padded[..self.rest.len()].copy_from_slice(self.rest);
            padded
        });
        self.bits |= u64::from_be_bytes(next) >> self.held;
        let bytes = (63 - self.held) / 8;
        self.rest = self.rest.get(bytes as usize..).unwrap_or_default();
        self.held |= 56;
    }

    fn take(&mut self, bits: u32) {
        self.bits <<= bits;
        self.held -= bits;
        self.left -= bits as usize;
    }

    /// Decodes a long code, or the end of the string.
    #[cold]
    fn rare(&mut self, entry: code::Fast) -> Result<Rare, Malformed> {
        if entry.length > 0 {
            let first = u32::from(entry.first_length);
            return if first as usize <= self.left {
                self.take(first);
                Ok(Rare::Symbol(entry.symbols[0]))
            } else {
                self.end()
            };
        }
        if self.held < MAX_LENGTH as u32 {
            return Ok(Rare::Refill);
        }
        let top = self.bits >> 32;
        let mut length = FAST_BITS as usize + 1;
        while top >= LIMIT[length] {
            length += 1;
        }
        if length > self.left {
            return self.end();
        }
        let offset = (top >> (32 - length)) as u32 - FIRST_CODE[length];
        let symbol = SYMBOLS[FIRST_RANK[length] + offset as usize];
        self.take(length as u32);
        if symbol == EOS { Err(Malformed) } else { Ok(Rare::Symbol(symbol as u8)) }
    }

    /// Checks that the remaining bits are valid padding.
    fn end(&self) -> Result<Rare, Malformed> {
        let padding = self.left < 8 && self.bits.leading_ones() as usize >= self.left;
        if padding { Ok(Rare::End) } else { Err(Malformed) }
    }
}

/// The length of `plain` after encoding, in bytes.
pub(crate) fn encoded_length(plain: &[u8]) -> usize {
    let bits: usize = plain.iter().map(|&byte| (PACKED[usize::from(byte)] & 0xff) as usize).sum();
    bits.div_ceil(8)
}

/// Appends the encoded `plain` to `out`.
pub(crate) fn encode(plain: &[u8], out: &mut Vec<u8>) {
    let (mut bits, mut held) = (0u64, 0u32);
    for &byte in plain {
        let packed = PACKED[usize::from(byte)];
        let length = (packed & 0xff) as u32;
        bits = bits << length | packed >> 8;
        held += length;
        if held >= 32 {
            held -= 32;
            out.extend_from_slice(&((bits >> held) as u32).to_be_bytes());
        }
    }
    if held > 0 {
        let padded = (bits << (32 - held)) as u32 | u32::MAX >> held;
        out.extend_from_slice(&padded.to_be_bytes()[..held.div_ceil(8) as usize]);
    }
}

#[cfg(test)]
mod tests;
