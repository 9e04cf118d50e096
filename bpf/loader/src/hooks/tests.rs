//! Tests hooks of the real kernel, in a control group and a network namespace of the test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::*;
use crate::tests::has_root;

/// Most instructions that the verifier may follow for a program. Kernels stop at a million, and the number differs
/// between kernels, so a program near the limit may be refused by the next one.
const MOST_INSTRUCTIONS: u32 = 20_000;

/// Whether the kernel has what the program needs.
fn is_possible(program: &ProgramTrial) -> bool {
    program.program != "leno_flow_drop" || crate::features::drops().lacks().is_none()
}

/// Runs a test in new mount and network namespaces, with a control group that is created for it.
fn in_group(name: &str, test: impl FnOnce(&Path, &File) + Send) {
    let inside = || {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET).unwrap();
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
        let kind = Some("cgroup2");
        mount(kind, "/dev", kind, MsFlags::empty(), None::<&str>).unwrap();
        let group = Path::new("/dev").join(format!("leno-hooks-{}-{name}", std::process::id()));
        fs::create_dir(&group).unwrap();
        let removed = Removed(group);
        test(&removed.0, &File::open("/proc/thread-self/ns/net").unwrap());
    };
    thread::scope(|scope| scope.spawn(inside).join().unwrap());
}

/// A control group that is removed even if the test fails.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = fs::remove_dir(self.0.join("below"));
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn each_program_is_attached_and_its_verification_is_bounded() {
    if !has_root() {
        return;
    }
    in_group("each", |group, netns| {
        let tried = try_each(&File::open(group).unwrap(), netns).unwrap();
        assert!(tried.len() >= 15, "{tried:?}");
        for one in tried.iter().filter(|one| is_possible(one)) {
            let instructions = *one.outcome.as_ref().unwrap_or_else(|error| {
                panic!("{}: {error}", one.program);
            });
            assert!(instructions < MOST_INSTRUCTIONS, "{}: {instructions}", one.program);
            println!("{:20} {instructions}", one.program);
        }
        let stand_ins: Vec<_> = tried.iter().filter_map(|one| one.stand_in).collect();
        let expected: &[&str] = if crate::features::has_tcx() { &[] } else { &["clsact"; 2] };
        assert_eq!(stand_ins, expected);
        assert_eq!(others(&File::open(group).unwrap()), [], "nothing stays attached");
    });
}

#[test]
fn a_program_that_another_owner_keeps_for_itself_is_found() {
    if !has_root() {
        return;
    }
    in_group("others", |group, netns| {
        let below = group.join("below");
        fs::create_dir(&below).unwrap();
        let [group, below] = [group, below.as_path()].map(|path| File::open(path).unwrap());
        let mut object = ProgramRole::Capture.object().unwrap();
        for mut program in object.progs_mut() {
            let is_it = program.name() == "leno_sock_create";
            program.set_autoload(is_it);
        }
        let object = object::verify(object).unwrap();
        let program = object.progs_mut().find(|one| one.name() == "leno_sock_create").unwrap();
        for (flags, sharing) in [
            (libbpf_sys::BPF_F_ALLOW_MULTI, HookSharing::All),
            (libbpf_sys::BPF_F_ALLOW_OVERRIDE, HookSharing::Overridden),
            (0, HookSharing::Exclusive),
        ] {
            let kind = libbpf_sys::BPF_CGROUP_INET_SOCK_CREATE;
            let (descriptor, at) = (program.as_fd().as_raw_fd(), group.as_raw_fd());
            // SAFETY: the call takes and returns plain numbers.
            let attached = unsafe { libbpf_sys::bpf_prog_attach(descriptor, at, kind, flags) };
            assert_eq!(attached, 0);
            let found = others(&group);
            assert_eq!(found.len(), 1);
            assert_eq!((found[0].hook, found[0].sharing), ("cgroup/sock_create", sharing));
            assert_eq!(found[0].programs[0].0, "leno_sock_creat", "names are cut by the kernel");
            let tried = try_each(&below, netns).unwrap();
            let refused = tried.iter().filter(|one| one.outcome.is_err() && is_possible(one));
            let refused: Vec<&str> = refused.map(|one| one.hook.as_str()).collect();
            match sharing {
                HookSharing::Exclusive => assert_eq!(refused, ["cgroup/sock_create"]),
                _ => assert_eq!(refused, [""; 0]),
            }
            // SAFETY: as above.
            unsafe { libbpf_sys::bpf_prog_detach2(descriptor, at, kind) };
        }
    });
}
