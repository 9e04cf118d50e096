//! Adaptive concurrency: a limit on requests that adapts to how many the endpoints can serve.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "moments of one process, and counts of one window"
)]

use std::time::{Duration, Instant};

/// The lowest limit. With fewer requests, latencies could not be measured.
pub const MIN_LIMIT: u32 = 4;

/// The highest limit: about as many streams as the connections of one worker carry.
pub const MAX_LIMIT: u32 = 10_000;

/// Latencies are averaged over at least this time before the limit changes.
const WINDOW: Duration = Duration::from_millis(100);

/// Latencies are also averaged over at least this many responses, because fewer are not significant.
const MIN_SAMPLES: u32 = 10;

/// How long the lowest latency is remembered. Then it is measured again with few requests in
/// flight, because under load the lowest recent latency would rise with the load.
const EPOCH: Duration = Duration::from_secs(30);

/// The longest time with few requests in flight. Responses without an end, such as streams, keep so many in flight that
/// nothing can be measured.
const MEASURING: Duration = Duration::from_secs(1);

/// If requests take more than this many times the best latency, the limit falls.
const TOLERANCE: f64 = 1.5;

/// The part of a computed change that is applied at once.
const SMOOTHING: f64 = 0.2;

/// A limit that grows while latency is near the lowest recent latency, and falls as latency rises (the idea of TCP
/// Vegas and of Netflix' concurrency-limits).
///
/// ```text
///        ┌── every window: a fifth of the way to limit × clamp(best × 1.5 / latency, 0.5..1) + √limit
/// follow ┤
///        └── every 30 s ──► measure: the lowest limit for a window, 1 s at most ──► best = its latency
/// ```
/// Each request that was dropped because of overload lowers the limit by a tenth. If less than half of the limit is
/// used, good latency does not raise it.
#[derive(Clone, Debug)]
pub struct Gradient {
    limit: f64,
    window: Option<Window>,
    /// The lowest mean latency of a window since the last measurement, in microseconds.
    best_us: Option<f64>,
    /// When the best latency is measured again.
    epoch_end: Option<Instant>,
    /// While the lowest latency is measured: when that ends at the latest.
    measuring: Option<Instant>,
}

/// The time over which latencies are averaged, and what was recorded in it.
#[derive(Clone, Copy, Debug)]
struct Window {
    end: Instant,
    samples: u32,
    sum_us: f64,
    /// The largest number of requests in flight during the window.
    most: u32,
}

impl Gradient {
    /// Starts with the limit `initial`.
    #[must_use]
    pub fn new(initial: u32) -> Self {
        let limit = f64::from(initial.clamp(MIN_LIMIT, MAX_LIMIT));
        Self { limit, window: None, best_us: None, epoch_end: None, measuring: None }
    }

    /// The current limit.
    #[must_use]
    pub fn limit(&self) -> u32 {
        // The limit is always between MIN_LIMIT and MAX_LIMIT, so the cast does not overflow.
        if self.measuring.is_some() { MIN_LIMIT } else { self.limit as u32 }
    }

    /// Ends a measurement that has taken too long. To be called now and then while requests wait. The lowest latency stays that of before.
    pub fn end_measuring(&mut self, now: Instant) {
        if self.measuring.is_some_and(|until| until <= now) {
            self.measuring = None;
            self.window = None;
            self.epoch_end = Some(now + EPOCH);
        }
    }

    /// To be called when a response has arrived after `latency`, while `under_way` requests were in flight.
    pub fn answered(&mut self, latency: Duration, under_way: u32, now: Instant) {
        if self.measuring.is_some() && under_way > MIN_LIMIT {
            // More requests than wanted were in flight, so this latency is ignored.
            return;
        }
        let new = Window { end: now + WINDOW, samples: 0, sum_us: 0.0, most: 0 };
        let window = self.window.get_or_insert(new);
        window.samples += 1;
        window.sum_us += latency.as_secs_f64() * 1e6;
        window.most = window.most.max(under_way);
        if now < window.end || window.samples < MIN_SAMPLES {
            return;
        }
        let window = *window;
        self.window = None;
        self.close(window, now);
    }

