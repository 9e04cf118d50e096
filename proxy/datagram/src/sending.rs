//! Sends a datagram of a flow on a connection.

use quinn::{Connection, SendDatagramError};

use crate::wire;

/// Why a datagram is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotSent {
    /// The datagram is larger than the path allows.
    TooLarge,
    /// The connection's queue is full. The new datagram is dropped and not a queued one, which may be just as useful.
    Congested,
    /// The connection has ended.
    Ended,
}

/// Sends a datagram without waiting.
pub(crate) fn send(connection: &Connection, flow: u64, payload: &[u8]) -> Result<(), NotSent> {
    let most = connection.max_datagram_size().ok_or(NotSent::Ended)?;
    let of_flow = wire::flow_bytes(flow).ok_or(NotSent::Ended)?;
    let size = of_flow.saturating_add(payload.len());
    if size > most {
        return Err(NotSent::TooLarge);
    }
    if size > connection.datagram_send_buffer_space() {
        return Err(NotSent::Congested);
    }
    let datagram = wire::datagram(flow, payload).ok_or(NotSent::Ended)?;
    connection.send_datagram(datagram).map_err(|error| match error {
        SendDatagramError::TooLarge => NotSent::TooLarge,
        SendDatagramError::UnsupportedByPeer
        | SendDatagramError::Disabled
        | SendDatagramError::ConnectionLost(_) => NotSent::Ended,
    })
}
