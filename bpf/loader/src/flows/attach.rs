//! Loads, attaches, pins and replaces the flow programs, and copies the table when its size changes.
#![expect(
    unsafe_code,
    reason = "links are set back to a program by its descriptor, and membarrier(2)"
)]

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use leno_bpf_abi::flow::{FLOW_LAYOUT, FlowConfig, FlowOwner, FlowPair, FlowRole};
use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, OpenObject, Program};

use super::migrate::{self, SetAsideMaps};
use super::ports::ReplacedHook;
use super::sizes::MapCapacities;
use super::{drops, ports, reading};
use crate::error::Error;
use crate::{batch, features, object, pins};

/// The program on the cgroup.
const SOCKOPS: &str = "leno_flow_sockops";
/// The table of flows, and the name under which a new one is pinned while it is being filled.
pub(super) const TABLE: &str = "flows";
pub(super) const NEXT_TABLE: &str = "flows_next";
/// The map of the object that becomes the previous table while entries are copied.
const TABLE_BEFORE: &str = "flows_before";
/// The maps that are pinned, under these names.
const MAPS: &[&str] = &[
    TABLE,
    "locals",
    "pairs",
    "requests",
    "wire_requests",
    "sockets",
    "workloads",
    "ports",
    "by_frames",
    "addresses",
    "names",
    "runs",
    "caps",
    "drops",
    "drop_turn",
    "totals",
    "control",
    "events",
    "samples",
    "sample_counts",
];

/// Loads, attaches and pins everything in a directory, and reuses the maps that are pinned there.
pub(super) fn attach_in(
    directory: &Path,
    owner: &str,
    cgroup: &Path,
    capacities: MapCapacities,
) -> Result<(), Error> {
    let at = File::open(cgroup).map_err(Error::io(format!("open {}", cgroup.display())))?;
    pins::create_private_directory(directory)?;
    pins::write_note(directory, "owner", owner)?;
    put_in_place(directory, Some(&at), capacities)
}

/// Replaces the programs by those of this build, with maps of these sizes. If the table of flows gets another size, its
/// entries are copied while the programs go on, and no change of a flow is lost. Without `cgroup` the programs stay
/// attached where they are.
pub(super) fn put_in_place(
    directory: &Path,
    cgroup: Option<&File>,
    capacities: MapCapacities,
) -> Result<(), Error> {
    if let Some(earlier) = SetAsideMaps::set_aside(directory)? {
        take_over(directory, cgroup, capacities, earlier)?;
    }
    let next = pins::map_path(directory, NEXT_TABLE);
    if next.exists() {
        // A process that was copying entries was killed. Its copy is completed first.
        let interrupted = opened(&next, NEXT_TABLE)?.max_entries();
        carry_over(directory, cgroup, MapCapacities { flows: interrupted, ..capacities })?;
    }
    let pin = pins::map_path(directory, TABLE);
    if pin.exists() && opened(&pin, TABLE)?.max_entries() != capacities.flows {
        carry_over(directory, cgroup, capacities)?;
    }
    let loaded = load(directory, capacities, None)?;
    make_rest(&loaded.object)?;
    replace(&loaded, directory, cgroup)?;
    pins::write_note(directory, "layout", &FLOW_LAYOUT.to_string())?;
    pins::write_note(directory, "version", env!("CARGO_PKG_VERSION"))
}

/// Replaces programs of another layout by those of this build, and copies all that they have counted.
fn take_over(
    directory: &Path,
    cgroup: Option<&File>,
    capacities: MapCapacities,
    mut earlier: SetAsideMaps,
) -> Result<(), Error> {
    let pin = pins::map_path(directory, TABLE);
    // If there is a table of this build's layout, another process was killed while it did this. The new programs may
    // use that table already, so it keeps its size.
    let was_interrupted = pin.exists();
    let flows = match earlier.room_for_flows() {
        _ if was_interrupted => opened(&pin, TABLE)?.max_entries(),
        Some(room) => room,
        None => capacities.flows,
    };
    let loaded = load(directory, MapCapacities { flows, ..capacities }, None);
    let replaced = loaded.and_then(|loaded| {
        make_rest(&loaded.object)?;
        earlier.fill(directory)?;
        replace(&loaded, directory, cgroup)
    });
    if let Err(error) = replaced {
        if !was_interrupted {
            migrate::put_back(directory)?;
        }
        return Err(error);
    }
    wait_for_running_programs()?;
    earlier.add_rest(directory)?;
    pins::write_note(directory, "layout", &FLOW_LAYOUT.to_string())?;
    migrate::remove_earlier(directory)
}

