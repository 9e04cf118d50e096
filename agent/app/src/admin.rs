//! The admin server. It serves `/metrics`, `/ready`, `/live`, and pages that only clients on the node itself may
//! read: `/captures`, `/flows`, `/requests`, `/wire-requests`, `/drops`, and `/ebpf/status`, `/ebpf/programs`,
//! `/ebpf/maps`.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use leno_flows::report;
use leno_program::content::{JSON, TEXT};
use leno_program::{AdminResponse, answer_pages, chain, refuse_method, respond};
use tokio::time::Instant;

use crate::captures::{CapturesPage, NodeCaptures};
use crate::flows::{Flows, json, listed};
use crate::follow::Pods;
use crate::keeper::Keeper;
use crate::metrics::lock;
use crate::retry::RetryQueue;

/// The page of captures; `?pod=NAMESPACE/NAME` limits it to one pod and adds that pod's connection counters.
const CAPTURES: &str = "/captures";
const METRICS: &str = "/metrics";

/// The pages about flows and programs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KernelPage {
    Flows,
    Requests,
    WireRequests,
    Drops,
    Owners,
    Programs,
    Maps,
}

impl KernelPage {
    pub(crate) fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/flows" => Self::Flows,
            "/requests" => Self::Requests,
            "/wire-requests" => Self::WireRequests,
            "/drops" => Self::Drops,
            "/ebpf/status" => Self::Owners,
            "/ebpf/programs" => Self::Programs,
            "/ebpf/maps" => Self::Maps,
            _ => return None,
        })
    }

    /// Reads the page from the kernel; `None` if connections are not accounted for.
    fn read(self, flows: &Flows) -> Option<Result<String, leno_flows::Error>> {
        match self {
            Self::Flows => flows.page(listed),
            Self::Requests => flows.page(|view| view.requests().map(|rows| json(&rows))),
            Self::WireRequests => flows.page(|view| view.wire_requests().map(|rows| json(&rows))),
            Self::Drops => flows.page(|view| view.drops().map(|rows| json(&rows))),
            Self::Owners => Some(report::owners().map(|rows| json(&rows))),
            Self::Programs => Some(report::programs().map(|rows| json(&rows))),
            Self::Maps => Some(report::maps().map(|rows| json(&rows))),
        }
    }

    pub(crate) fn answer(self, flows: &Flows) -> AdminResponse {
        match self.read(flows) {
            Some(Ok(text)) => respond(StatusCode::OK, JSON, text),
            Some(Err(error)) => {
                let text = format!("cannot read it: {}\n", chain(&error));
                respond(StatusCode::INTERNAL_SERVER_ERROR, TEXT, text)
            }
            None => {
                let why = "this node has no flow metrics: see the agent's log, and agent.flows of \
                           the chart\n";
                respond(StatusCode::CONFLICT, TEXT, why)
            }
        }
    }
}

/// What the admin server reads to build its pages.
pub(crate) struct Admin {
    pub(crate) node: String,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) flows: Arc<Flows>,
    pub(crate) pods: Arc<Pods>,
    pub(crate) retry: Arc<Mutex<RetryQueue>>,
    /// Whether this agent is configured to install the CNI plugin.
    pub(crate) installs: bool,
    /// Held while a page of captures is built. Only one page is built at a time, so that enough blocking threads
    /// are free for captures.
    pub(crate) turn: tokio::sync::Mutex<()>,
}

