//! The formats of the page with metrics, and which format a scraper gets.

use leno_program::content::PROMETHEUS;
use leno_telemetry::{
    FIRST_INDEX, Measured, MetricsCompat, NativeHistograms, OwnWorkload, SCHEMA, Snapshot,
    ZERO_THRESHOLD_S, render_compatible,
};
use leno_wire::Bytes;
use leno_wire::prometheus::{NativeBuckets, encode};

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROTOBUF: &str = "application/vnd.google.protobuf; \
                        proto=io.prometheus.client.MetricFamily; encoding=delimited";

/// A format of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageForm {
    /// Prometheus' text, version 0.0.4.
    Text,
    /// OpenMetrics 1.0, which has exemplars.
    OpenMetrics,
    /// Prometheus' protobuf, which has exemplars and native histograms.
    Protobuf,
}

impl PageForm {
    /// The format that a scraper prefers according to its header `Accept`: the known one with the highest `q`, and
    /// among equals the first. [`Self::Text`] if it names no known format.
    pub(crate) fn wanted(accept: &str) -> Self {
        let mut best = (0.0, Self::Text);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let form = match parts.next() {
                Some("application/openmetrics-text") => Self::OpenMetrics,
                // Without these parameters, messages have no length before them, or are not of this type.
                Some("application/vnd.google.protobuf")
                    if range.contains("proto=io.prometheus.client.MetricFamily")
                        && range.contains("encoding=delimited") =>
                {
                    Self::Protobuf
                }
                Some("text/plain") => Self::Text,
                _ => continue,
            };
            let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok());
            let quality = quality.unwrap_or(1.0);
            if quality > best.0 {
                best = (quality, form);
            }
        }
        best.1
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Text => PROMETHEUS,
            Self::OpenMetrics => OPENMETRICS,
            Self::Protobuf => PROTOBUF,
        }
    }

    /// The page in this format, with these counts. `compat`: the other meshes whose metric names are added, and the
    /// labels of this workload for them.
    pub(crate) fn render(
        self,
        counted: &Snapshot,
        measured: &[Measured],
        compat: (MetricsCompat, &OwnWorkload),
    ) -> Bytes {
        let page = render_compatible(counted, measured, self != Self::Text, compat);
        if self != Self::Protobuf {
            return page.into();
        }
        let histograms = NativeHistograms::of(counted);
        let native = |family: &str, labels: &str| {
            let counts = histograms.get(family, labels)?;
            Some(NativeBuckets {
                schema: SCHEMA,
                zero_threshold: ZERO_THRESHOLD_S,
                zero_count: counts.zero(),
                first_index: FIRST_INDEX,
                buckets: counts.buckets(),
            })
        };
        encode(&page, native).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scraper_gets_the_form_that_it_prefers() {
        const OPEN: &str = "application/openmetrics-text;version=1.0.0";
        const BINARY: &str = "application/vnd.google.protobuf;\
                              proto=io.prometheus.client.MetricFamily;encoding=delimited";
        for (accept, form) in [
            ("", PageForm::Text),
            ("*/*", PageForm::Text),
            ("text/html, */*;q=0.1", PageForm::Text),
            (OPEN, PageForm::OpenMetrics),
            // The headers of Prometheus 2.42 without and with native histograms, and of Prometheus 3.
            (&format!("{OPEN},text/plain;version=0.0.4;q=0.5,*/*;q=0.1"), PageForm::OpenMetrics),
            (&format!("{BINARY},{OPEN};q=0.8,text/plain;version=0.0.4;q=0.5"), PageForm::Protobuf),
            (&format!("{OPEN};q=0.6,{BINARY};q=0.5,text/plain;q=0.4"), PageForm::OpenMetrics),
            (&format!("{BINARY};q=0.6,{OPEN};q=0.5,text/plain;q=0.4"), PageForm::Protobuf),
            ("application/vnd.google.protobuf", PageForm::Text),
        ] {
            assert_eq!(PageForm::wanted(accept), form, "{accept}");
        }
    }
}
