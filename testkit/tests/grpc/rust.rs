//! Tests with tonic at both ends (`examples/tonic-peer.rs`).

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::command::{self, Running};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::proxy::{Proxy, Side, free_address};
use leno_testkit::wait;

use crate::{START_LIMIT, may_make_a_mesh};

/// How long all cases may take; each is limited to thirty seconds.
const CALL_LIMIT: Duration = Duration::from_secs(120);
/// The number of lines that the client prints. Fewer mean that it did not run all its cases.
const CASES: usize = 12;

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: grpc}
spec: {command: [\"@BIN@/leno-peer\", idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: server, namespace: grpc, labels: {app: server}}
spec:
  command: [\"@PEER@\", serve, \"10000\"]
  ports: [{name: grpc, port: 10000, appProtocol: grpc}]
";

#[test]
fn one_proxy_changes_no_result() -> Result<()> {
    let server = free_address()?;
    let _running = serve(server)?;
    let direct = call(server)?;
    ensure!(direct.lines().count() == CASES, "{direct}");
    let proxy = Proxy::start(Side::Outbound("grpc"), server)?;
    assert_eq!(call(proxy.address())?, direct);
    Ok(())
}

#[test]
fn a_mesh_changes_no_result() -> Result<()> {
    if !may_make_a_mesh()? {
        return Ok(());
    }
    let server = free_address()?;
    let running = serve(server)?;
    let direct = call(server)?;
    drop(running);
    let peer = peer()?.display().to_string();
    let lab =
        Lab::start(&LabOptions::new(Capture::Ebpf), &MESH.replace("@PEER@", &peer), |_| Ok(()))?;
    let command = [&*peer, "call", "server", "10000"];
    let meshed = lab.explain(wait::until("the server to answer", START_LIMIT, || {
        let output = lab.exec("client", &command)?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(output.status.success().then_some(said))
    }))?;
    assert_eq!(meshed, direct);
    Ok(())
}

const POLICIES: &str = "---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: calls, namespace: t}
spec:
  parentRefs: [{group: \"\", kind: Service, name: web}]
  rules:
  - name: unsteady
    matches: [{method: {service: t.Peer, method: Unsteady}}]
    backendRefs: [{name: web, port: 80}]
  - name: late
    matches: [{method: {service: t.Peer, method: Late}}]
    backendRefs: [{name: web, port: 80}]
  - name: broken
    matches: [{method: {service: t.Peer, method: Join}}]
    backendRefs: [{name: web, port: 80}]
  - backendRefs: [{name: web, port: 80}]
---
apiVersion: leno.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: unsteady, namespace: t}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: GRPCRoute, name: calls, sectionName: unsteady}]
  retries:
    attempts: 5
    on: [UNAVAILABLE]
    nonIdempotent: true
    backoff: 1ms
    budget: {percent: 1000}
---
apiVersion: leno.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: late, namespace: t}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: GRPCRoute, name: calls, sectionName: late}]
  hedging: {delay: 20ms, nonIdempotent: true}
  retries: {on: [connect-failure], budget: {percent: 1000}}
---
apiVersion: leno.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: broken, namespace: t}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: GRPCRoute, name: calls, sectionName: broken}]
  faults: {abort: {status: 503, percent: 100}}
";

/// Each rule of a GRPCRoute has its own policy, which applies to its calls and to no others.
#[test]
fn policies_of_a_grpc_route_hold_for_its_calls() -> Result<()> {
    let (prompt, late) = (free_address()?, free_address()?);
    let _running = [serve_as(prompt, "prompt")?, serve_as(late, "late")?];
    let proxy = Proxy::start_with(|address, admin| {
        let mut documents = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Proxy\nmetadata: {{name: test, namespace: t}}\n\
                 spec:\n  workers: 1\n  admin: \"{admin}\"\n  \
                 outbound: {{listen: \"{address}\", service: \"t/web:80\"}}\n  mtls: disabled\n---\n\
                 apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: t}}\n\
                 spec: {{clusterIP: 10.96.0.10, ports: [{{name: x, port: 80, appProtocol: grpc}}]}}\n"
        );
        for (number, server) in [prompt, late].iter().enumerate() {
            let port = server.port();
            documents += &format!(
                "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
                     metadata: {{name: web-{number}, namespace: t, \
                     labels: {{kubernetes.io/service-name: web}}}}\naddressType: IPv4\n\
                     ports: [{{name: x, port: {port}}}]\nendpoints: [{{addresses: [127.0.0.1]}}]\n"
            );
        }
        documents + POLICIES
    })?;
    for _ in 0..6 {
        let unsteady = one(proxy.address(), "/t.Peer/Unsteady")?;
        ensure!(unsteady.starts_with("Ok "), "retries of UNAVAILABLE: {unsteady}");
        let late = one(proxy.address(), "/t.Peer/Late")?;
        ensure!(late.starts_with("Ok prompt -"), "hedging: {late}");
        let broken = one(proxy.address(), "/t.Peer/Join")?;
        ensure!(broken.starts_with("Unavailable - fault-abort"), "faults: {broken}");
        let other = one(proxy.address(), "/t.Peer/Refuse")?;
        ensure!(other.starts_with("FailedPrecondition "), "no policy: {other}");
    }
    Ok(())
}

/// Makes one call and returns its outcome.
fn one(to: SocketAddr, path: &str) -> Result<String> {
    let (host, port) = (to.ip().to_string(), to.port().to_string());
    command::text(Command::new(peer()?).args(["one", &host, &port, path]), CALL_LIMIT)
}

/// The example program, which cargo builds together with the tests. This test is in the folder `deps`, and the
/// example is in a folder next to it.
fn peer() -> Result<PathBuf> {
    let this = std::env::current_exe()?;
    let build = this.parent().and_then(|deps| deps.parent()).context("a test is in deps")?;
    let peer = build.join("examples/tonic-peer");
    ensure!(
        peer.exists(),
        "{} is not built: cargo build -p leno-testkit --examples",
        peer.display()
    );
    Ok(peer)
}

/// Starts the server and waits until it listens. Dropping the returned value ends the server.
fn serve(address: SocketAddr) -> Result<Running> {
    serve_as(address, "")
}

/// Like [`serve`], with a name that the server reports.
fn serve_as(address: SocketAddr, name: &str) -> Result<Running> {
    let port = address.port().to_string();
    let running = Running::start(Command::new(peer()?).args(["serve", &port, name]))?;
    wait::until("tonic's server to listen", START_LIMIT, || Ok(TcpStream::connect(address).ok()))?;
    Ok(running)
}

/// Runs all cases; returns one line for each.
fn call(server: SocketAddr) -> Result<String> {
    let (host, port) = (server.ip().to_string(), server.port().to_string());
    command::text(Command::new(peer()?).args(["call", &host, &port]), CALL_LIMIT)
}
