//! Tests that streams of proxies spread over the replicas of the control plane.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use leno_testkit_api::{TestApiServer, binary, until};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::proxy::Proxy;
use crate::replica::Replica;
use crate::{cluster, run_pod};

/// How many proxies the test starts. With this number, a random distribution gives a replica less than a quarter
/// of them only once in 15,000 runs.
const PROXIES: usize = 64;
/// Streams last 10 s, plus or minus a quarter.
const AGE: [&str; 2] = ["--stream-age", "10s"];

/// The Service of the control plane as nodes implement it: each connection goes to a random replica.
struct Service {
    address: SocketAddr,
    replicas: Arc<Mutex<Vec<SocketAddr>>>,
    running: JoinHandle<()>,
}

impl Service {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let replicas: Arc<Mutex<Vec<SocketAddr>>> = Arc::default();
        let endpoints = Arc::clone(&replicas);
        let running = tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let replica = {
                    let endpoints = endpoints.lock().unwrap();
                    let chosen = RandomState::new().hash_one(0_u8) as usize % endpoints.len();
                    endpoints[chosen]
                };
                tokio::spawn(async move {
                    if let Ok(mut server) = TcpStream::connect(replica).await {
                        // How the connection ends is visible to both ends, so the result is not needed.
                        let _ = copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        });
        Self { address, replicas, running }
    }

    /// Makes new connections lead to these replicas.
    async fn leads_to(&self, replicas: &[&Replica]) {
        let mut addresses = Vec::new();
        for replica in replicas {
            addresses.push(replica.address().await.parse().unwrap());
        }
        *self.replicas.lock().unwrap() = addresses;
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.running.abort();
    }
}

async fn streams(replica: &Replica) -> usize {
    replica.metric("leno_control_streams").await as usize
}

/// Starts [`PROXIES`] proxies, each for its own pod.
async fn proxies(bed: &TestApiServer, service: &Service) -> Vec<Proxy> {
    let mut proxies = Vec::new();
    for nth in 0..PROXIES {
        let name = format!("web-{nth}");
        run_pod(bed, &name, &format!("10.244.1.{nth}")).await;
        let token = bed.token(("shop", "web"), Some("leno"), Some(&name)).await;
        let (control, instance) = (format!("https://{}", service.address), format!("shop/{name}"));
        proxies.push(Proxy::start_at(bed, control, &instance, &token).await);
    }
    proxies
}

/// Waits until each replica has at least a quarter of the streams.
async fn are_spread(replicas: [&Replica; 2]) {
    until("the streams are spread", async || {
        let (one, other) = (streams(replicas[0]).await, streams(replicas[1]).await);
        (one.min(other) >= PROXIES / 4).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_spread_over_all_replicas_again_after_one_was_restarted() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    let start = |name: &str| Replica::start_with(name, &kubeconfig, &AGE);
    let (first, second) = (start("controller-0"), start("controller-1"));
    let service = Service::start().await;
    service.leads_to(&[&first, &second]).await;
    let proxies = proxies(&bed, &service).await;
    are_spread([&first, &second]).await;

    // During a rolling update, the proxies of a replica that restarts connect to the other replica.
    service.leads_to(&[&first]).await;
    second.end();
    until("all streams are on one replica", async || {
        (streams(&first).await >= PROXIES && proxies.iter().all(Proxy::is_connected)).then_some(())
    })
    .await;
    let second = start("controller-2");
    service.leads_to(&[&first, &second]).await;
    are_spread([&first, &second]).await;
    for proxy in &proxies {
        assert!(proxy.is_connected(), "a proxy that connects again keeps its stream until then");
    }
    first.end();
    second.end();
}
