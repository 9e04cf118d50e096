//! Connections relayed to the application as bytes.

use std::net::SocketAddr;
use std::time::Duration;

use leno_telemetry::{Edge, Relay};
use leno_transport::{ConnectError, Ended, Io, OwnTls, Peeked, RELAY_IDLE, Side};
use tokio::net::TcpStream;

use crate::Shared;
use crate::application::Application;
use crate::authorize::{AUTHORIZATION_DENIED, Access};

/// In metrics and the access log when the application cannot be connected to.
const APPLICATION_UNREACHABLE: &str = "application-unreachable";

/// Relays until both directions have ended, unless policies deny the client, over `server` where the application was connected to.
pub(crate) async fn serve<S: Io>(
    shared: &Shared,
    application: &Application,
    (edge, access): (&Edge, &Access),
    client: Peeked<S>,
    (server, tls): (Option<Peeked<TcpStream>>, OwnTls),
) {
    let _busy = shared.parts.activity.enter();
    let target = application.dialled();
    if access.connection(shared, &tls).is_err() {
        edge.error(AUTHORIZATION_DENIED);
        let relay = Relay {
            target,
            tls: tls.is_tls,
            server_name: tls.server_name.as_deref(),
            bytes: (0, 0),
            duration: Duration::ZERO,
            error: Some(AUTHORIZATION_DENIED),
        };
        shared.parts.registry.relayed(edge.labels(), &relay);
        return client.reset();
    }
    let server = match server {
        Some(server) => server,
        None => match application.connect().await {
            Ok(server) => server.into(),
            Err(error) => {
                unreachable(shared, edge, &error, target);
                client.reset();
                return;
            }
        },
    };
    edge.tcp_opened();
    let started = leno_transport::now();
    let moved = |side, n| edge.moved(side == Side::A, n as u64);
    let relayed = leno_transport::relay(client, server, RELAY_IDLE, moved).await;
    edge.tcp_closed();
    tracing::debug!(ended = relayed.ended.reason(), "opaque connection ended");
    let reason = relayed.ended.reason();
    if matches!(relayed.ended, Ended::Idle) {
        edge.error(reason);
    }
    let relay = Relay {
        target,
        tls: tls.is_tls,
        server_name: tls.server_name.as_deref(),
        bytes: (relayed.a_to_b, relayed.b_to_a),
        duration: started.elapsed(),
        error: (!matches!(relayed.ended, Ended::Closed)).then_some(reason),
    };
    shared.parts.registry.relayed(edge.labels(), &relay);
}

/// Counts and logs a connection for which the application cannot be connected to.
pub(crate) fn unreachable(shared: &Shared, edge: &Edge, error: &ConnectError, target: SocketAddr) {
    edge.connect_failure();
    edge.error(APPLICATION_UNREACHABLE);
    tracing::debug!(%error, "the application cannot be connected to");
    let relay = Relay {
        target,
        tls: false,
        server_name: None,
        bytes: (0, 0),
        duration: Duration::ZERO,
        error: Some(APPLICATION_UNREACHABLE),
    };
    shared.parts.registry.relayed(edge.labels(), &relay);
}
