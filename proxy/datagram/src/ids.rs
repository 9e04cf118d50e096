//! Connection IDs of QUIC that begin with a mark of their process, by which the kernel brings it its packets while another process
//! has the port, too ([`leno_sockets::steer_connections`]).

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use leno_sockets::CONNECTION_ID_BYTES;
use quinn::{ConnectionId, ConnectionIdGenerator};

/// What the connection IDs of one process begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMark([u8; 4]);

impl ProcessMark {
    /// One that no other process has, but for one in four billion.
    #[must_use]
    pub fn random() -> Self {
        Self(random_bytes(&RandomState::new(), 0))
    }

    pub(crate) fn bytes(self) -> [u8; 4] {
        self.0
    }
}

/// Makes the IDs. They need not be secret: a packet belongs to a connection once its keys have shown that.
#[derive(Debug)]
pub(crate) struct MarkedIds {
    mark: ProcessMark,
    random: RandomState,
    made: u64,
}

impl MarkedIds {
    pub(crate) fn new(mark: ProcessMark) -> Self {
        Self { mark, random: RandomState::new(), made: 0 }
    }
}

impl ConnectionIdGenerator for MarkedIds {
    /// QUIC asks for another one where two are alike.
    fn generate_cid(&mut self) -> ConnectionId {
        self.made = self.made.wrapping_add(1);
        ConnectionId::new(&[self.mark.0, random_bytes(&self.random, self.made)].concat())
    }

    fn cid_len(&self) -> usize {
        CONNECTION_ID_BYTES.into()
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

fn random_bytes(of: &RandomState, number: u64) -> [u8; 4] {
    let [a, b, c, d, ..] = of.hash_one(number).to_be_bytes();
    [a, b, c, d]
}
