//! Collects the counters of all proxies every few seconds, and adds them to the history.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use futures_util::{StreamExt as _, stream};
use leno_dashboard::api::Sign;
use leno_dashboard::hub::{Hub, TICK};
use leno_dashboard::{Restarts, Signs, outliers};
use leno_observe::admin::{self, AdminReply};
use leno_observe::stat::{
    InstanceGrowth, MeshGrowth, ProxyCounters, Scrape, ScrapeResult, StatInstance,
};
use leno_types::ports;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, timeout, timeout_at};

use crate::ObserverSettings;
use crate::agents;
use crate::marks::ChangeDetector;
use crate::metrics::Metrics;
use crate::objects::ObjectEdits;
use crate::pods::{PodInMesh, Pods};
use crate::state;

/// How long a proxy may take to answer. Most answer within milliseconds.
const BOUND: Duration = Duration::from_secs(1);
/// How many proxies are connected to at the same time, in total and in one namespace. A proxy that cannot be
/// reached takes [`BOUND`]; meanwhile others proceed.
const CONNECTING: (usize, usize) = (256, 192);
/// How many proxies are queried at the same time, in total and in one namespace. The page of each is in memory
/// meanwhile.
const QUERIED: (usize, usize) = (16, 12);
/// How long an observation waits for all proxies. If many proxies of a namespace do not answer, the last ones of
/// that namespace are left out.
pub(crate) const ROUND: Duration = Duration::from_secs(4);
/// Longest page that is read, in bytes. The page of a proxy with the largest number of edges has 2 MiB, or twice
/// as much if it includes the metric names of another mesh.
const MAX_PAGE: u64 = 4 * 1024 * 1024;
/// Most proxies that are queried. They are chosen by namespace and name.
const MAX_PROXIES: usize = 5_000;
/// Every how many observations policies are matched with pods, and the agents of nodes are queried: every half
/// minute.
const ROUNDS: u64 = 6;
/// The number of observations over which instances of a workload are compared: half a minute.
const COMPARED: usize = 6;

/// What the scraper keeps from one observation to the next.
pub(crate) struct Scraper {
    mesh: String,
    namespace: String,
    pods: Arc<Pods>,
    edits: Arc<ObjectEdits>,
    hub: Arc<Hub>,
    metrics: Arc<Metrics>,
    before: Option<Scrape>,
    proxies: Restarts,
    applications: Restarts,
    signs: Signs,
    /// The counts of instances in the last [`COMPARED`] observations.
    compared: VecDeque<Vec<InstanceGrowth>>,
    changes: ChangeDetector,
    /// The number of observations so far.
    round: u64,
    /// The version of the objects with which policies were last matched.
    edited: u64,
    /// The task that matches policies with pods. With many of both it takes seconds, and observations continue
    /// meanwhile.
    matching: Option<JoinHandle<()>>,
    /// Whether a further matching is to begin when the present one has ended.
    is_matching_due: bool,
}

/// A pod, and the name of its workload.
pub(crate) type NamedPod = (Arc<str>, PodInMesh);

