//! One request on its way to an endpoint, and to another one where it never reached an application.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use leno_balance::Pick;
use leno_http::{
    Cause, Exchange, Failure, Judgement, Order, Place, ResponseView, grpc_status_of, is_idempotent,
};
use leno_telemetry::{Begun, Outcome};
use leno_tls::refused_by_server;
use smallvec::SmallVec;

use crate::Shared;
use crate::backends::{Backends, Remote, cause};
use crate::connect::REFUSED_BY_SERVER;
use crate::destination::{Destination, Route};
use crate::mirror;
use crate::request::Request;
use crate::routes::{Applied, Decision, MeshAnswer, Routes};
use crate::server::{self, Server};

/// Most endpoints tried for one request, and most tries in all.
const MAX_TRIES: usize = 3;

/// What the server's proxy says in `leno-error` when the application cannot be connected to: the
/// request never reached it.
const APPLICATION_UNREACHABLE: &[u8] = b"application-unreachable";

/// gRPC's UNAVAILABLE: what such an error is to a gRPC client.
const GRPC_UNAVAILABLE: &[u8] = b"14";

/// gRPC's DEADLINE_EXCEEDED.
const GRPC_DEADLINE_EXCEEDED: u8 = 4;

type Tried = SmallVec<[SocketAddr; MAX_TRIES]>;

/// What became of a request. The client is still to be told.
pub(crate) enum Forwarded {
    /// It was relayed.
    Done(Exchange),
    /// It was not, or came back unseen: the status and why.
    Failed(u16, &'static str),
    /// A route has it answered here.
    Answered(MeshAnswer),
}

/// One request being forwarded.
struct Attempts<'a, R> {
    shared: &'a Shared,
    backends: &'a Backends,
    request: &'a mut R,
    begun: Begun,
    is_grpc: bool,
    tried: Tried,
    tries: usize,
    /// What a route changes.
    applied: Option<Rc<Applied>>,
}

/// Whether there is to be another try.
enum Verdict {
    Done,
    Again { same_endpoint: bool, cause: &'static str },
}

/// Sends a request to an endpoint; counts it.
pub(crate) async fn forward<R: Request>(
    shared: &Rc<Shared>,
    destination: &Destination,
    request: &mut R,
) -> Forwarded {
    let Route::Backends(backends) = destination.route_with_endpoints().await else {
        return Forwarded::Failed(503, "destination-gone");
    };
    let head = request.view();
    let begun = shared.registry.begin(head.version().as_str(), head.method(), head.target());
    let is_grpc = request.is_grpc();
    let tried = Tried::new();
    let (backends, applied) = match backends.routes() {
        None => (backends, None),
        // In a box: requests without routes hold no room for it.
        Some(routes) => match Box::pin(follow(shared, &routes, request)).await {
            Ok((of_target, applied)) => (of_target, Some(applied)),
            Err(answer) => return answered(shared, &backends, (&begun, is_grpc), answer),
        },
    };
    let backends = &backends;
    Attempts { shared, backends, request, begun, is_grpc, tried, tries: 0, applied }.run().await
}

/// Where a request's route leads, and what it changes; or what it has the request answered with.
async fn follow<R: Request>(
    shared: &Rc<Shared>,
    routes: &Rc<Routes>,
    request: &mut R,
) -> Result<(Rc<Backends>, Rc<Applied>), MeshAnswer> {
    let (target, applied) = match routes.decide(shared, request.view()) {
        Decision::Forward(target, applied) => (target, applied),
        Decision::Answer(answer) => return Err(answer),
    };
    mirror::send(shared, &applied, request).await;
    match target.route().await {
        Route::Backends(backends) => Ok((backends, applied)),
        _ => Err(MeshAnswer::error(500, "backend-gone")),
    }
}

/// Counts what a route has answered.
fn answered(
    shared: &Shared,
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
        Outcome { status: answer.status, grpc_status, bytes: (0, 0), error: answer.error };
    shared.registry.end(edge, begun, &outcome);
    Forwarded::Answered(answer)
}

impl<R: Request> Attempts<'_, R> {
    async fn run(mut self) -> Forwarded {
        loop {
            let pick = match self.backends.pick(&self.tried) {
                Ok(pick) => pick,
                Err(reason) => return self.nowhere(cause(reason)),
            };
            self.tries += 1;
            let deadline = self.applied.as_ref().and_then(|applied| applied.deadline());
            let connection =
                server::get(self.shared, pick.endpoint(), self.request, deadline).await;
            let mut server = match connection {
                Ok(server) => server,
                Err(error) => {
                    tracing::debug!(%error, "endpoint left out");
                    let (status, cause) = (error.status(), error.cause());
                    let edge = pick.endpoint().edge(self.shared);
                    edge.error(cause);
                    if error.is_of_endpoint() {
                        edge.connect_failure();
                        pick.connect_failed(Instant::now());
                        self.tried.push(pick.endpoint().address);
                        if self.tried.len() < MAX_TRIES {
                            edge.retry();
                            continue;
                        }
                    }
                    return self.failed(&pick, status, cause);
                }
            };
            let mut order = Order::new(&self.shared.limits).judged_by(refuse_unreached);
            order.close_client = self.shared.activity.is_draining();
            order.mesh = server.is_mesh;
            order.deadline = deadline;
            let removed = self.applied.as_ref().map(|applied| applied.removed());
            if let (Some(applied), Some((of_request, of_response))) = (&self.applied, &removed) {
                order.request = applied.request(of_request);
                order.response = applied.response(of_response);
            }
            let done = server.exchange(self.request, &mut order).await;
            let Verdict::Again { same_endpoint, cause } = self.verdict(&pick, &done, &server)
            else {
                self.count(&pick, &done);
                server.give_back(pick.endpoint(), &done);
                return Forwarded::Done(done);
            };
            pick.endpoint().edge(self.shared).retry();
            if !same_endpoint {
                self.tried.push(pick.endpoint().address);
            }
            if self.tries >= MAX_TRIES {
                return self.failed(&pick, 503, cause);
            }
        }
    }

