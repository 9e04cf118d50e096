//! The Discovery service: one task per stream, between a proxy's requests and the index.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_types::InstanceName;
use leno_wire::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, discovery_server};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::metrics::Held;
use crate::peer::{Peer, PeerCertificate};
use crate::recognise::Recogniser;
use crate::state::{Changes, State};
use crate::subscriber::{Batch, Subscriber};

/// Most streams at once, one of each proxy; half the connections, as a proxy may renew its
/// certificate on another.
pub const MAX_STREAMS: usize = 8_192;
/// Responses that wait for the connection to take them; the next is made when this one is gone.
const OUTSTANDING: usize = 1;
/// Longest wait for the first request of a stream.
const FIRST_REQUEST: Duration = Duration::from_secs(10);
/// Changes come in bursts; a push waits until there was none for this long ...
const DEBOUNCE: Duration = Duration::from_millis(10);
/// ... but never longer than this.
const MAX_DEBOUNCE: Duration = Duration::from_millis(100);
/// Longest part of a proxy's own error that is logged, in characters.
const LOGGED: usize = 1_024;

type Answer = Result<DeltaDiscoveryResponse, Status>;

/// Serves streams.
pub(crate) struct DiscoveryService {
    recogniser: Recogniser,
    places: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
}

/// One stream. Its task ends with the client's requests, the connection, the client's certificate
/// or the server, whichever is first.
struct Stream {
    state: Arc<State>,
    subscriber: Subscriber,
    instance: InstanceName,
    requests: Streaming<DeltaDiscoveryRequest>,
    version: watch::Receiver<u64>,
    /// The version of the index that the subscriber has been told of.
    seen: u64,
    nonce: u64,
    debounce: Debounce,
}

/// When the next push is due.
#[derive(Default)]
struct Debounce {
    first: Option<Instant>,
    last: Option<Instant>,
}

impl DiscoveryService {
    pub(crate) fn new(recogniser: Recogniser, stop: watch::Receiver<bool>) -> Self {
        Self { recogniser, places: Arc::new(Semaphore::new(MAX_STREAMS)), stop }
    }

    fn admit(
        &self,
        peer: Option<&Peer>,
    ) -> Result<(PeerCertificate, OwnedSemaphorePermit), Status> {
        let certificate = peer.and_then(|peer| peer.certificate.clone()).ok_or_else(|| {
            Status::unauthenticated("discovery needs a certificate: ask for one with your token")
        })?;
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| Status::resource_exhausted("too many streams"))?;
        Ok((certificate, place))
    }
}

