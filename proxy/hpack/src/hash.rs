//! The hash of names and fields: fast for short strings, and computable at compile time. It has no secret key, because
//! nothing here becomes slower if an attacker chooses values whose hashes collide.
#![expect(clippy::arithmetic_side_effects, reason = "the operands have fewer bits than the result")]

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const STEP: u64 = 0xd6e8_feb8_6659_fd93;

/// The hash of a name. Never 0, which stands for "not computed".
pub(crate) const fn of_name(name: &[u8]) -> u32 {
    fold(SEED, name)
}

/// The hash of a whole field, from the hash of its name. Never 0.
pub(crate) const fn of_field(name_hash: u32, value: &[u8]) -> u32 {
    fold(name_hash as u64 ^ STEP, value)
}

const fn fold(seed: u64, bytes: &[u8]) -> u32 {
    let mut state = seed ^ bytes.len() as u64;
    let mut rest = bytes;
    while let Some((chunk, after)) = rest.split_first_chunk::<8>() {
        state = mix(state ^ u64::from_le_bytes(*chunk), STEP);
        rest = after;
    }
    let tail = match (rest.first_chunk::<4>(), rest.last_chunk::<4>()) {
        (Some(first), Some(last)) => {
            u32::from_le_bytes(*first) as u64 | (u32::from_le_bytes(*last) as u64) << 32
        }
        _ => match rest {
            [a, b, c] => *a as u64 | (*b as u64) << 8 | (*c as u64) << 16,
            [a, b] => *a as u64 | (*b as u64) << 8,
            [a] => *a as u64,
            _ => 0,
        },
    };
    state = mix(state ^ tail, SEED);
    match (state ^ (state >> 32)) as u32 {
        0 => 1,
        hash => hash,
    }
}

const fn mix(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_counts() {
        for length in 0..40 {
            let plain = vec![b'a'; length];
            for place in 0..length {
                let mut other = plain.clone();
                other[place] = b'b';
                assert_ne!(of_name(&plain), of_name(&other), "{length} {place}");
            }
            let mut longer = plain.clone();
            longer.push(0);
            assert_ne!(of_name(&plain), of_name(&longer), "{length}");
        }
        assert_ne!(of_field(of_name(b"ab"), b"c"), of_field(of_name(b"a"), b"bc"));
    }
}
