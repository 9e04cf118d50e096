//! Reads where datagrams of the workload's application were meant to go. The capture's kernel programs replace an
//! original destination by a placeholder address, from which only those programs can find the destination again.
#![expect(unsafe_code, reason = "no crate in use reads a socket option of a level of our own")]

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;

use leno_types::canonical;
use leno_types::source::{CLIENT_LEVEL, placeholder_number};
use nix::libc;
use socket2::Socket;

use crate::sockets;

/// Queries, by a socket option that the capture's kernel programs implement, which destination a placeholder address
/// stands for.
#[derive(Debug)]
pub struct PlaceholderDestinations(Socket);

impl PlaceholderDestinations {
    /// Creates the socket for queries in the network namespace of this thread.
    ///
    /// # Errors
    /// The errors of [`udp`](crate::udp).
    pub async fn new() -> io::Result<Self> {
        sockets::udp(false).await.map(Self)
    }

    /// The original destination of datagrams that were sent to this placeholder address.
    ///
    /// # Errors
    /// `NotFound` if the address is not a placeholder. `ENOPROTOOPT` if the kernel programs are absent or do not know
    /// it.
    pub fn of(&self, placeholder: IpAddr) -> io::Result<SocketAddr> {
        let number = placeholder_number(placeholder).ok_or(io::ErrorKind::NotFound)?;
        let number = libc::c_int::try_from(number).map_err(|_| io::ErrorKind::NotFound)?;
        // SAFETY: this structure consists of integers, so all zero bytes are a valid value.
        let mut address: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
        let mut length = libc::socklen_t::try_from(size_of::<libc::sockaddr_in6>())
            .map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the pointer and `length` are valid for the call, and the kernel writes at most `length` bytes. The
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

    #[tokio::test]
    async fn without_kernel_programs_no_placeholder_has_a_destination() {
        let destinations = PlaceholderDestinations::new().await.unwrap();
        let of = |text: &str| destinations.of(text.parse().unwrap()).unwrap_err();
        assert_eq!(of("127.0.0.1").kind(), io::ErrorKind::NotFound);
        for placeholder in ["127.64.0.1", "100:0:0:1:1::1"] {
            assert!(of(placeholder).raw_os_error().is_some(), "{placeholder}");
        }
    }
}
