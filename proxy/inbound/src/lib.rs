//! The inbound side: what a proxy does with connections that arrive at its workload.
//!
//! [`Inbound::serve`] takes an accepted connection, determines whether it comes from another proxy, from an unmeshed
//! client or carries the application's own TLS, enforces the server policy, and forwards requests or bytes to the
//! application. It does not deal with listeners, threads or the outbound side.
//!
//! ```text
//! accepted ─► first bytes ─┬─ mesh TLS ─► identity ─┬─ leno-h1, leno-h2 ─► requests ┐
//!                          │                        └─ leno-tcp ─► bytes ───────────┼─► policies ─► application
//!                          ├─ HBONE ─► identity ─► CONNECTs ─► HTTP or bytes ───────┤
//!                          └─ anything else ─► strict: reset                        │
//!                                              permissive: HTTP or bytes ───────────┘
//! ```
//!
//! A port that is declared to carry HTTP is served as HTTP, whatever its clients send, so that they cannot bypass the
//! policies for requests.
//!
//! Read first: [`Inbound`], then `accept` (who the client is), `authorize` (what the client may do), `external`
//! (external authorizers), `standing` (ends what is no longer permitted) and `application` (where the application
//! listens).

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod accept;
mod addresses;
mod application;
mod authorize;
mod bearer;
pub mod calls;
mod datagrams;
mod external;
mod hbone;
mod http;
mod limit;
mod opaque;
mod own_tls;
mod peer;
mod probe;
mod race;
mod servers;
mod standing;
mod waypoint;

use std::cell::{Cell, OnceCell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use leno_discovery::Directory;
use leno_http::{Handlers, Limits, Tasks};
use leno_program::Shares;
use leno_telemetry::{Counter, Direction, EdgeLabels, Registry};
use leno_tls::{Acceptor, ShownCertificate, TlsStream};
use leno_transport::{
    Activity, Admitted, ClientAddress, Io, OwnTls, Passage, Peeked, Refusal, Shown, Verdict, Waits,
    original_destination, spawn_contained,
};
use leno_types::authorization::Authorization;
use leno_types::mesh::{PortProtocol, ServerPolicy, declared};
use leno_types::{Identity, InstanceName, MtlsMode, OrigDst, Protocol, canonical, ports};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};

use accept::{Accepted, Plain, PortRules};
use addresses::ANSWER_TIMEOUT;
use application::{Application, Server};
use authorize::{Access, LogBudget, Policies};
use hbone::Tunnels;
use limit::{Key, RateLimits};
use peer::{Instance, Peer};
use servers::Servers;
use waypoint::Waypoint;

pub use datagrams::{DatagramFlow, DatagramPermit, DatagramRefusal};
pub use external::{MeshPort, MeshServices, NoServices};
pub use limit::LimitTable;
pub use probe::{ProbeAnswers, ProbeMatch};

/// The reason for denying all clients before the first policy.
const NO_POLICY: &str = "no policy has been received yet";

/// The parts of one worker's inbound side.
#[derive(Debug)]
pub struct Parts {
    /// The workload that is served.
    pub workload: InstanceName,
    /// Looks up clients by their address.
    pub directory: Directory,
    /// Connects to external authorizers.
    pub services: Rc<dyn MeshServices>,
    /// The policy to enforce; before the first one arrives, [`MtlsMode::Strict`].
    pub policy: watch::Receiver<Option<Arc<ServerPolicy>>>,
    /// Terminates mTLS of other proxies.
    pub tls: Acceptor,
    /// This worker's counts.
    pub registry: Rc<Registry>,
    /// This worker's connections in progress.
    pub activity: Rc<Activity>,
    /// The limits of the HTTP engine.
    pub limits: Limits,
    /// The application's address, which replaces original destinations.
    pub application: Option<SocketAddr>,
    /// The counts of rate limits that the workers of this proxy share.
    pub limit_table: LimitTable,
    /// How many HBONE tunnels may be open at a time. Each may have a connection to the application.
    pub max_tunnels: usize,
    /// Ports of the proxy itself, beside the usual ones. Tunnels to these are refused.
    pub own_ports: Vec<u16>,
}

/// The inbound side of one worker.
#[derive(Debug)]
pub struct Inbound {
    shared: Rc<Worker>,
    applications: Applications,
}

/// Finds the application behind each of the workload's ports.
#[derive(Clone, Debug)]
pub(crate) struct Applications {
    shared: Rc<Worker>,
    /// Connects to the application, if possible so that the application sees the client's address.
    client_address: Rc<ClientAddress>,
    servers: Rc<Servers>,
}