impl Scraper {
    pub(crate) fn new(
        settings: &ObserverSettings,
        (pods, edits): (Arc<Pods>, Arc<ObjectEdits>),
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
            changes: ChangeDetector::default(),
            round: 0,
            edited: 0,
            matching: None,
            is_matching_due: false,
        }
    }

    /// Observes until the future is dropped.
    pub(crate) async fn run(&mut self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            // Before the pods are known, the whole mesh would seem to have disappeared.
            if self.pods.are_known() {
                self.observe().await;
            }
        }
    }

    async fn observe(&mut self) {
        let begin = Instant::now();
        let pods: Arc<[NamedPod]> = named(self.pods.all()).into();
        let mut now = self.scrape(&pods).await;
        let growth = self.before.as_ref().map(|before| {
            now.remember(before);
            now.growth(before)
        });
        self.hub.take_proxies(now.proxies());
        self.before = Some(now);
        self.observe_rarely(&pods).await;
        let now_ms = now_ms();
        let meshed = || pods.iter().filter(|(_, pod)| pod.meshed && !pod.ending);
        self.proxies.look(meshed().map(|(workload, pod)| pod.proxy_ends(workload)), now_ms);
        let ends = |(workload, pod): &NamedPod| pod.application_ends(workload);
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
        // The scrape also contained pods without a proxy. Their workloads do not belong to the mesh.
        let growth = growth.map(|mut growth| {
            growth.workloads.retain(|one| one.meshed);
            growth
        });
        match self.hub.take(growth.as_ref(), state, marks) {
            Ok(()) => self.metrics.observations.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                // Logged only once, in case the disk stays full. The history is still in memory.
                if self.metrics.unwritten.fetch_add(1, Ordering::Relaxed) == 0 {
                    tracing::warn!(%error, "cannot write the history; it is kept in memory");
                }
                0
            }
        };
        let took = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.metrics.took_ms.store(took, Ordering::Relaxed);
    }

    /// Queries the agents every [`ROUNDS`] observations, and matches policies with pods: as often, and after each
    /// change of an object.
    async fn observe_rarely(&mut self, pods: &Arc<[NamedPod]>) {
        let is_due = self.round.is_multiple_of(ROUNDS);
        // Flows are the difference between two pages of an agent, so a second page is fetched soon after the first one.
        if is_due || self.round == 1 {
            self.hub.take_flows(agents::pages(pods, &self.namespace).await);
        }
        self.end_matching().await;
        let edited = self.edits.version();
        self.is_matching_due |= is_due || edited != self.edited;
        if self.is_matching_due {
            // Until the matching has ended, its last result is shown.
            if self.matching.is_some() {
                self.metrics.matchings_postponed.fetch_add(1, Ordering::Relaxed);
            } else {
                self.match_policies(pods.clone());
                (self.edited, self.is_matching_due) = (edited, false);
            }
        }
        self.round += 1;
    }

    /// Cleans up a matching that has ended. If it panicked, the dashboard shows the reason instead of policies
    /// until the next matching.
    async fn end_matching(&mut self) {
        let Some(task) = self.matching.take_if(|task| task.is_finished()) else { return };
        if let Err(error) = task.await {
            self.metrics.matchings_failed.fetch_add(1, Ordering::Relaxed);
            tracing::error!(%error, "cannot match policies with pods");
            self.hub.take_policies(Err(format!("the observer failed to match them: {error}")));
        }
    }

    /// Matches policies with these pods on another thread.
    fn match_policies(&mut self, pods: Arc<[NamedPod]>) {
        let (edits, hub, metrics) = (self.edits.clone(), self.hub.clone(), self.metrics.clone());
        let namespace = self.namespace.clone();
        self.matching = Some(tokio::task::spawn_blocking(move || {
            let begin = Instant::now();
            hub.take_policies(Ok(edits.policies(&pods, &namespace)));
            let took = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
            metrics.matched_ms.store(took, Ordering::Relaxed);
        }));
    }

    async fn scrape(&self, pods: &[NamedPod]) -> Scrape {
        let at = Instant::now();
        let mut places = MAX_PROXIES;
        let mut beyond = 0;
        let mut asked = Vec::new();
        for (workload, pod) in pods.iter().filter(|(_, pod)| pod.running && !pod.ending) {
            let instance = StatInstance {
                namespace: pod.namespace.clone(),
                workload: workload.to_string(),
                name: pod.name.clone(),
                meshed: pod.meshed,
                ready: pod.ready,
                proxy: None,
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
        let round = &ScrapeRound::new(pods.iter().map(|(_, pod)| &*pod.namespace));
        let answers = stream::iter(asked.into_iter().map(async |(instance, address)| {
            let answer: ScrapeResult = match address {
                Some(address) => {
                    Some(round.page(address, &instance).await.map(|(counters, left_out)| {
                        self.metrics.left_out.fetch_add(left_out, Ordering::Relaxed);
                        counters
                    }))
                }
                None => None,
            };
            (instance, answer)
        }));
        let answers: Vec<(StatInstance, ScrapeResult)> =
            answers.buffered(usize::MAX).collect().await;
        let of = answers.iter().filter(|(_, answer)| answer.is_some()).count();
        self.metrics.proxies.store(of as u64, Ordering::Relaxed);
        Scrape::new(&self.mesh, at, answers)
    }

    fn signs_of(&mut self, growth: &MeshGrowth, pods: &[NamedPod]) -> Vec<Sign> {
        self.compared.push_back(growth.instances.clone());
        if self.compared.len() > COMPARED {
            self.compared.pop_front();
        }
        let mut signs = outliers(self.compared.iter());
        let expired: BTreeSet<(&str, &str)> =
            growth.expired.iter().map(|(namespace, name)| (&**namespace, &**name)).collect();
        let of = |(_, pod): &&NamedPod| expired.contains(&(&*pod.namespace, &*pod.name));
        let sign =
            |(workload, pod): &NamedPod| Sign::expired((&pod.namespace, workload), &pod.name);
        signs.extend(pods.iter().filter(of).map(sign));
        signs
    }
}

/// The state that all queries of one observation share.
struct ScrapeRound {
    connecting: ScrapePermits,
    queried: ScrapePermits,
    ends: tokio::time::Instant,
}

impl ScrapeRound {
    fn new<'a>(namespaces: impl Iterator<Item = &'a str> + Clone) -> Self {
        Self {
            connecting: ScrapePermits::new(CONNECTING, namespaces.clone()),
            queried: ScrapePermits::new(QUERIED, namespaces),
            ends: tokio::time::Instant::now() + ROUND,
        }
    }

    /// The counters of the proxy at this address, and how many samples of its page were left out.
    async fn page(
        &self,
        address: IpAddr,
        own: &StatInstance,
    ) -> Result<(ProxyCounters, u64), String> {
        let reply = self.query(SocketAddr::new(address, ports::ADMIN), own).await?;
        ProxyCounters::of_instance(&reply, own)
    }

    async fn query(&self, address: SocketAddr, own: &StatInstance) -> Result<AdminReply, String> {
        let queried = async {
            let stream = {
                let _place = self.connecting.take(&own.namespace).await;
                in_time(TcpStream::connect(address)).await?
            };
            let _place = self.queried.take(&own.namespace).await;
            in_time(admin::ask_at_most(stream, ("GET", "/metrics"), MAX_PAGE)).await
        };
        let late = |_late| {
            format!("too many of its namespace did not answer within {} s", ROUND.as_secs())
        };
        timeout_at(self.ends, queried).await.map_err(late)?
    }
}