impl Admin {
    /// Why the agent is not ready; `None` if it is.
    fn not_ready(&self) -> Option<&'static str> {
        let metrics = &self.keeper.metrics;
        if self.installs && !metrics.installed.load(Ordering::Relaxed) {
            Some("the CNI plugin is not installed: see the log")
        } else if !metrics.followed.load(Ordering::Relaxed) {
            Some("the node's pods are not known from the API server: see the log")
        } else if !metrics.reconciled.load(Ordering::Relaxed) {
            Some(
                "pods that ran before the agent are still being captured, or their capture is \
                 retried: see the log",
            )
        } else if metrics.awaits_reports.load(Ordering::Relaxed) {
            Some("which pods node proxies serve is not reported yet: see the log")
        } else {
            None
        }
    }

    /// Answers a request from the address `client`.
    pub(crate) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        client: IpAddr,
    ) -> AdminResponse {
        let kernel = KernelPage::of(request.uri().path());
        if request.uri().path() != CAPTURES && kernel.is_none() {
            // On a blocking thread, because the kernel reads every open connection.
            let flows = Arc::clone(&self.flows);
            let flows = match request.uri().path() {
                METRICS => tokio::task::spawn_blocking(move || flows.metrics()).await,
                _ => Ok(String::new()),
            };
            let metrics = || self.keeper.metrics() + &flows.unwrap_or_default();
            return answer_pages(&request, || self.not_ready(), metrics);
        }
        if let Some(refused) = refuse_method(request.method(), &Method::GET) {
            return refused;
        }
        // Checked before the lock is taken, so that a refused request neither waits for another one nor delays it.
        let wanted = match wanted(client, request.uri().query()) {
            Ok(wanted) => wanted,
            Err(refused) => return *refused,
        };
        let _turn = self.turn.lock().await;
        let admin = Arc::clone(&self);
        // On a blocking thread, because reading the counters of one pod may run a command.
        let page = move || match kernel {
            Some(kernel) => kernel.answer(&admin.flows),
            None => admin.captures(wanted.as_ref()),
        };
        tokio::task::spawn_blocking(page).await.unwrap_or_else(|_| {
            respond(
                StatusCode::INTERNAL_SERVER_ERROR,
                TEXT,
                "the page could not be computed: see the log\n",
            )
        })
    }

    /// The page of captures, of all pods or of one.
    pub(crate) fn captures(&self, wanted: Option<&QueriedPod>) -> AdminResponse {
        let known = NodeCaptures {
            pods: self.pods.all(),
            held: self.keeper.held(),
            failures: self.keeper.failures(),
            next: lock(&self.retry).next(Instant::now()),
        };
        let (mut pods, pods_left_out) =
            known.captures(wanted.map(|(namespace, name)| (&**namespace, &**name)));
        pods.iter_mut().for_each(|pod| pod.open_ways = self.keeper.open_ways(&pod.uid));
        if wanted.is_some() {
            pods.iter_mut().for_each(|pod| pod.connections = self.keeper.connections(&pod.uid));
        }
        let page = CapturesPage {
            node: &self.node,
            version: env!("CARGO_PKG_VERSION"),
            not_ready: self.not_ready(),
            backends: self.keeper.backends(),
            pods,
            pods_left_out,
        };
        let text = serde_json::to_string(&page).expect("names and numbers are JSON");
        respond(StatusCode::OK, JSON, text + "\n")
    }
}

/// The namespace and the name of a pod.
pub(crate) type QueriedPod = (String, String);

/// The pod that the query names, or `None` for all pods. The error is the response to a client that is not on this
/// node, or whose query is invalid.
pub(crate) fn wanted(
    client: IpAddr,
    query: Option<&str>,
) -> Result<Option<QueriedPod>, Box<AdminResponse>> {
    if !client.to_canonical().is_loopback() {
        let remedy = "this page is served only to the node itself, through a port-forward: use \
                      leno diagnostics capture, or leno flows --node\n";
        return Err(Box::new(respond(StatusCode::FORBIDDEN, TEXT, remedy)));
    }
    let Some(query) = query else { return Ok(None) };
    match query.strip_prefix("pod=").and_then(|pod| pod.split_once('/')) {
        Some((namespace, name)) => Ok(Some((namespace.to_owned(), name.to_owned()))),
        None => Err(Box::new(respond(
            StatusCode::BAD_REQUEST,
            TEXT,
            "the query is not understood: use ?pod=NAMESPACE/NAME\n",
        ))),
    }
}
