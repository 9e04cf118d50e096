//! Forwards one request to an endpoint. Sends it to another endpoint if it never reached an application, or if policy
//! demands a retry.
//!
//! ```text
//! request ─► route ─► fault ─► admitted? ─► pick an endpoint ─► attempt ─┬─► response goes to the client
//!                                                ▲                       ├─► given up: error answer
//!                                                └── (pause) ── again ◄──┘
//! ```

mod race;
mod sending;
mod turn;

use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use leno_balance::{Affinity, NoPick, Pick};
use leno_http::{
    Cause, Exchange, Failure, HeaderLine, Judgement, Party, ResponseView, TraceLine,
    grpc_status_of, is_idempotent,
};
use leno_resilience::{Hedge, Permit};
use leno_telemetry::{Arrival, Begun, Counter, Outcome};
use leno_tls::refused_by_server;
use leno_transport::unless_gone;
use smallvec::SmallVec;
use tokio::time::{sleep, sleep_until};

use crate::Worker;
use crate::backends::{Backends, Remote};
use crate::connect::REFUSED_BY_SERVER;
use crate::destination::{Destination, Route};
use crate::egress;
use crate::mirror::{self, Mirrors};
use crate::policy::{EndpointPolicy, Plan, RequestPolicy};
use crate::request::{Hedgeable, Request};
use crate::routes::{Applied, Decision, MeshAnswer, Routes};
use crate::server::{self, GetError, Server};
use crate::streams::BACKEND_GONE;
use crate::tries::{TRIES, Unreached};
use sending::{Sending, Told};

/// The value of `leno-error` from the server's proxy if it cannot connect to the application, so that the request never
/// reached the application.
const UNREACHABLE: &str = "application-unreachable";

/// The value of `leno-error` from the server's proxy if a policy denies the request. This proxy counts the denial,
/// too, because only its metrics name the client's workload.
const DENIED: &str = "authorization-denied";

/// The gRPC status UNAVAILABLE, with which a proxy answers a gRPC request if it cannot reach the application.
const GRPC_UNAVAILABLE: &[u8] = b"14";

/// The value of `leno-error` if the called destination no longer exists.
pub(crate) const DESTINATION_GONE: &str = "destination-gone";

/// The value of `leno-error` if no response began within the time that policy allows. [`leno_http`] defines it.
pub(crate) const RESPONSE_TIMEOUT: &str = "response-timeout";

/// The value of `leno-error` if a request is answered by a fault that policy injects.
pub(crate) const FAULT_ABORT: &str = "fault-abort";

/// The value of `leno-error` if as many requests are in progress and waiting as policy allows.
pub(crate) const OVERLOADED: &str = "overloaded";

/// The gRPC status DEADLINE_EXCEEDED.
const GRPC_DEADLINE_EXCEEDED: u8 = 4;

type Tried = SmallVec<[SocketAddr; TRIES]>;

/// The outcome of forwarding a request. The caller completes the response to the client.
pub(crate) enum Forwarded {
    /// The request was sent to an endpoint, or the client left. If the exchange says that it failed, the client may
    /// still need an error answer.
    Done(Exchange),
    /// No application has processed the request. The client gets this status and cause.
    Failed(u16, &'static str),
    /// This proxy answers the request, because of a route or of egress policy.
    Answered(MeshAnswer),
}

/// One request that is being forwarded, with its attempts.
struct Attempts<'a, R> {
    shared: &'a Rc<Worker>,
    backends: &'a Backends,
    policy: &'a RequestPolicy,
    endpoints: &'a EndpointPolicy,
    plan: Plan,
    /// The copies of the request, which policy adds if the response is late.
    hedge: Option<Hedge>,
    /// The endpoint that the request should go to, by a hash or a session.
    wanted: Affinity,
    request: &'a mut R,
    begun: Begun,
    /// The trace headers for the next hop.
    trace: Told<'a>,
    is_grpc: bool,
    /// The endpoints that must not be tried again.
    tried: Tried,
    /// The number of attempts since the last retry that policy demanded.
    tries: usize,
    /// When the first attempt failed without reaching an application, to limit further ones.
    unreached: Unreached,
    /// The changes that the request's route makes.
    applied: Option<&'a Applied>,
}

