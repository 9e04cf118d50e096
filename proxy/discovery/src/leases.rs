//! Tokens of shared rate limits, each of which permits one request. Proxies lease them from the control plane.
//!
//! ```text
//! worker ──Question──► (bounded) ──► one stream, opened with the first question ──► control plane
//!        ◄──Lease──── (bounded) ◄── grants
//! ```
//!
//! A question is dropped if there is no stream or too many questions wait. The worker repeats it later. Without an
//! answer, the worker uses a limit of its own.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leno_wire::ClientConnection;
use leno_wire::proto::limits_client::LimitsClient;
use leno_wire::proto::{LeaseAsk, LeaseGrant, LeaseRequest, Node};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;

use crate::backoff::Backoff;
use crate::certificate::Certificate;
use crate::connection;
use crate::settings::Settings;

/// How many questions may wait for the stream. A worker asks at most ten times per second for each limit.
const MAX_QUESTIONS: usize = 256;
/// How many leases may wait for a worker, which takes them with its next request.
const MAX_LEASES: usize = 64;
/// How many receivers of grants there may be: one for each limit and worker. If there are more, all are forgotten.
const MAX_ASKERS: usize = 4_096;
/// How long to wait until the control plane accepts the stream.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// The first and the longest wait after the stream was lost. Meanwhile proxies use limits of their own.
const WAITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A lease for one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The name of the limit.
    pub limit: Arc<str>,
    /// How many tokens the worker may spend.
    pub tokens: u32,
    /// How many workers of all proxies share the limit. 0 if the control plane has no such limit.
    pub holders: u32,
}

/// Requests leases. Cheap to clone; each worker needs an [`Asker`] of its own.
#[derive(Clone, Debug)]
pub struct Leases {
    questions: Option<mpsc::Sender<Question>>,
    /// The number that the next asker gets.
    askers: Arc<AtomicU32>,
}

/// Requests leases for one worker, and receives them.
#[derive(Debug)]
pub struct Asker {
    questions: Option<mpsc::Sender<Question>>,
    number: u32,
    answer: mpsc::Sender<Lease>,
    answers: mpsc::Receiver<Lease>,
}

#[derive(Debug)]
struct Question {
    limit: Arc<str>,
    asker: u32,
    wanted: u32,
    answer: mpsc::Sender<Lease>,
}

/// The questions of all workers, for the task that sends them to the control plane.
#[derive(Debug)]
pub(crate) struct Questions(mpsc::Receiver<Question>);

impl Leases {
    pub(crate) fn new() -> (Self, Questions) {
        let (questions, taken) = mpsc::channel(MAX_QUESTIONS);
        let leases = Self { questions: Some(questions), askers: Arc::default() };
        (leases, Questions(taken))
    }

    /// Leases without a control plane, where no question is answered.
    pub(crate) fn none() -> Self {
        Self { questions: None, askers: Arc::default() }
    }

    /// An asker for one worker.
    #[must_use]
    pub fn asker(&self) -> Asker {
        let (answer, answers) = mpsc::channel(MAX_LEASES);
        let number = self.askers.fetch_add(1, Ordering::Relaxed);
        Asker { questions: self.questions.clone(), number, answer, answers }
    }
}

impl Asker {
    /// Asks for tokens. Never waits.
    pub fn ask(&self, limit: &Arc<str>, wanted: u32) {
        let Some(questions) = &self.questions else { return };
        let (limit, answer) = (Arc::clone(limit), self.answer.clone());
        // If the queue is full, the worker asks again later.
        let _dropped = questions.try_send(Question { limit, asker: self.number, wanted, answer });
    }

    /// The next lease that has arrived.
    pub fn take(&mut self) -> Option<Lease> {
        self.answers.try_recv().ok()
    }
}

/// The receivers of grants, by limit and worker.
type Askers = HashMap<(Arc<str>, u32), mpsc::Sender<Lease>>;

/// Sends the workers' questions to the control plane, and reconnects whenever the stream is lost. Dropping the future
/// ends it.
pub(crate) async fn run(
    settings: &Settings,
    Questions(mut questions): Questions,
    certificates: watch::Receiver<Option<Arc<Certificate>>>,
) -> Infallible {
    let mut backoff = Backoff::new(WAITS.0, WAITS.1);
    loop {
        let Some(first) = questions.recv().await else {
            // No worker exists any more.
            return std::future::pending().await;
        };
        let certificate = certificates.borrow().clone();
        let mut heard = || backoff.reset();
        let reason = match connection::connect(settings, certificate.as_deref()).await {
            Ok(connection) => {
                let asked = (first, &mut questions);
                // In a box, because few proxies have shared limits.
                Box::pin(converse(settings, connection, asked, &mut heard)).await
            }
            Err(error) => crate::chain(&error),
        };
        let wait = backoff.wait();
        tracing::warn!(reason, wait_ms = wait.as_millis(), "no leases of shared rate limits");
        sleep(wait).await;
        // These questions are too old by now.
        while questions.try_recv().is_ok() {}
    }
}

/// Sends questions on one stream until it ends. Returns why it ended.
async fn converse(
    settings: &Settings,
    connection: ClientConnection,
    (first, questions): (Question, &mut mpsc::Receiver<Question>),
    heard: &mut impl FnMut(),
) -> String {
    let (requests, outgoing) = mpsc::channel(MAX_QUESTIONS);
    let mut askers = Askers::new();
    let node = Some(Node::of(settings.instance.to_string()));
    let opening = LeaseRequest { node, asks: vec![note(&mut askers, first)] };
    if requests.try_send(opening).is_err() {
        return "the stream has no room for its first request".to_owned();
    }
    let mut client = LimitsClient::with_origin(connection, connection::origin());
    let mut responses =
        match timeout(OPEN_TIMEOUT, client.lease(ReceiverStream::new(outgoing))).await {
            Ok(Ok(responses)) => responses.into_inner(),
            Ok(Err(status)) => return status.message().to_owned(),
            Err(_) => return format!("no answer within {OPEN_TIMEOUT:?}"),
        };
    loop {
        tokio::select! {
            response = responses.message() => match response {
                Ok(Some(response)) => {
                    heard();
                    response.grants.into_iter().for_each(|grant| pass_on(&askers, grant));
                }
                Ok(None) => return "the control plane ended the stream".to_owned(),
                Err(status) => return status.message().to_owned(),
            },
            question = questions.recv() => {
                let Some(question) = question else {
                    return "no worker is left".to_owned();
                };
                let asks = vec![note(&mut askers, question)];
                // If the control plane reads no requests, the worker gets no answer and uses a limit of its own.
                let _dropped = requests.try_send(LeaseRequest { node: None, asks });
            }
        }
    }
}

/// Registers the receiver of the grant, and builds the request.
fn note(askers: &mut Askers, question: Question) -> LeaseAsk {
    let Question { limit, asker, wanted, answer } = question;
    let ask = LeaseAsk { limit: limit.to_string(), worker: asker, wanted };
    let key = (limit, asker);
    if askers.len() >= MAX_ASKERS && !askers.contains_key(&key) {
        // Most entries belong to limits that have been changed or removed. For limits in use, the workers ask again.
        askers.clear();
    }
    askers.insert(key, answer);
    ask
}

fn pass_on(askers: &Askers, grant: LeaseGrant) {
    let limit: Arc<str> = grant.limit.into();
    let Some(answer) = askers.get(&(Arc::clone(&limit), grant.worker)) else { return };
    let lease = Lease { limit, tokens: grant.tokens, holders: grant.holders };
    // A worker whose queue is full has no requests, so it needs no tokens.
    let _dropped = answer.try_send(lease);
}
