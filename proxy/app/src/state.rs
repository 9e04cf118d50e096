//! The state of the proxy that the admin server shows and changes.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leno_crypto::TlsProfile;
use leno_discovery::{ApplicationCounts, ApplicationIdentity, Directory, Status};
use leno_h2::Open;
use leno_names::{Counts, Names};
use leno_telemetry::tap::Taps;
use leno_telemetry::{
    AuditedRequest, Counter, Kind, Measured, MetricsCompat, OwnWorkload, Snapshot,
};
use leno_transport::budget::{Budget, Pool};
use leno_transport::{Shown, panics};
use leno_types::authorization::Cidr;
use leno_types::mesh::ServerPolicy;
use leno_types::{InstanceName, Removal, ports};
use leno_wire::Bytes;
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::admin::metrics::PageForm;
use crate::admin::probe::Probes;
use crate::capture::is_marked;
use crate::datagrams::DatagramLoad;
use crate::guest::GuestBook;
use crate::setup::IdentityState;
use crate::worker::{Load, Worker};
use crate::{known, node};

/// How long to wait until all workers have begun to drain. A stalled worker must not delay the response.
const DRAIN_BEGINS: Duration = Duration::from_secs(1);

/// The proxy's state for the admin server. It belongs to the control thread.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) instance: InstanceName,
    /// The workload to which the instance belongs.
    pub(crate) workload: String,
    pub(crate) metrics_compat: MetricsCompat,
    /// Whether taps may show bodies.
    pub(crate) tap_bodies: bool,
    /// The network addresses that may request metrics; if there are none, all may.
    pub(crate) scrapers: Vec<Cidr>,
    pub(crate) workers: RefCell<Vec<Worker>>,
    /// The list of the workload's guests on threads of other workloads, if the process serves several.
    pub(crate) guests: Option<Arc<GuestBook>>,
    pub(crate) directory: Directory,
    pub(crate) names: Names,
    pub(crate) policy: watch::Receiver<Option<Arc<ServerPolicy>>>,
    pub(crate) identity: watch::Receiver<IdentityState>,
    /// Issues certificates for the application itself.
    pub(crate) application_identity: Option<ApplicationIdentity>,
    /// Whether the address of the application is configured.
    pub(crate) has_application: bool,
    /// The client address that applications see, if the process is not in the workload's network namespace.
    pub(crate) shown: Option<Shown>,
    /// Whether the proxy must serve only in a namespace that a node's agent has captured.
    pub(crate) awaits_capture: bool,
    /// Whether the proxy is waiting for its capture now.
    pub(crate) uncaptured: Cell<bool>,
    pub(crate) probes: Probes,
    pub(crate) taps: Taps,
    pub(crate) draining: Cell<bool>,
    /// Notified when `/drain` is requested.
    pub(crate) drain_asked: Notify,
    /// Set when all workers drain.
    pub(crate) workers_drain: watch::Sender<bool>,
    /// How often workers of the workload have stalled, as far as this process knows.
    pub(crate) stalls: Cell<u64>,
    /// How many of these workers stall now, in a process that serves one workload.
    pub(crate) stalled: Cell<usize>,
    pub(crate) started: SystemTime,
}

