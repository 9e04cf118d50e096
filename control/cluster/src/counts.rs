//! Renders counters with a label for the result, as Prometheus text.

use std::sync::atomic::{AtomicU64, Ordering};

use leno_program::Family;

/// Appends the counter `leno_control_<name>`, whose label `result` has these values.
pub(crate) fn render(
    text: &mut String,
    (name, help): (&str, &str),
    results: &[(&str, &AtomicU64)],
) {
    let name = format!("leno_control_{name}");
    let mut family = Family::counter(text, &name, help);
    for (result, count) in results {
        family.sample(&[("result", result)], count.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_result_has_a_line_under_one_heading() {
        let mut text = String::new();
        let (good, bad) = (AtomicU64::new(3), AtomicU64::new(0));
        render(&mut text, ("tries_total", "Tries."), &[("good", &good), ("bad", &bad)]);
        let expected = "# HELP leno_control_tries_total Tries.\n# TYPE leno_control_tries_total counter\n\
                        leno_control_tries_total{result=\"good\"} 3\nleno_control_tries_total{result=\"bad\"} 0\n";
        assert_eq!(text, expected);
    }
}
