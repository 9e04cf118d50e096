//! Connections that are relayed as opaque bytes.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_balance::Pick;
use leno_telemetry::{Edge, Relay};
use leno_tls::{Alpn, Channel, refused_by_server};
use leno_transport::{
    CONNECT_TIMEOUT, Ended, OwnTls, Peeked, RELAY_IDLE, Relayed, Side, Speaker, Verdict, Waits,
    first_to_speak, unless_gone,
};
use leno_types::Protocol;
use smallvec::SmallVec;
use tokio::net::TcpStream;

use crate::Worker;
use crate::backends::{Backends, Remote};
use crate::connect::{
    CONNECT_FAILED, OpenError, REFUSED_BY_SERVER, open as open_channel, to_own_application,
};
use crate::first::{broke_off, note_tls};
use crate::greeting::{Greeting, greet};
use crate::tries::{TRIES, Unreached};

/// The cause in metrics if policy ends a connection because it has lasted too long.
pub(crate) const STREAM_TIMEOUT: &str = "stream-timeout";

/// The cause in metrics if a client leaves before it is connected to a server. It is the same as for requests.
const CLIENT_LEFT: &str = "closed";

/// The cause in metrics if a server closes without having sent anything, although it got bytes of the client.
pub(crate) const SERVER_SILENT: &str = "server-silent";

/// The endpoints that are tried for one client connection. The first endpoint that does not refuse the connection
/// serves it.
#[derive(Debug)]
pub(crate) struct Attempts<'a> {
    shared: &'a Worker,
    backends: &'a Backends,
    /// The address that the client dialled.
    original: SocketAddr,
    tls: OwnTls,
    tried: SmallVec<[SocketAddr; TRIES]>,
    unreached: Unreached,
    /// Set when no other endpoint is tried.
    is_over: bool,
    /// The last failed attempt: the metrics (the edge to its endpoint) in which it is already counted, and its cause.
    /// The connection is logged with them if no other endpoint serves it.
    last: Option<(Rc<Edge>, &'static str)>,
}

/// A connection that was opened to an endpoint for one client.
#[derive(Debug)]
pub(crate) struct Opened {
    pick: Pick<Remote>,
    /// How long the connection may last; `None` without a limit.
    within: Option<Duration>,
    /// How long it may be idle.
    idle: Duration,
    pub(crate) server: Peeked<Channel>,
}

/// Relays to an address outside of the mesh, in plaintext.
pub(crate) async fn direct(shared: &Worker, original: SocketAddr, mut client: Peeked<TcpStream>) {
    let connected = leno_transport::connect(original, CONNECT_TIMEOUT);
    match unless_gone(connected, |cx| client.poll_gone(cx)).await {
        Ok(Ok(server)) => outside(shared, original, client, server.into()).await,
        Ok(Err(error)) => {
            tracing::debug!(%error, "not in the mesh, and not reachable");
            client.reset();
        }
        Err(error) => left(shared, original, client, &error),
    }
}

/// Relays to a server outside of the mesh. If the client sends first and uses TLS, its ClientHello is read to learn the
/// server name.
async fn outside(
    shared: &Worker,
    original: SocketAddr,
    mut client: Peeked<TcpStream>,
    mut server: Peeked<TcpStream>,
) {
    let detected = match first_to_speak(&mut client, &mut server, RELAY_IDLE).await {
        Some((Speaker::Client, Ok(_))) => client.detect(Protocol::Opaque, &Waits::OUTBOUND).await,
        Some((_, read)) => read.map(|_| Verdict::Opaque),
        None => Err(io::ErrorKind::TimedOut.into()),
    };
    let tls = match detected {
        Ok(Verdict::Tls(hello)) => note_tls(shared, hello),
        Ok(_) => OwnTls::default(),
        Err(error) => {
            tracing::debug!(%error, "a connection broke before any byte was relayed");
            client.reset();
            return server.reset();
        }
    };
    let _busy = shared.activity.enter();
    let started = leno_transport::now();
    let relayed = leno_transport::relay(client, server, RELAY_IDLE, ()).await;
    shared.registry.relayed(&shared.outside(), &relay_of(original, &tls, started, &relayed));
}

fn relay_of<'a>(
    target: SocketAddr,
    tls: &'a OwnTls,
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

