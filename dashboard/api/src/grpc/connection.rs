//! Limits each HTTP/2 connection: how many calls it has, and when it ends.

use std::future::poll_fn;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use h2::Reason;
use h2::server::Connection;
use hyper::Request;
use hyper::body::Bytes;
use leno_program::{AdminResponse, Share, Shares};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until, timeout};

use super::status::{Code, Status};
use super::{REQUEST_WAIT, call, framed};

/// Most simultaneous calls on a connection, including reset calls that have not ended yet.
pub(super) const MAX_CALLS: usize = 16;
/// Most simultaneous Watch calls in the program. Each of them is answered at every observation.
const MAX_WATCHES: usize = 32;
/// Most answers that are converted into messages at the same time, each on its own thread.
const MAX_CONVERTED: usize = 2;
/// An answer of at most this many bytes is converted without another thread, because that is faster than starting
/// one.
const SMALL: usize = 32 * 1024;
/// How long a connection without calls is kept.
const IDLE: Duration = Duration::from_secs(60);
/// How long a connection may last if none of its calls has succeeded, because others may need its place.
const PROOF_WAIT: Duration = Duration::from_secs(5);
/// The same limit while a call is being answered. It is longer because access reviews by the API server, and the
/// figures of a large mesh, take some seconds.
const PROOF_LIMIT: Duration = Duration::from_secs(30);
/// Longest life of a connection; then callers have to reconnect.
const LIFE: Duration = Duration::from_hours(1);
/// How long calls may take to end after the connection was asked to end. A Watch ends at its next answer.
const DRAIN: Duration = Duration::from_secs(10);
/// The same limit for a connection on which no call has succeeded.
const UNPROVEN_DRAIN: Duration = Duration::from_secs(1);

/// The limits that all connections of a program share.
#[derive(Debug)]
pub struct ConnectionSlots {
    /// The places for proven connections: those on which a call has succeeded.
    proven: Semaphore,
    most: usize,
    /// The places for other connections. If all are taken, a newer connection displaces the oldest one of the
    /// address that has the most.
    unproven: Shares<IpAddr>,
    watches: Semaphore,
    conversions: Arc<Semaphore>,
    full: AtomicU64,
    evicted: AtomicU64,
    late: AtomicU64,
    watches_refused: AtomicU64,
}

/// The present use of [`ConnectionSlots`], and its counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionSlotCounts {
    /// The number of connections on which a call has succeeded.
    pub proven: usize,
    /// The number of other connections.
    pub unproven: usize,
    /// The number of open Watch calls.
    pub watches: usize,
    /// How many connections ended because all places for proven connections were taken.
    pub full: u64,
    /// How many unproven connections were displaced by a newer one.
    pub evicted: u64,
    /// How many connections ended because none of their calls succeeded in time.
    pub late: u64,
    /// How many Watch calls were rejected.
    pub watches_refused: u64,
}

impl ConnectionSlots {
    /// Limits for a program with at most `most` proven HTTP/2 connections, and as many unproven ones, but at least
    /// two of these.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let unproven = most.max(2);
        Self {
            proven: Semaphore::new(most),
            most,
            // The second limit is larger by one, so that the oldest connection ends when all places are taken,
            // rather than the newest.
            unproven: Shares::new(unproven, unproven.saturating_add(1)),
            watches: Semaphore::new(MAX_WATCHES),
            conversions: Arc::new(Semaphore::new(MAX_CONVERTED)),
            full: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            late: AtomicU64::new(0),
            watches_refused: AtomicU64::new(0),
        }
    }

    /// The present use, and the counters since the program started.
    #[must_use]
    pub fn counts(&self) -> ConnectionSlotCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ConnectionSlotCounts {
            proven: self.most.saturating_sub(self.proven.available_permits()),
            unproven: self.unproven.held(),
            watches: MAX_WATCHES.saturating_sub(self.watches.available_permits()),
            full: of(&self.full),
            evicted: of(&self.evicted),
            late: of(&self.late),
            watches_refused: of(&self.watches_refused),
        }
    }

    /// Reserves a place for a Watch call.
    pub(super) fn watch(&self) -> Result<SemaphorePermit<'_>, Status> {
        self.watches.try_acquire().map_err(|_none| {
            self.watches_refused.fetch_add(1, Ordering::Relaxed);
            let why = format!(
                "there are already {MAX_WATCHES} Watches, which is the limit: end \
                 one, or call Get"
            );
            Status::new(Code::ResourceExhausted, why)
        })
    }

    /// Converts an answer into a message. A large answer is converted on another thread, so that other readers do
    /// not wait.
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

/// The place that a connection holds.
enum ConnectionSlot<'a, K: Clone + Eq + Hash> {
    /// Its place among the connections of its address, and a place for unproven HTTP/2 connections.
    Unproven(Share<K>, Share<IpAddr>),
    /// A place for proven connections: a call has succeeded, so the caller may read something.
    Proven { _place: SemaphorePermit<'a> },
}

/// The state that the calls of a connection share.
pub(super) struct GrpcConnectionState<'a, A, K: Clone + Eq + Hash> {
    pub(super) answer: &'a A,
    pub(super) places: &'a ConnectionSlots,
    place: Mutex<ConnectionSlot<'a, K>>,
    /// Whether all places for proven connections were taken when the connection needed one.
    is_full: AtomicBool,
    /// The number of requests that are being answered.
    asked: AtomicUsize,
    /// Whether the connection is ending.
    is_ending: AtomicBool,
}

