//! Runs the phases of a measurement: changes of the mesh, and the counts during each.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use leno_testkit_api::{TestApiServer, until};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::clients::Clients;
use super::delays::Delays;
use super::figures::Figures;
use super::mesh::{Mesh, PodSlot};
use super::stub::Received;
use crate::machine::{Random, cpu};
use crate::outages::whole_reads;
use crate::replica::Replica;

/// The bound of every wait. No measured duration depends on it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// Most writes at a time. If the API server does not keep up with the rate, it gets no more, because otherwise it
/// would refuse connections in the end.
const WRITES: usize = 64;
/// One in this many changes affects the service with very many pods.
const WIDE_EVERY: usize = 20;
/// Counters of the controller that are compared before and after a phase.
const COUNTERS: [&str; 4] =
    ["wakeups_total", "encodings_total", "resources_sent_total", "sent_bytes_total"];

/// Removes endpoints from their services and adds them again, at the rate of the size.
pub(crate) async fn changes(
    bed: &TestApiServer,
    replica: &Replica,
    mesh: &Mesh,
    clients: &Clients,
    figures: &mut Figures,
) {
    let size = mesh.size;
    let subscribers = clients.subscribers();
    let (before, delays) = (counters(replica).await, Delays::of(replica).await);
    let (used, clients_used, begin) = (replica.cpu(), cpu(std::process::id()), Instant::now());
    let (arrivals, written) = flip_all(bed, mesh, &subscribers).await;
    let elapsed = begin.elapsed();
    let (used, clients_used) = (replica.cpu() - used, cpu(std::process::id()) - clients_used);
    let (after, delays) = (counters(replica).await, Delays::of(replica).await.since(&delays));
    let waits = |from: fn((Instant, Instant)) -> Instant| -> Vec<Duration> {
        let wait = |(change, at): &(usize, Instant)| *at - from(written[*change]);
        arrivals.iter().map(wait).collect()
    };
    let deliveries = arrivals.len() as u64;
    figures.count("changes", size.changes as u64, None);
    figures.count("changes a second", (size.changes as f64 / elapsed.as_secs_f64()) as u64, None);
    figures.count("deliveries to proxies that asked", deliveries, None);
    // The time is zero if the proxy received the change before the write was answered. The API server answers a
    // write and reports it to watches at the same time.
    figures.times("arrival, from the API server's answer", waits(|(_, end)| end), Some(100));
    figures.times("arrival, from the begin of the write", waits(|(begin, _)| begin), None);
    delays.report(figures);
    figures.time("CPU of a change", used / u32::try_from(size.changes).unwrap(), None);
    let of_delivery = clients_used / u32::try_from(deliveries.max(1)).unwrap();
    figures.time("CPU of the clients and of the writes, for a delivery", of_delivery, None);
    let spent = |name: &str| after[name] - before[name];
    figures.count("streams woken", spent("wakeups_total"), None);
    figures.count("encodings made", spent("encodings_total"), None);
    let endpoint = mesh.endpoint(PodSlot { service: 1, pod: 0 }).to_string().len() as u64;
    figures.count("bytes of an endpoint, as JSON", endpoint, None);
    let of_one = spent("sent_bytes_total") / deliveries.max(1);
    figures.count("bytes sent a delivery", of_one, Some(3 * endpoint));
    // A proxy that has not subscribed to the service gets nothing. Two changes at the same time may be delivered
    // in one resource.
    let sent = spent("resources_sent_total");
    let unasked = sent.saturating_sub(deliveries);
    figures.count("resources sent to proxies that did not ask", unasked, Some(0));
    figures.memory("resident, after the changes", replica, Some(600));
    clients.are_right(mesh).await;
    clients.are_connected();
}

/// The numbers of changes, each with the time at which the change arrived at a subscriber.
type Arrivals = Vec<(usize, Instant)>;
/// For each change, when its write began and ended.
type Writes = Vec<(Instant, Instant)>;

/// Makes all changes of the size, and waits until they have arrived.
async fn flip_all(
    bed: &TestApiServer,
    mesh: &Mesh,
    subscribers: &HashMap<usize, Vec<watch::Receiver<Received>>>,
) -> (Arrivals, Writes) {
    let size = mesh.size;
    let (mut random, mut flips) = (Random::new(0), HashMap::<usize, usize>::new());
    let mut arrivals = JoinSet::new();
    let mut writes = FuturesUnordered::new();
    let mut written: Vec<Option<(Instant, Instant)>> = vec![None; size.changes];
    let mut ticks = interval(Duration::from_secs(1) / u32::try_from(size.rate).unwrap());
    let mut change = 0;
    while change < size.changes || !writes.is_empty() {
        tokio::select! {
            _ = ticks.tick(), if change < size.changes && writes.len() < WRITES => {
                let service =
                    if change % WIDE_EVERY == 0 { 0 } else { 1 + random.below(size.services - 1) };
                // Only pods in the first half have proxies, and these pods are not removed.
                let half = size.pods(service) / 2;
                let nth = flips.entry(service).or_default();
                let place = PodSlot { service, pod: half + *nth % half };
                *nth += 1;
                let (address, is_in) = (mesh.address(place), mesh.flip(place));
                for receiver in subscribers.get(&service).into_iter().flatten() {
                    let mut receiver = receiver.clone();
                    arrivals.spawn(async move {
                        let arrived = receiver.wait_for(|now| has(now, address) == is_in);
                        let arrived = tokio::time::timeout(PATIENCE, arrived).await;
                        (change, arrived.expect("in time").unwrap().at)
                    });
                }
                writes.push(async move {
                    let begin = Instant::now();
                    mesh.write_slice(bed, place).await;
                    (change, begin, Instant::now())
                });
                change += 1;
            }
            Some((change, begin, end)) = writes.next() => written[change] = Some((begin, end)),
        }
    }
    let written = written.into_iter().map(|one| one.unwrap()).collect();
    (arrivals.join_all().await, written)
}

