//! The string code of HPACK (RFC 7541 section 5.2 and appendix B).

mod code;

pub(crate) use code::LENGTHS;
use code::{CODES, EOS, FIRST_CODE, FIRST_RANK, MAX_LENGTH, SYMBOLS};

/// What was wrong with a Huffman-coded string: padding that is not the beginning of EOS, is
/// longer than seven bits, or EOS itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Appends the decoded string to `out`. On an error `out` may have grown.
pub(crate) fn decode(coded: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    let (mut code, mut length) = (0u32, 0usize);
    for &byte in coded {
        for bit in (0..8).rev() {
            code = code << 1 | u32::from(byte >> bit & 1);
            length += 1;
            let offset = code.wrapping_sub(FIRST_CODE[length]);
            let rank = FIRST_RANK[length] + offset as usize;
            if rank < FIRST_RANK[length + 1] && code >= FIRST_CODE[length] {
                let symbol = SYMBOLS[rank];
                if symbol == EOS {
                    return Err(Malformed);
                }
                out.push(symbol as u8);
                (code, length) = (0, 0);
            } else if length == MAX_LENGTH {
                return Err(Malformed);
            }
        }
    }
    if length < 8 && code == (1 << length) - 1 { Ok(()) } else { Err(Malformed) }
}

/// The length of `plain` in code, in bytes.
pub(crate) fn encoded_length(plain: &[u8]) -> usize {
    let bits: usize = plain.iter().map(|&byte| usize::from(LENGTHS[usize::from(byte)])).sum();
    bits.div_ceil(8)
}

/// Appends `plain` in code to `out`.
pub(crate) fn encode(plain: &[u8], out: &mut Vec<u8>) {
    let (mut bits, mut held) = (0u64, 0u32);
    for &byte in plain {
        let length = u32::from(LENGTHS[usize::from(byte)]);
        bits = bits << length | u64::from(CODES[usize::from(byte)]);
        held += length;
        if held >= 32 {
            held -= 32;
            out.extend_from_slice(&((bits >> held) as u32).to_be_bytes());
        }
    }
    while held >= 8 {
        held -= 8;
        out.push((bits >> held) as u8);
    }
    if held > 0 {
        out.push((bits << (8 - held)) as u8 | 0xff >> held);
    }
}

#[cfg(test)]
mod tests;
