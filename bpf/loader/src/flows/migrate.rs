//! Takes over what programs of an earlier layout have counted.
//!
//! Sums, names and sockets have had one form since layout 2. Up to layout 3 a flow had 112 bytes: its table is read, and what it
//! holds entered into one of today's form. Since layout 3 counters and settings are longer arrays: new ones are made and filled
//! before the programs are replaced, and what the old programs still counted until then is added after.

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

/// Whether pins with this note can be taken over.
pub(super) fn is_known(layout: &str) -> bool {
    layout == FLOW_LAYOUT.to_string() || ["2", "3"].contains(&layout)
}

/// Whether a map has the form of an earlier layout.
type IsEarlier = fn(&MapHandle) -> bool;

/// The maps that had another form in one.
const FORMS: [(&str, IsEarlier); 4] = [
    (TABLE, |map| map.value_size() == EARLIER_FLOW),
    // There beside the other if a process that carried flows over to another size was killed.
    (NEXT_TABLE, |map| map.value_size() == EARLIER_FLOW),
    ("totals", |map| map.max_entries() as usize == TOTALS_2.len()),
    ("control", |map| (map.max_entries() as usize) < FLOW_SETTINGS.len()),
];

/// What has another form in another layout, set aside so that the loader makes new ones: its pins have another name until all
/// that is in them was taken over. So a process that is killed meanwhile loses nothing: the next one begins again.
pub(super) struct SetAsideMaps {
    tables: Vec<MapHandle>,
    totals: Option<MapHandle>,
    control: Option<MapHandle>,
    /// Of `totals`, when the new array was filled.
    copied: [u64; TOTALS_2.len()],
}

impl SetAsideMaps {
    /// Sets it aside; `None` if the pins have the layout of this build, or there are none.
    pub(super) fn set_aside(directory: &Path) -> Result<Option<Self>, Error> {
        if !["2", "3"].contains(&pins::read_note(directory, "layout").as_str()) {
            // A process that had taken over everything may have been killed before it removed them.
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
                // A process that was killed may have set it aside.
                None => *map = open(&aside)?,
            }
        }
        // Nothing is renamed before all of them are open.
        renames.iter().try_for_each(|(from, to)| rename(from, to))?;
        let [table, next, totals, control] = maps;
        let tables = [table, next].into_iter().flatten().collect();
        Ok(Some(Self { tables, totals, control, copied: [0; TOTALS_2.len()] }))
    }

    /// How many flows the table could hold; `None` if there is none of the earlier form.
    pub(super) fn room_for_flows(&self) -> Option<u32> {
        self.tables.iter().map(MapHandle::max_entries).max()
    }

    /// Fills what has the form of this build, before any program uses it. A process that was killed may have filled it already,
    /// and its programs may have counted there: what is greater stays.
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

    /// Adds what was counted since it was filled. Once no program counts in the old array any more, this is exact, but for what
    /// the new programs count in the microsecond between the reading of a counter and its writing.
    pub(super) fn add_rest(&mut self, directory: &Path) -> Result<(), Error> {
        self.move_totals(directory, |there, now, copied| there + now.saturating_sub(copied))?;
        self.enter_flows(directory)
    }

    /// Sets each counter to a sum of what is there, of the earlier one now, and of that when it was filled.
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

    /// Enters the flows that are not in the table of this build, or have changed since they were entered.
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

/// Gives what is set aside its name again, in place of new ones.
pub(super) fn put_back(directory: &Path) -> Result<(), Error> {
    for (name, _) in FORMS {
        let aside = earlier_path(directory, name);
        if aside.exists() {
            rename(&aside, &pins::map_path(directory, name))?;
        }
    }
    Ok(())
}

/// Removes what is set aside, once the note says that everything was taken over.
pub(super) fn remove_earlier(directory: &Path) -> Result<(), Error> {
    FORMS.iter().try_for_each(|(name, _)| pins::remove(&earlier_path(directory, name)))
}

/// Where a map of an earlier form is pinned while it is taken over.
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

/// What fails, in errors.
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
            // Layout 3 had such flows as well, and today's counters.
            pin_table(&directory, "flows");
            pins::write_note(&directory, "layout", "3").unwrap();
            drop(flows);
            let (flows, found) = Flows::attach(root, "migrate", group, sizes).unwrap();
            assert_eq!(found, Found::Kept);
            assert_eq!(flows.totals().unwrap(), totals);
            assert_eq!(flows.capacity().unwrap(), 128);
            assert_taken_over(&flows);
            // A process that is killed right before it notes the layout leaves a table of today's form.
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
            // After it had set aside some, and had made nothing.
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
            // After it had made the new ones, and before it had filled them. The counters are filled already, and its programs
            // have counted on in one of them.
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
            // After it had written the note.
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
            // Without a link, or a cgroup, the programs can be put nowhere.
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
            // Nor is anything renamed if one of them cannot be opened: this is no map.
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
