//! Takes over what programs of an earlier layout have counted.
//!
//! Sums, flows, names and sockets have had one form since layout 2. Counters and settings are arrays that become longer: a
//! new one is made and filled before the programs are replaced, and what the old programs still counted until then is
//! added after.

use std::path::Path;

use leno_bpf_abi::flow::{FLOW_LAYOUT, FLOW_TOTALS};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use crate::error::Error;
use crate::pins;

/// The counters of layout 2, in the order of their indexes.
const TOTALS_2: &[&str] = &[
    "flow_added",
    "flow_unlisted",
    "flow_untracked",
    "flow_folded",
    "flow_events_written",
    "flow_events_dropped",
    "flow_removed",
];

/// Whether pins with this note can be taken over.
pub(super) fn is_known(layout: &str) -> bool {
    layout == FLOW_LAYOUT.to_string() || layout == "2"
}

/// The arrays of another layout, unpinned, so that the loader makes new ones.
pub(super) struct Earlier {
    totals: MapHandle,
    control: MapHandle,
    /// Of `totals`, when the new array was filled.
    copied: Vec<u64>,
}

impl Earlier {
    /// Unpins them; `None` if the pins have the layout of this build, or there are none.
    pub(super) fn set_aside(directory: &Path) -> Result<Option<Self>, Error> {
        if pins::read_note(directory, "layout") != "2" {
            return Ok(None);
        }
        let open = |name: &str| {
            let pin = pins::map_path(directory, name);
            let map = MapHandle::from_pinned_path(&pin);
            map.map(|map| (map, pin)).map_err(Error::bpf(format!("open the map {name}")))
        };
        let ((totals, totals_pin), (control, control_pin)) = (open("totals")?, open("control")?);
        pins::remove(&totals_pin)?;
        pins::remove(&control_pin)?;
        Ok(Some(Self { totals, control, copied: Vec::new() }))
    }

    /// Fills the new arrays, before any program uses them.
    pub(super) fn fill(&mut self, directory: &Path) -> Result<(), Error> {
        let control = opened(directory, "control")?;
        for index in 0..self.control.max_entries() {
            let key = index.to_ne_bytes();
            let value = self.control.lookup(&key, MapFlags::ANY).map_err(Error::bpf(ACTION))?;
            let value = value.unwrap_or_default();
            control.update(&key, &value, MapFlags::ANY).map_err(Error::bpf(ACTION))?;
        }
        self.copied = vec![0; TOTALS_2.len()];
        self.add_rest(directory)
    }

    /// Pins them again, in place of the new ones.
    pub(super) fn put_back(mut self, directory: &Path) -> Result<(), Error> {
        for (map, name) in [(&mut self.totals, "totals"), (&mut self.control, "control")] {
            let pin = pins::map_path(directory, name);
            pins::remove(&pin)?;
            map.pin(&pin).map_err(Error::bpf(ACTION))?;
        }
        Ok(())
    }

    /// Adds what was counted since the last call. Once no program counts in the old array any more, this is exact, but
    /// for what the new programs count in the microsecond between the reading of a counter and its writing.
    pub(super) fn add_rest(&mut self, directory: &Path) -> Result<(), Error> {
        let totals = opened(directory, "totals")?;
        for ((index, name), copied) in (0u32..).zip(TOTALS_2).zip(&mut self.copied) {
            let now = number(&self.totals, index)?;
            let Some(place) = FLOW_TOTALS.iter().position(|one| one == name) else { continue };
            let more = now.saturating_sub(*copied);
            if more > 0 {
                let place = place as u32;
                let sum = number(&totals, place)? + more;
                totals
                    .update(&place.to_ne_bytes(), &sum.to_ne_bytes(), MapFlags::ANY)
                    .map_err(Error::bpf(ACTION))?;
            }
            *copied = now;
        }
        Ok(())
    }
}

