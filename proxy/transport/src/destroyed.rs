//! Learns from the kernel which sockets of this machine were destroyed with bytes that their process had not read.
//!
//! If an application closes its socket before it has read a request, the proxy's connection to it is reset. The unread
//! bytes prove that the application has not seen the request, so it may be sent again.
//!
//! Since Linux 4.2 the kernel announces each TCP socket that it destroys to the sockets of sock_diag(7) that have
//! joined a multicast group. This needs no capability, and each network namespace has groups of its own. A filter in
//! the kernel drops announcements of sockets without unread bytes, so the proxy is seldom woken.
//!
//! ```text
//! close(2) with unread bytes ─► reset ────────────────────────► the proxy's connection breaks ─► take()
//!                            └► message ─► filter ─► follow() ─► Table; `changed` is notified ─────┘
//! ```
#![expect(unsafe_code, reason = "AsyncFd cannot check that a descriptor stays open")]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use nix::libc;
use socket2::Socket;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::spawn_local;

use crate::diag::{self, Destroyed};
use crate::{domain, sockets};

/// The largest number of destroyed sockets that are remembered, some 100 bytes each.
const MAX_REMEMBERED: usize = 1024;
/// How long a destroyed socket is remembered. A request looks for its socket within milliseconds.
const REMEMBERED: Duration = Duration::from_secs(1);

thread_local! {
    /// Weak, because the task that reads the announcements owns the value, and it ends with the thread's runtime.
    static DESTROYED: RefCell<Weak<DestroyedSockets>> = const { RefCell::new(Weak::new()) };
    static LOST: Cell<u64> = const { Cell::new(0) };
}

/// The local and the remote address of a destroyed socket.
type SocketEnds = (SocketAddr, SocketAddr);

/// The sockets that were destroyed recently with unread bytes.
#[derive(Debug, Default)]
pub(crate) struct DestroyedSockets {
    table: Mutex<Table>,
    /// Notifies when sockets were added.
    pub(crate) changed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    /// How many bytes were read from each socket, and when its message arrived.
    sockets: HashMap<SocketEnds, (u64, Instant)>,
    /// A full table is not searched for old entries before this time, because none of them will be old enough.
    none_until: Option<Instant>,
}

/// Makes the calling thread follow the announcements of its network namespace until the thread ends. The thread must
/// have a local runtime.
///
/// # Errors
/// The errors of [`leno_sockets::announcements`]. Then the proxy cannot prove that a request was unread when its
/// connection is reset.
pub fn follow_destroyed() -> io::Result<()> {
    // SAFETY: the socket owns its descriptor and always returns the same one, and it is not moved out of the `AsyncFd`.
    let socket = unsafe { AsyncFd::register(sockets::announcements()?) }?;
    let destroyed = Arc::new(DestroyedSockets::default());
    DESTROYED.set(Arc::downgrade(&destroyed));
    // This task ends with the runtime.
    spawn_local(async move {
        if let Err(error) = destroyed.follow(&socket).await {
            tracing::error!(%error, "reading which sockets the kernel has destroyed");
        }
    });
    Ok(())
}

/// How many announcements to this thread were lost: how often the kernel had to drop some because the socket's buffer
/// was full, and how many found the table full.
#[must_use]
pub fn lost_announcements() -> u64 {
    LOST.get()
}

/// The destroyed sockets of the network namespace that the current task serves, if they are followed.
pub(crate) fn of_task() -> Option<Arc<DestroyedSockets>> {
    match domain::current() {
        Some(domain) => domain.namespace().destroyed.upgrade(),
        None => of_thread().upgrade(),
    }
}

/// The destroyed sockets of this thread's namespace, if the thread follows them.
pub(crate) fn of_thread() -> Weak<DestroyedSockets> {
    DESTROYED.with_borrow(Weak::clone)
}

impl DestroyedSockets {
    async fn follow(&self, socket: &AsyncFd<Socket>) -> io::Result<()> {
        let mut message = [0; diag::ROOM];
        loop {
            let mut ready = socket.readable().await?;
            match ready.try_io(|socket| socket.get_ref().read(&mut message)) {
                Ok(Ok(length)) => {
                    let message = message.get(..length).unwrap_or_default();
                    if let Some(destroyed) = diag::read_destroyed(message) {
                        self.table().insert(destroyed, Instant::now());
                        self.changed.notify_waiters();
                    }
                }
                Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    LOST.set(LOST.get().wrapping_add(1));
                }
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Ignores poisoning: no code panics while it holds the lock.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// If the socket with these ends was destroyed with unread bytes at `since` or later, returns how many bytes its
    /// process had read. Removes the entry in any case. An earlier one belongs to another connection with the same
    /// ends.
    pub(crate) fn take(&self, ends: SocketEnds, since: Instant) -> Option<u64> {
        let (read, came) = self.table().sockets.remove(&ends)?;
        (came >= since).then_some(read)
    }
}

impl Table {
    fn insert(&mut self, destroyed: Destroyed, now: Instant) {
        if self.sockets.len() >= MAX_REMEMBERED && self.none_until.is_none_or(|until| until <= now)
        {
            self.sockets.retain(|_, (_, came)| now.saturating_duration_since(*came) < REMEMBERED);
            let oldest = self.sockets.values().map(|(_, came)| *came).min();
            self.none_until = oldest.and_then(|oldest| oldest.checked_add(REMEMBERED));
        }
        if self.sockets.len() >= MAX_REMEMBERED {
            LOST.set(LOST.get().wrapping_add(1));
            return;
        }
        let read = destroyed.received.saturating_sub(u64::from(destroyed.unread));
        self.sockets.insert(destroyed.ends, (read, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_port(port: u16) -> Destroyed {
        let ends =
            (SocketAddr::from(([127, 0, 0, 1], 80)), SocketAddr::from(([127, 0, 0, 1], port)));
        Destroyed { ends, received: 5, unread: 2 }
    }

    #[test]
    fn a_full_table_forgets_sockets_that_no_request_has_asked_for() {
        let (mut table, begun) = (Table::default(), Instant::now());
        let lost = lost_announcements();
        let ports = 0..=u16::try_from(MAX_REMEMBERED).unwrap();
        ports.for_each(|port| table.insert(of_port(port), begun));
        assert_eq!((table.sockets.len(), lost_announcements() - lost), (MAX_REMEMBERED, 1));
        table.insert(of_port(0), begun + REMEMBERED);
        assert_eq!((table.sockets.len(), lost_announcements() - lost), (1, 1));
    }

    #[test]
    fn what_was_unread_of_an_earlier_connection_with_the_same_ends_proves_nothing() {
        let (sockets, came) = (DestroyedSockets::default(), Instant::now());
        let ends = of_port(1).ends;
        sockets.table().insert(of_port(1), came);
        assert_eq!(sockets.take(ends, came), Some(3));
        assert_eq!(sockets.take(ends, came), None, "it was taken");
        sockets.table().insert(of_port(1), came);
        assert_eq!(sockets.take(ends, came + Duration::from_nanos(1)), None);
    }
}
