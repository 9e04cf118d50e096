//! OTLP records of the access log.

use bytes::Bytes;
use leno_tap::{AccessField, AccessRecord, TraceIds};
use prost::Message;

use super::{OtlpResource, flag, int, proto, scope, text};

const INFORMATION: i32 = 9;
const ERROR: i32 = 17;

/// Encodes these records of the access log as a message.
#[must_use]
pub fn encode_records(resource: OtlpResource<'_>, records: Vec<AccessRecord>) -> Bytes {
    let log_records = records.into_iter().map(record).collect();
    let request = proto::ExportLogsServiceRequest {
        resource_logs: vec![proto::ResourceLogs {
            resource: Some(resource.message()),
            scope_logs: vec![proto::ScopeLogs { scope: Some(scope()), log_records }],
        }],
    };
    request.encode_to_vec().into()
}

fn record(record: AccessRecord) -> proto::LogRecord {
    let time = record.at_unix_us.saturating_mul(1000);
    let attribute = |(key, value): &(String, AccessField)| match value {
        AccessField::Text(value) => text(key, value),
        AccessField::Number(value) => int(key, *value),
        AccessField::Flag(value) => flag(key, *value),
    };
    let (severity_number, severity) =
        if record.is_failed { (ERROR, "ERROR") } else { (INFORMATION, "INFO") };
    let event = if record.is_request { "leno.request" } else { "leno.connection" };
    let id = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
    let ids =
        |trace: TraceIds| (id(&trace.trace_id.to_be_bytes()), id(&trace.span_id.to_be_bytes()));
    let (trace_id, span_id) = record.trace.map(ids).unwrap_or_default();
    proto::LogRecord {
        time_unix_nano: time,
        severity_number,
        severity_text: severity.to_owned(),
        attributes: record.attributes.iter().map(attribute).collect(),
        flags: record.trace.map_or(0, |trace| u32::from(trace.sampled)),
        trace_id,
        span_id,
        observed_time_unix_nano: time,
        event_name: event.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_request_is_an_error_in_its_trace() {
        let made = record(AccessRecord {
            at_unix_us: 7,
            trace: Some(TraceIds { trace_id: 1, span_id: 2, sampled: true }),
            is_failed: true,
            is_request: true,
            attributes: vec![("leno.mtls".to_owned(), AccessField::Flag(true))],
        });
        assert_eq!((made.time_unix_nano, made.severity_number, made.flags), (7000, ERROR, 1));
        assert_eq!((made.trace_id.len(), made.span_id.len()), (16, 8));
        assert_eq!(
            (&*made.event_name, made.attributes),
            ("leno.request", vec![flag("leno.mtls", true)])
        );
    }
}
