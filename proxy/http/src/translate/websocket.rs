//! The handshake of WebSocket (RFC 6455 section 4), which extended CONNECT has no need of and
//! HTTP/1 insists on.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "constant positions in arrays of constant lengths"
)]

/// Bytes of a key: sixteen in base64.
pub(crate) const KEY_BYTES: usize = 24;
/// Bytes of an accept value: a SHA-1 in base64.
pub(crate) const ACCEPT_BYTES: usize = 28;

/// What every server appends to the key.
const SUFFIX: &[u8; 36] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A key for a server that insists on one. It protects from caches that confuse handshakes with
/// other requests, not from anybody who can see it.
pub(crate) fn new_key() -> [u8; KEY_BYTES] {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let mut nonce = [0; 16];
    for half in nonce.chunks_mut(8) {
        half.copy_from_slice(&RandomState::new().build_hasher().finish().to_le_bytes());
    }
    let mut key = [0; KEY_BYTES];
    base64(&nonce, &mut key);
    key
}

/// The `Sec-WebSocket-Accept` for a key. `None` for what cannot be a key.
pub(crate) fn accept(key: &[u8]) -> Option<[u8; ACCEPT_BYTES]> {
    if key.len() != KEY_BYTES {
        return None;
    }
    let mut accept = [0; ACCEPT_BYTES];
    let mut message = [0; KEY_BYTES + SUFFIX.len()];
    message[..KEY_BYTES].copy_from_slice(key);
    message[KEY_BYTES..].copy_from_slice(SUFFIX);
    base64(&sha1(&message), &mut accept);
    Some(accept)
}

fn base64(bytes: &[u8], out: &mut [u8]) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (three, four) in bytes.chunks(3).zip(out.chunks_mut(4)) {
        let byte = |i: usize| u32::from(three.get(i).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for (i, digit) in four.iter_mut().enumerate() {
            let used = i <= three.len();
            *digit = if used { DIGITS[(bits >> (18 - 6 * i)) as usize & 63] } else { b'=' };
        }
    }
}

/// FIPS 180-4 section 6.1, for one message of a length that fits into two blocks.
fn sha1(message: &[u8]) -> [u8; 20] {
    let mut padded = [0; 128];
    debug_assert!((56..=119).contains(&message.len()));
    padded[..message.len()].copy_from_slice(message);
    padded[message.len()] = 0x80;
    padded[120..].copy_from_slice(&(message.len() as u64 * 8).to_be_bytes());
    let mut hash = [0x6745_2301_u32, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    for block in padded.chunks(64) {
        let mut words = [0; 80];
        for (word, four) in words.iter_mut().zip(block.chunks(4)) {
            *word = u32::from_be_bytes([four[0], four[1], four[2], four[3]]);
        }
        for i in 16..80 {
            let mixed = words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16];
            words[i] = mixed.rotate_left(1);
        }
        let [mut a, mut b, mut c, mut d, mut e] = hash;
        for (i, word) in words.iter().enumerate() {
            let (f, k) = match i / 20 {
                0 => ((b & c) | (!b & d), 0x5a82_7999),
                1 => (b ^ c ^ d, 0x6ed9_eba1),
                2 => ((b & c) | (b & d) | (c & d), 0x8f1b_bcdc),
                _ => (b ^ c ^ d, 0xca62_c1d6_u32),
            };
            let next = a.rotate_left(5).wrapping_add(f).wrapping_add(e);
            let next = next.wrapping_add(k).wrapping_add(*word);
            (e, d, c, b, a) = (d, c, b.rotate_left(30), a, next);
        }
        for (sum, part) in hash.iter_mut().zip([a, b, c, d, e]) {
            *sum = sum.wrapping_add(part);
        }
    }
    let mut digest = [0; 20];
    for (four, word) in digest.chunks_mut(4).zip(hash) {
        four.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rfc() {
        let accepted = accept(b"dGhlIHNhbXBsZSBub25jZQ==").unwrap();
        assert_eq!(&accepted, b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(accept(b"short"), None);
    }

    #[test]
    fn keys_are_sixteen_bytes_in_base64_and_differ() {
        let (one, other) = (new_key(), new_key());
        assert!(one.ends_with(b"==") && one[..22].iter().all(|byte| *byte != b'='));
        assert_ne!(one, other);
    }
}
