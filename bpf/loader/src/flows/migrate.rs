//! Takes over what programs of an earlier layout have counted.
//!
//! Sums, names and sockets have had one form since layout 2. Up to layout 3 a flow had 112 bytes: its table is read, and what it
//! holds entered into one of today's form. Since layout 3 counters and settings are longer arrays: new ones are made and filled
//! before the programs are replaced, and what the old programs still counted until then is added after.

use std::net::SocketAddr;
use std::path::Path;

use leno_bpf_abi::flow::{
    FLOW_LAYOUT, FLOW_TOTALS, Flow, FlowEnd, FlowLocal, FlowOwner, FlowParts, FlowRole, FlowState,
    MOST_RETRANSMITS, short_time,
};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use super::attach::{NEXT_TABLE, TABLE};
use crate::error::Error;
use crate::{batch, pins};

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

/// The bytes of a flow in layouts 2 and 3.
const EARLIER_FLOW: u32 = 112;

/// Whether pins with this note can be taken over.
pub(super) fn is_known(layout: &str) -> bool {
    layout == FLOW_LAYOUT.to_string() || ["2", "3"].contains(&layout)
}

/// What has another form in another layout, unpinned, so that the loader makes new ones.
pub(super) struct Earlier {
    /// The table of flows; two if a process that carried it over to another size was killed.
    tables: Vec<(&'static str, MapHandle)>,
    arrays: Option<Arrays>,
}

impl Earlier {
    /// Unpins it; `None` if the pins have the layout of this build, or there are none.
    pub(super) fn set_aside(directory: &Path) -> Result<Option<Self>, Error> {
        let layout = pins::read_note(directory, "layout");
        if !["2", "3"].contains(&layout.as_str()) {
            return Ok(None);
        }
        let arrays = (layout == "2").then(|| Arrays::set_aside(directory)).transpose()?;
        let mut tables = Vec::new();
        for name in [TABLE, NEXT_TABLE] {
            if !pins::map_path(directory, name).exists() {
                continue;
            }
            // One of today's form is of a process that was killed while it took over.
            if opened(directory, name)?.value_size() == EARLIER_FLOW {
                tables.push((name, set_aside(directory, name)?));
            }
        }
        Ok(Some(Self { tables, arrays }))
    }

    /// How many flows the table could hold; `None` if there is none of the earlier form.
    pub(super) fn room_for_flows(&self) -> Option<u32> {
        self.tables.iter().map(|(_, table)| table.max_entries()).max()
    }

    /// Fills what has the form of this build, before any program uses it.
    pub(super) fn fill(&mut self, directory: &Path) -> Result<(), Error> {
        if let Some(arrays) = &mut self.arrays {
            arrays.fill(directory)?;
        }
        self.enter_flows(directory)
    }

    /// Pins it again, in place of the new ones.
    pub(super) fn put_back(self, directory: &Path) -> Result<(), Error> {
        for (name, table) in self.tables {
            put_back(directory, name, table)?;
        }
        self.arrays.map_or(Ok(()), |arrays| arrays.put_back(directory))
    }

    /// Adds what was counted since the last call.
    pub(super) fn add_rest(&mut self, directory: &Path) -> Result<(), Error> {
        if let Some(arrays) = &mut self.arrays {
            arrays.add_rest(directory)?;
        }
        self.enter_flows(directory)
    }

