//! What programs had not read when their sockets were destroyed, as the kernel announces it.
//!
//! Since Linux 4.2 the kernel sends a message for each TCP socket that it destroys to the sockets of sock_diag(7) that
//! joined a group; no capability is needed, and each network namespace has groups of its own. A filter in the kernel
//! drops those without unread bytes, so that almost none wakes the proxy.
//!
//! ```text
//! close(2) with unread bytes ─► reset ────────────────────────► the proxy's connection breaks ─► takes
//!                            └► message ─► filter ─► follow() ─► Table, woken: changed ──────────┘
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

/// Sockets that are remembered, some 100 bytes each.
const MAX_REMEMBERED: usize = 1024;
/// How long they are: a request takes what concerns it within milliseconds.
const REMEMBERED: Duration = Duration::from_secs(1);

thread_local! {
    /// Held by the task that follows them.
    static DESTROYED: RefCell<Weak<DestroyedSockets>> = const { RefCell::new(Weak::new()) };
    static LOST: Cell<u64> = const { Cell::new(0) };
}

/// Own and remote address of a socket.
type SocketEnds = (SocketAddr, SocketAddr);

/// The sockets that were destroyed a moment ago with unread bytes.
#[derive(Debug, Default)]
pub(crate) struct DestroyedSockets {
    table: Mutex<Table>,
    /// There are new ones.
    pub(crate) changed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    /// Bytes that were read from each socket, and when the message came.
    sockets: HashMap<SocketEnds, (u64, Instant)>,
    /// Until then none is old enough to be forgotten, so that a full table is not looked through for each message.
    none_until: Option<Instant>,
}

/// Has the calling thread, which runs a local runtime, follow the announcements of its network namespace until it ends.
///
/// # Errors
/// As of [`leno_sockets::announcements`]; requests whose connection is reset are then not known to be unread.
pub fn follow_destroyed() -> io::Result<()> {
    // SAFETY: the socket owns its descriptor, returns the same one each time, and is not taken out of what owns it here.
    let socket = unsafe { AsyncFd::register(sockets::announcements()?) }?;
    let destroyed = Arc::new(DestroyedSockets::default());
    DESTROYED.set(Arc::downgrade(&destroyed));
    // Ends with the runtime.
    spawn_local(async move {
        if let Err(error) = destroyed.follow(&socket).await {
            tracing::error!(%error, "reading which sockets the kernel has destroyed");
        }
    });
    Ok(())
}

/// Times that messages of this thread were lost, since more came at once than there is room for.
#[must_use]
pub fn lost_announcements() -> u64 {
    LOST.get()
}

/// Those of the current task's namespace, if they are followed.
pub(crate) fn of_task() -> Option<Arc<DestroyedSockets>> {
    match domain::current() {
        Some(domain) => domain.namespace().destroyed.upgrade(),
        None => of_thread().upgrade(),
    }
}

/// Those of this thread, if it follows them.
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
        // Nothing panics while it is locked.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes that a program had read from a socket with these ends, which was made after `since`, when it was
    /// destroyed with others unread.
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
