//! Tests with the interop client and server of grpc-go.

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Result, ensure};
use leno_testkit::command::{self, Running};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::proxy::{Proxy, Side, free_address};
use leno_testkit::{tools, wait};

use crate::{START_LIMIT, may_make_a_mesh};

/// How long one case may take; a soak case alone may take a minute.
const CASE_LIMIT: Duration = Duration::from_secs(90);
/// The server's port in the mesh.
const PORT: u16 = 10_000;

/// The cases of grpc-go's client. Missing are those that need cloud credentials, and `pick_first_unary`, for which
/// the server does not report its name.
const CASES: [&str; 18] = [
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
    "rpc_soak",
    "channel_soak",
    "orca_per_rpc",
    "orca_oob",
];

/// The balancer with which the client reads the load that the server reports (ORCA).
const ORCA: &str =
    r#"--service_config_json={"loadBalancingConfig":[{"test_backend_metrics_load_balancer":{}}]}"#;

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
  command: [\"@SERVER@\", -port, \"10000\"]
  ports: [{name: grpc, port: 10000, appProtocol: grpc}]
";

/// Each case, with the output of its client if it failed.
type Verdicts = Vec<(&'static str, Option<String>)>;

#[test]
fn one_proxy_changes_no_result() -> Result<()> {
    let Some(programs) = Programs::install()? else { return Ok(()) };
    let server = free_address()?;
    let _running = programs.serve(server)?;
    let through = |address: SocketAddr| {
        let host = address.ip().to_string();
        cases((&host, address.port()), |arguments| {
            command::run(Command::new(&programs.client).args(arguments), CASE_LIMIT)
        })
    };
    all_pass(&through(server)?)?;
    let proxy = Proxy::start(Side::Outbound("grpc"), server)?;
    all_pass(&through(proxy.address())?)
}

#[test]
fn a_mesh_changes_no_result() -> Result<()> {
    if !may_make_a_mesh()? {
        return Ok(());
    }
    let Some(programs) = Programs::install()? else { return Ok(()) };
    let mesh = MESH.replace("@SERVER@", &programs.server.display().to_string());
    let lab = Lab::start(&LabOptions::new(Capture::Ebpf), &mesh, |_| Ok(()))?;
    let client = programs.client.display().to_string();
    let run = |arguments: &[String]| {
        let arguments = arguments.iter().map(String::as_str);
        let command: Vec<_> = std::iter::once(client.as_str()).chain(arguments).collect();
        lab.exec("client", &command)
    };
    lab.explain(wait::until("the server to answer", START_LIMIT, || {
        let output = run(&arguments(("server", PORT), CASES[0]))?;
        Ok(output.status.success().then_some(()))
    }))?;
    lab.explain(cases(("server", PORT), run).and_then(|verdicts| all_pass(&verdicts)))?;
    for (who, direction) in [("client", "outbound"), ("server", "inbound")] {
        statuses(&lab.metrics(who)?, direction)?;
    }
    Ok(())
}

/// Checks the counted statuses: OK, UNKNOWN from the two cases about statuses, and UNIMPLEMENTED from the two
/// about missing methods.
fn statuses(metrics: &str, direction: &str) -> Result<()> {
    let of = format!("leno_grpc_responses_total{{direction=\"{direction}\"");
    for (status, fewest) in [("0", 20), ("2", 3), ("12", 2)] {
        let status = format!("grpc_status=\"{status}\"");
        let wanted = |line: &&str| line.starts_with(&of) && line.contains(&status);
        let counts = metrics.lines().filter(wanted).map(|line| line.rsplit(' ').next());
        let count: u64 = counts.filter_map(|count| count?.parse::<u64>().ok()).sum();
        ensure!(count >= fewest, "{direction}: {count} of {status} in {metrics}");
    }
    Ok(())
}

/// Runs every case against one server.
fn cases(server: (&str, u16), run: impl Fn(&[String]) -> Result<Output>) -> Result<Verdicts> {
    let mut verdicts = Vec::new();
    for case in CASES {
        let output = run(&arguments(server, case))?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        verdicts.push((case, (!output.status.success()).then_some(said)));
    }
    Ok(verdicts)
}

fn arguments((host, port): (&str, u16), case: &str) -> Vec<String> {
    let mut arguments = vec![
        format!("--server_host={host}"),
        format!("--server_port={port}"),
        format!("--test_case={case}"),
        // A lower limit would measure the machine, not the proxy.
        "--soak_per_iteration_max_acceptable_latency_ms=10000".into(),
        "--soak_overall_timeout_seconds=60".into(),
    ];
    arguments.extend(case.starts_with("orca").then(|| ORCA.into()));
    arguments
}

/// Fails if any case failed. All listed cases pass if the two programs are connected directly.
fn all_pass(verdicts: &Verdicts) -> Result<()> {
    let failed: Vec<_> = verdicts.iter().filter(|(_, said)| said.is_some()).collect();
    ensure!(failed.is_empty(), "{failed:#?}");
    Ok(())
}

/// grpc-go's interop programs.
struct Programs {
    client: PathBuf,
    server: PathBuf,
}

impl Programs {
    /// `None` if the programs cannot be installed; the reason has been printed.
    fn install() -> Result<Option<Self>> {
        let directory = tools::install_or_skip("grpc-interop")?;
        Ok(directory.map(|directory| Programs {
            client: directory.join("client"),
            server: directory.join("server"),
        }))
    }

    /// Starts the server and waits until it listens. Dropping the returned value ends the server.
    fn serve(&self, address: SocketAddr) -> Result<Running> {
        let port = address.port().to_string();
        let running = Running::start(Command::new(&self.server).args(["-port", &port]))?;
        wait::until("the interop server to listen", START_LIMIT, || {
            Ok(TcpStream::connect(address).ok())
        })?;
        Ok(running)
    }
}
