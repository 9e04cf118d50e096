//! Forwards probes of the kubelet to the application: `/probe/<container>/<kind>`.
//!
//! The kubelet has no certificate, and strict mTLS admits only clients with one. So injection, which adds the proxy
//! to a pod, changes the pod's probes so that the kubelet sends them here. It passes the original probes to the proxy
//! in `LENO_PROBES`. The proxy sends the original probe from within the workload to the address that the kubelet
//! called, and in the way in which the kubelet would have sent it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use hyper::StatusCode;
use hyper::header::HeaderValue;
use leno_transport::ConnectError;
use rustls::ClientConfig;
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio::time::timeout;

mod ask;
mod grpc;
mod kubelet;
mod tls;

pub(crate) use kubelet::KubeletCalls;

/// How many probes one workload may have. Each of its containers has at most three, and a workload has few containers.
const MAX_PROBES: usize = 256;
/// The prefix of the kubelet's `User-Agent`. Other values are not forwarded, because the result may be shared with
/// other callers.
const KUBELET: &[u8] = b"kube-probe/";
/// How long to wait for an application, whatever the probe's own timeout is. It is limited because an admin connection
/// lasts for 60 s.
const MAX_TIMEOUT: Duration = Duration::from_secs(50);

/// The probes of a workload, with their results so far. All callers share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Probes(Arc<ProbeSet>);

#[derive(Debug)]
struct ProbeSet {
    probes: BTreeMap<String, Probe>,
    /// The probes that run now. All callers that want the same result share one probe, so there is at most one for each
    /// pair of a probe and an address of the workload.
    under_way: Mutex<BTreeMap<Question, Arc<OnceCell<ProbeAnswer>>>>,
    counts: Counts,
}

/// A probe, and the address of the workload to which it is sent.
type Question = (String, IpAddr);
/// The status and the reason that the kubelet receives.
type ProbeAnswer = (StatusCode, String);

/// The number of probes by result.
#[derive(Debug, Default)]
struct Counts {
    success: AtomicU64,
    failure: AtomicU64,
    shared: AtomicU64,
}

/// One probe of a container, as injection has described it.
#[derive(Clone, Debug)]
struct Probe {
    handler: Handler,
    port: u16,
    timeout: Duration,
}

/// What a probe does.
#[derive(Clone, Debug)]
enum Handler {
    /// Sends a GET, which must be answered with 200 to 399.
    Http { path: String, headers: Vec<(String, String)>, tls: Option<Arc<ClientConfig>> },
    /// Opens a connection.
    Tcp,
    /// Calls `grpc.health.v1.Health/Check` for a service, which must answer SERVING.
    Grpc { service: String },
}

impl Default for ProbeSet {
    fn default() -> Self {
        let (under_way, counts) = (Mutex::default(), Counts::default());
        Self { probes: BTreeMap::new(), under_way, counts }
    }
}

impl FromStr for Probes {
    type Err = anyhow::Error;

    /// Parses `{"web/liveness": {"httpGet": {...}, "port": 8080, "timeoutSeconds": 1}}`.
    fn from_str(text: &str) -> anyhow::Result<Self> {
        let given: BTreeMap<String, Value> = serde_json::from_str(text)?;
        ensure!(given.len() <= MAX_PROBES, "a proxy forwards at most {MAX_PROBES} probes");
        let read = |(path, probe): (String, Value)| {
            let probe = Probe::read(&probe).with_context(|| path.clone())?;
            Ok((path, probe))
        };
        let probes = given.into_iter().map(read).collect::<anyhow::Result<_>>()?;
        Ok(Self(Arc::new(ProbeSet { probes, ..ProbeSet::default() })))
    }
}

impl Probe {
    fn read(given: &Value) -> anyhow::Result<Self> {
        let port = given["port"].as_u64().and_then(|port| u16::try_from(port).ok());
        let port = port.filter(|port| *port > 0).context("has no port")?;
        let seconds = given["timeoutSeconds"].as_u64().unwrap_or(1);
        let timeout = Duration::from_secs(seconds).min(MAX_TIMEOUT);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let handler = if let Some(get) = given.get("httpGet") {
            let headers = get["httpHeaders"].as_array().into_iter().flatten();
            let headers = headers.map(|one| (text(&one["name"]), text(&one["value"]))).collect();
            let path = text(&get["path"]);
            let path = if path.starts_with('/') { path } else { format!("/{path}") };
            let tls = (text(&get["scheme"]) == "HTTPS").then(tls::config).transpose()?;
            Handler::Http { path, headers, tls }
        } else if let Some(grpc) = given.get("grpc") {
            Handler::Grpc { service: text(&grpc["service"]) }
        } else {
            ensure!(
                given.get("tcpSocket").is_some(),
                "a probe needs one of httpGet, tcpSocket and grpc"
            );
            Handler::Tcp
        };
        Ok(Self { handler, port, timeout })
    }
}

