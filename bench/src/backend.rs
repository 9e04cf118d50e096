//! The servers behind the proxies: an nginx worker with files in memory, an HTTP/2 server and a TCP
//! echo.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use leno_testkit::binaries;
use tempfile::TempDir;

use crate::process::{Pinning, Process, free_address};
use crate::scenario::Work;

/// The servers of a bench; dropping it stops them.
#[derive(Debug)]
pub(crate) struct Backends {
    servers: Vec<(Work, SocketAddr, Process)>,
    /// Where their files are, as long as they run.
    _directory: TempDir,
}

impl Backends {
    /// Starts one server for each kind of work.
    pub(crate) fn start(works: &[Work], place: Pinning) -> Result<Self> {
        let directory = memory_directory()?;
        let mut servers = Vec::new();
        for work in works {
            let address = free_address()?;
            let command = match work {
                Work::Http1 => nginx(directory.path(), address)?,
                Work::Http2 => {
                    let mut command = Command::new(binaries::ours("leno-bench")?);
                    command.args(["serve", "--listen", &address.to_string()]);
                    command.args(["--response-bytes", "1024"]);
                    command
                }
                Work::Tcp => {
                    let mut command = Command::new(binaries::ours("leno-peer")?);
                    command.args(["echo", "--listen", &address.to_string()]);
                    command
                }
            };
            servers.push((*work, address, Process::start(command, place, address)?));
        }
        Ok(Backends { servers, _directory: directory })
    }

    /// The address of the server for this kind of work.
    pub(crate) fn address(&self, work: Work) -> Result<SocketAddr> {
        let server = self.servers.iter().find(|(of, ..)| *of == work);
        Ok(server.context("there is no server for this work")?.1)
    }
}

/// A temporary directory in memory (/dev/shm), or on disk if there is none.
pub(crate) fn memory_directory() -> Result<TempDir> {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    // Workers that drop root must still be able to read their files.
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
    Ok(directory)
}

fn nginx(root: &Path, address: SocketAddr) -> Result<Command> {
    let config = write_nginx(root, address)?;
    let mut command = Command::new(binaries::require("nginx", "nginx")?);
    command.arg("-c").arg(&config).arg("-p").arg(root).args(["-e", "stderr"]);
    Ok(command)
}

/// Writes nginx's files and its configuration, and returns the path of the configuration. nginx
/// must be able to reach itself at `address`.
pub(crate) fn write_nginx(root: &Path, address: SocketAddr) -> Result<PathBuf> {
    for (name, size) in [("1k", 1024), ("10k", 10 * 1024), ("1m", 1024 * 1024)] {
        fs::write(root.join(name), "x".repeat(size))?;
    }
    let config = root.join("nginx.conf");
    fs::write(&config, configuration(&root.display().to_string(), address))?;
    Ok(config)
}

fn configuration(root: &str, address: SocketAddr) -> String {
    format!(
        "daemon off; master_process off; worker_processes 1; pid {root}/pid;\n\
         error_log stderr crit;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n  access_log off; sendfile on; tcp_nopush on; etag off;\n  \
         keepalive_requests 100000000; open_file_cache max=16 inactive=1h;\n  \
         default_type text/plain; client_max_body_size 0;\n  \
         client_body_temp_path {root}/b; proxy_temp_path {root}/p; fastcgi_temp_path {root}/f;\n  \
         uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;\n  \
         server {{ listen {address} reuseport backlog=4096; root {root};\n    \
         # The whole body is read before anything is answered.\n    \
         location /upload {{ client_body_buffer_size 2m; proxy_method GET; \
         proxy_pass_request_body off; proxy_set_header Content-Length \"\"; \
         proxy_pass http://{address}/1k; }}\n  }}\n}}\n"
    )
}
