//! The webhooks that the API server calls: `/inject` and `/validate`.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use leno_admission::{AdmissionReview, InjectionSettings, ReviewAnswer, is_unjudged, judge};
use leno_program::content::{JSON, TEXT};
use leno_program::{AdminResponse as Reply, Family, Shares, respond};
use leno_serve::ServerCredentials;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::stored::AdmissionObjects;

/// Where pods are reviewed.
const INJECT: &str = "/inject";
/// Where objects of the mesh are reviewed.
const VALIDATE: &str = "/validate";

/// Most connections at once. The API server opens one for each review under way (it speaks HTTP/1.1 with
/// webhooks), so that 200 objects that are applied at once leave room for pods.
const MAX_CONNECTIONS: usize = 512;
/// Most of them of one address: any pod may connect here, and no pod is made while the API server cannot.
const MAX_OF_ADDRESS: usize = 320;
/// Largest body, in bytes, that is read without waiting for a turn: pods have a few KiB, and all
/// connections' together have 64 MiB.
const SMALL_BODY: u64 = 128 << 10;
/// Longest time for a body to come in; the API server is near.
const BODY_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest review, in bytes: the largest request that the API server takes itself (3 MiB), twice for an
/// object that is changed, and what is around it.
const MAX_BODY: usize = 7 << 20;
/// Longest wait for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest wait for the first request of a connection.
const FIRST_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest silence before a request's head is whole. Longer than the 90 s after which the API server
/// closes a connection that it does not use: were we first, a review could be under way.
const HEAD_TIMEOUT: Duration = Duration::from_secs(100);
/// Longest time for a review, waiting for its turn included; the API server waits for 10 s.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(8);

/// What the webhooks answer from.
pub(crate) struct Webhook {
    settings: InjectionSettings,
    stored: Arc<AdmissionObjects>,
    paths: ProvenPaths,
    lanes: [ReviewLane; 4],
    counts: [Counts; 4],
    spent_us: AtomicU64,
    ending: AtomicBool,
}

/// The bounds of one sort of reviews. Each has its own, so that none waits for another.
struct ReviewLane {
    /// Reviews under way. A permit is held until the work is over, be its answer still wanted or not.
    turns: Arc<Semaphore>,
    /// Reviews that wait for a turn. One too many is refused at once.
    queue: Semaphore,
    /// Bodies larger than [`SMALL_BODY`] that are held.
    large: Semaphore,
}

/// What became of the reviews of one kind.
#[derive(Debug, Default)]
struct Counts {
    changed: AtomicU64,
    allowed: AtomicU64,
    denied: AtomicU64,
    failed: AtomicU64,
    busy: AtomicU64,
}

/// The paths that only the API server knows. Any pod may connect here, and reviews of other callers have bounds of
/// their own; answers of `/validate` to them say nothing of the cluster. The API server calls `/inject` and `/validate`
/// themselves from an installation until the leader has written these paths.
pub(crate) struct ProvenPaths {
    pub(crate) inject: String,
    pub(crate) validate: String,
}

/// What a review is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReviewKind {
    /// Puts the proxy into a pod for the API server.
    Inject,
    /// The same for a caller that has not proved to be the API server.
    UnprovenInject,
    /// Judges an object of the mesh for the API server.
    Validate,
    /// Judges an object by itself, for a caller that has not proved to be the API server.
    Unproven,
}

/// Tells work on another thread that its answer is not wanted any more, once it is dropped.
#[derive(Debug, Default)]
struct Cancel(Arc<AtomicBool>);

/// Why a review has no answer: the API server goes by its `failurePolicy` then.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the request cannot be read: {0}")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the request is larger than {MAX_BODY} bytes")]
    TooLarge,
    #[error("the request has not come in within {BODY_TIMEOUT:?}")]
    Slow,
    #[error(transparent)]
    Review(#[from] leno_admission::ReviewError),
    #[error("the namespace {0} is not known yet")]
    Namespace(String),
    #[error("no answer within {REVIEW_TIMEOUT:?}")]
    Timeout,
    #[error("too many reviews of this kind wait already")]
    Busy,
    #[error("the review was not finished")]
    Panicked,
}

impl Webhook {
    /// Puts proxies like this into pods.
    pub(crate) fn new(
        settings: InjectionSettings,
        stored: Arc<AdmissionObjects>,
        secret: &str,
    ) -> Self {
        let counts = Default::default();
        Self {
            settings,
            stored,
            paths: ProvenPaths::new(secret),
            lanes: ReviewKind::ALL.map(ReviewLane::new),
            counts,
            spent_us: AtomicU64::new(0),
            ending: AtomicBool::new(false),
        }
    }

