//! A discovery client that stands for a proxy at low cost: thousands of these share one CPU with the API server.
//!
//! A stub makes the same subscriptions as a proxy, and acknowledges what it receives. A real proxy runs on its own
//! node and decodes each message. Stubs that have the same version of a service and receive the same bytes decode
//! these only once, and share the result.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leno_types::InstanceName;
use leno_types::mesh::Service;
use leno_wire::proto::discovery_client::DiscoveryClient;
use leno_wire::proto::identity_client::IdentityClient;
use leno_wire::proto::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, IssueCertificateRequest, Node, Resource,
};
use leno_wire::{
    ADDRESS_TYPE, Bytes, MAX_MESSAGE, SERVER_POLICY_TYPE, USED_SERVICES_TYPE, decode, names,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use super::phases::PATIENCE;
use crate::wire;

/// How many requests may wait to be sent.
const REQUESTS: usize = 16;
/// The wait before another try to connect.
const RETRY: Duration = Duration::from_millis(250);
/// Most versions of a service that are kept decoded.
const DECODED: usize = 64;

/// A proxy that follows services. Dropping this ends it.
pub(crate) struct StubProxy {
    followed: Arc<HashMap<IpAddr, watch::Sender<Received>>>,
    has_policy: watch::Receiver<bool>,
    is_connected: Arc<AtomicBool>,
    running: JoinHandle<()>,
}

/// The last state of a service that a proxy has received.
pub(crate) struct Received {
    /// When the message was read from the stream and decoded.
    pub(crate) at: Instant,
    /// The service; `None` before the first message about it.
    pub(crate) service: Option<Arc<Service>>,
}

/// Results of decoding, shared by all proxies.
#[derive(Default)]
pub(crate) struct Decoded(Mutex<HashMap<String, VecDeque<Step>>>);

/// The bytes that turn one version of a service into another, and the resulting service.
struct Step {
    /// The version that the proxy held; empty for none.
    from: String,
    bytes: Bytes,
    made: Arc<Service>,
}

/// The task of a proxy.
struct Running {
    followed: Arc<HashMap<IpAddr, watch::Sender<Received>>>,
    decoded: Arc<Decoded>,
    /// Services with their versions, by the names of their resources.
    held: HashMap<String, (String, Arc<Service>)>,
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    has_policy: watch::Sender<bool>,
    is_connected: Arc<AtomicBool>,
}

impl StubProxy {
    /// Starts the proxy of an instance, which follows the services at these addresses.
    pub(crate) async fn start(
        control: SocketAddr,
        token: &str,
        instance: &InstanceName,
        ips: &[IpAddr],
        decoded: &Arc<Decoded>,
    ) -> Self {
        let channel = connected(control, token).await;
        let (requests, outgoing) = mpsc::channel(REQUESTS);
        let id = instance.to_string();
        let subscribe = |type_url: &str, subjects: Vec<String>| DeltaDiscoveryRequest {
            type_url: type_url.to_owned(),
            resource_names_subscribe: subjects,
            ..DeltaDiscoveryRequest::default()
        };
        let uses = subscribe(USED_SERVICES_TYPE, vec![id.clone()]);
        let first = DeltaDiscoveryRequest { node: Some(Node::of(id.clone())), ..uses };
        let addresses = ips.iter().copied().map(names::of_address).collect();
        let policy = subscribe(SERVER_POLICY_TYPE, vec![id]);
        for request in [first, subscribe(ADDRESS_TYPE, addresses), policy] {
            requests.send(request).await.unwrap();
        }
        let mut client = DiscoveryClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        let responses = client.delta_aggregated_resources(ReceiverStream::new(outgoing)).await;
        let responses = responses.unwrap().into_inner();
        let nothing = || watch::Sender::new(Received { at: Instant::now(), service: None });
        let followed: Arc<HashMap<_, _>> =
            Arc::new(ips.iter().map(|ip| (*ip, nothing())).collect());
        let (policy, has_policy) = watch::channel(false);
        let is_connected = Arc::new(AtomicBool::new(true));
        let running = Running {
            followed: Arc::clone(&followed),
            decoded: Arc::clone(decoded),
            held: HashMap::new(),
            requests,
            has_policy: policy,
            is_connected: Arc::clone(&is_connected),
        };
        let running = tokio::spawn(running.run(responses));
        Self { followed, has_policy, is_connected, running }
    }

    /// The service at an address, as the proxy receives it.
    pub(crate) fn receiver(&self, ip: IpAddr) -> watch::Receiver<Received> {
        self.followed[&ip].subscribe()
    }

    /// Waits until the proxy has the policy of its workload.
    pub(crate) async fn has_policy(&self, patience: Duration) {
        let mut policy = self.has_policy.clone();
        let known = policy.wait_for(|has| *has);
        tokio::time::timeout(patience, known).await.expect("in time").unwrap();
    }

    /// Whether the proxy's first stream is still open and all messages were valid.
    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }
}

