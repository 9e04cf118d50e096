//! What a proxy does with connections that its workload opens.
//!
//! [`Outbound::serve`] takes an accepted connection, recovers its original destination, resolves it, and either
//! proxies its requests one by one or relays its bytes. It does not deal with listeners, threads or the inbound side.
//!
//! ```text
//! accepted ─► original destination ─► Destination ─┬─ the workload itself ─► relayed to the application
//!                                                  ├─ unknown to the mesh ─► relayed in plaintext, or refused
//!                                                  ├─ no answer of discovery, or no such port ─► reset
//!                                                  └─ Backends ─┬─ HTTP ─► routes ─► an endpoint for each request
//!                                                               └─ opaque ─► routes ─► an endpoint for the connection
//! ```
//!
//! Read first: [`Outbound`], then `destination` (what is at an address) and `backends` (the endpoints behind an
//! address, with their pools).

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod backends;
#[cfg(test)]
mod causes;
mod connect;
mod datagrams;
mod destination;
mod egress;
mod external;
mod first;
mod forward;
mod greeting;
mod hbone;
mod http;
mod mirror;
mod opaque;
mod policy;
mod request;
mod routes;
mod server;
mod services;
mod streams;
mod targets;
mod tries;

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use leno_discovery::Directory;
use leno_http::{After, Conn, Handlers, Limits, Tasks};
use leno_names::Names;
use leno_telemetry::{Counter, Direction, EdgeLabels, Registry};
use leno_tls::Connector;
use leno_transport::{Activity, Io, LocalAddresses, Peeked, redirected_destination, unless_gone};
use leno_types::mesh::{Resolution, ServerPolicy, Topology};
use leno_types::{InstanceName, OrigDst, Protocol, Removal, canonical};
use tokio::net::TcpStream;
use tokio::sync::watch;

use destination::{Destination, Destinations, Route};
use egress::EgressPolicy;
use hbone::Tunnels;
use targets::Targets;

pub use datagrams::DatagramRoute;
pub use services::{ServicePort, Services};

/// The parts of one worker's outbound side.
#[derive(Debug)]
pub struct Parts {
    /// The workload that opens the connections.
    pub workload: InstanceName,
    /// Looks up addresses.
    pub directory: Directory,
    /// Opens mTLS connections to other proxies.
    pub tls: Connector,
    /// This worker's metrics.
    pub registry: Rc<Registry>,
    /// This worker's connections in progress.
    pub activity: Rc<Activity>,
    /// The limits of the HTTP engine.
    pub limits: Limits,
    /// Resolves names outside of the mesh.
    pub names: Names,
    /// The destination of all connections, if they do not go to their original destinations.
    pub fixed: Option<Fixed>,
}

/// A destination that the configuration names.
#[derive(Clone, Debug)]
pub struct Fixed {
    /// The service, as discovery resolves it.
    pub resolution: watch::Receiver<Resolution>,
    /// The port of the service.
    pub port: u16,
}

/// The outbound side of one worker.
#[derive(Debug)]
pub struct Outbound {
    destinations: Destinations,
    fixed: Option<Rc<Destination>>,
    shared: Rc<Worker>,
}

/// The limits of HTTP/2 connections. From the beginning a connection to a server may have as many streams as other
/// proxies allow, because the server's settings arrive only after the first requests were sent.
fn http2_limits() -> leno_h2::Limits {
    let limits = leno_h2::Limits::default();
    leno_h2::Limits { opened_streams: limits.concurrent_streams, ..limits }
}

/// The state that all connections of the worker share.
#[derive(Debug)]
pub(crate) struct Worker {
    /// The name of the workload that opens the connections.
    pub(crate) client: Arc<str>,
    /// Decides whether connections to addresses outside of the mesh are allowed.
    pub(crate) egress: EgressPolicy,
    pub(crate) client_namespace: Arc<str>,
    pub(crate) tls: Connector,
    pub(crate) names: Names,
    pub(crate) registry: Rc<Registry>,
    pub(crate) activity: Rc<Activity>,
    pub(crate) limits: Limits,
    /// The limits for gRPC, without an own limit for the beginning of a response: a server that pushes messages may
    /// be silent for hours, and servers send a head only with the first message.
    pub(crate) grpc_limits: Limits,
    pub(crate) h2_limits: Rc<leno_h2::Limits>,
    /// The limits for connections to other proxies.
    pub(crate) mesh_limits: Rc<leno_h2::Limits>,
    /// Tunnels to proxies that accept HBONE.
    pub(crate) tunnels: Tunnels,
    /// The addresses of this workload itself.
    pub(crate) local: LocalAddresses,
    /// The tasks that serve requests of HTTP/2 clients.
    pub(crate) tasks: Rc<Tasks<http::Job>>,
    /// The futures that serve requests of HTTP/1 clients.
    pub(crate) handlers: Handlers<http::Begun, (Box<Conn<TcpStream>>, After)>,
    /// The services to which routes send requests.
    pub(crate) targets: Targets,
    random: Cell<u64>,
    /// The number of mirrored copies of requests that are in progress.
    pub(crate) mirrors: Cell<usize>,
    /// The name of the workload that sends the requests, which is hashed to choose endpoints.
    pub(crate) source: String,
    /// The node and zone of the workload, as far as they are known.
    pub(crate) place: RefCell<Topology>,
    /// Whether the mesh is being removed. All connections are then plaintext, even to endpoints that discovery still
    /// marks as meshed.
    pub(crate) is_leaving: Cell<bool>,
    /// How often `place` or `is_leaving` has changed.
    pub(crate) moved: Cell<u64>,
    /// The address on which the last connection was accepted, to recognise connections of the proxy to itself.
    pub(crate) listener: Cell<Option<SocketAddr>>,
}

