//! Connections relayed as bytes.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use leno_balance::Pick;
use leno_tls::{Alpn, Channel, refused_by_server};
use leno_transport::{CONNECT_TIMEOUT, Ended, Prefixed, RELAY_IDLE, Side, Stream};
use smallvec::SmallVec;
use tokio::net::TcpStream;

use crate::Shared;
use crate::backends::{Backends, Remote, cause};
use crate::connect::{REFUSED_BY_SERVER, open as open_channel, to_own_application};
use crate::greeting::{Greeting, greet};

/// Most endpoints tried for one connection.
const MAX_TRIES: usize = 3;

/// The endpoints tried for one connection of a client, of which the first that does not refuse it
/// serves it.
#[derive(Debug)]
pub(crate) struct Attempts<'a> {
    shared: &'a Shared,
    backends: &'a Backends,
    tried: SmallVec<[SocketAddr; MAX_TRIES]>,
}

/// A connection to an endpoint that has not said anything yet.
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
    client: TcpStream,
) {
    Attempts::new(shared, backends).relay(None, (first, client)).await;
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(shared: &'a Shared, backends: &'a Backends) -> Self {
        Self { shared, backends, tried: SmallVec::new() }
    }

    /// Opens a connection, to another endpoint after a failure; none when there is no other one.
    pub(crate) async fn open(&mut self) -> Option<Opened> {
        loop {
            if self.tried.len() == MAX_TRIES {
                return None;
            }
            let pick = match self.backends.pick(&self.tried) {
                Ok(pick) => pick,
                Err(reason) => {
                    self.backends.nobody().error(cause(reason));
                    let tried = &self.tried;
                    tracing::debug!(%reason, ?tried, "no endpoint for an opaque connection");
                    return None;
                }
            };
            let started = Instant::now();
            match open_channel(self.shared, pick.endpoint(), &[Alpn::Opaque]).await {
                Ok(channel) => {
                    pick.observe(started.elapsed(), Instant::now());
                    return Some(Opened { pick, channel });
                }
                Err(error) => {
                    tracing::debug!(%error, "endpoint left out");
                    self.leave_out(&pick, error.cause());
                }
            }
        }
    }

    /// Notes that a connection broke before the endpoint had anything to do with it.
    pub(crate) fn give_up(&mut self, opened: &Opened, error: &io::Error) {
        tracing::debug!(%error, "endpoint left out");
        let refused = refused_by_server(error).is_some();
        // It can be connected to, which alone would make it good again at the next try.
        opened.penalise();
        self.leave_out(&opened.pick, if refused { REFUSED_BY_SERVER } else { "connect-failed" });
    }

    fn leave_out(&mut self, pick: &Pick<Remote>, cause: &'static str) {
        let edge = pick.endpoint().edge(self.shared);
        edge.connect_failure();
        edge.error(cause);
        pick.connect_failed(Instant::now());
        self.tried.push(pick.endpoint().address);
        if self.tried.len() < MAX_TRIES {
            edge.retry();
        }
    }

    /// Relays to `opened`, or to an endpoint that is opened now, and to another one where that one
    /// refuses, until both directions have ended.
    pub(crate) async fn relay(
        mut self,
        mut opened: Option<Opened>,
        (mut from_client, mut client): (Vec<u8>, TcpStream),
    ) {
        let _busy = self.shared.activity.enter();
        loop {
            let next = match opened.take() {
                Some(opened) => Some(opened),
                None => self.open().await,
            };
            let Some(mut next) = next else { return client.abort() };
            let Channel::Mesh(server) = &mut next.channel else {
                // Nobody who might refuse stands before the application.
                let client = Prefixed::new(from_client, client);
                return next.relay(self.shared, client, Vec::new()).await;
            };
            match greet(server, &mut client, &mut from_client).await {
                Greeting::Going { sent, from_server } => {
                    next.pick.endpoint().edge(self.shared).moved(true, sent as u64);
                    let client = Prefixed::new(from_client.split_off(sent), client);
                    return next.relay_after(self.shared, (sent, client), from_server).await;
                }
                // It has taken nothing.
                Greeting::Broken { sent, error }
                    if sent == 0 || refused_by_server(&error).is_some() =>
                {
                    self.give_up(&next, &error);
                }
                Greeting::Broken { error, .. } => {
                    next.pick.penalise(Instant::now());
                    next.pick.endpoint().edge(self.shared).error("server-silent");
                    tracing::debug!(%error, "broke before the server had said anything");
                    return client.abort();
                }
                Greeting::ClientBroke(error) => {
                    tracing::debug!(%error, "the client left");
                    return next.channel.abort();
                }
            }
        }
    }
}

impl Opened {
    /// Notes that the server ended without a word, for which there was no other reason.
    pub(crate) fn penalise(&self) {
        self.pick.penalise(Instant::now());
    }

    /// Relays until both directions have ended.
    pub(crate) async fn relay<C: Stream>(self, shared: &Shared, client: C, from_server: Vec<u8>) {
        self.relay_after(shared, (0, client), from_server).await;
    }

    /// The same after `sent` bytes of the client's.
    async fn relay_after<C: Stream>(
        self,
        shared: &Shared,
        (sent, client): (usize, C),
        from_server: Vec<u8>,
    ) {
        let _busy = shared.activity.enter();
        let edge = Rc::clone(self.pick.endpoint().edge(shared));
        edge.tcp_opened();
        let server = Prefixed::new(from_server, self.channel);
        let moved = |side, n| edge.moved(side == Side::A, n as u64);
        let relayed = leno_transport::relay(client, server, RELAY_IDLE, moved).await;
        edge.tcp_closed();
        // A client that leaves without a word, as a port check does, says nothing of the server.
        let asked = relayed.a_to_b > 0 || sent > 0;
        let broke = matches!(relayed.ended, Ended::Failed { side: Side::B, .. });
        if relayed.b_to_a == 0 && (asked || broke) {
            self.pick.penalise(Instant::now());
        }
        tracing::debug!(ended = relayed.ended.reason(), "opaque connection ended");
    }
}
