//! The cost of mTLS handshakes, full and resumed: of proxies, of rustls alone with the same certificates, and of Envoy as the
//! server of rustls. The time of each end is that of its processors, so that it counts the same in a thread here and in another
//! program.
//!
//! ```text
//!   client, this thread ── handshake, one byte there and back ──► server: a thread, or Envoy
//! ```

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;

use anyhow::{Context, Result, ensure};
use leno_suite::interrupt::Interrupt;
use leno_suite::lab::mesh::certificates::Authority;
use leno_suite::lab::mesh::{self, Choices};
use leno_suite::lab::one_hop::Listening;
use leno_suite::tabular::{Column, markdown, rows};
use leno_testkit::proxy::free_address;
use leno_testkit::usage;
use leno_tls::{Acceptor, Alpn, ClientIdentity, Connector, Credentials, Keyring};
use leno_types::Identity;
use minijinja::context;
use rcgen::SanType;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, HandshakeKind, RootCertStore, ServerConfig, crypto::aws_lc_rs};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::documents::{ECHO_OF_ENVOY, from_template};
use crate::rounds::{DecisionRounds as Args, median_of};

const ID: &str = "spiffe://cluster.local/ns/shop/sa/web";
/// rustls verifies names of servers.
const NAME: &str = "web";
/// Handshakes of a round: of decisions there are so many times as many.
const LESS_OFTEN: usize = 1_000;

/// The handshake, its end, microseconds of rustls alone and of a proxy, and those of Envoy.
type HandshakeCost = (&'static str, &'static str, [f64; 2], Option<f64>);

/// Prints the table. Without Envoy it says so.
pub(super) fn run(args: Args) -> Result<()> {
    let proof = Proof::new()?;
    let count = (args.requests / LESS_OFTEN).max(10);
    let envoy = mesh::named("envoy", &Choices::default())?.find().ok().and_then(|one| one.program);
    let mut costs = Vec::new();
    for (name, resumes) in [("full", false), ("resumed", true)] {
        let alone = medians(args, || {
            let server = ServerSide::Rustls(proof.rustls_server()?);
            pair(server, &ClientSide::rustls(&proof)?, count, resumes)
        })?;
        let proxy = medians(args, || {
            let keyring = proof.keyring()?;
            let server = ServerSide::Proxy(keyring.acceptor());
            pair(server, &ClientSide::Proxy(keyring, ID.parse()?), count, resumes)
        })?;
        let theirs = match &envoy {
            Some(program) => {
                let server = self::envoy(program, &proof)?;
                let client = ClientSide::rustls(&proof)?;
                let [us, _] = medians(args, || round_of_envoy(&server, &client, count, resumes))?;
                Some(us)
            }
            None => None,
        };
        costs.push((name, "server", [alone[0], proxy[0]], theirs));
        costs.push((name, "client", [alone[1], proxy[1]], None));
    }
    let columns: [Column<'_, HandshakeCost>; 6] = [
        ("handshake", &|(name, ..)| (*name).to_owned()),
        ("end", &|(_, end, ..)| (*end).to_owned()),
        ("rustls alone, us", &|(.., [alone, _], _)| format!("{alone:.0}")),
        ("a proxy, us", &|(.., [_, proxy], _)| format!("{proxy:.0}")),
        ("ratio", &|(.., [alone, proxy], _)| format!("{:.2}", proxy / alone)),
        ("Envoy, us", &|(.., us)| us.map_or_else(|| "-".to_owned(), |us| format!("{us:.0}"))),
    ];
    print!("{}", markdown(&rows(&costs, &columns)));
    if envoy.is_none() {
        println!("\nWithout Envoy: scripts/tools.sh envoy installs it.");
    }
    println!();
    Ok(())
}

/// Microseconds of one handshake: of the server, and of the client.
type Ends = [f64; 2];

/// The median of each end over the rounds.
fn medians(args: Args, mut round: impl FnMut() -> Result<Ends>) -> Result<Ends> {
    let rounds = (0..args.rounds.max(1)).map(|_| round()).collect::<Result<Vec<_>>>()?;
    let of = |end: usize| {
        let mut each = rounds.iter().map(|ends| ends[end]);
        median_of(rounds.len(), || each.next().unwrap_or(f64::NAN))
    };
    Ok([of(0), of(1)])
}

/// What both ends prove, and by what they verify each other.
struct Proof {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    root: CertificateDer<'static>,
    /// The same as files for other programs.
    files: [(&'static str, String); 3],
}

impl Proof {
    fn new() -> Result<Self> {
        let authority = Authority::new()?;
        let names = vec![SanType::URI(ID.try_into()?), SanType::DnsName(NAME.try_into()?)];
        let (leaf, key) = authority.issue(names)?;
        let root = authority.root();
        let files =
            [("chain.pem", leaf.pem()), ("key.pem", key.serialize_pem()), ("root.pem", root.pem())];
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        Ok(Self { chain: vec![leaf.der().clone()], key, root: root.der().clone(), files })
    }

    /// A server with what proxies use: TLS 1.3, tickets without a store, the same groups.
    fn rustls_server(&self) -> Result<TlsAcceptor> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(self.roots()?, Arc::clone(&provider));
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier.build()?)
            .with_single_cert(self.chain.clone(), self.key.clone_key())?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.ticketer = aws_lc_rs::Ticketer::new()?;
        server.send_tls13_tickets = 1;
        Ok(TlsAcceptor::from(Arc::new(server)))
    }