#[tonic::async_trait]
impl discovery_server::Discovery for DiscoveryService {
    type DeltaAggregatedResourcesStream = ReceiverStream<Answer>;

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let admitted = self.admit(request.extensions().get::<Peer>());
        let (certificate, place) = admitted.inspect_err(|status| {
            self.recogniser.state.metrics.streams_refused.increment();
            tracing::warn!(reason = status.message(), "discovery refused");
        })?;
        let (responses, receiver) = mpsc::channel(OUTSTANDING);
        let (recogniser, stop) = (self.recogniser.clone(), self.stop.clone());
        let requests = request.into_inner();
        tokio::spawn(async move {
            let _counted = Held::new(&recogniser.state.metrics, |metrics| &metrics.streams);
            let sender = responses.clone();
            let ended = serve(&recogniser, certificate, requests, responses, stop).await;
            if let Err(status) = ended {
                // No receiver: the connection has ended, and nobody is left to be told.
                let _ = sender.send(Err(status)).await;
            }
            drop(place);
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

async fn serve(
    recogniser: &Recogniser,
    certificate: PeerCertificate,
    mut requests: Streaming<DeltaDiscoveryRequest>,
    responses: mpsc::Sender<Answer>,
    stop: watch::Receiver<bool>,
) -> Result<(), Status> {
    let first = tokio::time::timeout(FIRST_REQUEST, requests.message()).await;
    let late = |_| Status::deadline_exceeded("the first request did not come in time");
    let Some(first) = first.map_err(late)?? else {
        return Ok(());
    };
    let state = Arc::clone(&recogniser.state);
    let recognised = recogniser.recognise(&certificate, &first).await;
    let instance = recognised.inspect_err(|status| {
        state.metrics.streams_refused.increment();
        tracing::warn!(identity = %certificate.identity, reason = status.message(), "discovery refused");
    })?;
    tracing::info!(%instance, identity = %certificate.identity, "discovery stream opened");
    let version = state.subscribe();
    let seen = *version.borrow();
    let mut stream = Stream {
        subscriber: Subscriber::new(instance.clone()),
        instance: instance.clone(),
        requests,
        version,
        seen,
        nonce: 0,
        debounce: Debounce::default(),
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

/// Why a stream must end though both ends go on.
pub(crate) async fn ended(not_after: SystemTime, mut stop: watch::Receiver<bool>) -> Status {
    let left = not_after.duration_since(SystemTime::now()).unwrap_or_default();
    tokio::select! {
        () = tokio::time::sleep(left) => Status::unauthenticated(
            "the certificate of this connection has ended: connect with the next one",
        ),
        // A dropped sender says the same.
        _ = stop.wait_for(|stop| *stop) => Status::unavailable("the control plane is ending"),
    }
}

impl Stream {
    async fn run(&mut self, responses: &mpsc::Sender<Answer>) -> Result<(), Status> {
        loop {
            let due = self.debounce.due();
            let ready = self.subscriber.is_urgent() || due.is_none() && self.subscriber.is_dirty();
            tokio::select! {
                request = self.requests.message() => match request? {
                    Some(request) => self.take(request),
                    None => return Ok(()),
                },
                changed = self.version.changed() => {
                    changed.map_err(|_| Status::unavailable("the control plane is ending"))?;
                    self.follow();
                }
                () = sleep_until(due), if due.is_some() => self.debounce = Debounce::default(),
                permit = responses.reserve(), if ready => {
                    let permit = permit.map_err(|_| Status::cancelled("nobody listens"))?;
                    // Made only now, so that it says what is true when it leaves.
                    let batch = self.subscriber.flush(&self.state.view());
                    if let Some(batch) = batch {
                        self.nonce += 1;
                        permit.send(Ok(self.state.response(batch, self.nonce)));
                    }
                }
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

    /// Tells the subscriber what has changed since it was last told.
    fn follow(&mut self) {
        let (version, changes) = self.state.since(self.seen);
        self.seen = version;
        let concerned = match changes {
            // All of them: each marks what it concerns.
            Changes::Each(changes) => {
                changes.iter().filter(|touched| self.subscriber.touch(touched)).count() > 0
            }
            Changes::TooMany => {
                self.state.metrics.catch_ups.increment();
                self.subscriber.touch_all();
                true
            }
        };
        if concerned {
            self.debounce.note(Instant::now());
        }
    }
}

impl Debounce {
    fn note(&mut self, now: Instant) {
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    fn due(&self) -> Option<Instant> {
        let (first, last) = (self.first?, self.last?);
        Some((last + DEBOUNCE).min(first + MAX_DEBOUNCE))
    }
}

async fn sleep_until(instant: Option<Instant>) {
    if let Some(instant) = instant {
        tokio::time::sleep_until(instant).await;
    }
}

impl State {
    fn response(&self, batch: Batch, nonce: u64) -> DeltaDiscoveryResponse {
        let Batch { type_url, resources, removed } = batch;
        self.metrics.responses.increment();
        self.metrics.resources_sent.add(resources.len() as u64);
        self.metrics.removals_sent.add(removed.len() as u64);
        DeltaDiscoveryResponse {
            system_version_info: self.version().to_string(),
            resources: resources.iter().map(|resource| resource.message()).collect(),
            type_url: type_url.to_owned(),
            nonce: nonce.to_string(),
            removed_resources: removed,
        }
    }
}
