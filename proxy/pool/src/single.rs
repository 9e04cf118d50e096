//! The HTTP/1 connection that a request to another proxy uses while it is the only one in flight.
//!
//! ```text
//! request ─┬─ others are in flight, or were a moment ago ──► HTTP/2, which they share
//!          └─ alone, as the few before it ─┬─ the connection is idle ──► it, claimed until the request is over
//!                                          ├─ there is none, and enough requests have come alone ──► a new one
//!                                          └─ otherwise ───────────────► HTTP/2
//! ```
//!
//! If requests often overlap, two connections cost more than one that they share. So HTTP/1 is used only after several
//! requests in a row have come alone.
//!
//! An event that ends only a stream of HTTP/2 ends a whole connection of HTTP/1: a client leaves, a deadline passes, a
//! response has no length. So at most one connection is opened per [`REQUESTS_A_CONNECTION`] requests, even if it ends
//! early, which bounds the cost of handshakes per request.

use std::cell::Cell;
use std::rc::Rc;

/// How many requests must come alone before another connection is opened for them. The first connection is opened at
/// once.
pub const REQUESTS_A_CONNECTION: u16 = 256;

/// How many requests in a row must come alone before one uses HTTP/1.
pub const ALONE_IN_A_ROW: u8 = 4;

/// Whether the connection is claimed, and how many requests have come alone.
#[derive(Debug)]
pub(crate) struct Single {
    /// Whether a request uses the connection, or opens it for itself.
    is_claimed: Rc<Cell<bool>>,
    /// How many requests in a row have come alone, at most [`ALONE_IN_A_ROW`]. It starts at this maximum, so that the
    /// first request may use HTTP/1.
    in_a_row: Cell<u8>,
    /// How many requests have come alone since the last connection was opened.
    alone: Cell<u16>,
}

/// The claim of one request to the connection. It ends when this value is dropped.
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
    /// Counts a request. `others` says that other requests are in flight over HTTP/2. Returns whether this request and
    /// those before it came alone.
    pub(crate) fn counts_as_alone(&self, others: bool) -> bool {
        if others || self.is_claimed.get() {
            self.in_a_row.set(0);
            return false;
        }
        self.in_a_row.set(self.in_a_row.get().saturating_add(1).min(ALONE_IN_A_ROW));
        self.alone.set(self.alone.get().saturating_add(1));
        self.in_a_row.get() == ALONE_IN_A_ROW
    }

    /// Claims the connection, if no request has it.
    pub(crate) fn claim(&self) -> Option<Claim> {
        if self.is_claimed.replace(true) {
            return None;
        }
        Some(Claim { is_claimed: Rc::clone(&self.is_claimed) })
    }

    /// Whether enough requests have come alone to open another connection.
    pub(crate) fn is_due(&self) -> bool {
        let have_come = self.alone.get() >= REQUESTS_A_CONNECTION;
        have_come && self.in_a_row.get() == ALONE_IN_A_ROW && !self.is_claimed.get()
    }

    /// Records that a connection is being opened.
    pub(crate) fn made(&self) {
        self.alone.set(0);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.is_claimed.set(false);
    }
}
