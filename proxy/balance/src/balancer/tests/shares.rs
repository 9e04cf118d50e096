//! Tests each endpoint's share of the picks: by weight, hash, session and nearness, and over time.

use super::*;
use crate::{hash, mix};

const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::PeakEwma,
    Algorithm::LeastRequest,
    Algorithm::RoundRobin,
    Algorithm::Random,
    Algorithm::RingHash,
    Algorithm::Maglev,
];

fn candidate(endpoint: usize, weight: u32, nearness: Nearness) -> Candidate<usize> {
    Candidate { endpoint, key: hash(&endpoint.to_le_bytes()), weight, nearness }
}

fn plain(endpoint: usize) -> Candidate<usize> {
    candidate(endpoint, 1, Nearness::Elsewhere)
}

fn balancer(
    settings: Settings,
    candidates: impl IntoIterator<Item = Candidate<usize>>,
) -> Balancer<usize> {
    let mut balancer = Balancer::seeded(21);
    balancer.configure(settings);
    balancer.update_with(Instant::now(), candidates);
    balancer
}

fn of(algorithm: Algorithm) -> Settings {
    Settings { algorithm, ..Settings::default() }
}

/// In 100,000 picks, each share differs from the endpoint's weight by at most five standard deviations. With hash
/// tables it may differ more, because the tables themselves are not exactly even.
#[test]
fn picks_follow_weights_within_statistical_bounds() {
    let (now, weights, picks) = (Instant::now(), [1_u32, 2, 5, 8], 100_000_u32);
    for algorithm in ALGORITHMS {
        let candidates = weights.iter().enumerate();
        let candidates = candidates.map(|(at, w)| candidate(at, *w, Nearness::Elsewhere));
        let mut balancer = balancer(of(algorithm), candidates);
        let counts = counts(&mut balancer, 4, picks, now);
        for (weight, count) in weights.iter().zip(&counts) {
            let share = f64::from(*weight) / 16.0;
            let mean = f64::from(picks) * share;
            let mut bound = 5.0 * (mean * (1.0 - share)).sqrt();
            if algorithm == Algorithm::RingHash {
                // The part of the ring that an endpoint owns depends on its points, which are
                // random.
                bound += mean * 0.25;
            } else if algorithm == Algorithm::Maglev {
                bound += mean * 0.01;
            }
            let off = (f64::from(*count) - mean).abs();
            assert!(off < bound, "{algorithm:?}: {counts:?} of {picks}");
        }
    }
}

#[test]
fn turns_are_exact() {
    let now = Instant::now();
    let mut balancer = balancer(of(Algorithm::RoundRobin), (0..5).map(plain));
    assert_eq!(counts(&mut balancer, 5, 500, now), [100; 5]);
    let weighted = [(0, 1), (1, 3)].map(|(at, w)| candidate(at, w, Nearness::Elsewhere));
    balancer.update_with(now, weighted);
    assert_eq!(counts(&mut balancer, 2, 400, now), [100, 300]);
}

#[test]
fn a_hash_stays_with_its_endpoint_and_moves_only_with_it() {
    let now = Instant::now();
    for algorithm in [Algorithm::RingHash, Algorithm::Maglev] {
        let mut balancer = balancer(of(algorithm), (0..10).map(plain));
        let wanted = |request: u64| Affinity { hash: Some(mix(request, 3)), session: None };
        let mut before = Vec::new();
        for request in 0..1_000 {
            let endpoint = *balancer.pick_for(now, wanted(request), none).unwrap().endpoint();
            for _ in 0..3 {
                let again = balancer.pick_for(now, wanted(request), none).unwrap();
                assert_eq!(*again.endpoint(), endpoint);
            }
            before.push(endpoint);
        }
        // The requests of an endpoint that cannot be connected to go to the others, and the same request always goes to
        // the same endpoint.
        let lost = balancer.pick(now, |endpoint| *endpoint != 4).unwrap();
        lost.connect_failed(now);
        let mut taken_over = [0_u32; 10];
        for (request, before) in (0..).zip(&before) {
            let endpoint = *balancer.pick_for(now, wanted(request), none).unwrap().endpoint();
            assert!(endpoint == *before || *before == 4);
            taken_over[endpoint] += u32::from(*before == 4);
        }
        assert_eq!(taken_over[4], 0);
        assert!(taken_over.iter().filter(|n| **n > 0).count() >= 8, "{taken_over:?}");
    }
}

#[test]
fn without_a_hash_all_take_part() {
    let mut balancer = balancer(of(Algorithm::Maglev), (0..4).map(plain));
    let counts = counts(&mut balancer, 4, 4_000, Instant::now());
    assert!(counts.iter().all(|n| (850..1_150).contains(n)), "{counts:?}");
}

