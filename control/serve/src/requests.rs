//! Bounds the memory of requests that have not been received completely.
//!
//! ```text
//!  gRPC:  flag, length ──► small ─────────────────────────────► complete, or too late
//!                      └─► large ──► its length from the budget ──► complete, too late, or revoked: given back
//! ```
//! All large messages share a budget. When the budget is used up, the message that has been incomplete for the
//! longest time is rejected, and its stream ends. Messages of honest proxies are only incomplete for milliseconds.
//!
//! A message is held in memory until it is complete. Without the budget, a client that starts large messages and never
//! completes them could hold any amount of memory, on each of its streams.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::{Body as HttpBody, Frame};
use leno_types::Identity;
use leno_wire::{Bytes, MAX_MESSAGE};
use tokio::sync::oneshot;
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;

use crate::metrics::Metrics;

/// Largest message, in bytes, that does not count against the budget. The messages of a running proxy have from
/// tens of bytes to a few KiB. If all streams stop within such a message, they use 128 MiB together.
const SMALL: usize = 16 << 10;
/// The budget: most bytes of all larger messages that are incomplete. A proxy that reconnects lists its resources,
/// which takes about 60 bytes for each service.
const BUDGET: usize = 64 << 20;
/// The part of the budget for one identity. It is enough for one message of the largest size, or for 256 proxies
/// that reconnect with a thousand services each.
const OF_IDENTITY: usize = MAX_MESSAGE;
/// How long a message may be incomplete.
const PATIENCE: Duration = Duration::from_secs(10);
/// The length of the head of each message: a flag and the message's length.
const HEAD: usize = 5;

/// The budget for large messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestBudget(Arc<Mutex<OpenRequests>>);

/// The large messages that are incomplete, by age.
#[derive(Debug, Default)]
struct OpenRequests {
    /// The number of the next message. A lower number means an older message.
    next: u64,
    messages: BTreeMap<u64, Message>,
}

#[derive(Debug)]
struct Message {
    identity: Identity,
    bytes: usize,
    /// Dropping this revokes the lease.
    _held: oneshot::Sender<()>,
}

/// A part of the budget. It is held until this is dropped, or until it is given to a younger message.
#[derive(Debug)]
struct BudgetLease {
    budget: RequestBudget,
    number: u64,
    lost: oneshot::Receiver<()>,
}

/// The requests of one stream.
pub(crate) struct BoundedRequests<B> {
    requests: B,
    budget: RequestBudget,
    identity: Identity,
    metrics: Arc<Metrics>,
    position: MessagePosition,
    lease: Option<BudgetLease>,
    /// The time by which the present message must be complete.
    late: Option<Pin<Box<Sleep>>>,
}

/// The position of a stream within its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessagePosition {
    /// In the head of a message, of which this many bytes were received.
    Head([u8; HEAD], usize),
    /// In the content of a message, of which this many bytes are missing.
    Content(usize),
}

const START: MessagePosition = MessagePosition::Head([0; HEAD], 0);

impl RequestBudget {
    /// Takes a part of the budget for a message; `None` if the message exceeds the budget of one identity.
    fn take(&self, identity: &Identity, bytes: usize) -> Option<BudgetLease> {
        if bytes > OF_IDENTITY {
            return None;
        }
        let mut taken = self.taken();
        taken.make_room(OF_IDENTITY - bytes, |message| message.identity == *identity);
        taken.make_room(BUDGET - bytes, |_| true);
        let number = taken.next;
        taken.next += 1;
        let (held, lost) = oneshot::channel();
        taken.messages.insert(number, Message { identity: identity.clone(), bytes, _held: held });
        Some(BudgetLease { budget: self.clone(), number, lost })
    }

