//! Removes those rights from a process of the data plane (a proxy or a broker) that it never needs. So an attacker
//! gains little by exploiting a flaw in the process.
//!
//! ```text
//! Landlock   permits reads only below the given folders, and no writing, creating, removing or executing of
//!            files; permits no signals to other processes, and no connections to their
//!            abstract Unix sockets
//! seccomp    makes each system call that no proxy needs fail with EPERM (clone3: ENOSYS)
//! ```
//! Both apply to the thread that calls [`confine`] and to every thread that it starts, for as long as they live.
//! [`close_memory`] protects the process' memory from other processes of the same user. Capabilities are handled
//! elsewhere: the process that starts a proxy or a broker drops them before it executes the program
//! (`leno_supervise::Credentials`).

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]
#![expect(unsafe_code, reason = "seccomp(2) with flags is a system call of its own")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use landlock::{
    ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus,
    Scope, path_beneath_rules,
};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, sock_filter,
};

/// Files, or folders with files, that every proxy may read in addition to those of its configuration: for name
/// resolution and its libraries, for the C library to examine memory and processors, and for random numbers. What does
/// not exist is skipped.
const READABLE: [&str; 9] = [
    "/etc",
    "/usr/lib",
    "/lib",
    "/lib64",
    "/run/systemd/resolve",
    "/run/nscd",
    "/proc/sys/vm",
    "/sys/devices/system/cpu",
    "/dev/urandom",
];

/// The versions of Landlock that are used: the restrictions of files that Linux 6.10 has, and those of signals and
/// abstract Unix sockets that 6.12 has. An older kernel enforces the part that it supports.
const FILES: ABI = ABI::V5;
const SIGNALS: ABI = ABI::V6;

/// System calls that no proxy needs: those that concern programs, other processes, namespaces, mounts or the kernel
/// itself, and those with a long history of flaws.
const REFUSED: [i64; 56] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_personality,
    libc::SYS_fanotify_init,
    libc::SYS_inotify_init1,
    libc::SYS_mq_open,
    libc::SYS_msgget,
    libc::SYS_semget,
    libc::SYS_shmget,
    libc::SYS_memfd_secret,
];

/// This bit is set in the number of each x32 call (asm/unistd.h), and in no call of another architecture.
const X32_SYSCALL_BIT: u32 = 0x4000_0000;

/// The families of sockets that may be created, which are needed for traffic and for name resolution.
const FAMILIES: [libc::c_int; 4] = [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX, libc::AF_NETLINK];

/// A part of the confinement that this kernel cannot enforce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unenforced {
    /// The kernel supports only a part of the restrictions by Landlock.
    PartOfLandlock,
    /// The kernel has no Landlock.
    Landlock,
    /// The kernel has no seccomp.
    Seccomp,
}

impl fmt::Display for Unenforced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PartOfLandlock => {
                "this kernel supports a part of Landlock, and files are restricted by that part"
            }
            Self::Landlock => {
                "this kernel has no Landlock (Linux 5.13), so files are not \
                 restricted"
            }
            Self::Seccomp => "this kernel has no seccomp, so system calls are not restricted",
        })
    }
}

/// Why a process is not confined.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The kernel rejects the rules for files.
    #[error("restricting files by Landlock")]
    Files(#[from] RulesetError),
    /// The filter cannot be built for this architecture.
    #[error("creating the filter of system calls")]
    Filter(#[source] BackendError),
    /// The kernel refuses the filter.
    #[error("restricting system calls")]
    Calls(#[source] io::Error),
}

/// Protects this process' memory from processes of the same user, such as other proxies on the machine.
///
/// # Errors
/// The system's reason.
pub fn close_memory() -> io::Result<()> {
    Ok(nix::sys::prctl::set_dumpable(false)?)
}

/// Confines this thread and those that it starts. The files in `files`, and all others in and below their folders, can
/// still be read, even after they were replaced, which happens with projected tokens.
///
/// A kernel without Landlock or seccomp is not an error: the parts that it does not enforce are returned.
///
/// # Errors
/// The kernel rejected a filter that it should accept.
pub fn confine(files: &[&Path]) -> Result<Vec<Unenforced>, ConfineError> {
    let mut unenforced = Vec::new();
    unenforced.extend(match restrict_files(files)? {
        RulesetStatus::FullyEnforced => None,
        RulesetStatus::PartiallyEnforced => Some(Unenforced::PartOfLandlock),
        RulesetStatus::NotEnforced => Some(Unenforced::Landlock),
    });
    match install(&filter().map_err(ConfineError::Filter)?) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
            unenforced.push(Unenforced::Seccomp);
        }
        Err(error) => return Err(ConfineError::Calls(error)),
    }
    Ok(unenforced)
}

fn restrict_files(files: &[&Path]) -> Result<RulesetStatus, RulesetError> {
    let folders = files.iter().map(|file| match file.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_owned(),
        None => PathBuf::from("/"),
    });
    let readable = READABLE.iter().map(PathBuf::from).chain(folders);
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(FILES))?
        .scope(Scope::from_all(SIGNALS))?
        .create()?
        .add_rules(path_beneath_rules(readable, AccessFs::ReadFile | AccessFs::ReadDir))?
        .restrict_self()?;
    Ok(status.ruleset)
}

fn filter() -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        REFUSED.iter().map(|number| (*number, Vec::new())).collect();
    let family = |family: &libc::c_int| {
        let value = u64::from(family.unsigned_abs());
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value)
    };
    let others = FAMILIES.iter().map(family).collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(others)?]);
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![new_user_namespace()?])?]);
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let machine = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, machine)?;
    let listed: BpfProgram = filter.try_into()?;
    Ok(ways_around_the_list().into_iter().chain(listed).collect())
}

