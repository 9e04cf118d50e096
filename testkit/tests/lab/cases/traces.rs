//! Tests traces and access logs in a real collector: two proxies for each hop send spans and records, and
//! applications in between forward the trace headers.
//!
//! ```text
//! web ──► a (nginx) ──► b (nginx) ──► c (nginx) ──► d (HTTP)
//!  └───────┴─────────────┴─────────────┴─────────────┴──► collector (OpenTelemetry's receiver), in the mesh
//! ```

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::{binaries, tools, wait};
use serde_json::Value;

use super::{Case, once};

const LIMIT: Duration = Duration::from_secs(60);
/// The number of spans of a request from `web` to `d`: a client's and a server's for each hop.
const SPANS: usize = 8;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab}
spec: {serviceAccount: web, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: collector, namespace: lab, labels: {app: collector}}
spec:
  serviceAccount: collector
  command: ['@COLLECTOR@', '0.0.0.0:4317', '0.0.0.0:4318', '@DIR@/spans']
  ports: [{name: grpc, port: 4317, appProtocol: grpc}, {name: http, port: 4318, appProtocol: http}]
---
apiVersion: v1
kind: Service
metadata: {name: collector, namespace: lab}
spec:
  selector: {app: collector}
  ports: [{name: grpc, port: 4317, appProtocol: grpc}, {name: http, port: 4318, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: d, namespace: lab, labels: {app: d}}
spec:
  serviceAccount: d
  command: ['@BIN@/leno-peer', http, --listen, '0.0.0.0:8080']
  ports: [{name: http, port: 8080, appProtocol: http}]
";

pub(super) fn cases() -> Vec<Case> {
    vec![
        once!(a_request_over_four_hops_is_one_tree_in_a_collector),
        once!(failed_requests_have_spans_in_a_collector_over_http),
        once!(the_access_log_is_in_the_collector_of_traces),
    ]
}

fn start(capture: Capture, traces: &'static str, log: Option<&'static str>) -> Result<Lab> {
    binaries::require("nginx", "nginx")?;
    let collector = tools::install("collector")?.join("collector");
    let passing = ["a", "b", "c"].map(|name| {
        format!(
            "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {{name: {name}, namespace: lab, labels: {{app: {name}}}}}
spec:
  serviceAccount: {name}
  command: [nginx, -e, stderr, -c, '@DIR@/{name}.conf']
  ports: [{{name: http, port: 8080, appProtocol: http}}]
"
        )
    });
    let services = ["a", "b", "c", "d"].map(|name| {
        format!(
            "---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: lab}}
spec: {{selector: {{app: {name}}}, ports: [{{name: http, port: 80, targetPort: http, appProtocol: http}}]}}
"
        )
    });
    let mesh = format!("{MESH}{}{}", passing.concat(), services.concat());
    let mesh = mesh.replace("@COLLECTOR@", &collector.display().to_string());
    let options = LabOptions { traces: Some(traces), access_log: log, ..LabOptions::new(capture) };
    Lab::start(&options, &mesh, prepare)
}

/// Writes the configurations of web servers that forward requests with their headers.
fn prepare(directory: &Path) -> Result<()> {
    let place = directory.display();
    for (name, next) in [("a", "b"), ("b", "c"), ("c", "d")] {
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("  {kind}_temp_path {place}/{name}-{kind};\n"))
            .concat();
        let configuration = format!(
            "daemon off; master_process off; user root; pid {place}/{name}.pid;\n\
             error_log stderr error;\nevents {{ worker_connections 64; }}\n\
             http {{\n  access_log off;\n{temporary}  \
             server {{ listen 0.0.0.0:8080;\n    \
             location / {{ proxy_http_version 1.1; proxy_pass http://{next}.lab; }} }}\n}}\n"
        );
        fs::write(directory.join(format!("{name}.conf")), configuration)?;
    }
    Ok(())
}

/// A span in the form in which the collector received it.
#[derive(Debug)]
struct Span {
    trace: String,
    id: String,
    parent: String,
    kind: u64,
    service: String,
    attributes: HashMap<String, String>,
    is_error: bool,
}

impl Span {
    fn is(&self, key: &str, value: &str) -> bool {
        self.attributes.get(key).is_some_and(|own| own == value)
    }
}

fn attributes(list: &Value) -> HashMap<String, String> {
    let one = |pair: &Value| {
        let value = pair["value"].as_object().and_then(|value| value.values().next());
        let value = match value {
            Some(Value::String(text)) => text.clone(),
            other => other.map(ToString::to_string).unwrap_or_default(),
        };
        (pair["key"].as_str().unwrap_or_default().to_owned(), value)
    };
    list.as_array().into_iter().flatten().map(one).collect()
}

