//! Runs h2spec in a workload of a mesh. Its requests to the server pass two proxies with mTLS between them.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::{binaries, tools, wait};

use crate::suite::{Group, RUN_LIMIT, Suite};

/// How long nginx may take to serve through the mesh.
const START_LIMIT: Duration = Duration::from_secs(30);

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: h2spec}
spec: {command: [\"@BIN@/leno-peer\", idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: h2spec, labels: {app: web}}
spec:
  command: [nginx, -e, stderr, -c, \"@DIR@/nginx.conf\"]
  ports: [{name: h2, port: 8080, appProtocol: kubernetes.io/h2c}]
";

#[test]
fn two_proxies_with_mtls_pass_every_case() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        ensure!(!tools::required("root"), "LENO_REQUIRE has root");
        println!("skipped: needs root");
        return Ok(());
    }
    binaries::require("nginx", "nginx")?;
    let Some(suite) = Suite::install()? else { return Ok(()) };
    let options = LabOptions { mtls: Some("strict"), ..LabOptions::new(Capture::Ebpf) };
    let lab = Lab::start(&options, MESH, |directory| {
        let text = nginx(&directory.display().to_string());
        Ok(fs::write(directory.join("nginx.conf"), text)?)
    })?;
    lab.explain(run(&suite, &lab))
}

fn run(suite: &Suite, lab: &Lab) -> Result<()> {
    let url = "http://web:8080/";
    let curl = ["curl", "-sS", "--fail", "-m", "20", "--http2-prior-knowledge", url];
    wait::until("nginx to answer", START_LIMIT, || {
        Ok(lab.exec("client", &curl)?.status.success().then_some(()))
    })?;
    let outcome = suite.run_by(("web", 8080), &Group::ALL, |arguments| {
        let command: Vec<&str> = arguments.iter().map(String::as_str).collect();
        lab.spawn("client", &command)?.finish(RUN_LIMIT)
    })?;
    ensure!(outcome.failed.is_empty(), "{:#?}", outcome.failed);
    // Checks that the requests did use mTLS.
    let metrics = lab.metrics("client")?;
    let meshed = |line: &str| {
        line.starts_with("leno_requests_total{direction=\"outbound\"")
            && line.contains("mtls=\"true\"")
    };
    ensure!(metrics.lines().any(meshed), "{metrics}");
    Ok(())
}

/// A server that responds once it has read the whole request, as [`crate::Nginx`] does.
fn nginx(directory: &str) -> String {
    format!(
        "daemon off; master_process off; user root; pid {directory}/nginx.pid;\n\
         error_log stderr crit;\nevents {{ worker_connections 1024; }}\nhttp {{\n  \
         access_log off; client_body_temp_path {directory}/b; proxy_temp_path {directory}/p;\n  \
         fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u;\n  \
         scgi_temp_path {directory}/s;\n  \
         server {{ listen 8080 http2; location / {{\n    \
           proxy_pass http://127.0.0.1:8081; proxy_request_buffering on; }} }}\n  \
         server {{ listen 127.0.0.1:8081; location / {{ return 200 \"hello\\n\"; }} }}\n}}\n"
    )
}
