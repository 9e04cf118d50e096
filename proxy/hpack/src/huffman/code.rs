//! The tables of the code. It is canonical: codes of the same length are consecutive in the order
//! of their symbols, and the first code of a length follows the last code of the shorter lengths.
//! So the lengths in appendix B determine all codes.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "tables are made of the code of RFC 7541 when the program is compiled"
)]

/// The end-of-string symbol. It never occurs in a string; its first bits are the padding.
pub(super) const EOS: u16 = 256;

/// The length of the longest code in bits.
pub(super) const MAX_LENGTH: usize = 30;

/// The length of each symbol's code, in bits; EOS is the last.
#[rustfmt::skip]
const LENGTH_LIST: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

/// The first code of each length.
pub(super) static FIRST_CODE: [u32; MAX_LENGTH + 2] = FIRSTS.0;

/// For each length, the number of symbols with shorter codes.
pub(super) static FIRST_RANK: [usize; MAX_LENGTH + 2] = FIRSTS.1;

/// All symbols in the order of their codes.
pub(super) static SYMBOLS: [u16; 257] = SYMBOL_LIST;

/// For each length, the first number that is above all codes of at most this length, in the top bits of 32.
pub(super) static LIMIT: [u64; MAX_LENGTH + 1] = LIMITS;

/// For each byte, its code shifted left by 8, plus the length of the code in bits.
pub(super) static PACKED: [u64; 256] = packed();

/// The number of bits of a lookup in [`FAST`]. They are enough for two letters with short codes, and the table takes a
/// quarter of a small level 1 cache.
pub(super) const FAST_BITS: u32 = 11;

/// For the next bits of a string, the one or two symbols with which they begin.
pub(super) static FAST: [Fast; 1 << FAST_BITS] = fast();

/// An entry of [`FAST`].
#[derive(Clone, Copy)]
pub(super) struct Fast {
    /// The second symbol is valid only if `length` exceeds `first_length`.
    pub(super) symbols: [u8; 2],
    /// The length of both codes together; 0 if even the first code is longer than the lookup.
    pub(super) length: u8,
    /// The length of the first code.
    pub(super) first_length: u8,
}

const FIRSTS: ([u32; MAX_LENGTH + 2], [usize; MAX_LENGTH + 2]) = firsts();

const fn firsts() -> ([u32; MAX_LENGTH + 2], [usize; MAX_LENGTH + 2]) {
    let mut code = [0; MAX_LENGTH + 2];
    let mut rank = [0; MAX_LENGTH + 2];
    let mut length = 1;
    while length <= MAX_LENGTH + 1 {
        let (mut of_previous, mut symbol) = (0, 0);
        while symbol < LENGTH_LIST.len() {
            if LENGTH_LIST[symbol] as usize == length - 1 {
                of_previous += 1;
            }
            symbol += 1;
        }
        code[length] = (code[length - 1] + of_previous) << 1;
        rank[length] = rank[length - 1] + of_previous as usize;
        length += 1;
    }
    (code, rank)
}

const LIMITS: [u64; MAX_LENGTH + 1] = limits();

const fn limits() -> [u64; MAX_LENGTH + 1] {
    let (codes, ranks) = FIRSTS;
    let mut limits = [0; MAX_LENGTH + 1];
    let mut length = 1;
    while length <= MAX_LENGTH {
        let end = codes[length] as u64 + (ranks[length + 1] - ranks[length]) as u64;
        limits[length] = end << (32 - length);
        length += 1;
    }
    limits
}

const fn packed() -> [u64; 256] {
    let mut next = FIRSTS.0;
    let mut packed = [0; 256];
    let mut symbol = 0;
    while symbol < packed.len() {
        let length = LENGTH_LIST[symbol] as usize;
        packed[symbol] = (next[length] as u64) << 8 | length as u64;
        next[length] += 1;
        symbol += 1;
    }
    packed
}

/// The symbol whose code is at the top of 32 bits, and the length of the code. `None` if the length exceeds `most`.
const fn symbol_of(top: u64, most: usize) -> Option<(u8, usize)> {
    let mut length = 1;
    while length <= most {
        if top < LIMITS[length] {
            let offset = (top >> (32 - length)) as usize - FIRSTS.0[length] as usize;
            return Some((SYMBOL_LIST[FIRSTS.1[length] + offset] as u8, length));
        }
        length += 1;
    }
    None
}

const fn fast() -> [Fast; 1 << FAST_BITS] {
    let bits = FAST_BITS as usize;
    let none = Fast { symbols: [0; 2], length: 0, first_length: 0 };
    let mut table = [none; 1 << FAST_BITS];
    let mut index = 0;
    while index < table.len() {
        let top = (index as u64) << (32 - bits);
        if let Some((first, first_length)) = symbol_of(top, bits) {
            let behind = top << first_length & 0xffff_ffff;
            let (second, second_length) = match symbol_of(behind, bits - first_length) {
                Some(found) => found,
                None => (0, 0),
            };
            table[index] = Fast {
                symbols: [first, second],
                length: (first_length + second_length) as u8,
                first_length: first_length as u8,
            };
        }
        index += 1;
    }
    table
}

const SYMBOL_LIST: [u16; 257] = symbols();

const fn symbols() -> [u16; 257] {
    let mut next = FIRSTS.1;
    let mut symbols = [0; 257];
    let mut symbol = 0;
    while symbol < symbols.len() {
        let length = LENGTH_LIST[symbol] as usize;
        symbols[next[length]] = symbol as u16;
        next[length] += 1;
        symbol += 1;
    }
    symbols
}
