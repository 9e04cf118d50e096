//! Follows the trust bundle of a SPIFFE Workload API, such as SPIRE's. Workloads trust its roots besides the mesh's
//! own.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use leno_identity::Authority;
use leno_spiffe::{Bundles, MAX_ROOT_BYTES};
use leno_types::{TrustDomain, WorkloadApiAddress};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::CertificateDer;

/// The wait between two attempts. It does not grow, because the server is on this machine and this is its only
/// caller in the process.
const WAIT: Duration = Duration::from_secs(1);

/// Follows the bundles of the authority's trust domain and of the `federated` ones until the process ends. Returns once
/// the first ones are in use. If the control plane served earlier, proxies would drop the roots of the first bundle and
/// reject their peers.
pub(crate) async fn follow(
    address: WorkloadApiAddress,
    authority: Arc<Authority>,
    federated: Vec<TrustDomain>,
) {
    let (known, mut is_known) = watch::channel(false);
    let follower = WorkloadBundlesFollower { address, authority, federated, known };
    tokio::spawn(follower.run());
    // The task ends only when the runtime does.
    let _ended = is_known.wait_for(|known| *known).await;
}

struct WorkloadBundlesFollower {
    address: WorkloadApiAddress,
    authority: Arc<Authority>,
    /// Other trust domains whose bundles the stream must also contain.
    federated: Vec<TrustDomain>,
    /// Whether the first bundles are in use.
    known: watch::Sender<bool>,
}

impl WorkloadBundlesFollower {
    async fn run(self) -> Infallible {
        let mut said = String::new();
        loop {
            let Err(error) = self.take_all(&mut said).await;
            let error = format!("{error:#}");
            // Logged only when the reason changes, because attempts are made every second.
            if error != said {
                let is_known = *self.known.borrow();
                tracing::error!(error, is_known, "no trust bundle of the Workload API; retrying");
                said = error;
            }
            sleep(WAIT).await;
        }
    }

    /// Uses the bundles that a stream delivers, until the stream ends.
    async fn take_all(&self, said: &mut String) -> anyhow::Result<Infallible> {
        let mut bundles = Bundles::open(&self.address).await?;
        let domain = self.authority.trust_domain();
        loop {
            let mut all = bundles.next().await?;
            let own = self.roots(&mut all, domain)?;
            tracing::info!(roots = own.len(), "trust bundle received from the Workload API");
            self.authority.trust_others(own)?;
            for domain in &self.federated {
                // A missing bundle of a partner does not delay the mesh's own bundle.
                match self.roots(&mut all, domain) {
                    Ok(roots) => self.authority.federate(domain, roots),
                    Err(error) => {
                        let error = format!("{error:#}");
                        tracing::error!(%domain, error, "no usable trust bundle of the Workload \
                                                         API; the last one stays in effect, if \
                                                         there is one");
                    }
                }
            }
            self.known.send_replace(true);
            said.clear();
        }
    }

    /// The roots of a trust domain in these bundles; an error if there are none.
    fn roots(
        &self,
        all: &mut BTreeMap<TrustDomain, Result<Vec<Vec<u8>>, &'static str>>,
        domain: &TrustDomain,
    ) -> anyhow::Result<Vec<Vec<u8>>> {
        let address = &self.address;
        let Some(roots) = all.remove(domain) else {
            let others: Vec<&str> = all.keys().map(TrustDomain::as_str).collect();
            bail!(
                "the Workload API at {address} has no trust bundle of {domain}, only of: {}",
                others.join(", ")
            );
        };
        let bundle = || format!("the bundle of {domain} at {address}");
        let roots = roots.map_err(anyhow::Error::msg).with_context(bundle)?;
        check(&roots).with_context(bundle)?;
        Ok(roots)
    }
}

/// Checks that proxies can use all of these roots.
pub(crate) fn check(roots: &[Vec<u8>]) -> anyhow::Result<()> {
    for root in roots {
        let bytes = root.len();
        ensure!(
            bytes <= MAX_ROOT_BYTES,
            "it has a root of {bytes} bytes, more than {MAX_ROOT_BYTES}"
        );
        let usable = RootCertStore::empty().add(CertificateDer::from(root.as_slice()));
        usable.context("it has a root that no proxy can use")?;
    }
    Ok(())
}