impl State {
    /// Which client address the application sees, in words.
    fn application_sees(&self) -> &'static str {
        match self.shown {
            _ if self.has_application => "kernel-choice",
            Some(shown) => shown.name(),
            None => Shown::now().name(),
        }
    }

    /// Why the proxy is not ready, if it is not.
    pub(crate) fn not_ready(&self) -> Option<&'static str> {
        if self.draining.get() {
            Some("draining")
        } else if self.workers.borrow().is_empty() && self.uncaptured.get() {
            Some("starting: no identity yet, or not captured by the node's agent")
        } else if self.workers.borrow().is_empty() {
            Some("starting: no identity yet, or not listening")
        } else {
            None
        }
    }

    /// Whether a worker stalls, so that the process must be restarted. A draining proxy ends anyway.
    pub(crate) fn hangs(&self) -> bool {
        self.stalled.get() > 0 && !self.draining.get()
    }

    /// Orders the proxy to drain, and waits until the workers have begun to drain, unless one of them stalls.
    pub(crate) async fn drain(&self) {
        self.draining.set(true);
        self.drain_asked.notify_one();
        let mut workers_drain = self.workers_drain.subscribe();
        let _late = timeout(DRAIN_BEGINS, workers_drain.wait_for(|drain| *drain)).await;
    }

    /// What all workers together have in progress.
    #[expect(clippy::arithmetic_side_effects, reason = "sums of what is in memory")]
    pub(crate) async fn load(&self) -> Load {
        let workers = self.workers.borrow().clone();
        let mut sum = Load::default();
        for worker in workers {
            let load = worker.load().await.unwrap_or_default();
            sum.busy += load.busy;
            sum.hosted += load.hosted;
            sum.connections += load.connections;
            sum.charged += load.charged;
            sum.datagrams = sum.datagrams.or(load.datagrams);
            for (sum, open) in sum.http2.iter_mut().zip(load.http2) {
                sum.connections += open.connections;
                sum.streams += open.streams;
            }
        }
        if let Some(guests) = &self.guests {
            sum.busy += guests.busy().await;
        }
        sum
    }

    /// The page with metrics in this format.
    pub(crate) async fn metrics(&self, form: PageForm) -> Bytes {
        let own = if self.metrics_compat.is_any() { self.own() } else { OwnWorkload::default() };
        let compat = (self.metrics_compat, &own);
        let (counted, measured) = (self.counted().await, self.measured().await);
        form.render(&counted, &measured, compat)
    }

    /// The labels of the workload for metrics that have the names of other meshes.
    fn own(&self) -> OwnWorkload {
        let identity = self.identity.borrow().name.clone();
        OwnWorkload {
            namespace: self.instance.namespace.to_string(),
            instance: self.instance.name.to_string(),
            workload: self.workload.clone(),
            trust_domain: identity
                .as_ref()
                .map_or_else(String::new, |identity| identity.trust_domain().to_string()),
            identity: identity.map(|identity| identity.to_string()),
        }
    }

    /// The matches of audit policies since the proxy started, as JSON.
    pub(crate) async fn audited(&self) -> String {
        let counted = self.counted().await;
        let request = |(request, count): (&AuditedRequest, u64)| {
            let AuditedRequest { policy, client, address, port, method, host, path } = request;
            json!({
                "policy": policy, "client": client, "address": address, "port": port, "method": method,
                "host": host, "path": path, "count": count,
            })
        };
        let requests: Vec<_> = counted.audited().map(request).collect();
        json!({"requests": requests, "not_kept": counted.audited_not_kept()}).to_string()
    }

    /// The sum of the counts of all workers and of their guests.
    async fn counted(&self) -> Snapshot {
        let workers = self.workers.borrow().clone();
        // Panics of the control thread's own tasks. Workloads that share this thread each report all of them.
        let mut sum = Snapshot::of_counter(Counter::Panics, panics());
        for worker in workers {
            if let Some(snapshot) = worker.snapshot().await {
                sum.add(snapshot);
            }
        }
        if let Some(guests) = &self.guests {
            sum.add(guests.counted().await);
        }
        sum
    }

    async fn measured(&self) -> Vec<Measured> {
        let load = self.load().await;
        let [guests, guests_refused] = guests(self.guests.as_deref());
        let mut measured = discovery(&self.directory.status());
        measured.extend(http2(&load));
        measured.extend(load.datagrams.iter().flat_map(DatagramLoad::measured));
        measured.extend(names(&self.names.counts()));
        measured.extend(probes(self.probes.counts()));
        measured.extend(taps(&self.taps));
        let identity = self.application_identity.as_ref();
        measured.extend(workload_api(identity.map(|own| own.counts()).unwrap_or_default()));
        measured.extend([
            stalls(self.stalls.get()),
            cut(node::cut()),
            guests,
            guests_refused,
            gauge(
                "leno_connections_open",
                "Open connections that the proxy has accepted, in both directions.",
                load.connections as f64,
            ),
            gauge(
                "leno_memory_charged_bytes",
                "Memory that buffers and connections use, by the proxy's own accounting.",
                load.charged as f64,
            ),
            gauge("leno_busy", "Requests and relays in progress.", load.busy as f64),
            fips(),
            gauge("process_start_time_seconds", "When the proxy started.", unix(self.started)),
            removal(self.removal()),
        ]);
        if let Some(limit) = self.max_connections() {
            measured.push(gauge(
                "leno_connections_limit",
                "Most connections that the proxy has open, in both directions.",
                limit as f64,
            ));
        }
        measured.extend(self.budget().map(memory).into_iter().flatten());
        measured.extend(self.proven());
        measured
    }

    /// The metrics of the certificate in use.
    fn proven(&self) -> Vec<Measured> {
        let identity = self.identity.borrow();
        let ends = identity.not_after.map(|not_after| {
            gauge(
                "leno_identity_expiration_timestamp_seconds",
                "When the certificate in use ends.",
                unix(not_after),
            )
        });
        let name = identity.name.as_ref().map(|name| Measured {
            labels: format!(
                "identity=\"{name}\",workload=\"{}\",workload_namespace=\"{}\"",
                self.workload, self.instance.namespace
            )
            .into(),
            ..gauge("leno_identity_info", "The identity that the proxy proves; always 1.", 1.0)
        });
        ends.into_iter().chain(name).collect()
    }

    /// The stage of the mesh's removal, according to the control plane.
    fn removal(&self) -> Removal {
        self.policy.borrow().as_ref().map(|policy| policy.removal).unwrap_or_default()
    }

    /// Logs when the removal of the mesh begins, and each step, until the process ends.
    pub(crate) async fn tell_of_removal(&self) {
        let (mut policy, mut before) = (self.policy.clone(), Removal::None);
        loop {
            policy.mark_unchanged();
            let now = self.removal();
            match now {
                same if same == before => {}
                Removal::None => {
                    tracing::warn!(%before, "the mesh stays: its removal was cancelled")
                }
                step => tracing::warn!(%step, "the mesh is being removed"),
            }
            before = now;
            if policy.changed().await.is_err() {
                return;
            }
        }
    }

    /// Whether the proxy's network namespace is captured now; `None` if that is not known: the proxy was not told to
    /// wait for the capture, or may not read the mark.
    fn captured(&self) -> Option<bool> {
        let file = std::path::Path::new(ports::RESERVED_FILE);
        self.awaits_capture.then(|| is_marked(file).ok()).flatten()
    }

    /// Most connections of all workers together; `None` if there is no worker yet.
    fn max_connections(&self) -> Option<usize> {
        let workers = self.workers.borrow();
        (!workers.is_empty()).then(|| workers.iter().map(|worker| worker.max_connections).sum())
    }

    /// The budget, which all workers share.
    fn budget(&self) -> Option<Budget> {
        self.workers.borrow().first().map(|worker| worker.budget)
    }

    /// The configuration that is in effect, as JSON.
    pub(crate) async fn config(&self) -> String {
        let status = self.directory.status();
        let load = self.load().await;
        let identity = self.identity.borrow().clone();
        let policy = self.policy.borrow().clone();
        let listening: Vec<String> = self
            .workers
            .borrow()
            .first()
            .map(|worker| worker.listening.iter().map(ToString::to_string).collect())
            .unwrap_or_default();
        let listed = |policy: &ServerPolicy| -> Vec<serde_json::Value> {
            let port = |p: &leno_types::mesh::PortProtocol| json!({"port": p.port, "protocol": p.protocol.as_str()});
            policy.ports.iter().map(port).collect()
        };
        let services = self.directory.services();
        let services: Vec<_> = services.iter().map(|one| known::service(one)).collect();
        let config = json!({
            "workload": self.instance.to_string(),
            "version": env!("CARGO_PKG_VERSION"),
            "workers": self.workers.borrow().len(),
            "listening": listening,
            "ready": self.not_ready().is_none(),
            "not_ready": self.not_ready(),
            "captured": self.captured(),
            "application_sees": self.application_sees(),
            "started_unix_s": unix(self.started),
            "draining": self.draining.get(),
            "busy": load.busy,
            "connections": load.connections,
            "max_connections": self.max_connections(),
            "memory": {
                "budget_bytes": self.budget().map(Budget::bytes),
                "charged_bytes": load.charged,
            },
            "identity": {
                "name": identity.name.map(|name| name.to_string()),
                "not_after_unix_s": identity.not_after.map(unix),
            },
            "discovery": {
                "connected": status.connected,
                "age_s": status.age.as_secs_f64(),
                "addresses": status.addresses,
                "resources": status.resources,
                "connects": status.connects,
                "nacks": status.nacks,
            },
            "services": services,
            "policy": policy.map(|policy| json!({
                "mtls": policy.mtls.as_str(),
                "egress": policy.egress.as_str(),
                "ending": policy.ending,
                "removal": policy.removal.as_str(),
                "ports": listed(&policy),
            })),
        });
        format!("{config:#}\n")
    }
}

