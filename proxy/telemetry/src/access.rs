//! The access log: one line or record for each request and opaque connection. Off by default.
//!
//! ```text
//! settings ─► Layout ─┬─► Log: text or JSON, to standard output by a thread that all workers share
//!                     └─► Records: of one worker, to a collector by OTLP
//! ```
//! Without a log, a request costs one check of an `Option`. With a log, its method, its target and the headers that the
//! layout names are copied when it begins, and at its end only the fields of the layout are computed. No request waits:
//! if a queue is full, the line or record is dropped and counted.

mod field;
mod line;
mod log;
mod records;
mod settings;

use std::borrow::Cow;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leno_tap::{TappedRequest, TraceIds};

use crate::counter::Counter;
use crate::edge::EdgeLabels;
use crate::observed;
use crate::tap::{MASK, is_secret, masked_target};

pub use field::{Field, FieldName, UnknownField};
pub use log::Log;
pub use records::{MAX_RECORDS, Records};
pub use settings::{AccessSettings, AccessSettingsError, Form, Layout};

/// The longest text of a field, in bytes. The rest is cut off.
pub(crate) const MAX_FIELD_BYTES: usize = 1024;

/// Where the lines or records of a worker go.
#[derive(Debug)]
pub(crate) enum AccessLog {
    Lines(Log),
    Records(Rc<Records>),
}

/// The parts of a request that are copied when it begins.
#[derive(Debug)]
pub(crate) struct Noted {
    method: Box<str>,
    target: Box<[u8]>,
    headers: Vec<(Box<str>, Box<[u8]>)>,
}

/// The contents of one line or record.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    /// The client and the server.
    pub edge: &'a EdgeLabels,
    /// The request's method, or `TCP` for an opaque connection.
    pub method: &'a str,
    /// The protocol of the request, for example `HTTP/2`. For an opaque connection it is `TLS` if the connection
    /// carries TLS.
    pub protocol: Option<&'a str>,
    /// The request's target, or the original destination.
    pub target: &'a [u8],
    /// The status of the response. `None` for an opaque connection.
    pub status: Option<u16>,
    /// The `grpc-status` of a gRPC call.
    pub grpc_status: Option<u8>,
    /// The host in the ClientHello of a TLS connection.
    pub server_name: Option<&'a str>,
    /// The numbers of bytes from the client and from the server.
    pub bytes: (u64, u64),
    /// The time from the head of the request to the end of the response.
    pub duration: Duration,
    /// Why the mesh failed the request or connection. `None` if it did not.
    pub error: Option<&'a str>,
    /// The trace to which the request belongs.
    pub trace: Option<TraceIds>,
    /// More details of the request, if the layout names them.
    pub observed: Option<&'a TappedRequest>,
    /// The headers of the request that the layout names.
    pub headers: &'a [(Box<str>, Box<[u8]>)],
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Text(Cow<'a, [u8]>),
    Number(u64),
    Flag(bool),
}

impl AccessLog {
    pub(crate) fn layout(&self) -> &Layout {
        match self {
            Self::Lines(log) => log.layout(),
            Self::Records(records) => records.layout(),
        }
    }

    /// Copies those parts of a request that its line or record needs. `None` if the request must not be logged, because
    /// it exports records of this log itself.
    pub(crate) fn note<'h, H>(
        &self,
        method: &str,
        target: &[u8],
        headers: impl Fn() -> H,
    ) -> Option<Noted>
    where
        H: Iterator<Item = (&'h str, &'h [u8])>,
    {
        if matches!(self, Self::Records(_)) && records::is_export(target, &headers) {
            return None;
        }
        let shown = target.get(..MAX_FIELD_BYTES).unwrap_or(target);
        let headers = self.layout().headers.iter().filter_map(|wanted| {
            let (_, value) = headers().find(|(name, _)| name.eq_ignore_ascii_case(wanted))?;
            let value = if is_secret(wanted) { MASK.as_bytes() } else { value };
            Some((wanted.clone(), value.get(..MAX_FIELD_BYTES).unwrap_or(value).into()))
        });
        let method = method.get(..MAX_FIELD_BYTES).unwrap_or(method);
        Some(Noted { method: method.into(), target: shown.into(), headers: headers.collect() })
    }

    /// Queues a line or record. If it was dropped, returns the counter for that.
    pub(crate) fn write(&self, record: &Record<'_>) -> Option<Counter> {
        let (is_queued, lost) = match self {
            Self::Lines(log) => (log.write(record), Counter::AccessLogDropped),
            Self::Records(records) => (records.push(record), Counter::AccessRecordsDropped),
        };
        (!is_queued).then_some(lost)
    }
}

