//! What the kernel counts of connections, against what clients report, with proxies between.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, Options};
use leno_testkit::wait;

use super::{Case, alone};

pub(super) fn cases() -> Vec<Case> {
    vec![alone!(bytes_and_connections_are_those_of_the_application)]
}

/// Requests of the client, enough that a lost or doubled reading shows.
const REQUESTS: usize = 3_000;

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
    let text = String::from_utf8(output.stdout)?;
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
    let said = lab.text("client", &["curl", "-sSf", "-o", "/dev/null", "-w", shown, &url])?;
    let mut sums = [0_u64; 4];
    for line in said.lines() {
        for (sum, number) in sums.iter_mut().zip(line.split(' ')) {
            *sum += number.parse::<u64>().with_context(|| line.to_owned())?;
        }
    }
    ensure!(said.lines().count() == REQUESTS, "{} answers", said.lines().count());
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
