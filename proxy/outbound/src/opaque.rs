//! Connections relayed as bytes.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use leno_balance::Pick;
use leno_tls::{Alpn, Channel};
use leno_transport::{CONNECT_TIMEOUT, Prefixed, RELAY_IDLE, Side, Stream};
use smallvec::SmallVec;
use tokio::net::TcpStream;

use crate::Shared;
use crate::backends::{Backends, Remote, cause};
use crate::connect::{open as open_channel, to_own_application};

/// Most endpoints tried for one connection.
const MAX_TRIES: usize = 3;

/// A connection to an endpoint, not used yet.
#[derive(Debug)]
pub(crate) struct Opened {
    pick: Pick<Remote>,
    pub(crate) channel: Channel,
}

/// To an address that the mesh does not know, as it is.
pub(crate) async fn direct(shared: &Shared, original: SocketAddr, mut client: TcpStream) {
    match leno_transport::connect(original, CONNECT_TIMEOUT).await {
        Ok(server) => plain(shared, client, server).await,
        Err(error) => {
            tracing::debug!(%error, "not in the mesh, and not reachable");
            client.abort();
        }
    }
}

/// To an address of this very workload.
pub(crate) async fn own(shared: &Shared, original: SocketAddr, mut client: TcpStream) {
    match to_own_application(original).await {
        Ok(server) => plain(shared, client, server).await,
        Err(error) => {
            tracing::debug!(%error, "the workload called itself where it does not listen");
            client.abort();
        }
    }
}

async fn plain(shared: &Shared, client: TcpStream, server: TcpStream) {
    let _busy = shared.activity.enter();
    leno_transport::relay(client, server, RELAY_IDLE, ()).await;
}

/// To an endpoint of `backends`; `first` was read from the client already.
pub(crate) async fn relay(
    shared: &Rc<Shared>,
    backends: &Backends,
    first: Vec<u8>,
    mut client: TcpStream,
) {
    match open(shared, backends).await {
        Some(opened) => opened.relay(shared, (first, client), Vec::new()).await,
        None => client.abort(),
    }
}

/// Opens a connection, to another endpoint after a failure.
pub(crate) async fn open(shared: &Shared, backends: &Backends) -> Option<Opened> {
    let mut tried: SmallVec<[SocketAddr; MAX_TRIES]> = SmallVec::new();
    loop {
        let pick = match backends.pick(&tried) {
            Ok(pick) => pick,
            Err(reason) => {
                backends.nobody().error(cause(reason));
                tracing::debug!(%reason, ?tried, "no endpoint for an opaque connection");
                return None;
            }
        };
        let started = Instant::now();
        match open_channel(shared, pick.endpoint(), Alpn::Opaque).await {
            Ok(channel) => {
                pick.observe(started.elapsed(), Instant::now());
                return Some(Opened { pick, channel });
            }
            Err(error) => {
                let edge = pick.endpoint().edge(shared);
                edge.connect_failure();
                edge.error(error.cause());
                tracing::debug!(%error, "endpoint left out");
                pick.connect_failed(Instant::now());
                tried.push(pick.endpoint().address);
                if tried.len() == MAX_TRIES {
                    return None;
                }
                edge.retry();
            }
        }
    }
}

impl Opened {
    /// Relays until both directions have ended.
    pub(crate) async fn relay(
        self,
        shared: &Shared,
        (from_client, client): (Vec<u8>, TcpStream),
        from_server: Vec<u8>,
    ) {
        let _busy = shared.activity.enter();
        let edge = Rc::clone(self.pick.endpoint().edge(shared));
        edge.tcp_opened();
        let client = Prefixed::new(from_client, client);
        let server = Prefixed::new(from_server, self.channel);
        let moved = |side, n| edge.moved(side == Side::A, n as u64);
        let relayed = leno_transport::relay(client, server, RELAY_IDLE, moved).await;
        edge.tcp_closed();
        tracing::debug!(ended = relayed.ended.reason(), "opaque connection ended");
    }
}
