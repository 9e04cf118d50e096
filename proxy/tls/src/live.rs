//! The open connections of a worker whose peers have proven an identity, so that they end with a revocation.
//!
//! A connection is found by its socket: shutting that down wakes its reader and writer as the peer's end would, and
//! costs connections nothing while there is no revocation. All connections of a worker are of its thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};

use leno_transport::shut_down;
use leno_types::{Identity, Revocations};
use tokio::net::TcpStream;

use crate::verify::Svid;

thread_local! {
    /// By descriptor: as many as there are connections, which the worker bounds.
    static LIVE: RefCell<HashMap<RawFd, (Identity, i64)>> = RefCell::default();
}

/// Keeps a connection in the list. It must be dropped before the socket is closed.
#[derive(Debug)]
pub(crate) struct LiveConnection(RawFd);

impl LiveConnection {
    /// Lists the connection over `socket`, whose peer has shown this certificate.
    pub(crate) fn new(socket: &TcpStream, svid: &Svid) -> Self {
        let descriptor = socket.as_raw_fd();
        let proven = (svid.identity.clone(), svid.not_before_s);
        LIVE.with_borrow_mut(|live| live.insert(descriptor, proven));
        Self(descriptor)
    }
}

impl Drop for LiveConnection {
    fn drop(&mut self) {
        // While the thread ends there may be no list any more.
        let _ended = LIVE.try_with(|live| live.borrow_mut().remove(&self.0));
    }
}

/// Ends the connections of this thread whose peers have shown a certificate that was revoked; returns how many.
pub fn end_revoked(revoked: &Revocations) -> u64 {
    if revoked.is_empty() {
        return 0;
    }
    LIVE.with_borrow(|live| {
        let covered = live.iter().filter(|(_, (identity, begin))| revoked.covers(identity, *begin));
        // One that the peer has ended already fails, and is about to be dropped.
        covered.filter(|(socket, _)| shut_down(**socket)).count() as u64
    })
}
