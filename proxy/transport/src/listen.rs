//! Listening sockets, one set for each worker.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use leno_sockets::{BACKLOG, LAST_HANDSHAKES, steer};
use socket2::{SockFilter, SockRef};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout_at};

/// How often one [`Listener::accept`] tries again before it reports. With the doubling waits below
/// that is about two seconds, long enough to outlive a burst of descriptors, short enough for the
/// operator to read why nothing is accepted.
const MAX_ACCEPT_RETRIES: u32 = 10;

/// The first wait after a failure for lack of resources; doubled up to [`MAX_ACCEPT_WAIT`].
const FIRST_ACCEPT_WAIT: Duration = Duration::from_millis(2);

/// The longest wait between two tries.
const MAX_ACCEPT_WAIT: Duration = Duration::from_millis(500);

/// Connections that are accepted one after the other before other tasks of the worker have their turn. A burst waits in the
/// kernel meanwhile: what comes of each takes some 20 us, and a request on an open connection would wait for all of them.
const ACCEPTED_IN_A_ROW: u32 = 8;

/// Where the flags are in a TCP header, and those that tell a client's first packet from others (RFC 9293, 3.1).
const FLAGS_AT: u32 = 13;
const SYN: u32 = 0x02;
const ACK: u32 = 0x10;

/// The address families, in the order of the capture's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6 only; IPv4-mapped addresses go to the IPv4 listener.
    V6,
}

/// A listening socket of this worker.
///
/// It shares its port with the same listener of the other workers (`SO_REUSEPORT`); the kernel
/// spreads connections over them.
#[derive(Debug)]
pub struct Listener {
    inner: TcpListener,
    address: SocketAddr,
    /// Accepted since other tasks had their turn.
    in_a_row: Cell<u32>,
}

impl Listener {
    /// Binds `address` and listens. Port 0 picks a free port, see [`Listener::address`].
    ///
    /// # Errors
    /// What the kernel says: the port belongs to another user, the family is switched off, ...
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::adopt(leno_sockets::listener(address)?)
    }

    /// A socket of [`leno_sockets::listener`] or of [`leno_sockets::bound`], which begins to listen.
    ///
    /// # Errors
    /// When it is no such socket.
    pub fn adopt(socket: OwnedFd) -> io::Result<Self> {
        leno_sockets::listen(&socket, BACKLOG)?;
        let inner = TcpListener::from_std(socket.into())?;
        let address = inner.local_addr()?;
        Ok(Self { inner, address, in_a_row: Cell::new(0) })
    }

    /// The address it is bound to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its address family.
    #[must_use]
    pub fn family(&self) -> Family {
        if self.address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// The next connection and the address of its client; `TCP_NODELAY` is set. After eight of them other tasks have their
    /// turn first.
    ///
    /// A connection that its client gave up is skipped. For lack of descriptors or memory it waits
    /// and tries again, a bound number of times. Cancelling it loses no connection.
    ///
    /// # Errors
    /// The last error when the tries are used up; the listener can be asked again.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        if self.in_a_row.get() >= ACCEPTED_IN_A_ROW {
            self.in_a_row.set(0);
            tokio::task::yield_now().await;
        }
        let mut wait = FIRST_ACCEPT_WAIT;
        for _ in 0..MAX_ACCEPT_RETRIES {
            match self.inner.accept().await {
                Ok(accepted) => {
                    self.in_a_row.set(self.in_a_row.get().saturating_add(1));
                    return Ok(accepted);
                }
                Err(error) if is_of_connection(&error) => {}
                // It was shut down for all processes that have it (shutdown(2)): another one of the port takes the connections.
                Err(error) if error.raw_os_error() == Some(nix::libc::EINVAL) => {
                    return std::future::pending().await;
                }
                Err(error) if is_of_resources(&error) => {
                    tokio::time::sleep(wait).await;
                    wait = wait.saturating_mul(2).min(MAX_ACCEPT_WAIT);
                }
                Err(error) => return Err(error),
            }
        }
        self.inner.accept().await
    }

    /// Closes it without losing a connection: the kernel resets those whose handshake is complete, or under way,
    /// when a socket that listens is closed, after their clients may have sent a request. So first no more
    /// handshakes begin, then those that have are completed and passed to `serve`, then it is closed. A client that
    /// comes too late is refused, at once or when it sends its first packet again.
    pub async fn close(self, mut serve: impl FnMut(TcpStream, SocketAddr)) {
        if let Err(error) = self.refuse() {
            tracing::debug!(%error, "connections may be lost that come while a listener closes");
        }
        self.finish(&mut serve).await;
    }

    /// The same where another process listens on the port: clients that come from now on are its own. It began to listen after this
    /// process, which has as many listeners there as it has `workers`. So no handshake is completed in the moment in which this
    /// listener is closed, which the kernel would reset.
    pub async fn pass_on(self, workers: u16, mut serve: impl FnMut(TcpStream, SocketAddr)) {
        if let Err(error) = steer(&self.inner, workers.into()) {
            tracing::warn!(%error, "connections may be lost that come while a listener is passed on");
        }
        self.finish(&mut serve).await;
    }

    /// Serves those whose handshake has begun, then closes it.
    async fn finish(self, serve: &mut impl FnMut(TcpStream, SocketAddr)) {
        let Some(until) = Instant::now().checked_add(LAST_HANDSHAKES) else { return };
        while let Ok(Ok((stream, client))) = timeout_at(until, self.accept()).await {
            serve(stream, client);
        }
        // Those that the reactor has not reported yet.
        let Ok(listener) = self.inner.into_std() else { return };
        while let Ok((stream, client)) = listener.accept() {
            if stream.set_nonblocking(true).is_ok()
                && let Ok(stream) = TcpStream::from_std(stream)
            {
                serve(stream, client);
            }
        }
    }

    /// Has the kernel drop the first packets of new clients. Accepted connections are not affected: the filter, which
    /// they inherit, drops nothing else.
    fn refuse(&self) -> io::Result<()> {
        use nix::libc::{
            BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET,
        };
        let step = |code: u32, value, or, otherwise| {
            SockFilter::new(u16::try_from(code).unwrap_or_default(), or, otherwise, value)
        };
        SockRef::from(&self.inner).attach_filter(&[
            step(BPF_LD | BPF_B | BPF_ABS, FLAGS_AT, 0, 0),
            step(BPF_ALU | BPF_AND | BPF_K, SYN | ACK, 0, 0),
            step(BPF_JMP | BPF_JEQ | BPF_K, SYN, 0, 1),
            step(BPF_RET | BPF_K, 0, 0, 0),
            step(BPF_RET | BPF_K, u32::MAX, 0, 0),
        ])
    }
}

