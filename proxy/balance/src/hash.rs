//! Hashes that are the same in every proxy and every version, because all proxies must send the same request to the
//! same endpoint.

/// FNV-1a with 64 bits (Fowler, Noll, Vo). The result is mixed, because the low bits of FNV-1a alone are unevenly
/// distributed.
#[must_use]
pub fn hash(bytes: &[u8]) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    mix(bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold), 0)
}

/// Mixes the bits of a hash. Each `salt` gives another result. The function is the finalizer of SplitMix64 (Steele,
/// Lea, Flood 2014).
#[must_use]
pub fn mix(hash: u64, salt: u64) -> u64 {
    let mut x = hash.wrapping_add(salt.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_never_change() {
        assert_eq!(hash(b""), 14_087_677_454_934_409_008);
        assert_eq!(hash(b"10.0.0.1:80"), hash(b"10.0.0.1:80"));
        assert_ne!(hash(b"10.0.0.1:80"), hash(b"10.0.0.2:80"));
        assert_ne!(mix(1, 0), mix(1, 1));
    }
}
