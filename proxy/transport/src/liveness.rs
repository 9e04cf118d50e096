//! Notices machines that disappear without closing connections, because they have lost power or their network.
//!
//! ```text
//! the connection has               noticed by                                        within
//! no unacknowledged bytes          keep-alive probes of the kernel (`PROBING`)       14 s
//! unacknowledged bytes             retransmissions, counted by `is_unanswered`       6.2 s + time to next check
//! ```
//!
//! `TCP_USER_TIMEOUT` is not used, because it also ends connections to a live peer that does not read for so long (a
//! zero window, RFC 9293 section 3.8.6.1), such as a paused download.

#![expect(unsafe_code, reason = "no crate in use reads TCP_INFO of a socket")]

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use nix::libc;
use tokio::net::TcpStream;

/// If no byte arrives for this long although the proxy waits for some, [`is_unanswered`] is called. A lost machine is
/// noticed within 11 s: 6.2 s until there are enough [`RETRANSMISSIONS`], and up to this time until the next call.
pub const SILENCE: Duration = Duration::from_secs(4);

/// If there are this many retransmissions in a row without an acknowledgement, the machine is lost. With a short
/// round-trip time, the fifth is sent 6.2 s after the first transmission (RFC 6298, 200 ms doubled each time). A live
/// kernel acknowledges bytes even if its programs do not read them.
const RETRANSMISSIONS: u8 = 5;

/// Whether the other machine acknowledges none of the sent bytes, although they were sent several times.
#[must_use]
pub fn is_unanswered(tcp: &TcpStream) -> bool {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes to `info`. Every bit pattern is a
    // valid value of `info`.
    let info = unsafe {
        let done = libc::getsockopt(
            tcp.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        );
        if done != 0 {
            return false;
        }
        info.assume_init()
    };
    info.tcpi_unacked > 0 && info.tcpi_retransmits >= RETRANSMISSIONS
}

/// Shuts down a socket of this process in both directions, as if the peer had ended it. Its owner notices at the next
/// read or write. Returns whether it was open.
#[must_use]
pub fn shut_down(socket: RawFd) -> bool {
    use nix::sys::socket::{Shutdown, shutdown};
    shutdown(socket, Shutdown::Both).is_ok()
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::{CONNECT_TIMEOUT, Listener, connect};

    /// A peer that does not read is alive: its kernel acknowledges the bytes that fill its window.
    #[tokio::test]
    async fn a_live_peer_that_does_not_read_is_not_unanswered() {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut tcp = connect(listener.address(), CONNECT_TIMEOUT).await.unwrap();
        let (_peer, _) = listener.accept().await.unwrap();
        let full = async {
            loop {
                tcp.write_all(&[0; 64 * 1024]).await.unwrap();
            }
        };
        let _full = tokio::time::timeout(Duration::from_millis(200), full).await;
        assert!(!is_unanswered(&tcp));
    }
}
