//! Flows to the workload: from proxies of clients to the application, and back.
//!
//! ```text
//!  packet ─► handshake, identity ─► stream ─► Gate ─► a socket to the application for each flow
//! ```

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use leno_program::Shares;
use leno_tls::{HANDSHAKE_TIMEOUT, ProvenPeer, TlsConfigs};
use leno_transport::budget::{self, Charge};
use leno_transport::spawn_contained;
use leno_types::{Identity, canonical};
use quinn::{Connection, Endpoint, Incoming, RecvStream, SendStream, VarInt};
use socket2::SockRef;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::bounds::{
    CONNECTION_BYTES, FLOW_IDLE, HANDSHAKES, HANDSHAKES_OF_ADDRESS, SERVER_CONNECTIONS,
    SERVER_FLOWS,
};
use crate::counts::{Count, Counts};
use crate::outbound::DATAGRAM_BYTES;
use crate::quic::chain;
use crate::sending::{NotSent, send};
use crate::sockets::connected;
use crate::wire::{self, ACCEPTED, OPENING_BYTES, Opening};
use crate::{Asked, Gate, Permitted, Refusal};

/// Flows to the workload.
#[derive(Debug)]
pub(crate) struct Inbound {
    gate: Rc<dyn Gate>,
    credentials: watch::Receiver<Option<Arc<TlsConfigs>>>,
    counts: Rc<Counts>,
    /// The flows, by the client's identity.
    places: Shares<Identity>,
    /// The handshakes in progress, by address and by whether the address was validated.
    handshakes: Shares<(IpAddr, bool)>,
    /// The connections, by the client's identity.
    of_clients: Shares<Identity>,
    /// The connections, by the number that QUIC gives each of them.
    connections: RefCell<HashMap<usize, (Connection, ProvenPeer)>>,
    /// A buffer for one datagram of an application. No task uses it across an await.
    scratch: RefCell<Box<[u8]>>,
}

/// The flows of one connection. The keys are the numbers of their streams.
type Flows = Rc<RefCell<HashMap<u64, Rc<Application>>>>;

/// The socket of a flow to the application.
#[derive(Debug)]
struct Application {
    socket: UdpSocket,
    /// The addresses at which the application may listen, all of the source's family.
    candidates: Vec<SocketAddr>,
    /// The index of the candidate to which the socket is connected.
    at: Cell<usize>,
    /// Whether the application has sent something, so that its address is known to be right.
    has_answered: Cell<bool>,
    used_at: Cell<Instant>,
}

/// Removes a flow from the table of its connection when it is dropped.
struct Listed {
    flows: Flows,
    number: u64,
}

/// Why a flow ends.
enum End {
    ByClient,
    Idle,
    Revoked,
}

impl Inbound {
    pub(crate) fn new(
        gate: Rc<dyn Gate>,
        credentials: watch::Receiver<Option<Arc<TlsConfigs>>>,
        counts: Rc<Counts>,
    ) -> Rc<Self> {
        Rc::new(Self {
            gate,
            credentials,
            counts,
            places: Shares::new(SERVER_FLOWS, SERVER_FLOWS.div_ceil(2)),
            handshakes: Shares::keeping(HANDSHAKES, HANDSHAKES_OF_ADDRESS),
            of_clients: Shares::keeping(SERVER_CONNECTIONS, SERVER_CONNECTIONS.div_ceil(2)),
            connections: RefCell::default(),
            scratch: RefCell::new(vec![0; DATAGRAM_BYTES].into()),
        })
    }

    pub(crate) fn flows(&self) -> usize {
        self.places.held()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.borrow().len()
    }

