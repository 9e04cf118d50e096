//! Probes of a kubelet that calls the workload itself, as it does in node mode.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;

use leno_transport::Peeked;
use tokio::net::TcpStream;

/// What the first bytes of a client are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeMatch {
    /// This probe.
    Probe(String),
    /// They may become one: more of the request's head is needed.
    Begun,
    /// None.
    Other,
}

/// Answers probes in place of the application. A client that is answered has no identity, and what it sends must
/// not reach the application.
pub trait ProbeAnswers: Debug {
    /// The probe that a client without an identity has sent to this port, by its first bytes.
    fn find(&self, client: IpAddr, port: u16, bytes: &[u8]) -> ProbeMatch;

    /// Answers it and ends the connection.
    fn answer(
        &self,
        probe: String,
        dialled: SocketAddr,
        client: Peeked<TcpStream>,
    ) -> Pin<Box<dyn Future<Output = ()> + '_>>;
}
