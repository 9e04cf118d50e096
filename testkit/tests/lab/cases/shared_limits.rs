//! Tests rate limits that proxies share. Requests are counted at the servers, with the control plane and without
//! it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess};
use leno_testkit::wait;
use nix::sys::signal::Signal;

use super::{Case, once};

pub(super) fn cases() -> Vec<Case> {
    vec![once!(a_limit_that_proxies_share_holds_for_all_of_them)]
}

/// The limit's requests per second, and its burst.
const RATE: f64 = 60.0;
const BURST: f64 = 10.0;
const SERVERS: [&str; 3] = ["web-0", "web-1", "web-2"];
/// How long it may take until proxies enforce limits on their own, on a busy machine.
const ALONE_LIMIT: Duration = Duration::from_secs(90);

/// Each server gets a third of the requests, which is much more than a third of the limit. Balancing by latency
/// could leave a server with so few requests that it would refuse none.
const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: lab}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab}
spec:
  replicas: 3
  command: ['@BIN@/leno-peer', faulty, --listen, '0.0.0.0:8080', --tell, '127.0.0.1:8081', --acts, good]
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: web, namespace: lab}
spec:
  targetRefs: [{group: '', kind: Service, name: web}]
  balancing: {algorithm: RoundRobin}
---
apiVersion: leno.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: web, namespace: lab}
spec:
  targetRefs: [{group: leno.dev, kind: Workload, name: web}]
  limits: [{requests: 60, burst: 10, scope: Global}]
";

/// The total number of requests that reached the servers.
fn seen(lab: &Lab) -> Result<usize> {
    let mut sum = 0;
    for server in SERVERS {
        let lines = lab.text(server, &["curl", "-sS", "-m", "10", "http://127.0.0.1:8081/"])?;
        sum += lines.lines().count();
    }
    Ok(sum)
}

/// Sends four times as many requests as may pass. Returns how many passed, and the time that this took.
fn load(lab: &Lab, duration: &str) -> Result<(usize, f64)> {
    let before = seen(lab)?;
    let began = Instant::now();
    let url = ["--url", "http://web:8080/", "--rate", "240", "--duration", duration];
    lab.load("client", &url)?.finish()?;
    let took = began.elapsed().as_secs_f64();
    Ok((seen(lab)? - before, took))
}

/// The value of a proxy's metric.
fn number(lab: &Lab, who: &str, name: &str) -> Result<f64> {
    let metrics = lab.metrics(who)?;
    let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    Ok(line.with_context(|| format!("no {name} in {metrics}"))?.parse()?)
}

fn a_limit_that_proxies_share_holds_for_all_of_them(capture: Capture) -> Result<()> {
    let lab = Lab::start(&LabOptions::new(capture), MESH, |_| Ok(()))?;
    lab.reach("client", "web:8080")?;
    lab.explain(together(&lab))?;
    lab.explain(alone(&lab))?;
    lab.end()?;
    let remains = lab.remains()?;
    ensure!(remains.is_empty(), "left behind: {}", remains.join(", "));
    Ok(())
}

fn together(lab: &Lab) -> Result<()> {
    let (passed, took) = load(lab, "8s")?;
    let most = RATE * (took + 1.25) + BURST + 8.0 * SERVERS.len() as f64;
    ensure!(passed as f64 <= most, "{passed} requests passed in {took:.1} s, more than {most:.0}");
    // Proxies that do not share would each let the whole limit pass, which the check above detects. They must not
    // refuse too many requests either.
    ensure!(passed as f64 >= RATE * 8.0 * 0.5, "only {passed} requests passed in {took:.1} s");
    for server in SERVERS {
        let limited = number(lab, server, "leno_rate_limited_total")?;
        ensure!(limited > 0.0, "{server} has refused nothing");
        let lonely = number(lab, server, "leno_rate_limit_alone_total")?;
        println!("{server}: {limited} refused, {lonely} alone");
    }
    println!("{passed} of {:.0} passed in {took:.1} s", RATE * took);
    Ok(())
}

/// Tests without the control plane. While it is stopped, it answers no proxy, and no supervisor restarts it.
fn alone(lab: &Lab) -> Result<()> {
    lab.kill(MeshProcess::Controller, Signal::SIGSTOP)?;
    let outcome = without_control_plane(lab);
    lab.kill(MeshProcess::Controller, Signal::SIGCONT)?;
    outcome
}

fn without_control_plane(lab: &Lab) -> Result<()> {
    wait::until("proxies to go by themselves", ALONE_LIMIT, || {
        load(lab, "1s")?;
        let mut all = true;
        for server in SERVERS {
            all &= number(lab, server, "leno_rate_limit_alone_total")? > 1.0;
        }
        Ok(all.then_some(()))
    })?;
    let (passed, took) = load(lab, "5s")?;
    let most = RATE * (took + 1.25) + BURST + 8.0 * SERVERS.len() as f64;
    ensure!(passed as f64 <= most, "{passed} passed in {took:.1} s without a control plane");
    ensure!(passed as f64 >= RATE * 5.0 * 0.3, "only {passed} passed in {took:.1} s by themselves");
    println!("{passed} of {:.0} passed in {took:.1} s without a control plane", RATE * took);
    Ok(())
}
