//! Prometheus' exposition format in protobuf, the only one that has native histograms.

use prost::Message;

#[expect(unreachable_pub, reason = "generated; the proto file has the comments")]
mod proto {
    include!("generated/prometheus.rs");
}

use proto::{Bucket, BucketSpan, Exemplar, LabelPair, Metric, MetricFamily, MetricType};

/// The exponential buckets of a histogram.
#[derive(Clone, Copy, Debug)]
pub struct NativeBuckets<'a> {
    /// Determines the widths: the upper bound of the bucket with index `i` is `2^(i / 2^schema)`.
    pub schema: i32,
    /// The upper bound of the bucket for values close to zero, which are not distinguished.
    pub zero_threshold: f64,
    /// The number of values in the bucket for values close to zero.
    pub zero_count: u64,
    /// The index of the first of `buckets`.
    pub first_index: i32,
    /// The number of values in each bucket.
    pub buckets: &'a [u64],
}

/// Encodes a page, which is a text in the format of OpenMetrics 1.0, as protobuf: its metric families, each preceded by
/// its length. `native` returns the native buckets of a histogram, given its family and its labels as the page has them
/// between braces. Lines that belong to no family are omitted.
#[must_use]
pub fn encode<'a>(page: &str, native: impl Fn(&str, &str) -> Option<NativeBuckets<'a>>) -> Vec<u8> {
    let mut families: Vec<MetricFamily> = Vec::new();
    for line in page.lines() {
        let words = || line.splitn(4, ' ');
        match (words().nth(1), words().nth(2), words().nth(3)) {
            (Some("HELP"), Some(name), help) if line.starts_with('#') => {
                let help = help.unwrap_or_default().to_owned();
                families.push(MetricFamily { name: name.to_owned(), help, ..Default::default() });
            }
            (Some("TYPE"), _, Some(kind)) if line.starts_with('#') => {
                families.last_mut().into_iter().for_each(|family| kind_of(family, kind));
            }
            _ if line.starts_with('#') => {}
            _ => {
                families.last_mut().and_then(|family| sample(family, line, &native));
            }
        }
    }
    let mut encoded = Vec::new();
    for family in families.iter().filter(|family| !family.metric.is_empty()) {
        encoded.extend(family.encode_length_delimited_to_vec());
    }
    encoded
}

fn kind_of(family: &mut MetricFamily, kind: &str) {
    let kind = match kind {
        "counter" => {
            // In OpenMetrics the name of a counter's family has no suffix; here it has one.
            family.name.push_str("_total");
            MetricType::Counter
        }
        "histogram" => MetricType::Histogram,
        _ => MetricType::Gauge,
    };
    family.set_type(kind);
}

/// Adds a line to its family. `None` if the line is not one of the family's samples.
fn sample<'a>(
    family: &mut MetricFamily,
    line: &str,
    native: impl Fn(&str, &str) -> Option<NativeBuckets<'a>>,
) -> Option<()> {
    let suffix = line.strip_prefix(&*family.name)?;
    let (suffix, raw, mut label, rest) = match suffix.find(['{', ' '])? {
        at if suffix.get(at..)?.starts_with('{') => {
            let (label, raw, rest) = labels(suffix.get(at..)?)?;
            (suffix.get(..at)?, raw, label, rest)
        }
        at => (suffix.get(..at)?, "", Vec::new(), suffix.get(at..)?),
    };
    let mut words = rest.trim_start().splitn(2, ' ');
    let value: f64 = words.next()?.parse().ok()?;
    match family.r#type() {
        MetricType::Histogram => {
            let le = match suffix {
                "_bucket" => Some(label.pop()?.value.parse().ok()?),
                _ => None,
            };
            if family.metric.last().is_none_or(|last| last.label != label) {
                let histogram = Some(proto::Histogram::default());
                family.metric.push(Metric { label, histogram, ..Metric::default() });
            }
            let histogram = family.metric.last_mut()?.histogram.as_mut()?;
            match le {
                Some(upper_bound) => histogram.bucket.push(Bucket {
                    // Counts are below 2^53.
                    cumulative_count: value as u64,
                    upper_bound,
                    exemplar: words.next().and_then(exemplar),
                }),
                None if suffix == "_count" => histogram.sample_count = value as u64,
                None => {
                    histogram.sample_sum = value;
                    native(&family.name, raw).into_iter().for_each(|own| own.write(histogram));
                }
            }
        }
        MetricType::Counter => {
            let counter = Some(proto::Counter { value });
            family.metric.push(Metric { label, counter, ..Metric::default() });
        }
        _ => {
            let gauge = Some(proto::Gauge { value });
            family.metric.push(Metric { label, gauge, ..Metric::default() });
        }
    }
    Some(())
}

/// Parses labels at the beginning of a text, `{key="value",...}`. Returns the labels, their text, and the text after
/// them.
fn labels(text: &str) -> Option<(Vec<LabelPair>, &str, &str)> {
    let inside = text.strip_prefix('{')?;
    let mut left = inside;
    let mut labels = Vec::new();
    while !left.starts_with('}') {
        let (name, quoted) = left.trim_start_matches(',').split_once("=\"")?;
        let (value, rest) = unquoted(quoted)?;
        labels.push(LabelPair { name: name.to_owned(), value });
        left = rest;
    }
    let raw = inside.get(..inside.len().checked_sub(left.len())?)?;
    Some((labels, raw, left.get(1..)?))
}