/// Errors of the one connection that was about to be accepted (accept(2), "Error handling").
fn is_of_connection(error: &io::Error) -> bool {
    use nix::libc;
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNABORTED
                | libc::EPERM
                | libc::EPROTO
                | libc::ENETDOWN
                | libc::ENOPROTOOPT
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::EHOSTUNREACH
                | libc::EOPNOTSUPP
                | libc::ENETUNREACH
        )
    )
}

/// Errors that pass when others close their descriptors or free memory.
fn is_of_resources(error: &io::Error) -> bool {
    use nix::libc;
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn workers_share_a_port_and_families_do_not_mix() {
        let first = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let second = Listener::bind(first.address()).unwrap();
        assert_eq!(first.address(), second.address());
        assert_eq!(first.family(), Family::V4);
        let v6 =
            Listener::bind(SocketAddr::new("::".parse().unwrap(), first.address().port())).unwrap();
        assert_eq!(v6.family(), Family::V6);
    }

    #[tokio::test]
    async fn accepted_sockets_send_without_delay() {
        let listener = Listener::bind("[::1]:0".parse().unwrap()).unwrap();
        let client = TcpStream::connect(listener.address()).await.unwrap();
        let (accepted, from) = listener.accept().await.unwrap();
        assert_eq!(from, client.local_addr().unwrap());
        assert!(accepted.nodelay().unwrap());
    }

    #[tokio::test]
    async fn a_listener_that_another_process_shuts_down_is_no_error_and_brings_nothing() {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        SockRef::from(&listener.inner).shutdown(std::net::Shutdown::Both).unwrap();
        let accepted = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
        assert!(accepted.is_err(), "{accepted:?}");
    }

    #[tokio::test]
    async fn a_burst_of_connections_leaves_turns_to_other_tasks() {
        const BURST: u32 = 64;
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address();
        let clients: Vec<_> =
            (0..BURST).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
        let turns = Cell::new(0);
        let others = async {
            loop {
                turns.set(turns.get() + 1);
                tokio::task::yield_now().await;
            }
        };
        let burst = async {
            for _ in &clients {
                listener.accept().await.unwrap();
            }
        };
        tokio::select! { biased; () = burst => {}, () = others => {} }
        assert!(turns.get() >= BURST / ACCEPTED_IN_A_ROW - 1, "{} turns", turns.get());
    }

    #[test]
    fn errors_are_told_apart() {
        use nix::libc;
        let of = io::Error::from_raw_os_error;
        assert!(is_of_resources(&of(libc::EMFILE)) && !is_of_connection(&of(libc::EMFILE)));
        assert!(is_of_connection(&of(libc::ECONNABORTED)));
        assert!(!is_of_resources(&of(libc::EBADF)) && !is_of_connection(&of(libc::EBADF)));
    }
}
