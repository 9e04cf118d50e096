//! Fetches the metrics of the nodes' agents, which contain what the kernel has counted about connections of pods.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use leno_dashboard::inventory::AgentPage;
use leno_observe::admin;
use leno_observe::flows::FlowCounts;
use leno_observe::metrics;
use leno_types::ports;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::pods::PodInMesh;
use crate::scrape::NamedPod;

/// How long one agent may take to answer, and all of them together.
const BOUND: Duration = Duration::from_secs(1);
const ROUND: Duration = Duration::from_secs(4);
/// How many agents are queried at the same time. The page of each is in memory meanwhile.
const AT_ONCE: usize = 16;
/// Longest page that is read, in bytes.
const MAX_PAGE: u64 = 4 * 1024 * 1024;

/// The pages of the agents in the control plane's namespace. An agent that has not answered before the round ends
/// has an error in place of its page.
pub(crate) async fn pages(pods: &[NamedPod], namespace: &str) -> Vec<AgentPage> {
    let is_agent =
        |pod: &PodInMesh| pod.is_agent && pod.namespace == namespace && pod.running && !pod.ending;
    let agents = pods.iter().filter(|(_, pod)| is_agent(pod));
    let agents: Vec<(String, Option<IpAddr>)> =
        agents.map(|(_, pod)| (pod.name.clone(), pod.address)).collect();
    let ends = tokio::time::Instant::now() + ROUND;
    let asked = agents.into_iter().map(|(name, address)| async move {
        let Some(address) = address else {
            return (name, Err("its pod has no address".to_owned()));
        };
        let address = SocketAddr::new(address, ports::AGENT_ADMIN);
        let page = tokio::time::timeout_at(ends, timeout(BOUND, page(address))).await;
        let late = || format!("no answer within {} s", BOUND.as_secs());
        let page = page.map_err(|_| late()).and_then(|page| page.map_err(|_| late())?);
        (name, page)
    });
    stream::iter(asked).buffered(AT_ONCE).collect().await
}

async fn page(address: SocketAddr) -> Result<FlowCounts, String> {
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let reply = admin::ask_at_most(stream, ("GET", "/metrics"), MAX_PAGE).await;
    let reply = reply.map_err(|error| error.to_string())?;
    match reply.status {
        200 => Ok(FlowCounts::of(&metrics::parse(&reply.body))),
        status => Err(format!("HTTP {status}")),
    }
}
