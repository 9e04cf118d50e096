//! The Limits service: it leases tokens of shared rate limits to proxies. All tokens of a limit come from one bucket.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leno_resilience::lease::{Allocator, Ask, Grant};
use leno_types::InstanceName;
use leno_types::traffic::RateLimit;
use leno_wire::proto::{
    DeltaDiscoveryRequest, LeaseAsk, LeaseGrant, LeaseRequest, LeaseResponse, limits_server,
};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::discovery::ended;
use crate::metrics::{GaugeGuard, Metrics};
use crate::peer::{ConnectionPeer, PeerCertificate};
use crate::recognise::Recogniser;
use crate::state::PlaneState;
use crate::stream_slots::{StreamSlots, displaced};

/// Most limits that are kept, which is far more than a mesh has. When a further one is needed, limits that no
/// proxy uses are dropped. If all are in use, the new limit is answered like an unknown one.
const MAX_LIMITS: usize = 4_096;
/// If there is no room for a limit, limits that no proxy has used for this time are dropped. A limit that is created
/// again starts without tokens, so clients gain nothing by waiting.
const LIMIT_IDLE: Duration = Duration::from_secs(60);
/// Most limits in one request. A proxy sends one entry for each limit and worker.
const MAX_ASKS: usize = 1_024;
/// Most pairs of limit and worker for which one proxy leases tokens. Real proxies have far fewer.
const MAX_HELD: usize = 4_096;
/// How many responses may wait for the connection. Further ones are dropped, because they would be outdated.
const OUTSTANDING: usize = 16;
/// Longest wait for the first request of a stream.
const FIRST_REQUEST: Duration = Duration::from_secs(10);

type Answer = Result<LeaseResponse, Status>;

/// Serves streams of leases.
pub(crate) struct LeaseService {
    recogniser: Recogniser,
    places: StreamSlots,
    stop: watch::Receiver<bool>,
    limits: Arc<Limits>,
}

/// The buckets of all limits, and the proxies and workers that hold tokens.
#[derive(Default)]
struct Limits {
    buckets: Mutex<HashMap<String, Bucket>>,
    streams: AtomicU64,
}

struct Bucket {
    allocator: Allocator,
    asked_at: Instant,
}

/// One stream of one proxy. A holder, to which tokens are leased, is one worker of the proxy for one limit.
struct Stream {
    state: Arc<PlaneState>,
    limits: Arc<Limits>,
    instance: InstanceName,
    /// The number of the stream, which is the upper part of the numbers of its holders.
    number: u64,
    /// The limits that the proxy has requested, by worker, each with the number of the holder within the stream.
    held: HashMap<(String, u32), u64>,
}

impl LeaseService {
    pub(crate) fn new(recogniser: Recogniser, stop: watch::Receiver<bool>) -> Self {
        Self { recogniser, places: StreamSlots::default(), stop, limits: Arc::default() }
    }
}

#[tonic::async_trait]
impl limits_server::Limits for LeaseService {
    type LeaseStream = ReceiverStream<Answer>;

