//! Sockets for datagrams of the workload, and where they were meant to go.
#![expect(unsafe_code, reason = "no crate in use reads a socket option of a level of our own")]

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use leno_types::canonical;
use leno_types::source::{CLIENT_LEVEL, placeholder_number};
use nix::libc;
use socket2::{Domain, Protocol, Socket, Type};

/// Bytes that wait in a socket until this worker comes round: bursts of some thousand datagrams. The kernel caps it at
/// `net.core.rmem_max`.
const RECEIVE_BUFFER: usize = 1 << 20;

/// A socket of all addresses of a family at this port. It may send from addresses that are local by a route alone.
///
/// # Errors
/// The system's reason: the port is taken, the family is switched off, ...
pub fn datagram_socket(is_ipv6: bool, port: u16) -> io::Result<UdpSocket> {
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
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Asks the capture's kernel programs what placeholders stand for.
#[derive(Debug)]
pub struct PlaceholderDestinations(UdpSocket);

impl PlaceholderDestinations {
    /// Makes the socket by which it asks.
    ///
    /// # Errors
    /// The system's reason.
    pub fn new() -> io::Result<Self> {
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map(Self)
    }

    /// The destination of datagrams to this address.
    ///
    /// # Errors
    /// `NotFound` if the address is no placeholder; `ENOPROTOOPT` if no destination is known for it.
    pub fn of(&self, placeholder: IpAddr) -> io::Result<SocketAddr> {
        let number = placeholder_number(placeholder).ok_or(io::ErrorKind::NotFound)?;
        let number = libc::c_int::try_from(number).map_err(|_| io::ErrorKind::NotFound)?;
        // SAFETY: all bytes zero are a value of this structure of integers.
        let mut address: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
        let mut length = libc::socklen_t::try_from(size_of::<libc::sockaddr_in6>())
            .map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the kernel writes at most `length` bytes to the pointer, both of which are valid for the call; the
        // descriptor is open as long as `self` is borrowed.
        let result = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                CLIENT_LEVEL,
                number,
                (&raw mut address).cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
        Ok(canonical(SocketAddr::new(ip.into(), u16::from_be(address.sin6_port))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_kernel_programs_no_placeholder_has_a_destination() {
        let destinations = PlaceholderDestinations::new().unwrap();
        let of = |text: &str| destinations.of(text.parse().unwrap()).unwrap_err();
        assert_eq!(of("127.0.0.1").kind(), io::ErrorKind::NotFound);
        for placeholder in ["127.64.0.1", "100:0:0:1:1::1"] {
            assert!(of(placeholder).raw_os_error().is_some(), "{placeholder}");
        }
    }

    #[test]
    fn families_share_a_port_and_two_sockets_of_one_do_not() {
        let v4 = datagram_socket(false, 0).unwrap();
        let port = v4.local_addr().unwrap().port();
        let v6 = datagram_socket(true, port).unwrap();
        assert_eq!(v6.local_addr().unwrap().port(), port);
        let taken = datagram_socket(false, port).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }
}