/// The state that all connections of the worker share.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) parts: Parts,
    pub(crate) h2_limits: Rc<leno_h2::Limits>,
    /// The tasks that serve requests of HTTP/2 clients.
    pub(crate) tasks: Rc<Tasks<http::Job>>,
    /// Serves requests of HTTP/1 clients without a proxy.
    plain: http::Http1Handlers<TcpStream>,
    /// Serves HTTP/1 requests of other proxies.
    meshed: http::Http1Handlers<TlsStream>,
    /// Serves HTTP/1 requests inside HBONE tunnels.
    tunnelled: http::Http1Handlers<leno_h2::Tunnel>,
    /// The limits of HBONE connections.
    pub(crate) hbone_limits: Rc<leno_h2::Limits>,
    /// Bounds the open tunnels of HBONE, in all and for each identity.
    pub(crate) tunnels: Shares<Identity>,
    /// The rate limits of the policy.
    limits: RefCell<Rc<RateLimits>>,
    /// Receives changes of the policy, for the rate limits.
    limited: RefCell<watch::Receiver<Option<Arc<ServerPolicy>>>>,
    /// Which clients and requests the policy permits.
    policies: RefCell<Rc<Policies>>,
    /// Receives changes of the policy, for authorization.
    authorized: RefCell<watch::Receiver<Option<Arc<ServerPolicy>>>>,
    /// Wakes requests and relays in progress when the policies have changed.
    pub(crate) changes: Rc<Notify>,
    /// Whether [`Worker::decide_again`] has scheduled another decision.
    again: Rc<Cell<bool>>,
    /// Bounds how many denied and audited requests are logged.
    pub(crate) log: LogBudget,
    /// The number of requests that now wait for the answer of an authorizer.
    pub(crate) asked: Cell<usize>,
    /// Bounds how many request bodies are being read for authorizers, in all and for each client address.
    pub(crate) held: Shares<IpAddr>,
    /// Answers a kubelet that connects to the workload itself.
    pub(crate) probes: OnceCell<Rc<dyn ProbeAnswers>>,
    /// The services of which this proxy is the waypoint. Not set if it is no waypoint.
    pub(crate) waypoint: OnceCell<Waypoint>,
    /// Set if this inbound side serves one service for a waypoint: opens connections to the proxy's own outbound
    /// side, which connects to the service.
    passage: OnceCell<Rc<Passage>>,
}

/// The keys by which the requests of a connection are counted, and the policies as evaluated for its client.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) key: Key,
    pub(crate) access: Access,
}

impl Caller {
    fn new(client: &Client, access: Access) -> Self {
        Self { key: Key::new(client, access.port()), access }
    }
}

/// How a connection is served to its end, once its protocol is known.
enum Serving<'a> {
    /// HTTP/1 from a client without a proxy.
    Plain(Rc<Application>, Rc<Peer>, Rc<Caller>, Peeked<TcpStream>),
    /// Anything else.
    Boxed(Pin<Box<dyn Future<Output = ()> + 'a>>),
}

/// The client of a connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) identity: Option<Identity>,
    /// The certificate that proves the identity.
    pub(crate) certificate: Option<ShownCertificate>,
    pub(crate) address: SocketAddr,
    pub(crate) instance: Instance,
}

