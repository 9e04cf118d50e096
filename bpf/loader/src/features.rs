//! What this kernel can do, found out by trying it once.
#![expect(unsafe_code, reason = "a program of four instructions has no object for libbpf-rs")]

use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::OnceLock;

use libbpf_sys::bpf_insn;

use crate::flows::Tracepoint;
use crate::netns;

/// Whether network namespaces have cookies (since Linux 5.14).
#[must_use]
pub fn has_netns_cookies() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| netns::cookie_of_this_thread().is_ok_and(|cookie| cookie != 0))
}

/// What the tracepoint of dropped packets has.
pub(crate) fn drops() -> Tracepoint {
    static FOUND: OnceLock<Tracepoint> = OnceLock::new();
    *FOUND.get_or_init(Tracepoint::find)
}

/// Whether interfaces take links of programs (tcx, since Linux 6.6). `LENO_TCX=off` in the environment has the answer be
/// no.
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

/// Whether programs have atomic instructions that return what was there before (since Linux 5.12). Without the right
/// to load programs the answer is yes, and what needs them says why it fails.
pub(crate) fn has_atomic_fetch() -> bool {
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
