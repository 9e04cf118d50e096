//! Decides whether a flow of datagrams to the workload is permitted, and reports when it no longer is.
//!
//! A flow is authorized like an opaque connection: by the identity that its client has proven, the client's address,
//! and the port.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;

use leno_tls::ShownCertificate;
use leno_transport::{OwnTls, own_addresses};
use leno_types::mesh::{ServerPolicy, takes_datagrams};
use leno_types::{Identity, canonical};
use tokio::sync::watch;

use crate::authorize::Access;
use crate::peer::Instance;
use crate::standing::revoked;
use crate::{Client, Inbound};

/// A flow that a client requests.
#[derive(Clone, Debug)]
pub struct DatagramFlow {
    /// The identity that the client has proven.
    pub identity: Identity,
    /// The certificate that proves it.
    pub certificate: ShownCertificate,
    /// The client's address.
    pub client: SocketAddr,
    /// The address of the workload.
    pub server: SocketAddr,
}

/// A permitted flow.
pub struct DatagramPermit {
    /// The source address of datagrams to the application.
    pub source: IpAddr,
    /// The addresses on which the application may listen.
    pub application: Vec<SocketAddr>,
    /// Ready when policies no longer permit the flow, or its port is no longer declared to accept datagrams.
    pub revoked: Pin<Box<dyn Future<Output = ()>>>,
}

/// Why a flow is not permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramRefusal {
    /// A policy denies it.
    Denied,
    /// The port is not declared to accept datagrams.
    Undeclared,
    /// The proxy has no address from which to send to the application.
    NoSource,
}

/// The addresses on which the application may listen, in the order in which they are tried. The proxy sends datagrams
/// from `source`, and answers must come from the address to which it has sent. If the application's socket is bound
/// to all addresses, the kernel chooses the address of the answers. For IPv4 it chooses `source` itself, so `source`
/// is tried first.
fn applications(server: SocketAddr, source: IpAddr) -> Vec<SocketAddr> {
    let answering = source.is_ipv4().then_some(SocketAddr::new(source, server.port()));
    answering.into_iter().chain(own_addresses(server)).collect()
}

/// Whether the port is declared to accept datagrams.
fn declares(policy: Option<&ServerPolicy>, port: u16) -> bool {
    policy.is_some_and(|policy| takes_datagrams(&policy.ports, port))
}

/// Ready when the port is no longer declared to accept datagrams.
async fn withdrawn(mut policy: watch::Receiver<Option<Arc<ServerPolicy>>>, port: u16) {
    if policy.wait_for(|policy| !declares(policy.as_deref(), port)).await.is_err() {
        // The policy can no longer change: the workload leaves this process, which ends its flows.
        std::future::pending::<()>().await;
    }
}

impl Inbound {
    /// Decides about a flow.
    ///
    /// # Errors
    /// [`DatagramRefusal`]
    pub async fn judge_datagrams(
        &self,
        flow: DatagramFlow,
    ) -> Result<DatagramPermit, DatagramRefusal> {
        let parts = &self.shared.parts;
        let server = canonical(flow.server);
        if !declares(parts.policy.borrow().as_deref(), server.port()) {
            return Err(DatagramRefusal::Undeclared);
        }
        let withdrawn = withdrawn(parts.policy.clone(), server.port());
        let address = canonical(flow.client);
        let client = Client {
            identity: Some(flow.identity),
            certificate: Some(flow.certificate),
            address,
            instance: Instance::of(parts.registry.logs(), &parts.directory, address.ip()),
        };
        let access = Access::new(&client, server.port());
        let no_tls = OwnTls::default();
        if access.connection(&self.shared, Some(&no_tls)).await.is_err() {
            return Err(DatagramRefusal::Denied);
        }
        let source = self.applications.client_address.datagram_source(server, server.ip());
        let source = source.map_err(|error| {
            tracing::warn!(%error, "no address to send datagrams to the application from");
            DatagramRefusal::NoSource
        })?;
        let application = match parts.application {
            Some(application) => vec![application],
            None => applications(server, source),
        };
        let shared = Rc::clone(&self.shared);
        let revoked = async move {
            // `revoked` decides once at its beginning, so it sees changes that came after the decision above.
            let changed = pin!(shared.changes.notified());
            tokio::select! {
                () = revoked(&shared, &access, changed, Some(&no_tls)) => {}
                () = withdrawn => {}
            }
        };
        Ok(DatagramPermit { source, application, revoked: Box::pin(revoked) })
    }
}

#[cfg(test)]
mod tests {
    use leno_types::mesh::{PortProtocol, Topology};
    use leno_types::{Egress, InstanceName, MtlsMode, Protocol, Removal};

    use super::*;

    #[test]
    fn an_application_of_all_addresses_is_reached_where_it_answers_from() {
        let of = |server: &str, source: &str| {
            let all = applications(server.parse().unwrap(), source.parse().unwrap());
            all.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let v4 = ["192.0.0.8:53", "10.89.0.2:53", "127.0.0.1:53", "[::1]:53"];
        assert_eq!(of("10.89.0.2:53", "192.0.0.8"), v4);
        let v6 = ["[fd89::2]:53", "[::1]:53", "127.0.0.1:53"];
        assert_eq!(of("[fd89::2]:53", "100:0:0:1::8"), v6);
    }

    #[tokio::test]
    async fn a_port_that_is_declared_no_more_is_withdrawn() {
        let declaring = |protocol| {
            Some(Arc::new(ServerPolicy {
                workload: InstanceName { namespace: "shop".into(), name: "dns-0".into() },
                mtls: MtlsMode::Strict,
                ports: vec![PortProtocol { port: 53, protocol }],
                limits: Arc::default(),
                egress: Egress::Allow,
                place: Topology::default(),
                ending: false,
                removal: Removal::None,
                authorization: Arc::default(),
            }))
        };
        let (told, policy) = watch::channel(declaring(Protocol::Udp));
        let mut withdrawn = Box::pin(withdrawn(policy, 53));
        tokio::select! {
            biased;
            () = &mut withdrawn => panic!("it is declared"),
            () = std::future::ready(()) => {}
        }
        told.send_replace(declaring(Protocol::Opaque));
        withdrawn.await;
    }
}