impl Inbound {
    /// The inbound side, ready to serve.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let limits = RefCell::new(Rc::new(RateLimits::none()));
        let mut limited = parts.policy.clone();
        limited.mark_changed();
        let (h2_limits, tasks) = (Rc::default(), Tasks::new());
        let authorized = RefCell::new(limited.clone());
        let limited = RefCell::new(limited);
        let denying = Arc::new(Authorization::unusable(NO_POLICY));
        let uses = (&*parts.services, &*parts.registry, &parts.directory);
        let policies = Policies::new(denying, &parts.workload.namespace, uses);
        let policies = RefCell::new(Rc::new(policies));
        let tunnels = hbone::tunnels(parts.max_tunnels);
        let shared = Worker {
            parts,
            h2_limits,
            tasks,
            plain: Handlers::new(http::serve_request),
            meshed: Handlers::new(http::serve_request),
            tunnelled: Handlers::new(http::serve_request),
            hbone_limits: hbone::limits(),
            tunnels,
            limits,
            limited,
            policies,
            authorized,
            changes: Rc::default(),
            again: Rc::default(),
            log: LogBudget::default(),
            asked: Cell::new(0),
            held: external::held(),
            probes: OnceCell::new(),
            waypoint: OnceCell::new(),
            passage: OnceCell::new(),
        };
        let shared = Rc::new(shared);
        let (client_address, servers) = (Rc::default(), Rc::default());
        let applications = Applications { shared: Rc::clone(&shared), client_address, servers };
        Self { shared, applications }
    }

    /// Answers probes of a kubelet that connects to the workload itself. Must be called before the first connection.
    pub fn answer_probes(&self, answers: Rc<dyn ProbeAnswers>) {
        // If it was called before, the first answers are kept.
        let _set = self.shared.probes.set(answers);
    }

    /// Makes this inbound side that of a waypoint: it serves the HBONE clients of the waypoint's services, and
    /// reaches these services through the proxy's own outbound side, to which `passage` connects. Must be called
    /// before the first connection.
    pub fn serve_services(&self, passage: Rc<Passage>) {
        // If it was called before, the first passage is kept.
        let _set = self.shared.waypoint.set(Waypoint::new(passage));
    }

    /// Serves one accepted connection to its end. `ends` are the client's address and the address at which the
    /// connection was accepted. `admitted` decides, once the client is known, whether there is room for it.
    ///
    /// Most connections are idle, so this future only has space for an idle HTTP/1 client without a proxy. Everything
    /// else is boxed.
    pub async fn serve(
        &self,
        stream: TcpStream,
        ends: (SocketAddr, SocketAddr),
        admitted: Admitted,
    ) {
        let begun = Box::pin(self.begin(stream, ends, &admitted)).await;
        match begun {
            None => {}
            Some(Serving::Plain(application, edge, caller, client)) => {
                let handlers = (&self.shared, &self.shared.plain);
                let counted = (&edge, caller);
                http::serve_http1(handlers, &application, counted, client, false).await;
            }
            Some(Serving::Boxed(served)) => served.await,
        }
    }

    /// Determines who the client is and what it sends. `None`: the connection has ended.
    async fn begin(
        &self,
        mut stream: TcpStream,
        (address, listener): (SocketAddr, SocketAddr),
        admitted: &Admitted,
    ) -> Option<Serving<'_>> {
        let parts = &self.shared.parts;
        let destination = match self.destination(&stream, listener) {
            Ok(destination) => destination,
            Err(error) => {
                parts.registry.count(Counter::InboundDestinationMissing);
                tracing::warn!(%error, "no original destination: check that the workload is \
                                        captured (leno diagnostics capture)");
                stream.reset_on_drop();
                return None;
            }
        };
        let mut rules = self.shared.rules_for(destination.port());
        let is_alone = self.is_of_waypoint_alone(listener);
        if is_alone {
            // A waypoint has no application, so it serves no clients without a proxy.
            rules.mtls = MtlsMode::Strict;
        }
        let address = canonical(address);
        let instance = Instance::of(parts.registry.logs(), &parts.directory, address.ip());
        let client = Client { identity: None, certificate: None, address, instance };
        let application = self.applications.at(destination, client.address);
        let access = Access::new(&client, application.dialled().port());
        let accepted = accept::accept(&self.shared, &application, stream, &access, rules).await?;
        if let Err(refusal) = admit(admitted, &accepted, rules.mtls) {
            self.shared.refuse(&client, refusal);
            accepted.reset();
            return None;
        }
        if is_alone && !matches!(accepted, Accepted::Hbone { .. }) {
            parts.registry.count(Counter::InboundTunnelRefused);
            tracing::info!(client = %client.address, "refused: a waypoint serves only clients that use HBONE");
            accepted.reset();
            return None;
        }
        match accepted {
            Accepted::Mesh { stream, identity, protocol } => {
                let certificate = stream.certificate();
                let client = Client { identity, certificate, ..client };
                self.of_mesh(&client, application, stream, (protocol, rules.declared)).await
            }
            Accepted::Hbone { stream, identity } => {
                let certificate = stream.certificate();
                let client = Client { identity: Some(identity.clone()), certificate, ..client };
                let own = application.dialled().ip();
                let tunnels = Tunnels::new(self.applications.clone(), (client, identity), own);
                Some(Serving::Boxed(Box::pin(tunnels.serve(stream))))
            }
            Accepted::Plain(Plain::Http { client: stream, protocol }) => {
                let edge = self.shared.edge(&client);
                let caller = Rc::new(Caller::new(&client, access));
                Some(match protocol {
                    Protocol::Http2 => self.http2((edge, caller, false), application, stream),
                    _ => Serving::Plain(application, edge, caller, stream),
                })
            }
            Accepted::Plain(Plain::Opaque { client: stream, server, tls }) => {
                let edge = self.shared.edge(&client);
                Some(self.opaque((edge, access), application, stream, (server, tls)))
            }
            Accepted::Plain(Plain::Unreachable { client: stream, error }) => {
                let edge = self.shared.edge(&client);
                opaque::unreachable(&self.shared, &edge, &error, application.dialled());
                stream.reset();
                None
            }
        }
    }

    /// Serves another proxy, by the protocol that was negotiated. If bytes were negotiated on a port declared as HTTP,
    /// the version is detected.
    async fn of_mesh(
        &self,
        client: &Client,
        application: Rc<Application>,
        stream: TlsStream,
        (protocol, declared): (Protocol, Protocol),
    ) -> Option<Serving<'_>> {
        let edge = self.shared.edge(client);
        let mut is_mesh = client.identity.is_some();
        let access = Access::new(client, application.dialled().port()).at_port_of(declared);
        let caller = Caller::new(client, access);
        let mut stream = Peeked::from(stream);
        let detected = match (protocol, declared) {
            (Protocol::Opaque, Protocol::Http1 | Protocol::Http2) => {
                // Mesh headers are not trusted in requests that were sent as bytes.
                is_mesh = false;
                let limits = &self.shared.parts.limits;
                let waits = Waits::declared_http(limits.idle, limits.head);
                match stream.detect(declared, &waits).await {
                    Ok(Verdict::Http1) => Ok(Protocol::Http1),
                    Ok(Verdict::Http2) => Ok(Protocol::Http2),
                    // The client has left, or was silent.
                    Ok(_) => return None,
                    Err(error) => Err(error),
                }
            }
            (Protocol::Opaque, _) => match self.own_tls(&mut stream, &application).await {
                Ok(tls) => {
                    let peer = (edge, caller.access);
                    return Some(self.opaque(peer, application, stream, (None, tls)));
                }
                Err(error) => Err(error),
            },
            (protocol, _) => Ok(protocol),
        };
        let caller = Rc::new(caller);
        match detected {
            Ok(Protocol::Http2) => Some(self.http2((edge, caller, is_mesh), application, stream)),
            Ok(_) => Some(Serving::Boxed(Box::pin(async move {
                let handlers = (&self.shared, &self.shared.meshed);
                let counted = (&edge, caller);
                http::serve_http1(handlers, &application, counted, stream, is_mesh).await;
            }))),
            Err(error) => {
                tracing::debug!(%error, "a client's connection broke");
                stream.reset();
                None
            }
        }
    }

    /// Serves HTTP/2 requests. `is_mesh` says that the client is another proxy.
    fn http2<S: Io + 'static>(
        &self,
        (edge, caller, is_mesh): (Rc<Peer>, Rc<Caller>, bool),
        application: Rc<Application>,
        client: Peeked<S>,
    ) -> Serving<'_> {
        Serving::Boxed(Box::pin(async move {
            let counted = (&edge, caller);
            http::serve_http2(&self.shared, &application, counted, client, is_mesh).await;
        }))
    }

    /// Relays bytes between a client whose protocol is not HTTP and the application. `known` is the connection to the
    /// application, if there is one already, and what is known about the client's own TLS with the application, if a
    /// policy depends on that.
    fn opaque<S: Io + 'static>(
        &self,
        (edge, access): (Rc<Peer>, Access),
        application: Rc<Application>,
        client: Peeked<S>,
        known: (Option<Peeked<TcpStream>>, Option<OwnTls>),
    ) -> Serving<'_> {
        Serving::Boxed(Box::pin(async move {
            let peer = (&*edge, &access);
            opaque::serve(&self.shared, &application, peer, client, known).await;
        }))
    }

    /// Determines whether a client that sends bytes begins TLS with the application. `None` if no policy depends on the
    /// server name; then nothing is read.
    async fn own_tls(
        &self,
        stream: &mut Peeked<TlsStream>,
        application: &Application,
    ) -> std::io::Result<Option<OwnTls>> {
        let port = application.dialled().port();
        if !self.shared.policies().table.reads_server_names(port) {
            return Ok(None);
        }
        let verdict = stream.detect(Protocol::Opaque, &Waits::MESHED).await?;
        Ok(Some(own_tls::own_tls(&verdict, stream.bytes())))
    }

    /// Applies a changed policy to requests and relays in progress. Must be called after each change.
    pub fn follow(&self) {
        self.shared.policies();
    }

    /// Closes idle connections that are too old. To be called every few seconds.
    pub fn sweep(&self) {
        self.shared.tasks.sweep();
        self.shared.plain.sweep();
        self.shared.meshed.sweep();
        self.shared.tunnelled.sweep();
        self.shared.limits().sweep();
        self.shared.policies().sweep();
        self.applications.servers.sweep();
        if let Some(waypoint) = self.shared.waypoint.get() {
            waypoint.sweep();
        }
    }

    /// Whether a connection was made to the listener of the waypoint itself, behind which there is no workload.
    fn is_of_waypoint_alone(&self, listener: SocketAddr) -> bool {
        self.shared.waypoint.get().is_some() && listener.port() == ports::HBONE
    }

    /// The address that the client dialled. Instead of that, the address of the application if one is configured, and
    /// the accepted address if there is no redirection because the client has connected to the waypoint itself.
    fn destination(&self, stream: &TcpStream, listener: SocketAddr) -> std::io::Result<SocketAddr> {
        match self.shared.parts.application {
            Some(application) => Ok(application),
            None if self.is_of_waypoint_alone(listener) => stream.local_addr().map(canonical),
            None => original_destination(stream, listener.port())
                .map(|OrigDst(original)| canonical(original)),
        }
    }
}

