//! Connections that a test provides in place of the network, for tests with scripted sockets.
//!
//! Compiled only with the feature `scripted`, which no program of Leno enables.

use std::cell::RefCell;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::ConnectError;

/// Opens a connection to an address; `Ok(None)` if the address never answers.
pub type Dial = dyn Fn(SocketAddr) -> io::Result<Option<TcpStream>>;

thread_local! {
    static DIAL: RefCell<Option<Rc<Dial>>> = const { RefCell::new(None) };
}

/// From now on `dial` opens all connections of this thread; `None` restores the network.
pub fn dial_with(dial: Option<Rc<Dial>>) {
    DIAL.set(dial);
}

pub(crate) fn dial() -> Option<Rc<Dial>> {
    DIAL.with_borrow(Clone::clone)
}

/// Like [`crate::connect`], but opens the connection with `dial`.
pub(crate) async fn connect(
    dial: Rc<Dial>,
    address: SocketAddr,
    within: Duration,
) -> Result<TcpStream, ConnectError> {
    match dial(address) {
        Ok(Some(stream)) => Ok(stream),
        Ok(None) => match timeout(within, pending()).await {
            Ok(never) => never,
            Err(_) => Err(ConnectError::Timeout(address, within)),
        },
        Err(error) => Err(ConnectError::of(address, within, error)),
    }
}
