//! What a proxy does with connections that arrive at its workload.
//!
//! [`Inbound::serve`] takes an accepted connection, finds out whether another proxy, an unmeshed
//! client or the application's own TLS is on it, enforces the server policy, and hands requests or
//! bytes to the application. It knows nothing of listeners, threads or the outbound side.
//!
//! ```text
//! accepted ─► first bytes ─┬─ mesh TLS ─► identity ─┬─ leno-h2 ─► requests ─┐
//!                          │                        └─ leno-tcp ─► bytes ────┼─► application
//!                          └─ anything else ─► strict: reset                 │
//!                                              permissive: HTTP or bytes ────┘
//!
//! A port that is declared to carry HTTP is served as HTTP whatever its clients say, so that what
//! requests are held to cannot be passed by.
//! ```
//!
//! Read first: [`Inbound`], then `accept` (who is there) and `application` (where it listens).

mod accept;
mod application;
mod http;
mod limit;
mod opaque;
mod race;

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use leno_discovery::Directory;
use leno_http::{Io, Limits, Tasks, Version};
use leno_telemetry::{Counter, Direction, Edge, EdgeLabels, Registry};
use leno_tls::{Acceptor, MeshStream};
use leno_transport::{
    Activity, Admitted, ClientAddress, Refusal, Shown, Stream, original_destination,
};
use leno_types::mesh::{ServerPolicy, declared};
use leno_types::{Identity, InstanceName, MtlsMode, OrigDst, Protocol, canonical};
use tokio::net::TcpStream;
use tokio::sync::watch;

use accept::Accepted;
use application::{Application, Server};
use limit::{Key, RateLimits};
use opaque::Tls;

/// Most pools of connections to the application that are kept apart: one for each of its ports, which
/// are a handful, and client, where it sees the client's address. Further clients have no idle
/// connections kept for them.
const MAX_SERVERS: usize = 4096;

/// The original destination and, where the application sees the client's address, the client.
type ServerKey = (SocketAddr, Option<IpAddr>);

/// What the inbound side of one worker is made of.
#[derive(Debug)]
pub struct Parts {
    /// The workload that is served.
    pub workload: InstanceName,
    /// Who clients are, by their address.
    pub directory: Directory,
    /// What to enforce; while there is none, [`MtlsMode::Strict`].
    pub policy: watch::Receiver<Option<Arc<ServerPolicy>>>,
    /// mTLS with other proxies; without it nothing is terminated.
    pub tls: Acceptor,
    /// This worker's counts.
    pub registry: Rc<Registry>,
    /// This worker's connections in progress.
    pub activity: Rc<Activity>,
    /// Bounds of the HTTP engine.
    pub limits: Limits,
    /// Where the application is, whatever the original destination.
    pub application: Option<SocketAddr>,
    /// How many workers share what the policy allows.
    pub workers: u16,
}

/// The inbound side of one worker.
#[derive(Debug)]
pub struct Inbound {
    shared: Rc<Shared>,
    /// What the application sees of its clients.
    client_address: Rc<ClientAddress>,
    servers: RefCell<HashMap<ServerKey, Rc<Server>>>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) parts: Parts,
    pub(crate) h2_limits: Rc<leno_h2::Limits>,
    /// Those that serve requests of HTTP/2 clients.
    pub(crate) tasks: Rc<Tasks<http::Job>>,
    /// How many requests the policy allows.
    limits: RefCell<Rc<RateLimits>>,
    /// Tells when the policy has changed.
    limited: RefCell<watch::Receiver<Option<Arc<ServerPolicy>>>>,
}

/// Who is on a connection, and for what.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) identity: Option<Identity>,
    pub(crate) address: SocketAddr,
}

