//! Records of the access log that wait to be exported to a collector.

use leno_tap::{AccessField, AccessRecord};

use super::settings::{Pair, Parts};
use super::{Layout, Record, Value};
use crate::queue::Queue;

/// How many records of a worker may wait for the exporter: those of a second at 2,000 requests per second, about 2 MB.
pub const MAX_RECORDS: usize = 2048;

/// The paths of the gRPC call and the HTTP request that export records. These are not logged, because each export would
/// cause the next one.
const EXPORTS: [&[u8]; 2] =
    [b"/opentelemetry.proto.collector.logs.v1.LogsService/Export", b"/v1/logs"];

/// The records of one worker.
#[derive(Debug)]
pub struct Records {
    layout: Layout,
    queue: Queue<AccessRecord>,
}

impl Records {
    /// An empty queue for records with the fields of this layout.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        Self { layout, queue: Queue::new(MAX_RECORDS) }
    }

    /// The records that wait for the exporter.
    #[must_use]
    pub fn queue(&self) -> &Queue<AccessRecord> {
        &self.queue
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Queues a record. `false` means that the queue is full and the record was dropped.
    pub(super) fn push(&self, record: &Record<'_>) -> bool {
        // Records have no templates.
        let Parts::Pairs(pairs) = &self.layout.parts else { return true };
        let attribute = |Pair { key, is_renamed, field }: &Pair| {
            let key = if *is_renamed { key.to_string() } else { field.attribute() };
            Some((key, attribute(record.value(field)?)))
        };
        self.queue.push(AccessRecord {
            at_unix_us: record.began_unix_us(),
            trace: record.trace,
            is_failed: record.is_failed(),
            is_request: record.status.is_some(),
            attributes: pairs.iter().filter_map(attribute).collect(),
        })
    }
}

fn attribute(value: Value<'_>) -> AccessField {
    match value {
        Value::Text(text) => AccessField::Text(String::from_utf8_lossy(&text).into_owned()),
        Value::Number(number) => AccessField::Number(number),
        Value::Flag(flag) => AccessField::Flag(flag),
    }
}

/// Whether a request exports records: it has one of the two paths, and the header `b3: 0`, with which exporters exclude
/// themselves from traces.
pub(super) fn is_export<'h, H>(target: &[u8], headers: impl Fn() -> H) -> bool
where
    H: Iterator<Item = (&'h str, &'h [u8])>,
{
    let is_mark = |(name, value): (&str, &[u8])| name.eq_ignore_ascii_case("b3") && value == b"0";
    EXPORTS.contains(&target) && headers().any(is_mark)
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::access::AccessSettings;
    use crate::{Arrival, Direction, EdgeLabels, Outcome, Registry};

    fn records(settings: &str) -> Rc<Records> {
        let settings: AccessSettings = settings.parse().unwrap();
        Rc::new(Records::new(settings.layout))
    }

    fn request(registry: &Registry, target: &str, headers: &[(&str, &str)]) {
        let edge = registry.edge(&EdgeLabels {
            direction: Direction::Outbound,
            client: "web-0".into(),
            client_namespace: "shop".into(),
            client_trust_domain: "".into(),
            server: "cart-0".into(),
            server_namespace: "shop".into(),
            service: "cart".into(),
            mtls: true,
        });
        let headers = || ("cart", headers.iter().map(|(name, value)| (*name, value.as_bytes())));
        let mut begun = registry.begin(
            Arrival::Outbound,
            ("HTTP/2", "GET", target.as_bytes()),
            headers,
            || headers().1,
        );
        begun.routed(|| "HTTPRoute shop/cart rule 0".into());
        registry.end(&edge, &begun, &Outcome { status: 503, ..Outcome::default() });
    }

    #[test]
    fn a_record_has_the_attributes_that_settings_name() {
        let records =
            records("otlp:status,path,code=status,route,authority,header(x-a),header(x-b)");
        let registry = Registry::new().with_access_records(Some(Rc::clone(&records)));
        request(&registry, "/items?id=1", &[("X-A", "one"), ("x-a", "two")]);
        let record = records.queue().take(10, usize::MAX).pop().unwrap();
        let text = |text: &str| AccessField::Text(text.to_owned());
        let wanted = [
            ("http.response.status_code", AccessField::Number(503)),
            ("url.path", text("/items")),
            ("code", AccessField::Number(503)),
            ("leno.route", text("HTTPRoute shop/cart rule 0")),
            ("server.address", text("cart")),
            ("http.request.header.x-a", text("one")),
        ]
        .map(|(key, value)| (key.to_owned(), value));
        assert_eq!(record.attributes, wanted);
        assert!(record.is_failed && record.is_request && record.trace.is_none());
        assert!(record.at_unix_us > 0);
    }

    #[test]
    fn exports_are_in_no_log() {
        let records = records("otlp");
        let registry = Registry::new().with_access_records(Some(Rc::clone(&records)));
        request(&registry, "/v1/logs", &[("b3", "0")]);
        assert!(records.queue().take(10, usize::MAX).is_empty());
        // Exports of applications are logged.
        request(&registry, "/v1/logs", &[]);
        request(&registry, "/v1/log", &[("b3", "0")]);
        assert_eq!(records.queue().take(10, usize::MAX).len(), 2);
    }

    #[test]
    fn long_records_are_exported_in_several_messages_and_do_not_fill_the_memory() {
        // Each record has 16 fields of 1 KiB.
        let names: Vec<String> = (0..16).map(|nth| format!("x-{nth}")).collect();
        let fields: Vec<String> = names.iter().map(|name| format!("header({name})")).collect();
        let records = records(&format!("otlp:{}", fields.join(",")));
        let registry = Registry::new().with_access_records(Some(Rc::clone(&records)));
        let value = "x".repeat(2 << 10);
        let headers: Vec<(&str, &str)> = names.iter().map(|name| (&**name, &*value)).collect();
        (0..1000).for_each(|_| request(&registry, "/", &headers));
        let batch = records.queue().take(512, 1 << 20);
        assert!((50..65).contains(&batch.len()), "{}", batch.len());
        // A record that is longer than a message is sent in a message of its own.
        assert_eq!(records.queue().take(512, 1).len(), 1);
        let rest = records.queue().take(usize::MAX, usize::MAX).len();
        assert!(rest < 256, "{rest} records of 16 KiB were queued");
        request(&registry, "/", &headers);
        assert_eq!(records.queue().take(512, 1 << 20).len(), 1, "there is room again");
    }

    #[test]
    fn records_beyond_the_queue_are_dropped_and_counted() {
        let records = records("otlp:status");
        let registry = Registry::new().with_access_records(Some(Rc::clone(&records)));
        for _ in 0..MAX_RECORDS + 3 {
            request(&registry, "/", &[]);
        }
        let page = crate::render(&registry.snapshot(), &[], false);
        assert!(page.contains("leno_access_log_records_total{result=\"dropped\"} 3"), "{page}");
        assert_eq!(records.queue().take(usize::MAX, usize::MAX).len(), MAX_RECORDS);
    }
}
