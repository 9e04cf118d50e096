//! Serves connections that carry HTTP/1 or HTTP/2. Each request is forwarded to the application separately.

use std::num::NonZeroU64;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use leno_http::{
    After, Call, Cause, Conn, Exchange, Failure, Handlers, HeldBody, Io, Order, Party, RequestHead,
    RequestView, TraceLine, exchange, grpc_status_of, h2_to_h1, h2_to_h2, is_idempotent,
    serve_begun, serve_streams,
};
use leno_telemetry::{Arrival, Begun, Counter, Outcome};
use leno_transport::{ConnectError, Counted, Peeked, accepted, unless_gone};
use tokio::sync::futures::Notified;
use tokio::time::timeout;

use crate::application::{Application, NoStream};
use crate::authorize::{Access, Denied, Permit, described};
use crate::external::{Authorizer, Grants, Questions, body_limit, without_body};
use crate::limit::{self, RATE_LIMITED};
use crate::peer::Peer;
use crate::standing::{Expiry, StandingPermit};
use crate::{Caller, Worker};

/// The value of `leno-error` if the proxy cannot connect to the application. The client's proxy then tries another
/// endpoint, because the request never reached an application.
const APPLICATION_UNREACHABLE: &str = "application-unreachable";

/// The value of `leno-error` if the application allows no more streams than are in use.
const STREAMS_IN_USE: &str = "streams-in-use";

/// How many new connections one request may use if the application closes each of them without reading the request.
const MAX_TRIES: usize = 3;

/// The gRPC status DEADLINE_EXCEEDED.
const GRPC_DEADLINE_EXCEEDED: u8 = 4;

/// A connection on which an HTTP/1 request has begun, and the values that are needed to serve the request.
pub(crate) struct BegunOn<S> {
    shared: Rc<Worker>,
    application: Rc<Application>,
    edge: Rc<Peer>,
    caller: Rc<Caller>,
    client: Box<Conn<S>>,
    /// Whether the client is another proxy that has proven its identity.
    is_mesh: bool,
}

/// The futures that serve requests of HTTP/1 clients.
pub(crate) type Http1Handlers<S> = Handlers<BegunOn<S>, (Box<Conn<S>>, After)>;

/// Serves the requests of an HTTP/1 client until its connection ends. `is_mesh` says that the client is another proxy
/// that has proven its identity.
pub(crate) async fn serve_http1<S: Io + 'static>(
    (shared, handlers): (&Rc<Worker>, &Http1Handlers<S>),
    application: &Rc<Application>,
    (edge, caller): (&Rc<Peer>, Rc<Caller>),
    client: Peeked<S>,
    is_mesh: bool,
) {
    let (first, client) = client.into_parts();
    let client = Box::new(Conn::with_received(client, &first));
    drop(first);
    let request = |client| {
        let (shared, application) = (Rc::clone(shared), Rc::clone(application));
        let (edge, caller) = (Rc::clone(edge), Rc::clone(&caller));
        handlers.serve(BegunOn { shared, application, edge, caller, client, is_mesh })
    };
    let leave = shared.parts.activity.idle_left();
    leno_http::serve(client, (&shared.parts.limits, leave), request).await;
}

/// Serves one request of an HTTP/1 client.
pub(crate) async fn serve_request<S: Io>(begun: BegunOn<S>) -> (Box<Conn<S>>, After) {
    let BegunOn { shared, application, edge, caller, mut client, is_mesh } = begun;
    let (shared, edge) = (&*shared, &*edge);
    let forward = async |client: &mut Conn<S>, request: &RequestHead| {
        let _busy = shared.parts.activity.enter();
        let mark = request.tap_mark(client.received()).filter(|_| is_mesh);
        forward(shared, &application, (edge, &caller), (client, request, mark)).await
    };
    let refused = |status, cause| shared.parts.registry.unreadable(edge, status, cause);
    let after = serve_begun(&mut client, &shared.parts.limits, forward, refused).await;
    (client, after)
}

/// A request of an HTTP/2 client, and the values that are needed to serve it.
pub(crate) struct Job {
    shared: Rc<Worker>,
    application: Rc<Application>,
    edge: Rc<Peer>,
    caller: Rc<Caller>,
    request: leno_h2::Request,
    /// Whether the client is another proxy that has proven its identity.
    is_mesh: bool,
}

