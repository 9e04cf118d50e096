//! Renders snapshots as Prometheus text or OpenMetrics.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};

use leno_requests::Histogram;

use crate::counter::Counter;
use crate::edge::EdgeLabels;
use crate::exemplar::Exemplar;
use crate::native::NativeCounts;
use crate::route::RouteLabels;
use crate::snapshot::{EdgeCounts, Snapshot};

mod compat;

pub(crate) use compat::workload_of;
pub use compat::{MetricsCompat, OwnWorkload};

/// The metrics whose histograms have native buckets, too.
const DURATIONS: &str = "leno_request_duration_seconds";
const ROUTE_DURATIONS: &str = "leno_route_request_duration_seconds";

/// How much longer than the last page the next one may be without growing: its numbers have more digits, or there is
/// another edge.
const SLACK: usize = 4 * 1024;

thread_local! {
    /// The length of the last page that this thread has rendered, in bytes, or that of a small one.
    static LENGTH: Cell<usize> = const { Cell::new(16 * 1024) };
}

/// A value that is measured when the page is rendered.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The kind of metric.
    pub kind: Kind,
    /// The metric's name; for a counter without the suffix `_total`. All values of a metric must be adjacent.
    pub name: &'static str,
    /// The labels, as between the braces of the text format. Empty if there are none.
    pub labels: Cow<'static, str>,
    /// The text of the `# HELP` line.
    pub help: &'static str,
    /// The value.
    pub value: f64,
}

/// The kinds of a [`Measured`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that rises and falls.
    Gauge,
    /// A value that only grows, from zero at the start of the process.
    Counter,
}

/// Renders the Prometheus text format, version 0.0.4, or OpenMetrics 1.0.0 if `open`.
#[must_use]
pub fn render(snapshot: &Snapshot, measured: &[Measured], open: bool) -> String {
    render_compatible(snapshot, measured, open, (MetricsCompat::default(), &OwnWorkload::default()))
}

/// Renders what is measured when the page is requested.
fn all_measured(page: &mut Page, measured: &[Measured]) {
    let mut family = "";
    for Measured { kind, name, labels, help, value } in measured {
        if *name != std::mem::replace(&mut family, name) {
            match kind {
                Kind::Gauge => page.family(name, "gauge", help),
                Kind::Counter => page.counter(name, help),
            }
        }
        let total = if *kind == Kind::Counter { "_total" } else { "" };
        match &**labels {
            "" => page.line(format_args!("{name}{total} {value}")),
            labels => page.line(format_args!("{name}{total}{{{labels}}} {value}")),
        }
    }
}

/// Renders the same metrics, followed by those with the names of other meshes.
#[must_use]
pub fn render_compatible(
    snapshot: &Snapshot,
    measured: &[Measured],
    open: bool,
    (compat, own): (MetricsCompat, &OwnWorkload),
) -> String {
    // The pages of a proxy, and of the workloads of a process, have about the same length. Growing by doubling would take
    // up to three times that, and leave gaps in the heap.
    let mut page = Page { text: String::with_capacity(LENGTH.get().saturating_add(SLACK)), open };
    requests(&mut page, snapshot);
    routes(&mut page, snapshot);
    connections(&mut page, snapshot);
    page.counter("leno_errors", "Requests and connections that the mesh itself failed, by cause.");
    for (labels, counts) in snapshot.shown() {
        for (cause, count) in &counts.answers.errors {
            let cause = format_args!(",cause=\"{cause}\"");
            page.sample("leno_errors_total", labels, cause, count);
        }
    }
    page.family(
        "leno_endpoint_ejected",
        "gauge",
        "Workers of this proxy that eject the endpoint now, by reason.",
    );
    for (labels, counts) in snapshot.shown() {
        for (reason, workers) in &counts.ejected {
            let reason = format_args!(",reason=\"{reason}\"");
            page.sample("leno_endpoint_ejected", labels, reason, workers);
        }
    }
    worker_counters(&mut page, snapshot);
    page.counter(
        "leno_http2_abuse",
        "Times that an HTTP/2 peer reached a limit against abuse, by kind.",
    );
    for (kind, count) in &snapshot.abuses {
        page.line(format_args!("leno_http2_abuse_total{{kind=\"{kind}\"}} {count}"));
    }
    page.counter(
        "leno_tls_passthrough",
        "Connections with TLS of the application, by the host name in the ClientHello (SNI).",
    );
    for ((direction, name), count) in &snapshot.tls_names {
        let (direction, name) = (direction.as_str(), Value(name));
        page.line(format_args!(
            "leno_tls_passthrough_total{{direction=\"{direction}\",server_name=\"{name}\"}} {count}"
        ));
    }
    page.counter(
        "leno_authorization",
        "Requests and opaque connections by what authorization policies decide, and by the policy.",
    );
    for ((decision, policy), count) in &snapshot.authorization {
        let policy = Value(policy);
        page.line(format_args!(
            "leno_authorization_total{{decision=\"{decision}\",policy=\"{policy}\"}} {count}"
        ));
    }
    all_measured(&mut page, measured);
    compat.render(&mut page, own, (snapshot, measured));
    if open {
        page.line(format_args!("# EOF"));
    }
    // Several pages may wait for their readers at the same time.
    page.text.shrink_to_fit();
    LENGTH.set(page.text.len());
    page.text
}