/// Why a request was not admitted among those in progress.
enum NotEntered {
    /// The request is answered with this status and cause.
    Refused(u16, &'static str),
    /// The client left while the request was waiting.
    ClientGone(Failure),
}

/// What the proxy does after an attempt.
enum Verdict {
    /// The attempt is final: its result goes to the client.
    Done,
    /// The request is sent again at once, because it never reached an application.
    Again {
        /// Whether the endpoint may be tried again.
        same_endpoint: bool,
        cause: &'static str,
    },
    /// The request is sent again after this time, because policy retries it.
    Policy(Duration),
}

/// What follows an attempt.
enum Next {
    /// The request is over.
    End(Forwarded),
    /// Another attempt.
    Try { after: Duration },
}

/// Sends a request to an endpoint or answers it, and counts it.
pub(crate) async fn forward<R: Hedgeable>(
    shared: &Rc<Worker>,
    destination: &Destination,
    request: &mut R,
) -> Forwarded {
    let backends = match destination.route_with_endpoints().await {
        Route::Backends(backends) => backends,
        Route::Direct if !shared.egress.allows(destination.original()) => {
            return Forwarded::Answered(
                egress::denied(shared, destination.original(), request).last(),
            );
        }
        _ => {
            // The service may return with another address, but a client that keeps this connection would never look up
            // the address.
            let answer = MeshAnswer::error(503, DESTINATION_GONE).last();
            let answer = egress::unrouted(shared, request, answer, DESTINATION_GONE);
            return Forwarded::Answered(answer);
        }
    };
    let head = request.view();
    let line = (head.version().as_str(), head.method(), head.target());
    let of = || (head.authority(), head.headers());
    let mut begun = shared.registry.begin(Arrival::Outbound, line, of, || head.trace_headers());
    let is_grpc = request.is_grpc();
    let mut policy = backends.requests();
    let (backends, applied, mirrors) = match backends.routes() {
        None if request.view().is_connect() => {
            return answered(shared, &backends, (&begun, is_grpc), MeshAnswer::no_tunnel());
        }
        None => (backends, None, Mirrors::default()),
        // This is boxed, so that requests without routes need no memory for it.
        Some(routes) => match Box::pin(follow((shared, &mut begun), &routes, request)).await {
            Ok((of_target, applied, mirrors)) => {
                policy = applied.policy().cloned().unwrap_or(policy);
                begun.routed(|| applied.rule_name());
                (of_target, Some(applied), mirrors)
            }
            Err(answer) => return answered(shared, &backends, (&begun, is_grpc), answer),
        },
    };
    let head = request.view();
    let endpoints = backends.endpoints();
    let idempotent = is_idempotent(head.method());
    let mut wanted = endpoints.wanted(head);
    wanted.session = applied.as_ref().and_then(|applied| applied.endpoint()).or(wanted.session);
    let (parent, lines) = trace_of(&begun);
    let trace = Told { parent: parent.as_ref(), lines: &lines };
    let mut attempts = Attempts {
        shared,
        backends: &backends,
        policy: &policy,
        endpoints: &endpoints,
        plan: policy.plan(idempotent),
        // A CONNECT is not copied, because bytes of the tunnel that a copy has read would be lost with the copy.
        hedge: policy.hedge(idempotent).filter(|_| !head.is_connect()),
        wanted,
        request,
        trace,
        begun,
        is_grpc,
        tried: Tried::new(),
        tries: 0,
        unreached: Unreached::default(),
        applied: applied.as_deref(),
    };
    let forwarded = attempts.run().await;
    if let Forwarded::Done(Exchange { failure: Some(failure), .. }) = &forwarded
        && failure.place == Party::Client
    {
        mirrors.end(shared);
    }
    forwarded
}

/// The trace headers for the next hop.
fn trace_of(begun: &Begun) -> (Option<TraceLine>, Vec<HeaderLine>) {
    let parent = begun.traceparent().map(|parent| TraceLine::new(parent.as_bytes()));
    (parent, HeaderLine::all(begun.trace_lines()))
}

/// Where a request's route leads, and what it changes. The error is an answer to the request.
async fn follow<R: Request>(
    (shared, begun): (&Rc<Worker>, &mut Begun),
    routes: &Rc<Routes>,
    request: &mut R,
) -> Result<(Rc<Backends>, Rc<Applied>, Mirrors), MeshAnswer> {
    let (target, applied) = match routes.decide(shared, request.view()) {
        Decision::Forward(target, applied) => (target, applied),
        Decision::Answer(answer, counter) => {
            begun.counts_with(&counter);
            return Err(answer);
        }
    };
    begun.counts_with(applied.counter(&shared.registry));
    let is_connect = request.view().is_connect();
    if is_connect && !applied.relays_connect() {
        return Err(MeshAnswer::no_tunnel());
    }
    // A tunnel has no end at which a copy would be complete.
    let mirrors =
        if is_connect { Mirrors::default() } else { mirror::send(shared, &applied, request).await };
    match target.route().await {
        Route::Backends(backends) => Ok((backends, applied, mirrors)),
        _ => Err(MeshAnswer::error(500, BACKEND_GONE)),
    }
}

/// Counts a request that this proxy answers itself, because of a route or because no route relays a CONNECT.
fn answered(
    shared: &Worker,
    backends: &Backends,
    (begun, is_grpc): (&Begun, bool),
    answer: MeshAnswer,
) -> Forwarded {
    let edge = backends.nobody();
    if let Some(error) = answer.error {
        edge.error(error);
    }
    let grpc_status = is_grpc.then(|| grpc_status(answer.status, answer.error));
    let outcome =
        Outcome { status: answer.status, grpc_status, error: answer.error, ..Outcome::default() };
    shared.registry.end(edge, begun, &outcome);
    Forwarded::Answered(answer)
}

impl<'a, R: Hedgeable> Attempts<'a, R> {
    async fn run(&mut self) -> Forwarded {
        let fault = self.policy.fault();
        if let Some(delay) = fault.delay {
            self.shared.registry.count(Counter::FaultsDelayed);
            self.begun.decided(|| format!("is delayed by a fault of policy: {delay:?}"));
            if let Some(left) = self.pause(delay).await {
                return left;
            }
        }
        if let Some(status) = fault.abort {
            self.shared.registry.count(Counter::FaultsAborted);
            self.begun.decided(|| format!("is aborted by a fault of policy: {status}"));
            return self.nowhere(status, FAULT_ABORT);
        }
        let _place = match self.enter().await {
            Ok(place) => place,
            Err(NotEntered::Refused(status, cause)) => return self.nowhere(status, cause),
            Err(NotEntered::ClientGone(failure)) => return self.left(failure),
        };
        loop {
            let pick = match self.pick() {
                Ok(pick) => pick,
                Err(reason) => match self.wait_for_endpoints(reason) {
                    None => return self.not_picked(reason),
                    Some(wait) => match self.pause(wait).await {
                        Some(left) => return left,
                        None => continue,
                    },
                },
            };
            let forwarded = match &self.hedge {
                None => self.attempt(pick).await,
                // This is boxed, so that requests without copies need no memory for it.
                Some(_) => Box::pin(self.race(pick)).await,
            };
            if let Some(forwarded) = forwarded {
                return forwarded;
            }
        }
    }

