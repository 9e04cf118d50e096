//! Parses the Prometheus text format, and computes quantiles of its histograms.

use std::collections::BTreeMap;

/// One sample: `name{label="value"} number`.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The metric's name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

/// Parses an exposition. A line that cannot be parsed is skipped, so that an older `leno stat` can
/// read a newer proxy.
#[must_use]
pub fn parse(text: &str) -> Vec<Sample> {
    text.lines().filter_map(sample).collect()
}

fn sample(line: &str) -> Option<Sample> {
    let line = line.trim();
    if line.starts_with('#') {
        return None;
    }
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside.trim_start();
        while !rest.starts_with('}') {
            let (label, value, after) = pair(rest)?;
            labels.insert(label, value);
            rest = after.trim_start().trim_start_matches(',').trim_start();
        }
        rest = &rest[1..];
    }
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// Parses `label="value"` and returns the rest; `\\`, `\"` and `\n` are escapes.
fn pair(text: &str) -> Option<(String, String, &str)> {
    let (label, quoted) = text.split_once("=\"")?;
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((label.trim().to_owned(), value, &quoted[at + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

/// A cumulative histogram: the count of each bucket by its upper bound.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CumulativeHistogram {
    buckets: BTreeMap<Bound, f64>,
}

/// An upper bound that is never NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bound(f64);

impl Eq for Bound {}

impl Ord for Bound {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Bound {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl CumulativeHistogram {
    /// Adds `count` to the bucket up to `bound`, which is the label `le` of a `_bucket` sample.
    pub fn add(&mut self, bound: f64, count: f64) {
        if !bound.is_nan() {
            *self.buckets.entry(Bound(bound)).or_default() += count;
        }
    }

    /// Adds all buckets of another.
    pub fn add_all(&mut self, other: &Self) {
        for (Bound(bound), count) in &other.buckets {
            self.add(*bound, *count);
        }
    }

    /// Drops the largest bounds so that `most` remain. Returns how many were dropped.
    pub(crate) fn keep(&mut self, most: usize) -> usize {
        let beyond = self.buckets.len().saturating_sub(most);
        for _ in 0..beyond {
            self.buckets.pop_last();
        }
        beyond
    }

    /// The increase since `before`; `None` if a bucket has fewer observations than before.
    #[must_use]
    pub fn since(&self, before: &Self) -> Option<Self> {
        let mut since = self.clone();
        for (bound, count) in &before.buckets {
            let now = since.buckets.entry(*bound).or_default();
            *now -= count;
            if *now < 0.0 {
                return None;
            }
        }
        Some(since)
    }

    /// Upper bound and cumulated count of each bucket, by rising bounds.
    pub fn cumulated(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.buckets.iter().map(|(Bound(bound), count)| (*bound, *count))
    }

    /// The number of observations.
    #[must_use]
    pub fn count(&self) -> f64 {
        self.buckets.last_key_value().map_or(0.0, |(_, count)| *count)
    }

    /// The value below which the share `q` of the observations lies, interpolated within its bucket
    /// like Prometheus' `histogram_quantile`. `None` without observations.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let total = self.count();
        if total <= 0.0 {
            return None;
        }
        let rank = q * total;
        let (mut lower, mut below) = (0.0, 0.0);
        for (Bound(upper), count) in &self.buckets {
            if *count >= rank {
                if upper.is_infinite() {
                    return Some(lower);
                }
                let inside = count - below;
                let share = if inside > 0.0 { (rank - below) / inside } else { 1.0 };
                return Some(lower + (upper - lower) * share);
            }
            (lower, below) = (*upper, *count);
        }
        Some(lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_and_comments_are_not() {
        let text = "# HELP a b\n# TYPE a counter\na 1\nb{x=\"1\",y=\"a\\\"b\\\\\\nc\"} 2.5 1700\n\
             c{} 3\nd{x=\"1\", } +Inf\nbroken{x=\"1\n\n";
        let samples = parse(text);
        assert_eq!(samples.len(), 4);
        assert_eq!((samples[0].name.as_str(), samples[0].value), ("a", 1.0));
        assert_eq!(samples[1].labels["y"], "a\"b\\\nc");
        assert_eq!(samples[1].value, 2.5);
        assert!(samples[3].value.is_infinite());
    }

    #[test]
    fn quantiles_are_interpolated() {
        let mut histogram = CumulativeHistogram::default();
        for (bound, count) in [(0.001, 50.0), (0.01, 100.0), (f64::INFINITY, 100.0)] {
            histogram.add(bound, count);
        }
        assert_eq!(histogram.quantile(0.5), Some(0.001));
        let p75 = histogram.quantile(0.75).unwrap();
        assert!((p75 - 0.0055).abs() < 1e-12, "{p75}");
        assert_eq!(CumulativeHistogram::default().quantile(0.5), None);
    }

    #[test]
    fn beyond_the_last_bound_the_last_bound_is_all_that_is_known() {
        let mut histogram = CumulativeHistogram::default();
        histogram.add(1.0, 0.0);
        histogram.add(f64::INFINITY, 10.0);
        assert_eq!(histogram.quantile(0.99), Some(1.0));
    }
}
