//! A client and a server of HBONE (HTTP/2 CONNECT in mTLS), built with the `h2` crate over `tokio-rustls`, as ztunnel
//! is. Also a client that claims to be one of Leno's proxies.
//!
//! ```text
//! hbone-peer ask DIRECTORY PROXY ID CONNECT...
//!                     opens one connection to PROXY, which must prove ID. For each CONNECT, such as 10.0.0.1:80=TEXT, sends
//!                     TEXT on a stream, ends its direction, and prints a line of JSON: the status, what was received, and the
//!                     error that ended the stream
//! hbone-peer take DIRECTORY LISTEN ID...
//!                     serves CONNECTs to its own addresses by connecting to the same port of loopback. A client that does not
//!                     prove one of the IDs gets 401
//! hbone-peer lie DIRECTORY PROXY ID [CARRIED URL]...
//!                     opens one connection to PROXY, which must prove ID, with the ALPN protocol of Leno's proxies. Requests
//!                     each URL with CARRIED in the header leno-h1, which only proxies may set; prints lines of JSON as above
//! ```
//! DIRECTORY has chain.pem, key.pem and roots.pem. In TEXT, `\r` and `\n` stand for those bytes.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{Method, Request, Response, StatusCode};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig,
    SignatureScheme,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["ask", directory, proxy, id, connects @ ..] => {
            let files = Files::read(directory.as_ref())?;
            ask(&files, proxy.parse()?, id, connects).await
        }
        ["lie", directory, proxy, id, requests @ ..] => {
            let files = Files::read(directory.as_ref())?;
            lie(&files, proxy.parse()?, id, requests).await
        }
        ["take", directory, listen, ids @ ..] => {
            let files = Files::read(directory.as_ref())?;
            take(&files, listen.parse()?, ids.iter().map(|id| (*id).to_owned()).collect()).await
        }
        _ => {
            bail!(
                "use: hbone-peer ask DIRECTORY PROXY ID CONNECT..., take DIRECTORY LISTEN ID..., \
                 lie DIRECTORY PROXY ID [CARRIED URL]..."
            )
        }
    }
}

/// An identity, and the roots with which the identities of others are verified.
struct Files {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: Arc<RootCertStore>,
}

impl Files {
    fn read(directory: &Path) -> Result<Self> {
        let certificates = |name| {
            let all = CertificateDer::pem_file_iter(directory.join(name))?;
            all.collect::<Result<Vec<_>, _>>()
        };
        let mut roots = RootCertStore::empty();
        for root in certificates("roots.pem")? {
            roots.add(root)?;
        }
        let key = PrivateKeyDer::from_pem_file(directory.join("key.pem"))?;
        Ok(Self { chain: certificates("chain.pem")?, key, roots: Arc::new(roots) })
    }
}

/// Whether a certificate has this SPIFFE ID. The ID is contained in it literally.
fn is_of(certificate: &CertificateDer<'_>, id: &str) -> bool {
    // The ID must be the whole name in the certificate, so the tag of such a name (context-specific 6) and its
    // length must come directly before it.
    let Ok(length) = u8::try_from(id.len()) else { return false };
    let name = [&[0x86, length], id.as_bytes()].concat();
    certificate.windows(name.len()).any(|window| window == name)
}

/// Verifies the chain like that of any server, and the SPIFFE ID instead of a name.
#[derive(Debug)]
struct OfId {
    chain: Arc<WebPkiServerVerifier>,
    id: String,
}

impl ServerCertVerifier for OfId {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use CertificateError::NotValidForNameContext;
        use CertificateError::{ApplicationVerificationFailure, NotValidForName};
        // The chain is verified before the name, so this result means that the chain is valid.
        match self.chain.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            Ok(_)
            | Err(rustls::Error::InvalidCertificate(
                NotValidForName | NotValidForNameContext { .. },
            )) => {}
            Err(error) => return Err(error),
        }
        if is_of(end_entity, &self.id) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

type Driver = tokio::task::JoinHandle<Result<(), h2::Error>>;

/// An HTTP/2 connection to a proxy that proves `id`.
async fn connect(
    files: &Files,
    proxy: SocketAddr,
    id: &str,
    alpn: &str,
) -> Result<(SendRequest<Bytes>, Driver)> {
    let chain = WebPkiServerVerifier::builder_with_provider(Arc::clone(&files.roots), provider())
        .build()?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(OfId { chain, id: id.to_owned() }))
        .with_client_auth_cert(files.chain.clone(), files.key.clone_key())?;
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    let tcp = TcpStream::connect(proxy).await?;
    let name = ServerName::IpAddress(proxy.ip().into());
    let tls = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
    let (client, connection) = h2::client::handshake(tls).await?;
    Ok((client, tokio::spawn(connection)))
}

async fn ask(files: &Files, proxy: SocketAddr, id: &str, connects: &[&str]) -> Result<()> {
    let (mut client, driver) = connect(files, proxy, id, "h2").await?;
    for connect in connects {
        let (authority, text) = connect.split_once('=').unwrap_or((connect, ""));
        let said = one(&mut client, authority, text).await;
        println!("{}", said.unwrap_or_else(|error| json!({ "error": format!("{error:#}") })));
    }
    drop(client);
    driver.await?.context("the connection has ended")
}

