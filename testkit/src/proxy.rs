//! Runs `leno-proxy --static` in its own process, in front of one server.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

use crate::{binaries, wait};

/// How long the proxy may take to listen.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How many times at most the proxy is started if another program has taken one of its ports. The kernel may
/// assign any free port to a connection of a test that runs at the same time.
const START_ATTEMPTS: usize = 5;
/// The error that the proxy prints in that case.
const TAKEN: &str = "Address already in use";

/// The plane of the proxy that is in front of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The outbound side, with a service of this `appProtocol`.
    Outbound(&'static str),
    /// The inbound side, for a port without a declared protocol, so that the proxy detects it.
    Inbound,
}

/// A plaintext proxy with one worker. Dropping this ends the proxy.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    admin: SocketAddr,
    child: Child,
    directory: TempDir,
    /// Sockets that reserve the proxy's ports, so that the kernel assigns them to no other program.
    _ports: [Socket; 2],
}

impl Proxy {
    /// Starts the proxy in front of `server` and waits until it listens.
    pub fn start(side: Side, server: SocketAddr) -> Result<Self> {
        Self::start_with(|address, admin| documents(side, (address, admin), server))
    }

    /// Starts the proxy with the caller's documents, and waits until it accepts connections. `documents` gets the
    /// addresses of the listener and of the admin server.
    pub fn start_with(documents: impl Fn(SocketAddr, SocketAddr) -> String) -> Result<Self> {
        Self::start_logging("off", documents)
    }

    /// Like [`Self::start_with`], with an access log with these settings, such as `text` or `json`; see
    /// [`Self::log`].
    pub fn start_logging(
        form: &str,
        documents: impl Fn(SocketAddr, SocketAddr) -> String,
    ) -> Result<Self> {
        Self::start_once_more((&["--access-log", form], ""), documents)
    }

    /// Like [`Self::start_with`], with these arguments.
    pub fn start_given(
        arguments: &[&str],
        documents: impl Fn(SocketAddr, SocketAddr) -> String,
    ) -> Result<Self> {
        Self::start_once_more((arguments, ""), documents)
    }

    /// Like [`Self::start_given`], with a panic that the proxy causes on purpose; the proxy must be a debug build.
    /// See `LENO_TEST_PANIC` in `leno_transport::test_panic`.
    pub fn start_panicking(
        arguments: &[&str],
        panic: &str,
        documents: impl Fn(SocketAddr, SocketAddr) -> String,
    ) -> Result<Self> {
        Self::start_once_more((arguments, panic), documents)
    }

    /// Starts the proxy, and retries with other ports while a reserved port is taken.
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
        // Both streams append. Otherwise each would overwrite the other's lines.
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

    /// The address at which it accepts connections.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of its admin server.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Everything that it has printed so far, including the access log.
    pub fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(log_of(&self.directory))?)
    }

    /// How the proxy ended and what it printed; `None` while it runs.
    pub fn ended(&mut self) -> Result<Option<String>> {
        let Some(status) = self.child.try_wait()? else { return Ok(None) };
        Ok(Some(format!("leno-proxy ended ({status}): {}", self.log()?)))
    }

    /// Waits until the proxy ends by itself, as it does after a drain.
    pub fn ends(&mut self, limit: Duration) -> Result<ExitStatus> {
        wait::until("leno-proxy to end", limit, || Ok(self.child.try_wait()?))
    }

    /// The process ID of the proxy.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Both calls fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Fails unless each thread of a proxy is confined: seccomp filters and Landlock hold for the thread that applies them,
/// and for those that it starts later.
pub fn every_thread_is_confined(pid: u32) -> Result<()> {
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = fs::read_to_string(thread?.path().join("status"))?;
        for line in ["NoNewPrivs:\t1", "Seccomp:\t2"] {
            ensure!(status.contains(line), "no {line:?} in {status}");
        }
    }
    Ok(())
}

fn log_of(directory: &TempDir) -> PathBuf {
    directory.path().join("log")
}

/// A port of 127.0.0.1 that is reserved, as long as the socket exists, for a program that the test starts with it.
/// Without a reservation, two proxies with the same port would share its connections (`SO_REUSEPORT`), and one
/// test's requests could be answered by the other test's proxy.
///
/// The program must set `SO_REUSEADDR` before it binds, as tokio, Go and leno-proxy do. Until it listens,
/// connections are refused.
pub fn reserved() -> Result<(SocketAddr, Socket)> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // The program may bind the port as well, because this socket does not listen. The kernel does not assign the
    // port to programs that request any free port.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    let address = socket.local_addr()?.as_socket().context("an address of IPv4")?;
    Ok((address, socket))
}

/// A free port of a loopback address, for programs that cannot choose a port themselves.
///
/// The address is not 127.0.0.1, because until the program listens, a port of that address could be assigned to
/// any client or listener on the machine. Processes that run at the same time get different addresses, and so do
/// the first 64 calls of a process.
pub fn free_address() -> Result<SocketAddr> {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let nth = CALLS.fetch_add(1, Ordering::Relaxed) & 63;
    let [_, a, b, c] = (std::process::id() << 6 | nth).to_be_bytes();
    // The second byte is never zero, so the address is not 127.0.0.1.
    let host = [127, a.max(1), b, c.clamp(1, 254)];
    loop {
        let address = TcpListener::bind(SocketAddr::from((host, 0)))?.local_addr()?;
        // Some programs listen on all addresses, so the port must be free on all of them.
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).is_ok() {
            return Ok(address);
        }
    }
}

/// The document of a proxy that serves only one application, detects its protocol, and has as many workers as the
/// machine has processors.
#[must_use]
pub fn inbound(address: SocketAddr, admin: SocketAddr, application: SocketAddr) -> String {
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Proxy\nmetadata: {{name: web-0, namespace: t}}\n\
         spec:\n  admin: \"{admin}\"\n  mtls: disabled\n  \
         inbound: {{listen: \"{address}\", application: \"{application}\"}}\n"
    )
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