/// A permitted request in progress.
struct Permitted<'a, 'n> {
    shared: &'n Worker,
    begun: &'a Begun,
    access: &'a Access,
    /// A notification of changes. It was created before the request was permitted, so that no change is missed.
    changed: Pin<&'a mut Notified<'n>>,
    /// When the decision may change, because a token expires or a certificate reaches a certain age.
    until: Option<Duration>,
    grants: &'a Grants,
    /// The names of the headers that are removed.
    removed: &'a [&'a str],
    /// The `traceparent` header for the application.
    trace: Option<TraceLine>,
}

impl<'n> Permitted<'_, 'n> {
    /// Counts that the request is sent again.
    fn retry(&self, edge: &Peer) {
        edge.retry();
        self.begun.retried();
    }

    /// How the request is sent to the application. `head` is a copy of the received head. It is needed if the head
    /// itself is not kept until the response ends, because a changed policy is applied to the head again.
    fn order<'o>(
        &'o mut self,
        head: Option<(&'o RequestHead, &'o [u8])>,
    ) -> Order<'o, StandingPermit<'o, 'n>> {
        let mut order = Order::new(&self.shared.parts.limits).judged_by(StandingPermit {
            shared: self.shared,
            access: self.access,
            changed: self.changed.as_mut(),
            expiry: Expiry::new(self.until),
            head,
        });
        self.grants.apply(self.removed, &mut order);
        order.request.trace = self.trace.as_ref();
        // If this is a waypoint, the server is its own outbound side, which removes the mesh headers of servers.
        order.response.keep_mesh = self.shared.is_of_service();
        order.copies = self.begun.copies().cloned();
        order
    }
}

async fn serve_call(job: Job) {
    let Job { shared, application, edge, caller, request, is_mesh } = job;
    let _busy = shared.parts.activity.enter();
    let call = if is_mesh { Call::from_mesh(request) } else { Call::new(request) };
    forward_call(&shared, &application, (&edge, &caller), call.without_identity()).await;
}

/// Serves the requests of an HTTP/2 client side by side. `is_mesh` says that the client is another proxy that has
/// proven its identity.
pub(crate) async fn serve_http2<S: Io>(
    shared: &Rc<Worker>,
    application: &Rc<Application>,
    (edge, caller): (&Rc<Peer>, Rc<Caller>),
    client: Peeked<S>,
    is_mesh: bool,
) {
    let (first, client) = client.into_parts();
    let begin = |request| {
        let (shared, application) = (Rc::clone(shared), Rc::clone(application));
        let (edge, caller) = (Rc::clone(edge), Rc::clone(&caller));
        let tasks = Rc::clone(&shared.tasks);
        tasks.run(Job { shared, application, edge, caller, request, is_mesh }, serve_call);
    };
    let drained = shared.parts.activity.drained();
    let served = serve_streams(client, &first, &shared.h2_limits, begin, drained).await;
    if let Err(error) = served {
        edge.error(error.label());
        tracing::debug!(%error, "a client's connection ended");
    }
}

