//! Finds the names of peers on other nodes: asks the API server which pod has an address to which pods of this
//! node were connected.
//!
//! ```text
//!  flows with an unknown peer ─► due: a few in a round ─► list of pods with that address ─► the kernel's map of addresses
//!                                 ▲                                                            │
//!                                 └── looked up again after a minute, or ten if no pod has it  ◄┘
//! ```
//! Pods are not watched, because watches of all pods by the agents of all nodes would cost more than these
//! lookups.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod as Object;
use leno_kube::api::ListParams;
use leno_kube::{Api, Client};
use tokio::time::Instant;

use crate::flows::Flows;
use crate::metrics::Metrics;
use crate::pod::Pod;

/// How often addresses are looked up, and how many each time. The number is small, because the API server reads
/// all pods for each address.
const ROUND: Duration = Duration::from_secs(5);
const MAX_ASKED: usize = 4;
/// Most addresses that are cached. Above that, the one that was looked up longest ago is dropped.
const MAX_KNOWN: usize = 4096;
/// How long an answer with a pod and one without a pod are valid. When a pod has ended, another one may get its
/// address.
const NAMED: Duration = Duration::from_secs(60);
const NAMELESS: Duration = Duration::from_secs(600);
/// Longest wait for the API server.
const ASK_LIMIT: Duration = Duration::from_secs(3);

/// A namespace, and the name of a workload in it.
type Name = (String, String);

/// The addresses that were looked up, with the answers.
#[derive(Debug, Default)]
struct Peers(BTreeMap<IpAddr, ResolvedPeer>);

#[derive(Debug)]
struct ResolvedPeer {
    name: Option<Name>,
    asked: Instant,
}

impl ResolvedPeer {
    fn is_due(&self, now: Instant) -> bool {
        let holds = if self.name.is_some() { NAMED } else { NAMELESS };
        now.saturating_duration_since(self.asked) >= holds
    }
}

impl Peers {
    /// The addresses to look up now: first those without an answer, then those with the oldest answer.
    fn due(&self, strangers: &[IpAddr], now: Instant) -> Vec<IpAddr> {
        let is_new = |ip: &&IpAddr| self.0.get(*ip).is_none_or(|known| known.is_due(now));
        let mut due: Vec<IpAddr> = strangers.iter().filter(is_new).copied().collect();
        let named = self.0.iter().filter(|(_, known)| known.name.is_some() && known.is_due(now));
        let mut named: Vec<_> = named.map(|(ip, known)| (known.asked, *ip)).collect();
        named.sort();
        due.extend(named.into_iter().map(|(_, ip)| ip).filter(|ip| !strangers.contains(ip)));
        due.truncate(MAX_ASKED);
        due
    }

    /// Caches an answer. Returns the address that was dropped for it, if any.
    fn take(&mut self, ip: IpAddr, name: Option<Name>, now: Instant) -> Option<IpAddr> {
        let is_full = self.0.len() >= MAX_KNOWN && !self.0.contains_key(&ip);
        let oldest = is_full.then(|| self.0.iter().min_by_key(|(_, known)| known.asked)).flatten();
        let oldest = oldest.map(|(ip, _)| *ip);
        let forgotten = oldest.and_then(|ip| self.0.remove_entry(&ip));
        self.0.insert(ip, ResolvedPeer { name, asked: now });
        forgotten.filter(|(_, known)| known.name.is_some()).map(|(ip, _)| ip)
    }
}

/// Looks peers up until the process ends.
pub(crate) async fn follow(client: Client, flows: Arc<Flows>, metrics: Arc<Metrics>) {
    let mut peers = Peers::default();
    let mut round = tokio::time::interval(ROUND);
    round.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        round.tick().await;
        for ip in peers.due(&flows.strangers(), Instant::now()) {
            let found = pod_at(&client, ip).await;
            metrics.looked_up(match &found {
                Ok(Some(_)) => "pod",
                Ok(None) => "none",
                Err(_) => "failed",
            });
            let name = match found {
                Ok(name) => name,
                Err(error) => {
                    tracing::debug!(%ip, error, "the API server knows no pod with this address");
                    break;
                }
            };
            let forgotten = peers.take(ip, name.clone(), Instant::now());
            let flows = Arc::clone(&flows);
            let change = move || {
                flows.name_peer(ip, name);
                if let Some(ip) = forgotten {
                    flows.name_peer(ip, None);
                }
            };
            // The runtime prints a panic, and the next answer is handled.
            let _ended = tokio::task::spawn_blocking(change).await;
        }
    }
}

/// The workload of the pod with this address; `None` if there is no such pod, or if the pod has its node's address.
async fn pod_at(client: &Client, ip: IpAddr) -> Result<Option<Name>, String> {
    let of_address = ListParams::default().fields(&format!("status.podIP={ip}"));
    let pods = Api::<Object>::all(client.clone());
    let found = match tokio::time::timeout(ASK_LIMIT, pods.list(&of_address)).await {
        Ok(found) => found.map_err(|error| leno_program::chain(&error))?,
        Err(_late) => return Err(format!("the API server has not answered for {ASK_LIMIT:?}")),
    };
    let mut pods = found.items.iter().map(Pod::new);
    let pod = pods.find(|pod| pod.own_network && !pod.ended);
    Ok(pod.map(|pod| (pod.namespace, pod.workload)))
}

#[cfg(test)]
mod tests;