    /// Enters the flows that are not in the table of this build, or have changed since they were entered.
    fn enter_flows(&self, directory: &Path) -> Result<(), Error> {
        let [flows, locals] = [opened(directory, TABLE)?, opened(directory, "locals")?];
        let mut failed = None;
        for (_, table) in &self.tables {
            batch::for_each(table, ACTION, |key, value| {
                if let Some(flow) = flow_of(value) {
                    failed = failed.take().or(enter(&flows, &locals, key, &flow).err());
                }
            })?;
        }
        failed.map_or(Ok(()), Err)
    }
}

fn enter(
    flows: &MapHandle,
    locals: &MapHandle,
    key: &[u8],
    (flow, local): &(Flow, SocketAddr),
) -> Result<(), Error> {
    let there = flows.lookup(key, MapFlags::ANY).map_err(Error::bpf(ACTION))?;
    let there = there.and_then(|value| Flow::from_bytes(&value));
    if there.is_some_and(|there| there.last_ns >= flow.last_ns) {
        return Ok(());
    }
    if let Some(number) = flow.local_number() {
        let local = FlowLocal::new(local.ip()).to_bytes();
        locals.update(&number.to_ne_bytes(), &local, MapFlags::ANY).map_err(Error::bpf(ACTION))?;
    }
    flows.update(key, &flow.to_bytes(), MapFlags::ANY).map_err(Error::bpf(ACTION))
}

/// A flow as layouts 2 and 3 had it, with the socket's own address.
fn flow_of(bytes: &[u8]) -> Option<(Flow, SocketAddr)> {
    let long = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let half = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let address = |at: usize, port: usize| {
        let ip: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
        let ip = std::net::Ipv6Addr::from(ip).to_canonical();
        Some(SocketAddr::new(ip, half(port)?))
    };
    let [state, end, role, owner, protocol, marks] = *bytes.get(101..107)? else { return None };
    let (local, remote) = (address(0, 96)?, address(16, 98)?);
    let new = Flow::new(&FlowParts {
        local,
        remote,
        state: FlowState::of(state)?,
        end: FlowEnd::of(end)?,
        role: FlowRole::of(role)?,
        owner: FlowOwner::of(owner)?,
    });
    let flow = Flow {
        opened_ns: long(32)?,
        last_ns: long(40)?,
        workload: u16::try_from(word(64)?).ok()?,
        peer: u16::try_from(word(68)?).ok()?,
        segments_sent: word(72)?,
        segments_received: word(76)?,
        retransmits: u16::try_from(word(80)?)
            .map_or(MOST_RETRANSMITS, |all| all.min(MOST_RETRANSMITS)),
        rtt: short_time(word(84)?),
        min_rtt: short_time(word(88)?),
        handshake: short_time(word(92)?),
        protocol,
        marks,
        pass: word(108)?,
        ..new
    };
    Some((flow.with_bytes(long(48)?, long(56)?), local))
}

/// The arrays of layout 2.
struct Arrays {
    totals: MapHandle,
    control: MapHandle,
    /// Of `totals`, when the new array was filled.
    copied: Vec<u64>,
}

impl Arrays {
    fn set_aside(directory: &Path) -> Result<Self, Error> {
        let (totals, control) = (set_aside(directory, "totals")?, set_aside(directory, "control")?);
        Ok(Self { totals, control, copied: Vec::new() })
    }

