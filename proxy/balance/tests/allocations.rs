//! Checks that a pick allocates nothing, with any algorithm.

use std::time::{Duration, Instant};

use leno_balance::{
    Affinity, Algorithm, Balancer, Candidate, Ejection, FIRST_EJECTION, LAST_RESORT, Nearness,
    NoPick, Settings, SuccessRate, hash,
};

#[path = "../../../testkit/counting.rs"]
mod counting;

use counting::ALLOCATIONS;

fn allocated<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = ALLOCATIONS.get();
    let done = work();
    (done, ALLOCATIONS.get() - before)
}

#[test]
fn a_pick_allocates_nothing() {
    let now = Instant::now();
    for endpoints in [1, 2, 50] {
        let mut balancer = Balancer::new();
        balancer.update(0..endpoints);
        for _ in 0..100 {
            let (pick, allocations) = allocated(|| balancer.pick(now, |_| false).unwrap());
            assert_eq!(allocations, 0, "{endpoints} endpoints");
            drop(pick);
        }
        // A retry excludes one endpoint. If there is only one endpoint, none is left.
        let (again, allocations) = allocated(|| balancer.pick(now, |endpoint| *endpoint == 0));
        assert_eq!(again.is_err(), endpoints == 1);
        assert_eq!(allocations, 0, "again, {endpoints} endpoints");
    }
}

#[test]
fn a_pick_while_endpoints_are_ejected_allocates_nothing() {
    let mut now = Instant::now();
    let mut balancer = Balancer::new();
    balancer.update(0..50);
    for _ in 0..50 {
        let (pick, allocations) = allocated(|| balancer.pick(now, |_| false).unwrap());
        assert_eq!(allocations, 0, "{} ejected", balancer.ejected(now));
        pick.connect_failed(now);
    }
    let (refused, allocations) = allocated(|| balancer.pick(now, |_| false).unwrap_err());
    assert_eq!((refused, allocations), (NoPick::Failfast, 0));
    now += FIRST_EJECTION.max(LAST_RESORT);
    let (_pick, allocations) = allocated(|| balancer.pick(now, |_| false).unwrap());
    assert_eq!(allocations, 0);
}

#[test]
fn no_algorithm_allocates() {
    let now = Instant::now();
    for algorithm in [
        Algorithm::LeastRequest,
        Algorithm::RoundRobin,
        Algorithm::Random,
        Algorithm::RingHash,
        Algorithm::Maglev,
    ] {
        let mut balancer = Balancer::new();
        let rate = Some(SuccessRate::default());
        let ejection =
            Ejection { consecutive_failures: Some(3), success_rate: rate, ..Ejection::default() };
        balancer.configure(Settings { algorithm, ejection, ..Settings::default() });
        let candidate = |endpoint: u32| Candidate {
            endpoint,
            key: hash(&endpoint.to_le_bytes()),
            weight: 1 + endpoint % 3,
            nearness: Nearness::Elsewhere,
        };
        balancer.update_with(now, (0..50).map(candidate));
        for number in 0..500_u64 {
            let wanted = Affinity { hash: (number % 2 == 0).then_some(number), session: None };
            let at = now + Duration::from_millis(number * 100);
            let (pick, allocations) =
                allocated(|| balancer.pick_for(at, wanted, |_| false).unwrap());
            let ((), reported) = allocated(|| pick.failed(at));
            assert_eq!((allocations, reported), (0, 0), "{algorithm:?}");
        }
    }
}