    /// Accepts connections until the endpoint is closed.
    pub(crate) async fn accept(self: &Rc<Self>, endpoint: &Endpoint) {
        while let Some(incoming) = endpoint.accept().await {
            if !budget::admits() {
                self.counts.count(Count::InboundConnectLimit);
                incoming.refuse();
                continue;
            }
            let is_shown = incoming.remote_address_validated();
            let from = incoming.remote_address().ip().to_canonical();
            let may_begin = is_shown || self.handshakes.held() < HANDSHAKES / 2;
            let place = may_begin.then(|| self.handshakes.take((from, is_shown))).flatten();
            let Some(place) = place else {
                // If the client's address was validated already, a retry is not possible.
                if let Err(error) = incoming.retry() {
                    self.counts.count(Count::InboundConnectLimit);
                    error.into_incoming().refuse();
                }
                continue;
            };
            let inbound = Rc::clone(self);
            // The task ends with the connection.
            spawn_contained(async move {
                match place.hold(inbound.prove(incoming)).await {
                    Some(Ok((connection, peer))) => inbound.admit(connection, peer).await,
                    Some(Err(error)) => {
                        inbound.counts.count(Count::InboundConnectFailed);
                        tracing::debug!(%error, "a client of datagrams is refused");
                    }
                    None => inbound.counts.count(Count::InboundConnectLimit),
                }
            });
        }
    }

    /// Serves a connection until it ends, or until it must make room for a connection of another identity.
    async fn admit(self: &Rc<Self>, connection: Connection, peer: ProvenPeer) {
        let served = match self.of_clients.take(peer.identity().clone()) {
            Some(place) => {
                self.counts.count(Count::InboundConnected);
                place.hold(self.serve(connection.clone(), peer)).await
            }
            None => None,
        };
        if served.is_none() {
            self.counts.count(Count::InboundConnectLimit);
            connection.close(VarInt::from_u32(0), b"");
        }
    }

    async fn prove(&self, incoming: Incoming) -> io::Result<(Connection, ProvenPeer)> {
        let connecting = incoming.accept().map_err(io::Error::other)?;
        let connection = timeout(HANDSHAKE_TIMEOUT, connecting).await;
        let connection =
            connection.map_err(|_| io::ErrorKind::TimedOut)?.map_err(io::Error::other)?;
        let configs = self.credentials.borrow().clone().ok_or(io::ErrorKind::NotConnected)?;
        match configs.datagram_peer(&chain(connection.peer_identity())) {
            Ok(peer) => Ok((connection, peer)),
            Err(error) => {
                connection.close(VarInt::from_u32(0), b"");
                Err(io::Error::other(error))
            }
        }
    }

    async fn serve(self: &Rc<Self>, connection: Connection, peer: ProvenPeer) {
        let number = connection.stable_id();
        let listed = (connection.clone(), peer.clone());
        self.connections.borrow_mut().insert(number, listed);
        let _charge = Charge::new(CONNECTION_BYTES);
        let _open = OpenConnection { inbound: Rc::clone(self), number };
        let flows = Flows::default();
        loop {
            tokio::select! {
                stream = connection.accept_bi() => {
                    let stream = match stream {
                        Ok(stream) => stream,
                        Err(error) => return self.counts.ended(&error, Count::InboundSilent),
                    };
                    let (inbound, flows) = (Rc::clone(self), Rc::clone(&flows));
                    let of = (connection.clone(), peer.clone());
                    // The task ends with the flow. QUIC bounds the streams of a connection, and a place those of a worker.
                    spawn_contained(async move { inbound.flow(of, stream, flows).await });
                }
                datagram = connection.read_datagram() => {
                    match datagram {
                        Ok(datagram) => self.deliver(&flows, wire::read_datagram(datagram)),
                        Err(error) => return self.counts.ended(&error, Count::InboundSilent),
                    }
                }
            }
        }
    }

    fn deliver(&self, flows: &Flows, datagram: Option<(u64, bytes::Bytes)>) {
        let known = datagram
            .and_then(|(number, payload)| Some((Rc::clone(flows.borrow().get(&number)?), payload)));
        let Some((application, payload)) = known else {
            return self.counts.count(Count::InboundUnknown);
        };
        if application.send(&payload) {
            self.counts.count(Count::InboundReceived);
            self.counts.count_many(Count::InboundReceivedBytes, payload.len());
        } else {
            self.counts.count(Count::InboundUnsent);
        }
    }

