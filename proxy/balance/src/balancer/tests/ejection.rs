//! Tests ejections for failed requests: which endpoints are ejected, for how long, and that at least one endpoint
//! always remains.

use super::*;
use crate::SuccessRate;

fn balancer(n: usize, ejection: Ejection) -> Balancer<usize> {
    let mut balancer = Balancer::seeded(31);
    let algorithm = Algorithm::Random;
    balancer.configure(Settings { ejection, algorithm, ..Settings::default() });
    balancer.update(0..n);
    balancer
}

fn consecutive(failures: u32) -> Ejection {
    let consecutive_failures = (failures > 0).then_some(failures);
    Ejection { consecutive_failures, max_percent: 100, panic_percent: 0, ..Ejection::default() }
}

/// Picks among `n` endpoints. `fails` decides which requests fail. Returns how often each endpoint was picked.
fn run(
    balancer: &mut Balancer<usize>,
    (n, picks): (usize, u32),
    now: &mut Instant,
    mut fails: impl FnMut(usize, u32) -> bool,
) -> Vec<u32> {
    let mut counts = vec![0; n];
    for number in 0..picks {
        let pick = balancer.pick(*now, none).unwrap();
        let endpoint = *pick.endpoint();
        counts[endpoint] += 1;
        *now += Duration::from_millis(1);
        if fails(endpoint, number) { pick.failed(*now) } else { pick.succeeded() }
    }
    counts
}

#[test]
fn failures_in_a_row_eject_and_one_success_between_does_not() {
    let mut now = Instant::now();
    let mut all_failing = balancer(3, consecutive(5));
    let counts = run(&mut all_failing, (3, 900), &mut now, |endpoint, _| endpoint == 0);
    assert_eq!(counts[0], 5);
    assert_eq!((all_failing.ejected(now), all_failing.ejections()), (1, 1));
    let mut half = balancer(3, consecutive(5));
    let mut turn = 0;
    let counts = run(&mut half, (3, 900), &mut now, |endpoint, _| {
        turn += u32::from(endpoint == 0);
        endpoint == 0 && turn % 5 > 0
    });
    assert!(counts[0] > 200, "{counts:?}");
    assert_eq!(half.ejections(), 0);
}

#[test]
fn one_probe_ends_an_ejection_or_doubles_it() {
    let ejection = Ejection { base: Duration::from_secs(10), ..consecutive(2) };
    let mut balancer = balancer(3, ejection);
    let mut now = Instant::now();
    let dead = |endpoint: usize, _| endpoint == 0;
    assert_eq!(run(&mut balancer, (3, 300), &mut now, dead)[0], 2);
    now += Duration::from_secs(10);
    // There is one probe, and it fails.
    assert_eq!(run(&mut balancer, (3, 300), &mut now, dead)[0], 1);
    now += Duration::from_secs(11);
    assert_eq!(run(&mut balancer, (3, 300), &mut now, dead)[0], 0, "it lasts twice as long");
    now += Duration::from_secs(9);
    // While a probe is in flight, the endpoint gets no other request.
    let probe = loop {
        let pick = balancer.pick(now, none).unwrap();
        if *pick.endpoint() == 0 {
            break pick;
        }
    };
    let counts = run(&mut balancer, (3, 300), &mut now, |_, _| false);
    assert_eq!(counts[0], 0);
    probe.succeeded();
    drop(probe);
    let counts = run(&mut balancer, (3, 300), &mut now, |_, _| false);
    assert!(counts[0] > 60, "{counts:?}");
    assert_eq!(balancer.ejections(), 2);
}

#[test]
fn what_was_under_way_says_nothing_about_an_ejection() {
    let mut balancer = balancer(2, consecutive(1));
    let now = Instant::now();
    let on_first = |balancer: &mut Balancer<usize>| balancer.pick(now, |e| *e != 0).unwrap();
    let (one, two, three) =
        (on_first(&mut balancer), on_first(&mut balancer), on_first(&mut balancer));
    one.failed(now);
    two.failed(now);
    three.succeeded();
    assert_eq!((balancer.ejected(now), balancer.ejections()), (1, 1));
}

