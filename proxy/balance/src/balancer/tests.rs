//! Tests properties of the balancer's choices.

mod ejection;
mod shares;
mod simulation;

use proptest::prelude::*;

use super::*;
use crate::{FIRST_EJECTION, LAST_RESORT};

fn none<T>(_: &T) -> bool {
    false
}

fn counts(balancer: &mut Balancer<usize>, n: usize, picks: u32, now: Instant) -> Vec<u32> {
    let mut counts = vec![0; n];
    for _ in 0..picks {
        counts[*balancer.pick(now, none).unwrap().endpoint()] += 1;
    }
    counts
}

#[test]
fn equals_get_equal_shares() {
    let now = Instant::now();
    for n in [2, 3, 10] {
        let mut balancer = Balancer::seeded(n as u64);
        balancer.update(0..n);
        let share = 10_000;
        let counts = counts(&mut balancer, n, share * n as u32, now);
        let fair = share * 95 / 100..share * 105 / 100;
        assert!(counts.iter().all(|c| fair.contains(c)), "{counts:?}");
    }
}

#[test]
fn what_is_in_flight_is_spread() {
    let now = Instant::now();
    let mut balancer = Balancer::seeded(3);
    balancer.update(0..4_usize);
    let held: Vec<_> = (0..400).map(|_| balancer.pick(now, none).unwrap()).collect();
    let in_flight: Vec<u32> = balancer.endpoints().map(|(_, n)| n).collect();
    assert_eq!(in_flight.iter().sum::<u32>(), 400);
    assert!(in_flight.iter().all(|n| (95..=105).contains(n)), "{in_flight:?}");
    drop(held);
    assert!(balancer.endpoints().all(|(_, n)| n == 0));
}

#[test]
fn the_faster_is_preferred_and_the_slow_one_gets_another_chance() {
    let mut now = Instant::now();
    let mut balancer = Balancer::seeded(5);
    balancer.update(0..3_usize);
    let mut slow = 0;
    for _ in 0..10_000 {
        let pick = balancer.pick(now, none).unwrap();
        let latency = if *pick.endpoint() == 0 {
            slow += 1;
            Duration::from_millis(50)
        } else {
            Duration::from_millis(1)
        };
        now += Duration::from_micros(500);
        pick.observe(latency, now);
    }
    assert!((1..100).contains(&slow), "{slow}");
    now += Duration::from_secs(120);
    let recovered = counts(&mut balancer, 3, 3_000, now)[0];
    assert!(recovered > 800, "{recovered}");
}

#[test]
fn a_new_endpoint_takes_its_share_at_once() {
    let now = Instant::now();
    let mut balancer = Balancer::seeded(6);
    balancer.update(0..2_usize);
    for _ in 0..100 {
        let pick = balancer.pick(now, none).unwrap();
        pick.observe(Duration::from_micros(200), now);
    }
    balancer.update(0..3);
    let counts = counts(&mut balancer, 3, 3_000, now);
    assert!((800..1_200).contains(&counts[2]), "{counts:?}");
}

#[test]
fn a_dead_endpoint_is_tried_last_and_rarely() {
    let mut now = Instant::now();
    let mut balancer = Balancer::seeded(7);
    balancer.update(0..2_usize);
    let mut failures = 0;
    for _ in 0..60_000 {
        let pick = balancer.pick(now, none).unwrap();
        if *pick.endpoint() == 0 {
            failures += 1;
            pick.connect_failed(now);
        } else {
            pick.connected();
            pick.observe(Duration::from_millis(1), now);
        }
        now += Duration::from_millis(1);
    }
    // The waits are 0.1 + 0.2 + ... + 6.4 s, and then there is one attempt every ten seconds.
    assert!((8..=13).contains(&failures), "{failures}");
}

#[test]
fn with_none_left_it_refuses_at_once_and_notices_a_recovery_soon() {
    let mut now = Instant::now();
    let mut balancer = Balancer::seeded(8);
    assert_eq!(balancer.pick(now, none).unwrap_err(), NoPick::Empty);
    balancer.update(0..2_usize);
    assert_eq!(balancer.pick(now, |_| true).unwrap_err(), NoPick::Excluded);
    for _ in 0..12 {
        while let Ok(pick) = balancer.pick(now, none) {
            pick.connect_failed(now);
        }
        assert_eq!(balancer.pick(now, none).unwrap_err(), NoPick::Failfast);
        now += LAST_RESORT;
    }
    assert_eq!(balancer.ejected(now), 2);
    let pick = balancer.pick(now, none).unwrap();
    pick.connected();
    let endpoint = *pick.endpoint();
    for _ in 0..100 {
        assert_eq!(*balancer.pick(now, none).unwrap().endpoint(), endpoint);
    }
}