/// Counts and logs a connection that is refused before an endpoint is chosen. `said` is the number of bytes that the
/// client has sent.
pub(crate) fn refused(
    shared: &Worker,
    backends: &Backends,
    (target, tls, said): (SocketAddr, &OwnTls, usize),
    cause: &'static str,
) {
    let edge = backends.nobody();
    edge.error(cause);
    shared.registry.relayed(edge.labels(), &unserved(target, tls, said, cause));
}

/// Counts and closes the connection of a client that left before it was connected to a server.
pub(crate) fn left(
    shared: &Worker,
    original: SocketAddr,
    client: Peeked<TcpStream>,
    error: &io::Error,
) {
    let tls = OwnTls::default();
    let left = unserved(original, &tls, client.bytes().len(), CLIENT_LEFT);
    let edge = shared.registry.edge(&shared.outside());
    edge.error(CLIENT_LEFT);
    shared.registry.relayed(edge.labels(), &left);
    broke_off(client, error);
}

/// The log entry of a connection that no endpoint served.
pub(crate) fn unserved<'a>(
    target: SocketAddr,
    tls: &'a OwnTls,
    said: usize,
    cause: &'static str,
) -> Relay<'a> {
    let (tls, server_name) = (tls.is_tls, tls.server_name.as_deref());
    Relay { tls, server_name, bytes: (said as u64, 0), ..Relay::failed(target, cause) }
}

/// Relays to an address of this workload itself.
pub(crate) async fn own(shared: &Worker, original: SocketAddr, mut client: Peeked<TcpStream>) {
    let connected = to_own_application(original);
    match unless_gone(connected, |cx| client.poll_gone(cx)).await {
        Ok(Ok(server)) => {
            let _busy = shared.activity.enter();
            leno_transport::relay(client, server.into(), RELAY_IDLE, ()).await;
        }
        Ok(Err(error)) => {
            tracing::debug!(%error, "the workload called itself where it does not listen");
            client.reset();
        }
        Err(error) => broke_off(client, &error),
    }
}

/// Relays to an endpoint of `backends`, for a client that dialled `original`.
pub(crate) async fn relay(
    shared: &Rc<Worker>,
    backends: &Backends,
    original: SocketAddr,
    client: Peeked<TcpStream>,
) {
    let attempts = Attempts::new(shared, backends, original);
    attempts.relay(None, client, OwnTls::default()).await;
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(shared: &'a Worker, backends: &'a Backends, original: SocketAddr) -> Self {
        Self {
            shared,
            backends,
            original,
            tls: OwnTls::default(),
            tried: SmallVec::new(),
            unreached: Unreached::default(),
            is_over: false,
            last: None,
        }
    }

    /// Opens a connection; after a failure, to another endpoint. `None` if there is no other endpoint, or if the client
    /// leaves meanwhile, which is logged.
    pub(crate) async fn open(&mut self, client: &mut Peeked<TcpStream>) -> Option<Opened> {
        let gone = match unless_gone(self.open_any(), |cx| client.poll_gone(cx)).await {
            Ok(opened) => return opened,
            Err(gone) => gone,
        };
        tracing::debug!(error = %gone, "the client left");
        // A client that leaves without having sent a byte is not counted, because port checks do this.
        if !client.bytes().is_empty() {
            let said = (self.original, &self.tls, client.bytes().len());
            refused(self.shared, self.backends, said, CLIENT_LEFT);
        }
        None
    }

    async fn open_any(&mut self) -> Option<Opened> {
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
                    return Some(Opened { pick, within, idle, server: channel.into() });
                }
                // No endpoint is at fault. Closing an idle connection can make room.
                Err(error @ OpenError::Full) => {
                    if !self.backends.close_idle() {
                        self.fail(pick.endpoint().edge(self.shared), 0, error.cause());
                        tracing::debug!(%error, "an opaque connection is refused");
                        return None;
                    }
                }
                // The other endpoints of the service have the same policies.
                Err(error) if error.is_denied() => {
                    self.fail(pick.endpoint().edge(self.shared), 0, error.cause());
                    tracing::debug!(%error, "an opaque connection is denied");
                    return None;
                }
                Err(error) => {
                    tracing::debug!(%error, "endpoint left out");
                    self.leave_out(&pick, error.cause());
                }
            }
        }
    }

    /// Records that the connection broke before the endpoint had accepted any of the client's bytes, and decides
    /// whether another endpoint is tried.
    pub(crate) fn give_up(&mut self, opened: &Opened, error: &io::Error) {
        tracing::debug!(%error, "endpoint left out");
        let refused = refused_by_server(error).is_some();
        // The connection itself was established, which counts in favour of the endpoint. Without this, its failure
        // would be forgotten at the next attempt.
        opened.penalise();
        self.leave_out(&opened.pick, if refused { REFUSED_BY_SERVER } else { CONNECT_FAILED });
    }

    /// Counts and logs that an endpoint did not serve the connection.
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

    /// Relays over `opened`, or over a new connection, until both directions have ended. If the endpoint refuses,
    /// another endpoint is tried.
    pub(crate) async fn relay(
        mut self,
        mut opened: Option<Opened>,
        mut client: Peeked<TcpStream>,
        tls: OwnTls,
    ) {
        let _busy = self.shared.activity.enter();
        self.tls = tls;
        loop {
            let next = match opened.take() {
                Some(opened) => Some(opened),
                None => self.open(&mut client).await,
            };
            let Some(mut next) = next else { return client.reset() };
            if next.server.stream().alpn().is_none() {
                // The application has no proxy in front of it that could refuse.
                return next.relay(self, client).await;
            }
            match greet(&mut next.server, &mut client).await {
                Greeting::Going { sent } => {
                    next.pick.endpoint().edge(self.shared).moved(true, sent as u64);
                    client.consume(sent);
                    return next.relay_after(self, (sent, client)).await;
                }
                // The server has accepted none of the client's bytes.
                Greeting::Broken { sent, error }
                    if sent == 0 || refused_by_server(&error).is_some() =>
                {
                    self.give_up(&next, &error);
                }
                Greeting::Broken { sent, error } => {
                    next.pick.penalise(leno_transport::now());
                    self.fail(next.pick.endpoint().edge(self.shared), sent, SERVER_SILENT);
                    tracing::debug!(%error, "broke before the server had sent anything");
                    return client.reset();
                }
                Greeting::ClientBroke(error) => {
                    tracing::debug!(%error, "the client left");
                    return next.reset();
                }
            }
        }
    }
}

