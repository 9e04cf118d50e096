//! Carries datagrams of applications between proxies: over QUIC with the mesh's certificates, with a flow for each pair
//! of addresses.
//!
//! ```text
//!  application ─► placeholder, port 15001 ─► Outbound ─┬─ QUIC, port 15008 ─► Inbound ─► application
//!                                                      └─ outside of the mesh, in plaintext
//! ```
//! The capture's kernel programs replace the destination of a workload's datagram by a placeholder: an address, local
//! to this machine, from which the proxy looks up the destination ([`Destinations`]).
//!
//! A flow is the datagrams from one socket of a client to one address of a server. The client's proxy opens a
//! bidirectional stream for it, and sends both ports on it. The server's proxy answers with one byte, or resets the
//! stream with the [`Refusal`]. From then on each QUIC datagram has the number of the stream and the payload (`wire`).
//! The flow ends with the stream.
//!
//! As with UDP, datagrams may be lost, delayed or reordered; none is retransmitted. All resources are limited
//! ([`bounds`]), and a counter shows how often each limit was reached ([`Count`]).
//!
//! This crate knows no policy: [`Routes`] decides where a client's datagrams go, and [`Gate`] whether a server accepts
//! them. Read first: [`Datagrams`], then `outbound` and `inbound`. Everything belongs to one worker thread.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod bounds;
mod captured;
mod counts;
mod ids;
mod inbound;
mod outbound;
mod peers;
mod quic;
mod sending;
mod sockets;
mod table;
mod wire;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use leno_tls::{ShownCertificate, TlsConfigs};
use leno_transport::spawn_contained;
use leno_types::Identity;
use tokio::sync::watch;
use tokio::task::AbortHandle;

pub use captured::{Captured, Destinations};
use counts::Counts;
pub use counts::{COUNTS, Count};
pub use ids::ProcessMark;
pub use sockets::{bind_captured, bind_quic};
pub use wire::Refusal;

use inbound::Inbound;
use outbound::Outbound;
use quic::Endpoints;

/// A future that stays on this thread.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The route of a flow's datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// To the proxy of a workload, which must have this identity.
    Mesh {
        /// The address and port of the workload.
        server: SocketAddr,
        /// The identity of its proxy.
        identity: Identity,
    },
    /// To an address outside of the mesh, in plaintext.
    Outside(SocketAddr),
    /// Nowhere, for this reason.
    Refused(&'static str),
}

/// Decides where a client's datagrams go.
pub trait Routes: fmt::Debug {
    /// The route for datagrams to this address, for a new flow.
    fn route(&self, to: SocketAddr) -> LocalFuture<'_, Route>;

    /// Whether datagrams to this address may still use this route, as far as is known now.
    fn still(&self, to: SocketAddr, route: &Route) -> bool;
}

/// A flow that a client requests.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The client's identity.
    pub identity: Identity,
    /// The certificate that proves it.
    pub certificate: ShownCertificate,
    /// The client's address.
    pub client: SocketAddr,
    /// The address that the client has sent to.
    pub server: SocketAddr,
}

/// A permitted flow, and the possible addresses of the application.
pub struct Permitted {
    /// The source address of datagrams to the application.
    pub source: IpAddr,
    /// The addresses at which the application may listen, in the order in which they are tried.
    pub application: Vec<SocketAddr>,
    /// Ready once the flow is no longer permitted.
    pub revoked: LocalFuture<'static, ()>,
}

/// Decides whether flows to a server are permitted.
pub trait Gate: fmt::Debug {
    /// Whether a flow is permitted.
    fn judge(&self, asked: Asked) -> LocalFuture<'_, Result<Permitted, Refusal>>;
}

/// The parts that are needed to carry the datagrams of one worker.
pub struct Parts {
    /// The sockets on which the workload's datagrams arrive; none if it sends no datagrams.
    pub captured: Vec<Captured>,
    /// The sockets for QUIC, at most one of each family.
    pub sockets: Vec<std::net::UdpSocket>,
    /// The mark in the connection IDs.
    pub mark: ProcessMark,
    /// The credentials in use; `None` until there are any.
    pub credentials: watch::Receiver<Option<Arc<TlsConfigs>>>,
    /// Decides where datagrams go.
    pub routes: Rc<dyn Routes>,
    /// Decides which flows are accepted.
    pub gate: Rc<dyn Gate>,
    /// The port on which other proxies accept QUIC.
    pub port: u16,
}

