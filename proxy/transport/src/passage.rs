//! Connections of a waypoint's proxy to itself, over loopback: its inbound side, which has accepted a client's
//! connection, hands the connection on to its outbound side, which routes it.
//!
//! ```text
//!  inbound:  connect(10.96.0.7:80) ─► bind 127.15.n.1:port, store it ─┐
//!                                                    127.0.0.1:listener ─► outbound: destination(127.15.n.1:port)
//! ```
//! Only the inbound side can enter a source address and its destination into the table. So a connection of another
//! process to this listener has no destination, and is refused.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use tokio::net::{TcpSocket, TcpStream};

use crate::connect::{CONNECT_TIMEOUT, ConnectError, within};
use crate::listen::Listener;

/// How many connections may be opened at the same time: as many as the listener's queue takes.
const MAX_UNDER_WAY: usize = 4096;
/// How many loopback addresses connections use in turn as their source. Each address has about 28,000 ports, and a port
/// is occupied for a minute after its connection is closed.
const SOURCES: u8 = 200;

thread_local! {
    static REFUSED: Cell<u64> = const { Cell::new(0) };
}

/// How many of this thread's connections to itself were refused because [`MAX_UNDER_WAY`] were already being opened.
#[must_use]
pub fn refused_passages() -> u64 {
    REFUSED.get()
}

/// Connects the inbound side of one worker to its outbound side.
#[derive(Debug)]
pub struct Passage {
    listener: SocketAddr,
    /// The destination of each connection that has not been accepted yet, by the address that it is made from.
    under_way: RefCell<HashMap<SocketAddr, SocketAddr>>,
    /// The third byte of the source address that was used last.
    last: Cell<u8>,
}

/// When it is dropped, removes the entry of a connection that could not be opened. `None` once it is open.
struct UnderWay<'a>(&'a Passage, Option<SocketAddr>);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(client) = self.1 {
            self.0.under_way.borrow_mut().remove(&client);
        }
    }
}

impl Passage {
    /// Returns the passage and its listener. For each accepted connection, [`Self::destination`] returns where it
    /// should go.
    ///
    /// # Errors
    /// If loopback cannot be listened on.
    pub fn open() -> io::Result<(Rc<Self>, Listener)> {
        let listener = Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let (under_way, last) = (RefCell::default(), Cell::new(0));
        let passage = Self { listener: listener.address(), under_way, last };
        Ok((Rc::new(passage), listener))
    }

    /// Opens a connection to the worker's own listener, for which [`Self::destination`] will return `destination`.
    ///
    /// # Errors
    /// [`ConnectError`], which names `destination`.
    pub async fn connect(&self, destination: SocketAddr) -> Result<TcpStream, ConnectError> {
        let (socket, mut noted) =
            self.bind(destination).map_err(|error| ConnectError::Other(destination, error))?;
        let connecting = socket.connect(self.listener);
        let connected = within(self.listener, CONNECT_TIMEOUT, connecting).await;
        if connected.is_ok() {
            noted.1 = None;
        }
        connected
    }

    fn bind(&self, destination: SocketAddr) -> io::Result<(TcpSocket, UnderWay<'_>)> {
        if self.under_way.borrow().len() >= MAX_UNDER_WAY {
            REFUSED.set(REFUSED.get().saturating_add(1));
            return Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!("{MAX_UNDER_WAY} connections of the waypoint to itself are being made"),
            ));
        }
        let socket = TcpSocket::new_v4()?;
        let source = self.last.get().wrapping_add(1).checked_rem(SOURCES).unwrap_or_default();
        self.last.set(source);
        socket.bind(SocketAddr::from(([127, 15, source, 1], 0)))?;
        let client = socket.local_addr()?;
        self.under_way.borrow_mut().insert(client, destination);
        Ok((socket, UnderWay(self, Some(client))))
    }

    /// Where an accepted connection should go, by its client's address. Removes the entry, so each is returned once.
    /// `None` if this proxy has not opened the connection.
    pub fn destination(&self, client: SocketAddr) -> Option<SocketAddr> {
        self.under_way.borrow_mut().remove(&client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_destination_is_returned_once_and_other_programs_connections_have_none() {
        let (passage, listener) = Passage::open().unwrap();
        let to = SocketAddr::from(([10, 96, 0, 7], 80));
        let (connected, accepted) = tokio::join!(passage.connect(to), listener.accept());
        let (own, (_stream, client)) = (connected.unwrap(), accepted.unwrap());
        assert_eq!(own.local_addr().unwrap(), client);
        assert_eq!(passage.destination(client), Some(to));
        assert_eq!(passage.destination(client), None);
        let stranger = TcpStream::connect(listener.address()).await.unwrap();
        assert_eq!(passage.destination(stranger.local_addr().unwrap()), None);
    }

    #[tokio::test]
    async fn connections_beyond_the_limit_are_refused_and_counted() {
        let (passage, _listener) = Passage::open().unwrap();
        let to = SocketAddr::from(([10, 96, 0, 7], 80));
        for number in 0..MAX_UNDER_WAY {
            let client = SocketAddr::from(([127, 16, 0, 1], u16::try_from(number).unwrap()));
            passage.under_way.borrow_mut().insert(client, to);
        }
        let before = refused_passages();
        let refused = passage.connect(to).await.unwrap_err();
        assert!(matches!(refused, ConnectError::Other(address, _) if address == to), "{refused:?}");
        assert_eq!(refused_passages(), before + 1);
    }

    #[tokio::test]
    async fn the_entry_of_a_failed_connection_is_removed() {
        let (passage, listener) = Passage::open().unwrap();
        drop(listener);
        let to = SocketAddr::from(([10, 96, 0, 7], 80));
        passage.connect(to).await.unwrap_err();
        assert!(passage.under_way.borrow().is_empty());
    }
}
