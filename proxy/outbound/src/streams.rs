//! Connections that follow a `TLSRoute` or a `TCPRoute`.
//!
//! ```text
//! client ─► first bytes, where names matter ─► server name ─► route ─┬─ backend ─► relayed as bytes
//!                                                                    └─ none ────► refused
//! ```

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_policy::{StreamDecision, StreamTable};
use leno_transport::{Detected, Stream, detect_first, read_first};
use leno_types::mesh::Service;
use leno_types::routes::{Route, Target};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::Shared;
use crate::backends::Backends;
use crate::destination::{self, Destination};
use crate::first::{own_tls, tls_of};
use crate::opaque::{self, Attempts, Tls};

/// For metrics and the access log.
pub(crate) const CLIENT_SILENT: &str = "client-silent";
/// For `leno-error` as well: discovery does not know the backend chosen any more.
pub(crate) const BACKEND_GONE: &str = "backend-gone";

/// How long a client may take to say which server it asks for: as long as a handshake may.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// What connections to one port of a service follow.
#[derive(Debug)]
pub(crate) struct Streams {
    table: StreamTable,
    /// By rule, then by backend; none where the reference is invalid.
    targets: Vec<Vec<Option<Rc<Destination>>>>,
}

impl Streams {
    /// The routes of a port; none where there are none.
    pub(crate) fn new(shared: &Rc<Shared>, service: &Service, port: u16) -> Option<Rc<Self>> {
        let routes: &[Arc<Route>] = &service.routes;
        let table = StreamTable::compile(routes, port)?;
        let target = |target: &Target| match target {
            Target::Service { name, port } => Some(shared.targets.get(shared, name, *port)),
            Target::Invalid(_) => None,
        };
        let targets = table.rules().iter().map(|rule| {
            rule.rule().backends.iter().map(|backend| target(&backend.target)).collect()
        });
        let targets = targets.collect();
        Some(Rc::new(Self { table, targets }))
    }

    /// Closes what is too old at its targets.
    pub(crate) fn sweep(&self) {
        for target in self.targets.iter().flatten().flatten() {
            target.sweep();
        }
    }
}

/// Serves a connection of which nothing has been read.
pub(crate) async fn serve(
    shared: &Rc<Shared>,
    (streams, backends): (&Rc<Streams>, &Backends),
    original: SocketAddr,
    mut client: TcpStream,
) {
    let mut first = Vec::new();
    if !streams.table.asks_for_names() {
        // The server may be the one to speak first.
        return relay(shared, (streams, backends), original, (first, client), Tls::default()).await;
    }
    let said = async {
        read_first(&mut client, &mut first).await?;
        match detect_first(&mut client, &mut first).await? {
            Detected::TlsClientHello => tls_of(shared, &mut client, &mut first).await,
            _ => Ok(Tls::default()),
        }
    };
    match timeout(HELLO_TIMEOUT, said).await {
        Ok(Ok(tls)) => {
            relay(shared, (streams, backends), original, (first, client), tls).await;
        }
        Ok(Err(error)) => {
            tracing::debug!(%error, "a client broke off");
            client.abort();
        }
        Err(_silent) => {
            let said = (original, &Tls::default(), first.len());
            opaque::refused(shared, backends, said, CLIENT_SILENT);
            client.abort();
        }
    }
}

/// Relays a connection whose client has said `first` to where its route leads.
pub(crate) async fn relay(
    shared: &Rc<Shared>,
    (streams, backends): (&Rc<Streams>, &Backends),
    original: SocketAddr,
    (mut first, mut client): (Vec<u8>, TcpStream),
    mut tls: Tls,
) {
    let decision = streams.table.decide(tls.server_name.as_deref(), shared.random());
    let StreamDecision::Backend(rule, place) = decision else {
        if let Some(refusal) = decision.refusal() {
            opaque::refused(shared, backends, (original, &tls, first.len()), refusal.cause);
            tracing::debug!(%original, %refusal, "a connection is refused");
        }
        return client.abort();
    };
    let target = streams.targets[rule][place].as_ref();
    let target = target.expect("a backend that is chosen has a service");
    match target.route().await {
        destination::Route::Backends(chosen) => {
            // Nothing was read for the route's sake, but whether TLS is begun depends on it.
            if first.is_empty() && chosen.originates_tls() {
                match own_tls(shared, &mut client, &mut first).await {
                    Ok(own) => tls = own,
                    Err(error) => {
                        tracing::debug!(%error, "a client broke off");
                        return client.abort();
                    }
                }
            }
            let attempts = Attempts::new(shared, &chosen, original);
            attempts.relay(None, (first, client), tls).await;
        }
        _ => {
            opaque::refused(shared, backends, (original, &tls, first.len()), BACKEND_GONE);
            client.abort();
        }
    }
}