    /// Runs a flow until it ends.
    async fn flow(
        &self,
        (connection, peer): (Connection, ProvenPeer),
        (mut sends, mut receives): (SendStream, RecvStream),
        flows: Flows,
    ) {
        let served = self.opened(&connection, &peer, (&mut sends, &mut receives), flows).await;
        let refusal = match served {
            Ok(()) => return,
            Err(refusal) => refusal,
        };
        self.counts.count(match refusal {
            Refusal::Denied | Refusal::Undeclared => Count::InboundDenied,
            Refusal::Limit => Count::InboundLimit,
            Refusal::Malformed => Count::InboundMalformed,
            Refusal::Unreachable => Count::InboundFlowFailed,
            Refusal::Idle => Count::InboundIdle,
        });
        tracing::debug!(client = %peer.identity(), reason = refusal.reason(), "a flow of datagrams ends");
        // Resetting fails if the stream has ended, and then the client already knows that the flow has ended.
        let _ended = sends.reset(VarInt::from_u32(refusal.code()));
    }

    /// Serves a stream of a client as a flow, if there is a place for it: a stream takes one before it has said anything,
    /// since streams that stay silent take memory, too. Returns an error if the client must be told the reason.
    async fn opened(
        &self,
        connection: &Connection,
        peer: &ProvenPeer,
        streams: (&mut SendStream, &mut RecvStream),
        flows: Flows,
    ) -> Result<(), Refusal> {
        let place = self.places.take(peer.identity().clone()).ok_or(Refusal::Limit)?;
        let held = place.hold(self.asked(connection, peer, streams, flows)).await;
        held.unwrap_or(Err(Refusal::Limit))
    }

    /// Reads what a stream asks for, and serves it as a flow if that is permitted.
    async fn asked(
        &self,
        connection: &Connection,
        peer: &ProvenPeer,
        (sends, receives): (&mut SendStream, &mut RecvStream),
        flows: Flows,
    ) -> Result<(), Refusal> {
        let mut bytes = [0; OPENING_BYTES];
        let read = timeout(HANDSHAKE_TIMEOUT, receives.read_exact(&mut bytes)).await;
        let Ok(Ok(())) = read else { return Err(Refusal::Malformed) };
        let opening = Opening::decode(bytes).ok_or(Refusal::Malformed)?;
        let dialled = connection.local_ip().ok_or(Refusal::Unreachable)?;
        let at =
            |ip: IpAddr, port: std::num::NonZeroU16| canonical(SocketAddr::new(ip, port.get()));
        let asked = Asked {
            identity: peer.identity().clone(),
            certificate: peer.certificate(),
            client: at(connection.remote_address().ip(), opening.client),
            server: at(dialled, opening.server),
        };
        self.permitted(connection, asked, (sends, receives), flows).await
    }

    async fn permitted(
        &self,
        connection: &Connection,
        asked: Asked,
        (sends, receives): (&mut SendStream, &mut RecvStream),
        flows: Flows,
    ) -> Result<(), Refusal> {
        let Permitted { source, application, revoked } = self.gate.judge(asked).await?;
        let number = receives.id().index();
        let application =
            Rc::new(Application::new(source, application).await.map_err(|error| {
                tracing::warn!(%error, "no socket for a flow of datagrams");
                Refusal::Unreachable
            })?);
        // This must happen before the client sends any datagram.
        flows.borrow_mut().insert(number, Rc::clone(&application));
        let _listed = Listed { flows, number };
        if sends.write_all(&[ACCEPTED]).await.is_err() {
            return Ok(());
        }
        self.counts.count(Count::InboundOpened);
        let mut more = [0];
        let end = tokio::select! {
            _end = receives.read(&mut more) => End::ByClient,
            () = application.idle() => End::Idle,
            () = revoked => End::Revoked,
            never = self.answer(connection, number, &application) => match never {},
        };
        match end {
            End::ByClient => Ok(()),
            End::Idle => Err(Refusal::Idle),
            End::Revoked => {
                self.counts.count(Count::InboundRevoked);
                // The flow was only counted as revoked, so its stream is reset here.
                let _ended = sends.reset(VarInt::from_u32(Refusal::Denied.code()));
                Ok(())
            }
        }
    }

