//! Connections that carry HTTP/1, request by request to the application.

use std::time::Duration;

use leno_http::{
    After, Cause, Conn, Exchange, Io, Order, Place, RequestHead, exchange, is_idempotent,
};
use leno_telemetry::{Counter, Edge, Outcome};
use leno_transport::ConnectError;
use tokio::net::TcpStream;

use crate::Shared;
use crate::application::Application;

/// Said in `leno-error` when the application cannot be connected to; the client's proxy then tries
/// another endpoint, because the request never reached an application.
const APPLICATION_UNREACHABLE: &str = "application-unreachable";

/// Serves requests until the client is done; `first` was read already.
pub(crate) async fn serve<S: Io>(
    shared: &Shared,
    application: &Application,
    edge: &Edge,
    client: S,
    first: &[u8],
) {
    let client = Conn::with_received(client, first);
    let forward = async |client: &mut Conn<S>, request: &RequestHead| {
        let _busy = shared.parts.activity.enter();
        forward(shared, application, edge, (client, request)).await
    };
    let refused = |status, cause| {
        edge.error(cause);
        edge.request(status, Duration::ZERO);
    };
    leno_http::serve(client, &shared.parts.limits, forward, refused).await;
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
                return client.fail(request, 503, APPLICATION_UNREACHABLE).await;
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
        let outcome = Outcome {
            status: done.counted_status(),
            bytes: (done.request_bytes, done.response_bytes),
            error: done.error(),
        };
        if let Some(error) = outcome.error {
            edge.error(error);
        }
        registry.end(edge, &begun, &outcome);
        return client.conclude(request, &done).await;
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