    /// To be called when a request was refused because of overload, or timed out.
    pub fn dropped(&mut self) {
        self.limit = (self.limit * 0.9).max(f64::from(MIN_LIMIT));
    }

    fn close(&mut self, window: Window, now: Instant) {
        let latency_us = (window.sum_us / f64::from(window.samples)).max(1.0);
        let epoch_end = *self.epoch_end.get_or_insert(now + EPOCH);
        if self.measuring.take().is_some() {
            self.best_us = Some(latency_us);
            self.epoch_end = Some(now + EPOCH);
            return;
        }
        if now >= epoch_end {
            self.measuring = Some(now + MEASURING);
            return;
        }
        let best_us = self.best_us.map_or(latency_us, |best| best.min(latency_us));
        self.best_us = Some(best_us);
        // Good latency justifies a higher limit only if at least half of the current one is used.
        let used = f64::from(window.most) * 2.0 >= self.limit;
        let gradient = (best_us * TOLERANCE / latency_us).clamp(0.5, 1.0);
        if gradient >= 1.0 && !used {
            return;
        }
        let wanted = self.limit * gradient + self.limit.sqrt();
        let limit = self.limit * (1.0 - SMOOTHING) + wanted * SMOOTHING;
        self.limit = limit.clamp(f64::from(MIN_LIMIT), f64::from(MAX_LIMIT));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates an endpoint that serves `capacity` requests at once in 10 ms each, under a load of more requests than
    /// it can serve. Returns the limit after every 50 ms.
    fn run(gradient: &mut Gradient, capacity: u32, seconds: u64, now: &mut Instant) -> Vec<u32> {
        let mut limits = Vec::new();
        for _ in 0..seconds * 20 {
            let under_way = gradient.limit();
            let slower = f64::from(under_way.max(capacity)) / f64::from(capacity);
            let latency = Duration::from_millis(10).mul_f64(slower);
            *now += Duration::from_millis(50);
            for _ in 0..under_way.min(20) {
                gradient.answered(latency, under_way, *now);
            }
            limits.push(gradient.limit());
        }
        limits
    }

    #[test]
    fn the_bound_finds_the_capacity_and_follows_it() {
        let (mut gradient, mut now) = (Gradient::new(10), Instant::now());
        for capacity in [50, 200, 20] {
            let limits = run(&mut gradient, capacity, 120, &mut now);
            let settled = &limits[limits.len() / 2..];
            let mean = settled.iter().sum::<u32>() / u32::try_from(settled.len()).unwrap();
            println!("capacity {capacity}: {mean}");
            assert!((capacity..capacity * 3).contains(&mean), "{mean} of {capacity}");
        }
    }

    #[test]
    fn a_bound_that_is_not_used_stays() {
        let (mut gradient, mut now) = (Gradient::new(100), Instant::now());
        for _ in 0..2_000 {
            now += Duration::from_millis(10);
            gradient.answered(Duration::from_millis(5), 3, now);
        }
        assert_eq!(gradient.limit, 100.0);
    }

    #[test]
    fn bounds_hold() {
        let mut gradient = Gradient::new(0);
        for _ in 0..1_000 {
            gradient.dropped();
        }
        assert_eq!(gradient.limit(), MIN_LIMIT);
        assert_eq!(Gradient::new(u32::MAX).limit(), MAX_LIMIT);
    }

    #[test]
    fn a_measurement_among_requests_that_do_not_end_is_given_up() {
        let (mut gradient, mut now) = (Gradient::new(100), Instant::now());
        while gradient.limit() > MIN_LIMIT {
            now += WINDOW;
            (0..MIN_SAMPLES).for_each(|_| gradient.answered(Duration::from_millis(10), 90, now));
        }
        let begun = now;
        for _ in 0..20 {
            gradient.answered(Duration::from_millis(10), 90, now);
            gradient.end_measuring(now);
            now += WINDOW;
        }
        assert!(gradient.limit() >= 100, "{} after {:?}", gradient.limit(), now - begun);
    }
}
