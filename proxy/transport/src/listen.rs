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

/// How often one [`Listener::accept`] retries before it returns an error. With the increasing waits below this takes
/// about two seconds: long enough for a short lack of descriptors to end, and short enough that the operator soon reads
/// why connections are not accepted.
const MAX_ACCEPT_RETRIES: u32 = 10;

/// The first wait after a failure for lack of resources. Each further wait is twice as long, up to [`MAX_ACCEPT_WAIT`].
const FIRST_ACCEPT_WAIT: Duration = Duration::from_millis(2);

/// The longest wait between two retries.
const MAX_ACCEPT_WAIT: Duration = Duration::from_millis(500);

/// How many connections are accepted in a row before other tasks of the worker run. The rest of a burst waits in the
/// kernel, because it takes about 20 us to begin to serve a connection, and a request on an open connection would wait
/// for all of them.
const ACCEPTED_IN_A_ROW: u32 = 8;

/// The offset of the flags in a TCP header, and the two flags that distinguish a client's first packet from others (RFC
/// 9293, 3.1).
const FLAGS_AT: u32 = 13;
const SYN: u32 = 0x02;
const ACK: u32 = 0x10;

/// The address families. The capture, which redirects connections to the proxy, stores the listeners of a worker in
/// this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6 only; IPv4-mapped addresses go to the IPv4 listener.
    V6,
}

/// A listening socket of this worker.
///
/// All workers listen on the same port (`SO_REUSEPORT`); the kernel distributes connections among them.
#[derive(Debug)]
pub struct Listener {
    inner: TcpListener,
    address: SocketAddr,
    /// How many connections were accepted since other tasks last ran.
    in_a_row: Cell<u32>,
}

impl Listener {
    /// Binds `address` and listens. Port 0 picks a free port, see [`Listener::address`].
    ///
    /// # Errors
    /// The kernel's error: the port belongs to another user, the address family is disabled, and so on.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::adopt(leno_sockets::listener(address)?)
    }

    /// Listens on a socket that [`leno_sockets::listener`] or [`leno_sockets::bound`] created.
    ///
    /// # Errors
    /// If the socket is of another type or state.
    pub fn adopt(socket: OwnedFd) -> io::Result<Self> {
        leno_sockets::listen(&socket, BACKLOG)?;
        let inner = TcpListener::from_std(socket.into())?;
        let address = inner.local_addr()?;
        Ok(Self { inner, address, in_a_row: Cell::new(0) })
    }

    /// The address to which the listener is bound.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The listener's address family.
    #[must_use]
    pub fn family(&self) -> Family {
        if self.address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// The next connection and the address of its client, with `TCP_NODELAY` set. After eight connections in a row,
    /// other tasks run first.
    ///
    /// A connection that its client has aborted is skipped. If descriptors or memory are lacking, this waits and
    /// retries, a limited number of times. Cancelling the future loses no connection.
    ///
    /// # Errors
    /// The last error after all retries. The listener remains usable.
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
                // Another process has shut this socket down for all processes that hold it (shutdown(2)), and itself
                // accepts the port's connections.
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

    /// Closes the listener without losing a connection. When a listening socket is closed, the kernel resets
    /// connections whose handshake is complete or in progress, although their clients may have sent a request already.
    /// So this first stops new handshakes, then completes those in progress and passes the connections to `serve`, and
    /// then closes the socket. Later clients are refused, either at once or when they send their first packet again.
    pub async fn close(self, mut serve: impl FnMut(TcpStream, SocketAddr)) {
        if let Err(error) = self.refuse() {
            tracing::debug!(%error, "connections may be lost that come while a listener closes");
        }
        self.finish(&mut serve).await;
    }

    /// Closes the listener if a newer process listens on the port, too, and should get all new clients. This process
    /// has `workers` listeners on the port; the kernel is told to pass new handshakes to those after them. So no
    /// handshake is at this listener when it is closed, whose connection the kernel would reset.
    pub async fn pass_on(self, workers: u16, mut serve: impl FnMut(TcpStream, SocketAddr)) {
        if let Err(error) = steer(&self.inner, workers.into()) {
            tracing::warn!(%error, "connections may be lost that come while a listener is passed on");
        }
        self.finish(&mut serve).await;
    }

    /// Serves the connections whose handshake has begun, for up to [`LAST_HANDSHAKES`], and then closes the listener.
    async fn finish(self, serve: &mut impl FnMut(TcpStream, SocketAddr)) {
        let Some(until) = Instant::now().checked_add(LAST_HANDSHAKES) else { return };
        while let Ok(Ok((stream, client))) = timeout_at(until, self.accept()).await {
            serve(stream, client);
        }
        // The reactor may not have reported these connections yet.
        let Ok(listener) = self.inner.into_std() else { return };
        while let Ok((stream, client)) = listener.accept() {
            if stream.set_nonblocking(true).is_ok()
                && let Ok(stream) = TcpStream::from_std(stream)
            {
                serve(stream, client);
            }
        }
    }

    /// Makes the kernel drop the first packets of new clients. Accepted connections are not affected: the filter, which
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

/// Errors that end when other programs close descriptors or free memory.
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
    async fn a_listener_that_another_process_shuts_down_waits_without_an_error() {
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
    fn errors_of_one_connection_and_lack_of_resources_are_distinguished() {
        use nix::libc;
        let of = io::Error::from_raw_os_error;
        assert!(is_of_resources(&of(libc::EMFILE)) && !is_of_connection(&of(libc::EMFILE)));
        assert!(is_of_connection(&of(libc::ECONNABORTED)));
        assert!(!is_of_resources(&of(libc::EBADF)) && !is_of_connection(&of(libc::EBADF)));
    }
}