/// Limits work in total and for each namespace, so that one namespace cannot use up all permits.
struct ScrapePermits {
    all: Semaphore,
    of: BTreeMap<String, Semaphore>,
}

impl ScrapePermits {
    fn new<'a>((all, each): (usize, usize), namespaces: impl Iterator<Item = &'a str>) -> Self {
        let of = namespaces.collect::<BTreeSet<_>>().into_iter();
        let of = of.map(|namespace| (namespace.to_owned(), Semaphore::new(each))).collect();
        Self { all: Semaphore::new(all), of }
    }

    /// Waits for a permit, which is released when it is dropped.
    async fn take(&self, namespace: &str) -> ScrapePermit<'_> {
        let own = match self.of.get(namespace) {
            Some(own) => own.acquire().await.ok(),
            None => None,
        };
        ScrapePermit { _own: own, _of_all: self.all.acquire().await.ok() }
    }
}

/// A permit of the namespace, and one of the total. Both are present, because the semaphores are never closed.
struct ScrapePermit<'a> {
    _own: Option<SemaphorePermit<'a>>,
    _of_all: Option<SemaphorePermit<'a>>,
}

async fn in_time<T>(work: impl Future<Output = std::io::Result<T>>) -> Result<T, String> {
    match timeout(BOUND, work).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_late) => Err(format!("no answer within {} s", BOUND.as_secs())),
    }
}

