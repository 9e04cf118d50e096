//! The client of a connection, as it is named in metrics and in the access log.

use std::borrow::Cow;
use std::net::IpAddr;
use std::ops::Deref;
use std::rc::Rc;

use leno_discovery::Directory;
use leno_telemetry::{Edge, EdgeLabels, Logged};
use leno_types::mesh::Resolution;
use leno_types::{Identity, InstanceName};
use tokio::sync::watch;

use crate::Client;

/// The instance at a client's address. It is looked up for the access log only.
#[derive(Clone, Debug)]
pub(crate) struct Instance(Option<watch::Receiver<Resolution>>);

impl Instance {
    /// Starts the look-up if there is an access log; otherwise looks nothing up.
    pub(crate) fn of(is_logged: bool, directory: &Directory, address: IpAddr) -> Self {
        Self(is_logged.then(|| directory.look_up_for_log(address)))
    }

    /// The instance, if discovery has answered. If the client has proven another identity than that of the instance at
    /// its address, the address belongs to an intermediary, such as a gateway, and says nothing about the client.
    fn named(&self, proven: Option<&Identity>) -> Option<InstanceName> {
        let resolution = self.0.as_ref()?.borrow();
        let Resolution::Workload(workload) = &*resolution else { return None };
        let is_client = proven.is_none_or(|identity| workload.identity.as_ref() == Some(identity));
        is_client.then(|| workload.name.clone())
    }
}

/// The metrics that count a connection, which are those of its client's workload and this workload (an edge). All
/// replicas of a client share them, because they have the same identity. The access log has the name of each replica.
#[derive(Debug)]
pub(crate) struct Peer {
    edge: Rc<Edge>,
    identity: Option<Identity>,
    instance: Instance,
}

impl Peer {
    pub(crate) fn new(edge: Rc<Edge>, client: &Client) -> Self {
        Self { edge, identity: client.identity.clone(), instance: client.instance.clone() }
    }

    /// The identity that the client has proven.
    pub(crate) fn identity(&self) -> Option<Box<str>> {
        Some(self.identity.as_ref()?.to_string().into())
    }
}

impl Deref for Peer {
    type Target = Edge;

    fn deref(&self) -> &Edge {
        &self.edge
    }
}

impl Logged for Peer {
    fn edge(&self) -> &Edge {
        &self.edge
    }

    fn logged(&self) -> Cow<'_, EdgeLabels> {
        let labels = self.edge.labels();
        match self.instance.named(self.identity.as_ref()) {
            Some(InstanceName { namespace, name }) => Cow::Owned(EdgeLabels {
                client: name,
                client_namespace: namespace,
                ..labels.clone()
            }),
            None => Cow::Borrowed(labels),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use leno_telemetry::{Direction, Registry};
    use leno_types::mesh::Workload;

    use super::*;

    fn identity(account: &str) -> Identity {
        Identity::new(leno_types::TrustDomain::default(), "shop", account).unwrap()
    }

    /// The `client` field in the access log for a client with this identity. Its address is that of `web-1`, which has
    /// the identity `web`.
    fn logged(is_logged: bool, proven: Option<Identity>) -> String {
        let directory = Directory::fixed(|_| {
            Resolution::Workload(Arc::new(Workload {
                name: InstanceName { namespace: "shop".into(), name: "web-1".into() },
                addresses: Vec::new(),
                identity: Some(identity("web")),
                ports: Vec::new(),
                wire: Default::default(),
            }))
        });
        let address: SocketAddr = "192.0.2.1:7".parse().unwrap();
        let instance = Instance::of(is_logged, &directory, address.ip());
        let account = proven.as_ref().map_or("", Identity::service_account).to_owned();
        let edge = Registry::new().edge(&EdgeLabels {
            direction: Direction::Inbound,
            client: account.as_str().into(),
            client_namespace: "shop".into(),
            client_trust_domain: "".into(),
            server: "cart-0".into(),
            server_namespace: "shop".into(),
            service: "".into(),
            mtls: proven.is_some(),
        });
        let peer =
            Peer::new(edge, &Client { identity: proven, certificate: None, address, instance });
        assert_eq!(*peer.labels().client, *account, "all replicas are counted together");
        peer.logged().client.to_string()
    }

    #[test]
    fn the_access_log_names_the_instance_unless_another_identity_was_proven() {
        assert_eq!(logged(true, Some(identity("web"))), "web-1");
        assert_eq!(logged(true, None), "web-1");
        // A gateway forwards connections of other clients under its own identity.
        assert_eq!(logged(true, Some(identity("gateway"))), "gateway");
        assert_eq!(logged(false, Some(identity("web"))), "web");
    }
}
