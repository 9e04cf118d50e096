//! Tables that map a request's hash to an endpoint. All proxies map a hash to the same endpoint.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "positions are reduced to the table's size, which is above zero"
)]

use crate::hash::{hash, mix};

/// The number of points that an endpoint with the lowest weight has on the ring. More points give more even shares:
/// with 128 they differ by about 9 % (1 / sqrt(128)).
pub const POINTS_PER_ENDPOINT: u32 = 128;

/// The largest number of points on a ring: they take about 2 MB, and are enough for 1,000 endpoints with equal weights.
/// If there are more endpoints, each gets fewer points.
pub const MAX_RING_POINTS: usize = 128_000;

/// The number of entries in a Maglev table: a prime, a hundred times the usual number of a service's endpoints, in 32
/// KiB. Endpoints beyond this number get no entry.
pub const MAGLEV_ENTRIES: usize = 16_381;

/// Maps a request's hash to an endpoint.
#[derive(Debug, Default)]
pub(crate) enum Table {
    /// No table, because the algorithm needs none.
    #[default]
    None,
    /// Points in ascending order, each with the index of its endpoint, which owns the hashes from the previous point up
    /// to this one.
    Ring(Vec<(u64, u32)>),
    /// The index of the endpoint for each remainder of the hash.
    Maglev(Vec<u16>),
}

impl Table {
    /// Builds a ring from the endpoints' keys and weights.
    pub(crate) fn ring(endpoints: &[(u64, u32)]) -> Self {
        let least = endpoints.iter().map(|(_, weight)| *weight).min().unwrap_or(1).max(1);
        let points_of = |weight: u32, scale: u64| {
            u64::from(weight) * u64::from(POINTS_PER_ENDPOINT) / u64::from(least) / scale
        };
        let total: u64 = endpoints.iter().map(|(_, weight)| points_of(*weight, 1)).sum();
        // A power of two, so that adding or removing an endpoint seldom changes the points of the others.
        let scale = total.div_ceil(MAX_RING_POINTS as u64).max(1).next_power_of_two();
        let mut ring = Vec::new();
        for (at, (key, weight)) in (0..).zip(endpoints) {
            let points = points_of(*weight, scale).max(1);
            ring.extend((0..points).map(|point| (mix(*key, point), at)));
        }
        // The order of equal points depends on the endpoints' keys, and not on their order in the list.
        ring.sort_unstable_by_key(|(point, at)| (*point, endpoints[*at as usize].0));
        Self::Ring(ring)
    }

    /// Builds a Maglev table from the endpoints' keys and weights.
    pub(crate) fn maglev(endpoints: &[(u64, u32)]) -> Self {
        let endpoints = &endpoints[..endpoints.len().min(MAGLEV_ENTRIES)];
        let size = MAGLEV_ENTRIES as u64;
        let heaviest = endpoints.iter().map(|(_, weight)| *weight).max().unwrap_or(1).max(1);
        // The order in which endpoints claim entries must not depend on the order of the list.
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

    /// The endpoint for a hash. `None` if there is no table or no endpoint.
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

/// The order in which an endpoint claims entries: it begins at an offset and continues with constant steps. Since the
/// number of entries is prime, the steps reach every entry.
struct Walk {
    /// The next entry to claim.
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