    fn taken(&self) -> MutexGuard<'_, OpenRequests> {
        // Poisoning is ignored, because changes under the lock are complete even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenRequests {
    /// Revokes the leases of the oldest messages selected by `of`, until these together have at most `most` bytes.
    fn make_room(&mut self, most: usize, of: impl Fn(&Message) -> bool) {
        let own = self.messages.values().filter(|message| of(message));
        let mut held: usize = own.map(|message| message.bytes).sum();
        while held > most {
            let oldest = self.messages.iter().find(|(_, message)| of(message));
            let Some(oldest) = oldest.map(|(number, _)| *number) else { return };
            held -= self.messages.remove(&oldest).map_or(0, |message| message.bytes);
        }
    }
}

impl Drop for BudgetLease {
    fn drop(&mut self) {
        self.budget.taken().messages.remove(&self.number);
    }
}

impl<B> BoundedRequests<B> {
    pub(crate) fn new(
        requests: B,
        budget: &RequestBudget,
        identity: Identity,
        metrics: &Arc<Metrics>,
    ) -> Self {
        Self {
            requests,
            budget: budget.clone(),
            identity,
            metrics: Arc::clone(metrics),
            position: START,
            lease: None,
            late: None,
        }
    }

    /// Advances over the next bytes of the stream.
    fn advance(&mut self, mut bytes: &[u8]) -> Result<(), Status> {
        while !bytes.is_empty() {
            match &mut self.position {
                MessagePosition::Head(head, read) => {
                    let (now, rest) = bytes.split_at(bytes.len().min(HEAD - *read));
                    head[*read..*read + now.len()].copy_from_slice(now);
                    *read += now.len();
                    bytes = rest;
                    if *read == HEAD {
                        let [_flag, length @ ..] = *head;
                        self.begin(u32::from_be_bytes(length) as usize)?;
                    }
                }
                MessagePosition::Content(left) => {
                    let now = bytes.len().min(*left);
                    *left -= now;
                    bytes = &bytes[now..];
                    if *left == 0 {
                        (self.lease, self.late, self.position) = (None, None, START);
                    }
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, length: usize) -> Result<(), Status> {
        if length > SMALL {
            self.lease = self.budget.take(&self.identity, length);
            if self.lease.is_none() {
                return Err(self.refused("the request is too large"));
            }
        }
        self.position = if length == 0 { START } else { MessagePosition::Content(length) };
        Ok(())
    }

    fn refused(&self, reason: &str) -> Status {
        self.metrics.requests_refused.increment();
        tracing::warn!(identity = %self.identity, reason, "a request is refused");
        Status::resource_exhausted(reason)
    }

    /// Ready, with the reason, when the incomplete message must be rejected.
    fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<&'static str> {
        if self.position == START {
            return Poll::Pending;
        }
        if let Some(lease) = &mut self.lease
            && Pin::new(&mut lease.lost).poll(context).is_ready()
        {
            return Poll::Ready("too many large requests are being received: retry");
        }
        let late = self.late.get_or_insert_with(|| Box::pin(tokio::time::sleep(PATIENCE)));
        late.as_mut().poll(context).map(|()| "the request was not received in time")
    }
}

impl<B> HttpBody for BoundedRequests<B>
where
    B: HttpBody<Data = Bytes, Error = Status> + Unpin,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.requests).poll_frame(context) else {
            let reason = ready!(self.poll_ended(context));
            return Poll::Ready(Some(Err(self.refused(reason))));
        };
        if let Some(Ok(frame)) = &frame
            && let Some(bytes) = frame.data_ref()
            && let Err(status) = self.advance(bytes)
        {
            return Poll::Ready(Some(Err(status)));
        }
        Poll::Ready(frame)
    }
}

