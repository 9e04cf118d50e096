//! The clients, and the measurement while pods are replaced.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use leno_discovery::{CertificateSource, Client, Directory, Settings};
use leno_types::mesh::Resolution;
use leno_types::{InstanceName, TrustDomain};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::SERVER;
use crate::machine::{Random, cpu, open_files, status_kib};
use crate::mesh::{Mesh, Size, replaced};

/// How many services of its own namespace a proxy follows, and how many of other namespaces.
const FOLLOWED_NEAR: usize = 4;
const FOLLOWED_FAR: usize = 2;
/// One in this many changes affects the service with very many pods, which every fifth proxy follows.
const WIDE_EVERY: usize = 20;
const WIDE_PROXIES: usize = 5;
/// How many proxies are started at the same time.
const STARTED: usize = 100;
/// The bound of every wait. No measured duration depends on it.
const PATIENCE: Duration = Duration::from_secs(120);

/// The process that serves. Dropping this ends it.
struct Plane {
    process: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    address: String,
    cold_start: Duration,
}

/// The control plane's counters, and the CPU time of its process, up to one moment.
struct Counts {
    metrics: HashMap<String, u64>,
    resident_kib: u64,
    cpu: Duration,
}

/// One client with its subscriptions.
struct Proxy {
    directory: Directory,
    followed: Vec<(usize, watch::Receiver<Resolution>)>,
    running: JoinHandle<()>,
}

pub(crate) fn run(size: Size) {
    println!("{size:?}");
    // Each proxy needs two connections.
    open_files(size.proxies * 2 + 1_024);
    let directory = tempfile::tempdir().unwrap();
    let roots = directory.path().join("roots.pem");
    let mut plane = Plane::start(&roots);
    println!("cold start to serving: {:?}", plane.cold_start);
    let filled = plane.counts();
    println!("resident, filled: {} KiB", filled.resident_kib);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let begin = Instant::now();
        let proxies = start_all(size, &plane.address, &roots).await;
        let connected = plane.counts();
        let used = connected.since(&filled);
        println!(
            "{} proxies connected and answered in {:?}: {:?} of CPU, {} bytes, {} encodings",
            size.proxies,
            begin.elapsed(),
            used.cpu,
            used.get("sent_bytes_total"),
            used.get("encodings_total"),
        );
        println!("resident, connected: {} KiB", connected.resident_kib);
        let subscribers = subscribers(size, &proxies);
        let before = plane.counts();
        let begin = Instant::now();
        let (mut waits, deliveries) = replace_pods(size, &mut plane, &subscribers).await;
        let elapsed = begin.elapsed();
        let after = plane.counts();
        let used = after.since(&before);
        report(size, &mut waits, deliveries, (&used, elapsed));
        println!("resident, in the end: {} KiB", after.resident_kib);
        assert_eq!(waits.len(), deliveries, "every change arrives at every subscriber");
        // A stream gets nothing that it has not subscribed to. A stream may be subscribed to a service by its
        // address and its name, and read its mailbox between the two notifications.
        for (name, most) in [("resources_sent_total", 1), ("wakeups_total", 2)] {
            let number = used.get(name);
            let most = most * deliveries as u64;
            assert!(number <= most, "{number} {name} for {deliveries} deliveries");
        }
        for proxy in &proxies {
            assert_eq!(proxy.directory.status().nacks, 0);
            assert_eq!(proxy.directory.status().connects, 1);
            proxy.running.abort();
        }
    });
}

