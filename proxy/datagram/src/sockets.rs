//! The sockets of a worker, in the network namespace of its workload.
//!
//! A proxy that takes over opens sockets on the same ports before the earlier one has closed its own (`SO_REUSEPORT`,
//! which the kernel permits only to processes of one user). Each new socket also sets the rule by which the kernel
//! chooses which process gets a packet. The rules are made for two processes. If there is a third, some packets are
//! lost until one of them has closed its sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use leno_sockets::{steer, steer_connections};
use socket2::Socket;

use crate::ids::ProcessMark;

/// The receive buffer of a socket, in bytes. It holds bursts of some thousand datagrams until this worker reads them.
/// The kernel limits it to `net.core.rmem_max`.
const RECEIVE_BUFFER: usize = 1 << 20;
/// The index of the second process among the sockets of a port.
const SECOND: u32 = 1;

/// A socket for the datagrams that the workload sends. It may answer from addresses that are local only by a route.
/// From now on an earlier proxy gets no new datagrams; it reads those that it has before it closes its socket.
///
/// # Errors
/// The system's reason, for example that the port is in use, or that the family is disabled.
pub async fn bind_captured(is_ipv6: bool, port: u16) -> io::Result<UdpSocket> {
    let socket = bind(is_ipv6, port).await?;
    steer(&socket, SECOND)?;
    Ok(socket.into())
}

/// A socket for QUIC packets. Packets of an earlier proxy's connections still reach that proxy until it closes its
/// socket.
///
/// # Errors
/// The errors of [`bind_captured`].
pub async fn bind_quic(is_ipv6: bool, port: u16, mark: ProcessMark) -> io::Result<UdpSocket> {
    let socket = bind(is_ipv6, port).await?;
    steer_connections(&socket, mark.bytes())?;
    Ok(socket.into())
}

/// A socket that is connected to `to`, so that the kernel drops packets from other addresses.
pub(crate) async fn connected(
    from: Option<IpAddr>,
    to: SocketAddr,
) -> io::Result<tokio::net::UdpSocket> {
    let socket = leno_transport::udp(to.is_ipv6()).await?;
    if let Some(from) = from {
        if from.is_ipv6() {
            // The stand-in address, which applications see for any client, is local only by a route, and not assigned
            // to an interface.
            socket.set_freebind_v6(true)?;
        }
        socket.bind(&SocketAddr::new(from, 0).into())?;
    }
    socket.connect(&to.into())?;
    let socket = tokio::net::UdpSocket::from_std(socket.into())?;
    // The socket is only writable once the reactor has reported it; without this, the first send would fail.
    socket.writable().await?;
    Ok(socket)
}

async fn bind(is_ipv6: bool, port: u16) -> io::Result<Socket> {
    let any = match is_ipv6 {
        true => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        false => Ipv4Addr::UNSPECIFIED.into(),
    };
    let socket = leno_transport::udp(is_ipv6).await?;
    if is_ipv6 {
        socket.set_only_v6(true)?;
        socket.set_freebind_v6(true)?;
    }
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.set_reuse_port(true)?;
    socket.bind(&SocketAddr::new(any, port).into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn families_and_successors_share_a_port_and_others_do_not() {
        let v4 = bind_captured(false, 0).await.unwrap();
        let port = v4.local_addr().unwrap().port();
        let v6 = bind_captured(true, port).await.unwrap();
        assert_eq!(v6.local_addr().unwrap().port(), port);
        let next = bind_captured(false, port).await.unwrap();
        assert_eq!(next.local_addr().unwrap().port(), port);
        let other = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap_err();
        assert_eq!(other.kind(), io::ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn what_the_workload_sends_comes_to_the_next_process_as_soon_as_that_has_a_socket() {
        let first = bind_captured(false, 0).await.unwrap();
        let port = first.local_addr().unwrap().port();
        let send = || {
            for _ in 0..16 {
                let client = UdpSocket::bind("127.0.0.1:0").unwrap();
                client.send_to(b"datagram", ("127.0.0.1", port)).unwrap();
            }
        };
        let come = |to: &UdpSocket| std::iter::from_fn(|| to.recv(&mut [0; 16]).ok()).count();
        send();
        assert_eq!(come(&first), 16);
        let next = bind_captured(false, port).await.unwrap();
        send();
        assert_eq!((come(&first), come(&next)), (0, 16));
        drop(first);
        let last = bind_captured(false, port).await.unwrap();
        send();
        assert_eq!((come(&next), come(&last)), (0, 16));
    }
}
