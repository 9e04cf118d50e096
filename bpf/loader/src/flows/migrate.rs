//! Copies what programs of an earlier layout have counted into the maps of this build.
//!
//! The maps of sums, names and sockets have not changed since layout 2. In layouts 2 and 3 a flow has 112 bytes: their
//! table is read, and its flows are added to a new table. In layout 2 the arrays of counters and settings are shorter:
//! new ones are created and filled before the programs are replaced, and what the old programs count until then is
//! added afterwards.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use leno_bpf_abi::flow::{
    FLOW_LAYOUT, FLOW_SETTINGS, FLOW_TOTALS, Flow, FlowEnd, FlowLocal, FlowOwner, FlowParts,
    FlowRole, FlowState, MOST_RETRANSMITS, short_time,
};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use super::attach::{NEXT_TABLE, TABLE, rename};
use crate::error::Error;
use crate::{batch, pins};

/// The counters of layout 2, in the order of their indexes.
const TOTALS_2: [&str; 7] = [
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

/// Whether this build can use, or convert, pins whose note `layout` has this text.
pub(super) fn is_known(layout: &str) -> bool {
    layout == FLOW_LAYOUT.to_string() || ["2", "3"].contains(&layout)
}

/// Whether a map has the form of an earlier layout.
type IsEarlier = fn(&MapHandle) -> bool;

/// The maps whose form differs in an earlier layout.
const FORMS: [(&str, IsEarlier); 4] = [
    (TABLE, |map| map.value_size() == EARLIER_FLOW),
    // Exists beside the other if a process was killed while it copied flows to a table of another size.
    (NEXT_TABLE, |map| map.value_size() == EARLIER_FLOW),
    ("totals", |map| map.max_entries() as usize == TOTALS_2.len()),
    ("control", |map| (map.max_entries() as usize) < FLOW_SETTINGS.len()),
];

/// The maps of another layout. Their pins are renamed, so that the loader creates new maps, and removed only when
/// everything was copied. So nothing is lost if this process is killed: the next one begins again.
pub(super) struct SetAsideMaps {
    tables: Vec<MapHandle>,
    totals: Option<MapHandle>,
    control: Option<MapHandle>,
    /// The values of `totals` when the new array was filled.
    copied: [u64; TOTALS_2.len()],
}

impl SetAsideMaps {
    /// Renames the pins of such maps. `None` if the pins have the layout of this build, or if there are none.
    pub(super) fn set_aside(directory: &Path) -> Result<Option<Self>, Error> {
        if !["2", "3"].contains(&pins::read_note(directory, "layout").as_str()) {
            // A process may have been killed after it had copied everything, before it removed the renamed pins.
            remove_earlier(directory)?;
            return Ok(None);
        }
        let mut maps = [const { None }; FORMS.len()];
        let mut renames = Vec::new();
        for (map, (name, is_earlier)) in maps.iter_mut().zip(FORMS) {
            let (pin, aside) = (pins::map_path(directory, name), earlier_path(directory, name));
            let open = |pin: &Path| pin.exists().then(|| opened(pin)).transpose();
            *map = open(&pin)?.filter(is_earlier);
            match map {
                Some(_) => renames.push((pin, aside)),
                // A process that was killed may have renamed it already.
                None => *map = open(&aside)?,
            }
        }
        // Renames nothing unless all of them could be opened.
        renames.iter().try_for_each(|(from, to)| rename(from, to))?;
        let [table, next, totals, control] = maps;
        let tables = [table, next].into_iter().flatten().collect();
        Ok(Some(Self { tables, totals, control, copied: [0; TOTALS_2.len()] }))
    }

    /// How many flows the earlier table could hold; `None` if no table has an earlier layout.
    pub(super) fn room_for_flows(&self) -> Option<u32> {
        self.tables.iter().map(MapHandle::max_entries).max()
    }

    /// Fills the new maps before any program uses them. If a process that was killed has filled them already, its
    /// programs may have counted in them, so a counter that is greater than the earlier one stays.
    pub(super) fn fill(&mut self, directory: &Path) -> Result<(), Error> {
        if let Some(before) = &self.control {
            let control = opened(&pins::map_path(directory, "control"))?;
            for index in 0..before.max_entries() {
                let key = index.to_ne_bytes();
                let value = before.lookup(&key, MapFlags::ANY).map_err(Error::bpf(ACTION))?;
                let value = value.unwrap_or_default();
                control.update(&key, &value, MapFlags::ANY).map_err(Error::bpf(ACTION))?;
            }
        }
        self.move_totals(directory, |there, now, _| there.max(now))?;
        self.enter_flows(directory)
    }

    /// Adds what the old programs have counted since `fill`. It is exact once no program uses the old array, except for
    /// what the new programs count in the microsecond between reading and writing a counter.
    pub(super) fn add_rest(&mut self, directory: &Path) -> Result<(), Error> {
        self.move_totals(directory, |there, now, copied| there + now.saturating_sub(copied))?;
        self.enter_flows(directory)
    }

    /// Sets each new counter to a sum of its present value, the earlier counter's value now, and that value at the time
    /// of `fill`.
    fn move_totals(
        &mut self,
        directory: &Path,
        sum: impl Fn(u64, u64, u64) -> u64,
    ) -> Result<(), Error> {
        let Some(before) = &self.totals else { return Ok(()) };
        let totals = opened(&pins::map_path(directory, "totals"))?;
        for ((index, name), copied) in (0u32..).zip(TOTALS_2).zip(&mut self.copied) {
            let now = number(before, index)?;
            let Some(place) = FLOW_TOTALS.iter().position(|one| *one == name) else { continue };
            let place = place as u32;
            let there = number(&totals, place)?;
            let sum = sum(there, now, *copied);
            if sum != there {
                totals
                    .update(&place.to_ne_bytes(), &sum.to_ne_bytes(), MapFlags::ANY)
                    .map_err(Error::bpf(ACTION))?;
            }
            *copied = now;
        }
        Ok(())
    }

    /// Adds the flows that are not in the new table, or are newer than there.
    fn enter_flows(&self, directory: &Path) -> Result<(), Error> {
        let open = |name| opened(&pins::map_path(directory, name));
        let [flows, locals] = [open(TABLE)?, open("locals")?];
        let mut failed = None;
        for table in &self.tables {
            batch::for_each(table, ACTION, |key, value| {
                if let Some(flow) = flow_of(value) {
                    failed = failed.take().or(enter(&flows, &locals, key, &flow).err());
                }
            })?;
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Renames the maps of the earlier layout back, in place of the new ones.
pub(super) fn put_back(directory: &Path) -> Result<(), Error> {
    for (name, _) in FORMS {
        let aside = earlier_path(directory, name);
        if aside.exists() {
            rename(&aside, &pins::map_path(directory, name))?;
        }
    }
    Ok(())
}

/// Removes the maps of the earlier layout, once the note `layout` says that everything was copied.
pub(super) fn remove_earlier(directory: &Path) -> Result<(), Error> {
    FORMS.iter().try_for_each(|(name, _)| pins::remove(&earlier_path(directory, name)))
}

/// The pin of a map of an earlier layout while it is copied.
fn earlier_path(directory: &Path, name: &str) -> PathBuf {
    pins::map_path(directory, &format!("{name}_earlier"))
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

/// Converts a flow of layouts 2 and 3; returns it with the workload's address.
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

/// What failed, for errors.
const ACTION: &str = "take over the counters of another layout";

fn opened(pin: &Path) -> Result<MapHandle, Error> {
    MapHandle::from_pinned_path(pin).map_err(Error::bpf(ACTION))
}

fn number(map: &MapHandle, index: u32) -> Result<u64, Error> {
    let value = map.lookup(&index.to_ne_bytes(), MapFlags::ANY).map_err(Error::bpf(ACTION))?;
    Ok(value.unwrap_or_default().as_slice().try_into().map(u64::from_ne_bytes).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use leno_bpf_abi::flow::{FlowPair, FlowSums};
    use libbpf_rs::MapType;

    use super::*;
    use crate::flows::self_test::apart;
    use crate::flows::{EarlierMaps as Found, FlowSizes, Flows, attach};

    #[test]
    fn every_counter_of_an_earlier_layout_has_a_place() {
        for name in TOTALS_2 {
            assert!(FLOW_TOTALS.contains(&name), "{name}");
        }
    }

    /// Creates a map and pins it in place of another one.
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
        let local = flow.local(|number| locals.get(number));
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

    /// Pins a table as layouts 2 and 3 had it, with one flow.
    fn pin_table(directory: &Path, name: &str) {
        let table = pin_map(directory, name, MapType::LruHash, [8, EARLIER_FLOW, 64]);
        table.update(&77u64.to_ne_bytes(), &earlier_flow(), MapFlags::ANY).unwrap();
    }

    fn is_aside(directory: &Path) -> bool {
        FORMS.iter().any(|(name, _)| earlier_path(directory, name).exists())
    }

    #[test]
    fn what_earlier_layouts_have_counted_is_taken_over() {
        apart("migrate", |group, root| {
            let sizes = FlowSizes::new(64, 64).unwrap();
            let (flows, found) = Flows::attach(root, "migrate", group, sizes).unwrap();
            assert_eq!(found, Found::New);
            let directory = root.of("migrate").unwrap();
            pin_array(&directory, "totals", 8, 7, 10);
            pin_array(&directory, "control", 4, 2, 0);
            pin_table(&directory, "flows");
            pins::write_note(&directory, "layout", "2").unwrap();
            let pair =
                FlowPair { workload: 3, peer: 4, role: 0, owner: 0, protocol: 0, reserved: 0 };
            let mut sums = FlowSums::from_bytes(&[0; size_of::<FlowSums>()]).unwrap();
            sums.opened = 77;
            let pairs = opened(&pins::map_path(&directory, "pairs")).unwrap();
            pairs.update(&pair.to_bytes(), &sums.to_bytes(), MapFlags::ANY).unwrap();
            drop(flows);

            let sizes = FlowSizes::new(128, 64).unwrap();
            let (flows, found) = Flows::attach(root, "migrate", group, sizes).unwrap();
            assert_eq!(found, Found::Kept);
            let totals = flows.totals().unwrap();
            let numbers = [totals.added, totals.unlisted, totals.untracked, totals.folded];
            assert_eq!(numbers, [10, 11, 12, 13]);
            assert_eq!((totals.events_written, totals.events_dropped), (14, 15));
            assert_eq!((totals.removed, totals.aggregated, totals.left_out), (16, 0, 0));
            assert!(flows.pairs().unwrap().contains(&(pair, sums)));
            assert_eq!(flows.capacity().unwrap(), 128);
            assert_taken_over(&flows);
            // Layout 3 has flows of the same form, but this build's counters.
            pin_table(&directory, "flows");
            pins::write_note(&directory, "layout", "3").unwrap();
            drop(flows);
            let (flows, found) = Flows::attach(root, "migrate", group, sizes).unwrap();
            assert_eq!(found, Found::Kept);
            assert_eq!(flows.totals().unwrap(), totals);
            assert_eq!(flows.capacity().unwrap(), 128);
            assert_taken_over(&flows);
            // A process that is killed right before it writes the layout leaves a table of this build's form.
            pins::write_note(&directory, "layout", "3").unwrap();
            drop(flows);
            let (flows, found) = Flows::attach(root, "migrate", group, sizes).unwrap();
            assert_eq!(found, Found::Kept);
            assert_taken_over(&flows);
            assert!(!is_aside(&directory));
            flows.detach().unwrap();
        });
    }

    #[test]
    fn a_process_that_is_killed_while_it_takes_over_loses_nothing() {
        apart("killed", |group, root| {
            let sizes = FlowSizes::new(64, 64).unwrap();
            let attach = || Flows::attach(root, "killed", group, sizes).unwrap().0;
            let flows = attach();
            let directory = root.of("killed").unwrap();
            let set_back = |flows: Flows| {
                let table = flows.table().unwrap();
                drop(flows);
                table.delete(&77u64.to_ne_bytes()).ok();
                pins::write_note(&directory, "layout", "2").unwrap();
                pins::remove(&pins::map_path(&directory, "locals")).unwrap();
            };
            let numbers = |flows: &Flows| {
                let totals = flows.totals().unwrap();
                [totals.added, totals.unlisted, totals.removed]
            };
            // Killed after some maps were renamed, and before any was created.
            set_back(flows);
            pin_table(&directory, "flows_earlier");
            pins::remove(&pins::map_path(&directory, "flows")).unwrap();
            pin_table(&directory, "flows_next");
            pin_array(&directory, "totals_earlier", 8, 7, 10);
            pins::remove(&pins::map_path(&directory, "totals")).unwrap();
            pin_array(&directory, "control", 4, 2, 0);
            let flows = attach();
            assert_taken_over(&flows);
            assert_eq!(numbers(&flows), [10, 11, 16]);
            assert!(!is_aside(&directory));
            // Killed after the new maps were created, and before the table was filled. The counters are filled already,
            // and the new programs have counted on in one of them.
            set_back(flows);
            pin_table(&directory, "flows_earlier");
            pin_array(&directory, "totals_earlier", 8, 7, 10);
            pin_array(&directory, "control_earlier", 4, 2, 0);
            let totals = opened(&pins::map_path(&directory, "totals")).unwrap();
            totals.update(&0u32.to_ne_bytes(), &12u64.to_ne_bytes(), MapFlags::ANY).unwrap();
            let flows = attach();
            assert_taken_over(&flows);
            assert_eq!(numbers(&flows), [12, 11, 16]);
            assert!(!is_aside(&directory));
            // Killed after the layout was written.
            pin_table(&directory, "flows_earlier");
            flows.table().unwrap().delete(&77u64.to_ne_bytes()).unwrap();
            drop(flows);
            let flows = attach();
            flows.for_each(|_, flow| panic!("{flow:?}")).unwrap();
            assert!(!is_aside(&directory));
            flows.detach().unwrap();
        });
    }

    #[test]
    fn what_cannot_be_taken_over_gets_its_name_back() {
        apart("put-back", |group, root| {
            let sizes = FlowSizes::new(64, 64).unwrap();
            let (flows, _) = Flows::attach(root, "put-back", group, sizes).unwrap();
            drop(flows);
            let directory = root.of("put-back").unwrap();
            pin_table(&directory, "flows");
            pin_array(&directory, "totals", 8, 7, 10);
            pin_array(&directory, "control", 4, 2, 0);
            pins::write_note(&directory, "layout", "2").unwrap();
            let link = pins::link_path(&directory, "leno_flow_sockops");
            let elsewhere = pins::link_path(&directory, "elsewhere");
            rename(&link, &elsewhere).unwrap();
            // The programs can be attached to nothing without a link or a cgroup.
            attach::put_in_place(&directory, None, sizes.capacities()).unwrap_err();
            assert!(!is_aside(&directory));
            assert_eq!(pins::read_note(&directory, "layout"), "2");
            let table = opened(&pins::map_path(&directory, "flows")).unwrap();
            let flow = table.lookup(&77u64.to_ne_bytes(), MapFlags::ANY).unwrap();
            assert_eq!(flow, Some(earlier_flow()));
            for (name, entries) in [("totals", 7), ("control", 2)] {
                let map = opened(&pins::map_path(&directory, name)).unwrap();
                assert_eq!(map.max_entries(), entries, "{name}");
            }
            // Nothing is renamed either if one of the maps cannot be opened, as this, which is no map.
            let control = pins::map_path(&directory, "control");
            let before = pins::map_path(&directory, "control_before");
            rename(&control, &before).unwrap();
            std::os::unix::fs::symlink(".", &control).unwrap();
            SetAsideMaps::set_aside(&directory).map(drop).unwrap_err();
            assert!(!is_aside(&directory));
            pins::remove(&control).unwrap();
            rename(&before, &control).unwrap();
            rename(&elsewhere, &link).unwrap();
            let (flows, _) = Flows::attach(root, "put-back", group, sizes).unwrap();
            assert_taken_over(&flows);
            flows.detach().unwrap();
        });
    }
}
