//! One request as a tap shows it.

use std::num::NonZeroU64;
use std::time::{Duration, SystemTime};

use crate::edge::EdgeLabels;

/// A request that has ended.
#[derive(Clone, Debug)]
pub struct Event {
    /// When it began.
    pub at: SystemTime,
    /// The client and the server.
    pub edge: EdgeLabels,
    /// The identity at the other end of the connection: of the client for an inbound request, of the
    /// server for an outbound one.
    pub peer: Option<Box<str>>,
    /// The same in the events of the client's proxy and of the server's.
    pub mark: Option<NonZeroU64>,
    /// The version of HTTP in which the request came.
    pub protocol: &'static str,
    /// The method.
    pub method: Box<str>,
    /// The host that the request is for.
    pub authority: Box<str>,
    /// The target, without secrets.
    pub target: Box<str>,
    /// The route and the rule that the request followed, `HTTPRoute shop/cart rule 1`.
    pub route: Option<Box<str>>,
    /// How often it was sent again.
    pub retries: u32,
    /// The status that the client received.
    pub status: u16,
    /// The `grpc-status` that the client received.
    pub grpc_status: Option<u8>,
    /// Bytes from and to the client.
    pub bytes: (u64, u64),
    /// Why the mesh failed the request.
    pub error: Option<&'static str>,
    /// How long it took.
    pub times: Times,
    /// Its headers without secrets, if the tap wants them.
    pub headers: Vec<(Box<str>, Box<str>)>,
}

/// The parts of a request's time, from the head of the request on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Until the last try was sent on. `None` if it never was.
    pub sent: Option<Duration>,
    /// Until the response began.
    pub first_byte: Option<Duration>,
    /// Until the end of the response.
    pub total: Duration,
}
