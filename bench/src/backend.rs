//! The server behind the proxies: one nginx worker with files in memory.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use anyhow::Result;
use leno_testkit::binaries;
use tempfile::TempDir;

use crate::process::{Place, Process, free_address};

/// The backend; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) address: SocketAddr,
    _process: Process,
    _directory: TempDir,
}

impl Backend {
    /// Starts it, serving `/1k` and `/10k`.
    pub(crate) fn start(place: Place) -> Result<Self> {
        let nginx = binaries::require("nginx", "nginx")?;
        let directory = memory_directory()?;
        let root = directory.path();
        for (name, size) in [("1k", 1024), ("10k", 10 * 1024)] {
            fs::write(root.join(name), "x".repeat(size))?;
        }
        let address = free_address()?;
        let config = root.join("nginx.conf");
        fs::write(&config, configuration(&root.display().to_string(), address))?;
        let mut command = Command::new(nginx);
        command.arg("-c").arg(&config).arg("-p").arg(root).args(["-e", "stderr"]);
        let process = Process::start(command, place, address)?;
        Ok(Backend { address, _process: process, _directory: directory })
    }
}

/// A temporary directory in memory where there is one.
pub(crate) fn memory_directory() -> Result<TempDir> {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    // Workers that give up root must still read their files.
    fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(directory)
}

fn configuration(root: &str, address: SocketAddr) -> String {
    format!(
        "daemon off; master_process off; worker_processes 1; pid {root}/pid;\n\
         error_log stderr crit;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n  access_log off; sendfile on; tcp_nopush on; etag off;\n  \
         keepalive_requests 100000000; open_file_cache max=16 inactive=1h;\n  \
         default_type text/plain;\n  \
         client_body_temp_path {root}/b; proxy_temp_path {root}/p; fastcgi_temp_path {root}/f;\n  \
         uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;\n  \
         server {{ listen {address} reuseport backlog=4096; root {root}; }}\n}}\n"
    )
}
