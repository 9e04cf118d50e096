//! The proxies under test: a configuration, a command and a port each.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Context, Result};
use clap::ValueEnum;
use leno_testkit::binaries;
use tempfile::TempDir;

use crate::backend::memory_directory;
use crate::process::{Place, Process, free_address};

/// Whom to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Contender {
    /// `leno-proxy --static`, outbound, plaintext.
    Leno,
    /// HAProxy from Debian.
    Haproxy,
    /// nginx from Debian.
    Nginx,
    /// No proxy: the backend alone.
    None,
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Contender::Leno => "leno",
            Contender::Haproxy => "haproxy",
            Contender::Nginx => "nginx",
            Contender::None => "none",
        })
    }
}

/// A proxy that runs and forwards to the backend.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) contender: Contender,
    pub(crate) version: String,
    pub(crate) address: SocketAddr,
    /// None for [`Contender::None`].
    pub(crate) process: Option<Process>,
    _directory: TempDir,
}

impl Proxy {
    /// Starts `contender` before `backend`, with one worker.
    pub(crate) fn start(contender: Contender, backend: SocketAddr, place: Place) -> Result<Self> {
        let directory = memory_directory()?;
        let root = directory.path();
        let address = free_address()?;
        let admin = free_address()?;
        let write = |name: &str, text: String| -> Result<std::path::PathBuf> {
            let path = root.join(name);
            fs::write(&path, text)?;
            Ok(path)
        };
        let mut command = match contender {
            Contender::None => {
                let version = String::new();
                return Ok(Proxy {
                    contender,
                    version,
                    address: backend,
                    process: None,
                    _directory: directory,
                });
            }
            Contender::Leno => {
                let mut command = Command::new(binaries::ours("leno-proxy")?);
                command.arg("--static").arg(write("proxy.yaml", leno(address, admin, backend))?);
                command
            }
            Contender::Haproxy => {
                let mut command = Command::new(binaries::require("haproxy", "haproxy")?);
                command.args(["-db", "-f"]).arg(write("haproxy.cfg", haproxy(address, backend))?);
                command
            }
            Contender::Nginx => {
                let mut command = Command::new(binaries::require("nginx", "nginx")?);
                let text = nginx(&root.display().to_string(), address, backend);
                command.arg("-c").arg(write("nginx.conf", text)?);
                command.arg("-p").arg(root).args(["-e", "stderr"]);
                command
            }
        };
        command.current_dir(root);
        let version = version(contender, &command)?;
        let process = Some(Process::start(command, place, address)?);
        Ok(Proxy { contender, version, address, process, _directory: directory })
    }
}

/// The first line in which the program says its version.
fn version(contender: Contender, command: &Command) -> Result<String> {
    let flag = if contender == Contender::Leno { "--version" } else { "-v" };
    let program = command.get_program();
    let output = Command::new(program)
        .arg(flag)
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let said = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&said).lines().next().unwrap_or_default().to_string())
}

fn leno(address: SocketAddr, admin: SocketAddr, backend: SocketAddr) -> String {
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Proxy\nmetadata: {{name: bench, namespace: bench}}\n\
         spec:\n  workers: 1\n  admin: \"{admin}\"\n  \
         outbound: {{listen: \"{address}\", service: \"bench/backend:80\"}}\n  \
         mtls: disabled\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: backend, namespace: bench}}\n\
         spec:\n  clusterIP: 10.96.0.10\n  \
         ports: [{{name: http, port: 80, targetPort: {port}, appProtocol: http}}]\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: backend-1, namespace: bench, \
         labels: {{kubernetes.io/service-name: backend}}}}\n\
         addressType: IPv4\nports: [{{name: http, port: {port}, appProtocol: http}}]\n\
         endpoints: [{{addresses: [{ip}], conditions: {{ready: true}}}}]\n",
        port = backend.port(),
        ip = backend.ip(),
    )
}

fn haproxy(address: SocketAddr, backend: SocketAddr) -> String {
    format!(
        "global\n  nbthread 1\n  maxconn 8192\n\
         defaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  \
         timeout server 60s\n  http-reuse always\n  option http-keep-alive\n\
         frontend f\n  bind {address}\n  default_backend b\n\
         backend b\n  server s {backend} pool-max-conn 512\n"
    )
}

fn nginx(root: &str, address: SocketAddr, backend: SocketAddr) -> String {
    format!(
        "daemon off; master_process off; worker_processes 1; pid {root}/pid;\n\
         error_log stderr crit;\n\
         events {{ worker_connections 8192; }}\n\
         http {{\n  access_log off; keepalive_requests 100000000;\n  \
         client_body_temp_path {root}/b; proxy_temp_path {root}/p; fastcgi_temp_path {root}/f;\n  \
         uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;\n  \
         upstream b {{ server {backend}; keepalive 512; keepalive_requests 100000000; }}\n  \
         server {{ listen {address} backlog=4096;\n    location / {{\n      \
         proxy_pass http://b; proxy_http_version 1.1; proxy_set_header Connection \"\";\n    \
         }}\n  }}\n}}\n"
    )
}