    /// Forwards what the application sends, until the flow ends.
    async fn answer(
        &self,
        connection: &Connection,
        number: u64,
        application: &Application,
    ) -> std::convert::Infallible {
        loop {
            // If the socket has an error, the read returns it.
            let _readable = application.socket.readable().await;
            self.pass_on(connection, number, application);
            tokio::task::yield_now().await;
        }
    }

    fn pass_on(&self, connection: &Connection, number: u64, application: &Application) {
        let mut scratch = self.scratch.borrow_mut();
        match application.socket.try_recv(&mut scratch) {
            Ok(length) => {
                application.has_answered.set(true);
                application.used_at.set(Instant::now());
                let payload = scratch.get(..length).unwrap_or_default();
                self.counts.count(match send(connection, number, payload) {
                    Ok(()) => {
                        self.counts.count_many(Count::InboundSentBytes, length);
                        Count::InboundSent
                    }
                    Err(NotSent::TooLarge) => Count::InboundTooLarge,
                    Err(NotSent::Congested) => Count::InboundCongested,
                    Err(NotSent::Ended) => Count::InboundUnknown,
                });
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => application.failed(&error),
        }
    }

    /// Ends the connections whose clients' certificates have ended or were revoked.
    pub(crate) fn end_unproven(&self, now: &TlsConfigs) {
        for (connection, peer) in self.connections.borrow().values() {
            if peer.check(now).is_err() && connection.close_reason().is_none() {
                self.counts.count(Count::InboundUnproven);
                connection.close(VarInt::from_u32(0), b"");
            }
        }
    }
}

impl Application {
    async fn new(source: IpAddr, candidates: Vec<SocketAddr>) -> io::Result<Self> {
        let of_family = |one: &SocketAddr| one.is_ipv4() == source.is_ipv4();
        let candidates: Vec<_> = candidates.into_iter().filter(of_family).collect();
        let first = *candidates.first().ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self {
            socket: connected(Some(source), first).await?,
            candidates,
            at: Cell::new(0),
            has_answered: Cell::new(false),
            used_at: Cell::new(Instant::now()),
        })
    }

    /// Sends a datagram to the application. Returns whether the kernel has accepted it.
    fn send(&self, payload: &[u8]) -> bool {
        self.used_at.set(Instant::now());
        match self.socket.try_send(payload) {
            Ok(_) => true,
            // The error was caused by an earlier datagram.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                self.failed(&error);
                self.socket.try_send(payload).is_ok()
            }
            Err(_) => false,
        }
    }

    /// Called after an error of the socket. If it means that nothing listens at the application's address, the next
    /// candidate is tried, unless the application has answered before.
    fn failed(&self, error: &io::Error) {
        if error.kind() != io::ErrorKind::ConnectionRefused || self.has_answered.get() {
            return;
        }
        let next = self.at.get().saturating_add(1);
        let next = if next < self.candidates.len() { next } else { 0 };
        self.at.set(next);
        let Some(candidate) = self.candidates.get(next) else { return };
        if let Err(error) = SockRef::from(&self.socket).connect(&(*candidate).into()) {
            tracing::debug!(%error, %candidate, "an application of datagrams");
        }
    }

    /// Waits until there has been no datagram for [`FLOW_IDLE`](crate::bounds::FLOW_IDLE).
    async fn idle(&self) {
        loop {
            let Some(until) = self.used_at.get().checked_add(FLOW_IDLE) else { return };
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.flows.borrow_mut().remove(&self.number);
    }
}

/// Counts a connection as open until it is dropped.
struct OpenConnection {
    inbound: Rc<Inbound>,
    number: usize,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.inbound.connections.borrow_mut().remove(&self.number);
    }
}
