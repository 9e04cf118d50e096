//! The connection of HTTP/1 that a request to another proxy takes while it is the only one in flight.
//!
//! ```text
//! request ─┬─ others are in flight, or were a moment ago ──► HTTP/2, which they share
//!          └─ alone, as those before it ─┬─ it is idle ──► this connection, claimed until the request is over
//!                                        └─ none is ─────► it is made, if enough requests have come alone;
//!                                                          HTTP/2 otherwise
//! ```
//!
//! Where requests meet often, two connections cost more than one that they share: so some must have come alone in a row.
//!
//! Some requests end a connection of HTTP/1 that would end only their stream of HTTP/2: their client leaves, a
//! deadline passes, a response has no length. So a connection is made for [`REQUESTS_A_CONNECTION`] requests, whatever
//! becomes of it, which bounds what handshakes cost a request.

use std::cell::Cell;
use std::rc::Rc;

/// Requests that have to come alone before another connection is made for them. The first one is made at once.
pub const REQUESTS_A_CONNECTION: u16 = 256;

/// Requests in a row that have to come alone before one goes over HTTP/1.
pub const ALONE_IN_A_ROW: u8 = 4;

/// Whether the connection is claimed, and how many requests have come alone.
#[derive(Debug)]
pub(crate) struct Single {
    is_claimed: Rc<Cell<bool>>,
    /// [`ALONE_IN_A_ROW`] at most. The first request of all needs none before it.
    in_a_row: Cell<u8>,
    /// Requests since the last connection was made.
    alone: Cell<u16>,
}

/// The right of one request to the connection, until it is dropped.
#[derive(Debug)]
pub struct Claim {
    is_claimed: Rc<Cell<bool>>,
}

impl Default for Single {
    fn default() -> Self {
        let (in_a_row, alone) = (Cell::new(ALONE_IN_A_ROW), Cell::new(REQUESTS_A_CONNECTION));
        Self { is_claimed: Rc::default(), in_a_row, alone }
    }
}

impl Single {
    /// Counts a request. `others`: others are in flight over HTTP/2. Whether it and those before it came alone.
    pub(crate) fn counts_as_alone(&self, others: bool) -> bool {
        if others || self.is_claimed.get() {
            self.in_a_row.set(0);
            return false;
        }
        self.in_a_row.set(self.in_a_row.get().saturating_add(1).min(ALONE_IN_A_ROW));
        self.alone.set(self.alone.get().saturating_add(1));
        self.in_a_row.get() == ALONE_IN_A_ROW
    }

    /// The right to the connection, if no request has it.
    pub(crate) fn claim(&self) -> Option<Claim> {
        if self.is_claimed.replace(true) {
            return None;
        }
        Some(Claim { is_claimed: Rc::clone(&self.is_claimed) })
    }

    /// Whether enough requests have come alone for another connection.
    pub(crate) fn is_due(&self) -> bool {
        let have_come = self.alone.get() >= REQUESTS_A_CONNECTION;
        have_come && self.in_a_row.get() == ALONE_IN_A_ROW && !self.is_claimed.get()
    }

    /// A connection is being made.
    pub(crate) fn made(&self) {
        self.alone.set(0);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.is_claimed.set(false);
    }
}