/// What fails, in errors.
const ACTION: &str = "take over the counters of another layout";

fn opened(directory: &Path, name: &str) -> Result<MapHandle, Error> {
    MapHandle::from_pinned_path(pins::map_path(directory, name)).map_err(Error::bpf(ACTION))
}

fn number(map: &MapHandle, index: u32) -> Result<u64, Error> {
    let value = map.lookup(&index.to_ne_bytes(), MapFlags::ANY).map_err(Error::bpf(ACTION))?;
    Ok(value.unwrap_or_default().as_slice().try_into().map(u64::from_ne_bytes).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use leno_bpf_abi::flow::{FlowPair, FlowSums};
    use libbpf_rs::MapType;

    use super::*;
    use crate::PinRoot;
    use crate::flows::{Earlier as Found, Flows, Sizes, self_test};
    use crate::tests::has_root;

    #[test]
    fn every_counter_of_an_earlier_layout_has_a_place() {
        for name in TOTALS_2 {
            assert!(FLOW_TOTALS.contains(name), "{name}");
        }
    }

    /// Pins an array as layout 2 had it, with the numbers from `first` on.
    fn pin_array(directory: &Path, name: &str, value_size: u32, entries: u32, first: u64) {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            ..Default::default()
        };
        let mut map =
            MapHandle::create(MapType::Array, Some(name), 4, value_size, entries, &options)
                .unwrap();
        for index in 0..entries {
            let value = (first + u64::from(index)).to_ne_bytes();
            let value = &value[..value_size as usize];
            map.update(&index.to_ne_bytes(), value, MapFlags::ANY).unwrap();
        }
        let pin = pins::map_path(directory, name);
        pins::remove(&pin).unwrap();
        map.pin(&pin).unwrap();
    }

    #[test]
    fn what_layout_2_has_counted_is_taken_over() {
        if !has_root() {
            return;
        }
        let test = || {
            let groups = self_test::own_namespaces().unwrap();
            let group = groups.join(format!("leno-migrate-{}", std::process::id()));
            fs::create_dir(&group).unwrap();
            let root = PinRoot::at(Path::new("/dev/bpf")).unwrap();
            let sizes = Sizes::new(64, 64).unwrap();
            let (flows, found) = Flows::attach(&root, "migrate", &group, sizes).unwrap();
            assert_eq!(found, Found::New);
            let directory = root.of("migrate").unwrap();
            pin_array(&directory, "totals", 8, 7, 10);
            pin_array(&directory, "control", 4, 2, 0);
            pins::write_note(&directory, "layout", "2").unwrap();
            let pair =
                FlowPair { workload: 3, peer: 4, role: 0, owner: 0, protocol: 0, reserved: 0 };
            let mut sums = FlowSums::from_bytes(&[0; size_of::<FlowSums>()]).unwrap();
            sums.opened = 77;
            let pairs = opened(&directory, "pairs").unwrap();
            pairs.update(&pair.to_bytes(), &sums.to_bytes(), MapFlags::ANY).unwrap();
            drop(flows);

            let sizes = Sizes::new(128, 64).unwrap();
            let (flows, found) = Flows::attach(&root, "migrate", &group, sizes).unwrap();
            assert_eq!(found, Found::Kept);
            let totals = flows.totals().unwrap();
            let numbers = [totals.added, totals.unlisted, totals.untracked, totals.folded];
            assert_eq!(numbers, [10, 11, 12, 13]);
            assert_eq!((totals.events_written, totals.events_dropped), (14, 15));
            assert_eq!((totals.removed, totals.aggregated, totals.left_out), (16, 0, 0));
            assert!(flows.pairs().unwrap().contains(&(pair, sums)));
            assert_eq!(flows.capacity().unwrap(), 128);
            flows.detach().unwrap();
            fs::remove_dir(&group).unwrap();
        };
        std::thread::scope(|scope| scope.spawn(test).join().unwrap());
    }
}