async fn forward<S: Io>(
    shared: &Worker,
    application: &Application,
    (edge, caller): (&Peer, &Caller),
    (client, request, mark): (&mut Conn<S>, &RequestHead, Option<NonZeroU64>),
) -> After {
    let head = request.view(client.received());
    let begun = &begin((shared, edge), head, mark);
    let mut changed = pin!(shared.changes.notified());
    // Policies may have to decide about the request again later. The exchange drops the received head before it ends,
    // so the head is copied.
    let kept: Box<[u8]> = client.received().get(..request.len()).unwrap_or_default().into();
    begun.decided(|| caller.access.described(shared, head));
    let Permit { until, authorizers, grants } = match caller.access.request(shared, head).await {
        Ok(permit) => permit,
        Err(denied) => {
            return refuse(shared, (edge, begun), (client, request), denied.into()).await;
        }
    };
    if let Err(wait) = shared.limits().check(&shared.parts.registry, &caller.key, head) {
        fail(shared, edge, begun, (429, RATE_LIMITED, false));
        return client.answer(request, &limit::answer(limit::retry_after(wait).as_ref())).await;
    }
    let asked = async {
        let what = asked_about(&authorizers, request.view(client.received()));
        let (of, asked) = ((shared, &caller.access), (&authorizers[..], &*what));
        let body = read_body(of, asked, |most| client.read_body(request, most)).await?;
        let about = (request.view(client.received()), what);
        let ends = (&caller.access, application.dialled());
        let questions = Questions::new(authorizers, ends, about, grants, body.as_ref());
        let waited = questions.are_any();
        let grants = ask(shared, &caller.access, questions, |cx| client.poll_gone(cx)).await?;
        let head = waited.then(|| request.view(client.received()));
        caller.access.is_still_permitted(shared, head).map(|()| grants).map_err(Refusal::Denied)
    };
    let grants = &match asked.await {
        Ok(grants) => grants.with_trace(begun),
        Err(refusal) => return refuse(shared, (edge, begun), (client, request), refusal).await,
    };
    let removed = grants.removed();
    let (access, changed, removed) = (&caller.access, changed.as_mut(), &*removed);
    let trace = grants.traceparent(begun);
    let mut permitted = Permitted { shared, begun, access, changed, until, grants, removed, trace };
    let mut tries = Tries::new(shared);
    loop {
        let gone = |cx: &mut Context<'_>| client.poll_gone(cx);
        let connected = reach(shared, application, tries.is_again, gone).await;
        let (mut server, reused) = match connected {
            Ok(Ok(connection)) => connection,
            Err(failure) => {
                return refuse(shared, (edge, begun), (client, request), failure.into()).await;
            }
            Ok(Err(error)) => {
                let (status, cause) = unreachable(edge, &error);
                fail(shared, edge, begun, (status, cause, false));
                return client.fail(request, status, cause).await;
            }
        };
        let mut order = permitted.order(Some((request, &kept)));
        order.close_client = shared.parts.activity.is_draining();
        order.request.remove_identity = true;
        server.io_mut().begin();
        let done = exchange(client, request, &mut server, &mut order).await;
        let idempotent = || is_idempotent(request.view(client.received()).method());
        if tries.again(&done, (&server, reused), idempotent).await {
            permitted.retry(edge);
            continue;
        }
        if done.server_reusable {
            application.server.pool.put(server, done.server_idle);
        }
        count(shared, edge, begun, (&done, false));
        return client.conclude(request, &done).await;
    }
}

/// Begins to count a request, and describes it to taps. `mark` is the number with which the client's proxy has marked
/// the request for a tap, if it has.
fn begin(
    (shared, edge): (&Worker, &Peer),
    head: RequestView<'_>,
    mark: Option<NonZeroU64>,
) -> Begun {
    let line = (head.version().as_str(), head.method(), head.target());
    let arrival = Arrival::Inbound { mark };
    let (registry, of) = (&shared.parts.registry, || (head.authority(), head.headers()));
    let begun = registry.begin(arrival, line, of, || head.trace_headers());
    begun.came_from(|| edge.identity());
    begun
}

/// Why a request is not sent to the application.
enum Refusal {
    /// A policy or an authorizer denies it.
    Denied(Denied),
    /// The client left before the decision, or the request's body cannot be read.
    Failed(Failure),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Self {
        Self::Denied(denied)
    }
}

/// Describes the request for the log. The text is empty if the request has no authorizer, which is so for most
/// requests.
fn asked_about(authorizers: &[Rc<Authorizer>], request: RequestView<'_>) -> String {
    if authorizers.is_empty() { String::new() } else { described(Some(request)) }
}

/// Reads the body, if an authorizer gets it. Fails if the client sends the body too slowly. `what` is the request, for
/// the log. `read` reads up to a number of bytes.
async fn read_body<R: Future<Output = Result<HeldBody, Failure>>>(
    (shared, access): (&Worker, &Access),
    (authorizers, what): (&[Rc<Authorizer>], &str),
    read: impl FnOnce(usize) -> R,
) -> Result<Option<HeldBody>, Refusal> {
    let Some(limit) = body_limit(authorizers) else { return Ok(None) };
    let failed =
        |reason| Refusal::Denied(without_body((shared, access), authorizers, reason, what));
    let overloaded = || failed((503, "overloaded"));
    let share = shared.held.take(access.address().ip()).ok_or_else(overloaded)?;
    // This is boxed, because most requests have no such body.
    match Box::pin(share.hold(timeout(shared.parts.limits.head, read(limit)))).await {
        Some(Ok(body)) => body.map(Some).map_err(Refusal::Failed),
        Some(Err(_)) => Err(failed((408, "body-timeout"))),
        // All shares were in use, and this client had the most, so another client got one of them.
        None => Err(overloaded()),
    }
}

