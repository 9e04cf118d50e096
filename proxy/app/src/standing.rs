//! Ends a worker's connections to and from other proxies when a certificate is revoked, or when the peer's certificate
//! expires without renewal.

use std::cell::Cell;
use std::rc::Rc;

use leno_telemetry::{Counter, Registry};
use leno_tls::{Connector, HandshakeError, Renewal, RenewalDue, RenewalsArrive, TlsConfigs};
use leno_transport::{CONNECT_TIMEOUT, connect, spawn_contained};

/// The connections of a worker with other proxies.
#[derive(Debug)]
pub(crate) struct Standing {
    /// Connects to a server again to present the next certificate for its connections.
    connector: Connector,
    registry: Rc<Registry>,
    /// Set while a task renews connections. It renews them one server after the other, because this is not urgent.
    renews: Rc<Cell<bool>>,
}

/// Resets `renews` when it is dropped, also if the task panics.
struct Renewing(Rc<Cell<bool>>);

impl Drop for Renewing {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Standing {
    pub(crate) fn new(connector: Connector, registry: Rc<Registry>) -> Self {
        Self { connector, registry, renews: Rc::default() }
    }

    /// Ends the connections whose peers have shown a certificate that has been revoked meanwhile.
    pub(crate) fn end_revoked(&self, credentials: Option<&TlsConfigs>) {
        if let Some(configs) = credentials {
            let ended = leno_tls::end_revoked(configs.credentials().revoked());
            self.registry.count_many(Counter::Revoked, ended);
        }
    }

    /// Applies a client's next certificate to its connection.
    pub(crate) fn apply(&self, renewal: &Renewal) {
        self.registry.count_many(Counter::InboundRenewed, renewal.apply());
    }

    /// Ends the connections whose peers' certificates have expired. Starts to renew the connections for which a
    /// renewal is due, because this workload or the server should have another certificate, unless a task renews
    /// connections already.
    pub(crate) fn sweep(&self, credentials: Option<&TlsConfigs>, renewals: RenewalsArrive) {
        let Some(configs) = credentials else { return };
        self.registry.count_many(Counter::Expired, configs.end_expired(renewals));
        if self.renews.get() {
            return;
        }
        let due = configs.renewals_due();
        if due.is_empty() {
            return;
        }
        self.renews.set(true);
        let renewing = Renewing(Rc::clone(&self.renews));
        let (connector, registry) = (self.connector.clone(), Rc::clone(&self.registry));
        spawn_contained(async move {
            let _renewing = renewing;
            for due in due {
                match renew(&connector, &due).await {
                    Ok(renewed) => registry.count_many(Counter::OutboundRenewed, renewed),
                    Err(error) => {
                        registry.count(Counter::OutboundRenewalFailed);
                        let (server, identity) = (due.server, &due.identity);
                        tracing::info!(%error, %server, %identity, "clients did not renew their connections");
                    }
                }
            }
        });
    }
}

async fn renew(connector: &Connector, due: &RenewalDue) -> Result<u64, HandshakeError> {
    let refused = |error| HandshakeError::Io(std::io::Error::other(error));
    let tcp = connect(due.server, CONNECT_TIMEOUT).await.map_err(refused)?;
    connector.renew(tcp, due).await
}
