//! Exports the spans of a worker, or the records of its access log, by OTLP to a collector, which is a service of the
//! mesh or outside of it.
//!
//! ```text
//! requests ─► Queue (bounded) ─► a batch, after a second at the latest ─► a request by the proxy itself ─► the collector
//!                                        ▲                                        │
//!                                        └── waits longer each time, four tries ◄─┘
//! ```
//! The exporter runs on the worker's thread, between requests, and no request waits for it. If the queue is full,
//! further spans and records are dropped and counted.

use std::rc::Rc;
use std::time::Duration;

use http_body_util::Full;
use hyper::{Request, StatusCode};
use leno_inbound::calls::{Call, CallError, GrpcConnection, over_http};
use leno_inbound::{MeshPort, MeshServices};
use leno_telemetry::access::Records;
use leno_telemetry::trace::{TraceProtocol, TraceSettings, Traces};
use leno_telemetry::{Counter, Registry};
use leno_transport::Activity;
use leno_types::{InstanceName, NameError, ServiceName};
use leno_wire::Bytes;
use leno_wire::otlp::{self, ExportPaths};
use tokio::time::{sleep, timeout};

/// How many spans or records one message may have. They take some 300 KB.
const BATCH: usize = 512;
/// How many bytes one message may have, approximately. Collectors reject messages of more than 4 MiB.
const BATCH_BYTES: usize = 1 << 20;
/// How long a span or record may wait for others.
const DELAY: Duration = Duration::from_secs(1);
/// How long one attempt to export may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often a batch is sent before it counts as failed.
const TRIES: u32 = 4;
/// The pause after the first failure. Each further pause is twice as long.
const PAUSE: Duration = Duration::from_secs(1);
/// The header that marks a request as not sampled, so that exports create no spans.
const UNTRACED: (&str, &str) = ("b3", "0");

/// The settings for the traces of a worker.
#[derive(Clone, Debug)]
pub(crate) struct TracePlan {
    /// Which requests have spans, and where the spans are sent.
    pub(crate) settings: TraceSettings,
    /// The workload to which the spans belong.
    pub(crate) workload: String,
}

/// The kind of data that is exported.
pub(crate) enum Signal {
    Spans(Rc<Traces>),
    Records(Rc<Records>),
}

/// A batch that the collector did not accept.
struct NotTaken {
    why: String,
    /// Whether the collector may accept it at the next attempt.
    is_temporary: bool,
}

impl From<CallError> for NotTaken {
    fn from(error: CallError) -> Self {
        let is_temporary = match error {
            CallError::Unavailable | CallError::Answer => true,
            CallError::Status { code, is_to_be_retried } => {
                is_temporary_in_grpc(code, is_to_be_retried)
            }
            CallError::Refused | CallError::Request => false,
        };
        Self { why: error.to_string(), is_temporary }
    }
}

/// Whether a batch must be sent again if its call ended with this status (OTLP 1.9, "Failures" of OTLP/gRPC).
fn is_temporary_in_grpc(code: u32, is_to_be_retried: bool) -> bool {
    match code {
        // These are CANCELLED, DEADLINE_EXCEEDED, ABORTED, OUT_OF_RANGE, UNAVAILABLE, DATA_LOSS.
        1 | 4 | 10 | 11 | 14 | 15 => true,
        // This is RESOURCE_EXHAUSTED. It may be retried only if the collector says when it will have recovered
        // (`RetryInfo`).
        8 => is_to_be_retried,
        _ => false,
    }
}