/// Asks the authorizers, if there are any. Stops when the client leaves.
async fn ask(
    shared: &Worker,
    access: &Access,
    questions: Questions,
    gone: impl FnMut(&mut Context<'_>) -> Poll<Failure>,
) -> Result<Grants, Refusal> {
    let questions = match questions.without_any() {
        Ok(grants) => return Ok(grants),
        Err(questions) => questions,
    };
    match unless_gone(Box::pin(questions.ask(shared, access)), gone).await {
        Ok(granted) => granted.map_err(Refusal::Denied),
        Err(failure) => Err(Refusal::Failed(failure)),
    }
}

async fn refuse<S: Io>(
    shared: &Worker,
    (edge, begun): (&Peer, &Begun),
    (client, request): (&mut Conn<S>, &RequestHead),
    refusal: Refusal,
) -> After {
    match refusal {
        Refusal::Denied(denied) => {
            fail(shared, edge, begun, (denied.status, denied.label, false));
            client.answer(request, &denied.answer()).await
        }
        Refusal::Failed(failure) => {
            let done = Exchange::ended(failure);
            count(shared, edge, begun, (&done, false));
            client.conclude(request, &done).await
        }
    }
}

fn refuse_call(shared: &Worker, (edge, begun): (&Peer, &Begun), call: Call, refusal: Refusal) {
    let is_grpc = call.is_grpc();
    match refusal {
        Refusal::Denied(denied) => {
            fail(shared, edge, begun, (denied.status, denied.label, is_grpc));
            call.respond(&denied.answer());
        }
        Refusal::Failed(failure) => {
            let done = Exchange::ended(failure);
            count(shared, edge, begun, (&done, is_grpc));
            call.conclude(&done);
        }
    }
}

/// Forwards one request of an HTTP/2 client. If the client's proxy has received the request as HTTP/1, this proxy
/// sends it as HTTP/1, too.
async fn forward_call(
    shared: &Worker,
    application: &Application,
    (edge, caller): (&Peer, &Caller),
    mut call: Call,
) {
    let head = call.view();
    let begun = &begin((shared, edge), head, call.tap_mark());
    let is_grpc = call.is_grpc();
    let mut changed = pin!(shared.changes.notified());
    begun.decided(|| caller.access.described(shared, head));
    let Permit { until, authorizers, grants } = match caller.access.request(shared, head).await {
        Ok(permit) => permit,
        Err(denied) => {
            return refuse_call(shared, (edge, begun), call, denied.into());
        }
    };
    if let Err(wait) = shared.limits().check(&shared.parts.registry, &caller.key, head) {
        fail(shared, edge, begun, (429, RATE_LIMITED, is_grpc));
        let line = limit::retry_after(wait);
        return call.respond(&limit::answer(line.as_ref()));
    }
    let asked = async {
        let what = asked_about(&authorizers, call.view());
        let (of, asked) = ((shared, &caller.access), (&authorizers[..], &*what));
        let body = read_body(of, asked, |most| call.read_body(most)).await?;
        let ends = (&caller.access, application.dialled());
        let about = (call.view(), what);
        let questions = Questions::new(authorizers, ends, about, grants, body.as_ref());
        let waited = questions.are_any();
        let grants = ask(shared, &caller.access, questions, |cx| call.poll_gone(cx)).await?;
        let head = waited.then(|| call.view());
        caller.access.is_still_permitted(shared, head).map(|()| grants).map_err(Refusal::Denied)
    };
    let grants = &match asked.await {
        Ok(grants) => grants.with_trace(begun),
        Err(refusal) => return refuse_call(shared, (edge, begun), call, refusal),
    };
    let removed = grants.removed();
    let (access, changed, removed) = (&caller.access, changed.as_mut(), &*removed);
    let trace = grants.traceparent(begun);
    let permitted = Permitted { shared, begun, access, changed, until, grants, removed, trace };
    let sent = if call.was_http1() {
        to_http1(application, edge, &mut call, permitted).await
    } else {
        to_http2(application, edge, &mut call, permitted).await
    };
    match sent {
        Ok(done) => {
            count(shared, edge, begun, (&done, is_grpc));
            call.conclude(&done);
        }
        Err((status, cause)) => {
            fail(shared, edge, begun, (status, cause, is_grpc));
            call.fail(status, cause);
        }
    }
}

async fn to_http1(
    application: &Application,
    edge: &Peer,
    call: &mut Call,
    mut permitted: Permitted<'_, '_>,
) -> Result<Exchange, (u16, &'static str)> {
    let shared = permitted.shared;
    let mut tries = Tries::new(shared);
    loop {
        let gone = |cx: &mut Context<'_>| call.poll_gone(cx);
        let connected = reach(shared, application, tries.is_again, gone).await;
        let (mut server, reused) = match connected {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return Err(unreachable(edge, &error)),
            Err(failure) => return Ok(Exchange::ended(failure)),
        };
        let mut order = permitted.order(None);
        // The client's proxy sends a CONNECT only if a route permits it. Clients without a proxy have no route that
        // could permit it.
        order.connect = call.is_of_mesh();
        server.io_mut().begin();
        let done = h2_to_h1(call, &mut server, &mut order).await;
        let idempotent = || is_idempotent(call.view().method());
        if tries.again(&done, (&server, reused), idempotent).await {
            permitted.retry(edge);
            continue;
        }
        if done.server_reusable {
            application.server.pool.put(server, done.server_idle);
        }
        return Ok(done);
    }
}

async fn to_http2(
    application: &Application,
    edge: &Peer,
    call: &mut Call,
    mut permitted: Permitted<'_, '_>,
) -> Result<Exchange, (u16, &'static str)> {
    let shared = permitted.shared;
    let registry = &shared.parts.registry;
    let mut tries = 0_usize;
    loop {
        tries = tries.saturating_add(1);
        let lent = application.stream(call.deadline());
        let lent = match unless_gone(lent, |cx| call.poll_gone(cx)).await {
            Ok(Ok(lent)) => lent,
            Ok(Err(NoStream::Unreachable(error))) => return Err(unreachable(edge, &error)),
            Ok(Err(NoStream::Full)) => return Err((503, STREAMS_IN_USE)),
            Ok(Err(NoStream::Deadline)) => return Err((504, "deadline")),
            Err(failure) => return Ok(Exchange::ended(failure)),
        };
        registry.count(if lent.reused {
            Counter::InboundPoolReused
        } else {
            Counter::InboundPoolOpened
        });
        if lent.waited {
            registry.count(Counter::InboundStreamWaited);
        }
        let mut order = permitted.order(None);
        // The client's proxy sends a CONNECT only if a route permits it. Clients without a proxy have no route that
        // could permit it.
        order.connect = call.is_of_mesh();
        let done = h2_to_h2(call, &lent.client, &mut order).await;
        if let Some(failure) = &done.failure
            && failure.place == Party::Server
            && matches!(failure.cause, Cause::Stalled)
        {
            lent.retire();
        }
        let unseen = |done: &Exchange| {
            done.failure.as_ref().is_some_and(|failure| {
                failure.retryable && failure.unprocessed && failure.place != Party::Client
            })
        };
        let idempotent = || is_idempotent(call.view().method());
        if tries < MAX_TRIES && (unseen(&done) || may_send_again(&done, lent.reused, idempotent)) {
            permitted.retry(edge);
            continue;
        }
        return Ok(done);
    }
}

fn unreachable(edge: &Peer, error: &ConnectError) -> (u16, &'static str) {
    tracing::debug!(%error, "the application cannot be connected to");
    edge.connect_failure();
    (503, APPLICATION_UNREACHABLE)
}

/// Whether to send a request again because the application closed a pooled connection while the request was on its way.
/// The request is sent again only if a repetition is safe.
fn may_send_again(done: &Exchange, reused: bool, idempotent: impl Fn() -> bool) -> bool {
    done.failure.as_ref().is_some_and(|failure| {
        // A connection that the application had closed before (a stale one) brings no answer at all. So an answer
        // that is not HTTP proves that the connection was open.
        let is_stale = !matches!(failure.cause, Cause::Head(_));
        let again = failure.retryable && failure.place != Party::Client && is_stale;
        let unseen = matches!(failure.cause, Cause::Stale);
        again && reused && (unseen || idempotent())
    })
}

/// The attempts to send one request on HTTP/1 connections.
struct Tries<'a> {
    shared: &'a Worker,
    /// How many attempts used a new connection.
    new: usize,
    /// Whether the request was sent before.
    is_again: bool,
}

