//! Opens the connections of a load, and names the ways in which a request can fail.

use std::rc::Rc;

use tokio::net::TcpStream;

use super::plan::ClusterTarget;

/// Why a request failed, in the word that reports use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestFailure(pub(super) &'static str);

impl RequestFailure {
    pub(super) const CONNECT: Self = Self("connect");
    pub(super) const CONNECT_TIMEOUT: Self = Self("connect_timeout");
    pub(super) const SEND: Self = Self("send");
    pub(super) const RESET: Self = Self("reset");
    pub(super) const CLOSED: Self = Self("closed_early");
    pub(super) const TIMEOUT: Self = Self("timeout");
    pub(super) const MALFORMED: Self = Self("malformed");
    pub(super) const STATUS_OTHER: Self = Self("status_other");
    pub(super) const GRPC_STATUS: Self = Self("grpc_status");

    /// The failure for a response status; `None` if the status is a success. A redirect is a success, as in h2load and
    /// wrk, and is not followed.
    pub(super) fn of_status(status: u16) -> Option<Self> {
        match status {
            200..400 => None,
            400..500 => Some(Self("status_4xx")),
            500..600 => Some(Self("status_5xx")),
            _ => Some(Self::STATUS_OTHER),
        }
    }
}

pub(super) struct RequestOutcome {
    pub(super) result: Result<(), RequestFailure>,
    pub(super) body_bytes: u64,
}

/// Connects to a target's addresses; after a failure it tries the next address.
pub(super) struct Dialler {
    pub(super) target: Rc<ClusterTarget>,
    pub(super) next_address: usize,
    pub(super) opened: u64,
}

impl Dialler {
    pub(super) async fn dial(&mut self) -> Result<TcpStream, RequestFailure> {
        let addresses = &self.target.addresses;
        for _ in 0..addresses.len() {
            let address = addresses[self.next_address % addresses.len()];
            if let Ok(stream) = TcpStream::connect(address).await {
                // This only fails on a socket that is already dead, which the next write reports.
                let _ = stream.set_nodelay(true);
                self.opened += 1;
                return Ok(stream);
            }
            self.next_address += 1;
        }
        Err(RequestFailure::CONNECT)
    }
}
