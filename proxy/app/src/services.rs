//! Lets the inbound side and the exporters of a worker reach services of the mesh, such as external authorizers and
//! collectors, through the outbound side, on which `leno-inbound` does not depend.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use leno_inbound::{MeshPort, MeshServices};
use leno_outbound::{ServicePort, Services};
use leno_types::ServiceName;
use tokio::io::{DuplexStream, duplex};

/// How many bytes the pipe to a service buffers in each direction. Most request heads are smaller.
const PIPE: usize = 16 << 10;

/// The services of the mesh, reached through the worker's outbound side.
#[derive(Debug)]
pub(crate) struct OfOutbound(pub(crate) Services);

#[derive(Debug)]
struct Port(ServicePort);

impl MeshServices for OfOutbound {
    fn port(&self, service: &ServiceName, port: u16) -> Rc<dyn MeshPort> {
        Rc::new(Port(self.0.port(service, port)))
    }
}

impl MeshPort for Port {
    fn connect(&self, http2: bool) -> (DuplexStream, Pin<Box<dyn Future<Output = ()>>>) {
        let (own, client) = duplex(PIPE);
        (own, Box::pin(self.0.clone().serve(client, http2)))
    }

    fn sweep(&self) {
        self.0.sweep();
    }
}