impl<'a> Tries<'a> {
    fn new(shared: &'a Worker) -> Self {
        Self { shared, new: 0, is_again: false }
    }

    /// Whether to send the request again after the attempt `done`. If the application has closed a connection without
    /// reading the request, the request is sent again whatever its method is, until [`MAX_TRIES`] new connections were
    /// used.
    async fn again(
        &mut self,
        done: &Exchange,
        (server, reused): (&Conn<Counted>, bool),
        idempotent: impl Fn() -> bool,
    ) -> bool {
        self.new = self.new.saturating_add(usize::from(!reused));
        let broke = |failure: &Failure| {
            // The connection is broken if it was reset, or if a part of the request was written after it was closed.
            let cause = matches!(failure.cause, Cause::Closed | Cause::Broken(_));
            cause && failure.retryable && failure.place == Party::Server
        };
        self.is_again = may_send_again(done, reused, idempotent);
        if !self.is_again
            && self.new < MAX_TRIES
            && done.failure.as_ref().is_some_and(broke)
            && server.io().never_read().await
        {
            self.shared.parts.registry.count(Counter::RequestsUnread);
            self.is_again = true;
        }
        self.is_again
    }
}

/// Counts a request with the result of its exchange.
fn count(shared: &Worker, edge: &Peer, begun: &Begun, (done, is_grpc): (&Exchange, bool)) {
    let (status, error) = (done.counted_status(), done.error());
    let answered = done
        .failure
        .as_ref()
        .is_some_and(|failure| failure.place != Party::Client && !done.response_started);
    let outcome = Outcome {
        status,
        grpc_status: if answered && is_grpc {
            Some(grpc_status(status, error))
        } else {
            done.grpc_status
        },
        bytes: (done.request_bytes, done.response_bytes),
        error,
        sent: Some(done.started.into()),
        first_byte: done.first_byte.map(Into::into),
    };
    if let Some(error) = error {
        edge.error(error);
    }
    shared.parts.registry.end(edge, begun, &outcome);
}