/// The native buckets of all histograms on a page.
#[derive(Debug)]
pub struct NativeHistograms<'a>(HashMap<String, &'a NativeCounts>);

impl<'a> NativeHistograms<'a> {
    /// The native buckets of all edges and rules.
    #[must_use]
    pub fn of(snapshot: &'a Snapshot) -> Self {
        let edges = snapshot
            .shown()
            .map(|(labels, counts)| (format!("{DURATIONS}{{{}}}", Labels(labels)), &counts.native));
        let routes = snapshot.routes.iter().map(|(labels, counts)| {
            (format!("{ROUTE_DURATIONS}{{{}}}", OfRoute(labels)), &counts.native)
        });
        Self(edges.chain(routes).collect())
    }

    /// The native buckets of one histogram, by its labels as the page has them.
    #[must_use]
    pub fn get(&self, family: &str, labels: &str) -> Option<&'a NativeCounts> {
        self.0.get(&format!("{family}{{{labels}}}")).copied()
    }
}

fn requests(page: &mut Page, snapshot: &Snapshot) {
    page.counter("leno_requests", "Requests answered, by status.");
    for (labels, counts) in snapshot.shown() {
        for (status, count) in &counts.answers.statuses {
            let status = format_args!(",status=\"{status}\"");
            page.sample("leno_requests_total", labels, status, count);
        }
    }
    page.counter("leno_grpc_responses", "gRPC calls that ended with a status, by grpc-status.");
    for (labels, counts) in snapshot.shown() {
        for (status, count) in &counts.answers.grpc {
            let status = format_args!(",grpc_status=\"{status}\"");
            page.sample("leno_grpc_responses_total", labels, status, count);
        }
    }
    page.family(DURATIONS, "histogram", "Time from a request's head to the end of its response.");
    for (labels, counts) in snapshot.shown() {
        if counts.durations.count() > 0 {
            let durations = (&counts.durations, &counts.exemplars);
            page.histogram(DURATIONS, &Labels(labels), durations);
        }
    }
}

fn routes(page: &mut Page, snapshot: &Snapshot) {
    let routes = || snapshot.routes.iter().map(|(labels, counts)| (OfRoute(labels), counts));
    page.counter(
        "leno_route_requests",
        "Requests by the rule of a route that they followed, by status.",
    );
    for (labels, counts) in routes() {
        for (status, count) in &counts.answers.statuses {
            page.line(format_args!(
                "leno_route_requests_total{{{labels},status=\"{status}\"}} {count}"
            ));
        }
    }
    page.counter(
        "leno_route_grpc_responses",
        "gRPC calls by the rule of a route that they followed, by grpc-status.",
    );
    for (labels, counts) in routes() {
        for (status, count) in &counts.answers.grpc {
            page.line(format_args!(
                "leno_route_grpc_responses_total{{{labels},grpc_status=\"{status}\"}} {count}"
            ));
        }
    }
    page.counter(
        "leno_route_errors",
        "Requests that the mesh itself failed, by the rule of a route that they followed and by cause.",
    );
    for (labels, counts) in routes() {
        for (cause, count) in &counts.answers.errors {
            page.line(format_args!(
                "leno_route_errors_total{{{labels},cause=\"{cause}\"}} {count}"
            ));
        }
    }
    page.counter(
        "leno_route_retries",
        "Retries of requests, by the rule of a route that they followed.",
    );
    for (labels, counts) in routes().filter(|(_, counts)| counts.retries > 0) {
        page.line(format_args!("leno_route_retries_total{{{labels}}} {}", counts.retries));
    }
    page.family(
        ROUTE_DURATIONS,
        "histogram",
        "Time from a request's head to the end of its response, by the rule of a route that it followed.",
    );
    for (labels, counts) in routes() {
        let durations = (&counts.durations, &BTreeMap::new());
        page.histogram(ROUTE_DURATIONS, &labels, durations);
    }
}

