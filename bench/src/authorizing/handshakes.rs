//! Measures what mTLS handshakes cost, full and resumed: between two proxies, between two rustls programs with the same
//! certificates, and from a rustls client to Envoy. At each end the CPU time is measured, so that a thread of this
//! program can be compared with another program.
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
use leno_console::{print_line, print_text};
use leno_suite::interrupt::Interrupt;
use leno_suite::lab::mesh::certificates::Authority;
use leno_suite::lab::mesh::{self, Choices};
use leno_suite::lab::one_hop::Listening;
use leno_suite::tabular::{Column, markdown, rows};
use leno_testkit::proxy::free_address;
use leno_testkit::usage;
use leno_tls::{Alpn, ClientIdentity, Credentials, Keyring};
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
/// The DNS name in the certificate, because rustls clients verify a server by its DNS name.
const NAME: &str = "web";
/// A round has as many handshakes as it would have decisions, divided by this, because a handshake takes much longer
/// than a decision. There are at least ten.
const LESS_OFTEN: usize = 1_000;

/// The kind of handshake, the end that is measured, the microseconds of rustls alone and of a proxy, and those of Envoy
/// if it was measured.
type HandshakeCost = (&'static str, &'static str, [f64; 2], Option<f64>);

/// Prints the table, and a note if Envoy is not installed.
pub(super) fn run(args: Args) -> Result<()> {
    let proof = Proof::new()?;
    let count = (args.requests / LESS_OFTEN).max(10);
    let envoy = mesh::named("envoy", &Choices::default())?.find().ok().and_then(|one| one.program);
    let mut costs = Vec::new();
    let config = proof.rustls_client()?;
    // Makes a rustls client that has no session to resume yet, as a function that connects and returns whether the
    // connection resumed a session.
    let of_rustls = |resumption: Resumption| {
        let mut config = config.clone();
        config.resumption = resumption;
        let connector = TlsConnector::from(Arc::new(config));
        async move |tcp| {
            let mut stream = connector.connect(ServerName::try_from(NAME)?, tcp).await?;
            byte_back(&mut stream).await?;
            Ok(stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed))
        }
    };
    let keyring = proof.keyring()?;
    let id: Identity = ID.parse()?;
    let of_proxy = || {
        let (connector, id) = (keyring.connector(), &id);
        async move |tcp| {
            let mut stream = connector.connect(tcp, id, &[Alpn::Http2]).await?;
            byte_back(&mut stream).await?;
            Ok(stream.resumed())
        }
    };
    for (name, resumes) in [("full", false), ("resumed", true)] {
        let handshakes = Handshakes { count, resumes };
        let rustls = || {
            of_rustls(match resumes {
                true => Resumption::in_memory_sessions(8),
                false => Resumption::disabled(),
            })
        };
        let alone = medians(args, || {
            let acceptor = proof.rustls_server()?;
            let server = async move |tcp| echo(acceptor.accept(tcp).await?).await;
            handshakes.of_both(server, rustls)
        })?;
        let proxy = medians(args, || {
            let acceptor = keyring.acceptor();
            let required = ClientIdentity::Required;
            let server = async move |tcp| echo(acceptor.accept(tcp, required).await?).await;
            handshakes.of_both(server, of_proxy)
        })?;
        let theirs = match &envoy {
            Some(program) => {
                let server = self::envoy(program, &proof)?;
                let [us, _] = medians(args, || handshakes.of_envoy(&server, rustls))?;
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
    print_text!("{}", markdown(&rows(&costs, &columns)));
    if envoy.is_none() {
        print_line!("\nWithout Envoy: scripts/tools.sh envoy installs it.");
    }
    print_line!();
    Ok(())
}

/// The CPU microseconds of one handshake: first the server's, then the client's.
type Ends = [f64; 2];

/// Runs the rounds, and returns the median for each end.
fn medians(args: Args, mut round: impl FnMut() -> Result<Ends>) -> Result<Ends> {
    let rounds = (0..args.rounds.max(1)).map(|_| round()).collect::<Result<Vec<_>>>()?;
    let of = |end: usize| {
        let mut each = rounds.iter().map(|ends| ends[end]);
        median_of(rounds.len(), || each.next().unwrap_or(f64::NAN))
    };
    Ok([of(0), of(1)])
}

/// The certificate and key of both ends, and the root with which they verify each other.
struct Proof {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    root: CertificateDer<'static>,
    /// The chain, the key and the root as PEM files for Envoy, each with its file name.
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

    /// Makes a rustls server with the settings of proxies: TLS 1.3, the same groups, and tickets that the server does
    /// not need to remember.
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

    /// Returns the keyring with which both proxies prove their identity.
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

/// Sends the client's byte back, and waits until the client closes.
async fn echo<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> Result<()> {
    let byte = stream.read_u8().await.context("the client's byte")?;
    stream.write_u8(byte).await?;
    stream.flush().await?;
    // The client closes without an alert of TLS, which is an error here.
    let _closed = stream.read_u8().await;
    Ok(())
}

async fn byte_back<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) -> Result<()> {
    stream.write_u8(b'x').await?;
    stream.flush().await?;
    stream.read_u8().await.context("the byte that comes back")?;
    Ok(())
}

/// How many handshakes of a round are measured. If they resume a session, a full handshake comes before them, which is
/// not measured.
#[derive(Clone, Copy)]
struct Handshakes {
    count: usize,
    resumes: bool,
}

impl Handshakes {
    /// Measures a server in another thread with clients in this one.
    fn of_both<C: AsyncFn(TcpStream) -> Result<bool>>(
        self,
        server: impl AsyncFn(TcpStream) -> Result<()> + Send + 'static,
        client: impl Fn() -> C,
    ) -> Result<Ends> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let serves = move || {
            let listener = async { TcpListener::from_std(listener) };
            self.each(listener, async |listener, _| {
                let (tcp, _) = listener.accept().await?;
                tcp.set_nodelay(true)?;
                server(tcp).await
            })
        };
        let (send, served) = channel();
        // The thread sends its result through the channel, and stops after its last handshake.
        std::thread::spawn(move || send.send(serves()));
        let of_client = self.of_clients(port, client)?;
        Ok([served.recv().context("the server has ended")??, of_client])
    }

    /// Measures the clients in this thread, and the CPU time of Envoy. The latter includes the full handshake that
    /// comes before resumed ones, so it is divided by the number of all handshakes.
    fn of_envoy<C: AsyncFn(TcpStream) -> Result<bool>>(
        self,
        envoy: &Listening,
        client: impl Fn() -> C,
    ) -> Result<Ends> {
        let began = envoy.cpu()?;
        let of_client = self.of_clients(envoy.address.port(), client)?;
        let used = (envoy.cpu()? - began).total_us();
        Ok([used as f64 / (usize::from(self.resumes) + self.count) as f64, of_client])
    }

    /// Connects again and again, and returns the CPU microseconds of one connection. To resume sessions, all
    /// connections are made by one client; otherwise each has a new client.
    fn of_clients<C: AsyncFn(TcpStream) -> Result<bool>>(
        self,
        port: u16,
        client: impl Fn() -> C,
    ) -> Result<f64> {
        let kept = client();
        self.each(async { Ok(()) }, async |(), nth| {
            let tcp = TcpStream::connect(("127.0.0.1", port)).await?;
            // The server writes its ticket and the byte separately. Without this option, the second write would wait
            // for a delayed ACK.
            tcp.set_nodelay(true)?;
            let resumed = if self.resumes { kept(tcp).await? } else { client()(tcp).await? };
            ensure!(resumed == (nth > 0 && self.resumes), "handshake {nth} is resumed: {resumed}");
            Ok(())
        })
    }

    /// The microseconds of this thread for each handshake that is measured.
    fn each<T>(
        self,
        begin: impl Future<Output = std::io::Result<T>>,
        handshake: impl AsyncFn(&T, usize) -> Result<()>,
    ) -> Result<f64> {
        let first = usize::from(self.resumes);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let with = begin.await?;
            let mut began = micros_of_this_thread()?;
            for nth in 0..first + self.count {
                if nth == first {
                    began = micros_of_this_thread()?;
                }
                handshake(&with, nth).await?;
            }
            Ok((micros_of_this_thread()? - began) / self.count as f64)
        })
    }
}

/// Microseconds that this thread was on processors.
fn micros_of_this_thread() -> Result<f64> {
    Ok(usage::cpu_of_this_thread()?.as_secs_f64() * 1e6)
}

/// Starts an Envoy that requires a certificate of its client and sends back the bytes that it receives.
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
