//! The Discovery service. Each stream has one task, which answers a proxy's requests from the index.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_types::InstanceName;
use leno_wire::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, discovery_server};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::metrics::GaugeGuard;
use crate::peer::{ConnectionPeer, PeerCertificate};
use crate::recognise::Recogniser;
use crate::state::PlaneState;
use crate::stream_slots::{StreamSlots, displaced};
use crate::subscriber::{ResponseBatch, Subscriber};
use crate::subscriptions::Mailbox;

/// How many responses may wait for the connection. The next response is only built when none waits.
const OUTSTANDING: usize = 1;
/// Longest wait for the first request of a stream.
const FIRST_REQUEST: Duration = Duration::from_secs(10);
/// Shortest time between two pushes of changes on one stream. A stream whose subjects change all the time gets the
/// newest state at this interval, so its cost does not depend on the rate of changes. A change after a longer
/// pause is pushed at once, because changes that arrive together are already combined into one update of the
/// index.
const PACE: Duration = Duration::from_millis(50);
/// How long a proxy may keep its stream open after it was asked to reconnect.
const RECONNECT_GRACE: Duration = Duration::from_secs(30);
/// Longest part of a proxy's error message that is logged, in characters.
const LOGGED: usize = 1_024;

type Answer = Result<DeltaDiscoveryResponse, Status>;

/// Serves discovery streams.
pub(crate) struct DiscoveryService {
    recogniser: Recogniser,
    places: StreamSlots,
    stop: watch::Receiver<bool>,
    /// How long streams last, plus or minus a quarter.
    age: Duration,
}

/// One stream. Its task ends when the client ends its requests or connection, when the client's certificate expires,
/// when the proxy does not reconnect although it was asked to, when the stream's slot is given to another client, or
/// when the server stops.
struct Stream {
    state: Arc<PlaneState>,
    subscriber: Subscriber,
    instance: InstanceName,
    requests: Streaming<DeltaDiscoveryRequest>,
    mailbox: Arc<Mailbox>,
    /// The number of the last response.
    nonce: u64,
    pacing: Pacing,
    /// When the proxy will be asked to reconnect, and later when the stream ends.
    age: StreamAge,
}

/// The age of a stream:
///
/// ```text
///   Young(until) ── until: reconnect is requested ──► Asked(until) ── until: the stream ends with an error
///                                                          └─ the proxy opens another stream and ends this one
/// ```
#[derive(Clone, Copy)]
enum StreamAge {
    Young(Instant),
    Asked(Instant),
}

/// Decides when the next push of changes is due.
#[derive(Default)]
struct Pacing {
    /// When waiting changes may be pushed; `None` if they may be pushed at once.
    due: Option<Instant>,
    /// When a batch was last pushed.
    pushed: Option<Instant>,
}

impl DiscoveryService {
    pub(crate) fn new(recogniser: Recogniser, stop: watch::Receiver<bool>, age: Duration) -> Self {
        Self { recogniser, places: StreamSlots::default(), stop, age }
    }
}