impl Opened {
    /// Resets the connection to the endpoint.
    pub(crate) fn reset(self) {
        self.server.reset();
    }

    /// Records against the endpoint that it closed the connection without having sent a byte, for an unknown reason.
    pub(crate) fn penalise(&self) {
        self.pick.penalise(leno_transport::now());
    }

    /// Relays until both directions have ended.
    pub(crate) async fn relay(self, attempts: Attempts<'_>, client: Peeked<TcpStream>) {
        self.relay_after(attempts, (0, client)).await;
    }

    /// Like [`relay`](Self::relay), but begins after `sent` bytes of the client.
    async fn relay_after(self, attempts: Attempts<'_>, (sent, client): (usize, Peeked<TcpStream>)) {
        let shared = attempts.shared;
        let started = leno_transport::now();
        let _busy = shared.activity.enter();
        let edge = Rc::clone(self.pick.endpoint().edge(shared));
        edge.tcp_opened();
        let bytes = Cell::new((sent as u64, 0_u64));
        let moved = |side, n| {
            let (n, (from, to)) = (n as u64, bytes.get());
            let is_sent = side == Side::A;
            bytes.set(if is_sent {
                (from.wrapping_add(n), to)
            } else {
                (from, to.wrapping_add(n))
            });
            edge.moved(is_sent, n);
        };
        let relay = leno_transport::relay(client, self.server, self.idle, moved);
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
        // If a client leaves without having sent a byte, as port checks do, this says nothing about the server.
        let asked = relayed.a_to_b > 0 || sent > 0;
        let broke = matches!(relayed.ended, Ended::Failed { side: Side::B, .. });
        if relayed.b_to_a == 0 && (asked || broke) {
            self.pick.penalise(leno_transport::now());
        }
        tracing::debug!(ended = relayed.ended.reason(), "opaque connection ended");
        let mut relay = relay_of(attempts.original, &attempts.tls, started, &relayed);
        relay.bytes.0 = relay.bytes.0.wrapping_add(sent as u64);
        if matches!(relayed.ended, Ended::Idle) {
            edge.error(relayed.ended.reason());
        }
        shared.registry.relayed(edge.labels(), &relay);
    }
}