/// Counts a request while it is being answered.
struct RequestGuard<'a>(&'a AtomicUsize);

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<'a, A, F, K> GrpcConnectionState<'a, A, K>
where
    A: Fn(Request<()>) -> F,
    F: Future<Output = AdminResponse>,
    K: Clone + Eq + Hash,
{
    fn new(places: &'a ConnectionSlots, place: ConnectionSlot<'a, K>, answer: &'a A) -> Self {
        let (is_full, asked, is_ending) = Default::default();
        Self { answer, places, place: Mutex::new(place), is_full, asked, is_ending }
    }

    fn place(&self) -> MutexGuard<'_, ConnectionSlot<'a, K>> {
        // Poisoning is ignored, because the value is always replaced as a whole.
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_proven(&self) -> bool {
        matches!(*self.place(), ConnectionSlot::Proven { .. })
    }

    /// Moves the connection to a place for proven ones, which no newer connection can take. If no such place is
    /// free, the connection ends after its present calls.
    fn prove(&self) {
        let mut place = self.place();
        if matches!(*place, ConnectionSlot::Proven { .. }) {
            return;
        }
        match self.places.proven.try_acquire() {
            Ok(permit) => *place = ConnectionSlot::Proven { _place: permit },
            Err(_none) => {
                if !self.is_full.swap(true, Ordering::Relaxed) {
                    self.places.full.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Is ready as soon as a newer connection has taken the place of this unproven one.
    fn poll_lost(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut *self.place() {
            ConnectionSlot::Unproven(of_address, own) => {
                match of_address.poll_lost(cx).is_ready() || own.poll_lost(cx).is_ready() {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            }
            ConnectionSlot::Proven { .. } => Poll::Pending,
        }
    }

    /// The answer to a request of a caller. Only a successful request for a path below `/api/v1/` proves a connection,
    /// because clients without a token may read files as well.
    pub(super) async fn ask(&self, request: Request<()>) -> AdminResponse {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let _asked = RequestGuard(&self.asked);
        let is_api = request.uri().path().starts_with(crate::serve::ROOT);
        let answer = (self.answer)(request).await;
        if is_api && answer.status().is_success() {
            self.prove();
        }
        answer
    }

    /// Whether a Watch or a tap must end.
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// When the connection must end. `idle` is the time since which it has had no call.
    fn ends_at(&self, begun: Instant, idle: Option<Instant>) -> Instant {
        if self.is_full.load(Ordering::Relaxed) {
            return begun;
        }
        let unproven = match self.asked.load(Ordering::Relaxed) {
            0 => PROOF_WAIT,
            _ => PROOF_LIMIT,
        };
        let unproven = (!self.is_proven()).then(|| begun + unproven);
        let idle = idle.map(|since| since + IDLE);
        [unproven, idle].into_iter().flatten().fold(begun + LIFE, Instant::min)
    }

    /// How long the calls on a connection that is about to end may still take.
    fn drain(&self) -> Duration {
        let is_full = self.is_full.load(Ordering::Relaxed);
        if is_full || self.is_proven() {
            return DRAIN;
        }
        self.places.late.fetch_add(1, Ordering::Relaxed);
        UNPROVEN_DRAIN
    }

    /// Serves calls until the connection has ended.
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
                // A connection without a place finishes its present calls, and accepts no more.
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
                    // A call may have succeeded in the meantime.
                    if self.ends_at(begun, idle(&calls)) <= Instant::now() {
                        self.is_ending.store(true, Ordering::Relaxed);
                        connection.graceful_shutdown();
                        drained = Some(Instant::now() + self.drain());
                    }
                }
            }
        }
    }
}

/// Serves one HTTP/2 connection until it ends, is idle for too long or reaches its longest life. `answer` gets the
/// requests that a browser would send, with the headers of the call that identify the caller. The log names
/// `client`. `share` is the connection's place among those of its address; it is given back when the connection
/// gets a place for proven ones.
pub async fn serve<A, F, K>(
    io: impl AsyncRead + AsyncWrite + Unpin,
    (client, share): (SocketAddr, Share<K>),
    places: &ConnectionSlots,
    answer: A,
) where
    A: Fn(Request<()>) -> F,
    F: Future<Output = AdminResponse>,
    K: Clone + Eq + Hash,
{
    let Some(own) = places.unproven.take(client.ip().to_canonical()) else { return };
    let shared = GrpcConnectionState::new(places, ConnectionSlot::Unproven(share, own), &answer);
    let served = async {
        let handshake = h2::server::Builder::new()
            .max_concurrent_streams(MAX_CALLS as u32)
            .max_header_list_size(32 * 1024)
            .handshake::<_, Bytes>(io);
        let Ok(connection) = timeout(REQUEST_WAIT, handshake).await else { return Ok(()) };
        shared.serve(connection?).await
    };
    tokio::select! {
        served = served => if let Err(error) = served {
            tracing::debug!(%client, %error, "a connection of gRPC ended");
        },
        () = poll_fn(|cx| shared.poll_lost(cx)) => {
            places.evicted.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%client, "a gRPC connection was closed, because it had received no \
                                      answer and a newer one needed its place");
        }
    }
    if shared.is_full.load(Ordering::Relaxed) {
        let most = places.most;
        tracing::debug!(%client, most, "a gRPC connection was closed, because the limit of \
                                        connections is reached");
    }
}

/// The result of a future; `None` if the caller resets its call first. The future is then dropped.
pub(super) async fn unless_reset<T>(
    mut reset: impl FnMut(&mut Context<'_>) -> Poll<Result<Reason, h2::Error>>,
    future: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        done = future => Some(done),
        _reset = poll_fn(|cx| reset(cx)) => None,
    }
}