#[test]
fn the_share_of_the_ejected_is_bounded_and_a_panic_uses_all() {
    let mut now = Instant::now();
    let bounded = Ejection { max_percent: 30, ..consecutive(1) };
    let mut ten = balancer(10, bounded);
    run(&mut ten, (10, 2_000), &mut now, |endpoint, _| endpoint < 8);
    assert_eq!(ten.ejected(now), 3);

    let panicking = Ejection { panic_percent: 50, ..consecutive(1) };
    let mut ten = balancer(10, panicking);
    let counts = run(&mut ten, (10, 5_000), &mut now, |endpoint, _| endpoint < 6);
    // Four of ten endpoints are left. That is fewer than half, so the ejected ones serve as well.
    assert_eq!(ten.ejected(now), 6);
    assert!(counts.iter().all(|n| *n > 400), "{counts:?}");
}

/// One endpoint fails about half of its requests. Failures in a row alone do not eject here.
#[test]
fn a_success_rate_below_the_others_ejects() {
    for n in [3_usize, 10] {
        let rate = SuccessRate { interval: Duration::from_secs(1), ..SuccessRate::default() };
        let ejection = Ejection { success_rate: Some(rate), ..consecutive(0) };
        let mut balancer = balancer(n, ejection);
        let mut now = Instant::now();
        let fails = |endpoint: usize, number: u32| endpoint == 0 && number.is_multiple_of(2);
        let first = run(&mut balancer, (n, 1_000), &mut now, fails)[0];
        assert!(first > 50, "of {n}: {first}");
        run(&mut balancer, (n, 50), &mut now, fails);
        assert_eq!((balancer.ejected(now), balancer.ejections()), (1, 1), "of {n}");
        // Endpoints with equal rates are not ejected, whatever the rate is.
        let mut equal = self::balancer(n, ejection);
        run(&mut equal, (n, 20_000), &mut now, |_, number| number.is_multiple_of(2));
        assert_eq!(equal.ejections(), 0, "of {n}");
    }
}

#[test]
fn too_few_requests_are_no_reason() {
    let rate = SuccessRate { minimum_requests: 1_000, ..SuccessRate::default() };
    let mut balancer = balancer(3, Ejection { success_rate: Some(rate), ..consecutive(0) });
    let mut now = Instant::now();
    run(&mut balancer, (3, 50_000), &mut now, |endpoint, _| endpoint == 0);
    assert!(balancer.ejections() > 0, "10 s at 333 requests/s are enough");
    let rate = SuccessRate { minimum_requests: 10_000, ..rate };
    let mut balancer = self::balancer(3, Ejection { success_rate: Some(rate), ..consecutive(0) });
    run(&mut balancer, (3, 50_000), &mut now, |endpoint, _| endpoint == 0);
    assert_eq!(balancer.ejections(), 0);
}

proptest! {
    /// Whichever requests fail, the balancer can always pick some endpoint that accepts connections.
    #[test]
    fn ejection_always_leaves_an_endpoint(
        seed in any::<u64>(),
        n in 1_usize..12,
        max_percent in 0_u8..=100,
        panic_percent in 0_u8..=100,
        fates in proptest::collection::vec((any::<bool>(), 0..3_000_u32, any::<bool>()), 0..400),
    ) {
        let mut balancer = Balancer::seeded(seed);
        let ejection = Ejection { max_percent, panic_percent, ..consecutive(1) };
        balancer.configure(Settings { ejection, ..Settings::default() });
        balancer.update(0..n);
        let (mut now, mut held) = (Instant::now(), Vec::new());
        for (fails, wait, hold) in fates {
            let pick = balancer.pick(now, none).expect("somebody is left");
            now += Duration::from_millis(wait.into());
            if fails { pick.failed(now) } else { pick.succeeded() }
            if hold {
                held.push(pick);
            }
            prop_assert!(balancer.group.ejected() < n.max(1));
            let listed = balancer.slots.iter().filter(|slot| slot.load.is_ejected()).count();
            prop_assert_eq!(balancer.group.ejected(), listed);
            if held.len() > 20 {
                balancer.update((0..n).filter(|at| *at != wait as usize % n.max(2)));
                balancer.update(0..n);
                held.clear();
            }
        }
    }
}
