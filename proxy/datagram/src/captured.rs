//! The socket on which the workload's datagrams arrive.
//!
//! The destination address of a captured datagram is a placeholder (`leno_types::source`), which stands for the real
//! destination. Answers are sent from the placeholder.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Looks up the destinations of placeholders.
pub trait Destinations: fmt::Debug {
    /// The destination of a placeholder.
    ///
    /// # Errors
    /// If there is none, because a datagram was sent to the proxy itself.
    fn of(&self, placeholder: IpAddr) -> io::Result<SocketAddr>;
}

/// A socket on which datagrams of the workload arrive, together with their destinations.
#[derive(Debug)]
pub struct Captured {
    io: UdpSocket,
    state: UdpSocketState,
    destinations: Rc<dyn Destinations>,
    is_ipv4: bool,
}

/// The result of one read: datagrams of one sender to one destination. The kernel may join several in one read.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) client: SocketAddr,
    pub(crate) placeholder: IpAddr,
    /// How many bytes were read.
    length: usize,
    /// The size of each datagram; the last one may be shorter.
    each: usize,
}

impl Captured {
    /// Uses a bound socket. Must be called on a thread with a runtime.
    ///
    /// # Errors
    /// If the socket is not usable.
    pub fn new(
        socket: std::net::UdpSocket,
        destinations: Rc<dyn Destinations>,
    ) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        let is_ipv4 = socket.local_addr()?.is_ipv4();
        Ok(Self { io: UdpSocket::from_std(socket)?, state, destinations, is_ipv4 })
    }

    pub(crate) fn is_ipv4(&self) -> bool {
        self.is_ipv4
    }

    pub(crate) fn destination(&self, placeholder: IpAddr) -> io::Result<SocketAddr> {
        self.destinations.of(placeholder)
    }

    /// Waits for datagrams.
    pub(crate) async fn receive(&self, buffer: &mut [u8]) -> io::Result<Arrived> {
        loop {
            self.io.readable().await?;
            let mut meta = [RecvMeta::default()];
            let mut buffers = [IoSliceMut::new(buffer)];
            let received = self.io.try_io(Interest::READABLE, || {
                self.state.recv((&self.io).into(), &mut buffers, &mut meta)
            });
            let [meta] = meta;
            match (received, meta.dst_ip) {
                (Ok(_), Some(placeholder)) => {
                    let (length, each) = (meta.len, meta.stride);
                    return Ok(Arrived { client: meta.addr, placeholder, length, each });
                }
                (Ok(_), None) => {}
                (Err(error), _) if error.kind() == io::ErrorKind::WouldBlock => {}
                (Err(error), _) => return Err(error),
            }
        }
    }

    /// Sends an answer without waiting.
    pub(crate) fn send(&self, payload: &[u8], from: IpAddr, to: SocketAddr) -> io::Result<()> {
        let transmit = Transmit {
            destination: to,
            ecn: None,
            contents: payload,
            segment_size: None,
            src_ip: Some(from),
        };
        self.io.try_io(Interest::WRITABLE, || self.state.try_send((&self.io).into(), &transmit))
    }
}

impl Arrived {
    /// The payloads in the buffer. An empty payload is a datagram, too.
    pub(crate) fn payloads<'b>(&self, buffer: &'b [u8]) -> impl Iterator<Item = &'b [u8]> {
        let received = buffer.get(..self.length).unwrap_or_default();
        let empty = received.is_empty().then_some(received);
        empty.into_iter().chain(received.chunks(self.each.max(1)))
    }
}
