//! Whether a flow of datagrams to the workload is permitted, and as long as it is.
//!
//! A flow is judged as a connection of bytes: by the identity that its client has proven, the address that it comes from,
//! and the port.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::rc::Rc;

use leno_tls::ShownCertificate;
use leno_transport::{OwnTls, own_addresses};
use leno_types::mesh::takes_datagrams;
use leno_types::{Identity, canonical};

use crate::authorize::Access;
use crate::peer::Instance;
use crate::standing::revoked;
use crate::{Client, Inbound};

/// A flow that a client asks for.
#[derive(Clone, Debug)]
pub struct DatagramFlow {
    /// The identity that the client has proven.
    pub identity: Identity,
    /// What proves it.
    pub certificate: ShownCertificate,
    /// The client's address.
    pub client: SocketAddr,
    /// The address of the workload.
    pub server: SocketAddr,
}

/// A flow that is permitted.
pub struct DatagramPermit {
    /// The source of datagrams to the application.
    pub source: IpAddr,
    /// Where the application may listen.
    pub application: Vec<SocketAddr>,
    /// Ready once policies permit the flow no more.
    pub revoked: Pin<Box<dyn Future<Output = ()>>>,
}

/// Why a flow is not permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramRefusal {
    /// A policy denies it.
    Denied,
    /// No document declares that the port takes datagrams.
    Undeclared,
    /// There is no address to send to the application from.
    NoSource,
}

impl Inbound {
    /// Decides on a flow.
    ///
    /// # Errors
    /// [`DatagramRefusal`]
    pub async fn judge_datagrams(
        &self,
        flow: DatagramFlow,
    ) -> Result<DatagramPermit, DatagramRefusal> {
        let parts = &self.shared.parts;
        let server = canonical(flow.server);
        let is_declared = parts
            .policy
            .borrow()
            .as_ref()
            .is_some_and(|policy| takes_datagrams(&policy.ports, server.port()));
        if !is_declared {
            return Err(DatagramRefusal::Undeclared);
        }
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
            None => own_addresses(server).to_vec(),
        };
        let shared = Rc::clone(&self.shared);
        let revoked = async move {
            // What has changed since the decision is seen at once.
            let changed = pin!(shared.changes.notified());
            revoked(&shared, &access, changed, Some(&no_tls)).await;
        };
        Ok(DatagramPermit { source, application, revoked: Box::pin(revoked) })
    }
}