impl Worker {
    /// 64 random bits (splitmix64), for shares of traffic and not for secrets.
    pub(crate) fn random(&self) -> u64 {
        let next = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(next);
        let mixed = (next ^ (next >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Whether this proxy's outbound side would accept a connection to an address of this machine.
    pub(crate) fn is_listener(&self, address: SocketAddr) -> bool {
        self.listener.get().is_some_and(|listener| {
            let any = listener.ip().is_unspecified();
            listener.port() == address.port() && (any || listener.ip() == address.ip())
        })
    }

    /// The labels of connections to servers outside of the mesh.
    pub(crate) fn outside(&self) -> EdgeLabels {
        EdgeLabels {
            direction: Direction::Outbound,
            client: Arc::clone(&self.client),
            client_namespace: Arc::clone(&self.client_namespace),
            client_trust_domain: "".into(),
            server: "".into(),
            server_namespace: "".into(),
            service: "".into(),
            mtls: false,
        }
    }
}

impl Outbound {
    /// The outbound side, ready to serve.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let source = format!("{}/{}", parts.workload.namespace, parts.workload.name);
        let mesh_limits = Rc::new(leno_h2::Limits { ping: true, ..http2_limits() });
        let tunnels = Tunnels::new(parts.tls.clone(), Rc::clone(&parts.registry), &mesh_limits);
        let shared = Rc::new(Worker {
            client: parts.workload.name,
            egress: EgressPolicy::new(parts.directory.server_policy()),
            client_namespace: parts.workload.namespace,
            tls: parts.tls,
            names: parts.names,
            registry: parts.registry,
            activity: parts.activity,
            grpc_limits: Limits { response_wait: parts.limits.stall, ..parts.limits.clone() },
            limits: parts.limits,
            h2_limits: Rc::new(http2_limits()),
            mesh_limits,
            tunnels,
            local: LocalAddresses::new(),
            tasks: Tasks::new(),
            handlers: Handlers::new(http::serve_request),
            targets: Targets::new(parts.directory.clone()),
            random: Cell::new(RandomState::new().hash_one(0)),
            mirrors: Cell::new(0),
            source,
            place: RefCell::default(),
            is_leaving: Cell::new(false),
            listener: Cell::new(None),
            moved: Cell::new(0),
        });
        let fixed = parts.fixed.map(|Fixed { resolution, port }| {
            let original = SocketAddr::from(([0, 0, 0, 0], port));
            Rc::new(Destination::new(original, resolution, Rc::clone(&shared)))
        });
        let destinations = Destinations::new(parts.directory, Rc::clone(&shared));
        Self { destinations, fixed, shared }
    }

    /// The services, to which the proxy itself sends requests.
    #[must_use]
    pub fn services(&self) -> Services {
        Services::new(&self.shared)
    }

    /// Applies the control plane's settings for the workload as a client: its location, for services that prefer near
    /// endpoints, and the stage of the mesh's removal. From [`Removal::Plaintext`] on, all its connections are
    /// plaintext, even before discovery reports that the endpoints are no longer meshed.
    pub fn follow(&self, policy: &ServerPolicy) {
        let is_leaving = policy.removal >= Removal::Plaintext;
        let has_moved = *self.shared.place.borrow() != policy.place;
        if has_moved || self.shared.is_leaving.get() != is_leaving {
            self.shared.place.replace(policy.place.clone());
            self.shared.is_leaving.set(is_leaving);
            self.shared.moved.set(self.shared.moved.get().wrapping_add(1));
        }
    }

    /// Serves one accepted connection until it ends. `listener` is the address on which it was accepted.
    pub async fn serve(&self, mut stream: TcpStream, listener: SocketAddr) {
        self.shared.listener.set(Some(listener));
        let destination = match &self.fixed {
            Some(fixed) => Rc::clone(fixed),
            None => match redirected_destination(&stream, listener) {
                Ok(OrigDst(original)) => self.destinations.get(canonical(original)),
                Err(error) => {
                    self.shared.registry.count(Counter::OutboundDestinationMissing);
                    tracing::warn!(%error, "no original destination: check that the workload is \
                                            captured (leno diagnostics capture)");
                    stream.reset_on_drop();
                    return;
                }
            },
        };
        let mut client = Peeked::from(stream);
        let route = match unless_gone(destination.route(), |cx| client.poll_gone(cx)).await {
            Ok(route) => route,
            // The client left before discovery answered.
            Err(error) => {
                return opaque::left(&self.shared, destination.original(), client, &error);
            }
        };
        self.serve_by(route, &destination, client).await;
    }

    /// Serves a connection that this proxy has opened for a client of a service whose waypoint it is.
    pub async fn serve_waypoint(&self, stream: TcpStream, service: SocketAddr) {
        let destination = self.destinations.get(canonical(service));
        let mut client = Peeked::from(stream);
        match unless_gone(destination.route(), |cx| client.poll_gone(cx)).await {
            Ok(route @ Route::Backends(_)) if destination.is_of_waypoint() => {
                self.serve_by(route, &destination, client).await;
            }
            Ok(_) => {
                tracing::info!(%service, "refused: this proxy is not, or no longer, the waypoint \
                                          of the service");
                client.reset();
            }
            Err(error) => opaque::left(&self.shared, destination.original(), client, &error),
        }
    }

    /// Serves a connection according to its route. HTTP connections are mostly idle, so the other cases, which need
    /// more memory, are boxed.
    async fn serve_by(&self, route: Route, to: &Rc<Destination>, client: Peeked<TcpStream>) {
        match route {
            Route::Direct if self.shared.egress.allows(to.original()) => {
                Box::pin(opaque::direct(&self.shared, to.original(), client)).await;
            }
            Route::Direct => Box::pin(egress::refuse(&self.shared, to, client)).await,
            Route::Own => Box::pin(opaque::own(&self.shared, to.original(), client)).await,
            // If requests have no routes, the routes for connections apply, whatever the port carries.
            Route::Backends(backends)
                if backends.streams().is_some()
                    && (backends.protocol() == Protocol::Opaque || backends.routes().is_none()) =>
            {
                if let Some(streams) = backends.streams() {
                    let original = to.original();
                    let ends = (&streams, &*backends);
                    Box::pin(streams::serve(&self.shared, ends, original, client)).await;
                }
            }
            Route::Backends(backends) => match backends.protocol() {
                declared @ (Protocol::Http1 | Protocol::Http2) => {
                    first::serve_http(&self.shared, to, declared, client).await;
                }
                Protocol::Detect => {
                    first::serve(&self.shared, to, &backends, client).await;
                }
                Protocol::Opaque if backends.originates_tls() => {
                    Box::pin(first::serve_outside(&self.shared, to, &backends, client)).await;
                }
                // A UDP port has no connections.
                Protocol::Opaque | Protocol::Udp => {
                    let original = to.original();
                    Box::pin(opaque::relay(&self.shared, &backends, original, client)).await;
                }
            },
            Route::Unresolved => {
                self.shared.registry.count(Counter::OutboundUnresolved);
                tracing::warn!(
                    destination = %to.original(),
                    "refused: the control plane has not resolved the address, which may be in the \
                     mesh"
                );
                client.reset();
            }
            Route::NoSuchPort => {
                tracing::debug!(destination = %to.original(), "the service has no such port");
                client.reset();
            }
        }
    }

    /// Closes connections that have been idle for too long, drops destinations that no connection uses, and reports
    /// which endpoints are ejected. To be called every few seconds.
    pub fn sweep(&self) {
        self.shared.registry.forget_ejected();
        self.destinations.sweep();
        self.shared.tasks.sweep();
        self.shared.handlers.sweep();
        self.shared.tunnels.sweep();
        if let Some(fixed) = &self.fixed {
            fixed.sweep();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use leno_tls::Keyring;
    use leno_types::{Egress, MtlsMode};

    use super::*;

    /// A workload's policy with default values.
    pub(crate) fn policy() -> ServerPolicy {
        ServerPolicy {
            workload: InstanceName::new("shop", "web-0").unwrap(),
            mtls: MtlsMode::Strict,
            ports: Vec::new(),
            limits: [].into(),
            egress: Egress::Allow,
            place: Topology::default(),
            ending: false,
            removal: Removal::None,
            authorization: Default::default(),
        }
    }

    /// An outbound side without connections.
    pub(crate) fn outbound(directory: Directory) -> Outbound {
        outbound_counted_by(directory, Rc::default())
    }

    pub(crate) fn outbound_counted_by(directory: Directory, registry: Rc<Registry>) -> Outbound {
        Outbound::new(Parts {
            workload: InstanceName::new("shop", "web-0").unwrap(),
            directory,
            tls: Keyring::new().connector(),
            registry,
            activity: Rc::default(),
            limits: Limits::default(),
            names: Names::new(leno_names::Resolvers::new(Vec::new())),
            fixed: None,
        })
    }
}