#[test]
fn a_retry_goes_elsewhere() {
    let now = Instant::now();
    let mut balancer = Balancer::seeded(9);
    balancer.update(0..3_usize);
    for _ in 0..1_000 {
        let first = balancer.pick(now, none).unwrap();
        let second = balancer.pick(now, |e| e == first.endpoint()).unwrap();
        assert_ne!(first.endpoint(), second.endpoint());
    }
}

#[test]
fn survivors_keep_their_state_over_an_update() {
    let now = Instant::now();
    let mut balancer = Balancer::seeded(10);
    balancer.update(0..2_usize);
    let held = balancer.pick(now, |e| *e != 1).unwrap();
    held.connect_failed(now);
    balancer.update([1, 2, 2, 1]);
    assert_eq!((balancer.len(), balancer.ejected(now)), (2, 1));
    let in_flight: Vec<_> = balancer.endpoints().collect();
    assert!(in_flight.contains(&(&1, 1)) && in_flight.contains(&(&2, 0)));
    balancer.update([]);
    assert!(balancer.is_empty());
    assert_eq!(*held.endpoint(), 1);
}

#[derive(Clone, Debug)]
enum Step {
    Update(Vec<u8>),
    Pick(Option<u8>),
    Drop(usize),
    Fail(usize),
    Connected(usize),
    Observe(usize, u32),
    Wait(u32),
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        proptest::collection::vec(0..8_u8, 0..8).prop_map(Step::Update),
        proptest::option::of(0..8_u8).prop_map(Step::Pick),
        any::<usize>().prop_map(Step::Drop),
        any::<usize>().prop_map(Step::Fail),
        any::<usize>().prop_map(Step::Connected),
        (any::<usize>(), any::<u32>()).prop_map(|(at, us)| Step::Observe(at, us)),
        (0..20_000_u32).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn every_pick_is_valid_and_nothing_leaks(
        seed in any::<u64>(),
        steps in proptest::collection::vec(steps(), 0..80),
    ) {
        let mut now = Instant::now();
        let mut balancer = Balancer::seeded(seed);
        let mut current: Vec<u8> = Vec::new();
        let mut held: Vec<Pick<u8>> = Vec::new();
        for step in steps {
            let at = |at: usize| (!held.is_empty()).then(|| &held[at % held.len()]);
            match step {
                Step::Update(endpoints) => {
                    balancer.update(endpoints.iter().copied());
                    current = endpoints;
                }
                Step::Pick(excluded) => match balancer.pick(now, |e| Some(*e) == excluded) {
                    Ok(pick) => {
                        prop_assert!(current.contains(pick.endpoint()));
                        prop_assert_ne!(Some(*pick.endpoint()), excluded);
                        held.push(pick);
                    }
                    Err(NoPick::Empty) => prop_assert!(current.is_empty()),
                    Err(NoPick::Excluded) => {
                        prop_assert!(current.iter().all(|e| Some(*e) == excluded));
                    }
                    Err(NoPick::Failfast) => prop_assert!(balancer.ejected(now) > 0),
                    Err(NoPick::Full) => prop_assert!(false, "there is no bound"),
                },
                Step::Drop(n) => {
                    if !held.is_empty() {
                        held.swap_remove(n % held.len());
                    }
                }
                Step::Fail(n) => if let Some(pick) = at(n) { pick.connect_failed(now) },
                Step::Connected(n) => if let Some(pick) = at(n) { pick.connected() },
                Step::Observe(n, us) => if let Some(pick) = at(n) {
                    pick.observe(Duration::from_micros(us.into()), now);
                },
                Step::Wait(ms) => now += Duration::from_millis(ms.into()),
            }
            let listed: u32 = balancer.endpoints().map(|(_, n)| n).sum();
            prop_assert!(listed as usize <= held.len());
        }
        held.clear();
        prop_assert!(balancer.endpoints().all(|(_, n)| n == 0));
        prop_assert!(FIRST_EJECTION <= LAST_RESORT);
    }
}
