//! Queries which endpoints the proxies of some pods eject.

use leno_kube::Client;
use leno_observe::admin::AdminReply;
use leno_observe::ejected::EjectedEndpoint;
use leno_observe::metrics;

use crate::pod_admin::{PodAdminClient, PodName};

/// Most proxies that are queried: four times as many as are queried at once. The proxies of one workload call the
/// same endpoints, so more of them would add little.
const MAX_PROXIES: usize = 64;

/// The endpoints that the proxies of a client eject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ejections {
    /// The endpoints that they eject now.
    pub ejected: Vec<EjectedEndpoint>,
    /// What could not be found out, in words.
    pub gaps: Vec<String>,
}

/// Queries the proxies of these pods, at most 64 of them.
pub async fn ejections(client: &Client, pods: &[PodName]) -> Ejections {
    let asked = &pods[..pods.len().min(MAX_PROXIES)];
    let mut found = Ejections::default();
    if asked.len() < pods.len() {
        let (asked, all) = (asked.len(), pods.len());
        let gap = format!(
            "only {asked} of the client's {all} proxies were queried for the \
             endpoints that they eject"
        );
        found.gaps.push(gap);
    }
    let mut silent = Vec::new();
    for (pod, answer) in PodAdminClient::new(client.clone()).each(asked, "/metrics", ejected).await
    {
        match answer.map_err(|error| error.said()).and_then(|answer| answer) {
            Ok(ejected) => found.ejected.extend(ejected),
            Err(reason) => silent.push((pod, reason)),
        }
    }
    silent.sort();
    if let Some((pod, reason)) = silent.first() {
        let others = match silent.len() - 1 {
            0 => String::new(),
            others => format!(", and of {others} other pods"),
        };
        let gap = format!(
            "unknown which endpoints are ejected by the proxy of {pod}{others}: \
             {reason}"
        );
        found.gaps.push(gap);
    }
    found
}

fn ejected(reply: &AdminReply) -> Result<Vec<EjectedEndpoint>, String> {
    Ok(EjectedEndpoint::of(&metrics::parse(&reply.page()?)))
}
