//! Connections that carry HTTP/1, request by request to the application.

use std::time::Duration;

use leno_http::{
    Answer, Cause, Conn, Exchange, Failure, Io, Order, Place, RequestHead, exchange, is_idempotent,
};
use leno_telemetry::{Counter, Edge, Outcome};
use leno_transport::ConnectError;
use tokio::net::TcpStream;

use crate::Shared;
use crate::application::Application;

/// Said in `leno-error` when the application cannot be connected to; the client's proxy then tries
/// another endpoint, because the request never reached an application.
const APPLICATION_UNREACHABLE: &str = "application-unreachable";

/// The status counted when the client left before there was one (as nginx has it).
const CLIENT_LEFT: u16 = 499;

/// Serves requests until the client is done; `first` was read already.
pub(crate) async fn serve<S: Io>(
    shared: &Shared,
    application: &Application,
    edge: &Edge,
    client: S,
    first: &[u8],
) {
    let limits = &shared.parts.limits;
    let mut client = Conn::with_received(client, first);
    loop {
        match client.read_request(limits).await {
            Ok(Some(request)) => {
                let busy = shared.parts.activity.enter();
                let after = forward(shared, application, edge, (&mut client, &request)).await;
                drop(busy);
                match after {
                    After::Next => {}
                    After::Close => break,
                    After::Abort => return client.abort(),
                }
            }
            Ok(None) => break,
            Err(failure) => {
                if let Some(status) = failure.status() {
                    let cause = failure.cause.label();
                    edge.error(cause);
                    edge.request(status, Duration::ZERO);
                    // The client may be gone already; there is nobody else to tell.
                    let _gone = client.respond(None, &Answer::error(status, cause)).await;
                }
                break;
            }
        }
    }
    client.close(limits).await;
}

/// What becomes of the client's connection.
enum After {
    Next,
    Close,
    Abort,
}

async fn forward<S: Io>(
    shared: &Shared,
    application: &Application,
    edge: &Edge,
    (client, request): (&mut Conn<S>, &RequestHead),
) -> After {
    let registry = &shared.parts.registry;
    let head = request.view(client.received());
    let begun = registry.begin(head.method(), head.target());
    loop {
        let (mut server, reused) = match connection(shared, application).await {
            Ok(connection) => connection,
            Err(error) => {
                tracing::debug!(%error, "the application cannot be connected to");
                edge.connect_failure();
                edge.error(APPLICATION_UNREACHABLE);
                let error = Some(APPLICATION_UNREACHABLE);
                registry.end(edge, &begun, &Outcome { status: 503, bytes: (0, 0), error });
                return fail(client, request, 503, APPLICATION_UNREACHABLE).await;
            }
        };
        let mut order = Order::new(&shared.parts.limits);
        order.close_client = shared.parts.activity.is_draining();
        let done = exchange(client, request, &mut server, &mut order).await;
        if may_send_again(&done, reused, (client, request)) {
            edge.retry();
            continue;
        }
        if done.server_reusable {
            application.pool.put(server, done.server_idle);
        }
        if let Some(failure) = &done.failure {
            edge.error(failure.cause.label());
        }
        registry.end(edge, &begun, &outcome(&done));
        return conclude((client, request), &done).await;
    }
}

/// A pooled connection that the application closed while the request was under way costs nothing:
/// the request is sent again on another one, where that is safe.
fn may_send_again<S: Io>(
    done: &Exchange,
    reused: bool,
    (client, request): (&Conn<S>, &RequestHead),
) -> bool {
    done.failure.as_ref().is_some_and(|failure| {
        let again = failure.retryable && failure.place != Place::Client;
        let unseen = matches!(failure.cause, Cause::Stale);
        let safe = || is_idempotent(request.view(client.received()).method());
        again && reused && (unseen || safe())
    })
}

fn outcome(done: &Exchange) -> Outcome {
    let failure = done.failure.as_ref();
    Outcome {
        status: done.status.or(failure.and_then(Failure::status)).unwrap_or(CLIENT_LEFT),
        bytes: (done.request_bytes, done.response_bytes),
        error: failure.map(|failure| failure.cause.label()),
    }
}

async fn conclude<S: Io>(
    (client, request): (&mut Conn<S>, &RequestHead),
    done: &Exchange,
) -> After {
    match &done.failure {
        None if done.client_reusable => After::Next,
        None => After::Close,
        Some(failure) => match failure.status() {
            Some(status) if !done.response_started => {
                fail(client, request, status, failure.cause.label()).await
            }
            _ => After::Abort,
        },
    }
}

/// A pooled connection, or a new one; whether it was used before.
async fn connection(
    shared: &Shared,
    application: &Application,
) -> Result<(Conn<TcpStream>, bool), ConnectError> {
    let registry = &shared.parts.registry;
    if let Some(pooled) = application.pool.take() {
        registry.count(Counter::InboundPoolReused);
        return Ok((pooled, true));
    }
    let stream = application.connect().await?;
    registry.count(Counter::InboundPoolOpened);
    Ok((Conn::new(stream), false))
}

async fn fail<S: Io>(
    client: &mut Conn<S>,
    request: &RequestHead,
    status: u16,
    cause: &str,
) -> After {
    match client.respond(Some(request), &Answer::error(status, cause)).await {
        Ok(true) => After::Next,
        Ok(false) => After::Close,
        Err(_) => After::Abort,
    }
}