impl Inbound {
    /// The inbound side, ready to serve.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let limits = RefCell::new(Rc::new(RateLimits::none()));
        let mut limited = parts.policy.clone();
        limited.mark_changed();
        let (h2_limits, tasks) = (Rc::default(), Tasks::new());
        let limited = RefCell::new(limited);
        let shared = Rc::new(Shared { parts, h2_limits, tasks, limits, limited });
        Self { shared, client_address: Rc::default(), servers: RefCell::default() }
    }

    /// Serves one accepted connection to its end, as far as it is `admitted` once the client has
    /// shown who it is. `listener` is the address it was accepted on.
    pub async fn serve(
        &self,
        mut stream: TcpStream,
        (address, listener): (SocketAddr, SocketAddr),
        admitted: Admitted,
    ) {
        let parts = &self.shared.parts;
        let destination = match self.destination(&stream, listener) {
            Ok(destination) => destination,
            Err(error) => {
                parts.registry.count(Counter::InboundDestinationMissing);
                tracing::warn!(%error, "no original destination: is the workload captured?");
                stream.abort();
                return;
            }
        };
        let (mtls, declared) = self.shared.policy_for(destination.port());
        let client = Client { identity: None, address: canonical(address) };
        let application = self.application(destination, client.address);
        let from = client.address.ip();
        let accepted = accept::accept(&self.shared, &application, stream, from, (mtls, declared));
        let Some(accepted) = accepted.await else { return };
        if let Err(refusal) = admit(&admitted, &accepted, mtls) {
            self.shared.refuse(&client, refusal);
            return accepted.abort();
        }
        match accepted {
            Accepted::Mesh { stream, identity, protocol } => {
                let client = Client { identity, ..client };
                self.of_mesh(&client, &application, stream, (protocol, declared)).await;
            }
            Accepted::Http { stream, first, version } => {
                let edge = self.shared.edge(&client);
                let key = Key::new(&client, application.dialled().port());
                let client = (stream, &first[..]);
                self.requests((&edge, key, false), &application, client, version).await;
            }
            Accepted::Opaque { stream, server, tls } => {
                let edge = self.shared.edge(&client);
                opaque::serve(&self.shared, &application, &edge, stream, (server, tls)).await;
            }
            Accepted::Unreachable { mut stream, error } => {
                let edge = self.shared.edge(&client);
                opaque::unreachable(&self.shared, &edge, &error, application.dialled());
                stream.abort();
            }
        }
    }

    /// Serves another proxy, by what it says is inside; of a port of HTTP by what is.
    async fn of_mesh(
        &self,
        client: &Client,
        application: &Rc<Application>,
        mut stream: MeshStream,
        (protocol, declared): (Protocol, Protocol),
    ) {
        let edge = self.shared.edge(client);
        let is_mesh = client.identity.is_some();
        let key = Key::new(client, application.dialled().port());
        let version = match (protocol, declared) {
            (Protocol::Http2, _) => Version::Http2,
            (Protocol::Http1, _) => Version::Http11,
            (_, Protocol::Http1 | Protocol::Http2) => {
                let version =
                    if declared == Protocol::Http1 { Version::Http11 } else { Version::Http2 };
                let mut first = Vec::new();
                let limits = &self.shared.parts.limits;
                // What is said to be bytes is no mesh's HTTP: no header of the mesh is believed.
                match leno_http::opening(&mut stream, &mut first, version, limits).await {
                    Ok(Some(version)) => {
                        let client = (stream, &first[..]);
                        self.requests((&edge, key, false), application, client, version).await;
                    }
                    Ok(None) => {}
                    Err(error) => {
                        tracing::debug!(%error, "a client broke off");
                        stream.abort();
                    }
                }
                return;
            }
            _ => {
                let server = (None, Tls::default());
                return opaque::serve(&self.shared, application, &edge, stream, server).await;
            }
        };
        self.requests((&edge, key, is_mesh), application, (stream, &[]), version).await;
    }

    /// Serves the requests of a client, of which `first` was read already.
    async fn requests<S: Io>(
        &self,
        (edge, key, is_mesh): (&Rc<Edge>, Key, bool),
        application: &Rc<Application>,
        (stream, first): (S, &[u8]),
        version: Version,
    ) {
        if version == Version::Http2 {
            let counted = (edge, Rc::new(key));
            http::serve_http2(&self.shared, application, counted, (stream, first), is_mesh).await;
        } else {
            let counted = (&**edge, &key);
            http::serve_http1(&self.shared, application, counted, stream, first).await;
        }
    }

    /// Closes idle connections that are too old. To be called every few seconds.
    pub fn sweep(&self) {
        self.shared.tasks.sweep();
        self.shared.limits().sweep();
        let mut servers = self.servers.borrow_mut();
        servers.retain(|_, server| {
            server.pool.sweep();
            server.clients.sweep();
            let idle = server.pool.is_empty() && server.clients.is_empty();
            Rc::strong_count(server) > 1 || !idle
        });
    }

    fn destination(&self, stream: &TcpStream, listener: SocketAddr) -> std::io::Result<SocketAddr> {
        match self.shared.parts.application {
            Some(application) => Ok(application),
            None => original_destination(stream, listener.port())
                .map(|OrigDst(original)| canonical(original)),
        }
    }

    /// The application as `client` reaches it.
    fn application(&self, destination: SocketAddr, client: SocketAddr) -> Rc<Application> {
        if self.shared.parts.application.is_some() {
            return Rc::new(Application::new(None, self.server(destination, None)));
        }
        // A connection that shows the application one client carries no requests of another.
        let apart = (self.client_address.shown() == Shown::Client).then(|| client.ip());
        let source = Some((client, Rc::clone(&self.client_address)));
        Rc::new(Application::new(source, self.server(destination, apart)))
    }

    fn server(&self, destination: SocketAddr, client: Option<IpAddr>) -> Rc<Server> {
        let on_loopback = self.shared.is_named(destination.port());
        let mut servers = self.servers.borrow_mut();
        if let Some(known) = servers.get(&(destination, client))
            && known.on_loopback() == on_loopback
        {
            return Rc::clone(known);
        }
        if servers.len() >= MAX_SERVERS {
            servers.retain(|_, server| Rc::strong_count(server) > 1);
        }
        let server = Rc::new(Server::new(destination, on_loopback, &self.shared.h2_limits));
        if servers.len() < MAX_SERVERS {
            // One with other rights goes with its connections.
            servers.insert((destination, client), Rc::clone(&server));
        }
        server
    }
}

