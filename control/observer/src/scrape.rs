//! The counters of all proxies, every few seconds, and what goes into the history with them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use futures_util::{StreamExt as _, stream};
use leno_dashboard::api::Sign;
use leno_dashboard::hub::{Hub, TICK};
use leno_dashboard::{Restarts, Signs, outliers};
use leno_observe::admin;
use leno_observe::stat::{Answer, Growth, Instance, InstanceGrowth, ProxyCounters, Scrape};
use leno_types::ports;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, timeout};

use crate::Settings;
use crate::marks::Changes;
use crate::metrics::Metrics;
use crate::objects::Edits;
use crate::pods::{ObservedPod, Pods};
use crate::state;

/// How long a proxy may take to answer: the others answer within milliseconds.
const BOUND: Duration = Duration::from_secs(1);
/// Proxies that are connected to at once. One that does not answer takes [`BOUND`], in which the others go on.
const CONNECTING: usize = 256;
/// Proxies that are queried at once: the page of each is in memory meanwhile.
const AT_ONCE: usize = 16;
/// Longest page, in bytes. That of a proxy with all edges that it counts has 2 MiB, with the names of another mesh
/// twice as many.
const MAX_PAGE: u64 = 4 * 1024 * 1024;
/// Most proxies that are queried, the first by namespace and name.
const MAX_PROXIES: usize = 5_000;
/// Observations in which instances of one workload are compared: half a minute.
const COMPARED: usize = 6;

/// What is remembered from one observation to the next.
pub(crate) struct Scraper {
    mesh: String,
    namespace: String,
    pods: Arc<Pods>,
    edits: Arc<Edits>,
    hub: Arc<Hub>,
    metrics: Arc<Metrics>,
    before: Option<Scrape>,
    proxies: Restarts,
    applications: Restarts,
    signs: Signs,
    compared: VecDeque<Vec<InstanceGrowth>>,
    changes: Changes,
}

/// A pod, and the name of its workload.
pub(crate) type Named = (String, ObservedPod);

impl Scraper {
    pub(crate) fn new(
        settings: &Settings,
        (pods, edits): (Arc<Pods>, Arc<Edits>),
        hub: Arc<Hub>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            mesh: settings.mesh.clone(),
            namespace: settings.namespace.clone(),
            pods,
            edits,
            hub,
            metrics,
            before: None,
            proxies: Restarts::default(),
            applications: Restarts::default(),
            signs: Signs::default(),
            compared: VecDeque::new(),
            changes: Changes::default(),
        }
    }

    /// Observes until the future is dropped.
    pub(crate) async fn run(&mut self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            // Before the pods are known, all of the mesh would seem to be gone.
            if self.pods.are_known() {
                self.observe().await;
            }
        }
    }

    async fn observe(&mut self) {
        let begin = Instant::now();
        let pods = named(self.pods.all());
        let mut now = self.scrape(&pods).await;
        let growth = self.before.as_ref().map(|before| {
            now.remember(before);
            now.growth(before)
        });
        self.before = Some(now);
        let now_ms = now_ms();
        let meshed = || pods.iter().filter(|(_, pod)| pod.meshed && !pod.ending);
        self.proxies.look(meshed().map(|(workload, pod)| pod.proxy_ends(workload)), now_ms);
        let ends = |(workload, pod): &Named| pod.application_ends(workload);
        self.applications.look(meshed().map(ends), now_ms);
        if let Some(growth) = &growth {
            let signs = self.signs_of(growth, &pods);
            self.signs.take(signs, now_ms);
        }
        let mut state = state::state(&pods, &self.namespace, now_ms);
        if let Some(growth) = &growth {
            state.silent = state::silent(growth, &pods);
            state.detached.clone_from(&growth.detached);
        }
        state.restarted = self.proxies.all();
        state.ended = self.applications.all();
        state.signs = self.signs.all();
        let marks = self.changes.look(&pods, self.edits.take(), now_ms);
        let silent = growth.as_ref().map_or(0, |growth| growth.silent.len());
        self.metrics.silent.store(silent as u64, Ordering::Relaxed);
        // A page has more workloads than are in the mesh.
        let growth = growth.map(|mut growth| {
            growth.workloads.retain(|one| one.meshed);
            growth
        });
        match self.hub.take(growth.as_ref(), state, marks) {
            Ok(()) => self.metrics.observations.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                // Once for a disk that stays full; the observation is in memory.
                if self.metrics.unwritten.fetch_add(1, Ordering::Relaxed) == 0 {
                    tracing::warn!(%error, "the history cannot be written; it is kept in memory");
                }
                0
            }
        };
        let took = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.metrics.took_ms.store(took, Ordering::Relaxed);
    }

    async fn scrape(&self, pods: &[Named]) -> Scrape {
        let at = Instant::now();
        let mut places = MAX_PROXIES;
        let mut beyond = 0;
        let mut asked = Vec::new();
        for (workload, pod) in pods.iter().filter(|(_, pod)| pod.running && !pod.ending) {
            let instance = Instance {
                namespace: pod.namespace.clone(),
                workload: workload.clone(),
                name: pod.name.clone(),
                meshed: pod.meshed,
                ready: pod.ready,
            };
            let address = pod.address.filter(|_| pod.meshed);
            let has_place = places > 0;
            if address.is_some() {
                places = places.saturating_sub(1);
                beyond += u64::from(!has_place);
            }
            asked.push((instance, address.filter(|_| has_place)));
        }
        self.metrics.beyond.store(beyond, Ordering::Relaxed);
        let places = &Semaphore::new(AT_ONCE);
        let answers = stream::iter(asked.into_iter().map(async |(instance, address)| {
            let answer: Answer = match address {
                Some(address) => {
                    Some(page(address, &instance, places).await.map(|(counters, left_out)| {
                        self.metrics.left_out.fetch_add(left_out, Ordering::Relaxed);
                        counters
                    }))
                }
                None => None,
            };
            (instance, answer)
        }));
        let answers: Vec<(Instance, Answer)> = answers.buffered(CONNECTING).collect().await;
        let of = answers.iter().filter(|(_, answer)| answer.is_some()).count();
        self.metrics.proxies.store(of as u64, Ordering::Relaxed);
        Scrape::new(&self.mesh, at, answers)
    }

    fn signs_of(&mut self, growth: &Growth, pods: &[Named]) -> Vec<Sign> {
        self.compared.push_back(growth.instances.clone());
        if self.compared.len() > COMPARED {
            self.compared.pop_front();
        }
        let mut signs = outliers(self.compared.iter());
        let expired: BTreeSet<(&str, &str)> =
            growth.expired.iter().map(|(namespace, name)| (&**namespace, &**name)).collect();
        let of = |(_, pod): &&Named| expired.contains(&(&*pod.namespace, &*pod.name));
        let sign = |(workload, pod): &Named| Sign::expired((&pod.namespace, workload), &pod.name);
        signs.extend(pods.iter().filter(of).map(sign));
        signs
    }
}