impl Noted {
    pub(crate) fn record<'a>(&'a self, edge: &'a EdgeLabels) -> Record<'a> {
        let Self { method, target, headers } = self;
        Record { method, target, headers, ..Record::of(edge) }
    }
}

impl<'a> Record<'a> {
    /// A record that only contains the client and the server.
    #[must_use]
    pub fn of(edge: &'a EdgeLabels) -> Self {
        Self {
            edge,
            method: "",
            protocol: None,
            target: b"",
            status: None,
            grpc_status: None,
            server_name: None,
            bytes: (0, 0),
            duration: Duration::ZERO,
            error: None,
            trace: None,
            observed: None,
            headers: &[],
        }
    }

    /// When the request or the connection began, in microseconds of Unix time.
    fn began_unix_us(&self) -> u64 {
        let began = SystemTime::now().checked_sub(self.duration).unwrap_or(UNIX_EPOCH);
        micros(began.duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    /// Whether the mesh or the server failed the request or connection.
    fn is_failed(&self) -> bool {
        self.error.is_some()
            || self.status.is_some_and(|status| status >= 500)
            || self.grpc_status.is_some_and(leno_tap::is_failed_call)
    }

    /// The value of a field, if the request or the connection has one.
    pub(crate) fn value(&self, field: &Field) -> Option<Value<'_>> {
        match field {
            Field::Named(name) => self.named(*name).or_else(|| self.of_observed(*name)),
            Field::Header(name) => {
                let (_, value) = self.headers.iter().find(|(own, _)| own == name)?;
                Some(Value::Text(Cow::Borrowed(value)))
            }
        }
    }

    fn named(&self, name: FieldName) -> Option<Value<'_>> {
        let qualified = |namespace: &str, name: &str| owned(qualified(namespace, name));
        let edge = self.edge;
        Some(match name {
            FieldName::Time => owned(line::rfc3339(self.began_unix_us())),
            FieldName::Direction => text(edge.direction.as_str()),
            FieldName::Client => qualified(&edge.client_namespace, &edge.client),
            FieldName::Server => qualified(&edge.server_namespace, &edge.server),
            FieldName::Service => text(non_empty(&edge.service)?),
            FieldName::Method => text(self.method),
            FieldName::Target => Value::Text(masked_target(self.target)),
            FieldName::Path => Value::Text(Cow::Borrowed(observed::path(self.target))),
            FieldName::Protocol => text(self.protocol?),
            FieldName::Status => Value::Number(self.status?.into()),
            FieldName::GrpcStatus => Value::Number(self.grpc_status?.into()),
            FieldName::ServerName => text(self.server_name?),
            FieldName::RequestBytes => Value::Number(self.bytes.0),
            FieldName::ResponseBytes => Value::Number(self.bytes.1),
            FieldName::DurationUs => Value::Number(micros(self.duration)),
            FieldName::Mtls => Value::Flag(edge.mtls),
            FieldName::Error => text(self.error?),
            FieldName::TraceId => owned(format!("{:032x}", self.trace?.trace_id)),
            FieldName::SpanId => owned(format!("{:016x}", self.trace?.span_id)),
            _ => return None,
        })
    }

    fn of_observed(&self, name: FieldName) -> Option<Value<'_>> {
        let request = self.observed?;
        let latency = &request.latency;
        Some(match name {
            FieldName::Authority => text(non_empty(&request.authority)?),
            FieldName::Route => text(request.route.as_deref()?),
            FieldName::Retries => Value::Number(request.retries.into()),
            FieldName::ClientIdentity => text(request.client_identity.as_deref()?),
            FieldName::ServerIdentity => text(request.server_identity.as_deref()?),
            FieldName::ClientProxyUs => Value::Number(latency.client_proxy_us?),
            FieldName::ServerProxyUs => Value::Number(latency.server_proxy_us?),
            FieldName::ApplicationUs => Value::Number(latency.application_us?),
            FieldName::ResponseUs => Value::Number(latency.response_us?),
            _ => return None,
        })
    }
}

fn text(text: &str) -> Value<'_> {
    Value::Text(Cow::Borrowed(text.as_bytes()))
}

fn owned<'a>(text: String) -> Value<'a> {
    Value::Text(Cow::Owned(text.into_bytes()))
}

fn non_empty(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

pub(crate) fn qualified(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}