impl Applications {
    /// The application at `destination`, as `client` reaches it.
    pub(crate) fn at(&self, destination: SocketAddr, client: SocketAddr) -> Rc<Application> {
        if self.shared.parts.application.is_some() {
            return Rc::new(Application::new(None, self.server(destination, None)));
        }
        if let Some(passage) = self.shared.passage.get() {
            return Rc::new(Application::service(
                Rc::clone(passage),
                self.server(destination, None),
            ));
        }
        // If the application sees the client's address, connections to it cannot be shared by several clients.
        let apart = (self.client_address.shown() == Shown::Client).then(|| client.ip());
        let source = Some((client, Rc::clone(&self.client_address)));
        Rc::new(Application::new(source, self.server(destination, apart)))
    }

    fn server(&self, destination: SocketAddr, client: Option<IpAddr>) -> Rc<Server> {
        let elsewhere = self.shared.is_named(destination.port());
        self.servers.get((destination, client), elsewhere, &self.shared.h2_limits)
    }
}

/// Whether the client is admitted. If mTLS is disabled, no client can prove an identity, so none is required.
fn admit(admitted: &Admitted, accepted: &Accepted, mtls: MtlsMode) -> Result<(), Refusal> {
    match accepted {
        Accepted::Mesh { identity: Some(identity), .. } | Accepted::Hbone { identity, .. } => {
            admitted.prove(Some(identity))
        }
        _ if mtls == MtlsMode::Disabled => admitted.prove(None),
        _ => admitted.serve_unproven(),
    }
}

