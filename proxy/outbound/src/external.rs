//! Endpoints outside of the mesh: their addresses, and the TLS that the proxy uses on connections to them.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use leno_names::{NameState, Names};
use leno_tls::{OriginationError, Originator};
use leno_types::mesh::{Endpoint, NamedEndpoint, Origination, Topology};
use tokio::sync::watch;

/// The DNS names among the endpoints of a destination, with the state of each.
#[derive(Debug, Default)]
pub(crate) struct Resolved(Vec<(NamedEndpoint, watch::Receiver<NameState>)>);

impl Resolved {
    /// From now on watches these names, and no others.
    pub(crate) fn update(&mut self, names: &Names, wanted: &[NamedEndpoint]) {
        let same = self.0.len() == wanted.len()
            && self.0.iter().zip(wanted).all(|((known, _), wanted)| known == wanted);
        if !same {
            let watch = |one: &NamedEndpoint| (one.clone(), names.watch(&one.host));
            self.0 = wanted.iter().map(watch).collect();
        }
    }

    /// Whether the addresses of a name have changed.
    pub(crate) fn has_changed(&self) -> bool {
        self.0.iter().any(|(_, found)| found.has_changed().unwrap_or(false))
    }

    /// Whether the resolver has not answered yet for one of the names.
    pub(crate) fn is_pending(&self) -> bool {
        self.0.iter().any(|(_, found)| matches!(*found.borrow(), NameState::Pending))
    }

    /// The reason for which requests fail if one of the names has no address; `None` if all names have addresses.
    pub(crate) fn nothing(&self) -> Option<&'static str> {
        self.0.iter().find_map(|(_, found)| match &*found.borrow() {
            NameState::Nothing(_) => Some(UNRESOLVED),
            _ => None,
        })
    }

    /// The endpoints in `known`, and one more endpoint for each address of each name. If a name has addresses of the
    /// same family as `like`, its other addresses are left out.
    pub(crate) fn endpoints(&mut self, known: &[Endpoint], like: IpAddr) -> Arc<[Endpoint]> {
        let mut all = known.to_vec();
        for (name, found) in &mut self.0 {
            let NameState::Addresses(addresses) = &*found.borrow_and_update() else { continue };
            let fits = |ip: &&IpAddr| ip.is_ipv4() == like.is_ipv4();
            let any_fits = addresses.iter().any(|ip| fits(&ip));
            for ip in addresses.iter().filter(|ip| !any_fits || fits(ip)) {
                all.push(Endpoint {
                    workload: None,
                    addresses: vec![*ip],
                    port: name.port,
                    identity: None,
                    place: Topology::default(),
                    wire: Default::default(),
                });
            }
        }
        all.into()
    }
}

/// The cause, for `leno-error` and metrics, if none of the names has an address.
pub(crate) const UNRESOLVED: &str = "external-unresolved";

/// The cause, for `leno-error` and metrics, if there is no network route to the endpoint.
pub(crate) const UNREACHABLE: &str = "connect-unreachable";

/// How the proxy uses TLS on connections to endpoints that have no identity.
#[derive(Debug)]
pub(crate) struct Outside {
    pub(crate) how: Origination,
    /// Makes the TLS connections. It is created only once, so that sessions can be resumed.
    pub(crate) originator: Result<Originator, OriginationError>,
}

impl Outside {
    pub(crate) fn new(how: &Origination) -> Rc<Self> {
        let originator = Originator::new(how);
        if let Err(error) = &originator {
            tracing::warn!(policy = %how.source, %error, "this service cannot be reached");
        }
        Rc::new(Self { how: how.clone(), originator })
    }
}

/// A cause with advice on how to remove it, for the `leno-error` header, because the operator who reads it may have
/// no other information about the mesh.
pub(crate) const fn with_remedy(cause: &'static str) -> &'static str {
    match cause.as_bytes() {
        b"external-unresolved" => {
            "external-unresolved; remedy=\"check externalName or the names of the EndpointSlice, and the resolver\""
        }
        b"external-unknown-authority" => {
            "external-unknown-authority; remedy=\"name its CA in caCertificateRefs of the BackendTLSPolicy\""
        }
        b"external-wrong-name" => {
            "external-wrong-name; remedy=\"set hostname or subjectAltNames of the BackendTLSPolicy to a name of the certificate\""
        }
        b"external-expired" => {
            "external-expired; remedy=\"renew the certificate of the server, or correct the \
             clocks\""
        }
        b"external-authorities-missing" => {
            "external-authorities-missing; remedy=\"create the ConfigMap of the BackendTLSPolicy, \
             with certificates in ca.crt\""
        }
        b"external-tls-failed" => {
            "external-tls-failed; remedy=\"check that the server speaks TLS on this port; without \
             a BackendTLSPolicy it is called in plaintext\""
        }
        b"connect-unreachable" => {
            "connect-unreachable; remedy=\"no route leads there: check whether the pod or node \
             still exists; under leno up, add --uplink for other networks\""
        }
        _ => cause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_begins_with_itself() {
        for cause in [
            UNRESOLVED,
            UNREACHABLE,
            "external-unknown-authority",
            "external-wrong-name",
            "external-expired",
            "external-authorities-missing",
            "external-tls-failed",
        ] {
            assert!(with_remedy(cause).starts_with(&format!("{cause}; remedy=\"")), "{cause}");
        }
        assert_eq!(with_remedy("connect-refused"), "connect-refused");
    }
}
