//! Connections relayed as bytes.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_balance::Pick;
use leno_telemetry::{Edge, Relay};
use leno_tls::{Alpn, Channel, refused_by_server};
use leno_transport::{
    CONNECT_TIMEOUT, Detected, Ended, Prefixed, RELAY_IDLE, Relayed, Side, Stream, detect,
    read_first,
};
use smallvec::SmallVec;
use tokio::net::TcpStream;

use crate::Shared;
use crate::backends::{Backends, Remote};
use crate::connect::{
    CONNECT_FAILED, OpenError, REFUSED_BY_SERVER, open as open_channel, to_own_application,
};
use crate::first::tls_of;
use crate::greeting::{Greeting, greet};
use crate::tries::{TRIES, Unreached};

/// Counted where policy ends a connection.
pub(crate) const STREAM_TIMEOUT: &str = "stream-timeout";

/// Counted where a server ends before it has said anything, and bytes of the client's are with it.
pub(crate) const SERVER_SILENT: &str = "server-silent";

/// Whether a client has begun TLS of its own, and with whom.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tls {
    pub(crate) is_tls: bool,
    pub(crate) server_name: Option<Box<str>>,
}

/// The endpoints tried for one connection of a client, of which the first that does not refuse it
/// serves it.
#[derive(Debug)]
pub(crate) struct Attempts<'a> {
    shared: &'a Shared,
    backends: &'a Backends,
    /// What the client dialled.
    original: SocketAddr,
    tls: Tls,
    tried: SmallVec<[SocketAddr; TRIES]>,
    unreached: Unreached,
    /// There is no other try.
    is_over: bool,
    /// Why the last of them was left out; counted.
    last: Option<(Rc<Edge>, &'static str)>,
}

/// A connection to an endpoint that has not said anything yet.
#[derive(Debug)]
pub(crate) struct Opened {
    pick: Pick<Remote>,
    /// How long it may last, and how long it may move nothing.
    within: Option<Duration>,
    idle: Duration,
    pub(crate) channel: Channel,
}

/// To an address that the mesh does not know, as it is.
pub(crate) async fn direct(shared: &Shared, original: SocketAddr, mut client: TcpStream) {
    match leno_transport::connect(original, CONNECT_TIMEOUT).await {
        Ok(server) => outside(shared, original, client, server).await,
        Err(error) => {
            tracing::debug!(%error, "not in the mesh, and not reachable");
            client.abort();
        }
    }
}

/// Relays to a server outside of the mesh. If the client is the first to speak, and speaks TLS, its
/// ClientHello is read in passing.
async fn outside(
    shared: &Shared,
    original: SocketAddr,
    mut client: TcpStream,
    mut server: TcpStream,
) {
    let (mut first, mut said) = (Vec::new(), Vec::new());
    let mut tls = Tls::default();
    let mut read = tokio::select! {
        biased;
        read = read_first(&mut client, &mut first) => read.map(drop),
        read = read_first(&mut server, &mut said) => read.map(drop),
    };
    if detect(&first) == Detected::TlsClientHello {
        read = tls_of(shared, &mut client, &mut first).await.map(|read| tls = read);
    }
    if let Err(error) = read {
        tracing::debug!(%error, "broke off before anything was said");
        client.abort();
        return server.abort();
    }
    let _busy = shared.activity.enter();
    let started = leno_transport::now();
    let (client, server) = (Prefixed::new(first, client), Prefixed::new(said, server));
    let relayed = leno_transport::relay(client, server, RELAY_IDLE, ()).await;
    shared.registry.relayed(&shared.outside(), &relay_of(original, &tls, started, &relayed));
}

fn relay_of<'a>(
    target: SocketAddr,
    tls: &'a Tls,
    started: Instant,
    relayed: &Relayed,
) -> Relay<'a> {
    let is_closed = matches!(relayed.ended, Ended::Closed);
    Relay {
        target,
        tls: tls.is_tls,
        server_name: tls.server_name.as_deref(),
        bytes: (relayed.a_to_b, relayed.b_to_a),
        duration: started.elapsed(),
        error: (!is_closed).then(|| relayed.ended.reason()),
    }
}

