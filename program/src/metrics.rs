//! Metrics in Prometheus' text format, version 0.0.4.

use std::fmt::{Display, Write as _};

/// A family of metrics, written to a page sample by sample.
pub struct Family<'t> {
    page: &'t mut String,
    name: &'t str,
}

impl<'t> Family<'t> {
    /// Begins a family whose values may rise and fall.
    pub fn gauge(page: &'t mut String, name: &'t str, help: &str) -> Self {
        Self::new(page, (name, "gauge", help))
    }

    /// Begins a family whose values only rise; its name ends in `_total`.
    pub fn counter(page: &'t mut String, name: &'t str, help: &str) -> Self {
        Self::new(page, (name, "counter", help))
    }

    /// Begins a family with its name, its type and its help.
    pub fn new(page: &'t mut String, (name, kind, help): (&'t str, &str, &str)) -> Self {
        // Writing to a String cannot fail, here and below.
        let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        Self { page, name }
    }

    /// Writes a sample.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.part("", labels, value);
    }

    /// Writes a sample of a summary or a histogram, whose name has an ending such as `_count`.
    pub fn part(&mut self, ending: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.page, "{}{ending}", self.name);
        for (nth, (label, value)) in labels.iter().enumerate() {
            let _ = write!(self.page, "{}{label}=\"", if nth == 0 { '{' } else { ',' });
            for c in value.chars() {
                match c {
                    '\n' => self.page.push_str("\\n"),
                    '"' | '\\' => self.page.extend(['\\', c]),
                    c => self.page.push(c),
                }
            }
            self.page.push('"');
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.page, "{end} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_has_one_heading_and_its_samples() {
        let mut page = String::new();
        let mut tries = Family::counter(&mut page, "tries_total", "Tries.");
        tries.sample(&[("result", "good")], 3);
        tries.sample(&[("result", "a \"b\\\n"), ("of", "x")], 0.5);
        Family::gauge(&mut page, "up", "Whether it runs.").sample(&[], 1);
        Family::new(&mut page, ("took", "summary", "Time.")).part("_sum", &[], 2);
        assert_eq!(
            page,
            "# HELP tries_total Tries.\n# TYPE tries_total counter\ntries_total{result=\"good\"} 3\n\
             tries_total{result=\"a \\\"b\\\\\\n\",of=\"x\"} 0.5\n\
             # HELP up Whether it runs.\n# TYPE up gauge\nup 1\n\
             # HELP took Time.\n# TYPE took summary\ntook_sum 2\n"
        );
    }
}