    fn fill(&mut self, directory: &Path) -> Result<(), Error> {
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

    fn put_back(self, directory: &Path) -> Result<(), Error> {
        put_back(directory, "totals", self.totals)?;
        put_back(directory, "control", self.control)
    }

    /// Once no program counts in the old array any more, this is exact, but for what the new programs count in the
    /// microsecond between the reading of a counter and its writing.
    fn add_rest(&mut self, directory: &Path) -> Result<(), Error> {
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

fn set_aside(directory: &Path, name: &str) -> Result<MapHandle, Error> {
    let map = opened(directory, name)?;
    pins::remove(&pins::map_path(directory, name))?;
    Ok(map)
}

fn put_back(directory: &Path, name: &str, mut map: MapHandle) -> Result<(), Error> {
    let pin = pins::map_path(directory, name);
    pins::remove(&pin)?;
    map.pin(&pin).map_err(Error::bpf(ACTION))
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

    /// Makes a map and pins it in place of another one.
    fn pin_map(directory: &Path, name: &str, kind: MapType, sizes: [u32; 3]) -> MapHandle {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            ..Default::default()
        };
        let [key, value, entries] = sizes;
        let mut map = MapHandle::create(kind, Some(name), key, value, entries, &options).unwrap();
        let pin = pins::map_path(directory, name);
        pins::remove(&pin).unwrap();
        map.pin(&pin).unwrap();
        map
    }

    /// A closed connection of IPv6 as layouts 2 and 3 had it.
    fn earlier_flow() -> Vec<u8> {
        let address = |last| [0xfd, 0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        let longs = [5_000_000u64, 9_000_000, 1 << 33, 7].map(u64::to_ne_bytes);
        let words = [3u32, 4, 11, 12, 70_000, 250, 200, 40_000].map(u32::to_ne_bytes);
        let ports = [40_000u16, 80].map(u16::to_ne_bytes);
        let rest = [10, FlowState::Closed as u8, FlowEnd::ClosedRemote as u8, 0, 0, 6, 0, 0];
        let all: [&[u8]; 7] = [
            &address(2),
            &address(3),
            longs.as_flattened(),
            words.as_flattened(),
            ports.as_flattened(),
            &rest,
            &9u32.to_ne_bytes(),
        ];
        all.concat()
    }

    fn assert_taken_over(flows: &Flows) {
        let mut all = Vec::new();
        flows.for_each(|cookie, flow| all.push((cookie, flow))).unwrap();
        let [(77, flow)] = all[..] else { panic!("{all:?}") };
        let locals = flows.locals().unwrap();
        let local = flow.local(|number| locals.get(&number).copied());
        assert_eq!(
            (local.to_string().as_str(), flow.remote().to_string().as_str()),
            ("[fd89::2]:40000", "[fd89::3]:80")
        );
        assert_eq!((flow.opened_ns, flow.last_ns, flow.pass), (5_000_000, 9_000_000, 9));
        assert_eq!((flow.bytes_sent(), flow.bytes_received()), (1 << 33, 7));
        assert_eq!((flow.workload, flow.peer, flow.retransmits), (3, 4, MOST_RETRANSMITS));
        assert_eq!((flow.segments_sent, flow.segments_received), (11, 12));
        assert_eq!([flow.rtt_us(), flow.min_rtt_us(), flow.handshake_us()], [250, 200, 39_936]);
        assert_eq!(flow.state().zip(flow.end()), Some((FlowState::Closed, FlowEnd::ClosedRemote)));
        assert_eq!(flow.role().zip(flow.owner()), Some((FlowRole::Client, FlowOwner::Application)));
        assert_eq!(flow.protocol, 6);
    }

    /// Pins an array as layout 2 had it, with the numbers from `first` on.
    fn pin_array(directory: &Path, name: &str, value_size: u32, entries: u32, first: u64) {
        let map = pin_map(directory, name, MapType::Array, [4, value_size, entries]);
        for index in 0..entries {
            let value = (first + u64::from(index)).to_ne_bytes();
            let value = &value[..value_size as usize];
            map.update(&index.to_ne_bytes(), value, MapFlags::ANY).unwrap();
        }
    }

    #[test]
    fn what_earlier_layouts_have_counted_is_taken_over() {
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
            let table = pin_map(&directory, "flows", MapType::LruHash, [8, 112, 64]);
            table.update(&77u64.to_ne_bytes(), &earlier_flow(), MapFlags::ANY).unwrap();
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
            assert_taken_over(&flows);
            // Layout 3 had such flows as well, and today's counters.
            let table = pin_map(&directory, "flows", MapType::LruHash, [8, 112, 64]);
            table.update(&77u64.to_ne_bytes(), &earlier_flow(), MapFlags::ANY).unwrap();
            pins::write_note(&directory, "layout", "3").unwrap();
            drop(flows);
            let (flows, found) = Flows::attach(&root, "migrate", &group, sizes).unwrap();
            assert_eq!(found, Found::Kept);
            assert_eq!(flows.totals().unwrap(), totals);
            assert_eq!(flows.capacity().unwrap(), 128);
            assert_taken_over(&flows);
            // A process that is killed right before it notes the layout leaves a table of today's form.
            pins::write_note(&directory, "layout", "3").unwrap();
            drop(flows);
            let (flows, found) = Flows::attach(&root, "migrate", &group, sizes).unwrap();
            assert_eq!(found, Found::Kept);
            assert_taken_over(&flows);
            flows.detach().unwrap();
            fs::remove_dir(&group).unwrap();
        };
        std::thread::scope(|scope| scope.spawn(test).join().unwrap());
    }
}