/// Forbids new user namespaces: a process has every capability in a new one, and so reaches parts of the kernel that
/// are closed to a proxy. The flags are the first argument of `clone`.
fn new_user_namespace() -> Result<SeccompCondition, BackendError> {
    let flag = u64::from(libc::CLONE_NEWUSER.unsigned_abs());
    SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag)
}

/// Instructions before the comparison with the list of refused calls. They refuse calls that this comparison would
/// miss, because it only compares numbers for equality.
///
/// The flags of `clone3` are in memory, which filters cannot read. ENOSYS makes the C library fall back to `clone`. The
/// x32 calls of x86-64 are the same calls with one more bit in their number.
fn ways_around_the_list() -> [sock_filter; 5] {
    let instruction = |code: u32, jf: u8, k: u32| sock_filter {
        code: u16::try_from(code).expect("instructions have 16 bits"),
        jt: 0,
        jf,
        k,
    };
    let statement = |code: u32, k: u32| instruction(code, 0, k);
    // Skips the next instruction if the comparison fails.
    let compare = |code: u32, k: u32| instruction(code | libc::BPF_JMP | libc::BPF_K, 1, k);
    let refuse = |errno: i32| {
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno.unsigned_abs())
    };
    [
        // Loads the number of the call, the first field of `seccomp_data`.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        compare(libc::BPF_JEQ, u32::try_from(libc::SYS_clone3).expect("numbers have 32 bits")),
        refuse(libc::ENOSYS),
        compare(libc::BPF_JGE, X32_SYSCALL_BIT),
        refuse(libc::EPERM),
    ]
}

/// Installs the filter for this thread. Without `SPEC_ALLOW`, kernels before 5.16 disable speculation for a filtered
/// process, which slows it down. A proxy runs no foreign code and does not need that protection.
fn install(filter: &BpfProgram) -> io::Result<()> {
    nix::sys::prctl::set_no_new_privs()?;
    let len = u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: filter.as_ptr().cast_mut().cast() };
    // SAFETY: the kernel copies the program, `len` instructions of the layout of `sock_filter`,
    // and keeps no pointer to it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
            &raw const program,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};
    use std::process::Command;

    use nix::errno::Errno;
    use nix::sys::signal::kill;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    use nix::unistd::{Pid, getppid};

    use super::*;

    /// Does some work in a confined thread of its own, because a confinement applies to a thread for the rest of its
    /// life.
    fn confined<T: Send>(file: &Path, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                confine(&[file]).unwrap();
                work()
            });
            thread.join().unwrap()
        })
    }

    #[test]
    fn only_files_of_the_configuration_can_be_read() {
        let (mine, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (token, secret) = (mine.path().join("token"), other.path().join("secret"));
        fs::write(&token, "a").unwrap();
        fs::write(&secret, "b").unwrap();
        confined(&token, || {
            assert_eq!(fs::read_to_string(&token).unwrap(), "a");
            let error = fs::read_to_string(&secret).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        });
    }

    #[test]
    fn no_file_can_be_written_created_removed_or_executed() {
        let mine = tempfile::tempdir().unwrap();
        let token = mine.path().join("token");
        fs::write(&token, "a").unwrap();
        confined(&token, || {
            let denied = |result: io::Result<()>| {
                assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
            };
            denied(fs::write(&token, "b"));
            denied(fs::write(mine.path().join("new"), "b"));
            denied(fs::remove_file(&token));
            denied(Command::new("/bin/true").status().map(drop));
        });
        assert_eq!(fs::read_to_string(&token).unwrap(), "a");
    }

    #[test]
    fn no_system_call_circumvents_the_list() {
        // The first version of `struct clone_args`: it has the flags, and the signal that reports the child's end.
        let (flags, signal) = (libc::CLONE_NEWUSER.unsigned_abs(), libc::SIGCHLD.unsigned_abs());
        let arguments: [u64; 8] = [flags.into(), 0, 0, 0, signal.into(), 0, 0, 0];
        confined(Path::new("/etc/hosts"), || {
            // SAFETY: each call should be refused. If one is not, it leaves a child, which ends at once.
            let call = |number: i64, first: usize, second: usize| unsafe {
                let result = libc::syscall(number, first, second, 0, 0, 0);
                if result == 0 {
                    libc::_exit(0);
                }
                (result, Errno::last())
            };
            let size = |flags: u32| usize::try_from(flags).unwrap();
            let by_clone = call(libc::SYS_clone, size(flags | signal), 0);
            assert_eq!(by_clone, (-1, Errno::EPERM));
            let by_clone3 = call(libc::SYS_clone3, arguments.as_ptr().addr(), 64);
            assert_eq!(by_clone3, (-1, Errno::ENOSYS));
            let by_x32 = libc::SYS_unshare | i64::from(X32_SYSCALL_BIT);
            assert_eq!(call(by_x32, size(flags), 0), (-1, Errno::EPERM));
            // Threads can still be created.
            std::thread::spawn(|| {}).join().unwrap();
        });
    }

    #[test]
    fn sockets_for_traffic_work_but_other_families_and_signals_do_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        confined(Path::new("/etc/hosts"), || {
            TcpStream::connect(address).unwrap();
            let (kind, flags) = (SockType::Raw, SockFlag::empty());
            let made = socket(AddressFamily::Packet, kind, flags, None);
            assert_eq!(made.unwrap_err(), Errno::EPERM);
            // The null signal checks whether the process may be signalled.
            assert_eq!(kill(getppid(), None).unwrap_err(), Errno::EPERM);
            assert_eq!(kill(Pid::this(), None), Ok(()));
            assert_eq!(
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER),
                Err(Errno::EPERM)
            );
        });
        // The thread that started the confined thread is not confined.
        assert_eq!(kill(getppid(), None), Ok(()));
    }
}
