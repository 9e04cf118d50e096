//! Tests zones: workloads declare their zones with a label, and services prefer near endpoints.
//!
//! ```text
//!   zone a: here ──► web ──► near (zone a), far (zone b)      counted at the servers
//!   zone b: there ─┘
//! ```

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::wait;

use super::{Case, once};

pub(super) fn cases() -> Vec<Case> {
    vec![once!(near_endpoints_serve_and_far_ones_help)]
}

/// How long a change may take to reach a proxy.
const LIMIT: Duration = Duration::from_secs(90);
/// The number of requests in one measurement.
const REQUESTS: usize = 40;

/// A workload with a zone.
fn workload(name: &str, zone: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Workload\n\
         metadata:\n  name: {name}\n  namespace: lab\n  \
         labels: {{app: {}, topology.kubernetes.io/zone: {zone}}}\n\
         spec: {{{spec}}}\n",
        name.split('-').next().unwrap_or_default()
    )
}

fn server(name: &str, zone: &str, does: &str) -> String {
    let command = format!(
        "command: ['@BIN@/leno-peer', faulty, --listen, '[::]:8080', --tell, '127.0.0.1:8081', --acts, {does}]"
    );
    workload(
        name,
        zone,
        &format!("{command}, ports: [{{name: http, port: 8080, appProtocol: http}}]"),
    )
}

fn service(name: &str, distribution: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: lab}}\n\
         spec:\n  selector: {{app: {name}}}\n  {distribution}\n  \
         ports: [{{name: http, port: 80, targetPort: 8080, appProtocol: http}}]\n\
         ---\napiVersion: leno.dev/v1alpha1\nkind: TrafficPolicy\n\
         metadata: {{name: {name}, namespace: lab}}\nspec:\n  \
         targetRefs: [{{group: '', kind: Service, name: {name}}}]\n  \
         balancing: {{algorithm: RoundRobin, overflow: 2}}\n"
    )
}

/// All documents. `with_near` says whether the near server of `web` is included.
fn documents(distribution: &str, with_near: bool) -> String {
    let idle = "command: ['@BIN@/leno-peer', idle]";
    let near = if with_near { server("web-near", "a", "good") } else { String::new() };
    [
        workload("here", "a", idle),
        workload("there", "b", idle),
        near,
        server("web-far", "b", "good"),
        server("busy-near", "a", "stall"),
        server("busy-far", "b", "good"),
        service("web", distribution),
        service("busy", "trafficDistribution: PreferSameZone"),
    ]
    .concat()
}

/// The number of requests that reached a server.
fn seen(lab: &Lab, server: &str) -> Result<usize> {
    let told = lab.text(server, &["curl", "-sS", "-m", "20", "http://127.0.0.1:8081/"])?;
    Ok(told.lines().filter(|line| !line.is_empty()).count())
}

/// Sends [`REQUESTS`] requests, all of which must succeed. Returns how many reached each server.
fn sends(lab: &Lab, who: &str, servers: [&str; 2]) -> Result<[usize; 2]> {
    let count = || -> Result<[usize; 2]> { Ok([seen(lab, servers[0])?, seen(lab, servers[1])?]) };
    let before = count()?;
    let url = format!("http://web/[1-{REQUESTS}]");
    let curl = ["curl", "-s", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}\\n", &url];
    let said = lab.text(who, &curl)?;
    let good = said.lines().filter(|status| *status == "200").count();
    ensure!(good == REQUESTS, "{good} of {REQUESTS}: {said}");
    let after = count()?;
    Ok([after[0] - before[0], after[1] - before[1]])
}

/// Waits until `is_so` returns true for the numbers of requests at both servers, because a change takes a moment
/// to reach the proxy.
fn shared(lab: &Lab, who: &str, is_so: impl Fn([usize; 2]) -> bool) -> Result<()> {
    let mut last = [0, 0];
    let come = wait::until("the share of the servers", LIMIT, || {
        last = sends(lab, who, ["web-near", "web-far"])?;
        Ok(is_so(last).then_some(()))
    });
    lab.explain(come.with_context(|| format!("near and far of {who}: {last:?}")))
}

fn near_endpoints_serve_and_far_ones_help(capture: Capture) -> Result<()> {
    let close = "trafficDistribution: PreferClose";
    let lab = Lab::start(&LabOptions::new(capture), &documents(close, true), |_| Ok(()))?;
    for who in ["here", "there"] {
        lab.reach(who, "web:80")?;
    }
    shared(&lab, "here", |share| share == [REQUESTS, 0])?;
    shared(&lab, "there", |share| share == [0, REQUESTS])?;
    // Without a preference, all endpoints serve.
    lab.edit(&documents("", true))?;
    shared(&lab, "here", |share| share == [REQUESTS / 2, REQUESTS / 2])?;
    lab.edit(&documents("trafficDistribution: PreferSameZone", true))?;
    shared(&lab, "here", |share| share == [REQUESTS, 0])?;
    lab.explain(busy_ones_are_helped(&lab))?;
    // When the near server is removed, the far zone must serve its requests, and none may fail in the meantime.
    let far = seen(&lab, "web-far")?;
    let load = lab.load("here", &["--url", "http://web/", "--rate", "50", "--duration", "6s"])?;
    lab.edit(&documents("trafficDistribution: PreferSameZone", false))?;
    lab.explain(wait::until("the far zone to serve", LIMIT, || {
        Ok((seen(&lab, "web-far")? > far).then_some(()))
    }))?;
    let report = load.finish()?;
    ensure!(report.errors == 0, "{report:?}");
    ensure!(sends(&lab, "here", ["web-far", "busy-far"])? == [REQUESTS, 0]);
    lab.end()
}

/// Two requests that stay in progress fill the near server. Further requests must go to the far server.
fn busy_ones_are_helped(lab: &Lab) -> Result<()> {
    let asks = ["curl", "-s", "-m", "60", "-o", "/dev/null", "http://busy/"];
    let held = [lab.spawn("here", &asks)?, lab.spawn("here", &asks)?];
    wait::until("the near server to have two", LIMIT, || {
        Ok((seen(lab, "busy-near")? == 2).then_some(()))
    })?;
    ensure!(seen(lab, "busy-far")? == 0, "the far server was asked before the near one was busy");
    // More requests are needed because each worker of the proxy counts only its own.
    let more = (0..8).map(|_| lab.spawn("here", &asks)).collect::<Result<Vec<_>>>()?;
    wait::until(
        "the far server to help",
        LIMIT,
        || Ok((seen(lab, "busy-far")? > 0).then_some(())),
    )?;
    drop((held, more));
    Ok(())
}
