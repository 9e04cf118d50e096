//! Probes from a kubelet that connects to the workload itself, which is so in node mode.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;

use leno_transport::Peeked;
use tokio::net::TcpStream;

/// Whether the first bytes of a client are a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeMatch {
    /// The bytes are this probe.
    Probe(String),
    /// The bytes may become a probe: more of the request head is needed.
    Begun,
    /// The bytes are not a probe.
    Other,
}

/// Answers probes in place of the application. The client of a probe has no identity, and its bytes must not reach the
/// application.
pub trait ProbeAnswers: Debug {
    /// Finds the probe in the first bytes that a client without an identity has sent to this port.
    fn find(&self, client: IpAddr, port: u16, bytes: &[u8]) -> ProbeMatch;

    /// Answers the probe and closes the connection.
    fn answer(
        &self,
        probe: String,
        dialled: SocketAddr,
        client: Peeked<TcpStream>,
    ) -> Pin<Box<dyn Future<Output = ()> + '_>>;
}