    /// Whether the request is to be sent again, and where.
    fn verdict(&self, pick: &Pick<Remote>, done: &Exchange, server: &Server) -> Verdict {
        let Some(failure) = &done.failure else { return Verdict::Done };
        let edge = pick.endpoint().edge(self.shared);
        edge.error(failure.cause.label());
        if matches!(failure.cause, Cause::Stalled) && failure.place == Place::Server {
            server.retire();
        }
        let over = matches!(failure.cause, Cause::Deadline);
        if failure.place == Place::Client || !failure.retryable || over {
            return Verdict::Done;
        }
        if matches!(failure.cause, Cause::Refused) {
            pick.connect_failed(Instant::now());
            let cause = "application-unreachable";
            return Verdict::Again { same_endpoint: false, cause };
        }
        // The server's proxy has refused the own certificate, so it has read nothing.
        if refused(failure, server) {
            pick.penalise(Instant::now());
            pick.connect_failed(Instant::now());
            return Verdict::Again { same_endpoint: false, cause: REFUSED_BY_SERVER };
        }
        // An idle connection was closed while the request was under way, or a stream was refused.
        let unseen = matches!(failure.cause, Cause::Stale) || failure.unprocessed;
        let idempotent = || is_idempotent(self.request.view().method());
        if unseen || server.reused && idempotent() {
            let same_endpoint = self.tries < MAX_TRIES - 1;
            return Verdict::Again { same_endpoint, cause: failure.cause.label() };
        }
        Verdict::Done
    }

    /// Counts a request that was relayed.
    fn count(&self, pick: &Pick<Remote>, done: &Exchange) {
        if let Some(first_byte) = done.first_byte {
            let latency = first_byte.saturating_duration_since(done.started);
            pick.observe(latency, Instant::now());
        } else if done.failure.as_ref().is_some_and(|failure| failure.place == Place::Server) {
            // Or one that fails at once would look like the fastest.
            pick.penalise(Instant::now());
        }
        let status = done.counted_status();
        let answered = || self.is_grpc.then(|| grpc_status(status, done.error()));
        let outcome = Outcome {
            status,
            grpc_status: match &done.failure {
                Some(failure) if failure.place != Place::Client && !done.response_started => {
                    answered()
                }
                _ => done.grpc_status,
            },
            bytes: (done.request_bytes, done.response_bytes),
            error: done.error(),
        };
        let edge = pick.endpoint().edge(self.shared);
        self.shared.registry.end(edge, &self.begun, &outcome);
    }

    fn failed(&self, pick: &Pick<Remote>, status: u16, cause: &'static str) -> Forwarded {
        let edge = pick.endpoint().edge(self.shared);
        self.shared.registry.end(edge, &self.begun, &self.outcome(status, cause));
        Forwarded::Failed(status, cause)
    }

    /// There is no endpoint to send it to.
    fn nowhere(&self, cause: &'static str) -> Forwarded {
        let edge = self.backends.nobody();
        edge.error(cause);
        self.shared.registry.end(edge, &self.begun, &self.outcome(503, cause));
        Forwarded::Failed(503, cause)
    }

    fn outcome(&self, status: u16, cause: &'static str) -> Outcome {
        let grpc_status = self.is_grpc.then(|| grpc_status(status, Some(cause)));
        Outcome { status, grpc_status, bytes: (0, 0), error: Some(cause) }
    }
}

/// A response of the server's proxy that says that the application was never reached is not the
/// client's to see while there are other endpoints.
fn refuse_unreached(response: ResponseView<'_>, replayable: bool) -> Judgement {
    let unreached = || response.header("leno-error") == Some(APPLICATION_UNREACHABLE);
    let is_error = match response.status() {
        503 => true,
        200 => response.header("grpc-status") == Some(GRPC_UNAVAILABLE),
        _ => false,
    };
    if replayable && is_error && unreached() { Judgement::Refuse } else { Judgement::Forward }
}

/// Whether the server's proxy has refused the own certificate.
fn refused(failure: &Failure, server: &Server) -> bool {
    match &failure.cause {
        Cause::Broken(error) => !server.reused && refused_by_server(error).is_some(),
        Cause::Reset(_) => server.was_refused(),
        _ => false,
    }
}

/// What a gRPC client is told of an error of ours.
fn grpc_status(status: u16, cause: Option<&str>) -> u8 {
    match (status, cause) {
        (504, Some("deadline")) => GRPC_DEADLINE_EXCEEDED,
        _ => grpc_status_of(status),
    }
}
