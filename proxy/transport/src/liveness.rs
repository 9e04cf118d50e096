//! How a machine is noticed that is gone without a word: it lost power, or its network.
//!
//! ```text
//! what is open                     noticed by                                        within
//! nothing unacknowledged           keep-alive probes of the kernel (`PROBING`)       14 s
//! bytes sent and unacknowledged    retransmissions, which `is_unanswered` looks at   6.2 s + a look
//! ```
//!
//! Not by `TCP_USER_TIMEOUT`: it also ends connections to a live peer that does not read for so long
//! (a zero window, RFC 9293 section 3.8.6.1), such as a paused download.

#![expect(unsafe_code, reason = "no crate in use reads TCP_INFO of a socket")]

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use nix::libc;
use tokio::net::TcpStream;

/// How long nothing may come while something is waited for before the connection is examined. With
/// [`RETRANSMISSIONS`] it notices a lost machine within 11 s.
pub const SILENCE: Duration = Duration::from_secs(4);

/// Retransmissions in a row without any acknowledgement that mean a lost machine: the fifth is sent
/// 6.2 s after the first transmission where the round-trip time is short (RFC 6298, 200 ms doubled).
/// A live kernel acknowledges whatever its programs do.
const RETRANSMISSIONS: u8 = 5;

/// Whether the other machine acknowledges nothing of what was sent, however often it is sent again.
#[must_use]
pub fn is_unanswered(tcp: &TcpStream) -> bool {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes to `info`, of which
    // every bit pattern is a value.
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

/// Ends a socket of this process in both directions, as if the peer had ended it; its owner finds out with the next read
/// or write. Returns whether it was open.
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

    /// A peer that does not read is alive: what fills its window is acknowledged.
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
