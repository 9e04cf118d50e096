//! Reads the cookies of network namespaces, and runs code in a network namespace.
#![expect(unsafe_code, reason = "SO_NETNS_COOKIE has no safe wrapper")]

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::thread;

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// The cookie of a network namespace; 0 if the kernel has no cookies (before 5.14).
pub(crate) fn cookie(namespace: &File) -> io::Result<u64> {
    within(namespace, cookie_of_this_thread)?
}

/// Runs `run` in a network namespace, on a new thread, because the caller's thread must stay in its own namespace.
///
/// # Errors
/// If the namespace cannot be entered.
///
/// # Panics
/// If `run` does.
pub fn within<T: Send>(namespace: &File, run: impl FnOnce() -> T + Send) -> io::Result<T> {
    let inside = || {
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        Ok(run())
    };
    thread::scope(|scope| scope.spawn(inside).join().expect("the thread does not panic"))
}

/// Reads the cookie of this thread's network namespace from a socket, which belongs to that namespace.
pub(crate) fn cookie_of_this_thread() -> io::Result<u64> {
    let socket = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `cookie`, which is that long, and the
    // new length to `length`; both live through the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        return Ok(cookie);
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(0),
        error => Err(error),
    }
}
