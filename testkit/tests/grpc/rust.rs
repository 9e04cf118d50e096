//! tonic at both ends (`examples/tonic-peer.rs`).

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::command::{self, Running};
use leno_testkit::lab::{Capture, Lab, Options};
use leno_testkit::proxy::{Proxy, Side, free_address};
use leno_testkit::wait;

use crate::{START_LIMIT, may_make_a_mesh};

/// How long all cases may take; each has thirty seconds of its own.
const CALL_LIMIT: Duration = Duration::from_secs(120);
/// Fewer lines mean that the client did not play all its cases.
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
    let lab = Lab::start(&Options::new(Capture::Ebpf), &MESH.replace("@PEER@", &peer), |_| Ok(()))?;
    let command = [&*peer, "call", "server", "10000"];
    let meshed = lab.explain(wait::until("the server to answer", START_LIMIT, || {
        let output = lab.exec("client", &command)?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(output.status.success().then_some(said))
    }))?;
    assert_eq!(meshed, direct);
    Ok(())
}

/// The example, which cargo builds with the tests: `deps/..` is where this test is.
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

/// Starts the server and waits until it listens; it ends with what is returned.
fn serve(address: SocketAddr) -> Result<Running> {
    let running =
        Running::start(Command::new(peer()?).args(["serve", &address.port().to_string()]))?;
    wait::until("tonic's server to listen", START_LIMIT, || Ok(TcpStream::connect(address).ok()))?;
    Ok(running)
}

/// Plays all cases; a line for each.
fn call(server: SocketAddr) -> Result<String> {
    let (host, port) = (server.ip().to_string(), server.port().to_string());
    command::text(Command::new(peer()?).args(["call", &host, &port]), CALL_LIMIT)
}