async fn one(
    client: &mut SendRequest<Bytes>,
    authority: &str,
    text: &str,
) -> Result<serde_json::Value> {
    let mut ready = client.clone().ready().await?;
    let request = Request::builder().method(Method::CONNECT).uri(authority).body(())?;
    let (response, mut sender) = ready.send_request(request, false)?;
    let response = response.await?;
    if response.status() == StatusCode::OK {
        let text = text.replace("\\r", "\r").replace("\\n", "\n");
        sender.send_data(text.into(), true)?;
    }
    answer(response).await
}

async fn lie(files: &Files, proxy: SocketAddr, id: &str, requests: &[&str]) -> Result<()> {
    let (client, driver) = connect(files, proxy, id, "leno-h2").await?;
    for request in requests.chunks(2) {
        let [carried, url] = request else { bail!("no URL") };
        let request = Request::get(*url).header("leno-h1", *carried).body(())?;
        let (response, _) = client.clone().ready().await?.send_request(request, true)?;
        let said = async { answer(response.await?).await }.await;
        println!("{}", said.unwrap_or_else(|error| json!({ "error": format!("{error:#}") })));
    }
    drop(client);
    driver.await?.context("the connection has ended")
}

async fn answer(response: Response<RecvStream>) -> Result<serde_json::Value> {
    let status = response.status().as_u16();
    let mut receiver = response.into_body();
    let mut said = Vec::new();
    let mut ended = None;
    while let Some(chunk) = receiver.data().await {
        match chunk {
            Ok(chunk) => {
                receiver.flow_control().release_capacity(chunk.len())?;
                said.extend_from_slice(&chunk);
            }
            Err(error) => {
                ended = Some(error.to_string());
                break;
            }
        }
    }
    Ok(json!({ "status": status, "said": String::from_utf8_lossy(&said), "ended": ended }))
}

async fn take(files: &Files, listen: SocketAddr, ids: Vec<String>) -> Result<()> {
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&files.roots), provider())
        .build()?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(clients)
        .with_single_cert(files.chain.clone(), files.key.clone_key())?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let (listener, ids) = (TcpListener::bind(listen).await?, Arc::new(ids));
    let mut nth = 0_u64;
    loop {
        let (tcp, from) = listener.accept().await?;
        nth += 1;
        let (acceptor, ids) = (acceptor.clone(), Arc::clone(&ids));
        tokio::spawn(async move {
            if let Err(error) = connection(acceptor, tcp, (nth, &ids)).await {
                eprintln!("{from}: {error:#}");
            }
        });
    }
}

/// Serves the CONNECT requests of one connection. `number` is for the log.
async fn connection(
    acceptor: tokio_rustls::TlsAcceptor,
    tcp: TcpStream,
    (nth, ids): (u64, &[String]),
) -> Result<()> {
    let own = tcp.local_addr()?.ip().to_canonical();
    let tls = acceptor.accept(tcp).await?;
    let session = tls.get_ref().1;
    ensure!(session.alpn_protocol() == Some(b"h2"), "no HTTP/2");
    let certificate =
        session.peer_certificates().and_then(<[_]>::first).context("no certificate")?;
    let permitted = ids.iter().any(|id| is_of(certificate, id));
    let mut connection = h2::server::handshake(tls).await?;
    while let Some(request) = connection.accept().await {
        let (request, mut respond) = request?;
        let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        let to: Option<SocketAddr> = authority.parse().ok();
        let status = match to {
            _ if request.method() != Method::CONNECT => StatusCode::METHOD_NOT_ALLOWED,
            Some(to) if to.ip() != own => StatusCode::BAD_REQUEST,
            None => StatusCode::BAD_REQUEST,
            Some(_) if !permitted => StatusCode::UNAUTHORIZED,
            Some(_) => StatusCode::OK,
        };
        eprintln!("connection {nth}: {} {authority} {status}", request.method());
        let Some(to) = to.filter(|_| status == StatusCode::OK) else {
            respond.send_response(Response::builder().status(status).body(())?, true)?;
            continue;
        };
        let body = request.into_body();
        tokio::spawn(async move {
            let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, to.port())).await else {
                let mut unavailable = Response::new(());
                *unavailable.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                let _gone = respond.send_response(unavailable, true);
                return;
            };
            let Ok(sender) = respond.send_response(Response::new(()), false) else { return };
            if let Err(error) = relay(server, body, sender).await {
                eprintln!("{to}: {error:#}");
            }
        });
    }
    Ok(())
}

async fn relay(
    mut server: TcpStream,
    mut from: RecvStream,
    mut to: SendStream<Bytes>,
) -> Result<()> {
    let (mut reader, mut writer) = server.split();
    let forth = async {
        while let Some(chunk) = from.data().await {
            let chunk = chunk?;
            writer.write_all(&chunk).await?;
            from.flow_control().release_capacity(chunk.len())?;
        }
        Ok::<_, anyhow::Error>(writer.shutdown().await?)
    };
    let back = async {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let count = reader.read(&mut buffer).await?;
            if count == 0 {
                return Ok(to.send_data(Bytes::new(), true)?);
            }
            let mut left = Bytes::copy_from_slice(&buffer[..count]);
            while !left.is_empty() {
                to.reserve_capacity(left.len());
                let room = std::future::poll_fn(|cx| to.poll_capacity(cx)).await;
                let room = room.context("the stream has ended")??;
                to.send_data(left.split_to(room.min(left.len())), false)?;
            }
        }
    };
    tokio::try_join!(forth, back).map(drop)
}
