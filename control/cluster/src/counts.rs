//! Counters by their results, as Prometheus text.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Appends the counter `leno_control_<name>`, whose label `result` has these values.
pub(crate) fn render(
    text: &mut String,
    (name, help): (&str, &str),
    results: &[(&str, &AtomicU64)],
) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "# HELP leno_control_{name} {help}");
    let _ = writeln!(text, "# TYPE leno_control_{name} counter");
    for (result, count) in results {
        let count = count.load(Ordering::Relaxed);
        let _ = writeln!(text, "leno_control_{name}{{result=\"{result}\"}} {count}");
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