/// Reads what the collector has written so far. `levels` contains the names of the three nested lists. The last
/// line may be incomplete.
fn for_each(lab: &Lab, levels: (&str, &str, &str), mut read: impl FnMut(&str, &Value)) {
    let text = fs::read_to_string(lab.directory().join("spans")).unwrap_or_default();
    let lists = |of: &Value, name: &str| of[name].as_array().cloned().unwrap_or_default();
    for line in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        for of_resource in lists(&line, levels.0) {
            let mut resource = attributes(&of_resource["resource"]["attributes"]);
            let service = resource.remove("service.name").unwrap_or_default();
            for scope in lists(&of_resource, levels.1) {
                lists(&scope, levels.2).iter().for_each(|one| read(&service, one));
            }
        }
    }
}

/// All spans that the collector has received so far.
fn received(lab: &Lab) -> Vec<Span> {
    let mut spans = Vec::new();
    for_each(lab, ("resourceSpans", "scopeSpans", "spans"), |service, span| {
        let text = |name: &str| span[name].as_str().unwrap_or_default().to_owned();
        spans.push(Span {
            trace: text("traceId"),
            id: text("spanId"),
            parent: text("parentSpanId"),
            kind: span["kind"].as_u64().unwrap_or_default(),
            service: service.to_owned(),
            attributes: attributes(&span["attributes"]),
            is_error: span["status"]["code"] == 2,
        });
    });
    spans
}

/// The spans of requests with this query, once there are `count` of them.
fn of_query(lab: &Lab, query: &str, count: usize) -> Result<Vec<Span>> {
    let mut last = Vec::new();
    let found = wait::until("the spans", LIMIT, || {
        last = received(lab).into_iter().filter(|span| span.is("url.query", query)).collect();
        Ok((last.len() >= count).then_some(()))
    });
    found.with_context(|| format!("{count} spans of {query} are expected: {last:#?}"))?;
    ensure!(last.len() == count, "{count} spans of {query} are expected: {last:#?}");
    Ok(last)
}

/// The spans from the first to the last. Each must be the only child of its predecessor.
fn chain(spans: Vec<Span>, first_parent: &str) -> Result<Vec<Span>> {
    let mut by_parent: HashMap<String, Span> = HashMap::new();
    let count = spans.len();
    for span in spans {
        if let Some(other) = by_parent.insert(span.parent.clone(), span) {
            anyhow::bail!("two spans have the parent of {other:#?}");
        }
    }
    let mut chain = Vec::new();
    let mut next = first_parent.to_owned();
    while let Some(span) = by_parent.remove(&next) {
        next = span.id.clone();
        chain.push(span);
    }
    ensure!(chain.len() == count, "{chain:#?} are the first, and {by_parent:#?} are not below");
    Ok(chain)
}

/// Checks that each hop has two spans in one trace, from the right proxies and of the right kinds.
fn is_tree(spans: Vec<Span>, (trace, parent): (Option<&str>, &str)) -> Result<()> {
    const SERVER: u64 = 2;
    const CLIENT: u64 = 3;
    let chain = chain(spans, parent)?;
    let wanted = [
        ("web", CLIENT),
        ("a", SERVER),
        ("a", CLIENT),
        ("b", SERVER),
        ("b", CLIENT),
        ("c", SERVER),
        ("c", CLIENT),
        ("d", SERVER),
    ];
    let made: Vec<(&str, u64)> = chain.iter().map(|span| (&*span.service, span.kind)).collect();
    ensure!(made == wanted, "{chain:#?}");
    let trace = trace.unwrap_or(&chain[0].trace);
    for span in &chain {
        ensure!(span.trace == trace && !span.is_error, "{span:#?}");
        for (key, value) in [
            ("http.request.method", "GET"),
            ("http.response.status_code", "200"),
            ("leno.mtls", "true"),
        ] {
            ensure!(span.is(key, value), "{key} is not {value}: {span:#?}");
        }
        let identity = span.attributes.get("leno.client.identity");
        let of_client = span.kind == SERVER;
        ensure!(identity.is_some() == of_client, "the peer's identity: {span:#?}");
    }
    Ok(())
}

fn ask(lab: &Lab, more: &[&str]) -> Result<Value> {
    let curl = ["curl", "-sS", "-m", "10", "--fail-with-body"];
    let said = lab.text("web", &[&curl[..], more].concat())?;
    serde_json::from_str(&said).with_context(|| format!("{more:?}: {said:?}"))
}

