//! The connections to proxies of servers, one for each address and identity. Flows share them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_tls::{HANDSHAKE_TIMEOUT, ProvenPeer, TlsConfigs};
use leno_transport::budget::{self, Charge};
use leno_types::Identity;
use quinn::{Connection, VarInt};
use tokio::sync::{OnceCell, watch};
use tokio::time::{Instant, timeout};

use crate::bounds::{CLIENT_CONNECTIONS, CONNECTION_BYTES};
use crate::counts::{Count, Counts};
use crate::outbound::FlowKey;
use crate::quic::{Endpoints, chain};

/// How long a connection without flows is kept, so that an application that sends every few seconds from a new socket
/// does not cause a handshake each time.
pub(crate) const UNUSED: Duration = Duration::from_secs(30);

/// All connections of a worker to proxies of servers.
#[derive(Debug)]
pub(crate) struct Peers {
    endpoints: Rc<Endpoints>,
    credentials: watch::Receiver<Option<Arc<TlsConfigs>>>,
    counts: Rc<Counts>,
    known: RefCell<HashMap<(SocketAddr, Identity), Rc<Peer>>>,
    /// Connections that new flows do not use any more, because there is a newer certificate.
    former: RefCell<Vec<Rc<Peer>>>,
}

/// The connection to one proxy.
#[derive(Debug)]
pub(crate) struct Peer {
    address: SocketAddr,
    identity: Identity,
    /// The credentials for the handshake.
    configs: Arc<TlsConfigs>,
    made: OnceCell<(Connection, ProvenPeer)>,
    /// The flows on the connection, by number.
    pub(crate) flows: RefCell<HashMap<u64, FlowKey>>,
    unused_since: Cell<Instant>,
    _charge: Charge,
}

/// Why a connection was not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoConnection {
    #[error("no credentials yet")]
    NoCredentials,
    #[error("{CLIENT_CONNECTIONS} proxies are connected to, or memory is short")]
    Limit,
    #[error("no answer in time")]
    Timeout,
    #[error("no handshake can begin")]
    Begin(#[from] std::io::Error),
    #[error("the handshake failed")]
    Handshake(#[from] quinn::ConnectionError),
    #[error("the server's certificate is refused")]
    Refused(#[from] leno_tls::HandshakeError),
}

impl Peers {
    pub(crate) fn new(
        endpoints: Rc<Endpoints>,
        credentials: watch::Receiver<Option<Arc<TlsConfigs>>>,
        counts: Rc<Counts>,
    ) -> Self {
        let (known, former) = (RefCell::default(), RefCell::default());
        Self { endpoints, credentials, counts, known, former }
    }

    /// The peer at an address. It may not have a connection yet.
    pub(crate) fn peer(
        &self,
        address: SocketAddr,
        identity: &Identity,
    ) -> Result<Rc<Peer>, NoConnection> {
        let configs = self.credentials.borrow().clone().ok_or(NoConnection::NoCredentials)?;
        let key = (address, identity.clone());
        let mut known = self.known.borrow_mut();
        if let Some(peer) = known.get(&key).filter(|peer| !peer.has_ended()) {
            if Arc::ptr_eq(&peer.configs, &configs) {
                return Ok(Rc::clone(peer));
            }
            self.former.borrow_mut().push(Rc::clone(peer));
        } else if known.len() >= CLIENT_CONNECTIONS || !budget::admits() {
            self.counts.count(Count::OutboundConnectLimit);
            return Err(NoConnection::Limit);
        }
        let peer = Rc::new(Peer {
            address,
            identity: identity.clone(),
            configs,
            made: OnceCell::new(),
            flows: RefCell::default(),
            unused_since: Cell::new(Instant::now()),
            _charge: Charge::new(CONNECTION_BYTES),
        });
        known.insert(key, Rc::clone(&peer));
        Ok(peer)
    }

    /// The connection of a peer; `true` for the one caller that has made the connection. If it cannot be made, the next
    /// caller tries again.
    pub(crate) async fn connection(&self, peer: &Peer) -> Result<(Connection, bool), NoConnection> {
        let is_new = Cell::new(false);
        let made = peer.made.get_or_try_init(|| async {
            let made = self.connect(peer).await;
            is_new.set(made.is_ok());
            self.counts.count(match made {
                Ok(_) => Count::OutboundConnected,
                Err(_) => Count::OutboundConnectFailed,
            });
            made
        });
        Ok((made.await?.0.clone(), is_new.get()))
    }

    async fn connect(&self, peer: &Peer) -> Result<(Connection, ProvenPeer), NoConnection> {
        let Peer { address, identity, configs, .. } = peer;
        let connecting = self.endpoints.connect(*address, identity.clone(), configs)?;
        let connection = timeout(HANDSHAKE_TIMEOUT, connecting);
        let connection = connection.await.map_err(|_| NoConnection::Timeout)??;
        let now = self.credentials.borrow().clone().ok_or(NoConnection::NoCredentials)?;
        let proven = now.datagram_peer_as(&chain(connection.peer_identity()), identity);
        match proven {
            Ok(proven) => Ok((connection, proven)),
            Err(error) => {
                connection.close(VarInt::from_u32(0), b"");
                Err(error.into())
            }
        }
    }

    /// Ends the connections whose servers' certificates have expired or were revoked.
    pub(crate) fn end_unproven(&self, now: &TlsConfigs) {
        for peer in self.known.borrow().values().chain(&*self.former.borrow()) {
            if let Some((connection, proven)) = peer.live()
                && proven.check(now).is_err()
            {
                self.counts.count(Count::OutboundUnproven);
                connection.close(VarInt::from_u32(0), b"");
            }
        }
    }

    /// Forgets connections that have ended, and closes those that no flow uses.
    pub(crate) fn sweep(&self) {
        self.known.borrow_mut().retain(|_, peer| peer.is_kept());
        self.former.borrow_mut().retain(|peer| peer.is_kept());
    }

    /// The number of connections that are open or being opened.
    pub(crate) fn open(&self) -> usize {
        let known = self.known.borrow();
        let former = self.former.borrow();
        known.values().chain(&*former).filter(|peer| !peer.has_ended()).count()
    }
}

impl Peer {
    fn live(&self) -> Option<&(Connection, ProvenPeer)> {
        self.made.get().filter(|(connection, _)| connection.close_reason().is_none())
    }

    fn has_ended(&self) -> bool {
        self.made.initialized() && self.live().is_none()
    }

    /// Whether a flow is on the connection, or waits for it. A peer that is being connected must not be forgotten: its
    /// connection would be known to none of those who end connections.
    fn is_used(self: &Rc<Self>) -> bool {
        let is_waited_for = !self.made.initialized() && Rc::strong_count(self) > 1;
        is_waited_for || !self.flows.borrow().is_empty()
    }

    fn is_kept(self: &Rc<Self>) -> bool {
        let now = Instant::now();
        if self.is_used() {
            self.unused_since.set(now);
        }
        let is_unused = now.saturating_duration_since(self.unused_since.get()) >= UNUSED;
        if is_unused && let Some((connection, _)) = self.live() {
            connection.close(VarInt::from_u32(0), b"");
        }
        !is_unused && !self.has_ended()
    }
}
