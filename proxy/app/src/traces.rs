//! Exports the spans of a worker to a collector, which is a service of the mesh or outside of it, by OTLP.
//!
//! ```text
//! requests ─► Traces (bounded) ─► a batch, after a second at the latest ─► a request of the proxy's own ─► the collector
//!                                        ▲                                        │
//!                                        └── waits longer each time, four tries ◄─┘
//! ```
//! It runs between the requests of the worker, on its thread, and no request waits for it. Spans that do not fit meanwhile
//! are dropped and counted.

use std::rc::Rc;
use std::time::Duration;

use http_body_util::Full;
use hyper::{Request, StatusCode};
use leno_inbound::calls::{Call, CallError, GrpcConnection, over_http};
use leno_inbound::{MeshPort, MeshServices};
use leno_telemetry::trace::{TraceProtocol, TraceSettings, Traces};
use leno_telemetry::{Counter, Registry};
use leno_transport::Activity;
use leno_types::{InstanceName, NameError, ServiceName};
use leno_wire::{Bytes, otlp};
use tokio::time::{sleep, timeout};

/// Most spans of one message: some 300 KB.
const BATCH: usize = 512;
/// How long a span waits for others.
const DELAY: Duration = Duration::from_secs(1);
/// When an export is given up.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often a batch is sent before it counts as failed.
const TRIES: u32 = 4;
/// How long the exporter waits after the first failure, and twice as long after each further one.
const PAUSE: Duration = Duration::from_secs(1);
/// What says that a request belongs to no trace, so that exports have no spans.
const UNTRACED: (&str, &str) = ("b3", "0");

/// What a worker is told of traces.
#[derive(Clone, Debug)]
pub(crate) struct TracePlan {
    /// Which requests have spans, and where these go.
    pub(crate) settings: TraceSettings,
    /// The workload that the spans are of.
    pub(crate) workload: String,
}

/// The exporter of one worker.
pub(crate) struct Exporter {
    traces: Rc<Traces>,
    registry: Rc<Registry>,
    activity: Rc<Activity>,
    instance: InstanceName,
    /// The name of the workload of the instance.
    workload: String,
    collector: Rc<dyn MeshPort>,
    grpc: GrpcConnection,
}

impl Exporter {
    pub(crate) fn new(
        traces: Rc<Traces>,
        (instance, workload): (InstanceName, String),
        services: &dyn MeshServices,
        (registry, activity): (Rc<Registry>, Rc<Activity>),
    ) -> Result<Self, NameError> {
        let settings = traces.settings();
        let service = ServiceName::new(&settings.namespace, &settings.service)?;
        let collector = services.port(&service, settings.port);
        let grpc = GrpcConnection::default();
        Ok(Self { traces, registry, activity, instance, workload, collector, grpc })
    }

    /// Closes idle connections that are too old.
    pub(crate) fn sweep(&self) {
        self.collector.sweep();
    }

    /// Exports until the worker ends.
    pub(crate) async fn run(self: Rc<Self>) {
        loop {
            self.traces.wait_for(1).await;
            tokio::select! {
                () = self.traces.wait_for(BATCH) => {}
                () = sleep(DELAY) => {}
                // A proxy that ends does not wait for more.
                () = self.activity.drained() => {}
            }
            let spans = self.traces.take(BATCH);
            let count = u64::try_from(spans.len()).unwrap_or_default();
            let resource = otlp::Resource {
                namespace: &self.instance.namespace,
                service: &self.workload,
                instance: &self.instance.name,
            };
            let rejected = self.export(otlp::encode(resource, spans)).await.unwrap_or(count);
            let rejected = rejected.min(count);
            self.registry.count_many(Counter::SpansExported, count.saturating_sub(rejected));
            self.registry.count_many(Counter::SpansFailed, rejected);
        }
    }

    /// Sends a batch, several times if it must. Returns how many spans the collector has rejected.
    async fn export(&self, message: Bytes) -> Option<u64> {
        let mut pause = PAUSE;
        for made in 1..=TRIES {
            let error = match timeout(TIMEOUT, self.send(message.clone())).await {
                Ok(Ok(rejected)) => return Some(rejected),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer in time".to_owned(),
            };
            if made == TRIES {
                tracing::warn!(error, "spans are lost: the collector does not take them");
                break;
            }
            sleep(pause).await;
            pause = pause.saturating_mul(2);
        }
        None
    }

    async fn send(&self, message: Bytes) -> Result<u64, CallError> {
        match self.traces.settings().protocol {
            TraceProtocol::Grpc => {
                let call = Call {
                    authority: "collector",
                    path: otlp::EXPORT_PATH,
                    header: Some(UNTRACED),
                    message,
                    timeout: TIMEOUT,
                };
                Ok(otlp::rejected(&self.grpc.call(&*self.collector, call).await?))
            }
            TraceProtocol::Http => {
                let request = Request::post(otlp::HTTP_PATH)
                    .header("host", "collector")
                    .header("content-type", "application/x-protobuf")
                    .header(UNTRACED.0, UNTRACED.1)
                    .body(Full::new(message))
                    .map_err(|_| CallError::Request)?;
                let is_read = |status: StatusCode| status.is_success();
                let response = over_http(&*self.collector, request, is_read).await?;
                match response.status().is_success() {
                    true => Ok(otlp::rejected(response.body())),
                    false => Err(CallError::Unavailable),
                }
            }
        }
    }
}