#[tonic::async_trait]
impl discovery_server::Discovery for DiscoveryService {
    type DeltaAggregatedResourcesStream = ReceiverStream<Answer>;

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let admitted =
            self.places.admit(request.extensions().get::<ConnectionPeer>(), "discovery streams");
        let (certificate, place) = admitted.inspect_err(|status| {
            self.recogniser.state.metrics.streams_refused.increment();
            tracing::warn!(reason = status.message(), "discovery refused");
        })?;
        let (responses, receiver) = mpsc::channel(OUTSTANDING);
        let (recogniser, stop) = (self.recogniser.clone(), self.stop.clone());
        let (requests, places) = (request.into_inner(), self.places.clone());
        // The lifetime is random, so that streams that began together do not end together.
        let age =
            StreamAge::Young(Instant::now() + self.age.mul_f64(0.75 + 0.5 * random_fraction()));
        tokio::spawn(async move {
            let _counted = GaugeGuard::new(&recogniser.state.metrics, |metrics| &metrics.streams);
            let sender = responses.clone();
            let talk = (requests, responses, stop);
            let served = serve((&recogniser, &places), certificate, talk, age);
            let ended = place.hold(served).await;
            if let Err(status) = ended.unwrap_or_else(|| Err(displaced())) {
                // Sending fails if the connection has ended, so that there is no client to answer.
                let _ = sender.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

type StreamParts = (Streaming<DeltaDiscoveryRequest>, mpsc::Sender<Answer>, watch::Receiver<bool>);

async fn serve(
    (recogniser, places): (&Recogniser, &StreamSlots),
    certificate: PeerCertificate,
    (mut requests, responses, stop): StreamParts,
    age: StreamAge,
) -> Result<(), Status> {
    let first = tokio::time::timeout(FIRST_REQUEST, requests.message()).await;
    let late = |_| Status::deadline_exceeded("the first request did not arrive in time");
    let Some(first) = first.map_err(late)?? else {
        return Ok(());
    };
    let state = Arc::clone(&recogniser.state);
    let recognised = recogniser.recognise(&certificate, &first).await;
    let recognised = recognised.and_then(|one| Ok((places.of_instance(&one)?, one)));
    let (_place, instance) = recognised.inspect_err(|status| {
        state.metrics.streams_refused.increment();
        tracing::warn!(identity = %certificate.identity, reason = status.message(), "discovery refused");
    })?;
    tracing::info!(%instance, identity = %certificate.identity, "discovery stream opened");
    let identity = certificate.identity.clone();
    let subscriber = Subscriber::new(Arc::clone(&state), instance.clone(), identity);
    let mut stream = Stream {
        mailbox: subscriber.mailbox(),
        subscriber,
        instance: instance.clone(),
        requests,
        nonce: 0,
        pacing: Pacing::default(),
        age,
        state,
    };
    stream.take(first);
    let ended = tokio::select! {
        ended = stream.run(&responses) => ended,
        status = ended(certificate.not_after, stop) => Err(status),
    };
    let reason = ended.as_ref().err().map(Status::message);
    tracing::info!(%instance, reason, "discovery stream ended");
    ended
}

/// Waits until a stream must end although the client and the connection work. Returns the reason.
pub(crate) async fn ended(not_after: SystemTime, mut stop: watch::Receiver<bool>) -> Status {
    let left = not_after.duration_since(SystemTime::now()).unwrap_or_default();
    tokio::select! {
        () = tokio::time::sleep(left) => Status::unauthenticated(
            "the certificate of this connection has expired: connect with the next one",
        ),
        // If the sender was dropped, the control plane is ending.
        _ = stop.wait_for(|stop| *stop) => Status::unavailable("the control plane is ending"),
    }
}

impl Stream {
    async fn run(&mut self, responses: &mpsc::Sender<Answer>) -> Result<(), Status> {
        loop {
            let due = self.pacing.due;
            let ready = self.subscriber.is_urgent() || due.is_none() && self.subscriber.is_dirty();
            tokio::select! {
                request = self.requests.message() => match request? {
                    Some(request) => self.take(request),
                    None => return Ok(()),
                },
                () = self.mailbox.changed() => {
                    if self.subscriber.collect() {
                        self.pacing.note(Instant::now());
                    }
                }
                () = sleep_until(due), if due.is_some() => self.pacing.due = None,
                permit = responses.reserve(), if ready => {
                    let permit = permit.map_err(|_| Status::cancelled("the proxy has closed the stream"))?;
                    // The response is built as late as possible, so that it contains the newest state.
                    let batch = self.subscriber.flush();
                    // The delay of a change is not recorded if the change makes no difference to the proxy.
                    let since = self.subscriber.sent_since();
                    if let Some(batch) = batch {
                        self.nonce += 1;
                        self.pacing.pushed = Some(Instant::now());
                        permit.send(Ok(self.state.response(batch, self.nonce)));
                        if let Some(since) = since {
                            self.state.metrics.push_delays.observe(since.elapsed());
                        }
                    }
                }
                () = tokio::time::sleep_until(self.age.until()) => match self.age {
                    StreamAge::Young(_) => {
                        self.age = StreamAge::Asked(Instant::now() + RECONNECT_GRACE);
                        self.subscriber.reconnect();
                    }
                    StreamAge::Asked(_) => {
                        return Err(Status::unavailable("the stream has reached its largest age: connect again"));
                    }
                },
                () = responses.closed() => return Ok(()),
            }
        }
    }

    fn take(&mut self, request: DeltaDiscoveryRequest) {
        let metrics = &self.state.metrics;
        metrics.requests.increment();
        if let Some(error) = &request.error_detail {
            metrics.nacks.increment();
            let reason: String = error.message.chars().take(LOGGED).collect();
            let (instance, nonce) = (&self.instance, &request.response_nonce);
            tracing::warn!(%instance, nonce, kind = request.type_url, reason, "response refused");
        }
        let taken = self.subscriber.take(request);
        if taken.refused > 0 {
            metrics.subscriptions_refused.add(taken.refused);
            tracing::warn!(instance = %self.instance, refused = taken.refused, "too many subscriptions");
        }
    }
}

impl StreamAge {
    fn until(self) -> Instant {
        match self {
            Self::Young(until) | Self::Asked(until) => until,
        }
    }
}

/// A random number from 0 to below 1.
fn random_fraction() -> f64 {
    // The hasher is seeded randomly by the system. 53 bits are as many as a double can represent exactly.
    (RandomState::new().hash_one(0_u8) >> 11) as f64 / (1_u64 << 53) as f64
}

impl Pacing {
    /// Records that there are changes to push.
    fn note(&mut self, now: Instant) {
        let paced = self.pushed.map(|pushed| pushed + PACE).filter(|due| *due > now);
        self.due = self.due.or(paced);
    }
}

async fn sleep_until(instant: Option<Instant>) {
    if let Some(instant) = instant {
        tokio::time::sleep_until(instant).await;
    }
}

impl PlaneState {
    fn response(&self, batch: ResponseBatch, nonce: u64) -> DeltaDiscoveryResponse {
        let ResponseBatch { type_url, resources, removed } = batch;
        self.metrics.responses.increment();
        self.metrics.resources_sent.add(resources.len() as u64);
        self.metrics.removals_sent.add(removed.len() as u64);
        DeltaDiscoveryResponse {
            system_version_info: self.version().to_string(),
            resources,
            type_url: type_url.to_owned(),
            nonce: nonce.to_string(),
            removed_resources: removed,
        }
    }
}
