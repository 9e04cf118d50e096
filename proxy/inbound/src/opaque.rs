//! Serves connections that are relayed to the application as bytes.

use std::net::SocketAddr;
use std::pin::pin;

use leno_telemetry::{Logged as _, Relay};
use leno_transport::{
    ConnectError, Ended, Io, OwnTls, Peeked, RELAY_IDLE, Side, relay_until, unless_gone,
};
use tokio::net::TcpStream;

use crate::Worker;
use crate::application::Application;
use crate::authorize::{AUTHORIZATION_DENIED, Access};
use crate::peer::Peer;
use crate::standing::revoked;

/// The error in metrics and the access log if the proxy cannot connect to the application.
const APPLICATION_UNREACHABLE: &str = "application-unreachable";

/// The error in metrics and the access log if the client leaves before the proxy is connected to the application.
const CLIENT_LEFT: &str = "closed";

/// Relays until both directions have ended or policies deny the client. `server` is the connection to the application,
/// if there already is one.
pub(crate) async fn serve<S: Io>(
    shared: &Worker,
    application: &Application,
    (edge, access): (&Peer, &Access),
    mut client: Peeked<S>,
    (server, tls): (Option<Peeked<TcpStream>>, Option<OwnTls>),
) {
    let _busy = shared.parts.activity.enter();
    let target = application.dialled();
    let tls = tls.as_ref();
    let is_tls = tls.is_some_and(|tls| tls.is_tls);
    let name = tls.and_then(|tls| tls.server_name.as_deref());
    let mut changed = pin!(shared.changes.notified());
    if access.connection(shared, tls).await.is_err() {
        let failed = Relay::failed(target, AUTHORIZATION_DENIED);
        unserved(shared, edge, &Relay { tls: is_tls, server_name: name, ..failed });
        return client.reset();
    }
    let server = match server {
        Some(server) => server,
        None => match unless_gone(application.connect(), |cx| client.poll_gone(cx)).await {
            Ok(Ok(server)) => server.into(),
            Ok(Err(error)) => {
                unreachable(shared, edge, &error, target);
                return client.reset();
            }
            Err(error) => {
                tracing::debug!(%error, "the client left");
                // A client that leaves without having sent a byte is not counted, because port checks do this.
                if !client.bytes().is_empty() {
                    unserved(shared, edge, &Relay::failed(target, CLIENT_LEFT));
                }
                return client.reset();
            }
        },
    };
    edge.tcp_opened();
    let started = leno_transport::now();
    let moved = |side, n| edge.moved(side == Side::A, n as u64);
    let revoked = revoked(shared, access, changed.as_mut(), tls);
    let relayed = relay_until((client, server), RELAY_IDLE, moved, revoked).await;
    edge.tcp_closed();
    let reason = match relayed.ended {
        Ended::Stopped => AUTHORIZATION_DENIED,
        _ => relayed.ended.reason(),
    };
    tracing::debug!(ended = reason, "opaque connection ended");
    if matches!(relayed.ended, Ended::Idle | Ended::Stopped) {
        edge.error(reason);
    }
    let relay = Relay {
        target,
        tls: is_tls,
        server_name: name,
        bytes: (relayed.a_to_b, relayed.b_to_a),
        duration: started.elapsed(),
        error: (!matches!(relayed.ended, Ended::Closed)).then_some(reason),
    };
    shared.parts.registry.relayed(&edge.logged(), &relay);
}

/// Counts and logs a connection whose application cannot be connected to.
pub(crate) fn unreachable(shared: &Worker, edge: &Peer, error: &ConnectError, target: SocketAddr) {
    edge.connect_failure();
    tracing::debug!(%error, "the application cannot be connected to");
    unserved(shared, edge, &Relay::failed(target, APPLICATION_UNREACHABLE));
}

/// Counts and logs a connection that the application does not serve.
fn unserved(shared: &Worker, edge: &Peer, relay: &Relay<'_>) {
    edge.error(relay.error.unwrap_or_default());
    shared.parts.registry.relayed(&edge.logged(), relay);
}
