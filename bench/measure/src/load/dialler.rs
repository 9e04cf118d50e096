//! Opens the connections of a load, and how a request on one of them ends.

use std::rc::Rc;

use tokio::net::TcpStream;

use super::plan::Target;

/// Why a request failed; the label names it in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Connect,
    ConnectTimeout,
    Send,
    Reset,
    Closed,
    Timeout,
    Malformed,
    Status4xx,
    Status5xx,
    StatusOther,
    GrpcStatus,
}

impl Failure {
    pub(super) fn label(self) -> &'static str {
        match self {
            Failure::Connect => "connect",
            Failure::ConnectTimeout => "connect_timeout",
            Failure::Send => "send",
            Failure::Reset => "reset",
            Failure::Closed => "closed_early",
            Failure::Timeout => "timeout",
            Failure::Malformed => "malformed",
            Failure::Status4xx => "status_4xx",
            Failure::Status5xx => "status_5xx",
            Failure::StatusOther => "status_other",
            Failure::GrpcStatus => "grpc_status",
        }
    }

    /// The failure that a status counts as; `None` for a success. A redirect is a success, as in
    /// h2load and wrk, and is not followed.
    pub(super) fn of_status(status: u16) -> Option<Self> {
        match status {
            200..400 => None,
            400..500 => Some(Failure::Status4xx),
            500..600 => Some(Failure::Status5xx),
            _ => Some(Failure::StatusOther),
        }
    }
}

/// The result of one request.
pub(super) struct Outcome {
    pub(super) result: Result<(), Failure>,
    pub(super) body_bytes: u64,
}

/// Connects to a target's addresses; after a failure it moves on to the next one.
pub(super) struct Dialler {
    pub(super) target: Rc<Target>,
    pub(super) next_address: usize,
    pub(super) opened: u64,
}

impl Dialler {
    pub(super) async fn dial(&mut self) -> Result<TcpStream, Failure> {
        let addresses = &self.target.addresses;
        for _ in 0..addresses.len() {
            let address = addresses[self.next_address % addresses.len()];
            if let Ok(stream) = TcpStream::connect(address).await {
                // Fails only on a socket that is already dead, which the next write reports.
                let _ = stream.set_nodelay(true);
                self.opened += 1;
                return Ok(stream);
            }
            self.next_address += 1;
        }
        Err(Failure::Connect)
    }
}
