//! Tests how even the tables are, and which requests move to another endpoint when an endpoint leaves.

use proptest::prelude::*;

use super::*;

const REQUESTS: u64 = 20_000;

fn keys(n: u32, salt: u64) -> Vec<(u64, u32)> {
    (0..u64::from(n)).map(|at| (mix(at, salt), 1)).collect()
}

/// For each of many requests, the key of its endpoint.
fn owners(table: &Table, endpoints: &[(u64, u32)]) -> Vec<u64> {
    (0..REQUESTS).map(|r| endpoints[table.look_up(mix(r, 77)).unwrap()].0).collect()
}

fn without(endpoints: &[(u64, u32)], at: usize) -> Vec<(u64, u32)> {
    let mut fewer = endpoints.to_vec();
    fewer.remove(at);
    fewer
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// When one of n endpoints leaves, only its own requests move: about 1/n of all, depending on how even the ring is.
    #[test]
    fn a_ring_moves_only_what_the_leaving_endpoint_had(
        n in 2_u32..40, salt in any::<u64>(), leaves in any::<usize>(),
    ) {
        let endpoints = keys(n, salt);
        let at = leaves % endpoints.len();
        let fewer = without(&endpoints, at);
        let before = owners(&Table::ring(&endpoints), &endpoints);
        let after = owners(&Table::ring(&fewer), &fewer);
        let moved = before.iter().zip(&after).filter(|(b, a)| a != b).count();
        let had = before.iter().filter(|owner| **owner == endpoints[at].0).count();
        prop_assert_eq!(moved, had);
        let share = REQUESTS as usize / n as usize;
        prop_assert!(moved <= share * 3 / 2, "{} of {} moved, 1/n is {}", moved, REQUESTS, share);
    }

    /// When an endpoint leaves, its requests move in a Maglev table, and only few of the others.
    #[test]
    fn a_maglev_table_moves_little_more_than_one_share(
        n in 2_u32..40, salt in any::<u64>(), leaves in any::<usize>(),
    ) {
        let endpoints = keys(n, salt);
        let at = leaves % endpoints.len();
        let fewer = without(&endpoints, at);
        let before = owners(&Table::maglev(&endpoints), &endpoints);
        let after = owners(&Table::maglev(&fewer), &fewer);
        let others = before.iter().zip(&after);
        let others = others.filter(|(b, a)| a != b && **b != endpoints[at].0).count();
        let had = before.iter().filter(|owner| **owner == endpoints[at].0).count();
        let share = REQUESTS as usize / n as usize;
        prop_assert!(had <= share * 11 / 10 + 50, "{} of {}", had, share);
        prop_assert!(others <= REQUESTS as usize / 20, "{} of the others' moved", others);
    }

    /// Proxies that received the endpoints in different orders have the same table.
    #[test]
    fn the_order_of_the_list_does_not_matter(n in 1_u32..30, salt in any::<u64>()) {
        let endpoints = keys(n, salt);
        let reversed: Vec<_> = endpoints.iter().rev().copied().collect();
        for build in [Table::ring, Table::maglev] {
            let (one, other) = (build(&endpoints), build(&reversed));
            prop_assert_eq!(owners(&one, &endpoints), owners(&other, &reversed));
        }
    }
}

#[test]
fn shares_follow_weights() {
    let endpoints = [(mix(1, 5), 1), (mix(2, 5), 2), (mix(3, 5), 5)];
    for (build, tolerance) in
        [(Table::ring as fn(&[(u64, u32)]) -> Table, 0.25), (Table::maglev, 0.05)]
    {
        let owners = owners(&build(&endpoints), &endpoints);
        for (key, weight) in endpoints {
            let had = owners.iter().filter(|owner| **owner == key).count() as f64;
            let fair = REQUESTS as f64 * f64::from(weight) / 8.0;
            assert!((had / fair - 1.0).abs() < tolerance, "weight {weight}: {had} of {fair}");
        }
    }
}

#[test]
fn a_ring_keeps_its_bound() {
    let Table::Ring(points) = Table::ring(&keys(5_000, 1)) else { panic!("no ring") };
    assert!((5_000..=MAX_RING_POINTS).contains(&points.len()), "{}", points.len());
}

#[test]
fn with_no_endpoint_there_is_none() {
    for table in [Table::None, Table::ring(&[]), Table::maglev(&[])] {
        assert_eq!(table.look_up(7), None);
    }
}