/// Whether a batch must be sent again after this status (OTLP 1.9, "Retryable Response Codes").
fn is_temporary(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

/// The exporter of one worker.
pub(crate) struct Exporter {
    signal: Signal,
    protocol: TraceProtocol,
    registry: Rc<Registry>,
    activity: Rc<Activity>,
    instance: InstanceName,
    /// The name of the workload to which the instance belongs.
    workload: String,
    collector: Rc<dyn MeshPort>,
    grpc: GrpcConnection,
}

impl Exporter {
    pub(crate) fn new(
        signal: Signal,
        plan: &TracePlan,
        instance: InstanceName,
        services: &dyn MeshServices,
        (registry, activity): (Rc<Registry>, Rc<Activity>),
    ) -> Result<Self, NameError> {
        let settings = &plan.settings;
        let service = ServiceName::new(&settings.namespace, &settings.service)?;
        let collector = services.port(&service, settings.port);
        let (protocol, workload) = (settings.protocol, plan.workload.clone());
        let grpc = GrpcConnection::default();
        Ok(Self { signal, protocol, registry, activity, instance, workload, collector, grpc })
    }

    /// Closes idle connections that are too old.
    pub(crate) fn sweep(&self) {
        self.collector.sweep();
    }

    /// Exports until the worker ends.
    pub(crate) async fn run(self: Rc<Self>) {
        loop {
            self.signal.wait_for(1).await;
            tokio::select! {
                () = self.signal.wait_for(BATCH) => {}
                () = sleep(DELAY) => {}
                // A proxy that is ending sends its batch at once.
                () = self.activity.drained() => {}
            }
            let resource = otlp::OtlpResource {
                namespace: &self.instance.namespace,
                service: &self.workload,
                instance: &self.instance.name,
            };
            let (message, count) = self.signal.take(resource);
            let count = u64::try_from(count).unwrap_or_default();
            let rejected = self.export(message).await.unwrap_or(count).min(count);
            let (exported, failed) = self.signal.counters();
            self.registry.count_many(exported, count.saturating_sub(rejected));
            self.registry.count_many(failed, rejected);
        }
    }

    /// Sends a batch, up to [`TRIES`] times. Returns how many entries the collector has rejected of a batch that it
    /// has accepted; `None` if it has not accepted the batch.
    async fn export(&self, message: Bytes) -> Option<u64> {
        let mut pause = PAUSE;
        for made in 1..=TRIES {
            let failed = match timeout(TIMEOUT, self.send(message.clone())).await {
                Ok(Ok(rejected)) => return Some(rejected),
                Ok(Err(failed)) => failed,
                Err(_) => NotTaken { why: "no answer in time".to_owned(), is_temporary: true },
            };
            if made == TRIES || !failed.is_temporary {
                let what = self.signal.name();
                let error = failed.why;
                tracing::warn!(
                    error,
                    "{what} are lost, because the collector does not accept them"
                );
                break;
            }
            sleep(pause).await;
            pause = pause.saturating_mul(2);
        }
        None
    }

    async fn send(&self, message: Bytes) -> Result<u64, NotTaken> {
        let paths = self.signal.paths();
        match self.protocol {
            TraceProtocol::Grpc => {
                let call = Call {
                    authority: "collector",
                    path: paths.grpc,
                    header: Some(UNTRACED),
                    message,
                    timeout: TIMEOUT,
                };
                Ok(otlp::rejected(&self.grpc.call(&*self.collector, call).await?))
            }
            TraceProtocol::Http => {
                let request = Request::post(paths.http)
                    .header("host", "collector")
                    .header("content-type", "application/x-protobuf")
                    .header(UNTRACED.0, UNTRACED.1)
                    .body(Full::new(message))
                    .map_err(|_| CallError::Request)?;
                let is_read = |status: StatusCode| status.is_success();
                let response = over_http(&*self.collector, request, is_read).await?;
                match response.status() {
                    status if status.is_success() => Ok(otlp::rejected(response.body())),
                    status if is_temporary(status) => Err(CallError::Unavailable.into()),
                    status => {
                        let why = format!("it answers {status}");
                        Err(NotTaken { why, is_temporary: false })
                    }
                }
            }
        }
    }
}

impl Signal {
    async fn wait_for(&self, count: usize) {
        match self {
            Self::Spans(traces) => traces.queue().wait_for(count).await,
            Self::Records(records) => records.queue().wait_for(count).await,
        }
    }

    /// A message with the oldest entries, and how many it has.
    fn take(&self, resource: otlp::OtlpResource<'_>) -> (Bytes, usize) {
        match self {
            Self::Spans(traces) => {
                let spans = traces.queue().take(BATCH, BATCH_BYTES);
                let count = spans.len();
                (otlp::encode_spans(resource, spans), count)
            }
            Self::Records(records) => {
                let records = records.queue().take(BATCH, BATCH_BYTES);
                let count = records.len();
                (otlp::encode_records(resource, records), count)
            }
        }
    }

    fn paths(&self) -> ExportPaths {
        match self {
            Self::Spans(_) => otlp::SPAN_PATHS,
            Self::Records(_) => otlp::RECORD_PATHS,
        }
    }

    /// The counters of entries that the collector accepted, and of the others.
    fn counters(&self) -> (Counter, Counter) {
        match self {
            Self::Spans(_) => (Counter::SpansExported, Counter::SpansFailed),
            Self::Records(_) => (Counter::AccessRecordsExported, Counter::AccessRecordsFailed),
        }
    }

    /// The name in messages to operators.
    fn name(&self) -> &'static str {
        match self {
            Self::Spans(_) => "spans",
            Self::Records(_) => "records of the access log",
        }
    }
}

#[cfg(test)]
mod tests;