fn report(size: Size, waits: &mut [Duration], deliveries: usize, used: (&Counts, Duration)) {
    let (used, elapsed) = used;
    waits.sort();
    let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize];
    println!("{} changes in {elapsed:?}, {deliveries} deliveries to those who asked", size.changes);
    println!("arrival: {:?} p50, {:?} p99, {:?} worst", at(0.5), at(0.99), at(1.0));
    let each = |total: u64| total as f64 / size.changes as f64;
    let delivered = |total: u64| total as f64 / deliveries as f64;
    println!("CPU: {:.0} us per change", each(used.cpu.as_micros() as u64));
    for name in ["wakeups_total", "encodings_total", "responses_total", "resources_sent_total"] {
        println!("{name}: {} ({:.2} per change)", used.get(name), each(used.get(name)));
    }
    let bytes = used.get("sent_bytes_total");
    println!("bytes: {:.0} per change, {:.0} per delivery", each(bytes), delivered(bytes));
    let endpoint = Mesh::new(size).endpoint(1, 5);
    let endpoint = serde_json::to_string(&endpoint).unwrap();
    println!("the endpoint in its slice, as JSON: {} bytes", endpoint.len());
}

/// Replaces pods at the configured rate. Returns how long each change took to arrive at each subscriber, and how
/// many deliveries there were.
async fn replace_pods(
    size: Size,
    plane: &mut Plane,
    subscribers: &HashMap<usize, Vec<watch::Receiver<Resolution>>>,
) -> (Vec<Duration>, usize) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut arrivals = JoinSet::new();
    let mut deliveries = 0;
    let mut tick = tokio::time::interval(Duration::from_secs(1) / size.changes_per_second as u32);
    for change in 0..size.changes {
        tick.tick().await;
        let service = match change % WIDE_EVERY {
            0 => 0,
            _ => 1 + random.below(size.services - 1),
        };
        let generation = u32::try_from(change + 1).unwrap();
        let begin = Instant::now();
        plane.command(&format!("change {service} {generation}"));
        for receiver in subscribers.get(&service).into_iter().flatten() {
            let mut receiver = receiver.clone();
            deliveries += 1;
            arrivals.spawn(async move {
                let arrived = receiver.wait_for(|now| serves(now, generation));
                tokio::time::timeout(PATIENCE, arrived).await.expect("in time").unwrap();
                begin.elapsed()
            });
        }
    }
    (arrivals.join_all().await, deliveries)
}

/// Whether a service has the pod of a change, or a later pod in its place.
fn serves(now: &Resolution, generation: u32) -> bool {
    let Resolution::Service(service) = now else { return false };
    let endpoints = service.ports.iter().flat_map(|port| port.endpoints.iter());
    let first = replaced(generation);
    // A later change may have replaced the same pod.
    endpoints.flat_map(|one| &one.addresses).any(|ip| *ip >= first)
}

fn subscribers(size: Size, proxies: &[Proxy]) -> HashMap<usize, Vec<watch::Receiver<Resolution>>> {
    let mut subscribers: HashMap<_, Vec<_>> = HashMap::new();
    for proxy in proxies {
        assert!(proxy.followed.len() <= 1 + FOLLOWED_NEAR + FOLLOWED_FAR);
        for (service, receiver) in &proxy.followed {
            assert!(*service < size.services);
            subscribers.entry(*service).or_default().push(receiver.clone());
        }
    }
    subscribers
}

async fn start_all(size: Size, control: &str, roots: &Path) -> Vec<Proxy> {
    let mut together: HashMap<_, Vec<usize>> = HashMap::new();
    for service in 1..size.services {
        together.entry(size.service_name(service).namespace).or_default().push(service);
    }
    let mut proxies = Vec::with_capacity(size.proxies);
    for number in 0..size.proxies {
        let of = Proxy::service(size, number);
        // Replicas of one workload use the same services.
        let mut random = Random::new(of);
        let near = &together[&size.service_name(of).namespace];
        let mut services = if of <= size.gathered { vec![0] } else { Vec::new() };
        services.extend((0..FOLLOWED_NEAR).map(|_| near[random.below(near.len())]));
        services.extend((0..FOLLOWED_FAR).map(|_| 1 + random.below(size.services - 1)));
        services.sort_unstable();
        services.dedup();
        let instance = size.instance(of, number / WIDE_PROXIES % (size.pods(of) / 2));
        proxies.push(Proxy::start(size, instance, &services, (control, roots)));
        if proxies.len() % STARTED == 0 || proxies.len() == size.proxies {
            let from = (proxies.len() - 1) / STARTED * STARTED;
            for proxy in &mut proxies[from..] {
                proxy.answered().await;
            }
        }
    }
    proxies
}

