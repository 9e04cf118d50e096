//! The handshake of WebSocket (RFC 6455 section 4), which HTTP/1 requires and extended CONNECT does not need.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "constant positions in arrays of constant lengths"
)]

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

/// The length of a key: sixteen bytes in base64.
pub(crate) const KEY_BYTES: usize = 24;
/// The length of an accept value: a SHA-1 in base64.
pub(crate) const ACCEPT_BYTES: usize = 28;

/// The string that every server appends to the key.
const SUFFIX: &[u8; 36] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A random key for a server that requires one. It is not a secret: the response to it only proves that the server has
/// understood the handshake (RFC 6455 section 1.3).
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

/// The `Sec-WebSocket-Accept` for a key. `None` if it cannot be a key.
pub(crate) fn accept(key: &[u8]) -> Option<[u8; ACCEPT_BYTES]> {
    if key.len() != KEY_BYTES {
        return None;
    }
    let mut accept = [0; ACCEPT_BYTES];
    let mut message = [0; KEY_BYTES + SUFFIX.len()];
    message[..KEY_BYTES].copy_from_slice(key);
    message[KEY_BYTES..].copy_from_slice(SUFFIX);
    base64(digest(&SHA1_FOR_LEGACY_USE_ONLY, &message).as_ref(), &mut accept);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_in_the_rfc_is_computed() {
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
