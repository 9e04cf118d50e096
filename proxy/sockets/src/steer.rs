//! Has the kernel give new clients of a port to another one of its listeners (`SO_REUSEPORT`).
#![expect(unsafe_code, reason = "no crate in use sets SO_ATTACH_REUSEPORT_CBPF")]

use std::io;
use std::mem::size_of_val;
use std::os::fd::AsRawFd;
use std::ptr::from_ref;

use nix::errno::Errno;
use nix::libc;

/// Clients that come from now on go to the listener of this port and family that has this place among those that listen, by when they
/// began, from 0. Where there is none, the kernel chooses one, as before. It holds for all of them, until they are closed.
///
/// # Errors
/// The system's reason, as of a socket that shares no port.
pub fn steer(listener: &impl AsRawFd, place: u32) -> io::Result<()> {
    let code = u16::try_from(libc::BPF_RET | libc::BPF_K).unwrap_or_default();
    let mut steps = [libc::sock_filter { code, jt: 0, jf: 0, k: place }];
    let program = libc::sock_fprog { len: 1, filter: steps.as_mut_ptr() };
    let length = libc::socklen_t::try_from(size_of_val(&program)).unwrap_or_default();
    // SAFETY: the kernel copies the program, whose one step lives until it has.
    let set = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            from_ref(&program).cast(),
            length,
        )
    };
    Errno::result(set)?;
    Ok(())
}