    async fn lease(
        &self,
        request: Request<Streaming<LeaseRequest>>,
    ) -> Result<Response<Self::LeaseStream>, Status> {
        let admitted = self.places.admit(request.extensions().get::<ConnectionPeer>(), "leases");
        let (certificate, place) = admitted.inspect_err(|_| {
            self.recogniser.state.metrics.lease_streams_refused.increment();
        })?;
        let (responses, receiver) = mpsc::channel(OUTSTANDING);
        let (recogniser, stop) = (self.recogniser.clone(), self.stop.clone());
        let limits = Arc::clone(&self.limits);
        let (requests, places) = (request.into_inner(), self.places.clone());
        tokio::spawn(async move {
            let metrics = Arc::clone(&recogniser.state.metrics);
            let _counted = GaugeGuard::new(&metrics, |metrics| &metrics.lease_streams);
            let sender = responses.clone();
            let conversation = (requests, responses, stop);
            let served = serve((&recogniser, &places), limits, certificate, conversation);
            let ended = place.hold(served).await;
            if let Err(status) = ended.unwrap_or_else(|| Err(displaced())) {
                // Sending fails if the connection has ended, so that there is no client to answer.
                let _ = sender.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

type LeaseStreamParts = (Streaming<LeaseRequest>, mpsc::Sender<Answer>, watch::Receiver<bool>);

async fn serve(
    (recogniser, places): (&Recogniser, &StreamSlots),
    limits: Arc<Limits>,
    certificate: PeerCertificate,
    (mut requests, responses, stop): LeaseStreamParts,
) -> Result<(), Status> {
    let first = tokio::time::timeout(FIRST_REQUEST, requests.message()).await;
    let late = |_| Status::deadline_exceeded("the first request did not arrive in time");
    let Some(first) = first.map_err(late)?? else { return Ok(()) };
    let said = DeltaDiscoveryRequest { node: first.node.clone(), ..Default::default() };
    let recognised = recogniser.recognise(&certificate, &said).await;
    let recognised = recognised.and_then(|one| Ok((places.of_instance(&one)?, one)));
    let (_place, instance) = recognised.inspect_err(|status| {
        recogniser.state.metrics.lease_streams_refused.increment();
        tracing::warn!(identity = %certificate.identity, reason = status.message(), "leases refused");
    })?;
    let number = limits.streams.fetch_add(1, Ordering::Relaxed);
    let state = Arc::clone(&recogniser.state);
    let mut stream = Stream { state, limits, instance, number, held: HashMap::new() };
    stream.answer(first, &responses);
    let talk = async {
        while let Some(request) = requests.message().await? {
            stream.answer(request, &responses);
        }
        Ok(())
    };
    tokio::select! {
        done = talk => done,
        status = ended(certificate.not_after, stop) => Err(status),
    }
}

impl Stream {
    fn answer(&mut self, request: LeaseRequest, responses: &mpsc::Sender<Answer>) {
        let policy = self.state.server_policy(&self.instance);
        let shared = policy.as_ref().map_or(&[][..], |policy| &*policy.limits);
        let shared: Vec<&RateLimit> = shared.iter().filter(|limit| limit.is_global).collect();
        let asks = request.asks.into_iter().take(MAX_ASKS);
        let grants = asks.map(|ask| {
            let limit = shared.iter().find(|limit| limit.shared_name() == ask.limit);
            self.grant(ask, limit.copied())
        });
        let grants: Vec<LeaseGrant> = grants.collect();
        if !grants.is_empty() {
            let _dropped = responses.try_send(Ok(LeaseResponse { grants }));
        }
    }

    fn grant(&mut self, ask: LeaseAsk, limit: Option<&RateLimit>) -> LeaseGrant {
        let LeaseAsk { limit: name, worker, wanted } = ask;
        let Some(limit) = limit else {
            return LeaseGrant { limit: name, worker, tokens: 0, holders: 0 };
        };
        let places = self.held.len() as u64;
        let key = (name.clone(), worker);
        if self.held.len() >= MAX_HELD && !self.held.contains_key(&key) {
            return LeaseGrant { limit: name, worker, tokens: 0, holders: 0 };
        }
        let place = *self.held.entry(key).or_insert(places);
        // The lower 16 bits number the holders of one stream.
        let holder = (self.number << 16) | (place & 0xffff);
        let granted = self.limits.ask(&name, limit, (holder, Ask { wanted }));
        let metrics: &Metrics = &self.state.metrics;
        metrics.lease_asks.increment();
        metrics.leased_tokens.add(granted.tokens.into());
        let (tokens, holders) = (granted.tokens, granted.holders);
        LeaseGrant { limit: name, worker, tokens, holders }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut buckets = self.limits.buckets();
        for ((name, _), place) in &self.held {
            if let Some(bucket) = buckets.get_mut(name) {
                bucket.allocator.leave((self.number << 16) | (place & 0xffff));
            }
        }
    }
}

impl Limits {
    /// Poisoning is ignored, because changes under the lock are complete even after a panic.
    fn buckets(&self) -> MutexGuard<'_, HashMap<String, Bucket>> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, name: &str, limit: &RateLimit, (holder, ask): (u64, Ask)) -> Grant {
        let now = Instant::now();
        let mut buckets = self.buckets();
        if !buckets.contains_key(name) {
            if buckets.len() >= MAX_LIMITS {
                buckets.retain(|_, bucket| now.duration_since(bucket.asked_at) < LIMIT_IDLE);
            }
            if buckets.len() >= MAX_LIMITS {
                return Grant { tokens: 0, holders: 0 };
            }
            let allocator = Allocator::new(limit.requests, limit.per, limit.burst, now);
            buckets.insert(name.to_owned(), Bucket { allocator, asked_at: now });
        }
        let bucket = buckets.get_mut(name).expect("it was put in just now, if it was not there");
        bucket.asked_at = now;
        bucket.allocator.ask(holder, ask, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leno_types::traffic::LimitKey;

    #[test]
    fn a_limit_beyond_the_bound_is_answered_like_an_unknown_one() {
        let limit = RateLimit {
            source: leno_types::traffic::PolicySource::default(),
            port: None,
            key: LimitKey::Workload,
            requests: 1,
            per: Duration::from_secs(1),
            burst: 1,
            is_global: true,
        };
        let limits = Limits::default();
        let holders = |name: &str| limits.ask(name, &limit, (1, Ask { wanted: 1 })).holders;
        for nth in 0..MAX_LIMITS {
            assert_eq!(holders(&nth.to_string()), 1);
        }
        assert_eq!(holders("one more"), 0);
        assert_eq!(limits.buckets().len(), MAX_LIMITS);
        assert_eq!(holders("0"), 1, "limits that are kept still work");
        limits.buckets().get_mut("0").unwrap().asked_at -= LIMIT_IDLE;
        assert_eq!(holders("one more"), 1, "it replaces a limit that no proxy uses");
    }
}
