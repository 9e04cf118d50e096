//! Simulates proxies, the control plane and the network, with a simulated clock.

use std::collections::BinaryHeap;
use std::time::Instant;

use leno_balance::Rng;
use proptest::prelude::*;

use super::*;
use crate::Verdict;

const STEP: Duration = Duration::from_millis(5);

/// Requests per second of each proxy, in thousandths, over time.
type Demand<'a> = &'a dyn Fn(usize, Duration) -> u32;

struct Network {
    /// The shortest and the longest delay of a message.
    delay_ms: (u64, u64),
    /// The percentage of messages that are lost.
    lost_percent: u32,
    /// The period in which all messages are lost.
    cut: Option<(Duration, Duration)>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Message {
    Ask(usize, u32),
    Grant(usize, u32, u32),
}

struct World {
    start: Instant,
    rng: Rng,
    network: Network,
    under_way: BinaryHeap<std::cmp::Reverse<(Instant, u64, Message)>>,
    number: u64,
    /// The times at which requests passed, for all proxies together.
    passed: Vec<Duration>,
    by_proxy: Vec<u32>,
    /// Whether any proxy used a limit of its own.
    alone: bool,
}

impl World {
    fn new(network: Network, proxies: usize) -> Self {
        Self::seeded(17, network, proxies)
    }

    fn seeded(seed: u64, network: Network, proxies: usize) -> Self {
        Self {
            start: Instant::now(),
            rng: Rng::seeded(seed),
            network,
            under_way: BinaryHeap::new(),
            number: 0,
            passed: Vec::new(),
            by_proxy: vec![0; proxies],
            alone: false,
        }
    }

    fn send(&mut self, message: Message, now: Instant) {
        let since = now - self.start;
        let is_cut = self.network.cut.is_some_and(|(from, to)| from <= since && since < to);
        if is_cut || self.rng.chance(self.network.lost_percent, 100) {
            return;
        }
        let (least, most) = self.network.delay_ms;
        let span = usize::try_from(most - least + 1).unwrap();
        let delay = least + self.rng.below(span) as u64;
        self.number += 1;
        let arrives = now + Duration::from_millis(delay);
        self.under_way.push(std::cmp::Reverse((arrives, self.number, message)));
    }

    fn run(&mut self, (rate, burst): (u32, u32), length: Duration, demand: Demand<'_>) {
        let per = Duration::from_secs(1);
        let proxies = self.by_proxy.len();
        let mut allocator = Allocator::new(rate, per, burst, self.start);
        let mut holders: Vec<_> = (0..proxies).map(|_| Holder::new(rate, per)).collect();
        let mut owed = vec![0_u64; proxies];
        let mut now = self.start;
        while now - self.start < length {
            while self.under_way.peek().is_some_and(|next| next.0.0 <= now) {
                match self.under_way.pop().unwrap().0.2 {
                    Message::Ask(from, wanted) => {
                        let grant = allocator.ask(from as u64, Ask { wanted }, now);
                        self.send(Message::Grant(from, grant.tokens, grant.holders), now);
                    }
                    Message::Grant(to, tokens, sharing) => {
                        holders[to].granted(Grant { tokens, holders: sharing });
                    }
                }
            }
            for (at, holder) in holders.iter_mut().enumerate() {
                owed[at] += u64::from(demand(at, now - self.start)) * STEP.as_millis() as u64;
                while owed[at] >= 1_000_000 {
                    owed[at] -= 1_000_000;
                    if holder.check(now) == Verdict::Pass {
                        self.passed.push(now - self.start);
                        self.by_proxy[at] += 1;
                        self.alone |= holder.is_alone(now);
                    }
                }
                if let Some(Ask { wanted }) = holder.ask(now) {
                    self.send(Message::Ask(at, wanted), now);
                }
            }
            now += STEP;
        }
    }

    /// The largest number of requests that passed within any window of this length.
    fn most_within(&self, window: Duration) -> usize {
        let mut first = 0;
        let mut most = 0;
        for (last, at) in self.passed.iter().enumerate() {
            while *at - self.passed[first] > window {
                first += 1;
            }
            most = most.max(last + 1 - first);
        }
        most
    }

