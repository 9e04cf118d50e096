//! Tests widely used clients and servers through a mesh: Debian's curl, wrk, nghttp and h2load, Python's
//! websockets, Node's ws, and Node's own HTTP in both versions. Needs root.
//!
//! ```text
//!   client ═══► web          nginx, HTTP/1.1 and HTTP/2 with prior knowledge
//!          ═══► websockets   Python (`websocket.py`)
//!          ═══► ws           Node (`ws.js`)
//!          ═══► connect      Node (`connect.js`): extended CONNECT
//!          ═══► upgrade      Node (`upgrade.js`): upgrades of HTTP/1.1 by requests of every kind
//!          ═══► departed     Node (`departed.js`): clients that leave while the server works
//!   plain  ───► all scripts  from a client without a proxy: HTTP/1 stays HTTP/1
//! ```
//!
//! Between the client's proxy and the server's (`═══`) is mTLS, and requests of HTTP/1 are streams of HTTP/2.

mod mixture;

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use leno_testkit::command::{self, Running};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::proxy::free_address;
use leno_testkit::{binaries, tools, wait};

/// How long a server may take to listen.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long all cases of a script may take; each wait in it is limited to thirty seconds.
const CALL_LIMIT: Duration = Duration::from_secs(120);

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: clients}
spec: {command: [\"@BIN@/leno-peer\", idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: clients, labels: {leno.dev/inject: disabled}}
spec: {command: [\"@BIN@/leno-peer\", idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: clients, labels: {app: web}}
spec:
  command: [nginx, -e, stderr, -c, \"@DIR@/nginx.conf\"]
  ports:
    - {name: http, port: 8080, appProtocol: http}
    - {name: h2, port: 8081, appProtocol: kubernetes.io/h2c}
";

const SCRIPTED: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: @NAME@, namespace: clients, labels: {app: @NAME@}}
spec:
  command: [@PROGRAM@, \"@SCRIPT@\", serve, \"9000\"]
  env: {@VARIABLE@: \"@PATH@\"}
  ports: [{name: it, port: 9000, appProtocol: @PROTOCOL@}]
";

/// A script that is both server and client: its tool, its interpreter, the environment variable through which the
/// interpreter finds the tool, and the number of its cases.
struct Library {
    name: &'static str,
    /// `None` if the interpreter has everything that the script needs.
    tool: Option<&'static str>,
    program: &'static str,
    script: &'static str,
    variable: &'static str,
    /// The path below the tool's directory.
    path: &'static str,
    protocol: &'static str,
    cases: usize,
}

const LIBRARIES: [Library; 5] = [
    Library {
        name: "websockets",
        tool: Some("websockets"),
        program: "python3",
        script: "websocket.py",
        variable: "PYTHONPATH",
        path: "",
        protocol: "kubernetes.io/ws",
        cases: 12,
    },
    Library {
        name: "ws",
        tool: Some("ws"),
        program: "node",
        script: "ws.js",
        variable: "NODE_PATH",
        path: "node_modules",
        protocol: "kubernetes.io/ws",
        cases: 12,
    },
    Library {
        name: "connect",
        tool: None,
        program: "node",
        script: "connect.js",
        variable: "NODE_PATH",
        path: "",
        protocol: "kubernetes.io/h2c",
        cases: 6,
    },
    Library {
        name: "upgrade",
        tool: None,
        program: "node",
        script: "upgrade.js",
        variable: "NODE_PATH",
        path: "",
        protocol: "http",
        cases: 10,
    },
    Library {
        name: "departed",
        tool: None,
        program: "node",
        script: "departed.js",
        variable: "NODE_PATH",
        path: "",
        protocol: "http",
        cases: 12,
    },
];

#[test]
fn programs_that_people_use_work_through_a_mesh() -> Result<()> {
    if !is_root()? {
        return Ok(());
    }
    for (program, package) in [("nginx", "nginx"), ("wrk", "wrk"), ("h2load", "nghttp2-client")] {
        binaries::require(program, package)?;
    }
    let mut scripts = Vec::new();
    for library in &LIBRARIES {
        scripts.extend(Scripted::install(library)?);
    }
    let more: String = scripts.iter().map(Scripted::workload).collect();
    let lab = Lab::start(&LabOptions::new(Capture::Ebpf), &[MESH, &more].concat(), |directory| {
        let text = nginx(&directory.display().to_string());
        Ok(fs::write(directory.join("nginx.conf"), text)?)
    })?;
    lab.explain(of_debian(&lab))?;
    for scripted in scripts {
        lab.explain(scripted.through(&lab))?;
    }
    Ok(())
}

/// Whether this test may start a mesh. If not, prints that the test is skipped.
fn is_root() -> Result<bool> {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        ensure!(!tools::required("root"), "LENO_REQUIRE has root");
        println!("skipped: needs root");
    }
    Ok(is_root)
}

fn of_debian(lab: &Lab) -> Result<()> {
    lab.reach("client", "web:8080")?;
    let (http1, http2) = ("http://web:8080/", "http://web:8081/");
    let said = lab.text("client", &["curl", "-sS", "--fail", "-m", "20", http1])?;
    ensure!(said == "hello\n", "curl: {said}");
    let prior = ["curl", "-sS", "--fail", "-m", "20", "--http2-prior-knowledge", http2];
    wait::until("nginx to speak HTTP/2", START_LIMIT, || {
        Ok(lab.exec("client", &prior)?.status.success().then_some(()))
    })?;
    let said = lab.text("client", &prior)?;
    ensure!(said == "hello\n", "curl with HTTP/2: {said}");
    let said = lab.text("client", &["nghttp", "-v", "-m", "5", http2])?;
    ensure!(said.matches(":status: 200").count() == 5, "nghttp: {said}");
    let load = ["h2load", "-n", "5000", "-c", "4", "-m", "10", http2];
    let said = lab.text("client", &load)?;
    ensure!(said.contains("5000 succeeded, 0 failed, 0 errored, 0 timeout"), "h2load: {said}");
    let said = lab.text("client", &["wrk", "-t", "1", "-c", "16", "-d", "2s", http1])?;
    let wrong = said.contains("Non-2xx") || said.contains("Socket errors");
    ensure!(said.contains(" requests in ") && !wrong, "wrk: {said}");
    Ok(())
}

fn nginx(directory: &str) -> String {
    format!(
        "daemon off; master_process off; user root; pid {directory}/nginx.pid;\n\
         error_log stderr error;\nevents {{ worker_connections 1024; }}\n\
         http {{\n  access_log off; keepalive_requests 100000;\n  client_body_temp_path {directory}/b;\n  \
         proxy_temp_path {directory}/p;\n  fastcgi_temp_path {directory}/f;\n  \
         uwsgi_temp_path {directory}/u;\n  scgi_temp_path {directory}/s;\n  \
         server {{\n    listen 8080; listen 8081 http2;\n    default_type text/plain;\n    \
         location / {{ return 200 \"hello\\n\"; }}\n  }}\n}}\n"
    )
}

/// The script, the path of its library, and its output without a mesh.
struct Scripted {
    library: &'static Library,
    script: String,
    path: String,
    direct: String,
}

impl Scripted {
    /// `None` if the library cannot be installed; the reason has been printed.
    fn install(library: &'static Library) -> Result<Option<Self>> {
        let path = match library.tool.map(tools::install_or_skip).transpose()? {
            Some(Some(path)) => path.join(library.path),
            Some(None) => return Ok(None),
            None => binaries::require(library.program, "nodejs")?,
        };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
        let script = script.join(library.script);
        let run = |arguments: &[&str]| {
            let mut command = Command::new(library.program);
            command.arg(&script).args(arguments).env(library.variable, &path);
            command
        };
        let server = free_address()?;
        let port = server.port().to_string();
        let running = Running::start(&mut run(&["serve", &port]))?;
        wait::until("its server to listen", START_LIMIT, || Ok(TcpStream::connect(server).ok()))?;
        let direct = command::text(&mut run(&["call", "127.0.0.1", &port]), CALL_LIMIT)?;
        drop(running);
        ensure!(direct.lines().count() == library.cases, "{direct}");
        let (script, path) = (script.display().to_string(), path.display().to_string());
        Ok(Some(Scripted { library, script, path, direct }))
    }

    fn workload(&self) -> String {
        SCRIPTED
            .replace("@NAME@", self.library.name)
            .replace("@PROTOCOL@", self.library.protocol)
            .replace("@PROGRAM@", self.library.program)
            .replace("@VARIABLE@", self.library.variable)
            .replace("@SCRIPT@", &self.script)
            .replace("@PATH@", &self.path)
    }

    /// Runs the same cases through the mesh, with two proxies and with only the server's, and compares the output.
    fn through(&self, lab: &Lab) -> Result<()> {
        let Library { name, program, variable, .. } = self.library;
        let path = format!("{variable}={}", self.path);
        for (client, host) in [("client", name.to_string()), ("plain", format!("{name}-0.{name}"))]
        {
            let call = ["env", &path, program, &self.script, "call", &host, "9000"];
            let output = lab.exec(client, &call)?;
            println!("{client}: {}", String::from_utf8_lossy(&output.stderr));
            let said = command::success(&format!("{name} of {client}"), output)?;
            let direct = &self.direct;
            ensure!(said == *direct, "directly:\n{direct}\n{client}, through the mesh:\n{said}");
        }
        Ok(())
    }
}