/// Makes the programs use a new table, and then copies the entries of the previous one into it.
fn carry_over(directory: &Path, cgroup: Option<&File>, to: MapCapacities) -> Result<(), Error> {
    let before = opened(&pins::map_path(directory, TABLE), TABLE)?;
    let loaded = load(directory, to, Some(&before))?;
    make_rest(&loaded.object)?;
    replace(&loaded, directory, cgroup)?;
    wait_for_running_programs()?;
    let next = pins::map_path(directory, NEXT_TABLE);
    let table = opened(&next, NEXT_TABLE)?;
    let mut failed = None;
    batch::for_each(&before, "read the table of flows", |key, value| {
        match table.update(key, value, MapFlags::NO_EXIST) {
            // A program has copied the entry already, because its flow has changed.
            Err(error) if error.kind() == libbpf_rs::ErrorKind::AlreadyExists => {}
            Err(error) => failed = Some(Error::bpf("carry a flow over to another table")(error)),
            Ok(()) => {}
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    rename(&next, &pins::map_path(directory, TABLE))
}

/// Returns once all runs of programs that had begun before have ended, so that none uses the previous table any longer.
fn wait_for_running_programs() -> Result<(), Error> {
    // MEMBARRIER_CMD_GLOBAL (since Linux 4.3) waits for a grace period of RCU, under which BPF programs run.
    // SAFETY: the call takes and returns plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, 1, 0, 0) };
    if result == 0 {
        return Ok(());
    }
    Err(Error::io("wait for running programs")(io::Error::last_os_error()))
}

/// The object of flow programs for this kernel, configured. Its drop program counts only while `drop_turn` is `turn`.
pub(crate) fn open(carries_over: bool, turn: u32) -> Result<OpenObject, Error> {
    let bytes = match features::has_atomic_fetch() {
        true => crate::FLOWS_OBJECT,
        false => crate::FLOWS_PLAIN_OBJECT,
    };
    let config = FlowConfig {
        carries_over: carries_over.into(),
        netns_by_inode: (!features::has_netns_cookies()).into(),
        drop_names_socket: features::drops().names_socket().into(),
        reserved: 0,
        turn,
    };
    let mut object = object::open(bytes)?;
    object::configure(&mut object, &config.to_bytes())?;
    reading::choose(&mut object);
    if features::drops().lacks().is_some() {
        drops::leave_out(&mut object);
    }
    Ok(object)
}

/// Loads the object with the pinned maps. A ring of another size is replaced. If `before` is given, the table of flows
/// is replaced, and `before` becomes the previous table.
fn load(
    directory: &Path,
    capacities: MapCapacities,
    before: Option<&MapHandle>,
) -> Result<Loaded, Error> {
    let turn = drops::next_turn(directory);
    let load = |with_drops: bool| {
        let mut object = prepare(directory, capacities, before, turn)?;
        if !with_drops {
            drops::leave_out(&mut object);
        }
        object::verify(object)
    };
    let object = drops::load_with_or_without(directory, features::drops(), load)?;
    Ok(Loaded { object, turn })
}

/// The object with its maps: which ones are reused, their sizes, and where they are pinned.
fn prepare(
    directory: &Path,
    capacities: MapCapacities,
    before: Option<&MapHandle>,
    turn: u32,
) -> Result<OpenObject, Error> {
    let mut object = open(before.is_some(), turn)?;
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let action = || format!("pin the map {name}");
        if name == TABLE_BEFORE
            && let Some(before) = before
        {
            map.reuse_fd(before.as_fd()).map_err(Error::bpf("use the table of flows"))?;
        }
        if !MAPS.contains(&name.as_str()) {
            continue;
        }
        let mut pin = pins::map_path(directory, &name);
        match name.as_str() {
            TABLE => {
                map.set_max_entries(capacities.flows).map_err(Error::bpf(action()))?;
                if before.is_some() {
                    pin = pins::map_path(directory, NEXT_TABLE);
                }
            }
            "events" | "samples" => {
                let there = pin.exists().then(|| opened(&pin, &name)).transpose()?;
                let there = there.map(|map| map.max_entries());
                let bytes = match name.as_str() {
                    "events" => capacities.event_bytes,
                    // A ring of samples that was enlarged once keeps its size, since samples may wait in it.
                    _ => capacities.sample_bytes.max(there.unwrap_or_default()),
                };
                map.set_max_entries(bytes).map_err(Error::bpf(action()))?;
                if there.is_some_and(|there| there != bytes) {
                    pins::remove(&pin)?;
                }
            }
            _ => {}
        }
        map.set_pin_path(pin).map_err(Error::bpf(action()))?;
    }
    Ok(object)
}

/// An object that the kernel has loaded.
struct Loaded {
    object: Object,
    /// The value of `drop_turn` with which its drop program counts.
    turn: u32,
}

fn opened(pin: &Path, name: &str) -> Result<MapHandle, Error> {
    MapHandle::from_pinned_path(pin).map_err(Error::bpf(format!("open the map {name}")))
}

/// Creates the entries for which the programs have no room when the maps are full: sums of further pairs, and further
/// drops.
fn make_rest(object: &Object) -> Result<(), Error> {
    drops::make_rest(object)?;
    let pairs = object.maps().find(|map| map.name() == "pairs").ok_or_else(missing)?;
    let zero = vec![0; pairs.value_size() as usize];
    for role in FlowRole::ALL {
        for owner in FlowOwner::ALL {
            let (role, owner) = (*role as u8, *owner as u8);
            let key = FlowPair { workload: 0, peer: 0, role, owner, protocol: 0, reserved: 0 };
            match pairs.update(&key.to_bytes(), &zero, MapFlags::NO_EXIST) {
                Err(error) if error.kind() != libbpf_rs::ErrorKind::AlreadyExists => {
                    return Err(Error::bpf("make the sums of further pairs")(error));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Replaces the pinned programs by those of an object. If one of them cannot be replaced, those before it get their
/// previous program again.
fn replace(loaded: &Loaded, directory: &Path, cgroup: Option<&File>) -> Result<(), Error> {
    let Loaded { object, turn } = loaded;
    let reader = reading::pin_next(object, directory)?;
    let mut before = Vec::new();
    let replaced = replace_all(object, directory, cgroup, &mut before)
        .and_then(|()| reading::put_in_place(&reader, directory))
        .and_then(|()| drops::replace(object, directory, *turn));
    if replaced.is_err() {
        pins::remove(&reader)?;
        before.into_iter().try_for_each(PreviousProgram::run)?;
    }
    replaced
}

fn replace_all(
    object: &Object,
    directory: &Path,
    cgroup: Option<&File>,
    before: &mut Vec<PreviousProgram>,
) -> Result<(), Error> {
    before.extend(replace_sockops(object, directory, cgroup)?);
    ports::replace(object, directory, |of, program| before.push(PreviousProgram { of, program }))
}

/// The program that a link or a filter had before it was replaced.
struct PreviousProgram {
    of: ReplacedHook,
    program: OwnedFd,
}

impl PreviousProgram {
    fn run(self) -> Result<(), Error> {
        let action = "set a link back to the program before";
        let link = match self.of {
            ReplacedHook::Link(link) => link,
            ReplacedHook::Filter(filters, at) => {
                return filters.put(at, self.program.as_fd()).map_err(Error::io(action));
            }
        };
        let (link, program) = (link.as_fd().as_raw_fd(), self.program.as_raw_fd());
        // SAFETY: both descriptors live through the call, and no options are given.
        let result = unsafe { libbpf_sys::bpf_link_update(link, program, std::ptr::null()) };
        if result == 0 {
            return Ok(());
        }
        Err(Error::io(action)(io::Error::from_raw_os_error(-result)))
    }
}

/// Replaces the program on the cgroup without a gap. If the link is on another cgroup, detaches it and attaches the
/// program to this one.
fn replace_sockops(
    object: &Object,
    directory: &Path,
    cgroup: Option<&File>,
) -> Result<Option<PreviousProgram>, Error> {
    let program = object.progs_mut().find(|one| one.name() == SOCKOPS).ok_or_else(missing)?;
    let path = pins::link_path(directory, SOCKOPS);
    let action = || format!("attach {SOCKOPS}");
    if path.exists() {
        let mut link = Link::open(&path).map_err(Error::bpf(action()))?;
        let info = link.info().map_err(Error::bpf(action()))?;
        if cgroup.is_none() || is_on(&info.info, cgroup)? {
            let before = Program::fd_from_id(info.prog_id).map_err(Error::bpf(action()))?;
            link.update_prog(&program).map_err(Error::bpf(action()))?;
            return Ok(Some(PreviousProgram { of: ReplacedHook::Link(link), program: before }));
        }
        pins::detach(&path)?;
    }
    let Some(cgroup) = cgroup else {
        let gone = io::Error::other(
            "the pinned programs are not attached: remove them with `leno \
             ebpf prune`",
        );
        return Err(Error::io("replace the flow programs")(gone));
    };
    let mut link = program.attach_cgroup(cgroup.as_raw_fd()).map_err(Error::bpf(action()))?;
    link.pin(&path).map_err(Error::bpf(action()))?;
    Ok(None)
}

/// Whether a link is on this cgroup. The inode number of a cgroup's directory is the cgroup's id (cgroup v2, 64-bit
/// kernels).
fn is_on(info: &LinkTypeInfo, cgroup: Option<&File>) -> Result<bool, Error> {
    let Some(cgroup) = cgroup else { return Ok(false) };
    let id = cgroup.metadata().map_err(Error::io(format!("attach {SOCKOPS}")))?.ino();
    Ok(matches!(info, LinkTypeInfo::Cgroup(on) if on.cgroup_id == id))
}

pub(super) fn rename(from: &Path, to: &Path) -> Result<(), Error> {
    fs::rename(from, to).map_err(Error::io(format!("rename {}", from.display())))
}

/// The error if the embedded object has no such program or map, which only a build of mixed versions causes.
pub(super) fn missing() -> Error {
    Error::io("use the flow programs")(io::Error::other("the embedded object is incomplete"))
}
