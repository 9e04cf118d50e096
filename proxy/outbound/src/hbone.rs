//! Connections to endpoints whose proxies accept HBONE (the tunnels of Istio's ambient mesh). Each connection is an
//! HTTP/2 CONNECT, and all tunnels to one proxy share its mTLS connections.
//!
//! ```text
//!  connection ─► CONNECT 10.1.0.7:8080 ═╦═ mTLS, HTTP/2 ═► 10.1.0.7:15008, with the identity of the endpoint
//!  connection ─► CONNECT 10.1.0.7:9000 ═╝
//! ```
//!
//! A waypoint is a proxy of this kind; clients request the addresses of services from it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use leno_h2::{Code, Head, Reset, Stream, Tunnel};
use leno_pool::{MESH_IDLE, Pool, PoolError};
use leno_telemetry::{Counter, Registry};
use leno_tls::{Alpn, Channel, Connector};
use leno_transport::CONNECT_TIMEOUT;
use leno_types::{Identity, ports};
use tokio::time::{Instant, timeout};

use crate::connect::{CONNECT_FAILED, CONNECT_TIMEOUT_CAUSE, OpenError, REFUSED_BY_SERVER};
use crate::server::{Refused, STREAMS_IN_USE};

/// The cause that a proxy of the mesh reports if a policy denies a request.
const AUTHORIZATION_DENIED: &str = "authorization-denied";

/// Values of `leno-error` from a Leno proxy if discovery gave the address of another workload, or a waypoint that
/// does not serve the service yet or any longer.
const ELSEWHERE: [&[u8]; 2] = [b"hbone-not-this-workload", b"waypoint-not-of-this-service"];

/// How many proxies have their connections pooled. A connection to any other proxy ends with its last tunnel.
const MAX_PROXIES: usize = 4096;
/// How many attempts are made for one tunnel, if proxies do not process the request because they have just closed the
/// connection.
const TRIES: usize = 3;

/// Why there is no tunnel. None of the client's bytes were sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TunnelError {
    #[error("{0}")]
    Connect(Rc<OpenError>),
    #[error("the server's proxy refuses the tunnel with status {0}")]
    Status(u16),
    #[error("the proxy at that address serves neither this workload nor this service")]
    Elsewhere,
    #[error("the server's proxy refuses this one's certificate")]
    Certificate,
    #[error(transparent)]
    Reset(Reset),
    #[error("the server's proxy does not answer within {CONNECT_TIMEOUT:?}")]
    Late,
    #[error("all streams of all connections are in use")]
    Full,
    #[error("the server's proxy has closed {TRIES} connections before they were used")]
    Closed,
}

impl TunnelError {
    /// Whether the server's policies deny the tunnel.
    pub(crate) fn is_denied(&self) -> bool {
        matches!(self, Self::Status(401 | 403))
    }

    /// The cause for `leno-error` and metrics.
    pub(crate) fn cause(&self) -> &'static str {
        match self {
            Self::Connect(error) => error.cause(),
            Self::Status(401 | 403) => AUTHORIZATION_DENIED,
            Self::Certificate => REFUSED_BY_SERVER,
            Self::Status(_) | Self::Elsewhere | Self::Reset(_) | Self::Closed => CONNECT_FAILED,
            Self::Late => CONNECT_TIMEOUT_CAUSE,
            Self::Full => STREAMS_IN_USE,
        }
    }
}

impl From<PoolError<OpenError>> for TunnelError {
    fn from(error: PoolError<OpenError>) -> Self {
        match error {
            PoolError::Connect(error) => Self::Connect(error),
            PoolError::Full => Self::Full,
            PoolError::Late => Self::Late,
        }
    }
}

/// The connections to one proxy.
type Proxy = Pool<Channel, TunnelCarrier, OpenError>;

/// What is kept with each connection in a pool.
#[derive(Clone, Debug)]
struct TunnelCarrier {
    refused: Refused,
    /// The time from which no new tunnel uses the connection. The connection ends with the proxy's certificate, which
    /// expires soon after this time.
    fresh_until: Option<Instant>,
}

impl TunnelCarrier {
    fn is_outdated(&self) -> bool {
        self.fresh_until.is_some_and(|until| until <= Instant::now())
    }
}

/// One worker's connections to proxies that accept HBONE.
#[derive(Debug)]
pub(crate) struct Tunnels {
    pools: RefCell<HashMap<ProxyKey, Rc<Proxy>>>,
    tls: Rc<Connector>,
    registry: Rc<Registry>,
    limits: Rc<leno_h2::Limits>,
}

/// The address of a proxy, and the identity that it must prove.
type ProxyKey = (IpAddr, Identity);

impl Tunnels {
    pub(crate) fn new(tls: Connector, registry: Rc<Registry>, limits: &leno_h2::Limits) -> Self {
        let stall_code = Code::CONNECT_ERROR;
        let limits = Rc::new(leno_h2::Limits { stall_code, ..limits.clone() });
        Self { pools: RefCell::default(), tls: Rc::new(tls), registry, limits }
    }

