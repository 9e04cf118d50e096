//! QUIC connection IDs that begin with a mark of their process. While two processes share a port, the kernel uses the
//! mark to deliver packets to the right process ([`leno_sockets::steer_connections`]).

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use leno_sockets::CONNECTION_ID_BYTES;
use quinn::{ConnectionId, ConnectionIdGenerator};

/// The first bytes of all connection IDs of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMark([u8; 4]);

impl ProcessMark {
    /// A random mark. The probability that two processes have the same mark is one in four billion.
    #[must_use]
    pub fn random() -> Self {
        Self(random_bytes(&RandomState::new(), 0))
    }

    pub(crate) fn bytes(self) -> [u8; 4] {
        self.0
    }
}

/// Generates the IDs. They need not be secret, because packets are authenticated by their keys.
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
    /// QUIC asks for another ID if this one is in use.
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