/// Counts and logs a connection that is refused before an endpoint is chosen, with the bytes that its client
/// has said.
pub(crate) fn refused(
    shared: &Shared,
    backends: &Backends,
    (target, tls, said): (SocketAddr, &Tls, usize),
    cause: &'static str,
) {
    let edge = backends.nobody();
    edge.error(cause);
    shared.registry.relayed(edge.labels(), &unserved(target, tls, said, cause));
}

/// A connection that came to nothing.
fn unserved<'a>(target: SocketAddr, tls: &'a Tls, said: usize, cause: &'static str) -> Relay<'a> {
    Relay {
        target,
        tls: tls.is_tls,
        server_name: tls.server_name.as_deref(),
        bytes: (said as u64, 0),
        duration: Duration::ZERO,
        error: Some(cause),
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

/// To an endpoint of `backends`, for a client that dialled `original`.
pub(crate) async fn relay(
    shared: &Rc<Shared>,
    backends: &Backends,
    original: SocketAddr,
    client: TcpStream,
) {
    let attempts = Attempts::new(shared, backends, original);
    attempts.relay(None, (Vec::new(), client), Tls::default()).await;
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(shared: &'a Shared, backends: &'a Backends, original: SocketAddr) -> Self {
        Self {
            shared,
            backends,
            original,
            tls: Tls::default(),
            tried: SmallVec::new(),
            unreached: Unreached::default(),
            is_over: false,
            last: None,
        }
    }

    /// Opens a connection, to another endpoint after a failure; none when there is no other one, which is
    /// logged.
    pub(crate) async fn open(&mut self) -> Option<Opened> {
        loop {
            if self.is_over {
                if let Some((edge, cause)) = &self.last {
                    let unserved = unserved(self.original, &self.tls, 0, cause);
                    self.shared.registry.relayed(edge.labels(), &unserved);
                }
                return None;
            }
            let pick = match self.backends.pick(&self.tried) {
                Ok(pick) => pick,
                Err(reason) => {
                    let cause = self.backends.cause(reason);
                    refused(self.shared, self.backends, (self.original, &self.tls, 0), cause);
                    let tried = &self.tried;
                    tracing::debug!(%reason, ?tried, "no endpoint for an opaque connection");
                    return None;
                }
            };
            let started = leno_transport::now();
            match open_channel(self.shared, pick.endpoint(), &[Alpn::Opaque], self.tls.is_tls).await
            {
                Ok(channel) => {
                    pick.observe(started.elapsed(), leno_transport::now());
                    let policy = self.backends.requests();
                    let within = policy.stream_timeout();
                    let idle = policy.idle_timeout().unwrap_or(RELAY_IDLE);
                    return Some(Opened { pick, within, idle, channel });
                }
                // Of none of its endpoints; an idle one makes room.
                Err(error @ OpenError::Full) => {
                    if !self.backends.close_idle() {
                        self.fail(pick.endpoint().edge(self.shared), 0, error.cause());
                        tracing::debug!(%error, "an opaque connection is refused");
                        return None;
                    }
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
        self.leave_out(&opened.pick, if refused { REFUSED_BY_SERVER } else { CONNECT_FAILED });
    }

    /// Counts and logs that the connection came to nothing at an endpoint.
    fn fail(&self, edge: &Edge, said: usize, cause: &'static str) {
        edge.error(cause);
        let unserved = unserved(self.original, &self.tls, said, cause);
        self.shared.registry.relayed(edge.labels(), &unserved);
    }

    fn leave_out(&mut self, pick: &Pick<Remote>, cause: &'static str) {
        let edge = pick.endpoint().edge(self.shared);
        edge.connect_failure();
        edge.error(cause);
        pick.connect_failed(leno_transport::now());
        self.tried.push(pick.endpoint().address);
        self.last = Some((Rc::clone(edge), cause));
        let made = self.tried.len();
        let goes_on = self.unreached.has_another(made, leno_transport::now())
            && (made < TRIES || self.backends.has_others(&self.tried));
        self.is_over = !goes_on;
        if goes_on {
            edge.retry();
        }
    }

    /// Relays to `opened`, or to an endpoint that is opened now, and to another one where that one
    /// refuses, until both directions have ended.
    pub(crate) async fn relay(
        mut self,
        mut opened: Option<Opened>,
        (mut from_client, mut client): (Vec<u8>, TcpStream),
        tls: Tls,
    ) {
        let _busy = self.shared.activity.enter();
        self.tls = tls;
        loop {
            let next = match opened.take() {
                Some(opened) => Some(opened),
                None => self.open().await,
            };
            let Some(mut next) = next else { return client.abort() };
            let Some(server) = next.channel.mesh_mut() else {
                // Nobody who might refuse stands before the application.
                let client = Prefixed::new(from_client, client);
                return next.relay(self, client, Vec::new()).await;
            };
            match greet(server, &mut client, &mut from_client).await {
                Greeting::Going { sent, from_server } => {
                    next.pick.endpoint().edge(self.shared).moved(true, sent as u64);
                    let client = Prefixed::new(from_client.split_off(sent), client);
                    return next.relay_after(self, (sent, client), from_server).await;
                }
                // It has taken nothing.
                Greeting::Broken { sent, error }
                    if sent == 0 || refused_by_server(&error).is_some() =>
                {
                    self.give_up(&next, &error);
                }
                Greeting::Broken { sent, error } => {
                    next.pick.penalise(leno_transport::now());
                    self.fail(next.pick.endpoint().edge(self.shared), sent, SERVER_SILENT);
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
        self.pick.penalise(leno_transport::now());
    }

    /// Relays until both directions have ended.
    pub(crate) async fn relay<C: Stream>(
        self,
        attempts: Attempts<'_>,
        client: C,
        from_server: Vec<u8>,
    ) {
        self.relay_after(attempts, (0, client), from_server).await;
    }

    /// The same after `sent` bytes of the client's.
    async fn relay_after<C: Stream>(
        self,
        attempts: Attempts<'_>,
        (sent, client): (usize, C),
        from_server: Vec<u8>,
    ) {
        let shared = attempts.shared;
        let started = leno_transport::now();
        let _busy = shared.activity.enter();
        let edge = Rc::clone(self.pick.endpoint().edge(shared));
        edge.tcp_opened();
        let server = Prefixed::new(from_server, self.channel);
        let bytes = Cell::new((sent as u64, 0));
        let moved = |side, n| {
            let (n, (from, to)) = (n as u64, bytes.get());
            bytes.set(if side == Side::A { (from + n, to) } else { (from, to + n) });
            edge.moved(side == Side::A, n);
        };
        let relay = leno_transport::relay(client, server, self.idle, moved);
        let relayed = match self.within {
            None => Ok(relay.await),
            Some(within) => tokio::time::timeout(within, relay).await,
        };
        edge.tcp_closed();
        let Ok(relayed) = relayed else {
            edge.error(STREAM_TIMEOUT);
            let unserved = unserved(attempts.original, &attempts.tls, 0, STREAM_TIMEOUT);
            let ended = Relay { bytes: bytes.get(), duration: started.elapsed(), ..unserved };
            shared.registry.relayed(edge.labels(), &ended);
            tracing::debug!("opaque connection ended: policy gives it no more time");
            return;
        };
        // A client that leaves without a word, as a port check does, says nothing of the server.
        let asked = relayed.a_to_b > 0 || sent > 0;
        let broke = matches!(relayed.ended, Ended::Failed { side: Side::B, .. });
        if relayed.b_to_a == 0 && (asked || broke) {
            self.pick.penalise(leno_transport::now());
        }
        tracing::debug!(ended = relayed.ended.reason(), "opaque connection ended");
        let mut relay = relay_of(attempts.original, &attempts.tls, started, &relayed);
        relay.bytes.0 += sent as u64;
        if matches!(relayed.ended, Ended::Idle) {
            edge.error(relayed.ended.reason());
        }
        shared.registry.relayed(edge.labels(), &relay);
    }
}