/// Under `disabled` no client can prove an identity, so none needs to.
fn admit(admitted: &Admitted, accepted: &Accepted, mtls: MtlsMode) -> Result<(), Refusal> {
    match accepted {
        Accepted::Mesh { identity: Some(_), .. } => admitted.prove(),
        _ if mtls == MtlsMode::Disabled => admitted.prove(),
        _ => admitted.serve_unproven(),
    }
}

impl Shared {
    /// Counts a client that finds no place.
    fn refuse(&self, client: &Client, refusal: Refusal) {
        self.parts.registry.count(match refusal {
            Refusal::Limit => Counter::InboundConnectionLimit,
            Refusal::Unproven => Counter::InboundUnprovenLimit,
            Refusal::Source => Counter::InboundSourceLimit,
        });
        tracing::debug!(client = %client.address, ?refusal, "a connection is refused");
    }

    /// Whether plaintext is served on `port`, and what it carries as far as that is known.
    ///
    /// Where requests are limited, a port carries HTTP unless something else is declared. Servers take
    /// for requests what no detection does (a line end or a space first, two spaces, a method in
    /// lower case); relayed as bytes, such a request would pass the limit.
    fn policy_for(&self, port: u16) -> (MtlsMode, Protocol) {
        let policy = self.parts.policy.borrow();
        let Some(policy) = &*policy else { return (MtlsMode::Strict, Protocol::Detect) };
        let is_limited =
            || policy.limits.iter().any(|limit| limit.port.is_none_or(|of| of == port));
        let protocol = match declared(&policy.ports, port) {
            Protocol::Detect if is_limited() => Protocol::Http1,
            declared => declared,
        };
        (policy.mtls, protocol)
    }

    /// How many requests the policy allows now. Costs one comparison while nothing changes.
    pub(crate) fn limits(&self) -> Rc<RateLimits> {
        let mut limited = self.limited.borrow_mut();
        if limited.has_changed().unwrap_or(false) {
            let now = limited.borrow_and_update();
            let said = now.as_ref().map_or(&[][..], |policy| &*policy.limits);
            let known = Rc::clone(&self.limits.borrow());
            if !known.is_of(said) {
                let new = {
                    let leases = self.parts.directory.leases();
                    RateLimits::new(said, &known, (self.parts.workers, leases))
                };
                self.limits.replace(Rc::new(new));
            }
        }
        Rc::clone(&self.limits.borrow())
    }

    /// Whether somebody names the port as one of the workload's: itself, a service, or whoever has
    /// configured where the application is. On any other port what listens on loopback only is
    /// nobody else's to reach.
    fn is_named(&self, port: u16) -> bool {
        let of_policy = |policy: &Arc<ServerPolicy>| policy.ports.iter().any(|p| p.port == port);
        self.parts.application.is_some()
            || self.parts.policy.borrow().as_ref().is_some_and(of_policy)
    }

    /// The edge from this client; the service account stands for the workload, because an
    /// identity does not tell one replica from another.
    pub(crate) fn edge(&self, client: &Client) -> Rc<Edge> {
        let workload = &self.parts.workload;
        let identity = client.identity.as_ref();
        self.parts.registry.edge(&EdgeLabels {
            direction: Direction::Inbound,
            client: identity.map_or("", Identity::service_account).into(),
            client_namespace: identity.map_or("", Identity::namespace).into(),
            server: Arc::clone(&workload.name),
            server_namespace: Arc::clone(&workload.namespace),
            service: "".into(),
            mtls: identity.is_some(),
        })
    }
}