/// Counts a request that never reached the application.
fn fail(
    shared: &Worker,
    edge: &Peer,
    begun: &Begun,
    (status, cause, is_grpc): (u16, &'static str, bool),
) {
    edge.error(cause);
    let grpc_status = is_grpc.then(|| grpc_status(status, Some(cause)));
    let outcome = Outcome { status, grpc_status, error: Some(cause), ..Outcome::default() };
    shared.parts.registry.end(edge, begun, &outcome);
}

/// The gRPC status for an error of this proxy.
fn grpc_status(status: u16, cause: Option<&str>) -> u8 {
    match (status, cause) {
        (504, Some("deadline")) => GRPC_DEADLINE_EXCEEDED,
        _ => grpc_status_of(status),
    }
}

/// A connection to the application, and whether it was used before. Fails if the client leaves first. For `again`, see
/// [`connect`].
async fn reach(
    shared: &Worker,
    application: &Application,
    again: bool,
    gone: impl FnMut(&mut Context<'_>) -> Poll<Failure>,
) -> Result<Result<(Conn<Counted>, bool), ConnectError>, Failure> {
    match pooled(shared, application) {
        Some(server) => Ok(Ok((server, true))),
        None => unless_gone(connect(shared, application, again), gone).await,
    }
}

/// Takes a pooled connection. While the workload drains, no pooled connection is used: an application that is about to
/// exit closes idle connections at any time, perhaps while a request is on its way.
fn pooled(shared: &Worker, application: &Application) -> Option<Conn<Counted>> {
    if shared.parts.activity.is_draining() {
        return None;
    }
    let pooled = application.server.pool.take()?;
    shared.parts.registry.count(Counter::InboundPoolReused);
    Some(pooled)
}

/// Opens a connection. The returned `false` says that it was not used before. `again` says that the application has
/// closed another connection.
///
/// An application that is about to exit closes its listener. The kernel then resets connections that were not accepted,
/// and cannot prove that a request on such a connection was not read. So the request waits until the connection is
/// accepted.
async fn connect(
    shared: &Worker,
    application: &Application,
    again: bool,
) -> Result<(Conn<Counted>, bool), ConnectError> {
    let may_end = again || shared.parts.activity.is_draining();
    for _ in 0..MAX_TRIES {
        let stream = application.connect().await?;
        shared.parts.registry.count(Counter::InboundPoolOpened);
        if !may_end || accepted(&stream).await {
            return Ok((Conn::new(Counted::new(stream)), false));
        }
    }
    Err(ConnectError::Refused(application.dialled()))
}
