//! Chooses the client address that the application sees.
#![expect(unsafe_code, reason = "no crate in use sets a socket option of a level of our own")]

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use leno_types::source::{CLIENT_LEVEL, CLIENT_OPTION, STAND_IN_V4, stand_in};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::IpBindAddressNoPort;
use socket2::{SockAddr, SockRef};
use tokio::net::{TcpSocket, TcpStream};

use crate::connect::{CONNECT_TIMEOUT, ConnectError, within};
use crate::local::interface_addresses;
use crate::sockets;

/// How long the result of [`Shown::now`] is used. The result changes when the node's agent is replaced by another
/// version or captures with another backend.
const REFRESH: Duration = Duration::from_secs(5);

/// Which address applications in this network namespace see as the address of their clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The client's own address and port. The kernel programs of the node's agent make this possible.
    Client,
    /// One fixed address that stands for any client. The agent has routed it to loopback.
    StandIn,
    /// An address of the workload that is not loopback, because no agent has prepared this namespace.
    Own,
}

/// Connects to applications on behalf of clients, so that no application mistakes a client for itself.
///
/// There is one for each worker. It queries the kernel about the namespace at most once every five seconds.
#[derive(Debug, Default)]
pub struct ClientAddress {
    shown: Cell<Option<(Shown, Instant)>>,
    always: Option<Shown>,
}

impl Shown {
    /// What is possible in this network namespace now.
    #[must_use]
    pub fn now() -> Self {
        if let Some(shown) = sockets::shown() {
            return shown;
        }
        TcpSocket::new_v4().map_or(Self::Own, |socket| Self::by(&socket))
    }

    /// What is possible in the network namespace of this unconnected IPv4 socket. The socket cannot be used afterwards.
    pub(crate) fn by(socket: &TcpSocket) -> Self {
        if socket.bind((STAND_IN_V4, 0).into()).is_err() {
            Self::Own
        } else if name_client(socket, (STAND_IN_V4, 0).into()).is_err() {
            Self::StandIn
        } else {
            Self::Client
        }
    }

    /// The name in `/config`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::StandIn => "stand-in",
            Self::Own => "own",
        }
    }
}

impl ClientAddress {
    /// Always shows this kind of address, whatever the namespace permits, for tests that compare the kinds.
    #[must_use]
    pub fn always(shown: Shown) -> Self {
        Self { always: Some(shown), ..Self::default() }
    }

    /// The kind of address that applications see.
    #[must_use]
    pub fn shown(&self) -> Shown {
        if let Some(always) = self.always {
            return always;
        }
        let now = Instant::now();
        match self.shown.get() {
            Some((shown, asked)) if now.duration_since(asked) < REFRESH => shown,
            _ => {
                let shown = Shown::now();
                self.shown.set(Some((shown, now)));
                shown
            }
        }
    }

    /// Connects to `application` on behalf of `client`, which connected to `dialled`.
    ///
    /// # Errors
    /// [`ConnectError`]; if it occurs, nothing has reached the application.
    pub async fn connect(
        &self,
        application: SocketAddr,
        (client, dialled): (SocketAddr, IpAddr),
    ) -> Result<TcpStream, ConnectError> {
        let connecting = async {
            let socket = self.socket(application, (client, dialled)).await?;
            socket.connect(application).await
        };
        within(application, CONNECT_TIMEOUT, connecting).await
    }

    /// The source address of datagrams to `application` on behalf of a client that sends to `dialled`. It is never the
    /// client's own address, because no socket of the proxy can have that.
    ///
    /// # Errors
    /// If loopback is the only address to send from.
    pub fn datagram_source(&self, application: SocketAddr, dialled: IpAddr) -> io::Result<IpAddr> {
        match self.shown() {
            Shown::Own => own_address(application, dialled),
            Shown::Client | Shown::StandIn => Ok(stand_in(&application)),
        }
    }

    /// A socket bound to the address that the application should see.
    async fn socket(
        &self,
        application: SocketAddr,
        (client, dialled): (SocketAddr, IpAddr),
    ) -> io::Result<TcpSocket> {
        let shown = self.shown();
        let socket = sockets::tcp(application.is_ipv6()).await?;
        let source = match shown {
            Shown::Own => own_address(application, dialled)?,
            Shown::Client | Shown::StandIn => stand_in(&application),
        };
        if shown == Shown::Client {
            // If the kernel programs were removed meanwhile, the application sees the stand-in address.
            let _unnamed = name_client(&socket, client);
        }
        if source.is_ipv6() {
            // The stand-in address is local only by a route; no interface has it.
            SockRef::from(&socket).set_freebind_v6(true)?;
        }
        // connect() chooses the port, so that connections to different ports can share one.
        setsockopt(&socket, IpBindAddressNoPort, &true)?;
        socket.bind((source, 0).into())?;
        Ok(socket)
    }
}

/// Informs the kernel programs for which client `socket` will connect.
///
/// # Errors
/// `ENOPROTOOPT` if there are no such programs.
fn name_client(socket: &TcpSocket, client: SocketAddr) -> io::Result<()> {
    let ip = match client.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let address = SockAddr::from(SocketAddrV6::new(ip, client.port(), 0, 0));
    // SAFETY: the kernel reads `len` bytes from the pointer, which is valid for the call; the descriptor is
    // open as long as `socket` is borrowed.
    let result = unsafe {
        nix::libc::setsockopt(
            socket.as_raw_fd(),
            CLIENT_LEVEL,
            CLIENT_OPTION,
            address.as_ptr().cast(),
            address.len(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// An address of this workload in the application's family: the address to which the client connected, or else an
/// address of any interface. It is never loopback, because applications trust loopback.
fn own_address(application: SocketAddr, dialled: IpAddr) -> io::Result<IpAddr> {
    let fits = |ip: &IpAddr| ip.is_ipv4() == application.is_ipv4() && !is_trusted(*ip);
    if fits(&dialled) {
        return Ok(dialled);
    }
    interface_addresses()?.into_iter().find(fits).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            "no address but loopback to connect from: the namespace has none of this family",
        )
    })
}

/// Whether an address is loopback, or cannot be bound as a source: it is unspecified, or link-local to an interface.
fn is_trusted(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_loopback() || v4 == Ipv4Addr::UNSPECIFIED,
        IpAddr::V6(v6) => {
            v6.is_loopback() || v6 == Ipv6Addr::UNSPECIFIED || v6.is_unicast_link_local()
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn without_an_agent_a_stranger_is_not_seen_as_loopback() {
        let client = SocketAddr::from(([192, 0, 2, 1], 4000));
        let own = interface_addresses().unwrap();
        let own = own.into_iter().find(|ip| ip.is_ipv4() && !is_trusted(*ip));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let addresses = ClientAddress::default();
        assert_eq!(addresses.shown(), Shown::Own, "a test runs where no agent captures");
        let connected = addresses.connect(to, (client, to.ip())).await;
        match own {
            Some(own) => {
                connected.unwrap();
                assert_eq!(listener.accept().await.unwrap().1.ip(), own);
            }
            None => assert_eq!(connected.unwrap_err().reason(), "other"),
        }
    }

    #[test]
    fn the_dialled_address_is_the_workloads_own() {
        let application = SocketAddr::from(([127, 0, 0, 1], 80));
        let dialled = IpAddr::from([10, 89, 0, 2]);
        assert_eq!(own_address(application, dialled).unwrap(), dialled);
    }
}