fn connections(page: &mut Page, snapshot: &Snapshot) {
    type Read = fn(&EdgeCounts) -> u64;
    let families: [(&str, &str, Read); 6] = [
        ("leno_tcp_open", "Opaque connections opened.", |edge| edge.tcp_opened),
        ("leno_tcp_close", "Opaque connections ended.", |edge| edge.tcp_closed),
        ("leno_tcp_read_bytes", "Bytes from the client towards the server.", |edge| {
            edge.read_bytes
        }),
        ("leno_tcp_written_bytes", "Bytes from the server towards the client.", |edge| {
            edge.written_bytes
        }),
        ("leno_connect_failures", "Connections to a server that could not be made.", |edge| {
            edge.connect_failures
        }),
        ("leno_retries", "Retries of requests and of connections.", |edge| edge.retries),
    ];
    for (name, help, read) in families {
        page.counter(name, help);
        for (labels, counts) in snapshot.shown() {
            let count = read(counts);
            if count > 0 {
                page.line(format_args!("{name}_total{{{}}} {count}", Labels(labels)));
            }
        }
    }
    page.family("leno_tcp_open_connections", "gauge", "Opaque connections open now.");
    for (labels, counts) in snapshot.shown() {
        if counts.tcp_opened > 0 {
            let open = counts.tcp_opened.saturating_sub(counts.tcp_closed);
            page.line(format_args!("leno_tcp_open_connections{{{}}} {open}", Labels(labels)));
        }
    }
}

fn worker_counters(page: &mut Page, snapshot: &Snapshot) {
    let mut family = "";
    for counter in Counter::ALL {
        if counter.name() != family {
            family = counter.name();
            page.counter(family, counter.help().trim());
        }
        let count = snapshot.counter(*counter);
        match counter.labels() {
            "" => page.line(format_args!("{family}_total {count}")),
            labels => page.line(format_args!("{family}_total{{{labels}}} {count}")),
        }
    }
}

struct Page {
    text: String,
    open: bool,
}

impl Page {
    /// Begins a counter. In OpenMetrics, the family's name does not have the suffix that its samples have.
    fn counter(&mut self, name: &str, help: &str) {
        if self.open {
            self.family(name, "counter", help);
        } else {
            self.family(&format!("{name}_total"), "counter", help);
        }
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn sample(
        &mut self,
        name: &str,
        labels: &EdgeLabels,
        more: fmt::Arguments<'_>,
        value: impl fmt::Display,
    ) {
        self.line(format_args!("{name}{{{}{more}}} {value}", Labels(labels)));
    }

    fn histogram(
        &mut self,
        name: &str,
        labels: &impl fmt::Display,
        (histogram, exemplars): (&Histogram, &BTreeMap<usize, Exemplar>),
    ) {
        for (bucket, (bound, count)) in histogram.cumulated().enumerate() {
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
            let sample = format!("{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
            // Only OpenMetrics has exemplars.
            match exemplars.get(&bucket).filter(|_| self.open) {
                Some(exemplar) => self.line(format_args!("{sample}{exemplar}")),
                None => self.line(format_args!("{sample}")),
            }
        }
        self.line(format_args!("{name}_sum{{{labels}}} {}", histogram.sum_s()));
        self.line(format_args!("{name}_count{{{labels}}} {}", histogram.count()));
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("a string takes every write");
    }
}

/// The labels as text, to be written between the braces.
struct Labels<'a>(&'a EdgeLabels);

/// The labels of a rule of a route, between the braces.
struct OfRoute<'a>(&'a RouteLabels);

/// The escaped value of a label. Names and identities contain no characters that must be escaped, but a single
/// unescaped one would make the whole page unreadable.
struct Value<'a>(&'a str);

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_odd = |c: char| matches!(c, '"' | '\\' | '\n');
        for part in self.0.split_inclusive(is_odd) {
            let plain = part.strip_suffix(is_odd).unwrap_or(part);
            f.write_str(plain)?;
            f.write_str(match part.strip_prefix(plain) {
                Some("\"") => "\\\"",
                Some("\n") => "\\n",
                Some("\\") => "\\\\",
                _ => "",
            })?;
        }
        Ok(())
    }
}

impl fmt::Display for OfRoute<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RouteLabels { service, service_namespace, route, rule } = self.0;
        let (service, namespace) = (Value(service), Value(service_namespace));
        let (route, rule) = (Value(route), Value(rule));
        write!(
            f,
            "service=\"{service}\",service_namespace=\"{namespace}\",route=\"{route}\",rule=\"{rule}\""
        )
    }
}

impl fmt::Display for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EdgeLabels {
            direction,
            client,
            client_namespace,
            client_trust_domain,
            server,
            server_namespace,
            service,
            mtls,
        } = self.0;
        let direction = direction.as_str();
        let (client, client_namespace) = (Value(client), Value(client_namespace));
        let (server, server_namespace) = (Value(server), Value(server_namespace));
        let service = Value(service);
        write!(
            f,
            "direction=\"{direction}\",client=\"{client}\",client_namespace=\"{client_namespace}\",\
             server=\"{server}\",server_namespace=\"{server_namespace}\",service=\"{service}\",\
             mtls=\"{mtls}\""
        )?;
        match &**client_trust_domain {
            "" => Ok(()),
            domain => write!(f, ",client_trust_domain=\"{}\"", Value(domain)),
        }
    }
}

#[cfg(test)]
mod tests;
