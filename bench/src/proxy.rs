//! The proxies under test: a configuration, a command and a port for each.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::ValueEnum;
use leno_testkit::binaries;
use tempfile::TempDir;

use crate::backend::memory_directory;
use crate::process::{Pinning, Process, free_address};
use crate::scenario::Work;

mod configuration;
mod hop;

pub(crate) use hop::{Hop, Leg, Tls};

/// Path of the binary inside the Python package.
const ENVOY: &str = "envoy/envoy/_bin/envoy";

/// The proxy to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Contender {
    /// `leno-proxy --static`, outbound, plaintext.
    Leno,
    /// HAProxy from Debian.
    Haproxy,
    /// nginx from Debian.
    Nginx,
    /// Envoy from the Python package that `scripts/tools.sh envoy` installs.
    Envoy,
    /// No proxy: the backend alone.
    None,
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Contender::Leno => "leno",
            Contender::Haproxy => "haproxy",
            Contender::Nginx => "nginx",
            Contender::Envoy => "envoy",
            Contender::None => "none",
        })
    }
}

/// A running proxy that forwards to the backend.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) version: String,
    pub(crate) address: SocketAddr,
    /// `None` for [`Contender::None`].
    pub(crate) process: Option<Process>,
    directory: TempDir,
}

impl Proxy {
    /// Starts `contender` in front of `backend`, with one worker.
    pub(crate) fn start(
        contender: Contender,
        work: Work,
        backend: SocketAddr,
        place: Pinning,
    ) -> Result<Self> {
        let directory = memory_directory()?;
        let (accept, connect) = (Leg::plain(work), Leg::plain(work));
        let hop = Hop { address: free_address()?, backend, work, accept, connect };
        let mut proxy =
            Proxy { version: String::new(), address: backend, process: None, directory };
        if let Some(mut command) = command(contender, &hop, proxy.directory.path())? {
            command.current_dir(proxy.directory.path());
            proxy.version = version(contender, &command)?;
            proxy.process = Some(Process::start(command, place, hop.address)?);
            proxy.address = hop.address;
        }
        Ok(proxy)
    }
}

/// The command that starts the proxy, with its files in `root`; `None` for [`Contender::None`].
pub(crate) fn command(contender: Contender, hop: &Hop, root: &Path) -> Result<Option<Command>> {
    let write = |name: &str, text: String| -> Result<PathBuf> {
        let path = root.join(name);
        fs::write(&path, text)?;
        Ok(path)
    };
    let command = match contender {
        Contender::None => return Ok(None),
        Contender::Leno => {
            let mut command = Command::new(binaries::ours("leno-proxy")?);
            let text = configuration::leno(hop, free_address()?);
            command.arg("--static").arg(write("proxy.yaml", text)?);
            command
        }
        Contender::Haproxy => {
            let mut command = Command::new(binaries::require("haproxy", "haproxy")?);
            command.args(["-db", "-f"]).arg(write("haproxy.cfg", configuration::haproxy(hop))?);
            command
        }
        Contender::Nginx => {
            let mut command = Command::new(binaries::require("nginx", "nginx")?);
            let text = configuration::nginx(hop, &root.display().to_string())?;
            command.arg("-c").arg(write("nginx.conf", text)?);
            command.arg("-p").arg(root).args(["-e", "stderr"]);
            command
        }
        Contender::Envoy => {
            let mut command = Command::new(binaries::tool("envoy", ENVOY)?);
            command.arg("-c").arg(write("envoy.yaml", configuration::envoy(hop))?);
            command.args(["--concurrency", "1", "--disable-hot-restart", "-l", "error"]);
            command
        }
    };
    Ok(Some(command))
}

/// The first line of the program's version output.
pub(crate) fn version(contender: Contender, command: &Command) -> Result<String> {
    let flag = match contender {
        Contender::Haproxy | Contender::Nginx => "-v",
        _ => "--version",
    };
    let program = command.get_program();
    let output = Command::new(program)
        .arg(flag)
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let said = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&said)
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or_default()
        .trim()
        .to_string())
}
