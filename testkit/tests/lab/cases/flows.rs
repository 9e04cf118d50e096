//! What the kernel counts of connections, against what clients report, with proxies between.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, Options};
use leno_testkit::{binaries, wait};

use super::{Case, alone};

pub(super) fn cases() -> Vec<Case> {
    vec![
        alone!(bytes_and_connections_are_those_of_the_application),
        alone!(requests_of_every_protocol_are_those_of_the_clients_and_of_the_proxies),
    ]
}

/// Requests of a client unless `LENO_PARITY_REQUESTS` is set: enough that a lost or doubled reading shows.
const REQUESTS: usize = 3_000;
/// What the load generator sends in a second, and for how long at once.
const RATE: usize = 500;
const PART_S: usize = 60;

/// How many requests a client sends.
fn requests() -> usize {
    let wanted = std::env::var("LENO_PARITY_REQUESTS").ok().and_then(|count| count.parse().ok());
    wanted.unwrap_or(REQUESTS)
}

/// How long connections may take to end.
const LIMIT: Duration = Duration::from_secs(30);

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

/// The sum of the rows of this name with all these labels. The bridge reads them, so that reading adds no
/// connection of a workload.
fn metric(lab: &Lab, name: &str, labels: &[&str]) -> Result<u64> {
    let switch = lab.switch()?;
    let switch = switch.file_name().context("a namespace has a name")?;
    let mut curl = Command::new("ip");
    curl.args(["netns", "exec"]).arg(switch);
    curl.args(["curl", "-sSf", "http://10.89.0.1:15025/metrics"]);
    let output = curl.output()?;
    ensure!(output.status.success(), "{output:?}");
    sum_of(&String::from_utf8(output.stdout)?, name, labels)
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
    let lab = Lab::start(&Options::new(capture), TWO, |_| Ok(()))?;
    let of_client = ["workload=\"client\"", "role=\"client\"", "socket=\"application\""];
    let of = |name: &str, more: &str| metric(&lab, name, &[&of_client[..], &[more]].concat());
    let opened = "leno_flow_connections_opened_total";
    ensure!(of(opened, "")? == 0, "the client has called before");
    // One line for each request: bytes sent, header and body received, connections made.
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
    // The leg between the proxies has the names of both workloads.
    let between = ["workload=\"client\"", "peer_workload=\"web\"", "socket=\"proxy\""];
    ensure!(metric(&lab, bytes, &between)? > reported[0], "the proxy's bytes are encrypted");
    ensure!(metric(&lab, "leno_flow_map_overflow_total", &[])? == 0);
    lab.end()
}

fn requests_of_every_protocol_are_those_of_the_clients_and_of_the_proxies(
    capture: Capture,
) -> Result<()> {
    binaries::require("nginx", "nginx")?;
    let lab = Lab::start(&Options::new(capture), &format!("{TWO}{CALLS}"), |directory| {
        let nginx = super::calls::nginx(&directory.display().to_string(), "streams");
        Ok(std::fs::write(directory.join("streams.conf"), nginx)?)
    })?;
    lab.reach("client", "web:8080")?;
    let before = Counts::read(&lab)?;
    let mut sent = [0, 0];
    for (protocol, url, server) in [
        ("http1", "http://web:8080/", 0),
        ("http2", "http://streams:8081/", 0),
        ("grpc", "http://calls:10000/shop.Cart/Add", 1),
    ] {
        let mut left = requests().div_ceil(RATE);
        while left > 0 {
            let seconds = left.min(PART_S);
            left -= seconds;
            let (rate, duration) = (RATE.to_string(), format!("{seconds}s"));
            let load = ["--protocol", protocol, "--url", url, "--rate", &rate];
            let more = ["--duration", &duration, "--connections", "4", "--timeout", "60s"];
            let report = lab.load("client", &[load, more].concat())?.finish()?;
            ensure!(report.errors == 0, "{protocol}: {:?}", report.errors_by_kind);
            sent[server] += report.requests;
        }
    }
    let [web, calls] = sent;
    ensure!(calls > 0 && web > 0, "{sent:?}");
    // The proxy of the client, and what is accounted for of both proxies.
    let expected =
        Counts { proxy: web + calls, outbound: web + calls, inbound: web + calls, calls };
    let counted = || Ok::<_, anyhow::Error>(Counts::read(&lab)?.since(&before));
    lab.explain(wait::until("the requests to be read", LIMIT, || {
        Ok((counted()? == expected).then_some(()))
    }))
    .with_context(|| format!("{expected:?} were sent, and counted {:?}", counted()))?;
    lab.end()
}

/// How many requests were counted, by what counts.
#[derive(Debug, PartialEq)]
struct Counts {
    /// `leno_requests_total` of the client's proxy.
    proxy: u64,
    /// `leno_ebpf_requests_total` in either direction.
    outbound: u64,
    inbound: u64,
    /// Those that ended with grpc-status 0, of the client's proxy.
    calls: u64,
}

impl Counts {
    fn read(lab: &Lab) -> Result<Self> {
        let accounted = |direction: &str| metric(lab, "leno_ebpf_requests_total", &[direction]);
        let outbound = "direction=\"outbound\"";
        let ok = [outbound, "grpc_status=\"0\""];
        Ok(Self {
            proxy: sum_of(&lab.metrics("client")?, "leno_requests_total", &[outbound])?,
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
