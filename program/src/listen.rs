//! Listening, even on machines without IPv6.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::{TcpListener, TcpSocket};

/// The largest number of connections that wait to be accepted on a socket of [`listen_beside`]. [`listen`] has the same
/// number, which is the default of mio.
const BACKLOG: u32 = 1024;

/// Listens on an address. On a machine without IPv6, `[::]` becomes the IPv4 wildcard address,
/// which is logged.
///
/// # Errors
/// The address cannot be listened on.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    let Some(instead) = bound.as_ref().err().and_then(|error| without_ipv6(address, error)) else {
        return bound;
    };
    tracing::warn!(%address, %instead, "this machine has no IPv6: listening only on IPv4");
    TcpListener::bind(instead).await
}

/// Like [`listen`], but with SO_REUSEPORT: other processes of the same user may listen on the same address, and the
/// kernel spreads new connections over all of them.
///
/// # Errors
/// As [`listen`].
pub fn listen_beside(address: SocketAddr) -> io::Result<TcpListener> {
    let bind = |address: SocketAddr| {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        }?;
        socket.set_reuseaddr(true)?;
        socket.set_reuseport(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    let bound = bind(address);
    match bound.as_ref().err().and_then(|error| without_ipv6(address, error)) {
        Some(instead) => bind(instead),
        None => bound,
    }
}

/// The address to use instead of one that failed for lack of IPv6: the kernel has no IPv6
/// (`ipv6.disable=1`), or no IPv6 addresses (`net.ipv6.conf.all.disable_ipv6=1`).
fn without_ipv6(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    let none = matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL));
    let any = address.ip() == Ipv6Addr::UNSPECIFIED;
    (none && any).then(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_want_of_ipv6_has_any_address_replaced() {
        let instead = |address: &str, code| {
            without_ipv6(address.parse().unwrap(), &io::Error::from_raw_os_error(code))
        };
        let expected = "0.0.0.0:15010".parse().unwrap();
        assert_eq!(instead("[::]:15010", libc::EAFNOSUPPORT), Some(expected));
        assert_eq!(instead("[::]:15010", libc::EADDRNOTAVAIL), Some(expected));
        assert_eq!(instead("[::]:15010", libc::EADDRINUSE), None);
        assert_eq!(instead("[::1]:15010", libc::EAFNOSUPPORT), None);
    }
}
