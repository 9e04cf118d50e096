//! Tables that turn the hash of a request into an endpoint, the same one in every proxy.

use crate::hash::{hash, mix};

/// Points that an endpoint of the least weight has on a ring. More are more even: with 128 the
/// shares differ by about 9 % (1 / sqrt(128)).
pub const POINTS_PER_ENDPOINT: u32 = 128;

/// Most points on a ring: 1.5 MiB, of 1,000 endpoints with equal weights. With more of them each
/// gets fewer points.
pub const MAX_RING_POINTS: usize = 128_000;

/// Places in a Maglev table: a prime, a hundred times what services usually have of endpoints, in
/// 32 KiB. What is beyond as many endpoints has no place.
pub const MAGLEV_ENTRIES: usize = 16_381;

/// What a request's hash is looked up in.
#[derive(Debug, Default)]
pub(crate) enum Table {
    /// The algorithm needs none.
    #[default]
    None,
    /// Points by ascending hash, each with the endpoint that the hashes up to it belong to.
    Ring(Vec<(u64, u32)>),
    /// An endpoint for each remainder.
    Maglev(Vec<u16>),
}

impl Table {
    /// A ring; `endpoints` are the keys and weights.
    pub(crate) fn ring(endpoints: &[(u64, u32)]) -> Self {
        let least = endpoints.iter().map(|(_, weight)| *weight).min().unwrap_or(1).max(1);
        let points_of = |weight: u32, scale: u64| {
            u64::from(weight) * u64::from(POINTS_PER_ENDPOINT) / u64::from(least) / scale
        };
        let total: u64 = endpoints.iter().map(|(_, weight)| points_of(*weight, 1)).sum();
        // A power of two, so that one endpoint more or less seldom changes the others' points.
        let scale = total.div_ceil(MAX_RING_POINTS as u64).max(1).next_power_of_two();
        let mut ring = Vec::new();
        for (at, (key, weight)) in (0..).zip(endpoints) {
            let points = points_of(*weight, scale).max(1);
            ring.extend((0..points).map(|point| (mix(*key, point), at)));
        }
        // Equal points are decided by the endpoint's own key, not by its place in the list.
        ring.sort_unstable_by_key(|(point, at)| (*point, endpoints[*at as usize].0));
        Self::Ring(ring)
    }

    /// A Maglev table; `endpoints` are the keys and weights.
    pub(crate) fn maglev(endpoints: &[(u64, u32)]) -> Self {
        let endpoints = &endpoints[..endpoints.len().min(MAGLEV_ENTRIES)];
        let size = MAGLEV_ENTRIES as u64;
        let heaviest = endpoints.iter().map(|(_, weight)| *weight).max().unwrap_or(1).max(1);
        // The order in which turns are taken must not depend on the order in the list.
        let mut order: Vec<usize> = (0..endpoints.len()).collect();
        order.sort_unstable_by_key(|at| endpoints[*at].0);
        let mut walks: Vec<Walk> = endpoints.iter().map(|(key, _)| Walk::new(*key)).collect();
        let mut turns = vec![0_u64; endpoints.len()];
        let mut table = vec![None::<u16>; MAGLEV_ENTRIES];
        let mut filled = 0;
        while filled < MAGLEV_ENTRIES && !endpoints.is_empty() {
            for &at in &order {
                turns[at] += u64::from(endpoints[at].1.max(1));
                if turns[at] < u64::from(heaviest) {
                    continue;
                }
                turns[at] -= u64::from(heaviest);
                let mut place = walks[at].next(size);
                while table[place].is_some() {
                    place = walks[at].next(size);
                }
                table[place] = u16::try_from(at).ok();
                filled += 1;
                if filled == MAGLEV_ENTRIES {
                    break;
                }
            }
        }
        Self::Maglev(table.into_iter().flatten().collect())
    }

    /// The endpoint for a hash; none where there is no table or no endpoint.
    pub(crate) fn look_up(&self, hash: u64) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Ring(ring) => {
                let after = ring.partition_point(|(point, _)| *point < hash);
                let (_, at) = ring.get(after).or(ring.first())?;
                Some(*at as usize)
            }
            Self::Maglev(table) => {
                let place = hash.checked_rem(table.len() as u64)?;
                table.get(usize::try_from(place).ok()?).copied().map(usize::from)
            }
        }
    }
}

/// The order in which an endpoint wants the places: an offset, then steps that a prime size makes
/// reach all of them.
struct Walk {
    at: u64,
    step: u64,
}

impl Walk {
    fn new(key: u64) -> Self {
        let size = MAGLEV_ENTRIES as u64;
        let step = hash(&key.to_le_bytes()) % (size - 1) + 1;
        Self { at: mix(key, 1) % size, step }
    }

    fn next(&mut self, size: u64) -> usize {
        let place = self.at;
        self.at = (self.at + self.step) % size;
        usize::try_from(place).expect("below the size of the table")
    }
}

#[cfg(test)]
mod tests;
