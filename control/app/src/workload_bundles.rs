//! The trust bundle of a SPIFFE Workload API, such as SPIRE's, which workloads trust besides the own roots.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use leno_identity::Authority;
use leno_spiffe::Bundles;
use leno_types::WorkloadApiAddress;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::CertificateDer;

/// Wait between attempts. The server is on this machine, and there is one caller.
const WAIT: Duration = Duration::from_secs(1);

/// Follows the bundle of the authority's trust domain until the process ends. Comes back once the first one counts: a control
/// plane that served before would have proxies forget roots, and refuse peers.
pub(crate) async fn follow(address: WorkloadApiAddress, authority: Arc<Authority>) {
    let (known, mut is_known) = watch::channel(false);
    tokio::spawn(async move { run(&address, &authority, &known).await });
    // The task ends with the runtime alone.
    let _ended = is_known.wait_for(|known| *known).await;
}

async fn run(
    address: &WorkloadApiAddress,
    authority: &Authority,
    known: &watch::Sender<bool>,
) -> Infallible {
    let mut said = String::new();
    loop {
        let Err(error) = take_all(address, authority, known, &mut said).await;
        let error = format!("{error:#}");
        // Once for each reason, not once a second.
        if error != said {
            let is_known = *known.borrow();
            tracing::error!(error, is_known, "no trust bundle of the Workload API; trying again");
            said = error;
        }
        sleep(WAIT).await;
    }
}

/// Uses what one stream brings, until it ends.
async fn take_all(
    address: &WorkloadApiAddress,
    authority: &Authority,
    known: &watch::Sender<bool>,
    said: &mut String,
) -> anyhow::Result<Infallible> {
    let mut bundles = Bundles::open(address).await?;
    let domain = authority.trust_domain();
    loop {
        let mut all = bundles.next().await?;
        let Some(roots) = all.remove(domain) else {
            let others: Vec<&str> = all.keys().map(|domain| domain.as_str()).collect();
            bail!(
                "the Workload API at {address} has no trust bundle of {domain}, the trust domain of this mesh, but of: {}",
                others.join(", ")
            );
        };
        for root in &roots {
            let root = CertificateDer::from(root.as_slice());
            let usable = RootCertStore::empty().add(root);
            usable.with_context(|| format!("the Workload API at {address} has a root that no proxy can use"))?;
        }
        tracing::info!(roots = roots.len(), "trust bundle taken from the Workload API");
        authority.trust_others(roots);
        known.send_replace(true);
        said.clear();
    }
}
