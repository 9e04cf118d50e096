//! Finds out which hooks the kernel has: each program is loaded alone, and attached where no process runs.
#![expect(unsafe_code, reason = "bpf_prog_query has no safe wrapper")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};

use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{Link, MapCore as _, Object, OpenObject, Program, ProgramMut};

use crate::error::Error;
use crate::{OBJECT, flows, object};

/// The sizes, for these trials, of the maps whose size the operator chooses: small ones that every kernel accepts (a
/// ring buffer consists of whole pages, and some architectures have pages of 64 KiB).
const FEW_FLOWS: u32 = 1024;
const SMALL_RING: u32 = 64 * 1024;
/// Most programs of other owners that are listed for one hook: cgroup v2 accepts no more.
const MAX_OTHERS: usize = 64;

/// What a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramRole {
    /// Steering connections into proxies.
    Capture,
    /// Accounting for connections.
    Flows,
}

impl ProgramRole {
    /// All roles.
    pub const ALL: [Self; 2] = [Self::Capture, Self::Flows];

    fn object(self) -> Result<OpenObject, Error> {
        let mut object = match self {
            Self::Capture => {
                let mut object = object::open(OBJECT)?;
                object::configure(&mut object, &object::WIDEST.to_bytes())?;
                object
            }
            // With the branches that are only needed while the table is resized.
            Self::Flows => flows::open_programs(true, 0)?,
        };
        for mut map in object.maps_mut() {
            let entries = match map.name().to_str() {
                Some("flows") => FEW_FLOWS,
                Some("events") => SMALL_RING,
                _ => continue,
            };
            map.set_max_entries(entries).map_err(Error::bpf("size a map"))?;
        }
        Ok(object)
    }
}

/// The result of trying one program.
#[derive(Debug)]
pub struct ProgramTrial {
    /// Its name.
    pub program: String,
    /// The section that names its hook, such as `cgroup/connect4`.
    pub hook: String,
    /// What it is for.
    pub part: ProgramRole,
    /// How many instructions the verifier followed (0 before Linux 5.16, which does not report it), or why the kernel
    /// refuses the program or its attachment.
    pub outcome: Result<u32, Error>,
    /// The replacement that was used if the kernel does not have the program's hook.
    pub stand_in: Option<&'static str>,
}

/// Loads each program alone and attaches it to `cgroup` or `netns`, in which no process should run. Nothing stays
/// attached.
///
/// # Errors
/// If an embedded object cannot be read.
pub fn try_each(cgroup: &File, netns: &File) -> Result<Vec<ProgramTrial>, Error> {
    let mut all = Vec::new();
    for part in ProgramRole::ALL {
        let names: Vec<(String, String)> = {
            let object = part.object()?;
            let text = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
            object.progs().map(|one| (text(one.name()), text(one.section()))).collect()
        };
        for (program, hook) in names {
            let (outcome, stand_in) = match try_one(part, &program, &hook, cgroup, netns) {
                Ok((instructions, stand_in)) => (Ok(instructions), stand_in),
                Err(error) => (Err(error), None),
            };
            all.push(ProgramTrial { program, hook, part, outcome, stand_in });
        }
    }
    Ok(all)
}

/// The number of verified instructions, and the replacement for the hook, if one was used.
fn try_one(
    part: ProgramRole,
    name: &str,
    hook: &str,
    cgroup: &File,
    netns: &File,
) -> Result<(u32, Option<&'static str>), Error> {
    let mut object = part.object()?;
    for mut program in object.progs_mut() {
        let is_it = program.name() == name;
        program.set_autoload(is_it);
    }
    let object = object::verify(object)?;
    let mut programs = object.progs_mut();
    let program = programs.find(|one| one.name() == name).expect("its name is of this object");
    let action = || format!("attach {name} to {hook}");
    let id = Program::id_from_fd(program.as_fd()).map_err(Error::bpf(action()))?;
    if hook == "tc" {
        let stand_in = flows::try_frames(program.as_fd(), netns).map_err(Error::io(action()))?;
        return Ok((verified_instructions(id), stand_in));
    }
    drop(attach(&object, &program, hook, cgroup, netns).map_err(Error::bpf(action()))?);
    Ok((verified_instructions(id), None))
}

fn attach(
    object: &Object,
    program: &ProgramMut<'_>,
    hook: &str,
    cgroup: &File,
    netns: &File,
) -> libbpf_rs::Result<Link> {
    if hook == "sk_lookup" {
        return program.attach_netns(netns.as_raw_fd());
    }
    if hook.starts_with("tp_btf/") || hook == "iter/tcp" {
        return program.attach();
    }
    if hook.starts_with("iter/") {
        let sockets = object.maps().find(|map| map.name() == "sockets");
        return program.attach_iter(sockets.expect("the iterator's map is there").as_fd());
    }
    program.attach_cgroup(cgroup.as_raw_fd())
}