impl Probes {
    /// Runs the probe `path` (`web/liveness`) against an address of the workload, and returns the status and the reason
    /// for the kubelet.
    pub(super) async fn ask(
        &self,
        path: &str,
        address: IpAddr,
        agent: Option<&HeaderValue>,
    ) -> ProbeAnswer {
        let known = &*self.0;
        let Some(probe) = known.probes.get(path) else {
            return (StatusCode::NOT_FOUND, "there is no such probe\n".to_owned());
        };
        let question = (path.to_owned(), address.to_canonical());
        let cell = Arc::clone(known.under_way().entry(question.clone()).or_default());
        let mut first = false;
        // If the caller that runs the probe leaves, one of the waiting callers runs it again.
        let told = cell.get_or_init(|| {
            first = true;
            let agent = agent.filter(|agent| agent.as_bytes().starts_with(KUBELET));
            known.ask(probe, address, agent)
        });
        let told = told.await.clone();
        if !first {
            known.counts.shared.fetch_add(1, Ordering::Relaxed);
        }
        let mut under_way = known.under_way();
        if under_way.get(&question).is_some_and(|other| Arc::ptr_eq(other, &cell)) {
            under_way.remove(&question);
        }
        told
    }

    /// The plain HTTP probes of this port: their names, paths and headers.
    fn http(&self, port: u16) -> impl Iterator<Item = (&str, &str, &[(String, String)])> {
        let of_port = self.0.probes.iter().filter(move |(_, probe)| probe.port == port);
        of_port.filter_map(|(name, probe)| match &probe.handler {
            Handler::Http { path, headers, tls: None } => {
                Some((name.as_str(), path.as_str(), headers.as_slice()))
            }
            _ => None,
        })
    }

    fn is_empty(&self) -> bool {
        self.0.probes.is_empty()
    }

    /// How many probes succeeded, how many failed, and how many shared the result of another probe.
    pub(crate) fn counts(&self) -> [u64; 3] {
        let Counts { success, failure, shared } = &self.0.counts;
        [success, failure, shared].map(|count| count.load(Ordering::Relaxed))
    }
}

impl ProbeSet {
    /// Ignores poisoning: no code panics while it holds the lock.
    fn under_way(&self) -> MutexGuard<'_, BTreeMap<Question, Arc<OnceCell<ProbeAnswer>>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(
        &self,
        probe: &Probe,
        address: IpAddr,
        agent: Option<&HeaderValue>,
    ) -> ProbeAnswer {
        let asked = timeout(probe.timeout, ask::ask(probe, address, agent)).await;
        let asked = asked.unwrap_or_else(|_| Err(Failed::Silent(probe.timeout)));
        match asked {
            Ok(answer) => {
                self.counts.success.fetch_add(1, Ordering::Relaxed);
                (StatusCode::OK, format!("{answer}\n"))
            }
            Err(failed) => {
                self.counts.failure.fetch_add(1, Ordering::Relaxed);
                (StatusCode::SERVICE_UNAVAILABLE, format!("{failed}\n"))
            }
        }
    }
}

/// A task that is aborted when this value is dropped.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Why a probe failed; the text is sent to the kubelet.
#[derive(Debug)]
enum Failed {
    /// The connection failed.
    Connect(ConnectError),
    /// The TLS handshake failed.
    Tls(std::io::Error),
    /// The probe cannot be converted to a request.
    Request(hyper::http::Error),
    /// There was no response.
    Exchange(hyper::Error),
    /// The response does not mean success.
    Answer(String),
    /// There was no response in time.
    Silent(Duration),
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "cannot connect to the application: {error}"),
            Self::Tls(error) => write!(f, "cannot begin TLS with the application: {error}"),
            Self::Request(error) => write!(f, "the probe is not a valid request: {error}"),
            Self::Exchange(error) => write!(f, "the application does not answer: {error}"),
            Self::Answer(answer) => f.write_str(answer),
            Self::Silent(limit) => write!(f, "the application did not answer within {limit:?}"),
        }
    }
}