/// Parses a value up to its closing quote. Returns the value and the text after it.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    loop {
        match characters.next()? {
            (at, '"') => return Some((value, text.get(at..)?.get(1..)?)),
            (_, '\\') => value.push(match characters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            (_, other) => value.push(other),
        }
    }
}

/// Parses an exemplar, `# {labels} value time`.
fn exemplar(text: &str) -> Option<Exemplar> {
    let (label, _, rest) = labels(text.strip_prefix("# ")?)?;
    let mut numbers = rest.split_ascii_whitespace();
    let value = numbers.next()?.parse().ok()?;
    let (seconds, millis) = numbers.next()?.split_once('.')?;
    let nanos = millis.parse::<i32>().ok()?.checked_mul(1_000_000)?;
    let timestamp = Some(proto::Timestamp { seconds: seconds.parse().ok()?, nanos });
    Some(Exemplar { label, value, timestamp })
}

impl NativeBuckets<'_> {
    fn write(self, histogram: &mut proto::Histogram) {
        histogram.schema = self.schema;
        histogram.zero_threshold = self.zero_threshold;
        histogram.zero_count = self.zero_count;
        let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let (mut before, mut gap) = (0, self.first_index);
        for count in self.buckets.iter().copied().map(signed) {
            if count == 0 {
                gap = gap.saturating_add(1);
                continue;
            }
            match histogram.positive_span.last_mut() {
                Some(span) if gap == 0 => span.length = span.length.saturating_add(1),
                _ => histogram.positive_span.push(BucketSpan { offset: gap, length: 1 }),
            }
            histogram.positive_delta.push(count.saturating_sub(before));
            (before, gap) = (count, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"# HELP x Requests.
# TYPE x counter
x_total{a="b\"}\n",c=""} 3
# HELP empty Nothing.
# TYPE empty counter
# HELP y Connections.
# TYPE y gauge
y 1.5
# HELP z_seconds Times.
# TYPE z_seconds histogram
z_seconds_bucket{a="1",le="0.1"} 1 # {trace_id="7"} 0.05 12.034
z_seconds_bucket{a="1",le="+Inf"} 4
z_seconds_sum{a="1"} 9.5
z_seconds_count{a="1"} 4
z_seconds_bucket{a="2",le="+Inf"} 1
z_seconds_sum{a="2"} 1
z_seconds_count{a="2"} 1
# EOF
"#;

    fn families(mut bytes: &[u8]) -> Vec<MetricFamily> {
        let mut families = Vec::new();
        while !bytes.is_empty() {
            families.push(MetricFamily::decode_length_delimited(&mut bytes).unwrap());
        }
        families
    }

    #[test]
    fn a_page_is_encoded_with_native_buckets() {
        let native = |family: &str, labels: &str| {
            (family == "z_seconds" && labels == "a=\"1\"").then_some(NativeBuckets {
                schema: 2,
                zero_threshold: 0.5,
                zero_count: 1,
                first_index: -7,
                buckets: &[0, 0, 2, 1, 0, 0, 0],
            })
        };
        let families = families(&encode(PAGE, native));
        let names: Vec<_> = families.iter().map(|one| (&*one.name, one.r#type())).collect();
        let wanted = [
            ("x_total", MetricType::Counter),
            ("y", MetricType::Gauge),
            ("z_seconds", MetricType::Histogram),
        ];
        assert_eq!(names, wanted);
        let [x, y, z] = <[MetricFamily; 3]>::try_from(families).unwrap();
        assert_eq!((&*x.help, x.metric[0].counter.as_ref().unwrap().value), ("Requests.", 3.0));
        assert_eq!(x.metric[0].label[0].value, "b\"}\n");
        assert_eq!((&*x.metric[0].label[1].name, &*x.metric[0].label[1].value), ("c", ""));
        assert_eq!(y.metric[0].gauge.as_ref().unwrap().value, 1.5);
        let [first, second] = <[Metric; 2]>::try_from(z.metric).unwrap();
        assert_eq!(first.label.len(), 1);
        let histogram = first.histogram.unwrap();
        assert_eq!((histogram.sample_count, histogram.sample_sum), (4, 9.5));
        assert_eq!((histogram.schema, histogram.zero_count), (2, 1));
        let spans: Vec<_> = histogram.positive_span.iter().map(|s| (s.offset, s.length)).collect();
        assert_eq!((spans, histogram.positive_delta), (vec![(-5, 2)], vec![2, -1]));
        let exemplar = histogram.bucket[0].exemplar.as_ref().unwrap();
        assert_eq!((exemplar.value, &*exemplar.label[0].value), (0.05, "7"));
        let time = exemplar.timestamp.unwrap();
        assert_eq!((time.seconds, time.nanos), (12, 34_000_000));
        assert!(histogram.bucket[1].upper_bound.is_infinite());
        let other = second.histogram.unwrap();
        assert_eq!((other.sample_count, other.positive_span.len()), (1, 0));
    }

    #[test]
    fn gaps_between_buckets_begin_spans() {
        let mut histogram = proto::Histogram::default();
        let buckets = &[1, 0, 0, 3, 3, 0, 2];
        let (schema, zero_threshold, zero_count, first_index) = (2, 0.5, 0, -3);
        NativeBuckets { schema, zero_threshold, zero_count, first_index, buckets }
            .write(&mut histogram);
        let spans: Vec<_> = histogram.positive_span.iter().map(|s| (s.offset, s.length)).collect();
        assert_eq!(spans, [(-3, 1), (2, 2), (1, 1)]);
        assert_eq!(histogram.positive_delta, [1, 2, 0, -1]);
    }
}
