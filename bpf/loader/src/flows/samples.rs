//! Samples of payload, and the rows of requests that user space reads from them.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use leno_bpf_abi::flow::{FLOW_SAMPLE_COUNTS, FlowSample, FlowWireKey, FlowWireRequests};
use libbpf_rs::ErrorKind::{Interrupted, WouldBlock};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, RingBuffer, RingBufferBuilder};

use super::{Flows, Maps, attach, delete, update};
use crate::error::Error;
use crate::{batch, pins};

/// Size of the ring of samples in bytes: about 7,000 samples may wait for their reader.
pub(super) const RING: u32 = 4 << 20;
/// Its size until payload is first sampled.
pub(super) const NO_RING: u32 = 64 << 10;
/// Most samples that are read in one call, so that a reader that is slower than the programs gets to process them.
const BATCH: usize = 8192;
const READ: &str = "read samples of payload";

/// How many samples were written and lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleCounts {
    /// Samples that were written to the ring.
    pub written: u64,
    /// Samples that were lost: the ring was full because the reader was too slow, or the flow was not in the table.
    pub lost: u64,
}

/// The directory of the pinned ring of samples. The ring has one reader: the process that enrols workloads.
#[derive(Clone, Debug)]
pub struct SamplesAt(PathBuf);

/// The reader of the ring, for one thread.
pub struct SampleReader {
    ring: RingBuffer<'static>,
    read: Rc<RefCell<Vec<FlowSample>>>,
}

impl SamplesAt {
    /// Opens the ring for reading.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn open(&self) -> Result<SampleReader, Error> {
        let samples = Maps::open_one(&self.0, "samples")?;
        let read = Rc::new(RefCell::new(Vec::new()));
        let into = Rc::clone(&read);
        let mut builder = RingBufferBuilder::new();
        let take = move |bytes: &[u8]| {
            let mut all = into.borrow_mut();
            all.extend(FlowSample::from_bytes(bytes));
            if all.len() < BATCH { 0 } else { -libc::EAGAIN }
        };
        builder.add(&samples, take).map_err(Error::bpf(READ))?;
        Ok(SampleReader { ring: builder.build().map_err(Error::bpf(READ))?, read })
    }

    /// How many samples were written and lost.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn counts(&self) -> Result<SampleCounts, Error> {
        let counts = Maps::open_one(&self.0, "sample_counts")?;
        let mut all = [0; FLOW_SAMPLE_COUNTS.len()];
        for (index, count) in (0u32..).zip(&mut all) {
            let value = counts.lookup(&index.to_ne_bytes(), MapFlags::ANY);
            let value = value.map_err(Error::bpf(READ))?.unwrap_or_default();
            *count = value.as_slice().try_into().map(u64::from_ne_bytes).unwrap_or_default();
        }
        let [written, lost] = all;
        Ok(SampleCounts { written, lost })
    }
}

impl SampleReader {
    /// Returns the samples that wait, oldest first. If only few do, first waits for at most this time.
    ///
    /// # Errors
    /// If the ring cannot be read.
    pub fn take(&mut self, wait: Duration) -> Result<Vec<FlowSample>, Error> {
        // Fewer wake-ups make each sample cheaper, so the kernel wakes a reader only if many samples wait.
        for taken in [self.ring.poll(wait), self.ring.consume()] {
            match taken {
                // `BATCH` samples were read, or a signal arrived.
                Err(error) if matches!(error.kind(), WouldBlock | Interrupted) => {}
                taken => taken.map_err(Error::bpf(READ))?,
            }
        }
        Ok(std::mem::take(&mut *self.read.borrow_mut()))
    }
}

impl Flows {
    /// Switches the sampling of payload of a workload's frames on or off.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_sampled(&self, workload: u32, sampled: bool) -> Result<(), Error> {
        let mut cap = self.cap_of(workload)?;
        if (cap.samples != 0) == sampled {
            return Ok(());
        }
        cap.samples = sampled.into();
        self.set_cap_of(workload, &cap)
    }

    /// Enlarges the ring of samples if it has not been used yet, and returns where it is.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn samples(&self) -> Result<SamplesAt, Error> {
        if self.capacities()?.sample_bytes != RING {
            let _lock = self.lock_pins()?;
            // Another process may have changed the size of the table before it released the lock.
            let capacities =
                super::sizes::MapCapacities { sample_bytes: RING, ..self.capacities()? };
            attach::put_in_place(&self.directory, None, capacities)?;
        }
        Ok(SamplesAt(self.directory.clone()))
    }

    /// How many samples were written and lost; zeros if the pins are of a version that takes none.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn sample_counts(&self) -> Result<SampleCounts, Error> {
        match pins::map_path(&self.directory, "sample_counts").exists() {
            true => SamplesAt(self.directory.clone()).counts(),
            false => Ok(SampleCounts::default()),
        }
    }

    /// The rows of requests that were read from samples; none if the pins are of a version without such rows.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn wire_requests(&self) -> Result<Vec<(FlowWireKey, FlowWireRequests)>, Error> {
        let mut all = Vec::new();
        if !pins::map_path(&self.directory, "wire_requests").exists() {
            return Ok(all);
        }
        let action = "read the requests of samples";
        batch::for_each(&rows(&self.directory)?, action, |key, value| {
            all.extend(FlowWireKey::from_bytes(key).zip(FlowWireRequests::from_bytes(value)));
        })?;
        Ok(all)
    }

    /// Writes a row of requests, or replaces the one with this key.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_wire_requests(
        &self,
        key: &FlowWireKey,
        row: &FlowWireRequests,
    ) -> Result<(), Error> {
        let action = "keep the requests of samples";
        update(&rows(&self.directory)?, &key.to_bytes(), &row.to_bytes(), action)
    }

    /// Removes the row of requests with this key, if there is one.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn forget_wire_requests(&self, key: &FlowWireKey) -> Result<(), Error> {
        delete(&rows(&self.directory)?, &key.to_bytes(), "forget the requests of samples")
    }
}

fn rows(directory: &Path) -> Result<MapHandle, Error> {
    Maps::open_one(directory, "wire_requests")
}