impl Worker {
    /// Whether this inbound side is the part of a waypoint that serves one service.
    pub(crate) fn is_of_service(&self) -> bool {
        self.passage.get().is_some()
    }

    /// Counts and logs a client that is refused because there is no room for its connection.
    fn refuse(&self, client: &Client, refusal: Refusal) {
        self.parts.registry.count(match refusal {
            Refusal::Limit => Counter::InboundConnectionLimit,
            Refusal::Unproven => Counter::InboundUnprovenLimit,
            Refusal::Source => Counter::InboundSourceLimit,
        });
        tracing::debug!(client = %client.address, ?refusal, "a connection is refused");
    }

    /// The rules of `port`.
    ///
    /// If requests are limited, or policies depend on them, a port counts as HTTP unless another protocol is declared.
    /// Servers accept requests that detection does not recognise: after an empty line or a space, with two spaces, or
    /// with a method in lower case. If such a request were relayed as bytes, it would bypass the limit or the policies.
    fn rules_for(&self, port: u16) -> PortRules {
        let is_authorized = self.policies().read_requests(port);
        let policy = self.parts.policy.borrow();
        let Some(policy) = &*policy else {
            let (mtls, declared) = (MtlsMode::Strict, Protocol::Detect);
            return PortRules { mtls, declared, hbone: false };
        };
        let is_limited =
            || policy.limits.iter().any(|limit| limit.port.is_none_or(|of| of == port));
        let declared = match declared(&policy.ports, port) {
            Protocol::Detect if is_authorized || is_limited() => Protocol::Http1,
            declared => declared,
        };
        let is_named = || policy.ports.iter().any(|named| named.port == port);
        // The Service of a waypoint declares the port of HBONE, too, which therefore does not make it a port of an
        // application.
        let is_hbone = port == ports::HBONE && (self.waypoint.get().is_some() || !is_named());
        PortRules { mtls: policy.mtls, declared, hbone: is_hbone }
    }