fn a_request_over_four_hops_is_one_tree_in_a_collector(capture: Capture) -> Result<()> {
    let lab = start(capture, "lab/collector:4317,sampling=100%", None)?;
    let cases = || -> Result<()> {
        // Here the first proxy begins the trace.
        ask(&lab, &["http://a.lab/seen?new&token=hidden-value"])?;
        let spans = of_query(&lab, "new&token=(masked)", SPANS)?;
        ensure!(spans.iter().all(|span| span.is("url.path", "/seen")), "{spans:#?}");
        is_tree(spans, (None, ""))?;

        // Here the application begins the trace, in each format. The trace must keep its format.
        let parent = format!("traceparent: 00-{TRACE}-{PARENT}-01");
        let state = ["-H", "tracestate: vendor=value"];
        let seen =
            ask(&lab, &[&["-H", &*parent][..], &state, &["http://a.lab/seen?w3c"]].concat())?;
        is_tree(of_query(&lab, "w3c", SPANS)?, (Some(TRACE), PARENT))?;
        let headers = seen["headers"].to_string();
        ensure!(headers.contains("vendor=value") && !headers.contains("\"b3\""), "{headers}");

        let single = format!("b3: {TRACE}-{PARENT}-1");
        let seen = ask(&lab, &["-H", &single, "http://a.lab/seen?b3"])?;
        is_tree(of_query(&lab, "b3", SPANS)?, (Some(TRACE), PARENT))?;
        let headers = seen["headers"].to_string();
        ensure!(headers.contains(&format!("{TRACE}-")) && !headers.contains(PARENT), "{headers}");

        let several = [
            format!("X-B3-TraceId: {TRACE}"),
            format!("X-B3-SpanId: {PARENT}"),
            "X-B3-Sampled: 1".to_owned(),
        ];
        let several: Vec<&str> = several.iter().flat_map(|line| ["-H", line]).collect();
        ask(&lab, &[&several[..], &["http://a.lab/seen?parts"]].concat())?;
        is_tree(of_query(&lab, "parts", SPANS)?, (Some(TRACE), PARENT))?;

        // A parent that is not sampled is forwarded unchanged, and has no spans. The spans of the next trace
        // follow.
        let parent = format!("traceparent: 00-{TRACE}-{PARENT}-00");
        let seen = ask(&lab, &["-H", &parent, "http://a.lab/seen?unsampled"])?;
        ensure!(seen["headers"].to_string().contains(&format!("00-{TRACE}-{PARENT}-00")), "{seen}");
        ask(&lab, &["http://a.lab/seen?last"])?;
        is_tree(of_query(&lab, "last", SPANS)?, (None, ""))?;
        let all = received(&lab);
        let is_own = |span: &&Span| {
            span.is("url.query", "unsampled")
                || span.attributes.get("url.path").is_some_and(|path| path.contains("TraceService"))
        };
        ensure!(!all.iter().any(|span| is_own(&span)), "{all:#?}");
        wait::until("the count of exported spans, two for each of five requests", LIMIT, || {
            let counted = "leno_trace_spans_total{result=\"exported\"} 10\n";
            Ok(lab.metrics("a")?.contains(counted).then_some(()))
        })
    };
    lab.explain(cases())
}

fn failed_requests_have_spans_in_a_collector_over_http(capture: Capture) -> Result<()> {
    let traces = "lab/collector:4318,protocol=http,sampling=0%,errors";
    let lab = start(capture, traces, Some("otlp:status,target,error"))?;
    let cases = || -> Result<()> {
        ask(&lab, &["http://a.lab/seen?good"])?;
        let failed = ["curl", "-sS", "-m", "10", "-o", "/dev/null", "http://a.lab/seen?status=503"];
        lab.text("web", &failed)?;
        let spans = of_query(&lab, "status=503", SPANS)?;
        ensure!(
            spans.iter().all(|span| span.is_error && span.is("error.type", "503")),
            "{spans:#?}"
        );
        let chain = chain(spans, "")?;
        ensure!(chain.len() == SPANS, "{chain:#?}");
        let all = received(&lab);
        ensure!(!all.iter().any(|span| span.is("url.query", "good")), "{all:#?}");
        // Log records arrive in the same way, and for all requests.
        let bad = records_of(&lab, ("leno.target", "/seen?status=503"), SPANS)?;
        ensure!(bad.iter().all(|record| record.severity == "ERROR"), "{bad:#?}");
        let good = records_of(&lab, ("leno.target", "/seen?good"), SPANS)?;
        ensure!(good.iter().all(|record| record.severity == "INFO"), "{good:#?}");
        Ok(())
    };
    lab.explain(cases())
}

/// A record of the access log in the form in which the collector received it.
#[derive(Debug)]
struct Record {
    trace: String,
    span: String,
    severity: String,
    event: String,
    service: String,
    attributes: HashMap<String, String>,
}