impl Drop for StubProxy {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl Running {
    async fn run(mut self, mut responses: Streaming<DeltaDiscoveryResponse>) {
        while let Ok(Some(response)) = responses.message().await {
            let ack = DeltaDiscoveryRequest {
                type_url: response.type_url.clone(),
                response_nonce: response.nonce.clone(),
                ..DeltaDiscoveryRequest::default()
            };
            let mut requests = vec![ack];
            let resources = response.resources.into_iter();
            let mut resources = resources.map(|bytes| decode::resource(bytes).unwrap());
            match response.type_url.as_str() {
                ADDRESS_TYPE => resources.for_each(|resource| self.take(resource)),
                SERVER_POLICY_TYPE => drop(self.has_policy.send_replace(true)),
                USED_SERVICES_TYPE => requests.extend(resources.next().map(prefetch)),
                other => panic!("{other:?} was not asked for"),
            }
            for request in requests {
                if self.requests.send(request).await.is_err() {
                    return;
                }
            }
        }
    }

    fn take(&mut self, mut resource: Resource) {
        let any = resource.resource.take().unwrap();
        let held = self.held.get(&resource.name);
        let (from, base) = held.map(|(version, service)| (&**version, service)).unzip();
        let from = from.unwrap_or_default();
        let service = self.decoded.step((&resource.name, from, &any.value), || {
            match decode::address(&any).unwrap() {
                decode::AddressResource::Service(update) => {
                    update.apply(base.map(|service| (from, &**service))).unwrap()
                }
                decode::AddressResource::Workload(workload) => {
                    panic!("not asked for: {workload:?}")
                }
            }
        });
        let at = Instant::now();
        for sender in service.vips.iter().filter_map(|ip| self.followed.get(ip)) {
            sender.send_replace(Received { at, service: Some(Arc::clone(&service)) });
        }
        self.held.insert(resource.name, (resource.version, service));
    }
}

impl Drop for Running {
    /// Runs when the stream has ended or a message was invalid.
    fn drop(&mut self) {
        self.is_connected.store(false, Ordering::Relaxed);
    }
}

impl Decoded {
    fn step(
        &self,
        (name, from, bytes): (&str, &str, &Bytes),
        decode: impl FnOnce() -> Service,
    ) -> Arc<Service> {
        let mut all = self.0.lock().unwrap();
        let steps = all.entry(name.to_owned()).or_default();
        let known = steps.iter().rev().find(|step| step.from == from && step.bytes == *bytes);
        if let Some(known) = known {
            return Arc::clone(&known.made);
        }
        let made = Arc::new(decode());
        if steps.len() == DECODED {
            steps.pop_front();
        }
        let (from, bytes) = (from.to_owned(), bytes.clone());
        steps.push_back(Step { from, bytes, made: Arc::clone(&made) });
        made
    }
}

/// A connection with a certificate that was issued for a token. Like a proxy, this tries again while the
/// controller cannot answer, for example because the API server does not review tokens for a moment.
async fn connected(control: SocketAddr, token: &str) -> Channel {
    let connecting = async {
        loop {
            match connect(control, token).await {
                Ok(channel) => return channel,
                Err(status) if status.code() == Code::Unavailable => {
                    tokio::time::sleep(RETRY).await
                }
                Err(status) => panic!("{status}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, connecting).await.expect("a certificate in time")
}

async fn connect(control: SocketAddr, token: &str) -> Result<Channel, Status> {
    let unavailable = |error: tonic::transport::Error| Status::unavailable(error.to_string());
    let channel = wire::connect(control, None).await.map_err(unavailable)?;
    let (key, csr) = wire::request();
    let request = IssueCertificateRequest { csr: csr.into(), token: token.to_owned(), pod: None };
    let answer = IdentityClient::new(channel).issue_certificate(request).await?.into_inner();
    let chain = answer.chain.iter().map(|der| der.to_vec()).collect();
    let shown = wire::TestIdentity { chain, key: key.serialize_der() };
    wire::connect(control, Some(&shown)).await.map_err(unavailable)
}

/// Subscribes to the services that workloads of the same identity have used.
fn prefetch(mut used: Resource) -> DeltaDiscoveryRequest {
    let services = decode::used_services(&used.resource.take().unwrap()).unwrap();
    DeltaDiscoveryRequest {
        type_url: ADDRESS_TYPE.to_owned(),
        resource_names_prefetch: services.iter().map(names::of_service).collect(),
        ..DeltaDiscoveryRequest::default()
    }
}