    /// Waits until the request is admitted among those in progress, at most until its deadline.
    async fn enter(&mut self) -> Result<Option<Permit>, NotEntered> {
        let endpoints = self.endpoints;
        let mut late = pin!(self.plan.request_by().map(|by| sleep_until(by.into())));
        let over = |cx: &mut Context<'_>| {
            if let Poll::Ready(failure) = self.request.poll_gone(cx) {
                return Poll::Ready(NotEntered::ClientGone(failure));
            }
            match late.as_mut().as_pin_mut() {
                Some(late) => late.poll(cx).map(|()| NotEntered::Refused(504, "deadline")),
                None => Poll::Pending,
            }
        };
        let entered = unless_gone(endpoints.enter(), over).await?;
        entered.map_err(|_| NotEntered::Refused(503, OVERLOADED))
    }

    /// If connecting to every endpoint has failed, how long policy waits before it tries the endpoints again. `None`
    /// if no attempt was retried by policy so far, or if policy has no retry left.
    fn wait_for_endpoints(&mut self, reason: NoPick) -> Option<Duration> {
        if reason != NoPick::Failfast || self.plan.made() == 0 {
            return None;
        }
        self.plan.after_connecting((self.policy, &*self.shared.registry))
    }

    /// Waits before the request continues. Returns the request's result if the client leaves in the meantime.
    async fn pause(&mut self, wait: Duration) -> Option<Forwarded> {
        if wait.is_zero() {
            return None;
        }
        let waited = unless_gone(sleep(wait), |cx| self.request.poll_gone(cx)).await;
        waited.err().map(|failure| self.left(failure))
    }

    /// Picks an endpoint that was not tried yet. If there is none, a retry by policy may use any endpoint.
    fn pick(&mut self) -> Result<Pick<Remote>, NoPick> {
        let picked = self.backends.pick_for(self.wanted, &self.tried);
        if matches!(picked, Err(NoPick::Excluded)) && self.plan.made() > 0 {
            self.tried.clear();
            return self.backends.pick_for(self.wanted, &self.tried);
        }
        picked
    }

