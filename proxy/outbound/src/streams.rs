//! Connections that follow a `TLSRoute` or a `TCPRoute`.
//!
//! ```text
//! client ─► first bytes, if a route names a server ─► server name ─► route ─┬─ backend ─► relayed as bytes
//!                │                                                          └─ none ────► refused
//!                └─ none in time ─► refused
//! ```
#![expect(
    clippy::indexing_slicing,
    reason = "rules and backends that the routes themselves have chosen"
)]

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use leno_policy::{StreamDecision, StreamTable};
use leno_transport::{OwnTls, Peeked, Waits};
use leno_types::mesh::Service;
use leno_types::routes::{Route, RouteTarget};
use tokio::net::TcpStream;

use crate::Worker;
use crate::backends::Backends;
use crate::destination::{self, Destination};
use crate::first::{broke_off, own_tls};
use crate::opaque::{self, Attempts};

/// The cause in metrics and the access log if the client sent nothing, so that its route is unknown.
pub(crate) const CLIENT_SILENT: &str = "client-silent";
/// The cause in `leno-error`, metrics and the access log if discovery no longer knows the chosen backend.
pub(crate) const BACKEND_GONE: &str = "backend-gone";

/// The routes of connections to one port of a service.
#[derive(Debug)]
pub(crate) struct Streams {
    table: StreamTable,
    /// The destinations, by rule and then by backend; `None` if the reference is invalid.
    targets: Vec<Vec<Option<Rc<Destination>>>>,
}

impl Streams {
    /// The routes of a port; `None` if it has no routes.
    pub(crate) fn new(shared: &Rc<Worker>, service: &Service, port: u16) -> Option<Rc<Self>> {
        let routes: &[Arc<Route>] = &service.routes;
        let table = StreamTable::compile(routes, port)?;
        let target = |target: &RouteTarget| match target {
            RouteTarget::Service { name, port } => Some(shared.targets.get(shared, name, *port)),
            RouteTarget::Invalid(_) => None,
        };
        let targets = table.rules().iter().map(|rule| {
            rule.rule().backends.iter().map(|backend| target(&backend.target)).collect()
        });
        let targets = targets.collect();
        Some(Rc::new(Self { table, targets }))
    }

    /// Closes connections to its targets that have been idle for too long.
    pub(crate) fn sweep(&self) {
        for target in self.targets.iter().flatten().flatten() {
            target.sweep();
        }
    }
}

/// Serves a connection whose protocol is not known yet.
pub(crate) async fn serve(
    shared: &Rc<Worker>,
    (streams, backends): (&Rc<Streams>, &Backends),
    original: SocketAddr,
    mut client: Peeked<TcpStream>,
) {
    if !streams.table.asks_for_names() {
        // The server may be the side that sends first, so the client's bytes are not awaited.
        let tls = OwnTls::default();
        return relay(shared, (streams, backends), original, client, tls).await;
    }
    match own_tls(shared, &mut client, &Waits::BY_ROUTE).await {
        Ok(Some(tls)) => relay(shared, (streams, backends), original, client, tls).await,
        Ok(None) => {
            let tls = OwnTls::default();
            opaque::refused(shared, backends, (original, &tls, 0), CLIENT_SILENT);
            client.reset();
        }
        Err(error) => broke_off(client, &error),
    }
}

/// Relays a connection to the backend of its route.
pub(crate) async fn relay(
    shared: &Rc<Worker>,
    (streams, backends): (&Rc<Streams>, &Backends),
    original: SocketAddr,
    mut client: Peeked<TcpStream>,
    mut tls: OwnTls,
) {
    let decision = streams.table.decide(tls.server_name.as_deref(), shared.random());
    let StreamDecision::Backend(rule, place) = decision else {
        if let Some(refusal) = decision.refusal() {
            opaque::refused(
                shared,
                backends,
                (original, &tls, client.bytes().len()),
                refusal.cause,
            );
            tracing::debug!(%original, %refusal, "a connection is refused");
        }
        return client.reset();
    };
    let target = streams.targets[rule][place].as_ref();
    let target = target.expect("a backend that is chosen has a service");
    match target.route().await {
        destination::Route::Backends(chosen) => {
            // If no route needs the server name, the client's first bytes were not read. They are needed now: the
            // proxy originates TLS unless the client itself uses TLS.
            if !tls.is_tls && chosen.originates_tls() {
                match own_tls(shared, &mut client, &Waits::ORIGINATED).await {
                    Ok(own) => tls = own.unwrap_or_default(),
                    Err(error) => return broke_off(client, &error),
                }
            }
            let attempts = Attempts::new(shared, &chosen, original);
            attempts.relay(None, client, tls).await;
        }
        _ => {
            opaque::refused(shared, backends, (original, &tls, client.bytes().len()), BACKEND_GONE);
            client.reset();
        }
    }
}
