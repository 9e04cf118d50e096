//! Limits the streams of one service, and shares them among proxies, so that no client can use up all of them.
//!
//! ```text
//! certificate ─► a slot of its identity ─► first request: a slot of its instance ─► the stream
//! ```
//! When all slots are in use, the identity with the most streams loses its oldest stream to the client that
//! requests a slot.

use leno_program::{Share, Shares};
use leno_types::{Identity, InstanceName, MAX_FINISHING};
use tonic::Status;

use crate::peer::{ConnectionPeer, PeerCertificate};

/// Most streams of one service; each proxy needs one. There may be twice as many connections, because a proxy may
/// use another one to renew its certificate.
pub const MAX_STREAMS: usize = 8_192;
/// Most streams of one instance. A proxy process has one stream, or two while it reconnects, and each may count
/// twice until the control plane notices that a connection is dead. An instance may have several proxy processes:
/// the one that serves, the next one, and those that finish open streams.
const OF_INSTANCE: usize = 4 * (2 + MAX_FINISHING);

/// The open streams of one service.
#[derive(Clone, Debug)]
pub(crate) struct StreamSlots {
    identities: Shares<Identity>,
    instances: Shares<InstanceName>,
}

impl Default for StreamSlots {
    fn default() -> Self {
        Self::new(MAX_STREAMS)
    }
}

impl StreamSlots {
    fn new(total: usize) -> Self {
        // The bound of the total is enforced with the identities.
        Self {
            identities: Shares::new(total, total),
            instances: Shares::new(usize::MAX, OF_INSTANCE),
        }
    }

    /// A slot for a stream whose instance is not known yet. `service` is the service's name for the error message.
    ///
    /// # Errors
    /// The response to the client: it has shown no certificate, or its identity uses all slots.
    pub(crate) fn admit(
        &self,
        peer: Option<&ConnectionPeer>,
        service: &str,
    ) -> Result<(PeerCertificate, Share<Identity>), Status> {
        let certificate = peer.and_then(|peer| peer.certificate.clone()).ok_or_else(|| {
            Status::unauthenticated(format!(
                "{service} need a certificate: request one with your token"
            ))
        })?;
        let place = self.identities.take(certificate.identity.clone());
        let place = place.ok_or_else(|| Status::resource_exhausted("too many streams"))?;
        Ok((certificate, place))
    }

    /// A slot for the stream of an instance, in addition to the slot of its identity.
    ///
    /// # Errors
    /// The response to the client: the instance has reached its bound.
    pub(crate) fn of_instance(
        &self,
        instance: &InstanceName,
    ) -> Result<Share<InstanceName>, Status> {
        self.instances.take(instance.clone()).ok_or_else(|| {
            Status::resource_exhausted(format!(
                "{instance} already has {OF_INSTANCE} streams, \
                 which is the limit"
            ))
        })
    }
}

/// The status with which a stream ends whose slot was given to another client.
pub(crate) fn displaced() -> Status {
    Status::resource_exhausted("its place was given to another client")
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn peer(account: &str) -> ConnectionPeer {
        let identity = format!("spiffe://cluster.local/ns/shop/sa/{account}").parse().unwrap();
        let certificate = PeerCertificate { identity, not_after: SystemTime::now() };
        ConnectionPeer { address: ([10, 0, 0, 1], 1).into(), certificate: Some(certificate) }
    }

    /// Regression: a tenant opens as many streams as it can.
    #[tokio::test]
    async fn an_identity_that_holds_all_streams_loses_its_oldest_to_another() {
        let places = StreamSlots::new(4);
        let take = |account| places.admit(Some(&peer(account)), "streams").map(|(_, place)| place);
        let mut held: Vec<_> = (0..4).map(|_| take("greedy").unwrap()).collect();
        assert!(take("greedy").is_err(), "all slots are in use");
        let other = take("web").unwrap();
        assert_eq!(held.remove(0).hold(std::future::pending::<()>()).await, None);
        assert_eq!(other.hold(async { "served" }).await, Some("served"));
    }

    #[test]
    fn an_instance_may_have_streams_for_one_proxy_and_its_predecessors() {
        let places = StreamSlots::default();
        let [web, other]: [InstanceName; 2] =
            ["shop/web-0", "shop/web-1"].map(|name| name.parse().unwrap());
        let mut held: Vec<_> = (0..32).map(|_| places.of_instance(&web).unwrap()).collect();
        assert!(places.of_instance(&web).is_err());
        places.of_instance(&other).unwrap();
        held.pop();
        places.of_instance(&web).unwrap();
    }
}