#[test]
fn a_session_stays_while_its_endpoint_is_good() {
    let now = Instant::now();
    let mut balancer = balancer(Settings::default(), (0..5).map(plain));
    let first = balancer.pick(now, none).unwrap();
    let session = Affinity { session: Some(first.key()), hash: None };
    for _ in 0..200 {
        let again = balancer.pick_for(now, session, none).unwrap();
        assert_eq!(again.endpoint(), first.endpoint());
    }
    first.connect_failed(now);
    let other = balancer.pick_for(now, session, none).unwrap();
    assert_ne!(other.endpoint(), first.endpoint());
    // A cookie with an unknown key is ignored.
    let unknown = Affinity { session: Some(1), hash: None };
    assert!(balancer.pick_for(now, unknown, none).is_ok());
}

#[test]
fn a_new_endpoint_grows_to_its_share() {
    for algorithm in [Algorithm::Random, Algorithm::RoundRobin, Algorithm::LeastRequest] {
        let slow_start = Duration::from_secs(100);
        let mut balancer = balancer(Settings { slow_start, ..of(algorithm) }, (0..3).map(plain));
        let start = Instant::now();
        // Endpoints of the first set get their full share at once.
        let first = counts(&mut balancer, 3, 3_000, start);
        assert!(first.iter().all(|n| (850..1_150).contains(n)), "{first:?}");
        balancer.update_with(start, (0..4).map(plain));
        let mut before = 0;
        for seconds in [0, 30, 60, 100] {
            let now = start + Duration::from_secs(seconds);
            let share = counts(&mut balancer, 4, 10_000, now)[3];
            assert!(share > before, "{algorithm:?}: {share} after {before}");
            before = share;
            match seconds {
                0 => assert!((100..700).contains(&share), "{algorithm:?}: {share} at first"),
                100 => assert!((2_300..2_700).contains(&share), "{algorithm:?}: {share} at last"),
                _ => {}
            }
        }
    }
}

#[test]
fn near_endpoints_come_first_and_others_help_when_these_are_busy() {
    let now = Instant::now();
    let of = |locality| Settings { locality, ..Settings::default() };
    let nearness = [Nearness::Elsewhere, Nearness::Zone, Nearness::Node, Nearness::Zone];
    let candidates = || nearness.iter().enumerate().map(|(at, near)| candidate(at, 1, *near));

    let mut any = balancer(of(Locality::Any), candidates());
    assert!(counts(&mut any, 4, 4_000, now).iter().all(|n| *n > 800));
    let mut zone = balancer(of(Locality::SameZone { overflow: 4 }), candidates());
    let shares = counts(&mut zone, 4, 3_000, now);
    assert_eq!(shares[0], 0, "{shares:?}");
    assert!(shares[1..].iter().all(|n| *n > 800), "{shares:?}");
    let mut node = balancer(of(Locality::SameNode { overflow: 4 }), candidates());
    assert_eq!(counts(&mut node, 4, 100, now), [0, 0, 100, 0]);

    // First four requests in flight on the node, then twelve in the zone including those four, then all endpoints.
    let held: Vec<_> = (0..24).map(|_| node.pick(now, none).unwrap()).collect();
    let order: Vec<usize> = held.iter().map(|pick| *pick.endpoint()).collect();
    assert_eq!(order[..4], [2; 4]);
    assert!(!order[..12].contains(&0), "{order:?}");
    assert!(order[12..].contains(&0), "{order:?}");
    drop(held);
    assert_eq!(counts(&mut node, 4, 100, now), [0, 0, 100, 0]);

    // If the near endpoint cannot be connected to, the next nearest endpoints serve.
    node.pick(now, |endpoint| *endpoint != 2).unwrap().connect_failed(now);
    let shares = counts(&mut node, 4, 100, now);
    assert_eq!((shares[0], shares[2]), (0, 0), "{shares:?}");
}

#[test]
fn an_endpoint_takes_no_more_requests_than_it_may() {
    let now = Instant::now();
    for algorithm in ALGORITHMS {
        let settings = Settings { endpoint_requests: 3, ..of(algorithm) };
        let mut balancer = balancer(settings, (0..4).map(plain));
        let mut held: Vec<_> = (0..12).map(|_| balancer.pick(now, none).unwrap()).collect();
        assert!(balancer.endpoints().all(|(_, n)| n == 3));
        assert_eq!(balancer.pick(now, none).unwrap_err(), NoPick::Full, "{algorithm:?}");
        held.pop();
        assert!(balancer.pick(now, none).is_ok());
    }
}