/// All records that the collector has received so far.
fn records(lab: &Lab) -> Vec<Record> {
    let mut records = Vec::new();
    for_each(lab, ("resourceLogs", "scopeLogs", "logRecords"), |service, record| {
        let text = |name: &str| record[name].as_str().unwrap_or_default().to_owned();
        records.push(Record {
            trace: text("traceId"),
            span: text("spanId"),
            severity: text("severityText"),
            event: text("eventName"),
            service: service.to_owned(),
            attributes: attributes(&record["attributes"]),
        });
    });
    records
}

/// The records with this attribute, once there are `count` of them.
fn records_of(lab: &Lab, (key, value): (&str, &str), count: usize) -> Result<Vec<Record>> {
    let is_it = |record: &Record| record.attributes.get(key).is_some_and(|own| own == value);
    let mut last = Vec::new();
    let found = wait::until("the records", LIMIT, || {
        last = records(lab).into_iter().filter(is_it).collect();
        Ok((last.len() >= count).then_some(()))
    });
    found.with_context(|| format!("{count} records of {value} are expected: {last:#?}"))?;
    ensure!(last.len() == count, "{count} records of {value} are expected: {last:#?}");
    Ok(last)
}

fn the_access_log_is_in_the_collector_of_traces(capture: Capture) -> Result<()> {
    let fields = "otlp:direction,client,server,method,path,status,mtls,agent=header(user-agent),\
                  header(authorization),retries,client_identity,server_identity,client_proxy_us";
    let lab = start(capture, "lab/collector:4317,sampling=100%", Some(fields))?;
    let cases = || -> Result<()> {
        let secret = ["-H", "Authorization: Bearer hidden", "-A", "tester"];
        ask(&lab, &[&secret[..], &["http://a.lab/seen?log"]].concat())?;
        let spans = of_query(&lab, "log", SPANS)?;
        let logged = records_of(&lab, ("url.path", "/seen"), SPANS)?;
        // Each record belongs to the same trace as the span of the same proxy and direction.
        let of_spans = spans.iter().map(|span| {
            let direction = if span.kind == 2 { "inbound" } else { "outbound" };
            (&*span.service, direction, &*span.trace, &*span.id)
        });
        let of_records = logged.iter().map(|one| {
            let direction = one.attributes.get("leno.direction").map_or("", String::as_str);
            (&*one.service, direction, &*one.trace, &*one.span)
        });
        let (of_spans, of_records): (HashSet<_>, HashSet<_>) =
            (of_spans.collect(), of_records.collect());
        ensure!(of_spans == of_records, "{spans:#?}\n{logged:#?}");
        for record in &logged {
            for (key, value) in [
                ("http.request.method", "GET"),
                ("http.response.status_code", "200"),
                ("leno.mtls", "true"),
                ("http.request.header.authorization", "(masked)"),
                ("http.request.resend_count", "0"),
            ] {
                let own = record.attributes.get(key);
                ensure!(own.is_some_and(|own| own == value), "{key} is not {value}: {record:#?}");
            }
            let is_outbound =
                record.attributes.get("leno.direction").is_some_and(|own| own == "outbound");
            let has = |key: &str| record.attributes.contains_key(key);
            ensure!(has("leno.client.identity") != is_outbound, "{record:#?}");
            ensure!(has("leno.server.identity") == is_outbound, "{record:#?}");
            ensure!(has("leno.client_proxy_us") == is_outbound, "{record:#?}");
            ensure!(record.severity == "INFO" && record.event == "leno.request", "{record:#?}");
        }
        let of_web = logged.iter().find(|record| record.service == "web").context("web")?;
        ensure!(
            of_web.attributes.get("agent").is_some_and(|agent| agent == "tester"),
            "{of_web:#?}"
        );
        // Exports of log records are not logged themselves. Exports of spans are logged, but no further ones
        // happen when no request has a span.
        let own = |record: &Record| {
            record.attributes.get("url.path").is_some_and(|path| path.contains("LogsService"))
        };
        // By now, records have been exported more than once. If exports of log records were logged, each export
        // would cause the next one.
        ask(&lab, &["http://a.lab/seen?again"])?;
        records_of(&lab, ("url.path", "/seen"), 2 * SPANS)?;
        ensure!(!records(&lab).iter().any(own), "{:#?}", records(&lab));
        let page = lab.metrics("a")?;
        for wanted in [
            "leno_access_log_records_total{result=\"failed\"} 0\n",
            "leno_access_log_records_total{result=\"dropped\"} 0\n",
        ] {
            ensure!(page.contains(wanted), "{wanted} is not in {page}");
        }
        ensure!(!page.contains("leno_access_log_records_total{result=\"exported\"} 0\n"), "{page}");
        Ok(())
    };
    lab.explain(cases())
}