/// The pods, each with the name of its workload. `deploy/web` and `sts/web` in the same namespace are different
/// workloads.
fn named(pods: Vec<PodInMesh>) -> Vec<NamedPod> {
    let mut kinds: BTreeMap<(&str, &str), BTreeMap<&str, Arc<str>>> = BTreeMap::new();
    for pod in &pods {
        let of = kinds.entry((&pod.namespace, &pod.owner.name)).or_default();
        of.entry(&pod.owner.kind).or_insert_with(|| pod.owner.name.as_str().into());
    }
    for of in kinds.values_mut().filter(|of| of.len() > 1) {
        of.clear();
    }
    // If objects of several kinds have the same name, the kind is part of the workload's name, as in `deploy/web`.
    let name = |pod: &PodInMesh| {
        let plain = kinds.get(&(&*pod.namespace, &*pod.owner.name));
        let plain = plain.and_then(|of| of.get(&*pod.owner.kind));
        plain.cloned().unwrap_or_else(|| pod.owner.to_string().into())
    };
    let names: Vec<Arc<str>> = pods.iter().map(name).collect();
    names.into_iter().zip(pods).collect()
}

pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::ObservedPod;
    use crate::pods::tests::{in_mesh, pod};

    #[tokio::test]
    async fn policies_that_are_due_are_matched_as_soon_as_an_earlier_matching_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        let hub = Arc::new(Hub::open("cluster", path.clone()).unwrap());
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let settings = ObserverSettings {
            mesh: "cluster".to_owned(),
            namespace: "leno-system".to_owned(),
            history: path,
            listen: address,
            admin: None,
        };
        let mut scraper = Scraper::new(&settings, Default::default(), hub, Arc::default());
        let pods: Arc<[NamedPod]> = Arc::default();
        let counted = |scraper: &Scraper| {
            let of = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
            (of(&scraper.metrics.matchings_postponed), of(&scraper.metrics.matchings_failed))
        };
        let (ends, ended) = tokio::sync::oneshot::channel::<()>();
        scraper.matching = Some(tokio::spawn(async move {
            let _ = ended.await;
            panic!("a fault");
        }));
        scraper.observe_rarely(&pods).await;
        assert_eq!((counted(&scraper), scraper.is_matching_due), ((1, 0), true));
        ends.send(()).unwrap();
        while scraper.matching.as_ref().is_some_and(|task| !task.is_finished()) {
            tokio::task::yield_now().await;
        }
        scraper.observe_rarely(&pods).await;
        assert_eq!(counted(&scraper), (1, 1), "the fault is counted");
        assert!(scraper.matching.is_some() && !scraper.is_matching_due, "no edit is needed for it");
    }

    #[tokio::test]
    async fn pods_that_say_nothing_keep_no_other_namespace_from_being_observed() {
        let instance = |namespace: &str| StatInstance {
            namespace: namespace.to_owned(),
            workload: "web".to_owned(),
            name: "web-0".to_owned(),
            meshed: true,
            ready: true,
            proxy: None,
        };
        let places = ScrapePermits::new((4, 3), ["noisy", "shop"].into_iter());
        let held = futures_util::future::join_all((0..3).map(|_| places.take("noisy"))).await;
        assert!(timeout(Duration::from_millis(1), places.take("noisy")).await.is_err());
        drop(places.take("shop").await);
        drop(held);
        drop(places.take("noisy").await);

        // If the connections of a namespace are open but silent, the observation does not wait for them longer
        // than a round.
        tokio::time::pause();
        let round = ScrapeRound::new(["noisy"].into_iter());
        let _held =
            futures_util::future::join_all((0..QUERIED.1).map(|_| round.queried.take("noisy")))
                .await;
        let listener = tokio::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await;
        let address = listener.as_ref().unwrap().local_addr().unwrap();
        let said = round.query(address, &instance("noisy")).await.unwrap_err();
        assert!(said.contains("too many of its namespace"), "{said}");
    }

    #[test]
    fn workloads_of_one_name_and_several_kinds_are_told_apart() {
        let of = |name: &str| pod(name, serde_json::json!({"phase": "Running"}));
        let mut other = of("web-0");
        other.owner.kind = "StatefulSet".to_owned();
        let names = |pods: Vec<ObservedPod>| {
            let named = named(pods.into_iter().map(in_mesh).collect());
            named.into_iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(vec![of("web-a"), of("web-b")]), ["web", "web"]);
        assert_eq!(names(vec![of("web-a"), other]), ["deploy/web", "sts/web"]);
    }
}