/// How many instructions the verifier followed for a loaded program; 0 if the kernel does not report it.
#[must_use]
pub fn verified_instructions(program_id: u32) -> u32 {
    let mut loaded = ProgInfoIter::default();
    loaded.find(|one| one.id == program_id).map_or(0, |one| one.verified_insns)
}

/// How a program that is attached to a cgroup shares its hook with programs of child cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookSharing {
    /// All run, those of the child cgroup first.
    All,
    /// A program of a child cgroup runs instead of it.
    Overridden,
    /// Child cgroups cannot attach a program to this hook.
    Exclusive,
}

/// Programs that are attached to one hook of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherPrograms {
    /// The hook, as the sections of BPF objects name it.
    pub hook: &'static str,
    /// Names and ids; the name is `?` if the program was removed meanwhile.
    pub programs: Vec<(String, u32)>,
    /// How they share the hook with child cgroups.
    pub sharing: HookSharing,
}

/// The hooks of cgroups that Leno's programs use.
const CGROUP_HOOKS: &[(&str, u32)] = &[
    ("cgroup/connect4", libbpf_sys::BPF_CGROUP_INET4_CONNECT),
    ("cgroup/connect6", libbpf_sys::BPF_CGROUP_INET6_CONNECT),
    ("cgroup/sendmsg4", libbpf_sys::BPF_CGROUP_UDP4_SENDMSG),
    ("cgroup/sendmsg6", libbpf_sys::BPF_CGROUP_UDP6_SENDMSG),
    ("cgroup/recvmsg4", libbpf_sys::BPF_CGROUP_UDP4_RECVMSG),
    ("cgroup/recvmsg6", libbpf_sys::BPF_CGROUP_UDP6_RECVMSG),
    ("cgroup/getpeername4", libbpf_sys::BPF_CGROUP_INET4_GETPEERNAME),
    ("cgroup/getpeername6", libbpf_sys::BPF_CGROUP_INET6_GETPEERNAME),
    ("cgroup/sock_create", libbpf_sys::BPF_CGROUP_INET_SOCK_CREATE),
    ("cgroup/getsockopt", libbpf_sys::BPF_CGROUP_GETSOCKOPT),
    ("cgroup/setsockopt", libbpf_sys::BPF_CGROUP_SETSOCKOPT),
    ("sockops", libbpf_sys::BPF_CGROUP_SOCK_OPS),
];

/// The programs that are attached to this cgroup itself, at the hooks that Leno uses. Hooks that the kernel does not
/// have are left out: [`try_each`] reports those.
#[must_use]
pub fn others(cgroup: &File) -> Vec<OtherPrograms> {
    let loaded: Vec<_> = ProgInfoIter::default().collect();
    let named = |id: u32| {
        let program = loaded.iter().find(|one| one.id == id);
        let name = program.map(|one| one.name.to_string_lossy().into_owned());
        (name.unwrap_or_else(|| "?".to_owned()), id)
    };
    let mut all = Vec::new();
    for (hook, kind) in CGROUP_HOOKS {
        let Ok((ids, flags)) = query(cgroup, *kind) else { continue };
        if ids.is_empty() {
            continue;
        }
        let sharing = match flags {
            flags if flags & libbpf_sys::BPF_F_ALLOW_MULTI != 0 => HookSharing::All,
            flags if flags & libbpf_sys::BPF_F_ALLOW_OVERRIDE != 0 => HookSharing::Overridden,
            _ => HookSharing::Exclusive,
        };
        let programs = ids.into_iter().map(named).collect();
        all.push(OtherPrograms { hook, programs, sharing });
    }
    all
}

/// The ids of the programs at one hook of a cgroup, and the flags that they were attached with.
fn query(cgroup: &File, kind: u32) -> io::Result<(Vec<u32>, u32)> {
    let mut ids = vec![0u32; MAX_OTHERS];
    let (mut count, mut flags) = (MAX_OTHERS as u32, 0u32);
    // SAFETY: `ids` has room for `count` numbers, and all three live through the call.
    let result = unsafe {
        libbpf_sys::bpf_prog_query(
            cgroup.as_raw_fd(),
            kind,
            0,
            &raw mut flags,
            ids.as_mut_ptr(),
            &raw mut count,
        )
    };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    ids.truncate(count as usize);
    Ok((ids, flags))
}

#[cfg(test)]
mod tests;