    /// Connections end after their next answer, so that the API server comes to other replicas.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Appends what was counted, as Prometheus text.
    pub(crate) fn render(&self, text: &mut String) {
        let help = "Objects reviewed for the API server, by result.";
        let mut reviews = Family::counter(text, "leno_control_reviews_total", help);
        for (kind, counts) in ReviewKind::ALL.into_iter().zip(&self.counts) {
            let Counts { changed, allowed, denied, failed, busy } = counts;
            let results = [
                ("changed", changed),
                ("allowed", allowed),
                ("denied", denied),
                ("failed", failed),
                ("busy", busy),
            ];
            for (result, count) in results {
                let labels = [("webhook", kind.as_str()), ("result", result)];
                reviews.sample(&labels, count.load(Ordering::Relaxed));
            }
        }
        let spent = Duration::from_micros(self.spent_us.load(Ordering::Relaxed)).as_secs_f64();
        let help = "Time spent on reviews.";
        Family::counter(text, "leno_control_review_seconds_total", help).sample(&[], spent);
    }

    async fn reply(&self, request: Request<Incoming>) -> Reply {
        let Some(kind) = self.kind(request.uri().path()) else {
            return text(StatusCode::NOT_FOUND, "use /inject or /validate\n");
        };
        if request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "use POST\n");
        }
        let begin = Instant::now();
        let answered = timeout(REVIEW_TIMEOUT, self.answer(kind, request.into_body())).await;
        let answered = answered.unwrap_or(Err(Failure::Timeout));
        let spent = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.spent_us.fetch_add(spent, Ordering::Relaxed);
        let counts = &self.counts[kind as usize];
        let count = match &answered {
            Ok((ReviewAnswer { denied: Some(_), .. }, _)) => &counts.denied,
            Ok((ReviewAnswer { patch: Some(_), .. }, _)) => &counts.changed,
            Ok(_) => &counts.allowed,
            Err(Failure::Busy) => &counts.busy,
            Err(_) => &counts.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
        match answered {
            Ok((_, text)) => respond(StatusCode::OK, JSON, text),
            Err(failure) => {
                tracing::warn!(webhook = kind.as_str(), %failure, "a review has no answer");
                let status = match failure {
                    Failure::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
                    Failure::Slow => StatusCode::REQUEST_TIMEOUT,
                    _ => StatusCode::SERVICE_UNAVAILABLE,
                };
                text(status, format!("{failure}\n"))
            }
        }
    }

    /// What a path asks for.
    fn kind(&self, path: &str) -> Option<ReviewKind> {
        // In a time that tells nothing of how much of it is right.
        let is = |own: &str| verify_slices_are_equal(path.as_bytes(), own.as_bytes()).is_ok();
        match path {
            INJECT => Some(ReviewKind::UnprovenInject),
            VALIDATE => Some(ReviewKind::Unproven),
            _ if is(&self.paths.inject) => Some(ReviewKind::Inject),
            _ if is(&self.paths.validate) => Some(ReviewKind::Validate),
            _ => None,
        }
    }

    /// The whole body. A client that sends only a part of a large one keeps no small one waiting.
    async fn read(&self, lane: &ReviewLane, body: Incoming) -> Result<Bytes, Failure> {
        let declared = body.size_hint().exact();
        if declared.is_some_and(|length| length > MAX_BODY as u64) {
            return Err(Failure::TooLarge);
        }
        let _turn = match declared {
            Some(length) if length <= SMALL_BODY => None,
            _ => Some(lane.large.acquire().await.map_err(|_| Failure::Timeout)?),
        };
        let read = timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY).collect()).await;
        match read.map_err(|_elapsed| Failure::Slow)? {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(Failure::TooLarge),
            Err(error) => Err(Failure::Body(error)),
        }
    }

    /// The answer, and as what it is sent.
    async fn answer(
        &self,
        kind: ReviewKind,
        body: Incoming,
    ) -> Result<(ReviewAnswer, String), Failure> {
        let lane = &self.lanes[kind as usize];
        let body = self.read(lane, body).await?;
        if !matches!(kind, ReviewKind::Inject | ReviewKind::UnprovenInject) {
            return self.judged(kind, lane.turn().await?, body).await;
        }
        let turn = lane.turn().await?;
        let review = AdmissionReview::parse(&body)?;
        drop((body, turn));
        // Without a turn: a review of a namespace that does not exist keeps no other waiting.
        let enclosing = self.stored.enclosing(&review).await;
        let enclosing = enclosing.ok_or_else(|| Failure::Namespace(review.namespace.clone()))?;
        let _turn = lane.turn().await?;
        let answer = review.inject(&self.settings, &enclosing);
        let text = review.answered(&answer);
        Ok((answer, text))
    }

    /// Judges on a thread of its own, as an object may be large. The thread holds the turn, and stops soon
    /// after this future is dropped.
    async fn judged(
        &self,
        kind: ReviewKind,
        turn: OwnedSemaphorePermit,
        body: Bytes,
    ) -> Result<(ReviewAnswer, String), Failure> {
        let cancel = Cancel::default();
        let (stored, flag) = (Arc::clone(&self.stored), Arc::clone(&cancel.0));
        let judged = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let cancelled = || flag.load(Ordering::Relaxed);
            if cancelled() {
                return Err(Failure::Timeout);
            }
            let review = AdmissionReview::parse(&body)?;
            drop(body);
            let neighbours = (kind == ReviewKind::Validate && !is_unjudged(&review))
                .then(|| stored.neighbours(&review));
            let answer = judge(&review, neighbours.as_deref(), cancelled);
            let answer = answer.ok_or(Failure::Timeout)?;
            let text = review.answered(&answer);
            Ok((answer, text))
        });
        let judged = judged.await.map_err(|_| Failure::Panicked);
        drop(cancel);
        judged?
    }
}