fn gauge(name: &'static str, help: &'static str, value: f64) -> Measured {
    Measured { kind: Kind::Gauge, name, labels: "".into(), help, value }
}

fn removal(step: Removal) -> Measured {
    gauge(
        "leno_removal",
        "Step of the mesh's removal: 0 none, 1 plaintext is accepted, 2 plaintext is sent, \
         3 connections are closed.",
        step.number().into(),
    )
}

fn stalls(count: u64) -> Measured {
    Measured {
        kind: Kind::Counter,
        ..gauge(
            "leno_worker_stalls",
            "Times that a thread of the workload's connections did not come round, in this process; in node mode another one took the \
             new ones.",
            count as f64,
        )
    }
}

fn guests(book: Option<&GuestBook>) -> [Measured; 2] {
    let (open, refused) = book.map(GuestBook::counts).unwrap_or_default();
    [
        gauge(
            "leno_guests",
            "Threads of other workloads of this process on which the workload serves what they connect; node mode only.",
            open as f64,
        ),
        Measured {
            kind: Kind::Counter,
            ..gauge(
                "leno_guests_refused",
                "Times that such a thread had no place, so that a connection was served on the workload's own; node mode only.",
                refused as f64,
            )
        },
    ]
}

fn cut(count: u64) -> Measured {
    Measured {
        kind: Kind::Counter,
        ..gauge(
            "leno_finishing_cut",
            "Workloads of this process that another one serves and whose last streams were cut here, since too many finished what \
             they had; node mode only.",
            count as f64,
        )
    }
}