/// The counters of the proxy at this address, and how many samples of its page were left out. `places`: those of pages.
async fn page(
    address: IpAddr,
    own: &Instance,
    places: &Semaphore,
) -> Result<(ProxyCounters, u64), String> {
    let address = SocketAddr::new(address, ports::ADMIN);
    let stream = in_time(TcpStream::connect(address)).await?;
    // The semaphore is not closed.
    let _place = places.acquire().await;
    let reply = in_time(admin::ask_at_most(stream, ("GET", "/metrics"), MAX_PAGE)).await?;
    ProxyCounters::of_instance(&reply, own)
}

async fn in_time<T>(work: impl Future<Output = std::io::Result<T>>) -> Result<T, String> {
    match timeout(BOUND, work).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_late) => Err(format!("no answer within {} s", BOUND.as_secs())),
    }
}

/// Pods with the names of their workloads. `deploy/web` and `sts/web` of one namespace are two.
fn named(pods: Vec<ObservedPod>) -> Vec<Named> {
    let mut kinds: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for pod in &pods {
        let name = (pod.namespace.clone(), pod.owner.name.clone());
        kinds.entry(name).or_default().insert(pod.owner.kind.clone());
    }
    let name = |pod: ObservedPod| {
        let key = (pod.namespace.clone(), pod.owner.name.clone());
        let several = kinds.get(&key).is_some_and(|kinds| kinds.len() > 1);
        (if several { pod.owner.to_string() } else { key.1 }, pod)
    };
    pods.into_iter().map(name).collect()
}

pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::tests::pod;

    #[test]
    fn workloads_of_one_name_and_several_kinds_are_told_apart() {
        let of = |name: &str| pod(name, serde_json::json!({"phase": "Running"}));
        let mut other = of("web-0");
        other.owner.kind = "StatefulSet".to_owned();
        let names = |pods| named(pods).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(vec![of("web-a"), of("web-b")]), ["web", "web"]);
        assert_eq!(names(vec![of("web-a"), other]), ["deploy/web", "sts/web"]);
    }
}
