//! One slot of load: a connection, or one stream of a connection.

use std::rc::Rc;
use std::time::Duration;

use tokio::net::TcpStream;

use super::{Protocol, Target, h2, http1, tcp};

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

/// A slot: it carries one request at a time.
pub(super) enum Connection {
    Http1(http1::Connection),
    H2(h2::Slot),
    Tcp(tcp::Connection),
}

impl Connection {
    /// All slots of `connections` connections; `first` is the number of the first connection.
    pub(super) fn all(
        target: &Rc<Target>,
        (first, connections): (usize, usize),
        streams: usize,
    ) -> Vec<Self> {
        let mut slots = Vec::new();
        for nth in first..first + connections {
            let dialler = Dialler { target: Rc::clone(target), next_address: nth, opened: 0 };
            match target.protocol {
                Protocol::Http1 => slots.push(Self::Http1(http1::Connection::new(dialler))),
                Protocol::Tcp => slots.push(Self::Tcp(tcp::Connection::new(dialler))),
                Protocol::Http2 | Protocol::Grpc | Protocol::GrpcStream => {
                    slots.extend(h2::Slot::all(dialler, streams).map(Self::H2));
                }
            }
        }
        slots
    }

    /// Sends the target's request and reads the whole response.
    pub(super) async fn request(&mut self) -> Outcome {
        match self {
            Self::Http1(connection) => connection.request().await,
            Self::H2(slot) => slot.request().await,
            Self::Tcp(connection) => connection.request().await,
        }
    }

    /// Opens the connection before the first request needs it. A failure is reported by that
    /// request.
    pub(super) async fn open(&mut self, limit: Duration) {
        // The first request reports the failure.
        let _ = tokio::time::timeout(limit, async {
            match self {
                Self::Http1(connection) => connection.open().await,
                Self::H2(slot) => slot.open().await,
                Self::Tcp(connection) => connection.open().await,
            }
        })
        .await;
    }

    /// Drops the connection together with any request under way; of a shared HTTP/2 connection,
    /// only this slot's stream.
    pub(super) fn reset(&mut self) {
        match self {
            Self::Http1(connection) => connection.reset(),
            Self::H2(slot) => slot.reset(),
            Self::Tcp(connection) => connection.reset(),
        }
    }

    /// Connections opened by this slot.
    pub(super) fn opened(&self) -> u64 {
        match self {
            Self::Http1(connection) => connection.dialler.opened,
            Self::H2(slot) => slot.opened(),
            Self::Tcp(connection) => connection.dialler.opened,
        }
    }
}

/// Connects to a target's addresses; after a failure it moves on to the next one.
pub(super) struct Dialler {
    pub(super) target: Rc<Target>,
    next_address: usize,
    opened: u64,
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

    pub(super) fn opened(&self) -> u64 {
        self.opened
    }
}
