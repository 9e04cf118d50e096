//! Opens the connections of a load, and how a request on one of them ends.

use std::rc::Rc;

use tokio::net::TcpStream;

use super::plan::Target;

/// Why a request failed; the label names it in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestFailure {
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

impl RequestFailure {
    pub(super) fn label(self) -> &'static str {
        match self {
            RequestFailure::Connect => "connect",
            RequestFailure::ConnectTimeout => "connect_timeout",
            RequestFailure::Send => "send",
            RequestFailure::Reset => "reset",
            RequestFailure::Closed => "closed_early",
            RequestFailure::Timeout => "timeout",
            RequestFailure::Malformed => "malformed",
            RequestFailure::Status4xx => "status_4xx",
            RequestFailure::Status5xx => "status_5xx",
            RequestFailure::StatusOther => "status_other",
            RequestFailure::GrpcStatus => "grpc_status",
        }
    }

    /// The failure that a status counts as; `None` for a success. A redirect is a success, as in
    /// h2load and wrk, and is not followed.
    pub(super) fn of_status(status: u16) -> Option<Self> {
        match status {
            200..400 => None,
            400..500 => Some(RequestFailure::Status4xx),
            500..600 => Some(RequestFailure::Status5xx),
            _ => Some(RequestFailure::StatusOther),
        }
    }
}

/// The result of one request.
pub(super) struct RequestOutcome {
    pub(super) result: Result<(), RequestFailure>,
    pub(super) body_bytes: u64,
}

/// Connects to a target's addresses; after a failure it moves on to the next one.
pub(super) struct Dialler {
    pub(super) target: Rc<Target>,
    pub(super) next_address: usize,
    pub(super) opened: u64,
}

impl Dialler {
    pub(super) async fn dial(&mut self) -> Result<TcpStream, RequestFailure> {
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
        Err(RequestFailure::Connect)
    }
}