    /// Makes one attempt. `None` means that another attempt must follow.
    async fn attempt(&mut self, pick: Pick<Remote>) -> Option<Forwarded> {
        self.tries = self.tries.saturating_add(1);
        let sending = self.sending(&pick);
        let deadline = sending.deadline();
        let response_by = self.plan.response_by(self.policy);
        let got = server::get(self.shared, pick.shared_endpoint(), self.request, deadline).await;
        let mut server = match got {
            Ok(server) => server,
            Err(GetError::ClientGone(failure)) => {
                pick.endpoint().edge(self.shared).error(failure.cause.label());
                let done = Exchange::ended(failure);
                self.count(&pick, &done);
                return Some(Forwarded::Done(done));
            }
            Err(error) => {
                self.backends.opened(Some(error.cause()));
                return self.not_connected(&pick, &error).await;
            }
        };
        self.backends.opened(None);
        let policy = (self.policy, &*self.shared.registry);
        let (plan, is_mesh) = (&mut self.plan, server.is_believed);
        let mut denied = false;
        let judge = |response: ResponseView<'_>, replayable: bool| {
            denied = is_mesh && is_denial(response);
            let unreached = refuse_unreached(response, (replayable, is_mesh));
            if unreached == Judgement::Forward
                && plan.judge(policy, response, (replayable, is_mesh))
            {
                return Judgement::Refuse;
            }
            unreached
        };
        let way = (&pick, &mut server);
        let times = (deadline, response_by);
        let done = sending.exchange(&mut *self.request, way, times, judge).await;
        if denied {
            pick.endpoint().edge(self.shared).error(DENIED);
            self.begun.failed_there(DENIED);
        }
        match self.settle(pick, server, done) {
            Next::End(forwarded) => Some(forwarded),
            Next::Try { after } => self.pause(after).await,
        }
    }

    /// Decides what follows an attempt. Returns its connection to the pool if it is the last one, and counts the
    /// request or its retry.
    fn settle(&mut self, pick: Pick<Remote>, server: Server, done: Exchange) -> Next {
        let (same_endpoint, cause) = match self.verdict(&pick, &done, &server) {
            Verdict::Done => {
                self.count(&pick, &done);
                server.give_back(pick.endpoint(), &done);
                return Next::End(Forwarded::Done(done));
            }
            Verdict::Policy(wait) => {
                pick.failed(leno_transport::now());
                pick.penalise(leno_transport::now());
                self.begin_elsewhere(&pick);
                return Next::Try { after: wait };
            }
            Verdict::Again { same_endpoint, cause } => (same_endpoint, cause),
        };
        self.retry(&pick, cause);
        if !same_endpoint {
            self.backends.note_unreached(pick.endpoint(), cause);
            self.tried.push(pick.endpoint().address);
        }
        if self.goes_on(self.tries) {
            return Next::Try { after: Duration::ZERO };
        }
        Next::End(self.failed(&pick, 503, cause))
    }

    /// Whether to try again after `made` attempts, none of which has reached an application. Attempts beyond the
    /// first few are only for endpoints that were not tried.
    fn goes_on(&mut self, made: usize) -> bool {
        self.unreached.has_another(made, leno_transport::now())
            && (made < TRIES || self.backends.has_others(&self.tried))
    }

    /// The settings of an attempt that begins now.
    fn sending(&self, pick: &Pick<Remote>) -> Sending<'a> {
        let remote = pick.endpoint();
        let identity = || Some(remote.endpoint.identity.as_ref()?.to_string().into());
        Sending {
            shared: self.shared,
            policy: self.policy,
            endpoints: self.endpoints,
            wanted: self.wanted,
            applied: self.applied,
            request_by: self.plan.request_by(),
            trace: self.trace,
            mark: self.begun.mark(remote.labels(), identity),
            // A tap's copy of the bodies must be of one exchange. If several copies of the request are sent at the
            // same time, they would overwrite each other's bytes.
            copies: self.begun.copies().filter(|_| self.hedge.is_none()).cloned(),
        }
    }

    /// Prepares a retry that policy demands, at another endpoint.
    fn begin_elsewhere(&mut self, pick: &Pick<Remote>) {
        self.retry(pick, "by policy");
        self.tried.push(pick.endpoint().address);
        (self.tries, self.unreached) = Default::default();
        // The session was on the endpoint that has failed.
        self.wanted.session = None;
    }

    async fn not_connected(&mut self, pick: &Pick<Remote>, error: &GetError) -> Option<Forwarded> {
        if error.is_full() && self.tries < TRIES {
            // Closing an idle connection makes room.
            if self.backends.close_idle() {
                return None;
            }
            // An endpoint with a shared connection needs no new one, so only such endpoints may still be tried.
            self.tried.extend(self.backends.unconnected());
            if self.backends.has_others(&self.tried) {
                return None;
            }
        }
        tracing::debug!(%error, "endpoint left out");
        let (status, cause) = (error.status(), error.cause());
        let edge = pick.endpoint().edge(self.shared);
        edge.error(cause);
        if error.is_of_endpoint() {
            edge.connect_failure();
            self.backends.note_unreached(pick.endpoint(), cause);
            pick.connect_failed(leno_transport::now());
            self.tried.push(pick.endpoint().address);
            let others = !self.plan.decides() || self.backends.has_others(&self.tried);
            if self.goes_on(self.tried.len()) && others {
                self.retry(pick, cause);
                return None;
            }
            let policy = (self.policy, &*self.shared.registry);
            if let Some(wait) = self.plan.after_connecting(policy) {
                self.retry(pick, cause);
                (self.tries, self.unreached) = Default::default();
                return self.pause(wait).await;
            }
        }
        Some(self.failed(pick, status, cause))
    }

    /// Decides whether the request is sent again, and where.
    fn verdict(&mut self, pick: &Pick<Remote>, done: &Exchange, server: &Server) -> Verdict {
        let by_policy = self.plan.again();
        let Some(failure) = &done.failure else { return Verdict::Done };
        if let (Some(wait), Cause::Refused) = (by_policy, &failure.cause) {
            return Verdict::Policy(wait);
        }
        let edge = pick.endpoint().edge(self.shared);
        let is_refused = matches!(failure.cause, Cause::Refused);
        edge.error(if is_refused { UNREACHABLE } else { failure.cause.label() });
        server.judge(failure);
        let policy = (self.policy, &*self.shared.registry);
        let over = matches!(failure.cause, Cause::Deadline);
        if failure.place == Party::Client || !failure.retryable || over {
            // This counts why policy does not retry the request.
            let _refused = self.plan.after(policy, failure);
            return Verdict::Done;
        }
        if is_refused {
            pick.connect_failed(leno_transport::now());
            return Verdict::Again { same_endpoint: false, cause: UNREACHABLE };
        }
        // The server's proxy refused this proxy's certificate, so it has read nothing.
        if refused(failure, server) {
            pick.penalise(leno_transport::now());
            pick.connect_failed(leno_transport::now());
            return Verdict::Again { same_endpoint: false, cause: REFUSED_BY_SERVER };
        }
        // An idle connection was closed while the request was on its way, or a stream was refused.
        let unseen = matches!(failure.cause, Cause::Stale) || failure.unprocessed;
        // If policy has retries, it decides about every request that an application may have seen.
        let implied = || {
            let is_stale = !matches!(failure.cause, Cause::Late | Cause::Head(_));
            server.reused && self.plan.is_idempotent() && !self.plan.decides() && is_stale
        };
        if unseen || implied() {
            let same_endpoint = self.tries < TRIES - 1;
            return Verdict::Again { same_endpoint, cause: failure.cause.label() };
        }
        self.plan.after(policy, failure).map_or(Verdict::Done, Verdict::Policy)
    }

    /// Counts that the request is sent again after an attempt at this endpoint.
    fn retry(&self, pick: &Pick<Remote>, cause: &'static str) {
        self.begun.decided(|| format!("is sent again: {cause}"));
        pick.endpoint().edge(self.shared).retry();
        self.begun.retried();
    }

    /// Counts a request that was sent to this endpoint, and records what its result says about the endpoint.
    fn count(&self, pick: &Pick<Remote>, done: &Exchange) {
        let server_failed =
            done.failure.as_ref().is_some_and(|failure| failure.place == Party::Server);
        let bad = EndpointPolicy::is_bad(done.counted_status(), done.grpc_status);
        match &done.failure {
            Some(failure) if failure.place != Party::Server => {}
            _ if server_failed || bad => pick.failed(leno_transport::now()),
            _ => pick.succeeded(),
        }
        if let Some(first_byte) = done.first_byte {
            let latency = first_byte.saturating_duration_since(done.started);
            self.policy.observe(latency);
            self.endpoints.answered(latency, done.counted_status() == 503);
            let now = leno_transport::now();
            if server_failed || EndpointPolicy::is_refusal(done.counted_status(), done.grpc_status)
            {
                pick.observe_refusal(latency, now);
            } else {
                pick.observe(latency, now);
            }
        } else if server_failed {
            // Without this, an endpoint that fails at once would look like the fastest.
            pick.penalise(leno_transport::now());
        }
        let status = done.counted_status();
        let answered = || self.is_grpc.then(|| grpc_status(status, done.error()));
        let outcome = Outcome {
            status,
            grpc_status: match &done.failure {
                Some(failure) if failure.place != Party::Client && !done.response_started => {
                    answered()
                }
                _ => done.grpc_status,
            },
            bytes: (done.request_bytes, done.response_bytes),
            error: done.error(),
            sent: Some(done.started.into()),
            first_byte: done.first_byte.map(Into::into),
        };
        let edge = pick.endpoint().edge(self.shared);
        self.shared.registry.end(edge, &self.begun, &outcome);
    }

    fn failed(&self, pick: &Pick<Remote>, status: u16, cause: &'static str) -> Forwarded {
        let edge = pick.endpoint().edge(self.shared);
        self.shared.registry.end(edge, &self.begun, &self.outcome(status, cause));
        Forwarded::Failed(status, cause)
    }

    /// Called when no endpoint could be picked. The answer names the last endpoint that was not reached, if there is
    /// one.
    fn not_picked(&self, reason: NoPick) -> Forwarded {
        let cause = self.backends.cause(reason);
        let failed = self.nowhere(503, cause);
        match self.backends.unreached(reason) {
            Some(last) => Forwarded::Answered(MeshAnswer::unreached(cause, &last)),
            None => failed,
        }
    }

    /// Called when the client left while the request was not at an endpoint.
    fn left(&self, failure: Failure) -> Forwarded {
        let done = Exchange::ended(failure);
        self.nowhere(done.counted_status(), done.error().unwrap_or_default());
        Forwarded::Done(done)
    }

    /// Counts a request that goes to no endpoint.
    fn nowhere(&self, status: u16, cause: &'static str) -> Forwarded {
        let edge = self.backends.nobody();
        edge.error(cause);
        self.shared.registry.end(edge, &self.begun, &self.outcome(status, cause));
        Forwarded::Failed(status, cause)
    }

    fn outcome(&self, status: u16, cause: &'static str) -> Outcome {
        let grpc_status = self.is_grpc.then(|| grpc_status(status, Some(cause)));
        Outcome { status, grpc_status, error: Some(cause), ..Outcome::default() }
    }
}

