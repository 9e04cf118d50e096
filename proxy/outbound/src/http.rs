//! Connections that carry HTTP/1: an endpoint is picked for every request.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_balance::Pick;
use leno_http::{
    After, Cause, Conn, Exchange, Judgement, Order, Place, RequestHead, ResponseView, exchange,
    is_idempotent,
};
use leno_telemetry::{Begun, Counter, Outcome};
use leno_tls::{Alpn, Channel, refused_by_server};
use smallvec::SmallVec;
use tokio::net::TcpStream;

use crate::Shared;
use crate::backends::{Remote, cause};
use crate::connect::{self, REFUSED_BY_SERVER};
use crate::destination::{Destination, Route};

/// Most endpoints tried for one request.
const MAX_TRIES: usize = 3;

/// What the server's proxy says in `leno-error` when the application cannot be connected to: the
/// request never reached it.
pub(crate) const APPLICATION_UNREACHABLE: &[u8] = b"application-unreachable";

type Tried = SmallVec<[SocketAddr; MAX_TRIES]>;

/// Serves requests until the client is done; `first` was read already.
pub(crate) async fn serve(
    shared: &Rc<Shared>,
    destination: &Destination,
    client: TcpStream,
    first: &[u8],
) {
    let client = Conn::with_received(client, first);
    let forward = async |client: &mut Conn<TcpStream>, request: &RequestHead| {
        let _busy = shared.activity.enter();
        forward(shared, destination, client, request).await
    };
    let refused = |status, cause| {
        if let Route::Backends(backends) = destination.route_now() {
            backends.nobody().error(cause);
            backends.nobody().request(status, Duration::ZERO);
        }
    };
    leno_http::serve(client, &shared.limits, forward, refused).await;
}

/// Sends one request to an endpoint, to another one where it never reached an application.
async fn forward(
    shared: &Rc<Shared>,
    destination: &Destination,
    client: &mut Conn<TcpStream>,
    request: &RequestHead,
) -> After {
    let Route::Backends(backends) = destination.route_with_endpoints().await else {
        return client.fail(request, 503, "destination-gone").await;
    };
    let head = request.view(client.received());
    let begun = shared.registry.begin(head.method(), head.target());
    let mut tried = Tried::new();
    loop {
        let pick = match backends.pick(&tried) {
            Ok(pick) => pick,
            Err(reason) => {
                let cause = cause(reason);
                let edge = backends.nobody();
                edge.error(cause);
                shared.registry.end(edge, &begun, &failed(503, cause));
                return client.fail(request, 503, cause).await;
            }
        };
        let (mut server, reused) = match connection(shared, &pick).await {
            Ok(connection) => connection,
            Err(error) => {
                tracing::debug!(%error, "endpoint left out");
                let edge = pick.endpoint().edge(shared);
                edge.connect_failure();
                edge.error(error.cause());
                pick.connect_failed(Instant::now());
                tried.push(pick.endpoint().address);
                if tried.len() < MAX_TRIES {
                    edge.retry();
                    continue;
                }
                shared.registry.end(edge, &begun, &failed(503, error.cause()));
                return client.fail(request, 503, error.cause()).await;
            }
        };
        let mut order = Order::new(&shared.limits).judged_by(refuse_unreached);
        order.close_client = shared.activity.is_draining();
        let done = exchange(client, request, &mut server, &mut order).await;
        match after(shared, &pick, (client, request), &done, reused) {
            Verdict::Again { same_endpoint, cause } => {
                pick.endpoint().edge(shared).retry();
                if !same_endpoint {
                    tried.push(pick.endpoint().address);
                }
                if tried.len() < MAX_TRIES {
                    continue;
                }
                let edge = pick.endpoint().edge(shared);
                shared.registry.end(edge, &begun, &failed(503, cause));
                return client.fail(request, 503, cause).await;
            }
            Verdict::Done => {}
        }
        return conclude(shared, &pick, (client, request), (done, server), &begun).await;
    }
}

/// A response of the server's proxy that says that the application was never reached is not the
/// client's to see while there are other endpoints.
fn refuse_unreached(response: ResponseView<'_>, replayable: bool) -> Judgement {
    let unreached =
        response.status() == 503 && response.header("leno-error") == Some(APPLICATION_UNREACHABLE);
    if unreached && replayable { Judgement::Refuse } else { Judgement::Forward }
}

enum Verdict {
    Done,
    Again { same_endpoint: bool, cause: &'static str },
}

/// Whether the request is to be sent again, and where.
fn after(
    shared: &Shared,
    pick: &Pick<Remote>,
    (client, request): (&Conn<TcpStream>, &RequestHead),
    done: &Exchange,
    reused: bool,
) -> Verdict {
    let Some(failure) = &done.failure else { return Verdict::Done };
    let edge = pick.endpoint().edge(shared);
    edge.error(failure.cause.label());
    if failure.place == Place::Client || !failure.retryable {
        return Verdict::Done;
    }
    match failure.cause {
        Cause::Refused => {
            pick.connect_failed(Instant::now());
            Verdict::Again { same_endpoint: false, cause: "application-unreachable" }
        }
        // The server's proxy has refused the own certificate, so it has read nothing.
        Cause::Broken(ref error) if !reused && refused_by_server(error).is_some() => {
            pick.penalise(Instant::now());
            pick.connect_failed(Instant::now());
            Verdict::Again { same_endpoint: false, cause: REFUSED_BY_SERVER }
        }
        // The server closed an idle connection while the request was under way.
        Cause::Stale => Verdict::Again { same_endpoint: true, cause: failure.cause.label() },
        _ if reused && is_idempotent(request.view(client.received()).method()) => {
            Verdict::Again { same_endpoint: true, cause: failure.cause.label() }
        }
        _ => Verdict::Done,
    }
}

/// Counts the exchange and keeps what can be used again.
async fn conclude(
    shared: &Shared,
    pick: &Pick<Remote>,
    (client, request): (&mut Conn<TcpStream>, &RequestHead),
    (done, server): (Exchange, Conn<Channel>),
    begun: &Begun,
) -> After {
    let remote = pick.endpoint();
    let edge = remote.edge(shared);
    if let Some(first_byte) = done.first_byte {
        let latency = first_byte.saturating_duration_since(done.started);
        pick.observe(latency, Instant::now());
    } else if done.failure.as_ref().is_some_and(|failure| failure.place == Place::Server) {
        // Or one that fails at once would look like the fastest.
        pick.penalise(Instant::now());
    }
    let outcome = Outcome {
        status: done.counted_status(),
        bytes: (done.request_bytes, done.response_bytes),
        error: done.error(),
    };
    shared.registry.end(edge, begun, &outcome);
    if done.server_reusable {
        remote.pool.put(server, done.server_idle);
    }
    client.conclude(request, &done).await
}

fn failed(status: u16, cause: &'static str) -> Outcome {
    Outcome { status, bytes: (0, 0), error: Some(cause) }
}

/// A pooled connection, or a new one; whether it was used before.
async fn connection(
    shared: &Shared,
    pick: &Pick<Remote>,
) -> Result<(Conn<Channel>, bool), connect::OpenError> {
    if let Some(pooled) = pick.endpoint().pool.take() {
        shared.registry.count(Counter::OutboundPoolReused);
        return Ok((pooled, true));
    }
    let channel = connect::open(shared, pick.endpoint(), Alpn::Http1).await?;
    shared.registry.count(Counter::OutboundPoolOpened);
    Ok((Conn::new(channel), false))
}