/// The memory that a proxy may use, and the pool that it shares with other workloads of its process.
fn memory(budget: Budget) -> [Measured; 3] {
    let pool = budget.pool();
    [
        gauge(
            "leno_memory_budget_bytes",
            "Memory that buffers and connections may use.",
            budget.bytes() as f64,
        ),
        gauge(
            "leno_memory_pool_bytes",
            "Memory that workloads of a process take turns in, beyond what each has for itself; 0 in a \
             sidecar.",
            pool.map_or(0, Pool::bytes) as f64,
        ),
        gauge(
            "leno_memory_pool_taken_bytes",
            "Memory of that which workloads of the process have taken.",
            pool.map_or(0, Pool::taken) as f64,
        ),
    ]
}

fn fips() -> Measured {
    gauge(
        "leno_tls_fips",
        "Whether TLS is of the FIPS module (--tls-profile fips).",
        f64::from(u8::from(leno_crypto::profile() == TlsProfile::Fips)),
    )
}

/// Metrics about the connection to the control plane.
fn discovery(status: &Status) -> Vec<Measured> {
    let count = |name, help, value: u64| {
        let value = value as f64;
        Measured { kind: Kind::Counter, name, labels: "".into(), help, value }
    };
    vec![
        gauge(
            "leno_discovery_connected",
            "Whether the control plane is connected.",
            f64::from(u8::from(status.connected)),
        ),
        gauge(
            "leno_discovery_age_seconds",
            "Time since the last message of the control plane.",
            status.age.as_secs_f64(),
        ),
        gauge(
            "leno_discovery_addresses",
            "Addresses that the proxy is subscribed to.",
            status.addresses as f64,
        ),
        gauge(
            "leno_discovery_resources",
            "Services and workloads that the proxy has received.",
            status.resources as f64,
        ),
        count("leno_discovery_connects", "Streams opened to the control plane.", status.connects),
        count(
            "leno_discovery_nacks",
            "Responses of the control plane that the proxy rejected.",
            status.nacks,
        ),
        count(
            "leno_discovery_watches_refused",
            "Addresses not subscribed to because the limit on their number was reached.",
            status.refused,
        ),
    ]
}