/// Refuses a response which says that the application was never reached, so that the request can be sent to another
/// endpoint. Only a proxy with a proven identity is trusted (`is_mesh`). Such a proxy removes the `leno-*` headers of
/// its application, so an application that has processed the request cannot cause it to be sent again.
fn refuse_unreached(response: ResponseView<'_>, (replayable, is_mesh): (bool, bool)) -> Judgement {
    let is_error = || match response.status() {
        503 => true,
        200 => response.header("grpc-status") == Some(GRPC_UNAVAILABLE),
        _ => false,
    };
    let unreached = || response.header("leno-error") == Some(UNREACHABLE.as_bytes());
    if is_mesh && replayable && is_error() && unreached() {
        Judgement::Refuse
    } else {
        Judgement::Forward
    }
}

/// Whether the response says that a policy of the server denies the request. It may have any status, such as 401 for a
/// token or 302 from an authorizer, and a `policy` or a `reason` may follow the cause.
fn is_denial(response: ResponseView<'_>) -> bool {
    let cause = response.header("leno-error").unwrap_or_default();
    matches!(cause.strip_prefix(DENIED.as_bytes()), Some([] | [b';', ..]))
}

/// Whether the server's proxy refused this proxy's certificate.
fn refused(failure: &Failure, server: &Server) -> bool {
    match &failure.cause {
        Cause::Broken(error) => !server.reused && refused_by_server(error).is_some(),
        Cause::Reset(_) => server.was_refused(),
        _ => false,
    }
}

/// The gRPC status for an error of this proxy.
pub(crate) fn grpc_status(status: u16, cause: Option<&str>) -> u8 {
    match (status, cause) {
        (504, Some("deadline" | RESPONSE_TIMEOUT)) => GRPC_DEADLINE_EXCEEDED,
        _ => grpc_status_of(status),
    }
}
