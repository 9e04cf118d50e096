//! Integers with a prefix (RFC 7541 section 5.1).
#![expect(
    clippy::arithmetic_side_effects,
    reason = "an integer is bounded before it is shifted further"
)]

use crate::decode::DecodeError;

/// How many octets after the prefix a decoder accepts: enough for 32 bits. More than these are an attack.
const MAX_CONTINUATION: usize = 5;

/// Decodes an integer with a prefix of `bits` bits. Its first octet is `first`; further octets are
/// removed from `rest`.
pub(crate) fn decode(first: u8, bits: u32, rest: &mut &[u8]) -> Result<usize, DecodeError> {
    let mask = (1u8 << bits) - 1;
    let prefix = first & mask;
    if prefix < mask { Ok(usize::from(prefix)) } else { decode_rest(prefix, rest) }
}

#[cold]
fn decode_rest(prefix: u8, rest: &mut &[u8]) -> Result<usize, DecodeError> {
    let mut value = u64::from(prefix);
    for step in 0..MAX_CONTINUATION {
        let (&octet, after) = rest.split_first().ok_or(DecodeError::Truncated)?;
        *rest = after;
        value += u64::from(octet & 0x7f) << (7 * step);
        if octet & 0x80 == 0 {
            let value = u32::try_from(value).map_err(|_| DecodeError::IntegerOverflow)?;
            return Ok(value as usize);
        }
    }
    Err(DecodeError::IntegerOverflow)
}

/// Encodes `value` with a prefix of `bits` bits. `pattern` fills the bits above the prefix.
pub(crate) fn encode(pattern: u8, bits: u32, value: usize, out: &mut Vec<u8>) {
    let mask = (1usize << bits) - 1;
    if value < mask {
        out.push(pattern | value as u8);
        return;
    }
    out.push(pattern | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(bits: u32, value: usize) -> Vec<u8> {
        let mut out = Vec::new();
        encode(0, bits, value, &mut out);
        out
    }

    fn decoded(bits: u32, bytes: &[u8]) -> Result<usize, DecodeError> {
        let mut rest = &bytes[1..];
        let value = decode(bytes[0], bits, &mut rest)?;
        assert!(rest.is_empty());
        Ok(value)
    }

    #[test]
    fn examples_of_the_rfc() {
        assert_eq!(encoded(5, 10), [0x0a]);
        assert_eq!(encoded(5, 1337), [0x1f, 0x9a, 0x0a]);
        assert_eq!(encoded(8 - 1, 42), [0x2a]);
    }

    #[test]
    fn round_trip_at_the_edges() {
        for bits in 4..=7 {
            for value in [0, 1, 14, 15, 16, 126, 127, 128, 254, 255, 16_383, 16_384, u32::MAX] {
                let value = value as usize;
                assert_eq!(decoded(bits, &encoded(bits, value)), Ok(value));
            }
        }
    }

    #[test]
    fn overlong_integers_are_refused() {
        let overlong = [0x7f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00];
        assert_eq!(decoded(7, &overlong), Err(DecodeError::IntegerOverflow));
        let too_big = [0x7f, 0xff, 0xff, 0xff, 0xff, 0x7f];
        assert_eq!(decoded(7, &too_big), Err(DecodeError::IntegerOverflow));
        assert_eq!(decoded(7, &[0x7f, 0x80]), Err(DecodeError::Truncated));
        assert_eq!(decoded(7, &[0x7f]), Err(DecodeError::Truncated));
    }
}
