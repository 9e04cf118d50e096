//! Compares the kernel's counts of connections with the reports of clients, with proxies in between.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::{binaries, wait};

use super::{Case, alone};

pub(super) fn cases() -> Vec<Case> {
    vec![
        alone!(bytes_and_connections_are_those_of_the_application),
        alone!(bytes_of_tcp_are_those_of_both_applications),
        alone!(requests_of_every_protocol_are_those_of_the_clients_and_of_the_proxies),
    ]
}

/// The number of requests of a client, unless `LENO_PARITY_REQUESTS` is set. There are enough that a lost or
/// repeated sample shows.
const REQUESTS: usize = 3_000;
/// How many requests the load generator sends per second, unless `LENO_PARITY_RATE` is set, and how many seconds
/// one run lasts.
const RATE: usize = 500;
const PART_S: usize = 60;
/// How many bytes a TCP client sends at once and gets back.
const MESSAGE: usize = 100;

/// The number of requests that a client sends.
fn requests() -> usize {
    number("LENO_PARITY_REQUESTS").unwrap_or(REQUESTS)
}

fn number(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.parse().ok()
}

/// How long connections may take to end.
const LIMIT: Duration = Duration::from_secs(90);

const TWO: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: lab}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab}
spec:
  command: ['@BIN@/leno-peer', http, --listen, '[::]:8080']
  ports: [{name: http, port: 8080, appProtocol: http}]
";

const CALLS: &str = "
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: calls, namespace: lab}
spec:
  command: ['@BIN@/examples/tonic-peer', serve, '10000', calls]
  ports: [{name: grpc, port: 10000, appProtocol: grpc}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: streams, namespace: lab}
spec:
  command: [nginx, -c, '@DIR@/streams.conf']
  ports: [{name: http, port: 8081, appProtocol: http}]
";

const ECHO: &str = "
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: echo, namespace: lab}
spec:
  command: ['@BIN@/leno-peer', echo, --listen, '[::]:7000']
  ports: [{name: echo, port: 7000, appProtocol: tcp}]
";

/// The sum of the samples with this name and all these labels.
pub(super) fn metric(lab: &Lab, name: &str, labels: &[&str]) -> Result<u64> {
    sum_of(&page(lab)?, name, labels)
}