impl ProvenPaths {
    /// With the authority's webhook secret.
    pub(crate) fn new(secret: &str) -> Self {
        Self { inject: format!("{INJECT}/{secret}"), validate: format!("{VALIDATE}/{secret}") }
    }
}

impl ReviewLane {
    fn new(kind: ReviewKind) -> Self {
        // Reviews under way, reviews that wait, large bodies that are held.
        let (turns, queue, large) = match kind {
            ReviewKind::Inject => (16, 256, 4),
            ReviewKind::UnprovenInject => (8, 256, 2),
            ReviewKind::Validate => (2, 256, 4),
            ReviewKind::Unproven => (1, 4, 1),
        };
        Self {
            turns: Arc::new(Semaphore::new(turns)),
            queue: Semaphore::new(queue),
            large: Semaphore::new(large),
        }
    }

    /// The right to work on one review.
    async fn turn(&self) -> Result<OwnedSemaphorePermit, Failure> {
        if let Ok(turn) = Arc::clone(&self.turns).try_acquire_owned() {
            return Ok(turn);
        }
        let _queued = self.queue.try_acquire().map_err(|_| Failure::Busy)?;
        // The semaphore is never closed.
        Arc::clone(&self.turns).acquire_owned().await.map_err(|_| Failure::Timeout)
    }
}

impl Drop for Cancel {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl ReviewKind {
    const ALL: [Self; 4] = [Self::Inject, Self::UnprovenInject, Self::Validate, Self::Unproven];

    fn as_str(self) -> &'static str {
        match self {
            Self::Inject => "inject",
            Self::UnprovenInject => "unproven_inject",
            Self::Validate => "validate",
            Self::Unproven => "unproven",
        }
    }
}

/// Serves until the runtime ends.
pub(crate) async fn serve(
    listener: TcpListener,
    credentials: Arc<ServerCredentials>,
    webhook: Arc<Webhook>,
) -> anyhow::Result<()> {
    let acceptor = TlsAcceptor::from(Arc::new(credentials.open_config()?));
    tokio::spawn(async move { credentials.keep_fresh().await });
    let shares = Shares::new(MAX_CONNECTIONS, MAX_OF_ADDRESS);
    tokio::spawn(async move {
        loop {
            let (stream, client, share) = shares.accept(&listener).await;
            let (acceptor, webhook) = (acceptor.clone(), Arc::clone(&webhook));
            tokio::spawn(share.hold(async move {
                if let Err(error) = connection(stream, &acceptor, webhook).await {
                    tracing::debug!(%client, %error, "a webhook's connection ended");
                }
            }));
        }
    });
    Ok(())
}

async fn connection(
    stream: TcpStream,
    acceptor: &TlsAcceptor,
    webhook: Arc<Webhook>,
) -> anyhow::Result<()> {
    let stream = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await??;
    exchange(stream, webhook).await
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    webhook: Arc<Webhook>,
) -> anyhow::Result<()> {
    let begun = Arc::new(Notify::new());
    let service = service_fn({
        let begun = Arc::clone(&begun);
        move |request| {
            begun.notify_one();
            let webhook = Arc::clone(&webhook);
            async move {
                let mut reply = webhook.reply(request).await;
                if webhook.ending.load(Ordering::Relaxed) {
                    reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(reply)
            }
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(served);
    tokio::select! {
        ended = &mut served => return Ok(ended?),
        first = timeout(FIRST_TIMEOUT, begun.notified()) => first.context("nothing was asked")?,
    }
    Ok(served.await?)
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Reply {
    respond(status, TEXT, body)
}

#[cfg(test)]
mod tests;
