//! What a handshake costs a server of mTLS: rustls alone, a proxy's side, and Envoy, before one client of rustls. The time is
//! that of the server's processors, so that it counts the same in a thread here and in another program.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use leno_testkit::binaries;
use leno_tls::{Acceptor, Alpn, ClientIdentity};
use rustls::client::Resumption;
use rustls::{ClientConfig, HandshakeKind};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::handshakes::{NAME, Proof};
use crate::rounds::{DecisionRounds as Args, median_of};

/// Handshakes of a round: of decisions there are so many times as many.
const LESS_OFTEN: usize = 1_000;
/// Where `scripts/tools.sh envoy` installs it.
const INSTALLED: &str = "envoy/envoy/_bin/envoy";
/// How long Envoy may take to listen.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Prints the table. Without Envoy it says so.
pub(super) fn run(args: Args) -> Result<()> {
    let proof = Proof::new()?;
    let count = (args.requests / LESS_OFTEN).max(10);
    let envoy = binaries::tool("envoy", INSTALLED).ok().or_else(|| binaries::find("envoy"));
    println!("| handshake | rustls alone, us of the server | a proxy | Envoy |\n|---|---|---|---|");
    for (name, resumes) in [("full", false), ("resumed", true)] {
        let alone = cost(args, || {
            of_thread(&proof, count, resumes, ServerSide::Rustls(proof.rustls_server()?))
        })?;
        let ours = cost(args, || {
            let keyring = proof.keyring()?;
            of_thread(&proof, count, resumes, ServerSide::Proxy(keyring.acceptor()))
        })?;
        let theirs = match &envoy {
            Some(program) => {
                let server = Envoy::start(program, &proof)?;
                format!("{:.0}", cost(args, || server.round(&proof, count, resumes))?)
            }
            None => "-".to_owned(),
        };
        println!("| {name} | {alone:.0} | {ours:.0} | {theirs} |");
    }
    if envoy.is_none() {
        println!("\nWithout Envoy: scripts/tools.sh envoy installs it.");
    }
    println!();
    Ok(())
}

/// The median of the rounds.
fn cost(args: Args, mut round: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut failed = None;
    let median = median_of(args.rounds, || {
        round().unwrap_or_else(|error| {
            failed = Some(error);
            f64::NAN
        })
    });
    failed.map_or(Ok(median), Err)
}

/// A server in a thread of its own.
enum ServerSide {
    Rustls(TlsAcceptor),
    Proxy(Acceptor),
}

impl ServerSide {
    async fn answer(&self, tcp: TcpStream) -> Result<()> {
        match self {
            Self::Rustls(acceptor) => echo(acceptor.accept(tcp).await?).await,
            Self::Proxy(acceptor) => {
                echo(acceptor.accept(tcp, ClientIdentity::Required).await?).await
            }
        }
    }
}

/// Sends back the client's byte, and waits for its end.
async fn echo<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> Result<()> {
    let byte = stream.read_u8().await.context("the client's byte")?;
    stream.write_u8(byte).await?;
    stream.flush().await?;
    // The client closes without a word.
    let _closed = stream.read_u8().await;
    Ok(())
}

/// Microseconds of the thread for each of `count` handshakes.
fn of_thread(proof: &Proof, count: usize, resumes: bool, side: ServerSide) -> Result<f64> {
    // Resumed handshakes come after a full one.
    let first = usize::from(resumes);
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let at = listener.local_addr()?.port();
    let serves = move || -> Result<f64> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener)?;
            let mut began = on_processors(Path::new("/proc/thread-self"))?;
            for nth in 0..first + count {
                if nth == first {
                    began = on_processors(Path::new("/proc/thread-self"))?;
                }
                let (tcp, _) = listener.accept().await?;
                tcp.set_nodelay(true)?;
                side.answer(tcp).await?;
            }
            let took = on_processors(Path::new("/proc/thread-self"))? - began;
            Ok(took / count as f64)
        })
    };
    let (send, served) = channel();
    // Its end is received below; it serves no one after its last handshake.
    std::thread::spawn(move || send.send(serves()));
    knock(proof, at, first + count, resumes)?;
    served.recv().context("the server has ended")?
}

/// Connects one after the other, and has a byte sent back by each.
fn knock(proof: &Proof, port: u16, count: usize, resumes: bool) -> Result<()> {
    let mut config: ClientConfig = proof.rustls_client()?;
    config.alpn_protocols = vec![Alpn::Http2.as_bytes().to_vec()];
    config.resumption = match resumes {
        true => Resumption::in_memory_sessions(8),
        false => Resumption::disabled(),
    };
    let connector = TlsConnector::from(Arc::new(config));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        for nth in 0..count {
            let tcp = TcpStream::connect(("127.0.0.1", port)).await?;
            tcp.set_nodelay(true)?;
            let mut stream = connector.connect(ServerName::try_from(NAME)?, tcp).await?;
            stream.write_u8(b'x').await?;
            stream.flush().await?;
            stream.read_u8().await.context("the byte that comes back")?;
            let kind = stream.get_ref().1.handshake_kind();
            let resumed = kind == Some(HandshakeKind::Resumed);
            ensure!(resumed == (resumes && nth > 0), "handshake {nth} is of kind {kind:?}");
        }
        Ok(())
    })
}

/// Microseconds that a thread was on processors (Documentation/scheduler/sched-stats.rst).
fn on_processors(thread: &Path) -> Result<f64> {
    let text = fs::read_to_string(thread.join("schedstat"))?;
    let ns = text.split_whitespace().next().context("/proc/*/schedstat is empty")?;
    Ok(ns.parse::<f64>()? / 1e3)
}

/// Envoy, which requires a client's certificate, and sends back what it gets.
struct Envoy {
    child: Child,
    port: u16,
    /// Its files.
    _folder: tempfile::TempDir,
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

impl Envoy {
    fn start(program: &Path, proof: &Proof) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        // Free again at once, and not taken by the next that asks.
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        for (name, pem) in proof.pem() {
            fs::write(folder.path().join(name), pem)?;
        }
        let file = folder.path().join("envoy.yaml");
        fs::write(&file, configuration(folder.path(), port))?;
        let child = Command::new(program)
            .args(["--concurrency", "1", "--disable-hot-restart", "-l", "error", "-c"])
            .arg(&file)
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let started = Self { child, port, _folder: folder };
        let deadline = Instant::now() + START_LIMIT;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > deadline {
                bail!("Envoy does not listen after {START_LIMIT:?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(started)
    }

    /// Microseconds of all its threads for each handshake.
    fn round(&self, proof: &Proof, count: usize, resumes: bool) -> Result<f64> {
        let began = self.on_processors()?;
        // The full one before resumed ones is among them.
        let all = count + usize::from(resumes);
        knock(proof, self.port, all, resumes)?;
        Ok((self.on_processors()? - began) / all as f64)
    }

    fn on_processors(&self) -> Result<f64> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id()))?;
        threads.map(|thread| on_processors(&thread?.path())).sum()
    }
}

fn configuration(folder: &Path, port: u16) -> String {
    let folder = folder.display();
    format!(
        r#"static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.echo
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          require_client_certificate: true
          common_tls_context:
            tls_params: {{tls_minimum_protocol_version: TLSv1_3, ecdh_curves: [X25519MLKEM768]}}
            tls_certificates:
            - certificate_chain: {{filename: {folder}/chain.pem}}
              private_key: {{filename: {folder}/key.pem}}
            validation_context: {{trusted_ca: {{filename: {folder}/root.pem}}}}
"#
    )
}