impl Proxy {
    /// The service of a proxy's pod. Every fifth proxy belongs to the large namespace.
    fn service(size: Size, number: usize) -> usize {
        match (number % WIDE_PROXIES, number / WIDE_PROXIES % 2) {
            (0, 0) => 0,
            (0, _) => 1 + number % size.gathered,
            _ => size.gathered + 1 + number % (size.services - size.gathered - 1),
        }
    }

    fn start(
        size: Size,
        instance: InstanceName,
        services: &[usize],
        (control, roots): (&str, &Path),
    ) -> Self {
        let token = roots.with_file_name(format!("{}.{}", instance.namespace, instance.name));
        std::fs::write(&token, instance.to_string()).unwrap();
        let settings = Settings {
            control: format!("https://{control}"),
            roots: roots.to_owned(),
            certificates: CertificateSource::Token(token),
            instance,
            pod_uid: None,
            trust_domain: TrustDomain::default(),
        };
        let (client, directory) = Client::new(settings);
        let watch = |service: &usize| (*service, directory.watch(size.vip(*service)));
        let followed = services.iter().map(watch).collect();
        let running = tokio::spawn(async move { match client.run().await {} });
        Self { directory, followed, running }
    }

    async fn answered(&mut self) {
        for (_, receiver) in &mut self.followed {
            let known = receiver.wait_for(|now| matches!(now, Resolution::Service(_)));
            tokio::time::timeout(PATIENCE, known).await.expect("in time").unwrap();
        }
        let mut policy = self.directory.server_policy();
        let known = policy.wait_for(Option::is_some);
        tokio::time::timeout(PATIENCE, known).await.expect("in time").unwrap();
    }
}

impl Plane {
    fn start(roots: &Path) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .env(SERVER, roots)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commands = process.stdin.take();
        let mut answers = BufReader::new(process.stdout.take().unwrap());
        let line = answer(&mut answers, "serving ");
        let (address, cold_start) = line.split_once(' ').unwrap();
        let cold_start = Duration::from_micros(cold_start.parse().unwrap());
        Self { process, commands, answers, address: address.to_owned(), cold_start }
    }

    fn command(&mut self, line: &str) {
        let commands = self.commands.as_mut().unwrap();
        writeln!(commands, "{line}").unwrap();
    }

    fn counts(&mut self) -> Counts {
        self.command("stats");
        let line = answer(&mut self.answers, "stats ");
        let number = |pair: &str| {
            let (name, number) = pair.split_once('=').unwrap();
            let name = name.strip_prefix("leno_control_").unwrap();
            (name.to_owned(), number.parse().unwrap())
        };
        let metrics = line.split(' ').map(number).collect();
        let pid = self.process.id();
        Counts { metrics, resident_kib: status_kib(pid, "VmRSS"), cpu: cpu(pid) }
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        drop(self.commands.take());
        self.process.wait().unwrap();
    }
}

impl Counts {
    fn get(&self, name: &str) -> u64 {
        self.metrics[name]
    }

    fn since(&self, before: &Self) -> Self {
        let less =
            |(name, now): (&String, &u64)| (name.clone(), now.saturating_sub(before.metrics[name]));
        Self {
            metrics: self.metrics.iter().map(less).collect(),
            resident_kib: self.resident_kib,
            cpu: self.cpu - before.cpu,
        }
    }
}

fn answer(answers: &mut impl BufRead, prefix: &str) -> String {
    let mut line = String::new();
    answers.read_line(&mut line).unwrap();
    let text = line.trim_end().strip_prefix(prefix);
    text.unwrap_or_else(|| panic!("{prefix:?} was expected of the control plane: {line:?}"))
        .to_owned()
}
