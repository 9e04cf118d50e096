use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Place(u32);

impl Keyed for Place {
    type Key = u32;
    fn key(&self) -> u32 {
        self.0
    }
}

fn balancer(count: u32) -> Balancer<Place> {
    Balancer::new((0..count).map(Place))
}

fn any(_: &Place) -> bool {
    false
}

#[test]
fn nothing_to_pick_from_is_said_at_once() {
    assert!(balancer(0).pick(any).is_none());
    assert!(balancer(3).pick(|_| true).is_none());
}

#[test]
fn a_failed_endpoint_is_left_out_until_it_answers() {
    let balancer = balancer(2);
    let bad = balancer.pick(any).unwrap();
    bad.failed();
    for _ in 0..100 {
        assert_ne!(balancer.pick(any).unwrap().endpoint().0, bad.endpoint().0);
    }
    let good = balancer.pick(any).unwrap();
    good.failed();
    assert!(balancer.pick(any).is_none(), "failfast when all are ejected");
    bad.answered(Duration::from_millis(1));
    assert_eq!(balancer.pick(any).unwrap().endpoint().0, bad.endpoint().0);
}

#[test]
fn load_counts_until_the_pick_is_dropped() {
    let balancer = balancer(4);
    let picks: Vec<_> = (0..40).map(|_| balancer.pick(any).unwrap()).collect();
    let mut loads = Vec::new();
    balancer.for_each(|_, state| loads.push(state.in_flight));
    assert_eq!(loads.iter().sum::<u32>(), 40);
    assert!(loads.iter().all(|load| (5..=15).contains(load)), "equals share: {loads:?}");
    drop(picks);
    balancer.for_each(|_, state| assert_eq!(state.in_flight, 0));
}

#[test]
fn the_slow_endpoint_gets_little() {
    let balancer = balancer(3);
    let mut slow = 0;
    for _ in 0..3000 {
        let pick = balancer.pick(any).unwrap();
        let is_slow = pick.endpoint().0 == 0;
        slow += u32::from(is_slow);
        pick.answered(Duration::from_millis(if is_slow { 20 } else { 1 }));
    }
    // Picked only until its first answer, and never beside a faster one after that.
    assert!(slow < 100, "{slow} of 3000");
}

#[test]
fn an_update_keeps_the_history_of_those_that_stay() {
    let balancer = balancer(3);
    let held = balancer.pick(|place| place.0 != 1).unwrap();
    held.answered(Duration::from_millis(77));
    balancer.update([Place(1), Place(9)]);
    let mut seen = Vec::new();
    balancer.for_each(|place, state| seen.push((place.0, state.in_flight)));
    assert_eq!(seen, [(1, 1), (9, 0)]);
}

proptest! {
    #[test]
    fn a_pick_is_always_a_member_that_may_be_used(
        count in 1u32..20,
        excluded in proptest::collection::hash_set(0u32..20, 0..20),
        failed in proptest::collection::vec(0u32..20, 0..20),
    ) {
        let balancer = balancer(count);
        let mut out: HashSet<u32> = excluded.iter().copied().collect();
        for id in failed {
            if let Some(pick) = balancer.pick(|place| place.0 != id) {
                pick.failed();
                out.insert(id);
            }
        }
        let left = (0..count).filter(|id| !out.contains(id)).count();
        for _ in 0..20 {
            match balancer.pick(|place| excluded.contains(&place.0)) {
                Some(pick) => {
                    let id = pick.endpoint().0;
                    prop_assert!(id < count && !out.contains(&id));
                }
                None => prop_assert_eq!(left, 0),
            }
        }
    }
}
