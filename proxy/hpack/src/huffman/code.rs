//! The code itself. It is canonical: codes of one length are consecutive in the order of their
//! symbols, and the first of a length follows the last of the lengths before; so the lengths of
//! appendix B say everything.

/// The symbol that ends nothing: its first bits are the padding.
pub(super) const EOS: u16 = 256;

/// The longest code, in bits.
pub(super) const MAX_LENGTH: usize = 30;

/// The length of each symbol's code, in bits; EOS is the last.
pub(crate) static LENGTHS: [u8; 257] = LENGTH_LIST;

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

/// By length: the first code of that length.
pub(super) static FIRST_CODE: [u32; MAX_LENGTH + 2] = FIRSTS.0;

/// By length: how many symbols have shorter codes.
pub(super) static FIRST_RANK: [usize; MAX_LENGTH + 2] = FIRSTS.1;

/// The symbols in the order of their codes.
pub(super) static SYMBOLS: [u16; 257] = symbols();

/// The code of each symbol, in its low bits.
pub(super) static CODES: [u32; 257] = CODE_LIST;

pub(super) const CODE_LIST: [u32; 257] = codes();

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

const fn codes() -> [u32; 257] {
    let mut next = FIRSTS.0;
    let mut codes = [0; 257];
    let mut symbol = 0;
    while symbol < codes.len() {
        let length = LENGTH_LIST[symbol] as usize;
        codes[symbol] = next[length];
        next[length] += 1;
        symbol += 1;
    }
    codes
}

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
