//! A histogram of how long changes take within this process.

use std::time::Duration;

use leno_program::Family;

use crate::metrics::AtomicNumber;

/// The upper bounds of the buckets, in milliseconds. They are chosen around the goal that 99 of 100 changes arrive
/// within 100 ms.
const BOUNDS: [u64; 9] = [1, 5, 10, 25, 50, 75, 100, 250, 1_000];

/// Counts of durations, by [`BOUNDS`].
#[derive(Debug, Default)]
pub(crate) struct Delays {
    /// For each bound, how many durations are between the previous bound and this one.
    counts: [AtomicNumber; BOUNDS.len()],
    /// The number of all durations, and their sum in microseconds.
    all: AtomicNumber,
    micros: AtomicNumber,
}

impl Delays {
    pub(crate) fn observe(&self, delay: Duration) {
        let bound = BOUNDS.iter().position(|bound| delay <= Duration::from_millis(*bound));
        if let Some(bound) = bound {
            self.counts[bound].increment();
        }
        self.all.increment();
        self.micros.add(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX));
    }

    /// Appends the counts as a Prometheus histogram.
    pub(crate) fn render(&self, (name, help): (&str, &str), text: &mut String) {
        let mut family = Family::new(text, (name, "histogram", help));
        let mut sum = 0;
        for (bound, count) in BOUNDS.iter().zip(&self.counts) {
            sum += count.get();
            let bound = Duration::from_millis(*bound).as_secs_f64().to_string();
            family.part("_bucket", &[("le", &bound)], sum);
        }
        let (all, micros) = (self.all.get(), Duration::from_micros(self.micros.get()));
        family.part("_bucket", &[("le", "+Inf")], all);
        family.part("_sum", &[], micros.as_secs_f64());
        family.part("_count", &[], all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_add_up() {
        let delays = Delays::default();
        for millis in [1, 4, 90, 5_000] {
            delays.observe(Duration::from_millis(millis));
        }
        let mut text = String::new();
        delays.render(("d_seconds", "Help."), &mut text);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["# HELP d_seconds Help.", "# TYPE d_seconds histogram"]);
        assert!(text.contains("d_seconds_bucket{le=\"0.001\"} 1\n"), "{text}");
        assert!(text.contains("d_seconds_bucket{le=\"0.005\"} 2\n"), "{text}");
        assert!(text.contains("d_seconds_bucket{le=\"0.1\"} 3\n"), "{text}");
        assert!(text.contains("d_seconds_bucket{le=\"1\"} 3\n"), "{text}");
        assert!(text.contains("d_seconds_bucket{le=\"+Inf\"} 4\n"), "{text}");
        assert!(text.contains("d_seconds_sum 5.095\n"), "{text}");
    }
}