/// Replaces every pod that has a proxy.
pub(crate) async fn rollout(
    bed: &TestApiServer,
    replica: &Replica,
    mesh: &Mesh,
    clients: &mut Clients,
    figures: &mut Figures,
) {
    let (begin, cpu) = (Instant::now(), replica.cpu());
    let mut old = std::mem::take(&mut clients.all).into_iter();
    let mut ticks =
        interval(Duration::from_secs(1) / u32::try_from(mesh.size.rollout_rate).unwrap());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let shared = &*clients;
    let mut replacing = FuturesUnordered::new();
    let (mut waits, mut new) = (Vec::new(), Vec::new());
    while old.len() > 0 || !replacing.is_empty() {
        tokio::select! {
            _ = ticks.tick(), if old.len() > 0 => {
                let client = old.next().unwrap();
                replacing.push(async move {
                    let (place, name) = (client.place, mesh.instance(client.place).name);
                    mesh.replace(place);
                    mesh.make_pod(bed, place).await;
                    mesh.write_slice(bed, place).await;
                    let begin = Instant::now();
                    let next = shared.connect(bed, mesh, place).await;
                    let wait = begin.elapsed();
                    drop(client);
                    mesh.delete_pod(bed, place.service, &name).await;
                    (next, wait)
                });
            }
            Some((next, wait)) = replacing.next() => {
                new.push(next);
                waits.push(wait);
            }
        }
    }
    drop(replacing);
    clients.all = new;
    clients.are_right(mesh).await;
    figures.time("rollout of all proxies", begin.elapsed(), None);
    figures.times("rollout: a proxy's start, with its token", waits, None);
    let pods = u32::try_from(mesh.size.proxies).unwrap();
    figures.time("rollout: CPU of a pod", (replica.cpu() - cpu) / pods, None);
    figures.memory("resident, after the rollout", replica, Some(600));
    clients.are_connected();
}

/// Restarts the API server. Counts what the controller reads again, and asserts that no proxy loses its stream.
pub(crate) async fn outage(
    bed: &mut TestApiServer,
    replica: &Replica,
    mesh: &Mesh,
    clients: &Clients,
    figures: &mut Figures,
) {
    let stale = "leno_control_cluster_stale_seconds";
    let first = whole_reads(bed, 0);
    assert!(!first.is_empty(), "a program is known by its name: it is called leno-controller");
    let before = bed.reads("leno-controller").len();
    bed.stop();
    until("the outage is noticed", async || (replica.metric(stale).await > 0.0).then_some(()))
        .await;
    clients.are_connected();
    bed.restart().await;
    let begin = Instant::now();
    until("all is followed again", async || (replica.metric(stale).await == 0.0).then_some(()))
        .await;
    figures.time("outage: until all is followed", begin.elapsed(), None);
    let place = PodSlot { service: 0, pod: mesh.size.pods(0) / 2 };
    mesh.flip(place);
    mesh.write_slice(bed, place).await;
    clients.are_right(mesh).await;
    clients.are_connected();
    let again = whole_reads(bed, before);
    let lists = bed.reads("leno-controller").into_iter().skip(before).filter(|read| read.is_list);
    let lists = lists.count() as u64;
    figures.count("outage: kinds followed", first.len() as u64, None);
    figures.count("outage: kinds read again", again.len() as u64, None);
    figures.count("outage: lists from etcd", lists, Some(0));
    let twice: BTreeMap<_, _> = again
        .iter()
        .filter(|(path, count)| **count > first.get(*path).copied().unwrap_or(1))
        .collect();
    figures.count("outage: kinds read more than once by a watch", twice.len() as u64, Some(0));
    println!("read again: {again:?}");
}

fn has(now: &Received, address: std::net::IpAddr) -> bool {
    let ports = now.service.iter().flat_map(|service| &service.ports);
    let mut endpoints = ports.flat_map(|port| port.endpoints.iter());
    endpoints.any(|one| one.addresses.contains(&address))
}

async fn counters(replica: &Replica) -> HashMap<&'static str, u64> {
    let mut counters = HashMap::new();
    for name in COUNTERS {
        counters.insert(name, replica.metric(&format!("leno_control_{name}")).await as u64);
    }
    counters
}
