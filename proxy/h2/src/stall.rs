//! Streams whose readers take too little of what was received for them.
//!
//! Such streams hold memory and slots. While nothing else needs those, only
//! [`Limits::write_stall`](crate::Limits::write_stall) ends them. Once other streams need them,
//! stalled streams are reset, as many as necessary:
//!
//! ```text
//!           took < STALL_BYTES in a turn of `stall`          the connection is under pressure
//! flowing ──────────────────────────────────────► stalled ──────────────────────────────────► reset
//!    ▲────────────────── took enough ────────────────┘
//! ```
#![expect(clippy::arithmetic_side_effects, reason = "counts of streams of one connection")]

use std::time::Duration;

use leno_transport::budget;

use crate::error::{Abuse, Reset, count};
use crate::inner::Inner;
use crate::slot::{Key, Slot};

/// A reader that leaves bytes waiting and takes fewer than this between two checks is stalled. With the default
/// [`Limits::stall`](crate::Limits::stall) of 10 seconds, that is about 13 kbit/s.
const STALL_BYTES: usize = 16 * 1024;

/// If a server leaves the connection's window at zero for this long while DATA waits, new requests should use another
/// connection. It is as long as many round trips.
const STARVED: Duration = Duration::from_millis(100);

impl Inner {
    /// Marks the streams whose readers took too little since the last call.
    pub(crate) fn note_stalled(&mut self) {
        self.stalled = 0;
        for (_, slot) in self.streams.iter_mut() {
            slot.stalled = slot.stalls();
            slot.taken = 0;
            self.stalled += u32::from(slot.stalled);
        }
    }

    /// Resets stalled streams while other streams need the memory or the slots.
    pub(crate) fn end_stalled(&mut self) {
        if self.stalled == 0 || !self.is_pressed() {
            return;
        }
        self.stalled = 0;
        for place in 0..self.streams.places() {
            let Some(key) = self.streams.at(place) else { continue };
            if !self.streams.get(key).is_some_and(|slot| slot.stalled && slot.stalls()) {
                continue;
            }
            if self.is_pressed() {
                self.end_stall(key);
            } else {
                self.stalled += 1;
            }
        }
    }

    fn end_stall(&mut self, key: Key) {
        count(Abuse::StalledStream);
        if !self.rst(key, self.limits.stall_code) {
            // The stream has ended in both directions. Only the rest of its bytes waits for the reader.
            if let Some(far) = self.drop_content(key, Reset::STALL) {
                far.conn.borrow_mut().far_reset(far.key, Reset::STALL.code);
            }
            return;
        }
        self.end_stream(key, Reset::STALL);
    }

    /// Whether other requests lack a resource that stalled streams may hold: memory, a slot, or the connection's
    /// window.
    fn is_pressed(&self) -> bool {
        self.holds_much() || !self.openers.is_empty() || budget::is_short()
    }

    fn holds_much(&self) -> bool {
        self.held >= self.limits.held_bytes / 2
    }

    /// Whether a new request should use another connection.
    pub(crate) fn is_strained(&self) -> bool {
        self.holds_much() || self.starved_since.is_some_and(|since| since.elapsed() >= STARVED)
    }
}

impl Slot {
    fn stalls(&self) -> bool {
        self.held > 0 && self.taken < STALL_BYTES
    }
}
