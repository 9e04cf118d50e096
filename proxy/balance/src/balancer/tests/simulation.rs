//! A service under load with a simulated clock: what clients notice of an endpoint that becomes
//! slow.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;
use crate::Rng;

/// A time in microseconds.
type Time = u64;

struct Service {
    /// Mean latency of each endpoint.
    latency_us: Vec<f64>,
    rng: Rng,
}

impl Service {
    /// A random latency: exponentially distributed, as if it consisted of many independent steps, but at least a fifth
    /// of the mean.
    fn latency(&mut self, endpoint: usize) -> Time {
        let unit: f64 = (self.rng.bits() >> 11) as f64 / (1_u64 << 53) as f64;
        let drawn = -(1.0 - unit).ln() * 0.8 + 0.2;
        (self.latency_us[endpoint] * drawn) as Time
    }
}

struct Seen {
    p99_us: Time,
    shares: Vec<u32>,
}

/// Sends `requests` requests at a constant rate, without waiting for responses. Returns the latencies and shares.
fn run(latency_us: &[f64], gap_us: Time, requests: u32, algorithm: Algorithm) -> Seen {
    let mut service = Service { latency_us: latency_us.to_vec(), rng: Rng::seeded(3) };
    let mut balancer = Balancer::seeded(4);
    balancer.configure(Settings { algorithm, ..Settings::default() });
    balancer.update(0..latency_us.len());
    let start = Instant::now();
    let at = |time: Time| start + Duration::from_micros(time);
    let mut ends: BinaryHeap<Reverse<(Time, u32)>> = BinaryHeap::new();
    let mut under_way: Vec<Option<(Time, Pick<usize>)>> = Vec::new();
    let mut latencies = Vec::new();
    let mut shares = vec![0; latency_us.len()];
    for number in 0..requests {
        let begun = Time::from(number) * gap_us;
        while let Some(Reverse((end, which))) = ends.peek().copied() {
            if end > begun {
                break;
            }
            ends.pop();
            let (from, pick) = under_way[which as usize].take().expect("it ends once");
            pick.observe(Duration::from_micros(end - from), at(end));
            latencies.push(end - from);
        }
        let pick = balancer.pick(at(begun), none).unwrap();
        shares[*pick.endpoint()] += 1;
        ends.push(Reverse((begun + service.latency(*pick.endpoint()), number)));
        under_way.push(Some((begun, pick)));
    }
    latencies.extend(ends.iter().map(|Reverse((end, which))| {
        end - under_way[*which as usize].as_ref().expect("it has not ended").0
    }));
    latencies.sort_unstable();
    Seen { p99_us: latencies[latencies.len() * 99 / 100], shares }
}

#[test]
fn one_of_three_twenty_times_slower_leaves_the_p99_within_half_of_what_it_was() {
    const MS: f64 = 1_000.0;
    for gap_us in [500, 1_000, 4_000] {
        let without = run(&[5.0 * MS, 5.0 * MS], gap_us, 60_000, Algorithm::PeakEwma);
        let with = run(&[5.0 * MS, 5.0 * MS, 100.0 * MS], gap_us, 60_000, Algorithm::PeakEwma);
        let ratio = with.p99_us as f64 / without.p99_us as f64;
        println!("a request every {gap_us} us: p99 {ratio:.3} of without, {:?}", with.shares);
        assert!(ratio < 1.5, "{ratio}: {} of {}", with.p99_us, without.p99_us);
        // Do the same with a choice that ignores latency, to show that latency matters.
        let random = run(&[5.0 * MS, 5.0 * MS, 100.0 * MS], gap_us, 60_000, Algorithm::Random);
        assert!(random.p99_us as f64 / without.p99_us as f64 > 5.0);
    }
}

#[test]
fn an_endpoint_that_stalls_gets_little() {
    const NEVER: f64 = 1e12;
    // The last endpoint stalls from the start, when the balancer has no estimates.
    let seen = run(&[5_000.0, 5_000.0, NEVER], 1_000, 60_000, Algorithm::PeakEwma);
    assert!(seen.shares[2] < 60_000 / 100, "{:?}", seen.shares);
    let least = run(&[5_000.0, 5_000.0, NEVER], 1_000, 60_000, Algorithm::LeastRequest);
    assert!(least.shares[2] < 60_000 / 100, "{:?}", least.shares);
}

#[test]
fn an_endpoint_that_stalls_later_gets_little() {
    let mut balancer = Balancer::seeded(4);
    balancer.update(0..3_usize);
    let mut now = Instant::now();
    let (mut stalled, mut held) = (0, Vec::new());
    for number in 0..40_000 {
        let pick = balancer.pick(now, none).unwrap();
        now += Duration::from_millis(1);
        if *pick.endpoint() == 0 && number > 1_000 {
            stalled += 1;
            held.push(pick);
        } else {
            pick.observe(Duration::from_millis(1), now);
        }
    }
    assert!((1..400).contains(&stalled), "{stalled} in 39 s");
}

/// Sends 40,000 requests to three endpoints. From request `from` on, the first endpoint refuses all requests at once.
/// Returns how many requests it still gets from then on.
fn sent_to_one_that_refuses(from: u32, refused: fn(&Pick<usize>, Duration, Instant)) -> u32 {
    let mut balancer = Balancer::seeded(4);
    balancer.update(0..3_usize);
    let mut now = Instant::now();
    let mut sent = 0;
    for number in 0..40_000 {
        let pick = balancer.pick(now, none).unwrap();
        now += Duration::from_millis(2);
        if *pick.endpoint() == 0 && number >= from {
            sent += 1;
            refused(&pick, Duration::from_micros(50), now);
        } else {
            pick.observe(Duration::from_millis(2), now);
        }
    }
    sent
}

#[test]
fn an_endpoint_that_refuses_at_once_gets_no_more_than_its_share() {
    for from in [0, 3_000] {
        let all = 40_000 - from;
        let sent = sent_to_one_that_refuses(from, Pick::observe_refusal);
        assert!((all / 20..all * 2 / 5).contains(&sent), "{sent} of {all}");
        // This is what the endpoint would get if a quick refusal made it look like the fastest. So the distinction
        // matters.
        let sent = sent_to_one_that_refuses(from, Pick::observe);
        assert!(sent > all * 3 / 5, "{sent} of {all}");
    }
}

#[test]
fn a_refusal_brings_no_peak_back_that_has_faded() {
    let mut balancer = Balancer::seeded(4);
    balancer.update(0..3_usize);
    let mut now = Instant::now();
    let answers = |pick: &Pick<usize>, now| pick.observe(Duration::from_millis(2), now);
    for _ in 0..100 {
        let pick = balancer.pick(now, none).unwrap();
        now += Duration::from_millis(2);
        answers(&pick, now);
    }
    // The first endpoint fails one request, which counts as a latency of a second. A minute later it refuses requests.
    let first = balancer.pick(now, |endpoint| *endpoint != 0).unwrap();
    first.penalise(now);
    drop(first);
    now += crate::load::DECAY * 6;
    let first = balancer.pick(now, |endpoint| *endpoint != 0).unwrap();
    first.observe_refusal(Duration::from_micros(50), now);
    drop(first);
    let mut sent = 0;
    for _ in 0..3_000 {
        let pick = balancer.pick(now, none).unwrap();
        now += Duration::from_millis(2);
        if *pick.endpoint() == 0 {
            sent += 1;
            pick.observe_refusal(Duration::from_micros(50), now);
        } else {
            answers(&pick, now);
        }
    }
    assert!((100..1_200).contains(&sent), "{sent} of 3,000");
}
