//! Classes of bytes in heads (RFC 9110 section 5.6) and lists of tokens.

#[expect(clippy::indexing_slicing, reason = "`byte` is less than 256")]
static TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = matches!(byte as u8,
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'!' | b'#' | b'$' | b'%' | b'&' | b'\''
            | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~');
        byte += 1;
    }
    table
};

/// Whether `byte` may be in a token: the name of a header, a method, an option.
#[inline]
#[expect(clippy::indexing_slicing, reason = "the table has an element for every byte")]
pub(crate) fn in_token(byte: u8) -> bool {
    TOKEN[byte as usize]
}

/// Whether `word` is a token.
pub(crate) fn is_token(word: &[u8]) -> bool {
    !word.is_empty() && word.iter().all(|byte| in_token(*byte))
}

/// The number that up to 18 digits represent. With more digits it could overflow, and no body is that long. `None` if
/// it is malformed.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    let good = !digits.is_empty() && digits.len() <= 18 && digits.iter().all(u8::is_ascii_digit);
    good.then(|| digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

/// Splits before the first byte for which `ends` is true. `None` if there is no such byte.
#[inline]
pub(crate) fn split_before(bytes: &[u8], ends: impl Fn(u8) -> bool) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|byte| ends(*byte))?;
    bytes.split_at_checked(at)
}

/// The bytes before the first `separator`, and the bytes after it.
pub(crate) fn split_once(bytes: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    match split_before(bytes, |byte| byte == separator)? {
        (before, [_, behind @ ..]) => Some((before, behind)),
        _ => None,
    }
}

/// Whether `byte` may be in the value of a header. Only control characters other than the tab may not.
pub(crate) fn is_text(byte: u8) -> bool {
    byte >= 0x20 && byte != 0x7f || byte == b'\t'
}

/// The position of the first byte, from `at` on, that is not permitted in a header's value; the end if there is none.
pub(crate) fn text_end(bytes: &[u8], at: usize) -> usize {
    const ONES: u64 = u64::MAX / 0xff;
    let mut at = at;
    // Check eight bytes at once whether one of them is below 0x20 or is 0x7f.
    while let Some(eight) = bytes.get(at..).and_then(<[u8]>::first_chunk) {
        let word = u64::from_le_bytes(*eight);
        let below = word.wrapping_sub(ONES * 0x20) & !word;
        let delete = word ^ (ONES * 0x7f);
        let delete = delete.wrapping_sub(ONES) & !delete;
        let found = (below | delete) & (ONES * 0x80);
        if found == 0 {
            at += 8;
            continue;
        }
        // Because of a borrow in the subtraction a permitted byte may be marked, but only after a byte that is marked
        // correctly.
        at += found.trailing_zeros() as usize / 8;
        if bytes.get(at) != Some(&b'\t') {
            return at;
        }
        at += 1;
    }
    while bytes.get(at).is_some_and(|byte| is_text(*byte)) {
        at += 1;
    }
    at
}

/// The value without the spaces and tabs at both ends.
pub(crate) fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// The non-empty members of a comma-separated list.
pub(crate) fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(trim).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_at_the_first_control_character_whatever_the_alignment() {
        for length in 0..20 {
            for bad in [0u8, 0x1f, 0x7f, b'\r', b'\n'] {
                let mut bytes = vec![b'a'; length];
                bytes.extend([0x80, 0xff, b' ', b'\t', bad, b'b']);
                for at in 0..length {
                    assert_eq!(text_end(&bytes, at), length + 4);
                }
            }
        }
        assert_eq!(text_end(b"abc", 0), 3);
    }

    #[test]
    fn lists_skip_empty_members() {
        let list: Vec<_> = tokens(b" , close ,,\tx\t").collect();
        assert_eq!(list, [&b"close"[..], b"x"]);
    }
}