/// The datagrams of one worker. Dropping it ends its tasks.
#[derive(Debug)]
pub struct Datagrams {
    outbound: Rc<Outbound>,
    inbound: Rc<Inbound>,
    endpoints: Rc<Endpoints>,
    credentials: watch::Receiver<Option<Arc<TlsConfigs>>>,
    counts: Rc<Counts>,
    tasks: RefCell<Vec<AbortHandle>>,
}

/// The numbers of open flows and connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// Flows from the workload, and to it.
    pub flows: [usize; 2],
    /// Connections to other proxies, and from them.
    pub connections: [usize; 2],
}

impl Datagrams {
    /// Starts to carry datagrams. Must be called on a thread with a local runtime.
    ///
    /// # Errors
    /// If the sockets cannot be used, or there are no credentials that QUIC can use.
    pub fn start(parts: Parts) -> io::Result<Self> {
        let Parts { captured, sockets, mark, credentials, routes, gate, port } = parts;
        let counts = Rc::<Counts>::default();
        let endpoints = Rc::new(Endpoints::new(sockets, mark, credentials.borrow().as_deref())?);
        let captured = captured.into_iter().map(Rc::new).collect();
        let outbound = Outbound::new(
            captured,
            (routes, port),
            (Rc::clone(&endpoints), credentials.clone()),
            Rc::clone(&counts),
        );
        let inbound = Inbound::new(gate, credentials.clone(), Rc::clone(&counts));
        let datagrams =
            Self { outbound, inbound, endpoints, credentials, counts, tasks: RefCell::default() };
        datagrams.spawn_tasks();
        Ok(datagrams)
    }

    fn spawn_tasks(&self) {
        let mut tasks = self.tasks.borrow_mut();
        for socket in self.outbound.sockets() {
            let (outbound, socket) = (Rc::clone(&self.outbound), Rc::clone(socket));
            tasks.push(
                spawn_contained(async move { outbound.receive(&socket).await }).abort_handle(),
            );
        }
        for endpoint in self.endpoints.each() {
            let (inbound, endpoint) = (Rc::clone(&self.inbound), endpoint.clone());
            tasks.push(
                spawn_contained(async move { inbound.accept(&endpoint).await }).abort_handle(),
            );
        }
        let (endpoints, mut credentials) = (Rc::clone(&self.endpoints), self.credentials.clone());
        let (inbound, outbound) = (Rc::clone(&self.inbound), Rc::clone(&self.outbound));
        let follow = async move {
            while credentials.changed().await.is_ok() {
                let configs = credentials.borrow_and_update().clone();
                let Some(configs) = configs else { continue };
                if let Err(error) = endpoints.renew(&configs) {
                    tracing::error!(%error, "datagrams go on with the certificate of before");
                }
                inbound.end_unproven(&configs);
                outbound.end_unproven(&configs);
            }
        };
        tasks.push(spawn_contained(follow).abort_handle());
    }

    /// Ends flows that are idle or whose route has changed, and connections without flows or with expired certificates.
    /// Must be called every few seconds.
    pub fn sweep(&self) {
        self.outbound.sweep();
        if let Some(configs) = &*self.credentials.borrow() {
            self.inbound.end_unproven(configs);
            self.outbound.end_unproven(configs);
        }
    }

    /// Accepts no more flows, and ends the open ones. Clients open them again elsewhere.
    pub fn close(&self) {
        self.endpoints.close();
        for task in self.tasks.take() {
            task.abort();
        }
        self.outbound.end();
    }

    /// To be called after `close`. Waits for a limited time until the other proxies know that their connections have
    /// ended.
    pub async fn closed(&self) {
        self.endpoints.closed().await;
    }

    /// The values of all counters.
    #[must_use]
    pub fn counts(&self) -> [u64; COUNTS] {
        self.counts.all()
    }

    /// The numbers of flows and connections that are open now.
    #[must_use]
    pub fn open(&self) -> Open {
        Open {
            flows: [self.outbound.flows(), self.inbound.flows()],
            connections: [self.outbound.connections(), self.inbound.connections()],
        }
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Permitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permitted").field("application", &self.application).finish_non_exhaustive()
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("port", &self.port).finish_non_exhaustive()
    }
}
