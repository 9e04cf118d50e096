//! Flows of the workload: from its sockets to proxies of servers, and back.
//!
//! ```text
//!  datagram ─► flow of (its source, placeholder) ─┬─ opening: a few wait
//!                                                 ├─ in the mesh: a datagram of QUIC
//!                                                 ├─ outside: a socket of its own
//!                                                 └─ closed: dropped, for a moment
//! ```
//! A task for each flow opens it, waits for its end, and then removes it from the table; the next datagram opens a new
//! flow.

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_tls::TlsConfigs;
use leno_transport::spawn_contained;
use quinn::{Connection, ConnectionError, ReadError, RecvStream, SendStream};
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::bounds::{
    CLIENT_FLOWS, FLOW_IDLE, OPEN_TIMEOUT, OUTSIDE_FLOWS, REFUSED_FOR, WAITING_BYTES,
    WAITING_DATAGRAMS,
};
use crate::captured::Captured;
use crate::counts::{Count, Counts};
use crate::peers::{NoConnection, Peer, Peers};
use crate::quic::Endpoints;
use crate::sending::{NotSent, send};
use crate::sockets::connected;
use crate::table::FlowTable;
use crate::wire::{self, ACCEPTED, Opening};
use crate::{Refusal, Route, Routes};

/// The size of a buffer for the largest datagram of UDP.
pub(crate) const DATAGRAM_BYTES: usize = 64 * 1024;
/// How many datagrams are handled in a row before other tasks of the worker run.
const IN_A_ROW: u32 = 32;
/// The pause after a socket has returned an error.
const PAUSE: Duration = Duration::from_millis(50);

/// A socket of the workload, and the placeholder to which it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FlowKey {
    pub(crate) client: SocketAddr,
    pub(crate) placeholder: IpAddr,
}

/// The flows of the workload.
#[derive(Debug)]
pub(crate) struct Outbound {
    captured: Vec<Rc<Captured>>,
    routes: Rc<dyn Routes>,
    /// The port on which other proxies accept QUIC.
    port: u16,
    peers: Peers,
    counts: Rc<Counts>,
    flows: RefCell<FlowTable<FlowKey, Rc<Flow>>>,
    /// How many flows leave the mesh now.
    outside: Rc<Cell<usize>>,
    /// A buffer for one datagram of a server outside of the mesh. No task uses it across an await.
    scratch: RefCell<Box<[u8]>>,
}

#[derive(Debug)]
struct Flow {
    /// The destination that the application has sent to.
    original: SocketAddr,
    /// The flow's route, once it is resolved.
    route: OnceCell<Route>,
    path: RefCell<Path>,
    task: RefCell<Option<AbortHandle>>,
}

#[derive(Debug)]
enum Path {
    /// The flow is not open yet; these datagrams wait for that.
    Opening(Vec<Box<[u8]>>),
    /// Datagrams go into this connection, with this number of the flow.
    Mesh(Connection, u64),
    /// Datagrams go to a server outside of the mesh.
    Outside(Rc<UdpSocket>),
    /// The flow was refused or could not be opened. Its datagrams are dropped until it is removed.
    Closed,
}

/// The path of an open flow. Dropping it ends the flow.
enum Opened {
    Mesh(Box<MeshFlow>),
    Outside(Rc<UdpSocket>, OutsidePlace),
}

struct MeshFlow {
    peer: Rc<Peer>,
    connection: Connection,
    number: u64,
    /// When this stream is dropped, the server ends the flow.
    _sends: SendStream,
    receives: RecvStream,
}

/// The permission for one flow that leaves the mesh. When it is dropped, another flow may leave the mesh.
struct OutsidePlace(Rc<Cell<usize>>);

