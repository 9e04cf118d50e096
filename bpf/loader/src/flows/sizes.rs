//! The sizes of maps that the operator chooses, and the kernel memory that they need.

use leno_bpf_abi::flow::{Flow, FlowEvent};
use libbpf_rs::{MapHandle, MapType};

use crate::Error;

/// Most flows that the table may hold.
pub const MAX_FLOWS: u32 = 1 << 20;

/// Most events that may wait for their reader.
pub const MAX_EVENTS: u32 = 1 << 20;

/// Bytes that the kernel stores with each entry of an LRU hash table besides key and value: 48 on Linux 6.18.
const ENTRY: u64 = 48;
/// Bytes of a bucket of a hash table. The number of buckets is the number of entries, rounded up to a power of two.
const BUCKET: u64 = 16;
/// Bytes that a ring buffer stores with each record.
const HEADER: u64 = 8;
/// The least size of a ring buffer: one page, of 64 KiB on some architectures.
const LEAST_RING: u64 = 64 * 1024;

/// How many flows the table may hold, and how many events may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSizes {
    flows: u32,
    events: u32,
}

impl Default for FlowSizes {
    /// 16,384 flows (2.5 MB) and 4,096 events (0.5 MB).
    fn default() -> Self {
        Self { flows: 16_384, events: 4_096 }
    }
}

impl FlowSizes {
    /// Sizes for this many flows and events.
    ///
    /// # Errors
    /// [`Error::Size`] if one of them is 0 or above its bound, with the memory that it would take.
    pub fn new(flows: u32, events: u32) -> Result<Self, Error> {
        let bounded = |what, wanted: u32, most: u32, memory: fn(u32) -> u64| {
            if wanted > 0 && wanted <= most {
                return Ok(());
            }
            Err(Error::Size { what, wanted, most, would_take: memory(wanted), takes: memory(most) })
        };
        bounded("flows", flows, MAX_FLOWS, memory_of)?;
        bounded("events", events, MAX_EVENTS, ring_of)?;
        Ok(Self { flows, events })
    }

    /// How many flows the table may hold.
    #[must_use]
    pub fn flows(self) -> u32 {
        self.flows
    }

    /// How many events may wait for their reader.
    #[must_use]
    pub fn events(self) -> u32 {
        self.events
    }

    /// These sizes, except those that are given.
    ///
    /// # Errors
    /// As [`FlowSizes::new`].
    pub fn with(self, flows: Option<u32>, events: Option<u32>) -> Result<Self, Error> {
        Self::new(flows.unwrap_or(self.flows), events.unwrap_or(self.events))
    }

    /// The sizes that differ from `before`, as arguments of [`Flows::resize`](super::Flows::resize): flows, and events.
    #[must_use]
    pub fn since(self, before: Self) -> (Option<u32>, Option<u32>) {
        let flows = (self.flows != before.flows).then_some(self.flows);
        (flows, (self.events != before.events).then_some(self.events))
    }

    /// The sizes of the kernel's maps. That of a ring buffer is a power of two.
    pub(super) fn capacities(self) -> MapCapacities {
        let bytes = u32::try_from(ring_of(self.events)).expect("the bound on events is far below");
        let sample_bytes = super::samples::NO_RING;
        MapCapacities { flows: self.flows, event_bytes: bytes, sample_bytes }
    }
}

/// The sizes of the kernel's maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MapCapacities {
    /// Entries of the table.
    pub(super) flows: u32,
    /// Bytes of the ring of events.
    pub(super) event_bytes: u32,
    /// Bytes of the ring of samples.
    pub(super) sample_bytes: u32,
}

/// The kernel memory of a table for this many flows, in bytes.
#[must_use]
pub fn memory_of(flows: u32) -> u64 {
    let flows = u64::from(flows);
    let entry = ENTRY + size_of::<u64>() as u64 + size_of::<Flow>() as u64;
    flows * entry + flows.next_power_of_two() * BUCKET
}

/// Tests whether memory limits allow the table of flows: creates one of the default size, and removes it.
///
/// # Errors
/// If the kernel refuses.
pub fn try_memory() -> Result<(), Error> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    let (key, value) = (size_of::<u64>() as u32, size_of::<Flow>() as u32);
    let flows = FlowSizes::default().flows;
    MapHandle::create(MapType::LruHash, Some("leno_try"), key, value, flows, &options)
        .map(drop)
        .map_err(Error::bpf("make the table of flows in its usual size"))
}

/// The kernel memory of a ring buffer for this many events, in bytes.
fn ring_of(events: u32) -> u64 {
    let bytes = u64::from(events) * (HEADER + size_of::<FlowEvent>() as u64);
    bytes.next_power_of_two().max(LEAST_RING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_is_not_given_stays_and_what_differs_is_told() {
        let usual = FlowSizes::default();
        let other = usual.with(Some(65_536), None).unwrap();
        assert_eq!((other.flows(), other.events()), (65_536, usual.events()));
        assert_eq!([other.since(usual), usual.since(usual)], [(Some(65_536), None), (None, None)]);
        assert!(usual.with(None, Some(2_000_000)).is_err());
    }

    #[test]
    fn sizes_above_the_bound_are_refused_with_the_memory_they_would_take() {
        assert!(FlowSizes::new(MAX_FLOWS, MAX_EVENTS).is_ok());
        assert!(FlowSizes::new(0, 1).is_err());
        let error = FlowSizes::new(2_000_000, 1).unwrap_err().to_string();
        assert_eq!(
            error,
            "2000000 flows are too many: they would take 306 MB of kernel memory; the most is \
             1048576, which takes 160 MB"
        );
    }
}
