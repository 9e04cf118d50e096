//! One connection of HTTP/2: how many calls it has, and when it ends.

use std::fmt::Display;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use h2::Reason;
use h2::server::Connection;
use hyper::Request;
use hyper::body::Bytes;
use leno_program::Answer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until, timeout};

use super::status::{Code, Status};
use super::{REQUEST_WAIT, call, framed};

/// Calls of one connection at once, those that were reset and have not ended yet too.
pub(super) const MAX_CALLS: usize = 16;
/// Watches of a program at once: each is answered at every observation.
const MAX_WATCHES: usize = 32;
/// Answers that are made into messages at once, each by a thread of its own.
const MAX_CONVERTED: usize = 2;
/// An answer of so many bytes is made into a message at once: it takes less than to ask a thread.
const SMALL: usize = 32 * 1024;
/// How long a connection without calls is kept.
const IDLE: Duration = Duration::from_secs(60);
/// How long a connection is kept of which no call was answered with what was asked for. Others may need its place.
const PROOF_WAIT: Duration = Duration::from_secs(10);
/// Longest life of a connection, after which callers begin again.
const LIFE: Duration = Duration::from_hours(1);
/// How long calls have to end after the connection was told to. A Watch ends at its next answer.
const DRAIN: Duration = Duration::from_secs(10);

/// What the connections of a program share.
#[derive(Debug)]
pub struct Places {
    connections: Semaphore,
    most: usize,
    watches: Semaphore,
    conversions: Arc<Semaphore>,
}

impl Places {
    /// Those of a program that has so many connections of HTTP/2 at most. Its other connections are for browsers.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            connections: Semaphore::new(most),
            most,
            watches: Semaphore::new(MAX_WATCHES),
            conversions: Arc::new(Semaphore::new(MAX_CONVERTED)),
        }
    }

    /// A place for a Watch.
    pub(super) fn watch(&self) -> Result<SemaphorePermit<'_>, Status> {
        self.watches.try_acquire().map_err(|_none| {
            let why = format!("there are {MAX_WATCHES} Watches already: end one, or ask by Get");
            Status::new(Code::ResourceExhausted, why)
        })
    }

    /// The message of an answer. Who serves other readers does not wait for that of a large mesh.
    pub(super) async fn convert(
        &self,
        answer: fn(&[u8]) -> Result<Vec<u8>, Status>,
        json: Bytes,
    ) -> Result<Bytes, Status> {
        let is_small = json.len() <= SMALL;
        let convert = move || answer(&json).map(|message| framed(&message));
        if is_small {
            return convert();
        }
        let converted = async {
            let place = self.conversions.clone().acquire_owned().await.ok()?;
            let work = move || {
                let _place = place;
                convert()
            };
            tokio::task::spawn_blocking(work).await.ok()
        };
        converted.await.unwrap_or_else(|| {
            Err(Status::new(Code::Internal, "the answer cannot be converted".to_owned()))
        })
    }
}

/// What the calls of a connection share.
pub(super) struct Shared<'a, A> {
    pub(super) answer: &'a A,
    pub(super) places: &'a Places,
    /// Whether a call was answered with what was asked for: the caller may read something.
    is_proven: AtomicBool,
    /// Requests that are being answered.
    asked: AtomicUsize,
    /// Whether the connection ends.
    is_ending: AtomicBool,
}

/// A request that is being answered, until it is dropped.
struct Asked<'a>(&'a AtomicUsize);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<'a, A, F> Shared<'a, A>
where
    A: Fn(Request<()>) -> F,
    F: Future<Output = Answer>,
{
    fn new(places: &'a Places, answer: &'a A) -> Self {
        let (is_proven, asked, is_ending) = Default::default();
        Self { answer, places, is_proven, asked, is_ending }
    }

    /// The answer to a request of a caller. A client without a token has files too, so that these prove nothing.
    pub(super) async fn ask(&self, request: Request<()>) -> Answer {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let _asked = Asked(&self.asked);
        let is_api = request.uri().path().starts_with(crate::serve::ROOT);
        let answer = (self.answer)(request).await;
        if is_api && answer.status().is_success() {
            self.is_proven.store(true, Ordering::Relaxed);
        }
        answer
    }

    /// Whether calls that go on by themselves have to end.
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// When a connection that has begun then ends, if it has had no call since `idle`.
    fn ends_at(&self, begun: Instant, idle: Option<Instant>) -> Instant {
        let is_kept =
            self.is_proven.load(Ordering::Relaxed) || self.asked.load(Ordering::Relaxed) > 0;
        let unproven = (!is_kept).then(|| begun + PROOF_WAIT);
        let idle = idle.map(|since| since + IDLE);
        [unproven, idle].into_iter().flatten().fold(begun + LIFE, Instant::min)
    }

    /// Serves the calls until the connection has ended.
    async fn serve<T>(&self, mut connection: Connection<T, Bytes>) -> Result<(), h2::Error>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let begun = Instant::now();
        let (mut idle_since, mut drained) = (begun, None);
        let mut calls = FuturesUnordered::new();
        loop {
            let idle = |calls: &FuturesUnordered<_>| calls.is_empty().then_some(idle_since);
            let ends = drained.unwrap_or_else(|| self.ends_at(begun, idle(&calls)));
            let has_place = calls.len() < MAX_CALLS;
            let next = poll_fn(|cx| match has_place {
                true => connection.poll_accept(cx),
                // Without a place it goes on with the calls that it has.
                false => connection.poll_closed(cx).map(|closed| closed.err().map(Err)),
            });
            tokio::select! {
                next = next => match next {
                    Some(next) => {
                        let (request, respond) = next?;
                        calls.push(call(request, respond, self));
                    }
                    None => return Ok(()),
                },
                Some(()) = calls.next() => idle_since = Instant::now(),
                () = sleep_until(ends) => {
                    if drained.is_some() {
                        return Ok(());
                    }
                    // A call may have been answered since.
                    if self.ends_at(begun, idle(&calls)) <= Instant::now() {
                        self.is_ending.store(true, Ordering::Relaxed);
                        connection.graceful_shutdown();
                        drained = Some(Instant::now() + DRAIN);
                    }
                }
            }
        }
    }
}

/// Serves one connection of HTTP/2 until it ends, is idle or reaches its longest life. `answer` gets the requests that a
/// browser would send, with the headers of the call that say who calls. The log names `client`.
pub async fn serve<A, F>(
    io: impl AsyncRead + AsyncWrite + Unpin,
    client: impl Display,
    places: &Places,
    answer: A,
) where
    A: Fn(Request<()>) -> F,
    F: Future<Output = Answer>,
{
    let Ok(_place) = places.connections.try_acquire() else {
        let most = places.most;
        tracing::debug!(%client, most, "a connection of gRPC was closed: there are as many as may be");
        return;
    };
    let served = async {
        let handshake = h2::server::Builder::new()
            .max_concurrent_streams(MAX_CALLS as u32)
            .max_header_list_size(32 * 1024)
            .handshake::<_, Bytes>(io);
        let Ok(connection) = timeout(REQUEST_WAIT, handshake).await else { return Ok(()) };
        Shared::new(places, &answer).serve(connection?).await
    };
    if let Err(error) = served.await {
        tracing::debug!(%client, %error, "a connection of gRPC ended");
    }
}

/// What a future gives; `None` if the caller resets its call before, which is dropped then.
pub(super) async fn unless_reset<T>(
    mut reset: impl FnMut(&mut Context<'_>) -> Poll<Result<Reason, h2::Error>>,
    future: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        done = future => Some(done),
        _reset = poll_fn(|cx| reset(cx)) => None,
    }
}