    /// The policies that decide now which clients and requests are permitted. Costs one comparison while nothing
    /// changes. Before there is a policy, no client is permitted.
    pub(crate) fn policies(&self) -> Rc<Policies> {
        let mut authorized = self.authorized.borrow_mut();
        if authorized.has_changed().unwrap_or(false) {
            let now = authorized.borrow_and_update();
            if let Some(policy) = &*now
                && !self.policies.borrow().is_of(&policy.authorization)
            {
                let of = Arc::clone(&policy.authorization);
                if let Some(reason) = &of.unusable {
                    tracing::error!(%reason, "every client is denied: the policies cannot be applied");
                }
                let uses = (&*self.parts.services, &*self.parts.registry, &self.parts.directory);
                let new = Policies::new(of, &self.parts.workload.namespace, uses);
                self.policies.replace(Rc::new(new));
                self.changes.notify_waiters();
            }
        }
        Rc::clone(&self.policies.borrow())
    }

    /// Wakes requests and relays in progress once more, after the time in which discovery must have answered about
    /// client addresses.
    pub(crate) fn decide_again(&self) {
        if self.again.replace(true) {
            return;
        }
        let (changes, again) = (Rc::clone(&self.changes), Rc::clone(&self.again));
        // This task ends after the wait.
        spawn_contained(async move {
            tokio::time::sleep(ANSWER_TIMEOUT).await;
            again.set(false);
            changes.notify_waiters();
        });
    }

    /// The rate limits of the policy now. Costs one comparison while nothing changes.
    pub(crate) fn limits(&self) -> Rc<RateLimits> {
        let mut limited = self.limited.borrow_mut();
        if limited.has_changed().unwrap_or(false) {
            let now = limited.borrow_and_update();
            let said = now.as_ref().map_or(&[][..], |policy| &*policy.limits);
            let known = Rc::clone(&self.limits.borrow());
            if !known.is_of(said) {
                let new = {
                    let leases = self.parts.directory.leases();
                    let of = (&self.parts.limit_table, &self.parts.workload);
                    RateLimits::new(said, &known, of, leases)
                };
                self.limits.replace(Rc::new(new));
            }
        }
        Rc::clone(&self.limits.borrow())
    }

    /// Whether a port is declared: by the workload, by a service, or by the configured address of the application. On
    /// any other port, clients cannot reach a program that listens only on loopback.
    fn is_named(&self, port: u16) -> bool {
        let names = |p: &PortProtocol| p.port == port && p.protocol != Protocol::Udp;
        let of_policy = |policy: &Arc<ServerPolicy>| policy.ports.iter().any(names);
        self.parts.application.is_some()
            || self.parts.policy.borrow().as_ref().is_some_and(of_policy)
    }

    /// The client's trust domain if it is not the mesh's own; else empty.
    fn other_trust_domain<'i>(&self, identity: Option<&'i Identity>) -> &'i str {
        let policy = self.parts.policy.borrow();
        let own = policy.as_ref().map(|policy| &policy.authorization.trust_domain);
        match identity.map(Identity::trust_domain) {
            Some(domain) if own.is_some_and(|own| own != domain) => domain.as_str(),
            _ => "",
        }
    }

    /// The metrics of the traffic between this client's workload and this workload (the edge). The client's service
    /// account names its workload.
    pub(crate) fn edge(&self, client: &Client) -> Rc<Peer> {
        let workload = &self.parts.workload;
        let identity = client.identity.as_ref();
        let edge = self.parts.registry.edge(&EdgeLabels {
            direction: Direction::Inbound,
            client: identity.map_or("", Identity::service_account).into(),
            client_namespace: identity.map_or("", Identity::namespace).into(),
            client_trust_domain: self.other_trust_domain(identity).into(),
            server: Arc::clone(&workload.name),
            server_namespace: Arc::clone(&workload.namespace),
            service: "".into(),
            mtls: identity.is_some(),
        });
        Rc::new(Peer::new(edge, client))
    }
}