/// The same request with its messages bounded.
pub(crate) fn bounded(
    request: http::Request<Body>,
    identity: Identity,
    (budget, metrics): (&RequestBudget, &Arc<Metrics>),
) -> http::Request<Body> {
    request.map(|body| Body::new(BoundedRequests::new(body, budget, identity, metrics)))
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use http_body_util::BodyExt as _;
    use tokio::time::Instant;

    use super::*;

    /// Sends these parts, and then nothing more.
    struct Parts(VecDeque<Vec<u8>>);

    impl HttpBody for Parts {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            let next = self.0.pop_front();
            next.map_or(Poll::Pending, |part| Poll::Ready(Some(Ok(Frame::data(part.into())))))
        }
    }

    fn message(length: usize) -> Vec<u8> {
        let length_bytes = u32::try_from(length).unwrap().to_be_bytes();
        [&[0][..], &length_bytes[..], &vec![7; length][..]].concat()
    }

    fn requests(account: &str, budget: &RequestBudget, parts: &[&[u8]]) -> BoundedRequests<Parts> {
        let parts = Parts(parts.iter().map(|part| part.to_vec()).collect());
        let identity = format!("spiffe://cluster.local/ns/shop/sa/{account}").parse().unwrap();
        BoundedRequests::new(parts, budget, identity, &Arc::default())
    }

    /// Reads until a frame is rejected, or none arrives for a long time.
    async fn read(requests: &mut BoundedRequests<Parts>) -> (usize, Option<Status>) {
        let mut bytes = 0;
        loop {
            match tokio::time::timeout(PATIENCE * 10, requests.frame()).await {
                Ok(Some(Ok(frame))) => bytes += frame.into_data().unwrap().len(),
                Ok(Some(Err(status))) => return (bytes, Some(status)),
                Ok(None) | Err(_) => return (bytes, None),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn messages_pass_however_they_are_split_and_free_their_budget() {
        let budget = RequestBudget::default();
        let sent = [0, 3, SMALL, SMALL + 1, 1 << 20].map(message).concat();
        for part in [1 << 14, 4_099, sent.len()] {
            let parts: Vec<&[u8]> = sent.chunks(part).collect();
            let mut requests = requests("web", &budget, &parts);
            assert_eq!(read(&mut requests).await.0, sent.len());
            assert_eq!(requests.position, START);
            assert!(budget.taken().messages.is_empty());
        }
        let begun: Vec<&[u8]> = sent[..7].chunks(1).collect();
        let mut requests = requests("web", &budget, &begun);
        assert_eq!(read(&mut requests).await.0, 7);
    }

    /// Regression: a tenant starts requests on all of its streams and does not complete them.
    #[tokio::test(start_paused = true)]
    async fn an_incomplete_request_holds_its_memory_for_a_limited_time() {
        let budget = RequestBudget::default();
        for length in [100, SMALL * 2] {
            let begin = Instant::now();
            let sent = message(length);
            let mut held = requests("greedy", &budget, &[&sent[..50], &sent[50..90]]);
            let (bytes, ended) = read(&mut held).await;
            assert_eq!((bytes, begin.elapsed()), (90, PATIENCE));
            assert!(ended.unwrap().message().contains("in time"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn incomplete_large_requests_make_room_for_younger_ones() {
        const LARGE: usize = 4 << 20;
        let budget = RequestBudget::default();
        let sent = message(LARGE);
        let mut held = Vec::new();
        for nth in 0..20 {
            let mut one = requests(&format!("greedy-{nth}"), &budget, &[&sent[..100]]);
            one.frame().await.unwrap().unwrap();
            held.push(one);
        }
        let taken = |budget: &RequestBudget| {
            budget.taken().messages.values().map(|message| message.bytes).sum::<usize>()
        };
        assert_eq!(taken(&budget), BUDGET);
        let mut web = requests("web", &budget, &[&sent[..100], &sent[100..]]);
        let (bytes, ended) = read(&mut web).await;
        assert!(bytes == sent.len() && ended.is_none(), "{bytes}, {ended:?}");
        let (_, ended) = read(&mut held[0]).await;
        assert!(ended.unwrap().message().contains("too many large requests"));
        // The budget of one identity, and not the total, is used up.
        let mut own = Vec::new();
        for _ in 0..20 {
            let mut one = requests("greedy", &budget, &[&sent[..100]]);
            one.frame().await.unwrap().unwrap();
            own.push(one);
        }
        let identity = &own[0].identity;
        let of_own =
            budget.taken().messages.values().filter(|one| one.identity == *identity).count();
        assert_eq!(of_own * LARGE, OF_IDENTITY);
        assert!(requests("web", &budget, &[]).begin(OF_IDENTITY + 1).is_err());
    }
}
