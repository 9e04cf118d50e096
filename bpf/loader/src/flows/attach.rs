//! Loads, attaches and pins the flow programs.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use leno_bpf_abi::flow::{FLOW_LAYOUT, FlowOwner, FlowPair, FlowRole};
use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object};

use super::{READ, Sizes, read_path};
use crate::error::Error;
use crate::{FLOWS_OBJECT, object, pins};

/// The program on the cgroup.
const SOCKOPS: &str = "leno_flow_sockops";
/// The maps, pinned under these names.
const MAPS: &[&str] = &[
    "flows",
    "pairs",
    "sockets",
    "workloads",
    "addresses",
    "names",
    "totals",
    "control",
    "events",
];

/// Returns the table of flows of an earlier process if it had another size.
pub(super) fn attach_in(
    directory: &Path,
    owner: &str,
    cgroup: &Path,
    sizes: Sizes,
) -> Result<Option<MapHandle>, Error> {
    let at = File::open(cgroup).map_err(Error::io(format!("open {}", cgroup.display())))?;
    pins::create_private_directory(directory)?;
    pins::write_note(directory, "owner", owner)?;
    pins::write_note(directory, "version", env!("CARGO_PKG_VERSION"))?;
    let (object, replaced) = load(directory, sizes)?;
    pins::write_note(directory, "layout", &FLOW_LAYOUT.to_string())?;
    make_rest(&object)?;
    attach_read(&object, directory)?;
    attach_sockops(&object, directory, &at)?;
    Ok(replaced)
}

/// Loads the object with the pinned maps; those of another size are replaced.
fn load(directory: &Path, sizes: Sizes) -> Result<(Object, Option<MapHandle>), Error> {
    let mut replaced = None;
    let mut object = object::open(FLOWS_OBJECT)?;
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if !MAPS.contains(&name.as_str()) {
            continue;
        }
        let action = || format!("pin the map {name}");
        match name.as_str() {
            "flows" => map.set_max_entries(sizes.flows()).map_err(Error::bpf(action()))?,
            "events" => map.set_max_entries(sizes.event_bytes()).map_err(Error::bpf(action()))?,
            _ => {}
        }
        let pin = pins::map_path(directory, &name);
        if pin.exists() {
            let pinned = MapHandle::from_pinned_path(&pin).map_err(Error::bpf(action()))?;
            if pinned.max_entries() != map.max_entries() {
                pins::remove(&pin)?;
                if name == "flows" {
                    replaced = Some(pinned);
                }
            }
        }
        map.set_pin_path(pin).map_err(Error::bpf(action()))?;
    }
    Ok((object::verify(object)?, replaced))
}

/// Makes the sums of the flows whose pair finds no room, which the programs cannot.
fn make_rest(object: &Object) -> Result<(), Error> {
    let pairs = object.maps().find(|map| map.name() == "pairs").ok_or_else(missing)?;
    let zero = vec![0; pairs.value_size() as usize];
    for role in FlowRole::ALL {
        for owner in FlowOwner::ALL {
            let (role, owner) = (*role as u8, *owner as u8);
            let key = FlowPair { workload: 0, peer: 0, role, owner, reserved: [0; 2] };
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

/// Replaces the file that is read.
fn attach_read(object: &Object, directory: &Path) -> Result<(), Error> {
    let sockets = object.maps().find(|map| map.name() == "sockets").ok_or_else(missing)?;
    let program = object.progs_mut().find(|one| one.name() == READ).ok_or_else(missing)?;
    let path = read_path(directory);
    pins::remove(&path)?;
    let link = program.attach_iter(sockets.as_fd());
    let mut link = link.map_err(Error::bpf(format!("attach {READ}")))?;
    link.pin(&path).map_err(Error::bpf(format!("pin {READ}")))
}

/// Replaces the program on the cgroup without a gap; attaches it if the link is to another cgroup.
fn attach_sockops(object: &Object, directory: &Path, cgroup: &File) -> Result<(), Error> {
    let program = object.progs_mut().find(|one| one.name() == SOCKOPS).ok_or_else(missing)?;
    let path = pins::link_path(directory, SOCKOPS);
    let action = || format!("attach {SOCKOPS}");
    // The inode of a cgroup's directory is its id (cgroup v2, 64-bit kernels).
    let id = cgroup.metadata().map_err(Error::io(action()))?.ino();
    if path.exists() {
        let mut link = Link::open(&path).map_err(Error::bpf(action()))?;
        let info = link.info().map_err(Error::bpf(action()))?;
        if matches!(info.info, LinkTypeInfo::Cgroup(on) if on.cgroup_id == id) {
            return link.update_prog(&program).map_err(Error::bpf(action()));
        }
        pins::detach(&path)?;
    }
    let mut link = program.attach_cgroup(cgroup.as_raw_fd()).map_err(Error::bpf(action()))?;
    link.pin(&path).map_err(Error::bpf(action()))
}

/// A program or map that the embedded object lacks, which only a build that mixes versions causes.
fn missing() -> Error {
    Error::io("use the flow programs")(std::io::Error::other("the embedded object is incomplete"))
}