    fn rustls_client(&self) -> Result<ClientConfig> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> =
            WebPkiServerVerifier::builder_with_provider(self.roots()?, Arc::clone(&provider))
                .build()?;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())?;
        client.alpn_protocols = vec![Alpn::Http2.as_bytes().to_vec()];
        Ok(client)
    }

    /// What proxies prove it by.
    fn keyring(&self) -> Result<Keyring> {
        let keyring = Keyring::new();
        let (chain, key) = (self.chain.clone(), self.key.clone_key());
        keyring.rotate(Credentials::from_der(chain, key, vec![self.root.clone()])?)?;
        Ok(keyring)
    }

    fn roots(&self) -> Result<Arc<RootCertStore>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone())?;
        Ok(Arc::new(roots))
    }
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

/// What makes clients.
enum ClientSide {
    Rustls(Box<ClientConfig>),
    Proxy(Keyring, Identity),
}

/// A client, with the sessions that it has got.
enum HandshakeClient<'s> {
    Rustls(TlsConnector),
    Proxy(Box<Connector>, &'s Identity),
}

impl ClientSide {
    fn rustls(proof: &Proof) -> Result<Self> {
        Ok(Self::Rustls(Box::new(proof.rustls_client()?)))
    }

    /// A client, which knows no session yet. `resumes`: it will use those that it gets.
    fn client(&self, resumes: bool) -> HandshakeClient<'_> {
        match self {
            Self::Rustls(config) => {
                let mut config = ClientConfig::clone(config);
                config.resumption = match resumes {
                    true => Resumption::in_memory_sessions(8),
                    false => Resumption::disabled(),
                };
                HandshakeClient::Rustls(TlsConnector::from(Arc::new(config)))
            }
            Self::Proxy(keyring, id) => HandshakeClient::Proxy(Box::new(keyring.connector()), id),
        }
    }
}

impl HandshakeClient<'_> {
    /// Connects, and has a byte sent back, before which tickets come. Returns whether a session was resumed.
    async fn connect(&self, tcp: TcpStream) -> Result<bool> {
        match self {
            Self::Rustls(connector) => {
                let mut stream = connector.connect(ServerName::try_from(NAME)?, tcp).await?;
                byte_back(&mut stream).await?;
                Ok(stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed))
            }
            Self::Proxy(connector, id) => {
                let mut stream = connector.connect(tcp, id, &[Alpn::Http2]).await?;
                byte_back(&mut stream).await?;
                Ok(stream.resumed())
            }
        }
    }
}

async fn byte_back<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) -> Result<()> {
    stream.write_u8(b'x').await?;
    stream.flush().await?;
    stream.read_u8().await.context("the byte that comes back")?;
    Ok(())
}

/// `count` handshakes of a server in a thread with a client in this one. Resumed handshakes come after a full one, which does
/// not count.
fn pair(server: ServerSide, client: &ClientSide, count: usize, resumes: bool) -> Result<Ends> {
    let first = usize::from(resumes);
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    let serves = move || -> Result<f64> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener)?;
            let mut began = micros_of_this_thread()?;
            for nth in 0..first + count {
                if nth == first {
                    began = micros_of_this_thread()?;
                }
                let (tcp, _) = listener.accept().await?;
                tcp.set_nodelay(true)?;
                server.answer(tcp).await?;
            }
            Ok((micros_of_this_thread()? - began) / count as f64)
        })
    };
    let (send, served) = channel();
    // Its end is received below; it serves no one after its last handshake.
    std::thread::spawn(move || send.send(serves()));
    let of_client = knock(port, client, (first, count))?;
    Ok([served.recv().context("the server has ended")??, of_client])
}

/// Connects one after the other. Returns microseconds of this thread for each handshake after the first ones.
fn knock(port: u16, client: &ClientSide, (first, count): (usize, usize)) -> Result<f64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let resumes = first > 0;
    let kept = client.client(true);
    runtime.block_on(async {
        let mut began = micros_of_this_thread()?;
        for nth in 0..first + count {
            if nth == first {
                began = micros_of_this_thread()?;
            }
            let tcp = TcpStream::connect(("127.0.0.1", port)).await?;
            // Tickets and the byte are written one after the other: without it the byte waits for a delayed ACK.
            tcp.set_nodelay(true)?;
            let resumed = match resumes {
                true => kept.connect(tcp).await?,
                false => client.client(false).connect(tcp).await?,
            };
            ensure!(resumed == (nth > 0 && resumes), "handshake {nth} is resumed: {resumed}");
        }
        Ok((micros_of_this_thread()? - began) / count as f64)
    })
}

/// Microseconds that this thread was on processors.
fn micros_of_this_thread() -> Result<f64> {
    Ok(usage::cpu_of_this_thread()?.as_secs_f64() * 1e6)
}

/// Envoy, which requires a client's certificate, and sends back what it gets.
fn envoy(program: &Path, proof: &Proof) -> Result<Listening> {
    let (folder, port) = (tempfile::tempdir()?, free_address()?.port());
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    for (name, pem) in &proof.files {
        fs::write(folder.path().join(name), pem)?;
    }
    let values = context! { folder => folder.path().display().to_string(), port };
    fs::write(folder.path().join("envoy.yaml"), from_template(ECHO_OF_ENVOY, values))?;
    let mut command = Command::new(program);
    command.args([
        "--concurrency",
        "1",
        "--disable-hot-restart",
        "-l",
        "error",
        "-c",
        "envoy.yaml",
    ]);
    Listening::start((command, address), folder, &Interrupt::default())
}

/// The full handshake before resumed ones is among those of Envoy.
fn round_of_envoy(
    envoy: &Listening,
    client: &ClientSide,
    count: usize,
    resumes: bool,
) -> Result<Ends> {
    let began = envoy.cpu()?;
    let first = usize::from(resumes);
    let of_client = knock(envoy.address.port(), client, (first, count))?;
    let used = (envoy.cpu()? - began).total_us();
    Ok([used as f64 / (first + count) as f64, of_client])
}
