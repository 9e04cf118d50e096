//! The webhooks that the API server calls: `/inject` and `/validate`.

use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use leno_admission::{Answer, Enclosing, Review, Settings, judge};
use leno_serve::Credentials;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::known::Known;

/// Most connections at once; each API server keeps a few open.
const MAX_CONNECTIONS: usize = 256;
/// Reviews at once, each of which may hold a body and what it is read into.
const MAX_REVIEWS: usize = 16;
/// Largest review, in bytes: the largest request that the API server takes itself (3 MiB), twice for an
/// object that is changed, and what is around it.
const MAX_BODY: usize = 7 << 20;
/// Longest wait for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest silence before a request's head is whole. Longer than the 90 s after which the API server
/// closes a connection that it does not use: were we first, a review could be under way.
const HEAD_TIMEOUT: Duration = Duration::from_secs(100);
/// Longest time for a review, waiting for its turn included; the API server waits for 10 s.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(8);
/// Pause after a failed accept, so that a full descriptor table is not a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

type Reply = Response<Full<Bytes>>;

/// What the webhooks answer from.
pub(crate) struct Webhook {
    settings: Settings,
    known: Arc<Known>,
    reviews: Semaphore,
    counts: [Counts; 2],
    spent_us: AtomicU64,
}

/// What became of the reviews of one kind.
#[derive(Debug, Default)]
struct Counts {
    changed: AtomicU64,
    allowed: AtomicU64,
    denied: AtomicU64,
    failed: AtomicU64,
}

/// What a review is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Inject,
    Validate,
}

/// Why a review has no answer: the API server goes by its `failurePolicy` then.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the request cannot be read: {0}")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(transparent)]
    Review(#[from] leno_admission::ReviewError),
    #[error("the namespace {0} is not known yet")]
    Namespace(String),
    #[error("no answer within {REVIEW_TIMEOUT:?}")]
    Timeout,
    #[error("the review was not finished")]
    Panicked,
}

impl Webhook {
    /// Puts proxies like this into pods.
    pub(crate) fn new(settings: Settings, known: Arc<Known>) -> Self {
        let counts = Default::default();
        Self {
            settings,
            known,
            reviews: Semaphore::new(MAX_REVIEWS),
            counts,
            spent_us: AtomicU64::new(0),
        }
    }

    /// Appends what was counted, as Prometheus text.
    pub(crate) fn render(&self, text: &mut String) {
        text.push_str(
            "# HELP leno_control_reviews_total Objects reviewed for the API server, by the result.\n\
             # TYPE leno_control_reviews_total counter\n",
        );
        for (kind, counts) in [Kind::Inject, Kind::Validate].into_iter().zip(&self.counts) {
            let Counts { changed, allowed, denied, failed } = counts;
            let results = [
                ("changed", changed),
                ("allowed", allowed),
                ("denied", denied),
                ("failed", failed),
            ];
            for (result, count) in results {
                let count = count.load(Ordering::Relaxed);
                // Writing to a String cannot fail.
                let _ = writeln!(
                    text,
                    "leno_control_reviews_total{{webhook=\"{}\",result=\"{result}\"}} {count}",
                    kind.as_str()
                );
            }
        }
        let spent = Duration::from_micros(self.spent_us.load(Ordering::Relaxed)).as_secs_f64();
        let _ = write!(
            text,
            "# HELP leno_control_review_seconds_total Time spent on reviews.\n\
             # TYPE leno_control_review_seconds_total counter\n\
             leno_control_review_seconds_total {spent}\n"
        );
    }

    async fn reply(&self, request: Request<Incoming>) -> Reply {
        let kind = match request.uri().path() {
            "/inject" => Kind::Inject,
            "/validate" => Kind::Validate,
            _ => return text(StatusCode::NOT_FOUND, "use /inject or /validate\n"),
        };
        if request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "use POST\n");
        }
        let begin = Instant::now();
        let answered = timeout(REVIEW_TIMEOUT, self.answer(kind, request.into_body())).await;
        let answered = answered.unwrap_or(Err(Failure::Timeout));
        let spent = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.spent_us.fetch_add(spent, Ordering::Relaxed);
        let counts = &self.counts[usize::from(kind == Kind::Validate)];
        let count = match &answered {
            Ok((Answer { denied: Some(_), .. }, _)) => &counts.denied,
            Ok((Answer { patch: Some(_), .. }, _)) => &counts.changed,
            Ok(_) => &counts.allowed,
            Err(_) => &counts.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
        match answered {
            Ok((_, text)) => respond(StatusCode::OK, "application/json", text),
            Err(failure) => {
                tracing::warn!(webhook = kind.as_str(), %failure, "a review has no answer");
                text(StatusCode::SERVICE_UNAVAILABLE, format!("{failure}\n"))
            }
        }
    }

    /// The answer, and as what it is sent.
    async fn answer(&self, kind: Kind, body: Incoming) -> Result<(Answer, String), Failure> {
        let _turn = self.reviews.acquire().await.map_err(|_| Failure::Timeout)?;
        let body = Limited::new(body, MAX_BODY).collect().await.map_err(Failure::Body)?.to_bytes();
        let review = Review::parse(&body)?;
        drop(body);
        match kind {
            Kind::Inject => {
                let capture = self.known.capture(&review.namespace).await;
                let capture =
                    capture.ok_or_else(|| Failure::Namespace(review.namespace.clone()))?;
                let answer = review.inject(&self.settings, &Enclosing { capture });
                let text = review.answered(&answer);
                Ok((answer, text))
            }
            Kind::Validate => {
                let known = self.known.all();
                // The more routes there are the longer it takes, and other reviews go on meanwhile.
                let judged = tokio::task::spawn_blocking(move || {
                    let answer = judge(&review, known);
                    let text = review.answered(&answer);
                    (answer, text)
                });
                judged.await.map_err(|_| Failure::Panicked)
            }
        }
    }
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Inject => "inject",
            Self::Validate => "validate",
        }
    }
}

/// Serves until the runtime ends.
pub(crate) async fn serve(
    listener: TcpListener,
    credentials: Arc<Credentials>,
    webhook: Arc<Webhook>,
) -> anyhow::Result<()> {
    let acceptor = TlsAcceptor::from(Arc::new(credentials.open_config()?));
    tokio::spawn(async move { credentials.keep_fresh().await });
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    tokio::spawn(async move {
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, client)) => {
                    let (acceptor, webhook) = (acceptor.clone(), Arc::clone(&webhook));
                    tokio::spawn(async move {
                        if let Err(error) = connection(stream, &acceptor, webhook).await {
                            tracing::debug!(%client, %error, "a webhook's connection ended");
                        }
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a webhook's connection was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
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
    let service = service_fn(move |request| {
        let webhook = Arc::clone(&webhook);
        async move { Ok::<_, Infallible>(webhook.reply(request).await) }
    });
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await?;
    Ok(())
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Reply {
    respond(status, "text/plain; charset=utf-8", body)
}

fn respond(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
