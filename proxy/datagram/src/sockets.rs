//! The sockets of a worker.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, Socket, Type};

/// Bytes that wait in a socket until this worker comes round: bursts of some thousand datagrams. The kernel caps it at
/// `net.core.rmem_max`.
const RECEIVE_BUFFER: usize = 1 << 20;

/// A socket of all addresses of a family at this port. It may send from addresses that are local by a route alone.
///
/// A proxy that takes over binds the port before the one before has closed it (`SO_REUSEPORT`, which the kernel grants to
/// processes of one user alone). Meanwhile the kernel divides packets between the two; what comes to the other one is lost.
///
/// # Errors
/// The system's reason: the port is taken, the family is switched off, ...
pub fn bind(is_ipv6: bool, port: u16) -> io::Result<UdpSocket> {
    let any = match is_ipv6 {
        true => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        false => Ipv4Addr::UNSPECIFIED.into(),
    };
    let address = SocketAddr::new(any, port);
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if is_ipv6 {
        socket.set_only_v6(true)?;
        socket.set_freebind_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_and_successors_share_a_port_and_others_do_not() {
        let v4 = bind(false, 0).unwrap();
        let port = v4.local_addr().unwrap().port();
        let v6 = bind(true, port).unwrap();
        assert_eq!(v6.local_addr().unwrap().port(), port);
        let next = bind(false, port).unwrap();
        assert_eq!(next.local_addr().unwrap().port(), port);
        let other = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap_err();
        assert_eq!(other.kind(), io::ErrorKind::AddrInUse);
    }
}
