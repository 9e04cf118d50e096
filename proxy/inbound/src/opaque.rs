//! Connections relayed to the application as bytes.

use leno_telemetry::Edge;
use leno_transport::{RELAY_IDLE, Side, Stream};

use crate::Shared;
use crate::application::Application;

pub(crate) async fn serve<S: Stream>(
    shared: &Shared,
    application: &Application,
    edge: &Edge,
    mut client: S,
) {
    let _busy = shared.parts.activity.enter();
    let server = match application.connect().await {
        Ok(server) => server,
        Err(error) => {
            edge.connect_failure();
            edge.error("application-unreachable");
            tracing::debug!(%error, "the application cannot be connected to");
            client.abort();
            return;
        }
    };
    edge.tcp_opened();
    let moved = |side, n| edge.moved(side == Side::A, n as u64);
    let relayed = leno_transport::relay(client, server, RELAY_IDLE, moved).await;
    edge.tcp_closed();
    tracing::debug!(ended = relayed.ended.reason(), "opaque connection ended");
}
