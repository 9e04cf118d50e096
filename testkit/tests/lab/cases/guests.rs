//! Tests servers in the same process as their client. A guest on the client's thread handles the server's side,
//! and the server's policies and limits must still hold.
//!
//! ```text
//! client, guest ──► web (HTTP)      client ──► guest (bytes)      all in one process
//! ```

use std::fs;
use std::time::Instant;

use anyhow::{Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess};
use leno_testkit::peer::Transcript;
use leno_testkit::stopped::StoppedThreads;
use leno_testkit::wait;
use nix::sys::signal::Signal;

use super::fairness::thread;
use super::flows::metric;
use super::node::{GROUP, GUEST, LIMIT, MESH, echoes, gauge, has_nothing_lost, status, stream_to};
use super::{Case, once};

/// A service whose requests reach `web` with a path for which the proxy of `web` panics, but not the client's.
const PANICS: &str = "---
apiVersion: v1
kind: Service
metadata: {name: front, namespace: lab}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080, appProtocol: http}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: front, namespace: lab}
spec:
  parentRefs: [{group: '', kind: Service, name: front}]
  rules:
  - filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: /panic}}}]
    backendRefs: [{name: front, port: 80}]
";

const CLOSED_TOO: &str = "---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: closed-too, namespace: lab}
spec:
  targetRefs: [{group: leno.dev, kind: Workload, name: web}]
  action: Deny
  rules: [{to: [{paths: [{prefix: /late}]}]}]
";

/// A limit that proxies share, in requests a second.
const SHARED_RATE: f64 = 20.0;
const SHARED_LIMIT: &str = "---
apiVersion: leno.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: shared, namespace: lab}
spec:
  targetRefs: [{group: leno.dev, kind: Workload, name: web}]
  limits: [{requests: 20, burst: 1, scope: Global}]
";

/// One more client.
const THIRD: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: third, namespace: lab, annotations: {leno.dev/mode: node, leno.dev/share: node}}
spec: {serviceAccount: third, command: ['@BIN@/leno-peer', idle]}
";

const LIMITED: &str = "---
apiVersion: leno.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: limit, namespace: lab}
spec:
  targetRefs: [{group: leno.dev, kind: Workload, name: web}]
  limits: [{requests: 6, per: 1h}]
";

pub(super) fn cases() -> Vec<Case> {
    vec![
        once!(policies_and_limits_of_a_server_hold_on_the_threads_of_its_clients),
        once!(a_limit_that_proxies_share_holds_for_all_guests_without_a_control_plane),
        once!(a_server_that_leaves_takes_its_guests_with_it),
        once!(a_client_whose_thread_stands_still_holds_up_its_own_requests_alone),
        once!(the_accounts_have_every_request_of_a_client_that_leaves),
        once!(a_panic_of_a_guest_ends_its_request_and_is_counted_by_the_server),
    ]
}

fn start(options: LabOptions, more: &str) -> Result<Lab> {
    let lab = Lab::start(&options, &format!("{MESH}{GUEST}{more}"), |_| Ok(()))?;
    lab.explain(lab.reach("client", "web:8080").and_then(|_| echoes(&lab, "guest:9000")))?;
    Ok(lab)
}

fn options(capture: Capture) -> LabOptions {
    LabOptions { mtls: Some("strict"), one_pass: true, ..LabOptions::new(capture) }
}

