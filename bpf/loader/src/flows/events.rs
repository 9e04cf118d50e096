//! Reads the events that the flow programs write when a flow begins or changes its state.

use std::cell::RefCell;
use std::fs::File;
use std::path::Path;
use std::rc::Rc;

use leno_bpf_abi::flow::FlowEvent;
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::Flows;
use crate::error::Error;
use crate::pins;

/// The only reader of the events. The programs write events while it exists; dropping it makes them stop.
pub struct EventReader<'a> {
    flows: &'a Flows,
    ring: RingBuffer<'static>,
    read: Rc<RefCell<Vec<FlowEvent>>>,
    dropped_before: u64,
    /// A lock on the directory of the pins, so that there is only one reader.
    _lock: Flock<File>,
}

impl<'a> EventReader<'a> {
    pub(super) fn start(flows: &'a Flows) -> Result<Self, Error> {
        let action = "follow the events of flows";
        let lock = lock(&flows.directory)?;
        let events = MapHandle::from_pinned_path(pins::map_path(&flows.directory, "events"))
            .map_err(Error::bpf(action))?;
        let read = Rc::new(RefCell::new(Vec::new()));
        let into = Rc::clone(&read);
        let mut builder = RingBufferBuilder::new();
        let take = move |bytes: &[u8]| {
            into.borrow_mut().extend(FlowEvent::from_bytes(bytes));
            0
        };
        builder.add(&events, take).map_err(Error::bpf(action))?;
        let ring = builder.build().map_err(Error::bpf(action))?;
        // Discards the events that an earlier reader left because it was killed.
        ring.consume().map_err(Error::bpf(action))?;
        read.borrow_mut().clear();
        let dropped_before = flows.totals()?.events_dropped;
        flows.set_followed(true)?;
        Ok(Self { flows, ring, read, dropped_before, _lock: lock })
    }

    /// Returns the events since the last call. The programs do not wake the reader, so call this regularly.
    ///
    /// # Errors
    /// If the buffer cannot be read.
    pub fn take(&mut self) -> Result<Vec<FlowEvent>, Error> {
        self.ring.consume().map_err(Error::bpf("read the events of flows"))?;
        Ok(std::mem::take(&mut *self.read.borrow_mut()))
    }

    /// How many events were dropped since this reader began, because it was too slow.
    ///
    /// # Errors
    /// If the counter cannot be read.
    pub fn dropped(&self) -> Result<u64, Error> {
        Ok(self.flows.totals()?.events_dropped.saturating_sub(self.dropped_before))
    }
}

/// Locks the directory of the pins, so that its holder is the only reader of their events.
pub(super) fn lock(directory: &Path) -> Result<Flock<File>, Error> {
    let action = "be the only reader of the events of flows";
    let directory = File::open(directory).map_err(Error::io(action))?;
    match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(lock),
        Err((_, Errno::EWOULDBLOCK)) => Err(Error::Followed),
        Err((_, errno)) => Err(Error::io(action)(errno.into())),
    }
}

impl Drop for EventReader<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.flows.set_followed(false) {
            tracing::warn!(%error, "cannot stop the programs from writing flow events, which are \
                                    no longer read");
        }
    }
}
