//! Programs that people use, through a mesh: curl, wrk, nghttp and h2load of Debian, Python's
//! websockets and Node's ws. It needs root.
//!
//! ```text
//!   client ──► web          nginx, HTTP/1.1 and HTTP/2 with prior knowledge
//!          ──► websockets   Python (`websocket.py`)
//!          ──► ws           Node (`ws.js`)
//! ```

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::command::{self, Running};
use leno_testkit::lab::{Capture, Lab, Options};
use leno_testkit::proxy::free_address;
use leno_testkit::{binaries, tools, wait};

/// How long a server may take to listen.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long all cases of websockets may take; each wait has thirty seconds of its own.
const CALL_LIMIT: Duration = Duration::from_secs(120);
/// Fewer lines mean that the client did not play all its cases.
const CASES: usize = 12;

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: clients}
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

const WEBSOCKETS: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: @NAME@, namespace: clients, labels: {app: @NAME@}}
spec:
  command: [@PROGRAM@, \"@SCRIPT@\", serve, \"9000\"]
  env: {@VARIABLE@: \"@PATH@\"}
  ports: [{name: ws, port: 9000, appProtocol: kubernetes.io/ws}]
";

/// A library of WebSocket: the tool, who runs its script, and where that looks for it.
struct Library {
    tool: &'static str,
    program: &'static str,
    script: &'static str,
    variable: &'static str,
    /// Of the directory of the tool.
    path: &'static str,
}

const LIBRARIES: [Library; 2] = [
    Library {
        tool: "websockets",
        program: "python3",
        script: "websocket.py",
        variable: "PYTHONPATH",
        path: "",
    },
    Library {
        tool: "ws",
        program: "node",
        script: "ws.js",
        variable: "NODE_PATH",
        path: "node_modules",
    },
];

#[test]
fn programs_that_people_use_work_through_a_mesh() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        ensure!(!tools::required("root"), "LENO_REQUIRE has root");
        println!("skipped: needs root");
        return Ok(());
    }
    for (program, package) in [("nginx", "nginx"), ("wrk", "wrk"), ("h2load", "nghttp2-client")] {
        binaries::require(program, package)?;
    }
    let mut websockets = Vec::new();
    for library in &LIBRARIES {
        websockets.extend(WebSockets::install(library)?);
    }
    let more: String = websockets.iter().map(WebSockets::workload).collect();
    let lab = Lab::start(&Options::new(Capture::Ebpf), &[MESH, &more].concat(), |directory| {
        let text = nginx(&directory.display().to_string());
        Ok(fs::write(directory.join("nginx.conf"), text)?)
    })?;
    lab.explain(of_debian(&lab))?;
    for websockets in websockets {
        lab.explain(websockets.through(&lab))?;
    }
    Ok(())
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

/// The script, where its library is, and what it says without a mesh.
struct WebSockets {
    library: &'static Library,
    script: String,
    path: String,
    direct: String,
}

impl WebSockets {
    /// None where the library cannot be installed; the reason was printed.
    fn install(library: &'static Library) -> Result<Option<Self>> {
        let Some(path) = tools::install_or_skip(library.tool)? else { return Ok(None) };
        let path = path.join(library.path);
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
        ensure!(direct.lines().count() == CASES, "{direct}");
        let (script, path) = (script.display().to_string(), path.display().to_string());
        Ok(Some(WebSockets { library, script, path, direct }))
    }

    fn workload(&self) -> String {
        WEBSOCKETS
            .replace("@NAME@", self.library.tool)
            .replace("@PROGRAM@", self.library.program)
            .replace("@VARIABLE@", self.library.variable)
            .replace("@SCRIPT@", &self.script)
            .replace("@PATH@", &self.path)
    }

    /// The same cases through the mesh say the same.
    fn through(&self, lab: &Lab) -> Result<()> {
        let Library { tool, program, variable, .. } = self.library;
        let path = format!("{variable}={}", self.path);
        let call = ["env", &path, program, &self.script, "call", tool, "9000"];
        let said = lab.text("client", &call).context(*tool)?;
        ensure!(said == self.direct, "directly:\n{}\nthrough the mesh:\n{said}", self.direct);
        Ok(())
    }
}
