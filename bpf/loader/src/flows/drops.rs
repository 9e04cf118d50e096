//! Counts the packets that the kernel drops, by workload and reason.
//!
//! The BPF program `leno_flow_drop` is attached to the tracepoint `kfree_skb`, which sees the drops of the whole
//! machine. The kernel cannot exchange the program of a tracepoint's link. So while one program replaces another, both
//! are attached. Each is configured with a number, its turn, and counts only while the map `drop_turn` has that number.

use std::path::Path;

use leno_bpf_abi::flow::FlowDrop;
use libbpf_rs::btf::types::{Enum, FuncProto, Ptr, Typedef};
use libbpf_rs::btf::{Btf, ReferencesType as _};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, Object, OpenObject};

use super::{Flows, Maps};
use crate::error::Error;
use crate::{batch, pins};

/// The BPF program that counts drops (`bpf/progs/flows.bpf.c`).
pub(super) const PROGRAM: &str = "leno_flow_drop";
/// The name under which the link of a new program is pinned until it is renamed over the previous program's.
const NEXT: &str = "next_drop";
/// The name of the note (see [`pins::write_note`]) that says why drops are not counted.
const NOTE: &str = "drops";
/// The kernel's type of functions on the tracepoint, and how many arguments it has: one of the tracepoint's own, the packet,
/// the place, the reason (since Linux 5.17), the socket (since 6.11).
const TRACEPOINT: &str = "btf_trace_kfree_skb";
const WITH_REASON: usize = 4;
const WITH_SOCKET: usize = 5;
/// The kernel's enum of reasons. Its constants have one of the prefixes.
const REASONS: &str = "skb_drop_reason";
const PREFIXES: [&str; 2] = ["SKB_DROP_REASON_", "SKB_"];
const ACTION: &str = "count dropped packets";

/// What this kernel's `kfree_skb` tracepoint offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tracepoint {
    /// How many arguments its functions have; 0 if the kernel's BTF does not describe it.
    arguments: usize,
}

impl Tracepoint {
    /// Reads the kernel's BTF, which takes some milliseconds.
    pub(crate) fn find() -> Self {
        let count = || {
            let btf = Btf::from_vmlinux().ok()?;
            let pointer: Typedef<'_> = btf.type_by_name(TRACEPOINT)?;
            let pointer: Ptr<'_> = btf.type_by_id(pointer.referenced_type_id())?;
            let function: FuncProto<'_> = btf.type_by_id(pointer.referenced_type_id())?;
            Some(function.iter().count())
        };
        Self { arguments: count().unwrap_or_default() }
    }

    pub(crate) fn names_socket(self) -> bool {
        self.arguments >= WITH_SOCKET
    }

    /// Why drops cannot be counted; `None` if they can, as far as is known before the program is loaded.
    pub(crate) fn lacks(self) -> Option<&'static str> {
        match self.arguments {
            0 => Some("the kernel describes no tracepoint kfree_skb"),
            few if few < WITH_REASON => {
                Some("the kernel's tracepoint kfree_skb has no reason (before Linux 5.17)")
            }
            _ => None,
        }
    }
}

/// Marks the drop program of an object so that it is not loaded with the object.
pub(super) fn leave_out(object: &mut OpenObject) {
    for mut program in object.progs_mut().filter(|one| one.name() == PROGRAM) {
        program.set_autoload(false);
    }
}

/// Loads an object by calling `load`, whose argument says whether to include the drop program. If the kernel lacks the
/// tracepoint or its reason, or if loading fails, loads the object without that program and writes the cause into a
/// note. Otherwise removes an earlier note.
pub(super) fn load_with_or_without(
    directory: &Path,
    tracepoint: Tracepoint,
    load: impl Fn(bool) -> Result<Object, Error>,
) -> Result<Object, Error> {
    let mut why = tracepoint.lacks().map(str::to_owned);
    let mut loaded = load(why.is_none());
    if why.is_none()
        && let Err(error) = &loaded
    {
        why = Some(error.reason());
        loaded = load(false);
    }
    let object = loaded?;
    match why {
        Some(why) => pins::write_note(directory, NOTE, &why)?,
        None => pins::remove(&directory.join(NOTE))?,
    }
    Ok(object)
}