    fn assert_bound(&self, rate: u32, burst: u32) {
        for window in [0, 100, 1_000, 3_000, 10_000].map(Duration::from_millis) {
            let time = (window + LEASE + ASK_EVERY + STEP).as_secs_f64();
            let credit = f64::from(MAX_CREDIT) * self.by_proxy.len() as f64;
            let bound = f64::from(rate) * time + f64::from(burst) + credit;
            let most = self.most_within(window);
            assert!(most as f64 <= bound, "{most} within {window:?}, more than {bound}");
        }
    }
}

const GOOD: Network = Network { delay_ms: (1, 20), lost_percent: 0, cut: None };

#[test]
fn the_limit_is_reached_and_not_passed() {
    let mut world = World::new(GOOD, 10);
    world.run((500, 100), Duration::from_secs(30), &|_, _| 100_000);
    world.assert_bound(500, 100);
    let passed = world.passed.len();
    println!("{passed} of {} passed", 500 * 30);
    assert!((13_500..=15_100).contains(&passed), "{passed} of 15000");
}

/// A proxy's part differs between runs, because it depends on when its questions arrive between those of the others.
/// The standard deviation of 200 runs of these 30 s (about 240 grants to each) is 5.1 %. So only a tolerance of 25 % or
/// more would suit a single run: these are five deviations, exceeded by chance once in 1.7 million draws, and there are
/// 1,000 draws. The mean of 100 runs has a deviation of 0.5 %. Its tolerance is five of those, plus 2.2 % for the order
/// in which the simulation lets proxies ask at the same instant.
#[test]
fn all_get_an_equal_part() {
    const RUNS: u64 = 100;
    const OF_ONE_RUN: f64 = 0.255;
    const OF_THE_MEAN: f64 = 0.025 + 0.022;
    let mut sums = [0.0; 10];
    for seed in 0..RUNS {
        let mut world = World::seeded(seed, GOOD, 10);
        world.run((500, 100), Duration::from_secs(30), &|_, _| 100_000);
        let equal = world.passed.len() as f64 / 10.0;
        for (had, sum) in world.by_proxy.iter().zip(&mut sums) {
            let share = f64::from(*had) / equal;
            assert!((share - 1.0).abs() < OF_ONE_RUN, "{seed}: {:?}", world.by_proxy);
            *sum += share;
        }
    }
    let means = sums.map(|sum| sum / RUNS as f64);
    assert!(means.iter().all(|mean| (mean - 1.0).abs() < OF_THE_MEAN), "{means:?}");
}

#[test]
fn what_one_does_not_need_the_others_get() {
    let mut world = World::new(GOOD, 5);
    // Two proxies want twenty requests per second each; the other three want as many as they can get.
    let demand = |at, _| if at < 2 { 20_000 } else { 1_000_000 };
    world.run((500, 100), Duration::from_secs(30), &demand);
    world.assert_bound(500, 100);
    for small in &world.by_proxy[..2] {
        assert!(*small > 20 * 30 * 85 / 100, "{:?}", world.by_proxy);
    }
    let passed = world.passed.len();
    assert!(passed > 13_000, "{passed}: {:?}", world.by_proxy);
}

#[test]
fn demand_may_move_between_proxies() {
    let mut world = World::new(GOOD, 4);
    let demand = |at: usize, since: Duration| {
        if since.as_secs() as usize / 3 % 4 == at { 400_000 } else { 0 }
    };
    world.run((300, 60), Duration::from_secs(24), &demand);
    world.assert_bound(300, 60);
    assert!(world.passed.len() > 300 * 24 * 80 / 100, "{}", world.passed.len());
}

#[test]
fn without_a_control_plane_each_takes_its_part() {
    let cut = Some((Duration::from_secs(10), Duration::from_secs(40)));
    let mut world = World::new(Network { cut, ..GOOD }, 5);
    world.run((500, 100), Duration::from_secs(50), &|_, _| 300_000);
    world.assert_bound(500, 100);
    let alone = Duration::from_secs(15)..Duration::from_secs(40);
    let passed = world.passed.iter().filter(|at| alone.contains(at)).count();
    assert!((500 * 25 * 90 / 100..=500 * 25 + 100).contains(&passed), "{passed} in 25 s");
}

/// If the load is far below the limit, requests pass even if they are rare, except some at the beginning.
#[test]
fn seldom_requests_pass() {
    for (every_s, rate) in [(1, 100), (2, 100), (5, 3), (5, 100)] {
        let mut world = World::new(GOOD, 3);
        // Each proxy gets two requests at a time, once in this many seconds.
        let demand = |_: usize, since: Duration| {
            let within = since.as_millis() % (every_s * 1_000) < STEP.as_millis() * 2;
            if within { 200_000 } else { 0 }
        };
        world.run((rate, rate), Duration::from_secs(40), &demand);
        let asked = 3 * 2 * 40 / usize::try_from(every_s).unwrap();
        let passed = world.passed.len();
        world.assert_bound(rate, rate);
        // At first the number of holders is unknown, so of every two requests one is rejected. If the rate is as low as
        // the number of proxies, most tokens are leased to proxies that do not use them.
        let least = if rate < 10 { asked / 4 } else { asked - 6 };
        assert!(passed >= least, "every {every_s} s at {rate}: {passed} of {asked}");
    }
}

/// When a proxy ends, only the tokens leased to it are lost: the others get the whole rate again.
#[test]
fn a_proxy_that_ends_takes_no_more_than_a_lease_with_it() {
    let mut world = World::new(GOOD, 5);
    let demand = |at: usize, since: Duration| {
        let lives = at == 0 || since < Duration::from_secs(10);
        if lives { 1_000_000 } else { 0 }
    };
    world.run((500, 100), Duration::from_secs(20), &demand);
    world.assert_bound(500, 100);
    let after = Duration::from_secs(10) + LEASE + LOST;
    let passed = world.passed.iter().filter(|at| **at >= after).count();
    let rest = (Duration::from_secs(20) - after).as_secs_f64() * 500.0;
    assert!(passed as f64 > rest * 0.9, "{passed} of {rest} in the rest of the time");
}

#[test]
fn a_restart_leases_nothing_beyond_the_rate() {
    let now = Instant::now();
    let mut allocator = Allocator::new(100, Duration::from_secs(1), 1_000, now);
    assert_eq!(allocator.ask(1, Ask { wanted: 500 }, now).tokens, 0);
    let later = now + Duration::from_millis(500);
    assert_eq!(allocator.ask(1, Ask { wanted: 500 }, later).tokens, 50);
}

#[test]
fn a_late_answer_brings_no_tokens() {
    let now = Instant::now();
    let mut holder = Holder::new(100, Duration::from_secs(1));
    holder.check(now);
    assert!(holder.ask(now).is_some());
    let late = now + LEASE;
    holder.granted(Grant { tokens: 50, holders: 1 });
    assert_eq!(holder.left(late), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever the network does and however many requests there are, the bound holds as long as all proxies reach the
    /// control plane.
    #[test]
    fn the_bound_always_holds(
        proxies in 1_usize..8, rate in 20_u32..500, burst in 1_u32..300,
        delay in 1_u64..400, lost_percent in 0_u32..40,
        demands in proptest::collection::vec(0_u32..400_000, 8),
        restless in 1_u64..10,
    ) {
        let network = Network { delay_ms: (1, delay), lost_percent, cut: None };
        let mut world = World::new(network, proxies);
        let demand = |at: usize, since: Duration| {
            demands[(at + usize::try_from(since.as_secs() / restless).unwrap()) % demands.len()]
        };
        world.run((rate, burst), Duration::from_secs(12), &demand);
        prop_assume!(!world.alone);
        world.assert_bound(rate, burst);
    }
}
