//! Has the kernel give new clients of a port to another one of its listeners (`SO_REUSEPORT`).
#![expect(unsafe_code, reason = "no crate in use sets SO_ATTACH_REUSEPORT_CBPF")]

use std::ffi::c_int;
use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsFd, AsRawFd as _};
use std::ptr::from_ref;

use nix::errno::Errno;
use nix::libc;

/// Clients that come from now on go to the listener of this port and family that has this place among those that listen, by when they
/// began, from 0. Where there is none, the kernel chooses one, as before. It holds until [`spread`], also for listeners that come later.
///
/// # Errors
/// The system's reason, as of a socket that shares no port.
pub fn steer(listener: &impl AsFd, place: u32) -> io::Result<()> {
    let code = u16::try_from(libc::BPF_RET | libc::BPF_K).unwrap_or_default();
    let mut steps = [libc::sock_filter { code, jt: 0, jf: 0, k: place }];
    let program = libc::sock_fprog { len: 1, filter: steps.as_mut_ptr() };
    // The kernel copies the program, whose one step lives until it has.
    set(listener, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

/// The kernel spreads new clients over all listeners of this port and family again.
///
/// # Errors
/// The system's reason, but for those that leave nothing to be undone.
pub fn spread(listener: &impl AsFd) -> io::Result<()> {
    match set(listener, libc::SO_DETACH_REUSEPORT_BPF, &c_int::default()) {
        // Nothing steers them; it shares no port; the kernel cannot undo it (before Linux 5.3).
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOENT | libc::EINVAL | libc::ENOPROTOOPT)
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}

fn set<T>(listener: &impl AsFd, option: c_int, value: &T) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of_val(value)).unwrap_or_default();
    // SAFETY: the kernel reads as many bytes as the value has.
    let set = unsafe {
        libc::setsockopt(
            listener.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            from_ref(value).cast(),
            length,
        )
    };
    Errno::result(set)?;
    Ok(())
}