/// Why a flow was not opened.
#[derive(Debug, thiserror::Error)]
enum NotOpened {
    #[error("refused: {0}")]
    Refused(&'static str),
    #[error("there are {OUTSIDE_FLOWS} flows that leave the mesh")]
    Limit,
    #[error("no connection")]
    Connection(#[from] NoConnection),
    #[error("the connection was lost")]
    Lost(#[from] ConnectionError),
    #[error("the server's proxy said nothing that opens a flow")]
    Malformed,
    #[error("no answer in time")]
    Timeout,
    #[error("no socket")]
    Socket(#[from] io::Error),
}

impl Outbound {
    pub(crate) fn new(
        captured: Vec<Rc<Captured>>,
        (routes, port): (Rc<dyn Routes>, u16),
        (endpoints, credentials): (Rc<Endpoints>, watch::Receiver<Option<Arc<TlsConfigs>>>),
        counts: Rc<Counts>,
    ) -> Rc<Self> {
        Rc::new(Self {
            captured,
            routes,
            port,
            peers: Peers::new(endpoints, credentials, Rc::clone(&counts)),
            counts,
            flows: RefCell::new(FlowTable::new(CLIENT_FLOWS)),
            outside: Rc::default(),
            scratch: RefCell::new(vec![0; DATAGRAM_BYTES].into()),
        })
    }

    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Rc<Captured>> {
        self.captured.iter()
    }

    pub(crate) fn flows(&self) -> usize {
        self.flows.borrow().len()
    }

    pub(crate) fn connections(&self) -> usize {
        self.peers.open()
    }

    /// Handles the datagrams that arrive at a socket; never returns.
    pub(crate) async fn receive(self: &Rc<Self>, socket: &Captured) {
        let mut buffer = vec![0; DATAGRAM_BYTES];
        let mut in_a_row = 0_u32;
        loop {
            match socket.receive(&mut buffer).await {
                Ok(arrived) => {
                    let key = FlowKey { client: arrived.client, placeholder: arrived.placeholder };
                    for payload in arrived.payloads(&buffer) {
                        self.datagram(socket, key, payload);
                    }
                    in_a_row = in_a_row.saturating_add(1);
                }
                Err(error) => {
                    tracing::warn!(%error, "receiving datagrams of the workload");
                    sleep(PAUSE).await;
                }
            }
            if in_a_row >= IN_A_ROW {
                in_a_row = 0;
                tokio::task::yield_now().await;
            }
        }
    }

    fn datagram(self: &Rc<Self>, socket: &Captured, key: FlowKey, payload: &[u8]) {
        let known = self.flows.borrow().get(&key, Instant::now()).cloned();
        let flow = match known {
            Some(flow) => flow,
            None => match socket.destination(key.placeholder) {
                Ok(original) => self.begin(key, original),
                Err(error) => {
                    self.counts.count(Count::OutboundNoDestination);
                    tracing::debug!(%error, client = %key.client, "a datagram without a destination");
                    return;
                }
            },
        };
        self.send(&flow, payload);
    }

    fn begin(self: &Rc<Self>, key: FlowKey, original: SocketAddr) -> Rc<Flow> {
        let path = RefCell::new(Path::Opening(Vec::new()));
        let (route, task) = (OnceCell::new(), RefCell::default());
        let flow = Rc::new(Flow { original, route, path, task });
        let inserted = self.flows.borrow_mut().insert(key, Rc::clone(&flow), Instant::now());
        let (number, evicted) = inserted;
        if let Some(evicted) = evicted {
            self.counts.count(Count::OutboundEvicted);
            evicted.end();
        }
        let (outbound, of_task) = (Rc::clone(self), Rc::clone(&flow));
        // The task ends with the flow.
        let task = spawn_contained(async move {
            outbound.run(&of_task, key).await;
            outbound.flows.borrow_mut().remove(&key, number);
        });
        flow.task.replace(Some(task.abort_handle()));
        flow
    }

    fn send(&self, flow: &Flow, payload: &[u8]) {
        let dropped = match &mut *flow.path.borrow_mut() {
            Path::Opening(waiting) => {
                let waits: usize = waiting.iter().map(|one| one.len()).sum();
                let has_room = waits.saturating_add(payload.len()) <= WAITING_BYTES;
                if waiting.len() < WAITING_DATAGRAMS && has_room {
                    return waiting.push(payload.into());
                }
                Count::OutboundWaiting
            }
            Path::Mesh(connection, number) => match send(connection, *number, payload) {
                Ok(()) => return self.sent(payload),
                Err(NotSent::TooLarge) => Count::OutboundTooLarge,
                Err(NotSent::Congested) => Count::OutboundCongested,
                Err(NotSent::Ended) => Count::OutboundUnknown,
            },
            Path::Outside(socket) => match socket.try_send(payload) {
                Ok(_) => return self.sent(payload),
                Err(_) => Count::OutboundUnsent,
            },
            Path::Closed => Count::OutboundRefused,
        };
        self.counts.count(dropped);
    }

    fn sent(&self, payload: &[u8]) {
        self.counts.count(Count::OutboundSent);
        self.counts.count_many(Count::OutboundSentBytes, payload.len());
    }

    /// Runs a flow until it ends.
    async fn run(self: &Rc<Self>, flow: &Flow, key: FlowKey) {
        let original = flow.original;
        let opened = timeout(OPEN_TIMEOUT, self.open(flow, key)).await;
        match opened.unwrap_or(Err(NotOpened::Timeout)) {
            Ok(Opened::Mesh(mesh)) => {
                self.counts.count(Count::OutboundOpened);
                self.goes_by(flow, Path::Mesh(mesh.connection.clone(), mesh.number));
                let ended = mesh.end().await;
                tracing::debug!(client = %key.client, %original, ended, "a flow of datagrams ended");
            }
            Ok(Opened::Outside(socket, _place)) => {
                self.counts.count(Count::OutboundOutside);
                self.goes_by(flow, Path::Outside(Rc::clone(&socket)));
                self.answer_from(&socket, key).await;
            }
            Err(error) => {
                self.counts.count(match error {
                    NotOpened::Refused(_) => Count::OutboundFlowRefused,
                    NotOpened::Limit => Count::OutboundOutsideLimit,
                    _ => Count::OutboundFlowFailed,
                });
                let error = leno_program::chain(&error);
                tracing::info!(client = %key.client, %original, error, "datagrams are dropped");
                self.goes_by(flow, Path::Closed);
                sleep(REFUSED_FOR).await;
            }
        }
    }

    /// Sets the path of a flow, which was being opened until now, and sends the datagrams that waited for it.
    fn goes_by(&self, flow: &Flow, path: Path) {
        if let Path::Opening(waiting) = flow.path.replace(path) {
            waiting.iter().for_each(|payload| self.send(flow, payload));
        }
    }

    async fn open(self: &Rc<Self>, flow: &Flow, key: FlowKey) -> Result<Opened, NotOpened> {
        let route = self.routes.route(flow.original).await;
        match flow.route.get_or_init(|| route).clone() {
            Route::Refused(reason) => Err(NotOpened::Refused(reason)),
            Route::Outside(to) => {
                let place = OutsidePlace::take(&self.outside).ok_or(NotOpened::Limit)?;
                Ok(Opened::Outside(Rc::new(connected(None, to).await?), place))
            }
            Route::Mesh { server, identity } => {
                let ports = (NonZeroU16::new(key.client.port()), NonZeroU16::new(server.port()));
                let (Some(client), Some(port)) = ports else { return Err(NotOpened::Malformed) };
                let proxy = SocketAddr::new(server.ip(), self.port);
                let peer = self.peers.peer(proxy, &identity)?;
                let (connection, is_new) = self.peers.connection(&peer).await?;
                if is_new {
                    self.deliver_from(&peer, &connection);
                }
                let opening = Opening { client, server: port };
                let mesh = MeshFlow::open((peer, connection), opening, key).await?;
                Ok(Opened::Mesh(Box::new(mesh)))
            }
        }
    }

    /// Spawns a task that delivers the datagrams of a connection until the connection ends.
    fn deliver_from(self: &Rc<Self>, peer: &Rc<Peer>, connection: &Connection) {
        let (outbound, peer, connection) = (Rc::clone(self), Rc::clone(peer), connection.clone());
        spawn_contained(async move {
            loop {
                let datagram = match connection.read_datagram().await {
                    Ok(datagram) => datagram,
                    Err(error) => return outbound.counts.ended(&error, Count::OutboundSilent),
                };
                let read = wire::read_datagram(datagram);
                let known = read.and_then(|(number, payload)| {
                    Some((*peer.flows.borrow().get(&number)?, payload))
                });
                match known {
                    Some((key, payload)) => outbound.deliver(key, &payload),
                    None => outbound.counts.count(Count::OutboundUnknown),
                }
            }
        });
    }

    /// Forwards the answers of a server outside of the mesh, until the flow ends.
    async fn answer_from(&self, socket: &UdpSocket, key: FlowKey) {
        loop {
            // If the socket has an error, the read returns it.
            let _readable = socket.readable().await;
            self.pass_on(socket, key);
            tokio::task::yield_now().await;
        }
    }

    /// Delivers one datagram that a server outside of the mesh has sent to this socket, if there is one.
    fn pass_on(&self, socket: &UdpSocket, key: FlowKey) {
        let mut scratch = self.scratch.borrow_mut();
        match socket.try_recv(&mut scratch) {
            Ok(length) => self.deliver(key, scratch.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Nothing listens at that address now, but something may later.
            Err(error) => {
                tracing::debug!(%error, client = %key.client, "a server outside of the mesh");
            }
        }
    }

    fn deliver(&self, key: FlowKey, payload: &[u8]) {
        // The look-up also marks the flow as used, so that datagrams of the server keep the flow from expiring.
        if self.flows.borrow().get(&key, Instant::now()).is_none() {
            return self.counts.count(Count::OutboundUnknown);
        }
        let is_ipv4 = key.placeholder.is_ipv4();
        let socket = self.captured.iter().find(|socket| socket.is_ipv4() == is_ipv4);
        let sent = socket.map(|socket| socket.send(payload, key.placeholder, key.client));
        match sent {
            Some(Ok(())) => {
                self.counts.count(Count::OutboundReceived);
                self.counts.count_many(Count::OutboundReceivedBytes, payload.len());
            }
            Some(Err(_)) | None => self.counts.count(Count::OutboundUnsent),
        }
    }

    /// Ends flows that are idle or whose route has changed, and connections without flows.
    pub(crate) fn sweep(&self) {
        let idle = self.flows.borrow_mut().expire(Instant::now(), FLOW_IDLE);
        self.counts.count_many(Count::OutboundIdle, idle.len());
        let has_moved = |flow: &Rc<Flow>| {
            flow.route.get().is_some_and(|route| !self.routes.still(flow.original, route))
        };
        let moved = self.flows.borrow_mut().take_if(has_moved);
        self.counts.count_many(Count::OutboundMoved, moved.len());
        idle.iter().chain(&moved).for_each(|flow| flow.end());
        self.peers.sweep();
    }

    pub(crate) fn end_unproven(&self, now: &TlsConfigs) {
        self.peers.end_unproven(now);
    }

    /// Ends all flows.
    pub(crate) fn end(&self) {
        let all = self.flows.borrow_mut().clear();
        all.iter().for_each(|flow| flow.end());
    }
}

impl Flow {
    /// Ends the flow's task, which drops its connection or socket.
    fn end(&self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

impl MeshFlow {
    async fn open(
        (peer, connection): (Rc<Peer>, Connection),
        opening: Opening,
        key: FlowKey,
    ) -> Result<Self, NotOpened> {
        let (mut sends, receives) = connection.open_bi().await?;
        let number = sends.id().index();
        // This must happen before the server can answer.
        peer.flows.borrow_mut().insert(number, key);
        let written = sends.write_all(&opening.encode()).await;
        let mut flow = Self { peer, connection, number, _sends: sends, receives };
        written.map_err(|_| NotOpened::Malformed)?;
        let mut answer = [0];
        match flow.receives.read(&mut answer).await {
            Ok(Some(1)) if answer == [ACCEPTED] => Ok(flow),
            Err(ReadError::Reset(code)) => {
                let refusal = Refusal::of(code.into_inner());
                Err(NotOpened::Refused(refusal.map_or("unknown", Refusal::reason)))
            }
            Err(ReadError::ConnectionLost(error)) => Err(error.into()),
            _ => Err(NotOpened::Malformed),
        }
    }

    /// Waits until the server's proxy ends the flow; returns the reason.
    async fn end(mut self) -> &'static str {
        match self.receives.read(&mut [0]).await {
            Err(ReadError::Reset(code)) => {
                Refusal::of(code.into_inner()).map_or("unknown", Refusal::reason)
            }
            Err(ReadError::ConnectionLost(_)) => "connection-lost",
            _ => "server",
        }
    }
}

impl Drop for MeshFlow {
    fn drop(&mut self) {
        self.peer.flows.borrow_mut().remove(&self.number);
    }
}

impl OutsidePlace {
    fn take(taken: &Rc<Cell<usize>>) -> Option<Self> {
        if taken.get() >= OUTSIDE_FLOWS {
            return None;
        }
        taken.set(taken.get().saturating_add(1));
        Some(Self(Rc::clone(taken)))
    }
}

impl Drop for OutsidePlace {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}
