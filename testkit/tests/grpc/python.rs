//! Tests with Python's grpcio at both ends (`peer.py`).

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use leno_testkit::command::{self, Running};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::proxy::{Proxy, Side, free_address};
use leno_testkit::{tools, wait};

use crate::{START_LIMIT, may_make_a_mesh};

/// How long all cases may take; each is limited to thirty seconds.
const CALL_LIMIT: Duration = Duration::from_secs(120);
/// The number of lines that the client prints. Fewer mean that it did not run all its cases.
const CASES: usize = 14;

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
  command: [python3, \"@PEER@\", serve, \"10000\"]
  env: {PYTHONPATH: \"@PATH@\"}
  ports: [{name: grpc, port: 10000, appProtocol: grpc}]
";

#[test]
fn one_proxy_changes_no_result() -> Result<()> {
    let Some(python) = Python::install()? else { return Ok(()) };
    let server = free_address()?;
    let _running = python.serve(server)?;
    let direct = python.call(server)?;
    ensure!(direct.lines().count() == CASES, "{direct}");
    let proxy = Proxy::start(Side::Outbound("grpc"), server)?;
    assert_eq!(python.call(proxy.address())?, direct);
    Ok(())
}

#[test]
fn a_mesh_changes_no_result() -> Result<()> {
    if !may_make_a_mesh()? {
        return Ok(());
    }
    let Some(python) = Python::install()? else { return Ok(()) };
    let server = free_address()?;
    let running = python.serve(server)?;
    let direct = python.call(server)?;
    drop(running);
    let (peer, path) = (python.peer.display().to_string(), python.path.display().to_string());
    let mesh = MESH.replace("@PEER@", &peer).replace("@PATH@", &path);
    let lab = Lab::start(&LabOptions::new(Capture::Ebpf), &mesh, |_| Ok(()))?;
    let path = format!("PYTHONPATH={path}");
    let call = ["env", &path, "python3", &peer, "call", "server", "10000"];
    // The client itself waits until the server listens.
    let meshed = lab.explain(lab.text("client", &call))?;
    assert_eq!(meshed, direct);
    Ok(())
}

/// The script, and the path of its library.
struct Python {
    peer: PathBuf,
    path: PathBuf,
}

impl Python {
    /// `None` if the library cannot be installed; the reason has been printed.
    fn install() -> Result<Option<Self>> {
        let peer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/grpc/peer.py");
        Ok(tools::install_or_skip("grpcio")?.map(|path| Python { peer, path }))
    }

    fn command(&self) -> Command {
        let mut command = Command::new("python3");
        command.arg(&self.peer).env("PYTHONPATH", &self.path);
        command
    }

    /// Starts the server and waits until it listens. Dropping the returned value ends the server.
    fn serve(&self, address: SocketAddr) -> Result<Running> {
        let running = Running::start(self.command().args(["serve", &address.port().to_string()]))?;
        wait::until("Python's server to listen", START_LIMIT, || {
            Ok(TcpStream::connect(address).ok())
        })?;
        Ok(running)
    }

    /// Runs all cases; returns one line for each.
    fn call(&self, server: SocketAddr) -> Result<String> {
        let (host, port) = (server.ip().to_string(), server.port().to_string());
        command::text(self.command().args(["call", &host, &port]), CALL_LIMIT)
    }
}