/// The status of a request of an instance to `web`.
fn status_for(lab: &Lab, who: &str, path: &str) -> Result<String> {
    let url = format!("http://web:8080{path}");
    lab.text(who, &["curl", "-sS", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", &url])
}

/// All guests together must keep the limit of the server. If each guest had a separate limit, each client could use
/// the whole limit.
fn policies_and_limits_of_a_server_hold_on_the_threads_of_its_clients(
    capture: Capture,
) -> Result<()> {
    let lab = start(options(capture), "")?;
    let outcome = || -> Result<()> {
        for who in ["client", "guest"] {
            ensure!(status_for(&lab, who, "/late")? == "200");
        }
        ensure!(gauge(&lab, "web", "leno_guests")? == 2.0, "not on the threads of its clients");
        lab.edit(&format!("{MESH}{GUEST}{CLOSED_TOO}"))?;
        for who in ["client", "guest"] {
            wait::until("the new policy", LIMIT, || {
                Ok((status_for(&lab, who, "/late")? == "403").then_some(()))
            })?;
        }
        lab.edit(&format!("{MESH}{GUEST}{LIMITED}"))?;
        wait::until("the limit", LIMIT, || {
            let status = status_for(&lab, "client", "/")?;
            ensure!(["200", "429"].contains(&&*status), "{status}");
            Ok((status == "429").then_some(()))
        })?;
        // The first client has used up the limit.
        ensure!(status_for(&lab, "guest", "/")? == "429", "each client has the limit alone");
        ensure!(gauge(&lab, "web", "leno_guests")? == 2.0, "not on the threads of its clients");
        Ok(())
    };
    lab.explain(outcome())
}

/// Regression: each guest let the whole limit pass, like a proxy that shares its limit with no other.
fn a_limit_that_proxies_share_holds_for_all_guests_without_a_control_plane(
    capture: Capture,
) -> Result<()> {
    let lab = start(options(capture), &format!("{THIRD}{SHARED_LIMIT}"))?;
    let outcome = || -> Result<()> {
        for who in ["client", "guest", "third"] {
            wait::until("what the client has to know of the server", LIMIT, || {
                Ok((status_for(&lab, who, "/")? == "200").then_some(()))
            })?;
        }
        lab.kill(MeshProcess::Controller, Signal::SIGSTOP)?;
        let began = Instant::now();
        let url = ["--url", "http://web:8080/", "--rate", "60", "--duration", "20s"];
        let loads = ["client", "guest", "third"].map(|who| lab.load(who, &url));
        let mut passed = 0.0;
        for load in loads {
            let report = load?.finish()?;
            passed += (report.requests - report.errors) as f64;
        }
        let took = began.elapsed().as_secs_f64();
        let most = SHARED_RATE * (took + 1.25) + 16.0;
        ensure!(passed <= most, "{passed} requests passed in {took:.1} s, more than {most:.0}");
        ensure!(passed >= SHARED_RATE * 3.0, "only {passed} requests passed in {took:.1} s");
        ensure!(gauge(&lab, "web", "leno_guests")? == 3.0, "not on the threads of its clients");
        Ok(())
    };
    let outcome = outcome();
    lab.kill(MeshProcess::Controller, Signal::SIGCONT)?;
    lab.explain(outcome)
}

fn a_server_that_leaves_takes_its_guests_with_it(capture: Capture) -> Result<()> {
    let lab = start(options(capture), "")?;
    let outcome = || -> Result<()> {
        let file = |name: &str| lab.directory().join(name);
        let process = lab.pid_of(GROUP)?;
        let stream = stream_to(&lab, "guest:9000", (&file("begun"), &file("go")))?;
        ensure!(gauge(&lab, "guest", "leno_guests")? == 1.0, "not on the thread of its client");
        lab.edit(MESH)?;
        // The open streams of the removed workload may end within a time limit. This stream outlasts it.
        wait::until("the end of its thread", LIMIT, || {
            Ok(thread(process, "w:lab/guest-0").is_err().then_some(()))
        })?;
        fs::write(file("go"), "")?;
        let said: Transcript = serde_json::from_slice(&stream.finish(LIMIT)?.stdout)?;
        ensure!(said.failure().is_some(), "its stream goes on: {said:?}");
        ensure!(status(&lab, "/")? == "200", "a neighbour is not served");
        // When the workload comes back, it is served like any other one.
        lab.edit(&format!("{MESH}{GUEST}"))?;
        wait::until("its next instance", LIMIT, || {
            Ok(echoes(&lab, "guest:9000").is_ok().then_some(()))
        })?;
        ensure!(gauge(&lab, "guest", "leno_guests")? == 1.0, "not on the thread of its client");
        ensure!(lab.pid_of(GROUP)? == process, "the process was started again");
        Ok(())
    };
    lab.explain(outcome())
}

/// The requests of the stopped client, to any server, wait for its thread. Servers and their other clients must
/// not be affected.
fn a_client_whose_thread_stands_still_holds_up_its_own_requests_alone(
    capture: Capture,
) -> Result<()> {
    let lab = start(options(capture), "")?;
    let outcome = || -> Result<()> {
        let file = |name: &str| lab.directory().join(name);
        let process = lab.pid_of(GROUP)?;
        let held = stream_to(&lab, "guest:9000", (&file("begun"), &file("go")))?;
        let stopped = StoppedThreads::of(&[thread(process, "w:lab/client-0")?])?;
        ensure!(status_for(&lab, "guest", "/")? == "200", "another client of the server waits");
        // If a thread does not answer, its counts are those of its last answer.
        ensure!(gauge(&lab, "guest", "leno_guests")? == 1.0);
        wait::until("an answer on the client's next thread", LIMIT, || {
            Ok(status(&lab, "/").is_ok_and(|status| status == "200").then_some(()))
        })?;
        echoes(&lab, "guest:9000")?;
        ensure!(gauge(&lab, "guest", "leno_guests")? == 2.0, "not on the client's next thread");
        for (who, stalls) in [("client", 1.0), ("web", 0.0), ("guest", 0.0)] {
            ensure!(gauge(&lab, who, "leno_worker_stalls_total")? == stalls, "{who}");
        }
        stopped.resume()?;
        fs::write(file("go"), "")?;
        has_nothing_lost(held)?;
        ensure!(lab.pid_of(GROUP)? == process, "the process was started again");
        // The thread that was stopped ends, and so do the guests on it.
        wait::until("the end of the client's former thread", LIMIT, || {
            Ok((gauge(&lab, "guest", "leno_guests")? == 1.0).then_some(()))
        })
    };
    lab.explain(outcome())
}

fn a_panic_of_a_guest_ends_its_request_and_is_counted_by_the_server(
    capture: Capture,
) -> Result<()> {
    let lab = start(LabOptions { panic: Some("request=/panic"), ..options(capture) }, PANICS)?;
    let outcome = || -> Result<()> {
        let file = |name: &str| lab.directory().join(name);
        let process = lab.pid_of(GROUP)?;
        let panics = |who| gauge(&lab, who, "leno_panics_total");
        let before = [panics("web")?, panics("client")?];
        let stream = stream_to(&lab, "guest:9000", (&file("begun"), &file("go")))?;
        let curl =
            ["curl", "-sS", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", "http://front/"];
        let answer = lab.text("client", &curl)?;
        ensure!(answer.starts_with("50"), "{answer}");
        let [web, client] = [panics("web")? - before[0], panics("client")? - before[1]];
        ensure!(web >= 1.0 && client == 0.0, "{web} of the server, {client} of the client");
        ensure!(status(&lab, "/")? == "200", "the server is not served any more");
        ensure!(gauge(&lab, "web", "leno_guests")? == 1.0, "not on the thread of its client");
        fs::write(file("go"), "")?;
        has_nothing_lost(stream)?;
        ensure!(lab.pid_of(GROUP)? == process, "the process was started again");
        Ok(())
    };
    lab.explain(outcome())
}

/// Regression: the aggregator lost what both sides had counted after its last round.
fn the_accounts_have_every_request_of_a_client_that_leaves(capture: Capture) -> Result<()> {
    let lab = start(options(capture), "")?;
    let outcome = || -> Result<()> {
        let of_guest = |direction: &str| {
            let labels = [direction, r#"client="guest"#, r#"server="web"#];
            metric(&lab, "leno_ebpf_requests_total", &labels)
        };
        let load =
            ["--url", "http://web:8080/", "--rate", "50", "--connections", "2", "--duration", "4s"];
        let report = lab.load("guest", &load)?.finish()?;
        ensure!(report.errors == 0, "{report:?}");
        lab.edit(MESH)?;
        for direction in [r#"direction="outbound""#, r#"direction="inbound""#] {
            wait::until("the requests in the accounts", LIMIT, || {
                Ok((of_guest(direction)? == report.requests).then_some(()))
            })?;
        }
        Ok(())
    };
    lab.explain(outcome())
}