/// The metrics of one reading. They are read on the bridge, so that reading them adds no connection of a workload.
fn page(lab: &Lab) -> Result<String> {
    let switch = lab.switch()?;
    let switch = switch.file_name().context("a namespace has a name")?;
    let mut curl = Command::new("ip");
    curl.args(["netns", "exec"]).arg(switch);
    curl.args(["curl", "-sSf", "http://10.89.0.1:15025/metrics"]);
    let output = curl.output()?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

fn sum_of(text: &str, name: &str, labels: &[&str]) -> Result<u64> {
    let mut sum = 0.0;
    for row in text.lines().filter(|row| row.split(['{', ' ']).next() == Some(name)) {
        if labels.iter().all(|label| row.contains(label)) {
            sum += row.rsplit(' ').next().unwrap_or_default().parse::<f64>()?;
        }
    }
    Ok(sum as u64)
}

fn bytes_and_connections_are_those_of_the_application(capture: Capture) -> Result<()> {
    // The kernel cannot count what two workloads of one process exchange in memory, so that is disabled.
    let options = LabOptions { one_pass: false, ..LabOptions::new(capture) };
    let lab = Lab::start(&options, TWO, |_| Ok(()))?;
    let of_client = ["workload=\"client\"", "role=\"client\"", "socket=\"application\""];
    let of = |name: &str, more: &str| metric(&lab, name, &[&of_client[..], &[more]].concat());
    let opened = "leno_flow_connections_opened_total";
    ensure!(of(opened, "")? == 0, "the client has called before");
    // curl prints one line for each request: the bytes sent, the header and body bytes received, and the
    // connections made.
    let shown = "%{size_request} %{size_header} %{size_download} %{num_connects}\\n";
    let url = format!("http://web:8080/[1-{REQUESTS}]");
    let parts = requests().div_ceil(REQUESTS);
    let mut said = String::new();
    for _ in 0..parts {
        said += &lab.text("client", &["curl", "-sSf", "-o", "/dev/null", "-w", shown, &url])?;
    }
    let mut sums = [0_u64; 4];
    for line in said.lines() {
        for (sum, number) in sums.iter_mut().zip(line.split(' ')) {
            *sum += number.parse::<u64>().with_context(|| line.to_owned())?;
        }
    }
    ensure!(said.lines().count() == parts * REQUESTS, "{} answers", said.lines().count());
    let closed = "leno_flow_connections_closed_total";
    lab.explain(wait::until("the connections to end", LIMIT, || {
        Ok((of(closed, "")? == sums[3]).then_some(()))
    }))?;
    let bytes = "leno_flow_bytes_total";
    let counted =
        [of(bytes, "direction=\"sent\"")?, of(bytes, "direction=\"received\"")?, of(opened, "")?];
    let reported = [sums[0], sums[1] + sums[2], sums[3]];
    ensure!(counted == reported, "the kernel counted {counted:?}, curl reported {reported:?}");
    // For the connection between the proxies, both workloads are named.
    let between = ["workload=\"client\"", "peer_workload=\"web\"", "socket=\"proxy\""];
    ensure!(metric(&lab, bytes, &between)? > reported[0], "the proxy's bytes are encrypted");
    ensure!(metric(&lab, "leno_flow_map_overflow_total", &[])? == 0);
    lab.end()
}

/// Sends the desired number of requests in several runs. Returns how many were answered, and how many connections
/// that took.
fn load(lab: &Lab, to: &[&str]) -> Result<(u64, u64)> {
    let rate = number("LENO_PARITY_RATE").unwrap_or(RATE);
    let mut left = requests().div_ceil(rate);
    let mut sent = (0, 0);
    while left > 0 {
        let seconds = left.min(PART_S);
        left -= seconds;
        let (rate, duration) = (rate.to_string(), format!("{seconds}s"));
        let pace = ["--rate", &rate, "--duration", &duration];
        let more = ["--connections", "4", "--timeout", "60s"];
        let report = lab.load("client", &[to, &pace, &more].concat())?.finish()?;
        ensure!(report.errors == 0, "{to:?}: {:?}", report.errors_by_kind);
        sent = (sent.0 + report.requests, sent.1 + report.connections_opened);
    }
    Ok(sent)
}

/// The counts of the connections of an application on a page: bytes sent and received, connections opened and closed.
fn of_application(page: &str, workload: &str, role: &str) -> Result<[u64; 4]> {
    let (workload, role) = (format!("workload=\"{workload}\""), format!("role=\"{role}\""));
    let of = |name: &str, more: &str| {
        sum_of(page, name, &[&workload, &role, "socket=\"application\"", more])
    };
    Ok([
        of("leno_flow_bytes_total", "direction=\"sent\"")?,
        of("leno_flow_bytes_total", "direction=\"received\"")?,
        of("leno_flow_connections_opened_total", "")?,
        of("leno_flow_connections_closed_total", "")?,
    ])
}

/// The proxies relay the bytes, so each application's own connection carries all of them.
fn bytes_of_tcp_are_those_of_both_applications(capture: Capture) -> Result<()> {
    let lab = Lab::start(&LabOptions::new(capture), &format!("{TWO}{ECHO}"), |_| Ok(()))?;
    lab.explain(wait::until("an echo", LIMIT, || {
        Ok(super::node::echoes(&lab, "echo:7000").is_ok().then_some(()))
    }))?;
    let read = || -> Result<[[u64; 4]; 2]> {
        let page = page(&lab)?;
        Ok([of_application(&page, "client", "client")?, of_application(&page, "echo", "server")?])
    };
    // A page may be 200 ms old, and so may lack the echo, which `before` must contain.
    let before = lab.explain(wait::until("the echo to be counted", LIMIT, || {
        let now = read()?;
        let is_whole = |[sent, received, opened, closed]: &[u64; 4]| {
            *sent > 0 && *received > 0 && opened == closed
        };
        Ok(now.iter().all(is_whole).then_some(now))
    }))?;
    let size = MESSAGE.to_string();
    let to = ["--protocol", "tcp", "--url", "http://echo:7000/", "--body-size", &size];
    let (requests, connections) = load(&lab, &to)?;
    let bytes = requests * MESSAGE as u64;
    let expected = [bytes, bytes, connections, connections];
    let counted = || -> Result<[[u64; 4]; 2]> {
        let now = read()?;
        Ok([0, 1].map(|end| [0, 1, 2, 3].map(|nth| now[end][nth] - before[end][nth])))
    };
    lab.explain(wait::until("all connections to end", LIMIT, || {
        Ok((counted()? == [expected; 2]).then_some(()))
    }))
    .with_context(|| format!("{expected:?} at each end, and counted {:?}", counted()))?;
    lab.end()
}

fn requests_of_every_protocol_are_those_of_the_clients_and_of_the_proxies(
    capture: Capture,
) -> Result<()> {
    binaries::require("nginx", "nginx")?;
    let lab = Lab::start(&LabOptions::new(capture), &format!("{TWO}{CALLS}"), |directory| {
        let nginx = super::calls::nginx(&directory.display().to_string(), "streams");
        Ok(std::fs::write(directory.join("streams.conf"), nginx)?)
    })?;
    lab.reach("client", "web:8080")?;
    // A page may be 200 ms old, and so may lack this request, which the first counts must contain.
    lab.explain(wait::until("the first request to be read", LIMIT, || {
        let now = Counts::read(&lab, "web-0")?;
        Ok((now.outbound > 0 && now.inbound > 0).then_some(()))
    }))?;
    let mut all = 0;
    for (protocol, url, server) in [
        ("http1", "http://web:8080/", "web-0"),
        ("http2", "http://streams:8081/", "streams-0"),
        ("grpc", "http://calls:10000/shop.Cart/Add", "calls-0"),
    ] {
        let before = Counts::read(&lab, server)?;
        let (sent, _) = load(&lab, &["--protocol", protocol, "--url", url])?;
        ensure!(sent > 0, "{protocol}: nothing was sent");
        // A proxy drops edges that are idle for long, so each server's counts are read right after its requests.
        let calls = if protocol == "grpc" { sent } else { 0 };
        let expected = Counts { proxy: sent, outbound: sent, inbound: sent, calls };
        let counted = || Ok::<_, anyhow::Error>(Counts::read(&lab, server)?.since(&before));
        lab.explain(wait::until("the requests to be read", LIMIT, || {
            Ok((counted()? == expected).then_some(()))
        }))
        .with_context(|| format!("{protocol}: {expected:?} sent, counted {:?}", counted()))?;
        all += sent;
    }
    // The kernel's counts stay even after the proxies have dropped the edges.
    for direction in ["direction=\"outbound\"", "direction=\"inbound\""] {
        let counted = metric(&lab, "leno_ebpf_requests_total", &[direction])?;
        ensure!(counted >= all, "{direction}: {counted} of {all}");
    }
    lab.end()
}

/// The counts of requests from different sources.
#[derive(Debug, PartialEq)]
struct Counts {
    /// `leno_requests_total` of the client's proxy.
    proxy: u64,
    /// `leno_ebpf_requests_total` in each direction.
    outbound: u64,
    inbound: u64,
    /// Calls that ended with grpc-status 0, according to the client's proxy.
    calls: u64,
}

impl Counts {
    /// The counts for one server.
    fn read(lab: &Lab, server: &str) -> Result<Self> {
        let server = format!("server=\"{server}\"");
        let accounted =
            |direction: &str| metric(lab, "leno_ebpf_requests_total", &[direction, &server]);
        let outbound = "direction=\"outbound\"";
        let ok = [outbound, "grpc_status=\"0\"", &server];
        Ok(Self {
            proxy: sum_of(&lab.metrics("client")?, "leno_requests_total", &[outbound, &server])?,
            outbound: accounted(outbound)?,
            inbound: accounted("direction=\"inbound\"")?,
            calls: metric(lab, "leno_ebpf_grpc_responses_total", &ok)?,
        })
    }

    fn since(self, before: &Self) -> Self {
        Self {
            proxy: self.proxy - before.proxy,
            outbound: self.outbound - before.outbound,
            inbound: self.inbound - before.inbound,
            calls: self.calls - before.calls,
        }
    }
}
