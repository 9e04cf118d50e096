//! Which features this kernel has, each tried once and cached.
#![expect(unsafe_code, reason = "a program of four instructions has no object for libbpf-rs")]

use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::OnceLock;

use libbpf_sys::bpf_insn;

use crate::flows::Tracepoint;
use crate::netns;

/// Whether the kernel's version is lower than this one; false if it cannot be read.
#[must_use]
pub fn kernel_is_before(major: u32, minor: u32) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    version_of(&release).is_some_and(|version| version < (major, minor))
}

/// The first two numbers of a kernel's release.
fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|one: char| !one.is_ascii_digit());
    let mut next = || numbers.next()?.parse().ok();
    Some((next()?, next()?))
}

/// Whether network namespaces have cookies (since Linux 5.14).
#[must_use]
pub fn has_netns_cookies() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| netns::cookie_of_this_thread().is_ok_and(|cookie| cookie != 0))
}

/// What this kernel's tracepoint of dropped packets offers.
pub(crate) fn drops() -> Tracepoint {
    static FOUND: OnceLock<Tracepoint> = OnceLock::new();
    *FOUND.get_or_init(Tracepoint::find)
}

/// Whether programs can be attached to interfaces by links (tcx, since Linux 6.6). `LENO_TCX=off` in the environment
/// makes it false.
pub(crate) fn has_tcx() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        if std::env::var_os("LENO_TCX").is_some_and(|value| value == "off") {
            return false;
        }
        let (loopback, mut count) = (1, 0u32);
        // SAFETY: the call is given no room for programs, and `count` lives through it.
        let result = unsafe {
            libbpf_sys::bpf_prog_query(
                loopback,
                libbpf_sys::BPF_TCX_INGRESS,
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                &raw mut count,
            )
        };
        result != -libc::EINVAL
    })
}

/// Whether the iterator over socket storage is safe. From Linux 7.0 on, the storage of a socket may be detached from it
/// while the iterator visits it, and the kernel then follows a null pointer. `LENO_FLOW_READ=namespaces` in the
/// environment makes the result false.
pub(crate) fn has_safe_storage_iterator() -> bool {
    static IS_SAFE: OnceLock<bool> = OnceLock::new();
    *IS_SAFE.get_or_init(|| {
        if std::env::var_os("LENO_FLOW_READ").is_some_and(|value| value == "namespaces") {
            return false;
        }
        kernel_is_before(7, 0)
    })
}

/// Whether programs have atomic instructions that return the previous value (since Linux 5.12). Without them, the bytes
/// of a connection are only added to the sums of its pair when it ends. True if this process may not load programs: the
/// error is then reported by the load that needs the instructions.
pub fn has_atomic_fetch() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        // r1 = 0; *(u64 *)(r10 - 8) = r1; r1 = atomic_fetch_add((u64 *)(r10 - 8), r1); r0 = 0; exit
        let fetched = loads(&[
            instruction(0xb7, 1, 0, 0, 0),
            instruction(0x7b, 10, 1, -8, 0),
            instruction(0xdb, 10, 1, -8, 1),
            instruction(0xb7, 0, 0, 0, 0),
            instruction(0x95, 0, 0, 0, 0),
        ]);
        fetched || !loads(&[instruction(0xb7, 0, 0, 0, 0), instruction(0x95, 0, 0, 0, 0)])
    })
}

fn instruction(code: u8, destination: u8, source: u8, off: i16, imm: i32) -> bpf_insn {
    let mut instruction = bpf_insn { code, off, imm, ..bpf_insn::default() };
    instruction.set_dst_reg(destination);
    instruction.set_src_reg(source);
    instruction
}

/// Whether the kernel takes these instructions as a socket filter.
fn loads(instructions: &[bpf_insn]) -> bool {
    // SAFETY: the instructions and both strings live through the call, and no options are given.
    let descriptor = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_SOCKET_FILTER,
            c"leno_try".as_ptr(),
            c"GPL".as_ptr(),
            instructions.as_ptr(),
            instructions.len() as libbpf_sys::size_t,
            std::ptr::null_mut(),
        )
    };
    if descriptor < 0 {
        return false;
    }
    // SAFETY: the kernel has just made this descriptor for this call, so no other code owns it.
    drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    true
}

#[cfg(test)]
mod tests {
    use super::version_of;

    #[test]
    fn releases_of_kernels_are_compared_by_two_numbers() {
        assert_eq!(version_of("5.10.0-46-cloud-amd64\n"), Some((5, 10)));
        assert_eq!(version_of("7.0-rc1"), Some((7, 0)));
        assert_eq!(version_of(""), None);
        assert!(version_of("6.4.1") < version_of("6.12"));
    }
}