    /// Opens a tunnel to `address` through the proxy at `proxy`, which must prove `identity`.
    pub(crate) async fn open(
        &self,
        address: SocketAddr,
        (proxy, identity): (IpAddr, &Identity),
    ) -> Result<Channel, TunnelError> {
        let opened = self.open_stream(address, (proxy, identity)).await;
        self.registry.count(match &opened {
            Ok(_) => Counter::OutboundTunnelOpened,
            Err(TunnelError::Status(_) | TunnelError::Elsewhere) => Counter::OutboundTunnelRefused,
            Err(_) => Counter::OutboundTunnelFailed,
        });
        Ok(Channel::carried(Tunnel::new(opened?)))
    }

    async fn open_stream(
        &self,
        address: SocketAddr,
        (proxy, identity): (IpAddr, &Identity),
    ) -> Result<Stream, TunnelError> {
        let pool = self.pool(proxy, identity);
        let mut head = Head::new();
        head.push(b":method", b"CONNECT");
        head.push(b":authority", address.to_string().as_bytes());
        let mut tries = 0_usize;
        loop {
            tries = tries.saturating_add(1);
            let lent = pool.stream(|| self.connect(proxy, identity)).await?;
            if lent.reused && lent.tag.is_outdated() {
                // The connection's tunnels continue. Each repetition retires one connection, of a limited number.
                lent.retire();
                tries = 0;
                continue;
            }
            // Meanwhile another tunnel may have taken the last stream, or the connection may have ended.
            let Ok(mut stream) = lent.client.open(&head, false) else {
                if tries < TRIES {
                    continue;
                }
                let is_open = lent.client.is_open();
                return Err(if is_open { TunnelError::Full } else { TunnelError::Closed });
            };
            match timeout(CONNECT_TIMEOUT, answer(&mut stream)).await {
                Ok(Ok((200..=299, _))) => return Ok(stream),
                Ok(Ok((_, true))) => return Err(TunnelError::Elsewhere),
                Ok(Ok((status, _))) => return Err(TunnelError::Status(status)),
                Ok(Err(_)) if lent.tag.refused.get() => return Err(TunnelError::Certificate),
                Ok(Err(reset)) if reset.unprocessed && tries < TRIES => lent.retire(),
                Ok(Err(reset)) => return Err(TunnelError::Reset(reset)),
                Err(_late) => {
                    lent.retire();
                    return Err(TunnelError::Late);
                }
            }
        }
    }

    fn pool(&self, ip: IpAddr, identity: &Identity) -> Rc<Proxy> {
        let key = (ip, identity.clone());
        let mut pools = self.pools.borrow_mut();
        if let Some(pool) = pools.get(&key) {
            return Rc::clone(pool);
        }
        if pools.len() >= MAX_PROXIES {
            pools.retain(|_, pool| is_in_use(pool));
        }
        let pool = Rc::new(Pool::new(Rc::clone(&self.limits), MESH_IDLE));
        if pools.len() < MAX_PROXIES {
            pools.insert(key, Rc::clone(&pool));
        }
        pool
    }

    /// Connects to the proxy at `ip`. The attempt continues even if the client that waits for it leaves.
    fn connect(
        &self,
        ip: IpAddr,
        identity: &Identity,
    ) -> impl Future<Output = Result<(Channel, TunnelCarrier), OpenError>> + use<> {
        let (tls, registry) = (Rc::clone(&self.tls), Rc::clone(&self.registry));
        let (address, identity) = (SocketAddr::new(ip, ports::HBONE), identity.clone());
        async move {
            let tcp = leno_transport::connect(address, CONNECT_TIMEOUT).await?;
            match tls.connect(tcp, &identity, &[Alpn::Hbone]).await {
                Ok(stream) => {
                    registry.count(Counter::OutboundHandshake);
                    let fresh = stream.fresh_for();
                    let fresh_until = fresh.and_then(|fresh| Instant::now().checked_add(fresh));
                    let channel = Channel::from(stream);
                    let refused = channel.refused();
                    Ok((channel, TunnelCarrier { refused, fresh_until }))
                }
                Err(error) => {
                    registry.count(Counter::OutboundHandshakeFailed);
                    Err(OpenError::Handshake(address, error))
                }
            }
        }
    }

    /// Closes connections without tunnels that have been idle for too long. To be called every few seconds.
    pub(crate) fn sweep(&self) {
        self.pools.borrow_mut().retain(|_, pool| {
            pool.sweep();
            is_in_use(pool)
        });
    }
}

/// Whether a client uses the pool, or the pool has a connection.
fn is_in_use(pool: &Rc<Proxy>) -> bool {
    Rc::strong_count(pool) > 1 || !pool.is_empty()
}

/// The status of the final response, and whether its cause is one of [`ELSEWHERE`].
async fn answer(stream: &mut Stream) -> Result<(u16, bool), Reset> {
    loop {
        let head = stream.head().await?;
        if !head.is_interim() {
            let cause = head.get(b"leno-error");
            let is_elsewhere = cause.is_some_and(|cause| ELSEWHERE.contains(&cause));
            return Ok((head.status().unwrap_or_default(), is_elsewhere));
        }
    }
}
