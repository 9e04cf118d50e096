//! The cost of mTLS handshakes between proxies, full and resumed, beside rustls alone with the same certificates: both ends
//! in one thread over loopback, until the client has the first byte.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use data_encoding::BASE64;
use leno_tls::{Alpn, ClientIdentity, Connector, Credentials, Keyring};
use leno_types::Identity;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig, crypto::aws_lc_rs};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::rounds::{DecisionRounds as Args, median_of};

const ID: &str = "spiffe://cluster.local/ns/shop/sa/web";
/// rustls verifies names of servers.
pub(super) const NAME: &str = "web";
/// Handshakes of a round: of decisions there are so many times as many.
const LESS_OFTEN: usize = 1_000;

/// Prints the table.
pub(super) fn run(args: Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let proves = Proof::new()?;
    let count = (args.requests / LESS_OFTEN).max(10);
    println!(
        "| handshake, both ends | rustls alone, us | between proxies, us | |\n|---|---|---|---|"
    );
    for (name, resumes) in [("full", false), ("resumed", true)] {
        let mut failed = None;
        let mut timed = |of: &HandshakePair| {
            median_of(args.rounds, || match runtime.block_on(of.round(count, resumes)) {
                Ok(us) => us,
                Err(error) => {
                    failed = Some(error);
                    f64::NAN
                }
            })
        };
        let (alone, ours) =
            (timed(&HandshakePair::rustls(&proves)?), timed(&HandshakePair::proxies(&proves)?));
        failed.map_or(Ok(()), Err)?;
        println!("| {name} | {alone:.0} | {ours:.0} | {:.2} |", ours / alone);
    }
    println!();
    Ok(())
}

/// What both ends prove, and by what they verify each other.
pub(super) struct Proof {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    root: CertificateDer<'static>,
}

impl Proof {
    pub(super) fn new() -> Result<Self> {
        let root_key = KeyPair::generate()?;
        let mut root = CertificateParams::default();
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        root.distinguished_name.push(DnType::CommonName, "root");
        let certificate = root.self_signed(&root_key)?.der().clone();
        let issuer = Issuer::new(root, root_key);
        let key = KeyPair::generate()?;
        let mut leaf = CertificateParams::default();
        leaf.subject_alt_names =
            vec![SanType::URI(ID.try_into()?), SanType::DnsName(NAME.try_into()?)];
        let chain = vec![leaf.signed_by(&key, &issuer)?.der().clone()];
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        Ok(Self { chain, key, root: certificate })
    }

    /// A server with what proxies use: TLS 1.3, tickets without a store, the same groups.
    pub(super) fn rustls_server(&self) -> Result<TlsAcceptor> {
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

    pub(super) fn rustls_client(&self) -> Result<ClientConfig> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> =
            WebPkiServerVerifier::builder_with_provider(self.roots()?, Arc::clone(&provider))
                .build()?;
        Ok(ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())?)
    }

    /// What proxies prove it by.
    pub(super) fn keyring(&self) -> Result<Keyring> {
        let keyring = Keyring::new();
        let (chain, key) = (self.chain.clone(), self.key.clone_key());
        keyring.rotate(Credentials::from_der(chain, key, vec![self.root.clone()])?)?;
        Ok(keyring)
    }

    /// The same as files for other programs.
    pub(super) fn pem(&self) -> [(&'static str, String); 3] {
        let chain: String = self.chain.iter().map(|one| pem("CERTIFICATE", one)).collect();
        [
            ("chain.pem", chain),
            ("key.pem", pem("PRIVATE KEY", self.key.secret_der())),
            ("root.pem", pem("CERTIFICATE", &self.root)),
        ]
    }

    fn roots(&self) -> Result<Arc<RootCertStore>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone())?;
        Ok(Arc::new(roots))
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = BASE64.encode(der);
    // RFC 7468 section 2.
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| str::from_utf8(line).unwrap_or_default()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// A server and what connects to it.
enum HandshakePair {
    Rustls(TlsAcceptor, Arc<ClientConfig>),
    Proxies(Keyring, Identity),
}

impl HandshakePair {
    fn rustls(proves: &Proof) -> Result<Self> {
        Ok(Self::Rustls(proves.rustls_server()?, Arc::new(proves.rustls_client()?)))
    }

    fn proxies(proves: &Proof) -> Result<Self> {
        Ok(Self::Proxies(proves.keyring()?, ID.parse()?))
    }

    /// Microseconds of one handshake.
    async fn round(&self, count: usize, resumes: bool) -> Result<f64> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let at = listener.local_addr()?;
        let ends = async |client: &HandshakeClient| {
            let server = async {
                let (tcp, _) = listener.accept().await?;
                // Tickets and the byte are written one after the other: without it the byte waits for a delayed ACK.
                tcp.set_nodelay(true)?;
                match self {
                    Self::Rustls(acceptor, _) => first_byte(acceptor.accept(tcp).await?).await,
                    Self::Proxies(keyring, _) => {
                        let acceptor = keyring.acceptor();
                        first_byte(acceptor.accept(tcp, ClientIdentity::Required).await?).await
                    }
                }
            };
            let connected = async {
                let tcp = TcpStream::connect(at).await?;
                tcp.set_nodelay(true)?;
                client.connect(tcp).await
            };
            let (served, resumed) = tokio::try_join!(server, connected)?;
            anyhow::ensure!(resumed == resumes, "resumed: {resumed}");
            drop(served);
            anyhow::Ok(())
        };
        let kept = self.end(true);
        if resumes {
            // It has no ticket yet, and so makes a full one.
            let _full = ends(&kept).await;
        }
        let started = Instant::now();
        for _ in 0..count {
            match resumes {
                true => ends(&kept).await?,
                false => ends(&self.end(false)).await?,
            }
        }
        Ok(started.elapsed().as_micros() as f64 / count as f64)
    }

    /// A client, which knows no session yet. `resumes`: it will use those that it gets.
    fn end(&self, resumes: bool) -> HandshakeClient {
        match self {
            Self::Rustls(_, config) => {
                let mut config = ClientConfig::clone(config);
                config.resumption = match resumes {
                    true => Resumption::in_memory_sessions(8),
                    false => Resumption::disabled(),
                };
                HandshakeClient::Rustls(TlsConnector::from(Arc::new(config)))
            }
            Self::Proxies(keyring, id) => {
                HandshakeClient::Proxy(Box::new(keyring.connector()), id.clone())
            }
        }
    }
}

enum HandshakeClient {
    Rustls(TlsConnector),
    Proxy(Box<Connector>, Identity),
}

impl HandshakeClient {
    /// Connects, and reads the first byte, before which tickets come. Returns whether a session was resumed.
    async fn connect(&self, tcp: TcpStream) -> Result<bool> {
        match self {
            Self::Rustls(connector) => {
                let mut stream = connector.connect(ServerName::try_from(NAME)?, tcp).await?;
                stream.read_u8().await.context("the first byte")?;
                let kind = stream.get_ref().1.handshake_kind();
                Ok(kind == Some(rustls::HandshakeKind::Resumed))
            }
            Self::Proxy(connector, id) => {
                let mut stream = connector.connect(tcp, id, &[Alpn::Http2]).await?;
                stream.read_u8().await.context("the first byte")?;
                Ok(stream.resumed())
            }
        }
    }
}

/// Sends one byte, and keeps the connection open.
async fn first_byte<S: AsyncWrite + Unpin + 'static>(mut stream: S) -> Result<Box<dyn Any>> {
    stream.write_all(b"x").await?;
    stream.flush().await?;
    Ok(Box::new(stream))
}
