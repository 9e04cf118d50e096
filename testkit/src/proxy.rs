//! `leno-proxy --static` in a process of its own, before one server.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

use crate::{binaries, wait};

/// How long the proxy may take to listen.
const START_LIMIT: Duration = Duration::from_secs(20);

/// How often it is started at most, should another program have taken one of its ports: a
/// connection of a test that runs beside can have any free one.
const START_ATTEMPTS: usize = 5;
/// What it says then.
const TAKEN: &str = "Address already in use";

/// Which plane of the proxy stands before the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The outbound side, with a service whose `appProtocol` is this.
    Outbound(&'static str),
    /// The inbound side, where nothing is declared and the protocol is found out.
    Inbound,
}

/// A proxy in plaintext with one worker; dropping it ends it.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    admin: SocketAddr,
    child: Child,
    directory: TempDir,
    /// Keeps its ports from everybody who wants any free one.
    _ports: [Socket; 2],
}

impl Proxy {
    /// Starts it before `server` and waits until it listens.
    pub fn start(side: Side, server: SocketAddr) -> Result<Self> {
        Self::start_with(|address, admin| documents(side, (address, admin), server))
    }

    /// Starts it with documents of the caller's own, made of the addresses where it is to accept and
    /// where its admin server is to listen, and waits until it accepts.
    pub fn start_with(documents: impl Fn(SocketAddr, SocketAddr) -> String) -> Result<Self> {
        Self::start_logging("off", documents)
    }

    /// The same with an access log in this form, `text` or `json`; see [`Self::log`].
    pub fn start_logging(
        form: &str,
        documents: impl Fn(SocketAddr, SocketAddr) -> String,
    ) -> Result<Self> {
        Self::start_once_more((&["--access-log", form], ""), documents)
    }

    /// The same with these arguments.
    pub fn start_given(
        arguments: &[&str],
        documents: impl Fn(SocketAddr, SocketAddr) -> String,
    ) -> Result<Self> {
        Self::start_once_more((arguments, ""), documents)
    }

    /// The same with a panic that the proxy, which must be a debug build, is asked for: see
    /// `LENO_TEST_PANIC` in `leno_transport::test_panic`.
    pub fn start_panicking(
        form: &str,
        panic: &str,
        documents: impl Fn(SocketAddr, SocketAddr) -> String,
    ) -> Result<Self> {
        Self::start_once_more((&["--access-log", form], panic), documents)
    }

    /// Tries other ports while one that was reserved is taken.
    fn start_once_more(
        (arguments, panic): (&[&str], &str),
        documents: impl Fn(SocketAddr, SocketAddr) -> String,
    ) -> Result<Self> {
        for _ in 1..START_ATTEMPTS {
            match Self::start_once((arguments, panic), &documents) {
                Err(error) if error.to_string().contains(TAKEN) => {}
                outcome => return outcome,
            }
        }
        Self::start_once((arguments, panic), &documents)
    }

    fn start_once(
        (arguments, panic): (&[&str], &str),
        documents: &impl Fn(SocketAddr, SocketAddr) -> String,
    ) -> Result<Self> {
        let binary = binaries::ours("leno-proxy")?;
        let directory = tempfile::tempdir()?;
        let ((address, outer), (admin, inner)) = (reserved()?, reserved()?);
        let file = directory.path().join("proxy.yaml");
        fs::write(&file, documents(address, admin))?;
        let log = log_of(&directory);
        // Both append: one that wrote where it stood would write over the other's lines.
        let log = fs::File::options().create(true).append(true).open(&log)?;
        let child = Command::new(binary)
            .arg("--static")
            .arg(&file)
            .args(arguments)
            .env("LENO_TEST_PANIC", panic)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start leno-proxy")?;
        let mut proxy = Proxy { address, admin, child, directory, _ports: [outer, inner] };
        wait::until("leno-proxy to listen", START_LIMIT, || {
            if let Some(ended) = proxy.ended()? {
                bail!(ended);
            }
            Ok(TcpStream::connect(address).ok())
        })?;
        Ok(proxy)
    }

    /// Where it accepts.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where its admin server listens.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// What it has printed so far, the access log among it.
    pub fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(log_of(&self.directory))?)
    }

    /// How it ended, if it has, with what it printed.
    pub fn ended(&mut self) -> Result<Option<String>> {
        let Some(status) = self.child.try_wait()? else { return Ok(None) };
        Ok(Some(format!("leno-proxy ended ({status}): {}", self.log()?)))
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn log_of(directory: &TempDir) -> PathBuf {
    directory.path().join("log")
}

/// A port of 127.0.0.1 that is the proxy's alone while the socket is held. Two proxies that were told the
/// same port would share it (`SO_REUSEPORT`), and each test be answered by the other's.
fn reserved() -> Result<(SocketAddr, Socket)> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // The proxy may bind it all the same, since this one does not listen; whoever asks for any free port
    // does not get it.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    let address = socket.local_addr()?.as_socket().context("an address of IPv4")?;
    Ok((address, socket))
}

/// A free port of 127.0.0.1, for programs that cannot choose one themselves; should another
/// process take it first, the program says so.
pub fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn documents(side: Side, (address, admin): (SocketAddr, SocketAddr), server: SocketAddr) -> String {
    let (ip, port) = (server.ip(), server.port());
    let (spec, protocol) = match side {
        Side::Outbound(protocol) => {
            (format!("outbound: {{listen: \"{address}\", service: \"t/web:80\"}}"), protocol)
        }
        Side::Inbound => {
            (format!("inbound: {{listen: \"{address}\", application: \"{server}\"}}"), "http")
        }
    };
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Proxy\nmetadata: {{name: test, namespace: t}}\n\
         spec:\n  workers: 1\n  admin: \"{admin}\"\n  {spec}\n  mtls: disabled\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: t}}\n\
         spec:\n  clusterIP: 10.96.0.10\n  \
         ports: [{{name: x, port: 80, targetPort: {port}, appProtocol: {protocol}}}]\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: web-1, namespace: t, labels: {{kubernetes.io/service-name: web}}}}\n\
         addressType: IPv4\nports: [{{name: x, port: {port}, appProtocol: {protocol}}}]\n\
         endpoints: [{{addresses: [{ip}], conditions: {{ready: true}}}}]\n"
    )
}
