//! Shares the connections of the listener among clients, so that no client can use up all of them. A client is an
//! address, or the identity of a certificate.
//!
//! ```text
//! accepted ─► unproven, by address ─► certificate shown ─► proven, by identity and address
//!                    └─ no certificate within UNPROVEN_TIME: closed
//! ```
//! When the bound on all connections of a kind is reached, the client with the most of them loses its oldest one to the
//! client that connects.

use std::net::IpAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use leno_types::Identity;

/// How long a connection without a certificate may last. A proxy opens one to get its first certificate, which
/// takes milliseconds, and it waits at most 5 s.
pub(crate) const UNPROVEN_TIME: Duration = Duration::from_secs(30);

/// The bounds on the number of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionBounds {
    /// With a certificate. A proxy has one or two connections, so this is enough for twice the number of proxies
    /// in a large mesh.
    pub(crate) proven: usize,
    /// With certificates of the same identity. A service account may have thousands of pods.
    pub(crate) of_identity: usize,
    /// With certificates, from the same address. The pods of a node may share one address (masquerading).
    pub(crate) of_address: usize,
    /// Without a certificate: connections during their handshake, and of proxies that request their first
    /// certificate.
    pub(crate) unproven: usize,
    /// Without a certificate, from the same address.
    pub(crate) unproven_of_address: usize,
}

impl Default for ConnectionBounds {
    fn default() -> Self {
        Self {
            proven: 16_384,
            of_identity: 8_192,
            of_address: 1_024,
            unproven: 1_024,
            unproven_of_address: 256,
        }
    }
}

/// Counts the open connections.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionShares {
    unproven: leno_program::Shares<IpAddr>,
    proven: leno_program::Shares<Identity>,
    /// Connections with a certificate, by address. `proven` bounds their total, so this one never revokes a share.
    addresses: leno_program::Shares<IpAddr>,
}

/// A permission for one connection. It lasts until it is dropped or revoked.
#[derive(Debug)]
pub(crate) enum ConnectionShare {
    /// For a connection whose client has shown no certificate.
    Unproven { address: IpAddr, share: leno_program::Share<IpAddr> },
    /// For a connection whose client has shown a certificate.
    Proven { share: leno_program::Share<Identity>, _of_address: leno_program::Share<IpAddr> },
}

impl Default for ConnectionShares {
    fn default() -> Self {
        Self::new(ConnectionBounds::default())
    }
}

impl ConnectionShares {
    fn new(bounds: ConnectionBounds) -> Self {
        Self {
            unproven: leno_program::Shares::new(bounds.unproven, bounds.unproven_of_address),
            proven: leno_program::Shares::new(bounds.proven, bounds.of_identity),
            addresses: leno_program::Shares::new(usize::MAX, bounds.of_address),
        }
    }

    /// A share for a new connection; `None` if its address has reached its bound.
    pub(crate) fn unproven(&self, address: IpAddr) -> Option<ConnectionShare> {
        let address = address.to_canonical();
        self.unproven.take(address).map(|share| ConnectionShare::Unproven { address, share })
    }

    /// A share for a connection whose client has shown a certificate; `None` if the identity or the address has
    /// reached its bound.
    pub(crate) fn proven(
        &self,
        share: ConnectionShare,
        identity: Identity,
    ) -> Option<ConnectionShare> {
        let ConnectionShare::Unproven { address, share } = share else { return Some(share) };
        drop(share);
        let of_address = self.addresses.take(address)?;
        Some(ConnectionShare::Proven {
            share: self.proven.take(identity)?,
            _of_address: of_address,
        })
    }
}

impl ConnectionShare {
    /// Ready when the share was revoked in favour of another client.
    pub(crate) fn poll_lost(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Unproven { share, .. } => share.poll_lost(context),
            Self::Proven { share, .. } => share.poll_lost(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    const BOUNDS: ConnectionBounds = ConnectionBounds {
        proven: 4,
        of_identity: 3,
        of_address: 3,
        unproven: 4,
        unproven_of_address: 3,
    };

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn identity(name: &str) -> Identity {
        format!("spiffe://cluster.local/ns/shop/sa/{name}").parse().unwrap()
    }

    fn is_lost(share: &mut ConnectionShare) -> bool {
        share.poll_lost(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn an_unproven_client_cannot_use_up_the_connections_of_others() {
        let shares = ConnectionShares::new(BOUNDS);
        let mut many: Vec<ConnectionShare> =
            (0..3).map(|_| shares.unproven(address(1)).unwrap()).collect();
        assert!(shares.unproven(address(1)).is_none(), "the bound of one address is reached");
        let mapped = "::ffff:10.0.0.1".parse().unwrap();
        assert!(shares.unproven(mapped).is_none(), "the same address");
        let _second = shares.unproven(address(2)).unwrap();
        let third = shares.unproven(address(3));
        assert!(third.is_some(), "all were in use, and it gets one");
        assert!(
            is_lost(&mut many[0]) && !is_lost(&mut many[1]),
            "the oldest of the largest holder"
        );
        drop((many, third));
        assert_eq!(shares.unproven.held(), 1);
    }

    #[test]
    fn an_identity_cannot_use_up_the_connections_of_others() {
        let shares = ConnectionShares::new(BOUNDS);
        let proven = |name: &str, last: u8| {
            shares.proven(shares.unproven(address(last)).unwrap(), identity(name))
        };
        let mut many: Vec<ConnectionShare> =
            (1..4).map(|last| proven("a", last).unwrap()).collect();
        assert!(proven("a", 4).is_none(), "the bound of one identity is reached");
        let _b = proven("b", 4).unwrap();
        let _c = proven("c", 5).unwrap();
        assert!(is_lost(&mut many[0]), "the oldest of the identity that has most");
        drop(many);
        assert_eq!(shares.unproven.held(), 0, "a share is proven or unproven");
        assert_eq!(shares.addresses.held(), 2);
        let _more: Vec<ConnectionShare> = (0..2).map(|_| proven("d", 4).unwrap()).collect();
        assert!(proven("e", 4).is_none(), "the bound of one address is reached");
    }
}