/// Metrics about open HTTP/2 connections and streams, from clients and to servers.
fn http2(load: &Load) -> Vec<Measured> {
    const SIDES: [&str; 2] = [r#"with="client""#, r#"with="server""#];
    let of = |name, help, value: fn(&Open) -> u64| {
        let values = load.http2.iter().map(value);
        SIDES.into_iter().zip(values).map(move |(labels, value)| Measured {
            labels: labels.into(),
            ..gauge(name, help, value as f64)
        })
    };
    let connections =
        of("leno_http2_connections_open", "HTTP/2 connections open.", |open| open.connections);
    let streams = of("leno_http2_streams_open", "HTTP/2 streams open.", |open| open.streams);
    connections.chain(streams).collect()
}

/// Metrics about names outside of the mesh.
fn names(counts: &Counts) -> Vec<Measured> {
    let resolved = |labels, value: u64| Measured {
        kind: Kind::Counter,
        name: "leno_names_resolved",
        labels: Cow::Borrowed(labels),
        help: "Resolutions of names outside of the mesh, by result.",
        value: value as f64,
    };
    vec![
        gauge(
            "leno_names",
            "Names outside of the mesh that are kept up to date.",
            counts.names as f64,
        ),
        gauge(
            "leno_names_stale",
            "Names whose addresses are out of date because no resolver answers.",
            counts.stale as f64,
        ),
        resolved(r#"result="addresses""#, counts.resolved),
        resolved(r#"result="none""#, counts.absent),
        resolved(r#"result="failed""#, counts.failed),
        resolved(r#"result="refused""#, counts.refused),
    ]
}

/// Metrics about the application's use of the Workload API.
fn workload_api(counts: ApplicationCounts) -> [Measured; 4] {
    let ApplicationCounts { connections, refused, silent, svids } = counts;
    let count = |name, help, value: u64| Measured {
        kind: Kind::Counter,
        ..gauge(name, help, value as f64)
    };
    [
        gauge(
            "leno_workload_api_connections",
            "Open connections of the SPIFFE Workload API.",
            connections as f64,
        ),
        count(
            "leno_workload_api_connections_refused",
            "Connections of the SPIFFE Workload API closed because the limit on their number was reached.",
            refused,
        ),
        count(
            "leno_workload_api_connections_silent",
            "Connections of the SPIFFE Workload API closed because no call came within 10 s.",
            silent,
        ),
        count(
            "leno_workload_api_svids",
            "Certificates of the application that the SPIFFE Workload API has sent.",
            svids,
        ),
    ]
}

/// Metrics about the open taps, and about the requests that they matched.
fn taps(taps: &Taps) -> Vec<Measured> {
    let counted = taps.counted();
    let count = |labels, value: u64| Measured {
        kind: Kind::Counter,
        name: "leno_tap_requests",
        labels: Cow::Borrowed(labels),
        help: "Requests that the filters of taps have matched, by what became of them.",
        value: value as f64,
    };
    vec![
        gauge("leno_taps_open", "Taps of live requests that are open.", taps.len() as f64),
        count(r#"result="queued""#, counted.queued),
        count(r#"result="sampled_out""#, counted.sampled_out),
        count(r#"result="dropped""#, counted.dropped),
        Measured {
            kind: Kind::Counter,
            name: "leno_tap_bodies_not_copied",
            labels: Cow::Borrowed(""),
            help: "Requests of which a tap wanted the bodies, while those of as many others as allowed were copied.",
            value: taps.not_copied() as f64,
        },
    ]
}

/// Metrics about the kubelet's probes.
fn probes(counts: [u64; 3]) -> impl Iterator<Item = Measured> {
    const RESULTS: [&str; 3] = [r#"result="success""#, r#"result="failure""#, r#"result="shared""#];
    RESULTS.into_iter().zip(counts).map(|(labels, value)| Measured {
        kind: Kind::Counter,
        name: "leno_probes",
        labels: Cow::Borrowed(labels),
        help: "Probes of the kubelet that the proxy forwarded to the application, by result.",
        value: value as f64,
    })
}

fn unix(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
