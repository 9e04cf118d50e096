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

/// The path for reviews of pods.
const INJECT: &str = "/inject";
/// The path for reviews of objects of the mesh.
const VALIDATE: &str = "/validate";

/// Most connections at a time. The API server opens one for each review in progress (it uses HTTP/1.1 for
/// webhooks), so reviews of pods have room even while 200 objects are applied at once.
const MAX_CONNECTIONS: usize = 512;
/// Most connections from one address. Any pod may connect here, and while the API server cannot connect, no pod
/// can be created.
const MAX_OF_ADDRESS: usize = 320;
/// Largest body, in bytes, that is read without waiting for a permit. Bodies of pods have a few KiB. The small
/// bodies of all connections together have at most 64 MiB.
const SMALL_BODY: u64 = 128 << 10;
/// Longest time to receive a body. The API server is close by.
const BODY_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest review, in bytes: twice the API server's own limit for a request (3 MiB), because an update contains
/// two objects, and some overhead.
const MAX_BODY: usize = 7 << 20;
/// Longest wait for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest wait for the first request of a connection.
const FIRST_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest silence before the head of a request is complete. It is longer than the 90 s after which the API server
/// closes an idle connection. If this server closed it first, a review could be lost.
const HEAD_TIMEOUT: Duration = Duration::from_secs(100);
/// Longest time for a review, including its wait in the queue. The API server waits for 10 s.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(8);

/// The state of the webhooks. `lanes` and `counts` have an entry for each [`ReviewKind`].
pub(crate) struct Webhook {
    settings: InjectionSettings,
    stored: Arc<AdmissionObjects>,
    paths: ProvenPaths,
    lanes: [ReviewLane; 4],
    counts: [Counts; 4],
    spent_us: AtomicU64,
    ending: AtomicBool,
}

/// The bounds for one kind of review. Each kind has separate bounds, so that kinds do not wait for each other.
struct ReviewLane {
    /// Limits reviews in progress. A permit is held until the work ends, even if the caller no longer waits for
    /// the answer.
    turns: Arc<Semaphore>,
    /// Limits reviews that wait for a permit of `turns`. When it is full, further reviews are rejected at once.
    queue: Semaphore,
    /// Limits bodies in memory that are larger than [`SMALL_BODY`].
    large: Semaphore,
}

/// Counts the results of one kind of review. `changed` are allowed with a patch, `busy` were rejected because too many
/// waited already, and `failed` have no answer for another reason.
#[derive(Debug, Default)]
struct Counts {
    changed: AtomicU64,
    allowed: AtomicU64,
    denied: AtomicU64,
    failed: AtomicU64,
    busy: AtomicU64,
}

/// The secret paths, by which the API server proves its identity. Only clients that may read the configurations of the
/// webhooks know them. Any pod can connect here, but reviews on other paths have separate bounds, and answers on
/// `/validate` reveal nothing about the cluster. After an installation, the API server uses `/inject` and `/validate`
/// until the leader has written the secret paths into those configurations.
pub(crate) struct ProvenPaths {
    pub(crate) inject: String,
    pub(crate) validate: String,
}

/// The kinds of reviews. Each has its own bounds and counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReviewKind {
    /// Adds the proxy to a pod, for the API server.
    Inject,
    /// Adds the proxy to a pod, for a caller that has not proved to be the API server.
    UnprovenInject,
    /// Checks an object of the mesh, for the API server.
    Validate,
    /// Checks an object on its own, for a caller that has not proved to be the API server.
    Unproven,
}

/// Dropping this signals to work on another thread that its answer is no longer wanted.
#[derive(Debug, Default)]
struct Cancel(Arc<AtomicBool>);

/// Why a review was not answered. The API server then applies its `failurePolicy`.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the request cannot be read: {0}")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the request is larger than {MAX_BODY} bytes")]
    TooLarge,
    #[error("the request was not received within {BODY_TIMEOUT:?}")]
    Slow,
    #[error(transparent)]
    Review(#[from] leno_admission::ReviewError),
    #[error("the namespace {0} is not known yet")]
    Namespace(String),
    #[error("no answer within {REVIEW_TIMEOUT:?}")]
    Timeout,
    #[error("too many reviews of this kind are waiting")]
    Busy,
    #[error("the review was not finished")]
    Panicked,
}

impl Webhook {
    /// Creates webhooks that add proxies with these settings.
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

    /// Makes every connection end after its next response, so that the API server connects to other replicas.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Appends the counters, as Prometheus text.
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
            return text(
                StatusCode::NOT_FOUND,
                "there is no such path: use /inject or /validate\n",
            );
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
                tracing::warn!(webhook = kind.as_str(), %failure, "a review was not answered");
                let status = match failure {
                    Failure::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
                    Failure::Slow => StatusCode::REQUEST_TIMEOUT,
                    _ => StatusCode::SERVICE_UNAVAILABLE,
                };
                text(status, format!("{failure}\n"))
            }
        }
    }

    /// The kind of review that a path stands for.
    fn kind(&self, path: &str) -> Option<ReviewKind> {
        // Compared in constant time, so that the duration does not reveal how much of a path is right.
        let is = |own: &str| verify_slices_are_equal(path.as_bytes(), own.as_bytes()).is_ok();
        match path {
            INJECT => Some(ReviewKind::UnprovenInject),
            VALIDATE => Some(ReviewKind::Unproven),
            _ if is(&self.paths.inject) => Some(ReviewKind::Inject),
            _ if is(&self.paths.validate) => Some(ReviewKind::Validate),
            _ => None,
        }
    }

    /// Reads the whole body. A slow large body does not delay small ones.
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

    /// The answer, and its content type.
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
        // No permit is held in this wait, so that a review for a namespace that does not exist does not delay
        // others.
        let enclosing = self.stored.enclosing(&review).await;
        let enclosing = enclosing.ok_or_else(|| Failure::Namespace(review.namespace.clone()))?;
        let _turn = lane.turn().await?;
        let answer = review.inject(&self.settings, &enclosing);
        let text = review.answered(&answer);
        Ok((answer, text))
    }

    /// Checks an object on another thread, because it may be large. The thread holds the permit, and stops soon
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
    /// Derives the paths from the secret that the authority has for webhooks.
    pub(crate) fn new(secret: &str) -> Self {
        Self { inject: format!("{INJECT}/{secret}"), validate: format!("{VALIDATE}/{secret}") }
    }
}

impl ReviewLane {
    fn new(kind: ReviewKind) -> Self {
        // The limits of reviews in progress, waiting reviews, and large bodies in memory.
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

    /// Waits for a permit for one review. Fails at once if too many reviews wait already.
    async fn turn(&self) -> Result<OwnedSemaphorePermit, Failure> {
        if let Ok(turn) = Arc::clone(&self.turns).try_acquire_owned() {
            return Ok(turn);
        }
        let _queued = self.queue.try_acquire().map_err(|_| Failure::Busy)?;
        // Acquiring cannot fail, because the semaphore is never closed.
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