/// The reason why drops are not counted; `None` if they are counted.
pub(crate) fn are_not_counted(directory: &Path) -> Option<String> {
    let is_attached = pins::link_path(directory, PROGRAM).exists();
    let why = pins::read_note(directory, NOTE);
    match (is_attached, why.is_empty()) {
        (true, _) => None,
        (false, true) => {
            Some("the version that attached the programs does not count them".to_owned())
        }
        (false, false) => Some(why),
    }
}

/// The turn of the next program: one more than the number in `drop_turn`, or 1 if that map does not exist or cannot be
/// read. As it differs, the new program counts nothing until [`replace`] writes its turn into the map.
pub(super) fn next_turn(directory: &Path) -> u32 {
    let turn = MapHandle::from_pinned_path(pins::map_path(directory, "drop_turn"));
    turn.ok().and_then(|map| turn_of(&map)).map_or(1, |turn| turn.wrapping_add(1))
}

fn turn_of(map: &MapHandle) -> Option<u32> {
    let value = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()??;
    value.as_slice().try_into().ok().map(u32::from_ne_bytes)
}

/// Attaches the object's drop program, which is configured with `turn`, and detaches the present one. If the object was
/// loaded without it, or if it cannot be attached, drops are no longer counted; in the latter case a note says why. A
/// packet that is dropped while `drop_turn` changes may be counted twice or not at all.
pub(super) fn replace(object: &Object, directory: &Path, turn: u32) -> Result<(), Error> {
    let path = pins::link_path(directory, PROGRAM);
    let next = directory.join(NEXT);
    pins::remove(&next)?;
    let Some(program) = object.progs_mut().find(|one| one.name() == PROGRAM && one.autoload())
    else {
        return pins::detach(&path);
    };
    let mut link = match program.attach().map_err(Error::bpf(ACTION)) {
        Ok(link) => link,
        Err(error) => {
            pins::write_note(directory, NOTE, &error.reason())?;
            return pins::detach(&path);
        }
    };
    link.pin(&next).map_err(Error::bpf(ACTION))?;
    let map = Maps::open_one(directory, "drop_turn")?;
    super::update(&map, &0u32.to_ne_bytes(), &turn.to_ne_bytes(), ACTION)?;
    // This replaces the pin of the previous link, and so detaches the previous program.
    std::fs::rename(&next, &path).map_err(Error::io(ACTION))
}

/// Creates the entry `{workload: 0, reason: 0}`, which counts packets for which the map has no room. The program cannot
/// create it when the map is full.
pub(super) fn make_rest(object: &Object) -> Result<(), Error> {
    let Some(drops) = object.maps().find(|map| map.name() == "drops") else { return Ok(()) };
    let rest = FlowDrop { workload: 0, reason: 0 };
    match drops.update(&rest.to_bytes(), &0u64.to_ne_bytes(), MapFlags::NO_EXIST) {
        Err(error) if error.kind() != libbpf_rs::ErrorKind::AlreadyExists => {
            Err(Error::bpf(ACTION)(error))
        }
        _ => Ok(()),
    }
}

/// The kernel's drop reasons, each with its number and its name without prefix, such as `NO_SOCKET`, which is how the
/// kernel itself prints it in the tracepoint's output. Empty if the kernel's BTF does not have them.
#[must_use]
pub fn drop_reasons() -> Vec<(u32, String)> {
    let Ok(btf) = Btf::from_vmlinux() else { return Vec::new() };
    let Some(reasons) = btf.type_by_name::<Enum<'_>>(REASONS) else { return Vec::new() };
    let named = |number: i64, name: &str| {
        let short = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
        Some((u32::try_from(number).ok()?, short.to_owned()))
    };
    let all = reasons.iter();
    all.filter_map(|one| named(one.value, &one.name?.to_string_lossy())).collect()
}

impl Flows {
    /// How many packets were dropped, by workload and reason. Empty if drops are not counted.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn drops(&self) -> Result<Vec<(FlowDrop, u64)>, Error> {
        // A version of Leno that did not count drops has not pinned this map.
        if !pins::map_path(&self.directory, "drops").exists() {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        let drops = Maps::open_one(&self.directory, "drops")?;
        batch::for_each(&drops, "read the dropped packets", |key, value| {
            let count = value.try_into().map(u64::from_ne_bytes).ok();
            all.extend(FlowDrop::from_bytes(key).zip(count).filter(|(_, count)| *count > 0));
        })?;
        Ok(all)
    }

    /// The reason why drops are not counted; `None` if they are counted.
    #[must_use]
    pub fn drops_are_not_counted(&self) -> Option<String> {
        are_not_counted(&self.directory)
    }
}
